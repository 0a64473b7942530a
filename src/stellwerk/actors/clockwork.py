"""The clockwork: what happens because time passes. Due timers, locks that ran out, messages that something waits for.

Each service looks into the store, acts, and sleeps until the next thing is due or somebody wakes it, a second at most:
wake-ups are hints, the poll is the net. What it finds it sends as commands; the instance's step decides. On a shared
store the clockwork of every node does so: timers are claimed, and of all else the guards let one node be the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol

import trio

from stellwerk.actors.committer import Committer
from stellwerk.actors.definitions import Definitions, start_messages
from stellwerk.actors.instance import Envelope
from stellwerk.actors.mailbox import Reply
from stellwerk.core.commands import (
    Command,
    CorrelateMessage,
    EndDraining,
    EndTaskInFailure,
    FailureKind,
    FireTimer,
    StartInstance,
)
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import CallerError, Conflict, InvariantBroken, NotFound, PeerError, StellwerkError
from stellwerk.ids import derived_id
from stellwerk.json_values import canonical_object, loads
from stellwerk.ports import (
    DropMessages,
    ExpiredLocks,
    ExpireLocks,
    LeaseAnswerKind,
    MatchedMessage,
    Ports,
    RevokedLease,
)

__all__ = ["Clockwork", "ClockworkServices"]

POLL_SECONDS = 1.0
_BATCH = 1_000
_FULL_BATCH_PAUSE_SECONDS = 0.05
_DROP_MESSAGES_SECONDS = 60.0
_REFUSALS_MAX = 5
"""Of a message: then it goes when its time to live ends, although something waits for it. It would be in the way of
others as long as that waits."""


class ClockworkServices(Protocol):
    """What the clockwork needs of its node."""

    ports: Ports
    committer: Committer
    definition_cache: Definitions

    async def post(self, instance_id: str, envelope: Envelope) -> None: ...

    def lease_ended(self, task: RevokedLease, reason: str) -> None:
        """Without the worker's doing: whoever holds it is told."""

    def returned(self, task: ExternalTask) -> None: ...


