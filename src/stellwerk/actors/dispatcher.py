"""The dispatcher of a topic: hands leases to the workers that have room, and renews them while their workers live.

It keeps the READY tasks that it knows of in memory, in the order of hand-out, and leases them by key; the row judges.
What it does not know (after a start, or created elsewhere) it scans from the store when it runs dry and once a second.

On a shared store other nodes lease the same tasks. So it keeps fewer of them in mind, forgets those that a scan does
not find any more, and tells the others when tasks become READY for which no worker here has room.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import attrs
import trio

from stellwerk.actors.committer import Committer
from stellwerk.actors.doubts import LeaseDoubts
from stellwerk.actors.filters import TopicFilters, insert_sorted, remove_sorted
from stellwerk.actors.leases import HeldLease, LeaseBook, Subscription, WorkerLink, deadline_of
from stellwerk.actors.turns import Turns
from stellwerk.core.changes import NewTask
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import Overloaded, StellwerkError, StoreUnavailable
from stellwerk.limits import Limits
from stellwerk.ports import (
    BirthLease,
    Hint,
    LeaseAnswer,
    LeaseAnswerKind,
    LeaseTasks,
    Ports,
    ReadyScan,
    ReadyTask,
    RenewLease,
    RenewLeases,
    TaskLease,
)
from stellwerk.values import frozen
from stellwerk.wire.session import renewal_margin_ms

__all__ = ["DispatcherServices", "DispatcherStatistics", "TopicDispatcher"]

SCAN_EVERY_SECONDS = 1.0
_SCANS_APART_SECONDS = 0.02
_SCANS_APART_TIMES = 2.0
"""At least so long, and so often as long as the last scan took, lies between two scans that other nodes cause."""
_SHARED_HINTS_MAX = 1_000
"""Many nodes read the same tasks ahead: the more, the more of them are gone when their turn comes."""
_POLLS_AT_ONCE = 50
"""So many of those that wait are compared for each hand-out: thousands may wait."""
_RENEW_AGAIN_SECONDS = 0.5
_NEVER = float("inf")
_RENEWALS_MIN = 1_000
"""Entries of the heap of renewals before those of ended leases are sought: locks may last much longer than work."""


@frozen
class DispatcherServices:
    ports: Ports
    committer: Committer
    leases: LeaseBook
    limits: Limits
    doubts: LeaseDoubts
    turns: Turns
    """Of filters that have patterns."""


@attrs.define
class DispatcherStatistics:
    leased: int = 0
    renewed: int = 0
    refused: int = 0
    """Leases that the row refused: the hint was stale."""


@frozen
class _Pick:
    task: ReadyTask
    subscription: Subscription


@attrs.define(eq=False)
class _Pass:
    """Somebody wants to know when all READY tasks were looked at for a subscription."""

    subscription: Subscription
    looked: Callable[[bool], None]
    scans_begun: int
    """When it was asked for. A later one sees what other nodes did before."""
    is_half_done: bool = False


class TopicDispatcher:
    def __init__(self, topic: str, services: DispatcherServices) -> None:
        self.topic = topic
        self.statistics = DispatcherStatistics()
        self._services = services
        self._clock = services.ports.clock
        self._subscriptions: dict[str, Subscription] = {}
        """Of sessions, by their ids."""
        self._polls: dict[str | None, dict[tuple[str, int], Subscription]] = {}
        """The subscriptions of polls, by filter; the longest waiting first."""
        self._passes: dict[tuple[str, int], _Pass] = {}
        self._ready: list[ReadyTask] = []
        """A heap; sorted while a subscription filters."""
        self.filters = TopicFilters(
            topic, services.ports, services.limits, self._holders_of_filters, self.wake, services.turns
        )
        self._polled_filters: dict[str, Counter[str]] = {}
        """By worker: the filters of its polls, and of how many."""
        self._known: dict[str, ReadyTask] = {}
        """Those of `_ready`, by id."""
        self._dry = False
        self._scan_at = 0.0
        self._scanned_at = 0.0
        self._scan_pause = 0.0
        self._scan_is_asked = False
        self._scans_begun = 0
        self._scan_done = 0
        """Number of the last scan that is in."""
        self._is_shared = services.ports.store.is_shared
        self._has_news = False
        """Tasks became READY here since it was last looked whether other nodes should know."""
        self._renewals: list[tuple[float, str, int]] = []
        self._renewals_max = _RENEWALS_MIN
        self._wakened = trio.Event()
        self._is_resting = False
        """Nothing is under way: it waits for its next wake-up."""
        self.last_active = self._clock.monotonic()
        """When somebody last had to do with it, as far as `idle` knows."""
        self.turn = 0
        """Greater than that of the topics which polls of several topics favoured before."""

    def __repr__(self) -> str:
        return f"<TopicDispatcher {self.topic!r} ready {len(self._ready)} workers {self.workers}>"

    @property
    def workers(self) -> int:
        sessions = sum(1 for subscription in self._subscriptions.values() if subscription.max_tasks > 0)
        return sessions + sum(len(polls) for polls in self._polls.values())

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def idle(self) -> bool:
        """No worker subscribes and no lease is held: it may be ended, for the next one starts with a scan."""
        if self._is_resting and not self._subscriptions and not self._polls and not self._holds_leases():
            return True
        self.last_active = self._clock.monotonic()
        return False

    def _holds_leases(self) -> bool:
        if self._renewals:
            self._drop_ended_renewals()
        return bool(self._renewals)

    # --- told by others --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._wakened.set()

    def add_worker(self, link: WorkerLink) -> Subscription:
        """A new subscription of a session, without room yet."""
        subscription = Subscription(link, self.topic)
        self._subscriptions[link.holder.session_id] = subscription
        return subscription

    def forget(self, link: WorkerLink) -> None:
        """The session is over: no new work. Its leases stay in the book until they end."""
        subscription = self._subscriptions.pop(link.holder.session_id, None)
        if subscription is not None and subscription.filter is not None:
            self.filters_changed()

    def add_poll(self, subscription: Subscription, looked: Callable[[bool], None]) -> None:
        """A poll waits, until `remove_poll`; its room and its filter stay as they are.

        ``looked`` is told when it has got what it can have of the READY tasks that are known here: with False while it
        is not sure that there are no others in the store (`scan_soon` makes it sure), once with True when it is.

        :raises Overloaded: its worker waits with too many other filters.
        """
        if subscription.filter is not None:
            self.check_filters(subscription.link, subscription.filter.key)
            self._polled_filters.setdefault(subscription.link.holder.worker_id, Counter())[subscription.filter.key] += 1
        alike = self._polls.setdefault(subscription.filter_key, {})
        alike[subscription.key] = subscription
        self._passes[subscription.key] = _Pass(subscription, looked, self._scans_begun)
        if subscription.filter is not None and len(alike) == 1:
            self.filters_changed()
        self.wake()

    def remove_poll(self, subscription: Subscription) -> None:
        """It is over, or soon will be: no new work."""
        self.last_active = self._clock.monotonic()
        self._passes.pop(subscription.key, None)
        alike = self._polls.get(subscription.filter_key, {})
        if alike.pop(subscription.key, None) is None:
            return
        if subscription.filter is not None:
            self._forget_filter(subscription.link.holder.worker_id, subscription.filter.key)
        if alike:
            return
        del self._polls[subscription.filter_key]
        if subscription.filter is not None:
            self.filters_changed()

    def check_filters(self, link: WorkerLink, key: str) -> None:
        """:raises Overloaded: with one more filter its worker would have too many for this topic."""
        worker_id = link.holder.worker_id
        filters = set(self._polled_filters.get(worker_id, ()))
        filters |= {
            held.filter.key
            for held in self._subscriptions.values()
            if held.filter is not None and held.link is not link and held.link.holder.worker_id == worker_id
        }
        filters_max = self._services.limits.worker_filters_max
        if key not in filters and len(filters) >= filters_max:
            raise Overloaded(
                f"a worker has at most {filters_max} different filters for one topic at a time, and {worker_id} has as "
                f"many for {self.topic}"
            )

    def _forget_filter(self, worker_id: str, key: str) -> None:
        counts = self._polled_filters[worker_id]
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
        if not counts:
            del self._polled_filters[worker_id]

    def _holders_of_filters(self) -> Iterator[Subscription]:
        """Of each filter all subscriptions of sessions that have it, and of polls those that have waited longest."""
        yield from (held for held in self._subscriptions.values() if held.filter is not None)
        for key, polls in self._polls.items():
            if key is not None:
                yield from islice(polls.values(), _POLLS_AT_ONCE)

    def _takers(self) -> Iterator[Subscription]:
        """Who might take a task: all sessions, and of polls with the same filter those that have waited longest."""
        yield from self._subscriptions.values()
        for polls in self._polls.values():
            yield from islice((poll for poll in polls.values() if poll.room), _POLLS_AT_ONCE)

    def filters_changed(self) -> None:
        """A subscription filters in another way, or not any more."""
        self.filters.subscriptions_changed(self._ready)
        self.wake()

    def scan_soon(self) -> None:
        """Another node told of READY tasks. Until they are seen nothing is leased at birth: it would overtake them."""
        self._scan_is_asked = True
        self._plan_asked_scan()
        self.wake()

    def _plan_asked_scan(self) -> None:
        self._dry = False
        self._scan_at = min(self._scan_at, self._scanned_at + self._scan_pause)

    def task_ready(self, hint: ReadyTask) -> None:
        """A task became READY in this node and is available now."""
        self._has_news = True
        self._keep(hint)

    def _keep(self, hint: ReadyTask) -> None:
        known = self._known.get(hint.task_id)
        if known is not None:
            if known.rank == hint.rank:
                return
            self._remove(known)  # it has another priority now
        if len(self._ready) >= self._hints_max:
            self._dry = False
            return
        if self.filters.are_active:
            insert_sorted(self._ready, hint)
            self.filters.add(hint)
        else:
            heapq.heappush(self._ready, hint)
        self._known[hint.task_id] = hint
        self.wake()

    def returned(self, task: ExternalTask, now_ms: int | None = None) -> None:
        """A lease ended and the task is READY again, at once or (a retry) later."""
        delay_ms = 0 if now_ms is None else task.available_at_ms - now_ms
        if delay_ms <= 0:
            self.task_ready(ready_hint(task))
        else:
            self._scan_at = min(self._scan_at, self._clock.monotonic() + delay_ms / 1000)
            self.wake()

    # --- leased at birth -------------------------------------------------------------------------------------------

    def reserve_birth(self, task: NewTask) -> tuple[BirthLease, Subscription] | None:
        """Only while nothing older waits: the queue is empty and the last scan of the store was dry.

        And only for a worker that takes any task: a filter is searched in the background, a step does not wait for it.
        """
        if self._ready or not self._dry:
            return None
        if self._is_shared and self._clock.monotonic() > self._scan_at:
            return None  # what other nodes left was not looked at for long
        subscription = _roomiest(held for held in self._takers() if held.filter is None)
        if subscription is None:
            return None
        subscription.reserve(task.task_id, len(task.variables))
        duration_ms = task.lock_duration_ms or subscription.lock_duration_ms
        return BirthLease(task.task_id, subscription.link.holder, duration_ms), subscription

    def born(self, task: ExternalTask, subscription: Subscription, began: float) -> None:
        """A lease that was not picked here is durable: of a task that was created with it, or was locked by its id."""
        self._deliver([(task, subscription)], began)

    # --- the actor -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        self._dry = False
        self._scan_at = 0.0
        while True:
            self._wakened = trio.Event()
            now = self._clock.monotonic()
            if self._has_room() and (now >= self._scan_at or (not self._ready and not self._dry)):
                await self._scan()
            await self._renew_due()
            if not await self._hand_out():
                if self._is_shared:
                    self._tell_others()
                await self._wait()

    def _tell_others(self) -> None:
        """Of tasks that became READY here and that nobody here can take now."""
        if self._has_news and self._ready:
            self._services.ports.store.tell(Hint(topics=(self.topic,)))
        self._has_news = False

    async def _wait(self) -> None:
        now = self._clock.monotonic()
        until = self._renewals[0][0] if self._renewals else _NEVER
        if self._has_room():
            until = min(until, self._scan_at)
        self._is_resting = True
        try:
            with trio.move_on_after(max(0.0, until - now)):
                await self._wakened.wait()
        finally:
            self._is_resting = False

    def _has_room(self) -> bool:
        return any(subscription.room for subscription in self._takers())

    @property
    def _hints_max(self) -> int:
        """While a subscription filters there may be many tasks that nobody takes now, and it must see past them."""
        limits = self._services.limits
        if self.filters.are_active:
            return limits.filtered_hints_max
        return min(limits.ready_hints_max, _SHARED_HINTS_MAX) if self._is_shared else limits.ready_hints_max

    async def _scan(self) -> None:
        limit = self._hints_max
        self.filters.forget_unused()
        known = tuple(self._ready) if self.filters.are_active or self._is_shared else ()
        self._scan_is_asked = False
        self._scans_begun += 1
        number = self._scans_begun
        began = self._clock.monotonic()
        scan = await self._services.ports.store.ready_tasks(self.topic, limit)
        self._dry = len(scan.tasks) < limit
        # Seldom while there is much to read: what happens in this engine is told at once.
        size = max(1.0, len(scan.tasks) / self._services.limits.ready_hints_max)
        self._scanned_at = self._clock.monotonic()
        self._scan_pause = max(_SCANS_APART_SECONDS, (self._scanned_at - began) * _SCANS_APART_TIMES)
        self._scan_at = self._scanned_at + SCAN_EVERY_SECONDS * size
        if scan.next_available_ms is not None:
            due = self._clock.monotonic() + max(0, scan.next_available_ms - scan.now_ms) / 1000
            self._scan_at = min(self._scan_at, due)
        if known and (self._dry or not self.filters.are_active):
            self._forget_gone(known, scan)
        for hint in scan.tasks:
            self._keep(hint)
        self._scan_done = number
        if self._scan_is_asked:  # meanwhile: this one may have come too early
            self._plan_asked_scan()

    def _forget_gone(self, known: Sequence[ReadyTask], scan: ReadyScan) -> None:
        """Tasks that ended, or that other nodes leased, while nobody took them. On a store of one's own and without
        filters an attempt to lease them finds that out."""
        still_there = {hint.task_id for hint in scan.tasks}
        gone = [hint for hint in known if hint.task_id not in still_there]
        if self.filters.are_active:
            for hint in gone:
                self._remove(hint)
        elif gone:
            for hint in gone:
                self._known.pop(hint.task_id, None)
            self._ready = [hint for hint in self._ready if hint.task_id in self._known]
            heapq.heapify(self._ready)

    def _remove(self, hint: ReadyTask) -> None:
        self._known.pop(hint.task_id, None)
        if self.filters.are_active:
            remove_sorted(self._ready, hint)
            self.filters.remove(hint)
        else:
            self._ready = [one for one in self._ready if one.task_id != hint.task_id]
            heapq.heapify(self._ready)

    # --- handing out -----------------------------------------------------------------------------------------------

    async def _hand_out(self) -> bool:
        """Lease as much as there is room for, in one store call. False: nothing to do."""
        picks = self._pick()
        passes = [one for one in self._passes.values() if self._has_looked_for(one.subscription)]
        if not picks:
            self._tell(passes)
            return False
        began = self._clock.monotonic()
        wishes = tuple(
            TaskLease(
                pick.task.task_id,
                pick.subscription.link.holder,
                pick.task.lock_duration_ms or pick.subscription.lock_duration_ms,
            )
            for pick in picks
        )
        try:
            tasks = await self._services.committer.submit(LeaseTasks(wishes))
            await self._services.ports.pause_point("after-lease")
        except StellwerkError:
            self._dry = False  # the hints are gone; the rows are still there
            for pick in picks:
                self._services.doubts.add([pick.task.task_id], pick.subscription)
            raise
        finally:
            # No checkpoint from here to the delivery: what is leased is always known to somebody.
            for pick in picks:
                pick.subscription.end_reservation(pick.task.task_id)
        assert isinstance(tasks, tuple)
        leased = [(task, pick.subscription) for task, pick in zip(tasks, picks, strict=True) if task is not None]
        self._services.doubts.forget(task.task_id for task, _ in leased)
        refused = len(picks) - len(leased)
        self.statistics.refused += refused
        if self._is_shared and refused > len(leased):
            self._plan_asked_scan()  # other nodes are ahead: most of what is known here is gone
        self._deliver(leased, began)
        self._tell(passes)
        return True

    def _has_looked_for(self, subscription: Subscription) -> bool:
        """There is room left, and nothing that is known to fill it."""
        if not subscription.room:
            return False
        takes = subscription.filter
        return not self._ready or (takes is not None and self.filters.takes_nothing(takes.key))

    def _tell(self, passes: Iterable[_Pass]) -> None:
        for one in passes:
            if self._scan_done > one.scans_begun or (self._dry and not self._is_shared):
                self._passes.pop(one.subscription.key, None)
                one.looked(True)
            elif not one.is_half_done:
                one.is_half_done = True
                one.looked(False)

    def _pick(self) -> list[_Pick]:
        if not self.filters.are_active:
            return self._pick_in_order()
        picks: list[_Pick] = []
        while self._ready and len(picks) < self._services.limits.commit_operations_max:
            pick = self._pick_filtered()
            if pick is None:
                break
            pick.subscription.reserve(pick.task.task_id, pick.task.payload_bytes)
            picks.append(pick)
        return picks

    def _pick_in_order(self) -> list[_Pick]:
        """Each task for the worker with the most room then, of equals the one that subscribed first."""
        picks: list[_Pick] = []
        rooms = [(-held.room, number, held) for number, held in enumerate(self._takers())]
        rooms = [entry for entry in rooms if entry[0]]
        heapq.heapify(rooms)
        while rooms and self._ready and len(picks) < self._services.limits.commit_operations_max:
            _, number, subscription = rooms[0]
            task = heapq.heappop(self._ready)
            self._known.pop(task.task_id, None)
            subscription.reserve(task.task_id, task.payload_bytes)
            picks.append(_Pick(task, subscription))
            # Asked again: large tasks fill a session before its count of tasks does.
            room = subscription.room
            if room:
                heapq.heapreplace(rooms, (-room, number, subscription))
            else:
                heapq.heappop(rooms)
        return picks

    def _pick_filtered(self) -> _Pick | None:
        """The first task, in order of hand-out, that anybody with room takes."""
        picks = list(self._possible_picks())
        if not picks:
            return None
        pick = min(picks, key=lambda pick: (pick.task, -pick.subscription.room))
        self._remove(pick.task)
        return pick

    def _possible_picks(self) -> Iterator[_Pick]:
        by_filter: dict[str | None, list[Subscription]] = {}
        for held in self._takers():
            by_filter.setdefault(held.filter_key, []).append(held)
        for key, alike in by_filter.items():
            subscription = _roomiest(alike)
            if subscription is not None:
                task = self._ready[0] if key is None else self.filters.first(key)
                if task is not None:
                    yield _Pick(task, subscription)

    def _deliver(self, leased: Iterable[tuple[ExternalTask, Subscription]], began: float) -> None:
        by_link: dict[str, list[tuple[HeldLease, ExternalTask]]] = {}
        links: dict[str, WorkerLink] = {}
        for task, subscription in leased:
            self._end_replaced(task)
            held = self._services.leases.add(task, subscription, began)
            key = held.link.holder.session_id
            links[key] = held.link
            by_link.setdefault(key, []).append((held, task))
            self.watch(held)
            self.statistics.leased += 1
        for key, offers in by_link.items():
            links[key].deliver(offers)

    def _end_replaced(self, task: ExternalTask) -> None:
        """Another node has reclaimed a lease of a worker that is connected here, and nobody said so yet."""
        held = self._services.leases.get(task.task_id)
        if held is not None and held.fence < task.fence:
            held.link.revoked([(held.task_id, held.fence)], "lost")

    # --- renewing --------------------------------------------------------------------------------------------------

    def watch(self, held: HeldLease) -> None:
        """Renew it when its margin begins."""
        if len(self._renewals) >= self._renewals_max:
            self._drop_ended_renewals()
        at = _renew_at(held)
        heapq.heappush(self._renewals, (at, held.task_id, held.fence))
        if self._renewals[0][0] == at:
            self.wake()

    def _drop_ended_renewals(self) -> None:
        get = self._services.leases.get
        self._renewals = [entry for entry in self._renewals if get(entry[1], entry[2]) is not None]
        heapq.heapify(self._renewals)
        self._renewals_max = max(_RENEWALS_MIN, 2 * len(self._renewals))

    async def _renew_due(self) -> None:
        due = list(self._take_due())
        if not due:
            return
        try:
            await self._renew(due)
        except StoreUnavailable:
            # One of them may be what it cannot do, such as a row that somebody has locked.
            async with trio.open_nursery() as nursery:
                for held in due:
                    nursery.start_soon(self._renew_alone, held)

    async def _renew(self, due: Sequence[HeldLease]) -> None:
        began = self._clock.monotonic()
        wishes = tuple(RenewLease(held.task_id, held.fence, held.link.holder.session_id) for held in due)
        answers = await self._services.committer.submit(RenewLeases(wishes))
        assert isinstance(answers, tuple)
        renewed: dict[str, list[tuple[HeldLease, ExternalTask]]] = {}
        for held, answer in zip(due, answers, strict=True):
            self._renewal_answered(held, answer, began, renewed)
        for pairs in renewed.values():
            pairs[0][0].link.renewed(pairs)

    async def _renew_alone(self, held: HeldLease) -> None:
        try:
            await self._renew([held])
        except StoreUnavailable:
            # Soon again: its time runs.
            heapq.heappush(self._renewals, (self._clock.monotonic() + _RENEW_AGAIN_SECONDS, held.task_id, held.fence))

    def _take_due(self) -> Iterable[HeldLease]:
        """Leases in their margin whose worker vouches for them; the others are looked at again half a beat later."""
        now = self._clock.monotonic()
        while self._renewals and self._renewals[0][0] <= now:
            _, task_id, fence = heapq.heappop(self._renewals)
            held = self._services.leases.get(task_id, fence)
            if held is None or held.deadline <= now or _renew_at(held) > now:
                continue  # ended, too late, or renewed meanwhile (and then it is in the heap again)
            if held.link.vouches_for(task_id, fence):
                yield held
            else:
                heapq.heappush(self._renewals, (now + held.link.heartbeat_ms / 2000, task_id, fence))

    def _renewal_answered(
        self,
        held: HeldLease,
        answer: LeaseAnswer,
        began: float,
        renewed: dict[str, list[tuple[HeldLease, ExternalTask]]],
    ) -> None:
        if answer.kind is LeaseAnswerKind.DONE:
            assert answer.task is not None
            self.extended(held, answer.task, began)
            renewed.setdefault(held.link.holder.session_id, []).append((held, answer.task))
            self.statistics.renewed += 1
        elif self._services.leases.drop(held):
            held.link.revoked([(held.task_id, held.fence)], "lost")
            self.wake()

    def extended(self, held: HeldLease, task: ExternalTask, began: float) -> None:
        """The row has a later end of the lease."""
        held.deadline = deadline_of(task, began)
        self.watch(held)


def _roomiest(subscriptions: Iterable[Subscription]) -> Subscription | None:
    """The worker with the most room; of equals the one that subscribed first."""
    best = max(subscriptions, key=lambda subscription: subscription.room, default=None)
    return best if best is not None and best.room > 0 else None


def ready_hint(task: ExternalTask) -> ReadyTask:
    return ReadyTask(-task.priority, task.created_at_ms, task.task_id, task.lock_duration_ms, len(task.variables))


def _renew_at(held: HeldLease) -> float:
    return held.deadline - renewal_margin_ms(held.duration_ms) / 1000
