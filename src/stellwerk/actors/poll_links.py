"""A poll as the dispatchers see it: a worker's link that takes its tasks once, and then is over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import trio

from stellwerk.actors.dispatcher import TopicDispatcher
from stellwerk.actors.leases import HeldLease, Subscription
from stellwerk.actors.outbox import offer_bytes, selected
from stellwerk.actors.payloads import make_task_filter
from stellwerk.actors.poll_shares import SharedSubscription, end_shares, share_out
from stellwerk.actors.polls import Poll, PollTopic
from stellwerk.actors.requests import RequestServices
from stellwerk.actors.returns import Undelivered, give_back
from stellwerk.core.external_task import ExternalTask, Holder
from stellwerk.errors import Overloaded, StoreUnavailable

__all__ = ["PollLink"]

_FIRST_LOOK_SECONDS_MAX = 5.0
"""Until the store has told what is READY, however short the poll is to wait."""
_TURNS_SECONDS_MAX = 0.5
"""Room is kept free for so long for a topic whose store or filter is slow."""
_SETTLE_SECONDS_MAX = 2.0
"""After the first tasks: for those that are being leased for it at the same time."""
_HEARTBEAT_MS = 60_000


@attrs.define(eq=False)
class _Part:
    """One topic of the poll."""

    subscription: SharedSubscription
    dispatcher: TopicDispatcher | None = None
    looked: bool = False
    """It got what its dispatcher knew of when the poll came."""
    looked_whole: bool = False
    """And what else stood in the store."""
    scan_is_asked: bool = False
    decided_before: int = 0
    """Of its filter, see `TopicFilters.decided`."""

    @property
    def had_its_turn(self) -> bool:
        """It wants no more than its share of the poll's room, or cannot have more until the others had theirs."""
        return self.looked or self.subscription.has_its_share

    @property
    def is_undecided(self) -> bool:
        """Not one of the tasks that there are was compared with its filter."""
        takes = self.subscription.filter
        if takes is None or self.dispatcher is None or self.looked:
            return False
        return self.dispatcher.filters.decided(takes.key) == self.decided_before


