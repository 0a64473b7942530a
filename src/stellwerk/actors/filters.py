"""The filtering subscriptions of a topic: which READY tasks each of their filters takes.

Each filter has a queue of the tasks that it has not rejected, in the order of hand-out. The dispatcher takes from its
front; where the front is not decided yet, the screening service reads variables from the store and searches them in
the background, a batch at a time. Renewals and other subscriptions never wait for that. What was decided once stays
decided while the task is READY: variables of a task never change.

Patterns can be slow, and all of a node share one thread: they take turns, the worker that had the least time first.
Other conditions never wait for them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import attrs
import trio

from stellwerk.actors.leases import Subscription
from stellwerk.actors.payloads import TaskFilter
from stellwerk.actors.turns import Turns
from stellwerk.core.external_task import ExternalTask
from stellwerk.limits import Limits
from stellwerk.ports import Ports, ReadyTask

__all__ = ["TopicFilters", "insert_sorted", "remove_sorted"]

_BATCH_MAX = 100
_BATCH_BYTES_MAX = 4 * 1024 * 1024
_BATCH_SECONDS = 0.05
"""Batches become smaller when one takes longer: the thread also serves others."""
_QUICK_BYTES_MAX = 16 * 1024
"""Of variables: so much is compared with values within a millisecond, and needs no thread."""
_UNUSED_MAX = 8
"""Filters without a subscription whose queues are kept: a worker that polls comes back with the same one, and what was
decided for it must not be decided anew each time."""
_UNUSED_SECONDS = 60.0


@attrs.define(eq=False)
class _Queue:
    """READY tasks that one filter takes, or that it may take."""

    filter: TaskFilter
    waiting: list[ReadyTask]
    """In order of hand-out."""
    matching: set[str] = attrs.field(factory=set)
    """Those of `waiting` that are known to match."""
    is_wanted: bool = False
    """Somebody has room, and the first of `waiting` is not decided."""
    batch: int = 10
    slowness_is_logged: bool = False
    unused_since: float | None = None
    """Monotonic seconds; None: a subscription has this filter."""
    decided: int = 0
    """So often a task was found to match or not."""
    screenings: int = 0
    """Number of the last batch, among those of all queues."""
    worker_id: str = ""
    """One of those who have or had this filter."""

    def leave(self, now: float) -> None:
        """No subscription has this filter any more."""
        if self.unused_since is None:
            self.unused_since = now
            self.is_wanted = False

    def undecided(self) -> list[ReadyTask]:
        found = []
        for task in self.waiting:
            if task.task_id not in self.matching:
                found.append(task)
                if len(found) >= self.batch:
                    break
        return found

    def decide(self, task: ReadyTask, matches: bool) -> None:
        self.decided += 1
        if not matches:
            remove_sorted(self.waiting, task)
        elif is_in_sorted(self.waiting, task):
            self.matching.add(task.task_id)

    def remove(self, task: ReadyTask) -> None:
        remove_sorted(self.waiting, task)
        self.matching.discard(task.task_id)

    def batch_took(self, seconds: float) -> None:
        longer = seconds > _BATCH_SECONDS
        self.batch = max(1, self.batch // 2) if longer else min(_BATCH_MAX, self.batch * 2)


@attrs.define(eq=False)
class _Lane:
    """Filters that are decided one after the other."""

    has_patterns: bool
    turns: Turns
    wanted: trio.Event = attrs.field(factory=trio.Event)


class TopicFilters:
    """``subscriptions`` gives some with each filter that there is; ``changed`` is called as more is decided.

    ``turns``: of patterns, over all topics.
    """

    def __init__(
        self,
        topic: str,
        ports: Ports,
        limits: Limits,
        subscriptions: Callable[[], Iterable[Subscription]],
        changed: Callable[[], None],
        turns: Turns,
    ) -> None:
        self._topic = topic
        self._ports = ports
        self._seconds_max = limits.filter_match_ms_max / 1000
        self._subscriptions = subscriptions
        self._changed = changed
        self._queues: dict[str, _Queue] = {}
        self._quick = _Lane(has_patterns=False, turns=Turns(ports.clock))
        self._patterns = _Lane(has_patterns=True, turns=turns)
        self._screenings = 0

    def __repr__(self) -> str:
        return f"<TopicFilters {self._topic!r} {list(self._queues)}>"

    @property
    def are_active(self) -> bool:
        """Any subscription filters. Then the READY tasks of the topic are kept sorted."""
        return bool(self._queues)

    def subscriptions_changed(self, ready: list[ReadyTask]) -> None:
        """Queues for the filters that there are now; ``ready`` is sorted where need be."""
        holders = list(self._subscriptions())
        filters = {held.filter.key: held.filter for held in holders if held.filter is not None}
        if filters and not self._queues:
            ready.sort(key=lambda task: (task.rank, task.created_at_ms, task.task_id))  # as they compare, but faster
        queues = {key: queue for key, queue in self._queues.items() if key not in filters}
        for queue in queues.values():
            queue.leave(self._ports.clock.monotonic())
        for key, wanted in filters.items():
            queues[key] = self._queues.get(key) or _Queue(wanted, list(ready))
            queues[key].unused_since = None
        for held in holders:
            if held.filter is not None:
                queues[held.filter.key].worker_id = held.link.holder.worker_id
        self._queues = queues
        self.forget_unused()

    def forget_unused(self) -> None:
        """Queues that nobody came back for."""
        too_old = self._ports.clock.monotonic() - _UNUSED_SECONDS
        unused = {key: queue for key, queue in self._queues.items() if queue.unused_since is not None}
        for key, queue in list(unused.items()):
            if queue.unused_since is not None and queue.unused_since <= too_old:
                del self._queues[key], unused[key]
        while len(unused) > _UNUSED_MAX:
            # The oldest of whoever has most: one that changes its filter with every poll displaces only its own.
            counts = Counter(queue.worker_id for queue in unused.values())
            key = max(unused, key=lambda key: counts[unused[key].worker_id])
            del self._queues[key], unused[key]

    def add(self, task: ReadyTask) -> None:
        for queue in self._queues.values():
            insert_sorted(queue.waiting, task)

    def remove(self, task: ReadyTask) -> None:
        for queue in self._queues.values():
            queue.remove(task)

    def takes_nothing(self, key: str) -> bool:
        """Of all tasks that are known: that is decided."""
        return not self._queues[key].waiting

    def first(self, key: str) -> ReadyTask | None:
        """The task that this filter takes next. None: there is none, or it is not decided yet (and soon will be)."""
        queue = self._queues[key]
        if not queue.waiting:
            return None
        if queue.waiting[0].task_id in queue.matching:
            return queue.waiting[0]
        queue.is_wanted = True
        (self._patterns if queue.filter.has_pattern else self._quick).wanted.set()
        return None

    def decided(self, key: str) -> int:
        """How often it was decided whether a task matches, since this filter is known here."""
        queue = self._queues.get(key)
        return 0 if queue is None else queue.decided

    # --- the service -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, self._quick)
            nursery.start_soon(self._serve, self._patterns)

    async def _serve(self, lane: _Lane) -> None:
        while True:
            lane.wanted = trio.Event()
            while self._next(lane) is not None:
                async with lane.turns.turn(partial(self._share, lane)):
                    await self._screen_next(lane)
            await lane.wanted.wait()

    def _share(self, lane: _Lane) -> float:
        """What whoever is served next has had."""
        following = self._next(lane)
        return 0.0 if following is None else lane.turns.had(following[1])

    async def _screen_next(self, lane: _Lane) -> None:
        following = self._next(lane)
        if following is not None:
            queue, worker_id = following
            self._screenings += 1
            queue.screenings = self._screenings
            with lane.turns.charged(worker_id):
                await self._screen(queue)

    def _next(self, lane: _Lane) -> tuple[_Queue, str] | None:
        """Of the worker that has had the least, the filter that has waited longest; and who pays for it."""
        wanted = [
            queue
            for queue in self._queues.values()
            if queue.is_wanted and queue.filter.has_pattern is lane.has_patterns
        ]
        if not wanted:
            return None
        workers = self._workers()
        payers = [(queue, lane.turns.least(workers.get(queue.filter.key, (queue.worker_id,)))) for queue in wanted]
        return min(payers, key=lambda entry: (lane.turns.had(entry[1]), entry[0].screenings))

    def _workers(self) -> Mapping[str, set[str]]:
        """By filter, those who have it."""
        found: dict[str, set[str]] = {}
        for held in self._subscriptions():
            if held.filter is not None:
                found.setdefault(held.filter.key, set()).add(held.link.holder.worker_id)
        return found

    async def _screen(self, queue: _Queue) -> None:
        hints = queue.undecided()
        tasks = await self._tasks(hints)
        began = self._ports.clock.monotonic()
        decide = partial(_verdicts, queue.filter, tasks, self._seconds_max)
        if queue.filter.has_pattern or sum(map(_size_of, tasks)) > _QUICK_BYTES_MAX:
            verdicts = await self._ports.background.run_sync(decide)
        else:
            verdicts = decide()
        queue.batch_took(self._ports.clock.monotonic() - began)
        for hint, verdict in zip(hints, verdicts, strict=False):
            queue.decide(hint, verdict is True)
            if verdict is None:
                self._log_slowness(queue, hint)
        queue.is_wanted = False
        self._changed()

    async def _tasks(self, hints: Sequence[ReadyTask]) -> list[ExternalTask | None]:
        """The rows of the first of these, as many as fit into a batch; None: the row is gone."""
        tasks: list[ExternalTask | None] = []
        size = 0
        for hint in hints:
            task = await self._ports.store.task(hint.task_id)
            tasks.append(task)
            size += _size_of(task)
            if size > _BATCH_BYTES_MAX:
                break
        return tasks

    def _log_slowness(self, queue: _Queue, task: ReadyTask) -> None:
        """Once, naming one of those who filter so."""
        holders = [held for held in self._subscriptions() if held.filter_key == queue.filter.key]
        if queue.slowness_is_logged or not holders:
            return
        queue.slowness_is_logged = True
        self._ports.log.warning(
            "a filter takes too long; the task counts as not matching",
            topic=self._topic,
            worker=holders[0].link.holder.worker_id,
            filter=queue.filter.text,
            task=task.task_id,
        )


def _size_of(task: ExternalTask | None) -> int:
    return 0 if task is None else len(task.variables)


def _verdicts(wanted: TaskFilter, tasks: Sequence[ExternalTask | None], seconds_max: float) -> list[bool | None]:
    """One for each task, but the first that takes too long (None) is the last: there may be many such."""
    verdicts: list[bool | None] = []
    for task in tasks:
        # A row that is gone refuses the lease, and with that the hint goes too.
        verdicts.append(True if task is None else wanted.matches(task, seconds_max))
        if verdicts[-1] is None:
            break
    return verdicts


def insert_sorted(tasks: list[ReadyTask], task: ReadyTask) -> None:
    if not tasks or tasks[-1] < task:
        tasks.append(task)
    else:
        insort(tasks, task)


def remove_sorted(tasks: list[ReadyTask], task: ReadyTask) -> None:
    if is_in_sorted(tasks, task):
        del tasks[bisect_left(tasks, task)]


def is_in_sorted(tasks: list[ReadyTask], task: ReadyTask) -> bool:
    position = bisect_left(tasks, task)
    return position < len(tasks) and tasks[position].task_id == task.task_id