class Clockwork:
    def __init__(self, services: ClockworkServices) -> None:
        self._services = services
        self._clock = services.ports.clock
        self._under_way: set[str] = set()
        """Ids of timers, messages and tasks whose command was sent and is not answered yet."""
        self._timer_wake = trio.Event()
        self._next_timer_ms: int | None = None
        self._message_wake = trio.Event()
        self._tried_again: set[str] = set()
        """Messages that were refused and matched again at once; the next time they wait for the poll."""
        self._refusals: Counter[str] = Counter()
        """How often each message could not be taken by what waits for it (the instance has no room, say)."""
        self._started: set[str] = set()
        """Messages whose instance exists: they were published again after they had been forgotten."""
        self.locks_reclaimed = 0

    # --- hints -----------------------------------------------------------------------------------------------------

    def timer_armed(self, due_at_ms: int) -> None:
        if self._next_timer_ms is None or due_at_ms < self._next_timer_ms:
            self._timer_wake.set()

    def match_messages(self) -> None:
        self._message_wake.set()

    def look_now(self) -> None:
        """At timers and messages, whatever is known of them."""
        self._timer_wake.set()
        self._message_wake.set()

    # --- services --------------------------------------------------------------------------------------------------

    async def reclaim_locks(self) -> None:
        """Requirement L7: a crashed worker needs no help."""
        while True:
            expiry_ms, now_ms = await self._services.ports.store.next_lock_expiry()
            if expiry_ms is not None and expiry_ms <= now_ms:
                await self._reclaim()
                continue
            pause = POLL_SECONDS if expiry_ms is None else min(POLL_SECONDS, (expiry_ms - now_ms) / 1000)
            await self._clock.sleep(max(0.001, pause))

    async def _reclaim(self) -> None:
        expired = await self._services.committer.submit(ExpireLocks(_BATCH))
        assert isinstance(expired, ExpiredLocks)
        self.locks_reclaimed += len(expired.returned)
        for task in expired.returned:
            self._tell_holder(task)
            self._services.returned(task)
        for task in expired.failing:
            # Its holder is told once that is sure: a renewal that was asked for in time may be committed before.
            command = _expiry_command(task)
            await self._send(task.task_id, task.instance_id, command, partial(self._tell_holder, task))
        if not expired.returned:
            # Only tasks that their instances have to end: give them time to do so.
            await self._clock.sleep(0.05)

    def _tell_holder(self, task: ExternalTask) -> None:
        assert task.lease is not None
        ended = RevokedLease(task.task_id, task.topic, task.fence, task.lease.holder)
        self._services.lease_ended(ended, "expired")

    async def fire_timers(self) -> None:
        while True:
            self._timer_wake = trio.Event()
            self._next_timer_ms = None  # what is armed while the store is read must wake this loop
            now_ms = self._clock.wall_ms()
            due, self._next_timer_ms = await self._services.ports.store.claim_timers(now_ms, _BATCH)
            for timer in due:
                await self._send(timer.timer_id, timer.instance_id, FireTimer(timer.timer_id))
            with trio.move_on_after(self._timer_pause(is_full=len(due) >= _BATCH)):
                await self._timer_wake.wait()

    def _timer_pause(self, *, is_full: bool) -> float:
        """Seconds until the next timer is due. After a full batch its instances get time to step: they are read again
        until they have."""
        if self._next_timer_ms is None:
            return POLL_SECONDS
        left = (self._next_timer_ms - self._clock.wall_ms()) / 1000
        return min(POLL_SECONDS, max(_FULL_BATCH_PAUSE_SECONDS if is_full else 0.001, left))

    async def correlate_messages(self) -> None:
        """Consistency.md 6: both sides commit their own row, then somebody looks."""
        drop_at = self._clock.monotonic() + _DROP_MESSAGES_SECONDS
        while True:
            self._message_wake = trio.Event()
            now_ms = await self._services.ports.store.lease_now()
            for match in await self._services.ports.store.matched_messages(now_ms, _BATCH):
                if match.message.message_id not in self._started:
                    await self._correlate(match)
            if self._clock.monotonic() >= drop_at:
                await self._services.committer.submit(DropMessages(now_ms, self._hopeless()))
                self._tried_again.clear()
                self._refusals.clear()
                self._started.clear()
                drop_at = self._clock.monotonic() + _DROP_MESSAGES_SECONDS
            with trio.move_on_after(POLL_SECONDS):
                await self._message_wake.wait()

    def _hopeless(self) -> tuple[str, ...]:
        refused = {message_id for message_id, count in self._refusals.items() if count >= _REFUSALS_MAX}
        return tuple(sorted(self._started | refused))

    async def end_drained(self) -> None:
        """Draining tasks that lost their lease while nobody looked (consistency.md 15)."""
        while True:
            for instance_id, task_id in await self._services.ports.store.draining_ready(_BATCH):
                await self._send(task_id, instance_id, EndDraining(task_id))
            await self._clock.sleep(POLL_SECONDS)

    async def _correlate(self, match: MatchedMessage) -> None:
        """One message that cannot be correlated holds up no other."""
        message_id = match.message.message_id
        try:
            instance_id, command = await self._correlation(match)
        except (CallerError, InvariantBroken) as error:
            self._refusals[message_id] += 1
            self._services.ports.log.warning("message not correlated", message_id=message_id, reason=error.message)
        else:
            await self._send(message_id, instance_id, command)

    async def _correlation(self, match: MatchedMessage) -> tuple[str, Command]:
        message = match.message
        variables = canonical_object(loads(message.variables))
        if match.instance_id is not None and match.subscription_id is not None:
            return match.instance_id, CorrelateMessage(match.subscription_id, message.message_id, variables)
        assert match.definition_id is not None
        deployed = await self._services.definition_cache.get(match.definition_id)
        start_event_id = start_messages(deployed.process).get(message.name)
        if start_event_id is None:
            raise InvariantBroken(f'definition {match.definition_id} does not start by message "{message.name}"')
        # Derived from the message: however often this is tried, it starts one instance.
        instance_id = derived_id("message", message.message_id, match.definition_id)
        return instance_id, StartInstance(
            instance_id,
            match.definition_id,
            variables,
            business_key=message.key or None,
            start_event_id=start_event_id,
            message_id=message.message_id,
        )

    # --- commands --------------------------------------------------------------------------------------------------

    async def _send(
        self, subject: str, instance_id: str, command: Command, done: Callable[[], None] = lambda: None
    ) -> None:
        """Send a command once; what is still under way is not sent again.

        :param done: called when it was carried out.
        """
        if subject in self._under_way:
            return

        def answered(reply: Reply[LeaseAnswerKind]) -> None:
            self._under_way.discard(subject)
            try:
                reply.result()
            except (CallerError, PeerError) as refusal:
                # Somebody else was quicker, or the thing is gone: that is what the guards are for.
                self._log("not needed any more", subject, instance_id, command, refusal)
                if isinstance(command, CorrelateMessage | StartInstance):
                    self._not_correlated(subject, refusal)
            except StellwerkError as error:
                self._log("will be tried again", subject, instance_id, command, error, is_warning=True)
                if isinstance(error, InvariantBroken):
                    self._refusals[subject] += 1
            else:
                done()
                # The next message for the same subscription may wait already.
                if isinstance(command, CorrelateMessage):
                    self._tried_again.discard(subject)
                    self._message_wake.set()

        self._under_way.add(subject)
        await self._services.post(instance_id, Envelope(command, Reply(answered)))

    def _log(
        self,
        event: str,
        subject: str,
        instance_id: str,
        command: Command,
        error: StellwerkError,
        *,
        is_warning: bool = False,
    ) -> None:
        """Without the command's values: what a business computes with has no place in a log."""
        log = self._services.ports.log
        write = log.warning if is_warning else log.debug
        name = type(command).__name__
        write(event, command=name, subject=subject, instance=instance_id, reason=error.message)

    def _not_correlated(self, message_id: str, refusal: CallerError | PeerError) -> None:
        """Another subscription may take it, so it is matched again; but at once only one time, or a message that is
        refused whenever it is tried (the instance has no room, say) would keep the engine busy."""
        if refusal.code == "exists":
            self._started.add(message_id)
            return
        if not isinstance(refusal, Conflict | NotFound):
            self._refusals[message_id] += 1
        if message_id not in self._tried_again:
            self._tried_again.add(message_id)
            self._message_wake.set()


def _expiry_command(task: ExternalTask) -> EndTaskInFailure:
    if task.single_try:
        kind, message = FailureKind.LOCK_EXPIRED, "the lock of a single-try task ran out"
    else:
        kind = FailureKind.LOCK_EXPIRIES_EXHAUSTED
        message = f"the lock ran out {task.lock_expiries + 1} times"
    return EndTaskInFailure(task.task_id, task.fence, kind, message)
