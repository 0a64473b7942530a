"""A worker's session: the engine's side of the push protocol, over whatever transport.

The transport hands in decoded messages (`handle`) and writes out what `outgoing` gives. The session reconciles what the
worker says it holds with what the engine knows, sees to it that deliveries are confirmed, and answers each request once
it is durable. State, not counters: see the rules in docs/worker-protocol.md and consistency.md 10, 14, 16 to 18.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs
import trio

from stellwerk.actors.bounds import check_length, check_report, check_subscription, check_topic, shortened
from stellwerk.actors.credentials import Authority, SessionCredential, require_topic
from stellwerk.actors.leases import HeldLease, Subscription
from stellwerk.actors.outbox import (
    Deliveries,
    Outbox,
    in_portions,
    offer_bytes,
    renewed_lease,
    selected,
    task_offer,
)
from stellwerk.actors.payloads import TaskFilter, make_task_filter
from stellwerk.actors.polls import TaskConditions
from stellwerk.actors.requests import RequestServices, WorkerRequests
from stellwerk.core.external_task import ExternalTask, Holder
from stellwerk.errors import CallerError, InvalidInput, LimitExceeded, StellwerkError, StoreUnavailable
from stellwerk.ports import ANYBODY, Identity, LeaseAnswerKind, Outcome, ReleaseLease, ReleaseLeases, Resumed
from stellwerk.wire.messages import (
    Ack,
    Authenticate,
    BpmnErrorReport,
    Complete,
    EngineMessage,
    Extend,
    Fail,
    Goaway,
    Goodbye,
    Hello,
    Holding,
    LeaseRef,
    LostLeaseNotice,
    Nack,
    NackCode,
    ProtocolErrorMessage,
    Received,
    Release,
    Renewed,
    Revoked,
    RevokedLeaseNotice,
    SessionLimits,
    Subscribe,
    Tasks,
    Unsubscribe,
    Welcome,
    WorkerMessage,
)
from stellwerk.wire.session import PeerClock, heartbeat_ms, report_is_fresh

__all__ = ["WorkerSession"]

_SILENT_HEARTBEATS = 4
"""A connection without a word for so long is closed; its leases live until their deadlines."""
_LIVE_HEARTBEATS = 2
"""A report older than this justifies neither a renewal nor new work."""
_RETURN_AGAIN_SECONDS = 0.5
"""The store did not answer: what nobody got must go back all the same."""
_NEVER = float("inf")
_ACK_BYTES = 50
_MESSAGES_AT_ONCE = 50
"""Of one frame; then others are heard as well."""
_TEXT_CHARS_MAX = 500
"""Of a message for people in a `nack` or `error`: it may quote what the peer said."""


class WorkerSession:
    """One connection of one worker process."""

    def __init__(
        self,
        hello: Hello,
        session_id: str,
        services: RequestServices,
        identity: Identity = ANYBODY,
        authority: Authority | None = None,
    ) -> None:
        """:param authority: None: nobody asks for credentials here."""
        self.hello = hello
        self.credential = SessionCredential(self, hello.worker_id, identity, authority)
        self.session_id = session_id
        self.holder = Holder(hello.worker_id, hello.boot_id, hello.session_no, session_id)
        self.closed = False
        self.closed_for: tuple[str, str] | None = None
        """Code and message, where the worker was told why."""
        self.draining = False
        self.connected_at_ms = services.ports.clock.wall_ms()
        self._services = services
        self._clock = services.ports.clock
        self._limits = services.limits
        self._requests = WorkerRequests(self, services)
        self._subscriptions: dict[str, Subscription] = {}
        self._heartbeat_ms = heartbeat_ms(None)
        self._is_crowded = False
        """Its topics share what one session may hold: room in one of them can be room for another."""
        self._outbox = Outbox()
        self._deliveries = Deliveries(services.limits.delivery_timeout_ms)
        self._bytes_reserved = 0
        """Of tasks that are about to be delivered."""
        self._unconfirmed: int | None = None
        """A delivery that was taken back: no more work until the worker shows that it reads again."""
        self._last_heard = self._clock.monotonic()
        self._report = {(ref.task_id, ref.fence) for ref in hello.holding}
        self._reported_at = self._last_heard
        self._workers_clock = PeerClock()
        self._workers_clock.heard(hello.worker_time_ms, self._last_heard * 1000)
        self._is_welcomed = False
        self.pending: Counter[tuple[str, int]] = Counter()
        """Requests under way, by lease: such leases are never reconciled (consistency.md 16)."""
        self._returning: set[tuple[str, int]] = set()
        """Leases that are being given back: the store may take longer than the time between two reports."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return (
            f"<WorkerSession {self.hello.worker_id!r} no {self.hello.session_no} {state} {list(self._subscriptions)}>"
        )

    @property
    def begun_before(self) -> tuple[tuple[str, int], ...] | None:
        """(task_id, fence) of single tries that earlier sessions of the process began and let go of; None: unknown."""
        begun = self.hello.begun
        return None if begun is None else tuple((lease.task_id, lease.fence) for lease in begun)

    @property
    def identity(self) -> Identity:
        """What its credential allows."""
        return self.credential.identity

    # --- WorkerLink ------------------------------------------------------------------------------------------------

    @property
    def heartbeat_ms(self) -> int:
        return self._heartbeat_ms

    def _subscriptions_changed(self) -> None:
        held = self._subscriptions.values()
        self._heartbeat_ms = heartbeat_ms(min((one.lock_duration_ms for one in held), default=None))
        self._is_crowded = sum(one.max_tasks for one in held) > self._limits.worker_max_tasks_max

    @property
    def accepts_work(self) -> bool:
        if self.closed or self._takes_nothing_more or self._unconfirmed is not None or self._is_full:
            return False
        if self._is_crowded and self._leases_in_all >= self._limits.worker_max_tasks_max:
            return False
        now = self._clock.monotonic()
        is_silent = now - self._last_heard > _LIVE_HEARTBEATS * self._heartbeat_ms / 1000
        return not is_silent and not self._deliveries.are_overdue(now)

    @property
    def _takes_nothing_more(self) -> bool:
        """The worker was asked to go elsewhere, or nobody knows any more who it is."""
        return self.draining or self.credential.has_ended

    @property
    def _leases_in_all(self) -> int:
        return sum(len(held.leases) + len(held.reserved) for held in self._subscriptions.values())

    @property
    def _is_full(self) -> bool:
        """A frame's worth of tasks is under way: large tasks go in turns, so that none is leased but not sent."""
        return self._deliveries.bytes + self._bytes_reserved >= self._limits.frame_bytes_max

    def reserve(self, payload_bytes: int) -> None:
        self._services.leases.under_way += 1
        self._bytes_reserved += payload_bytes

    def end_reservation(self, payload_bytes: int) -> None:
        self._services.leases.under_way -= 1
        was_full = self._is_full
        self._bytes_reserved -= payload_bytes
        if was_full and not self._is_full:
            self._services.wake_dispatchers(self._subscriptions)

    @property
    def is_busy(self) -> bool:
        """It holds leases, is about to get some, or waits for an answer."""
        holds = any(held.leases or held.reserved for held in self._subscriptions.values())
        return holds or any(self.pending.values())

    def vouches_for(self, task_id: str, fence: int) -> bool:
        age_ms = (self._clock.monotonic() - self._reported_at) * 1000
        return not self.closed and report_is_fresh(age_ms, self._heartbeat_ms) and (task_id, fence) in self._report

    def asks_about(self, task_id: str, fence: int) -> bool:
        return self.pending[task_id, fence] > 0

    def deliver(self, leases: Sequence[tuple[HeldLease, ExternalTask]]) -> None:
        """Queue `tasks` frames for leases that are durable. What cannot be sent any more is given back at once, and so
        is what comes when the worker was asked to go elsewhere: it would take the lease along without starting it."""
        if self.closed or self._takes_nothing_more:
            self._return([held for held, _ in leases], started=False)
            return
        frame: list[tuple[HeldLease, ExternalTask]] = []
        size = 0
        for held, whole in leases:
            task = selected(whole, held.subscription.variables)
            bytes_needed = offer_bytes(task)
            if bytes_needed > self._limits.frame_bytes_max:
                self._services.undeliverable(task, bytes_needed)
                continue
            if size + bytes_needed > self._limits.frame_bytes_max:
                self._send_tasks(frame, size)
                frame, size = [], 0
            frame.append((held, task))
            size += bytes_needed
        if frame:
            self._send_tasks(frame, size)

    def renewed(self, leases: Sequence[tuple[HeldLease, ExternalTask]]) -> None:
        now = self._clock.monotonic()
        notices = [renewed_lease(held, task, now) for held, task in leases]
        for portion in in_portions(notices, self._limits.frame_bytes_max):
            self.send(Renewed(portion, now * 1000, self._workers_clock.at_least_ms(now * 1000)))

    def revoked(self, leases: Sequence[tuple[str, int]], reason: str) -> None:
        self._services.session_statistics.revoked += len(leases)
        self._revoke([RevokedLeaseNotice(task_id, fence, reason) for task_id, fence in leases])

    def _revoke(self, notices: Sequence[RevokedLeaseNotice]) -> None:
        for portion in in_portions(notices, self._limits.frame_bytes_max):
            self.send(Revoked(portion))

    # --- the transport ---------------------------------------------------------------------------------------------

    async def handle(self, messages: Sequence[WorkerMessage]) -> None:
        """Take one frame's messages. Waits only for room in mailboxes: that is the back-pressure on the worker."""
        accepted_work = self.accepts_work
        self._last_heard = self._clock.monotonic()
        for number, message in enumerate(messages, 1):
            if self.closed:
                return
            try:
                await self._handle(message)
            except CallerError as error:
                self.close(error.code, error.message)
            if number % _MESSAGES_AT_ONCE == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
        if self.accepts_work and (not accepted_work or self._is_crowded):
            self._services.wake_dispatchers(self._subscriptions)

    async def outgoing(self) -> Sequence[EngineMessage] | None:
        """Wait for messages and take all that piled up. None: the session is over, close the connection."""
        while not self._outbox:
            if self.closed:
                return None
            await self._outbox.wait()
            # What becomes ready at the same time travels in the same frame; nobody is waited for.
            await trio.lowlevel.cancel_shielded_checkpoint()
        self._deliveries.mark_taken()
        return self._outbox.take()

    def disconnected(self) -> None:
        """The connection is gone. Leases stay until their deadlines, but what was never sent goes back at once."""
        self._end()
        self._give_back_unsent()

    def _give_back_unsent(self) -> None:
        unsent = self._deliveries.take_unsent()
        if unsent:
            self._return(unsent, started=False)

    def _give_back_unconfirmed(self) -> None:
        """The worker has said goodbye: of what it has not confirmed by then it starts nothing."""
        unread = [held for delivery in self._deliveries.take_overdue(_NEVER) for held in delivery.leases]
        if unread:
            self._return(unread, started=False)

    def close(self, code: str, message: str) -> None:
        """Say why, then end the session."""
        if not self.closed:
            # Not by `send`: it goes out however full the outbox is.
            self._outbox.put(ProtocolErrorMessage(code, shortened(message, _TEXT_CHARS_MAX)))
            self.closed_for = (code, message)
            self._end()

    def _end(self) -> None:
        if not self.closed:
            self.closed = True
            self._services.session_ended(self)
        self._outbox.wake()

    def send(self, message: EngineMessage, size: int | None = None) -> None:
        """``size``: bytes, about, where it is known already."""
        if self.closed:
            return
        self._outbox.put(message, size)
        if self._outbox.bytes > self._limits.session_outbox_bytes_max:
            waiting = self._outbox.bytes
            self._outbox.clear()
            self._give_back_unsent()
            self.close(NackCode.TOO_SLOW, f"{waiting} bytes wait to be read")

    def go_away(self, reason: str, within_ms: int) -> None:
        """No more work in this session. One that is not welcomed yet must be told afterwards."""
        self.draining = True
        if self._is_welcomed:
            self.send(Goaway(reason, within_ms))

    # --- welcome ---------------------------------------------------------------------------------------------------

    def welcome(self, resumed: Resumed, kept: Sequence[HeldLease]) -> None:
        """The first message: what became of what the worker holds. ``kept`` stands for ``resumed.kept``.

        Lost leases that do not fit into it follow in `revoked`.
        """
        self._is_welcomed = True
        now = self._clock.monotonic()
        kept_leases = tuple(renewed_lease(held, task, now) for held, task in zip(kept, resumed.kept, strict=True))
        lost = [LostLeaseNotice(lost.task_id, lost.fence, lost.reason) for lost in resumed.lost]
        portion = next(in_portions(lost, self._limits.frame_bytes_max // 2), ())
        self.send(
            Welcome(
                session=self.session_id,
                server_time_ms=now * 1000,
                worker_time_ms=self._workers_clock.at_least_ms(now * 1000),
                heartbeat_ms=self.heartbeat_ms,
                limits=SessionLimits(
                    frame_bytes_max=self._limits.frame_bytes_max,
                    payload_bytes_max=self._limits.payload_bytes_max,
                    max_tasks_max=self._limits.worker_max_tasks_max,
                    lock_duration_ms_min=self._limits.lock_duration_ms_min,
                    lock_duration_ms_max=self._limits.lock_duration_ms_max,
                ),
                kept=kept_leases,
                lost=portion,
            )
        )
        self._revoke([RevokedLeaseNotice(rest.task_id, rest.fence, rest.reason) for rest in lost[len(portion) :]])

    # --- messages of the worker ------------------------------------------------------------------------------------

    async def _handle(self, message: WorkerMessage) -> None:
        match message:
            case Complete() | Fail() | BpmnErrorReport() | Extend() | Release():
                await self._requests.handle(message)
            case Received():
                self._confirm(message.delivery)
            case Holding():
                check_report(message.leases, self._limits, "$.leases")
                self._workers_clock.heard(message.worker_time_ms, self._clock.monotonic() * 1000)
                self._reconcile(message.leases)
            case Subscribe():
                self._subscribe(message)
            case Unsubscribe():
                self._unsubscribe(message.topic)
            case Hello():
                raise InvalidInput("hello was said before")
            case Authenticate():
                check_length("token", message.token, self._limits.message_bytes_max)
                if self.credential.authority is not None:
                    self._services.spawn(self.credential.renew, message.token)
            case Goodbye():
                self._end()
                self._give_back_unconfirmed()

    def _subscribe(self, message: Subscribe) -> None:
        check_subscription(message, self._limits)
        require_topic(self.credential.identity, message.topic)
        task_filter = self._task_filter(message)
        subscription = self.subscription(message.topic)
        if task_filter is not None:
            self._services.dispatcher(message.topic).check_filters(self, task_filter.key)
        has_more_room = message.max_tasks > subscription.max_tasks
        if subscription.max_tasks != message.max_tasks:
            self._services.connections_changed()
        subscription.max_tasks = message.max_tasks
        subscription.lock_duration_ms = message.lock_duration_ms
        subscription.variables = message.variables
        self._subscriptions_changed()
        if task_filter is not subscription.filter:
            subscription.filter = task_filter
            self._services.dispatcher(message.topic).filters_changed()
        if has_more_room:
            self._services.wake_dispatchers([message.topic])

    def _unsubscribe(self, topic: str) -> None:
        check_topic(topic, self._limits)
        found = self._subscriptions.get(topic)
        if found is not None:
            found.max_tasks = 0
            self._subscriptions_changed()
            self._services.connections_changed()

    def _task_filter(self, message: Subscribe) -> TaskFilter | None:
        """The one that the subscription has, if it stays the same: workers subscribe again for every change of room."""
        conditions = TaskConditions(payload=message.filter, process_keys=self.credential.identity.processes)
        known = self._subscriptions.get(message.topic)
        if known is not None and known.filter is not None and known.filter.conditions == conditions:
            return known.filter
        return make_task_filter(conditions, self._limits)

    def identity_changed(self) -> None:
        """The worker has a fresh credential, which may name other processes than the one before."""
        processes = self.credential.identity.processes
        for held in self._subscriptions.values():
            conditions = TaskConditions() if held.filter is None else held.filter.conditions
            if conditions.process_keys != processes:
                held.filter = make_task_filter(attrs.evolve(conditions, process_keys=processes), self._limits)
                self._services.dispatcher(held.topic).filters_changed()
        self._services.wake_dispatchers(self._subscriptions)

    def subscription(self, topic: str) -> Subscription:
        """The session's part in a topic; without room until the worker subscribes."""
        found = self._subscriptions.get(topic)
        if found is None:
            if len(self._subscriptions) >= self._limits.session_topics_max:
                raise LimitExceeded(f"a session has at most {self._limits.session_topics_max} topics")
            found = self._services.dispatcher(topic).add_worker(self)
            self._subscriptions[topic] = found
            self._subscriptions_changed()
        return found

    @property
    def topics(self) -> Sequence[str]:
        return tuple(self._subscriptions)

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        return tuple(self._subscriptions.values())

    # --- delivery --------------------------------------------------------------------------------------------------

    def _send_tasks(self, leases: Sequence[tuple[HeldLease, ExternalTask]], size: int) -> None:
        now = self._clock.monotonic()
        number = self._deliveries.add([held for held, _ in leases], size, now)
        if self.closed:  # by the frame before: it was too much
            self._give_back_unsent()
            return
        offers = tuple(task_offer(held, task, now) for held, task in leases)
        self.send(Tasks(number, offers, now * 1000, self._workers_clock.at_least_ms(now * 1000)), size)

    def _confirm(self, delivery: int) -> None:
        if delivery > self._deliveries.count:
            raise InvalidInput(f"delivery {delivery} was never sent @ $.delivery")
        if self._unconfirmed is not None and delivery >= self._unconfirmed:
            self._unconfirmed = None
        for confirmed in self._deliveries.take_confirmed(delivery):
            # Vouched for until the next report comes: it arrived, and reports follow every heartbeat.
            self._report.update((held.task_id, held.fence) for held in confirmed.leases)

    def _reconcile(self, leases: Sequence[LeaseRef]) -> None:
        self._report = {(lease.task_id, lease.fence) for lease in leases}
        self._reported_at = self._clock.monotonic()
        unconfirmed = {id(held) for held in self._deliveries.leases()}
        missing = [
            held
            for subscription in self._subscriptions.values()
            for held in subscription.leases.values()
            if (held.task_id, held.fence) not in self._report
            and id(held) not in unconfirmed
            and not self.pending[held.task_id, held.fence]
            and (held.task_id, held.fence) not in self._returning
        ]
        if missing:
            self._return(missing, started=True)
        lost = [key for key in self._report if self._is_lost(key)]
        if lost:
            self.revoked(sorted(lost), "lost")

    def _is_lost(self, key: tuple[str, int]) -> bool:
        if self.pending[key] or self._services.leases.is_finished(*key):
            return False
        held = self._services.leases.get(*key)
        return held is None or held.link is not self

    def finished(self, task_id: str, fence: int) -> None:
        """A request that ends the lease was answered."""
        held = self._services.leases.finish(task_id, fence)
        if held is not None:
            self._services.wake_dispatchers(self._subscriptions if self._is_crowded else [held.subscription.topic])

    def _return(self, leases: Sequence[HeldLease], *, started: bool) -> None:
        """In the background. Release leases that the worker never got (``started`` False) or does not report any more.

        The latter will be missing in its next report, too; of the former nobody else knows.
        """
        self._begin_return(leases)
        until = float("-inf") if started else max(held.deadline for held in leases)
        self._services.spawn(self._give_back, leases, started, until)

    def _begin_return(self, leases: Sequence[HeldLease]) -> None:
        self._returning |= {(held.task_id, held.fence) for held in leases}
        self._services.leases.under_way += len(leases)

    async def _give_back(self, leases: Sequence[HeldLease], started: bool, until: float) -> None:
        """After `_begin_return`. While the store does not answer it is tried again ``until`` then."""
        wishes = tuple(ReleaseLease(held.task_id, held.fence, self.session_id, started) for held in leases)
        try:
            answers = await self._submit_until(ReleaseLeases(wishes), until)
        finally:
            self._returning -= {(held.task_id, held.fence) for held in leases}
            self._services.leases.under_way -= len(leases)
        assert isinstance(answers, tuple)
        for held, answer in zip(leases, answers, strict=True):
            self._services.leases.drop(held)
            if answer.kind is LeaseAnswerKind.DONE and answer.task is not None:
                self._services.returned(answer.task)

    async def _submit_until(self, releases: ReleaseLeases, until: float) -> Outcome:
        while True:
            try:
                return await self._services.committer.submit(releases)
            except StoreUnavailable:
                if self._clock.monotonic() >= until:
                    raise
            await self._clock.sleep(_RETURN_AGAIN_SECONDS)

    # --- watching --------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Take back what is not confirmed in time, close a connection that fell silent. Ends with the session."""
        while not self.closed or self._deliveries:
            try:
                await self._take_back_overdue()
            except StellwerkError as error:
                self._services.ports.log.warning("cannot take back a delivery now", reason=error.message)
            if self._silent_for() > _SILENT_HEARTBEATS * self.heartbeat_ms / 1000:
                self.close(NackCode.TOO_SLOW, "nothing was heard for several heartbeats")
            await self._clock.sleep(min(self.heartbeat_ms, self._limits.delivery_timeout_ms) / 2000)

    async def _take_back_overdue(self) -> None:
        overdue: list[HeldLease] = []
        for delivery in self._deliveries.take_overdue(self._clock.monotonic()):
            self._unconfirmed = delivery.number
            overdue += delivery.leases
        if overdue:
            self._services.session_statistics.taken_back += len(overdue)
            self._begin_return(overdue)
            # Before they go back: they may be leased again, to this worker too, and its room counts only then.
            self.revoked([(held.task_id, held.fence) for held in overdue], "lost")
            await self._give_back(overdue, True, float("-inf"))

    def _silent_for(self) -> float:
        return self._clock.monotonic() - self._last_heard

    # --- answers ---------------------------------------------------------------------------------------------------

    def acknowledge(self, ref: int) -> None:
        self.send(Ack(ref), _ACK_BYTES)

    def refuse(self, ref: int, error: StellwerkError) -> None:
        self.send(Nack(ref, error.code, shortened(error.message, _TEXT_CHARS_MAX), retryable=error.retryable))