class PollLink:
    """Several topics share the room of one poll. Nothing is renewed: its worker extends its leases itself."""

    def __init__(self, poll: Poll, poll_id: str, services: RequestServices) -> None:
        """:raises InvalidInput: a condition cannot be met by any task."""
        self.poll = poll
        self.holder = Holder(poll.worker_id, poll_id, 1, poll_id)
        self.topics = tuple(dict.fromkeys(topic.topic for topic in poll.topics))
        self._services = services
        self._clock = services.ports.clock
        self._limits = services.limits
        self._parts = [_Part(self._subscription(topic, number)) for number, topic in enumerate(poll.topics)]
        self._collected: dict[str, tuple[HeldLease, ExternalTask]] = {}
        self._bytes = 0
        """Of those, in the answer."""
        self._reserved = 0
        self._bytes_reserved = 0
        self._is_shared_out = False
        """No topic takes more than its share, until each had its turn."""
        self._takes_more = True
        self._is_cut_short = False
        self._is_over = False
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<PollLink {self.poll.worker_id!r} {self.topics} {len(self._collected)}+{self._reserved}>"

    def _subscription(self, topic: PollTopic, number: int) -> SharedSubscription:
        return SharedSubscription(
            self,
            topic.topic,
            max_tasks=self.poll.max_tasks,
            lock_duration_ms=topic.lock_duration_ms,
            filter=make_task_filter(topic.conditions, self._limits),
            variables=topic.variables,
            part=number,
        )

    # --- WorkerLink ------------------------------------------------------------------------------------------------

    @property
    def accepts_work(self) -> bool:
        return self._takes_more and not self._is_full

    @property
    def _is_full(self) -> bool:
        count = len(self._collected) + self._reserved
        if count >= self.poll.max_tasks:
            return True
        # Whatever is accepted as variables fits beside the others.
        used = self._bytes + self._bytes_reserved
        return count > 0 and used + self._limits.payload_bytes_max > self._limits.frame_bytes_max

    @property
    def has_tasks(self) -> bool:
        return bool(self._collected)

    @property
    def subscription(self) -> Subscription:
        """Of its first topic."""
        return self._parts[0].subscription

    @property
    def free(self) -> int:
        """Tasks that it would take now."""
        return self.poll.max_tasks - len(self._collected) - self._reserved if self.accepts_work else 0

    @property
    def heartbeat_ms(self) -> int:
        return _HEARTBEAT_MS

    def vouches_for(self, task_id: str, fence: int) -> bool:
        return False

    def asks_about(self, task_id: str, fence: int) -> bool:
        return False

    @property
    def closed(self) -> bool:
        return self._is_over

    def reserve(self, payload_bytes: int) -> None:
        self._services.leases.under_way += 1
        self._reserved += 1
        self._bytes_reserved += payload_bytes
        self._free_shares()

    def end_reservation(self, payload_bytes: int) -> None:
        self._services.leases.under_way -= 1
        was_full = self._is_full
        self._reserved -= 1
        self._bytes_reserved -= payload_bytes
        if was_full and len(self._parts) > 1:
            self._services.wake_dispatchers(self.topics)
        self._changed.set()

    def deliver(self, leases: Sequence[tuple[HeldLease, ExternalTask]]) -> None:
        if self._is_over:
            self._give_back(leases)
            return
        for held, whole in leases:
            self._take(held, selected(whole, held.subscription.variables))
        self._changed.set()

    def _take(self, held: HeldLease, task: ExternalTask) -> None:
        size = offer_bytes(task)
        if size > self._limits.frame_bytes_max:
            self._services.undeliverable(task, size)
        elif self._bytes + size > self._limits.frame_bytes_max:
            self._give_back([(held, task)])
        else:
            self._collected[task.task_id] = (held, task)
            self._bytes += size

    def renewed(self, leases: Sequence[tuple[HeldLease, ExternalTask]]) -> None:
        """Somebody extended it before its poll was answered: the answer says less than there is."""

    def revoked(self, leases: Sequence[tuple[str, int]], reason: str) -> None:
        for task_id, fence in leases:
            collected = self._collected.get(task_id)
            if collected is not None and collected[0].fence == fence:
                self._bytes -= offer_bytes(collected[1])
                del self._collected[task_id]

    def _give_back(self, leases: Sequence[tuple[HeldLease, ExternalTask]]) -> None:
        for held, _ in leases:
            self._services.leases.remove(held.task_id, held.fence)
        give_back(self._services, [Undelivered(task, held.deadline) for held, task in leases])

    # --- the poll --------------------------------------------------------------------------------------------------

    def subscribe(self) -> None:
        """:raises Overloaded: its worker waits with too many other filters."""
        dispatchers = [self._services.dispatcher(part.subscription.topic) for part in self._parts]
        if len(self._parts) > 1:
            shared = [part.subscription for part in self._parts]
            share_out(list(zip(shared, dispatchers, strict=True)), self.poll.max_tasks, self._limits.frame_bytes_max)
            self._is_shared_out = True
        for part, dispatcher in zip(self._parts, dispatchers, strict=True):
            part.dispatcher = dispatcher
            if part.subscription.filter is not None:
                part.decided_before = part.dispatcher.filters.decided(part.subscription.filter.key)
            part.dispatcher.add_poll(part.subscription, partial(self._looked, part))

    def _free_shares(self) -> None:
        """What some topics leave is for the others, once each had its turn."""
        if self._is_shared_out and all(part.had_its_turn for part in self._parts):
            self._end_shares()

    def _end_shares(self) -> None:
        self._is_shared_out = False
        end_shares([part.subscription for part in self._parts])
        self._services.wake_dispatchers(self.topics)

    def unsubscribe(self) -> None:
        """Nothing is leased for it any more; what is being leased is given back if the poll is over then."""
        self._takes_more = False
        for part in self._parts:
            if part.dispatcher is not None:
                part.dispatcher.remove_poll(part.subscription)

    def _looked(self, part: _Part, is_whole: bool) -> None:
        part.looked = True
        part.looked_whole |= is_whole
        self._free_shares()
        self._changed.set()

    def end(self) -> None:
        """Now, with what there is: the node drains."""
        self._takes_more = False
        self._is_cut_short = True
        self._changed.set()

    async def wait(self) -> None:
        """Until the first tasks are there, and as many of the others as come with them, or time is up.

        :raises StoreUnavailable: time is up and the store did not tell whether there are any; Overloaded: or the
            engine did not come to compare even one with the filters.
        """
        began = self._clock.monotonic()
        until = began + self.poll.wait_ms / 1000
        if self._is_shared_out:
            with trio.move_on_after(_TURNS_SECONDS_MAX):
                await self._look()
            self._end_shares()
        with trio.move_on_after(max(self.poll.wait_ms / 1000, _FIRST_LOOK_SECONDS_MAX)):
            await self._look()
        if not self._collected and self.poll.wait_ms:
            with trio.move_on_after(max(0.0, until - self._clock.monotonic())):
                while self._takes_more and not self._collected:
                    await self._next_change()
        self._takes_more = False
        if self._reserved:
            with trio.move_on_after(_SETTLE_SECONDS_MAX):
                await self.settle()
        if not self._collected and not self._is_cut_short and self._is_store_silent:
            raise StoreUnavailable("the store did not tell in time which tasks are ready; nothing was locked")
        if not self._collected and not self._is_cut_short and all(part.is_undecided for part in self._parts):
            raise Overloaded("no task could be compared with the filter in time; nothing was locked")

    @property
    def _is_store_silent(self) -> bool:
        """What a filter takes may not be known for other reasons."""
        return any(not part.looked_whole and part.subscription.filter is None for part in self._parts)

    async def settle(self) -> None:
        """Until nothing is being leased for it."""
        while self._reserved:
            await self._next_change()

    async def _look(self) -> None:
        """Until it is known what was READY when the poll came, or enough of that is there."""
        while self._takes_more:
            if not self._reserved:
                if self._collected and (self._is_full or all(part.looked for part in self._parts)):
                    return
                if all(part.looked_whole for part in self._parts):
                    return
                if not self._collected:
                    self._ask_scans()
            await self._next_change()

    def _ask_scans(self) -> None:
        for part in self._parts:
            if part.dispatcher is not None and part.looked and not part.looked_whole and not part.scan_is_asked:
                part.scan_is_asked = True
                part.dispatcher.scan_soon()

    async def _next_change(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    def take(self) -> list[tuple[HeldLease, ExternalTask]]:
        """What it got, in the order of hand-out; it is over."""
        self._is_over = True
        collected = sorted(self._collected.values(), key=_hand_out_order)
        self._collected = {}
        for held, _ in collected:
            self._services.leases.remove(held.task_id, held.fence)
        return collected

    def abandon(self) -> None:
        """Nobody is there any more for what it got and may still get."""
        self._give_back(self.take())


def _hand_out_order(lease: tuple[HeldLease, ExternalTask]) -> tuple[int, int, str]:
    task = lease[1]
    return -task.priority, task.created_at_ms, task.task_id
