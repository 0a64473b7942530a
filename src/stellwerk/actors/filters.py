"""The filtering subscriptions of a topic: which READY tasks each of their filters takes.

Each filter has a queue of the tasks that it has not rejected, in the order of hand-out. The dispatcher takes from its
front; where the front is not decided yet, the screening service reads variables from the store and searches them in
the background, a batch at a time. Renewals and other subscriptions never wait for that. What was decided once stays
decided while the task is READY: variables of a task never change.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs
import trio

from stellwerk.actors.leases import Subscription
from stellwerk.actors.payloads import TaskFilter
from stellwerk.core.external_task import ExternalTask
from stellwerk.limits import Limits
from stellwerk.ports import Ports, ReadyTask

__all__ = ["TopicFilters", "insert_sorted", "remove_sorted"]

_BATCH_MAX = 100
_BATCH_BYTES_MAX = 4 * 1024 * 1024
_BATCH_SECONDS = 0.05
"""Batches become smaller when one takes longer: the thread also serves others."""
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


class TopicFilters:
    """``subscriptions`` gives at least one with each filter that there is; ``changed`` is called as more is decided."""

    def __init__(
        self,
        topic: str,
        ports: Ports,
        limits: Limits,
        subscriptions: Callable[[], Iterable[Subscription]],
        changed: Callable[[], None],
    ) -> None:
        self._topic = topic
        self._ports = ports
        self._seconds_max = limits.filter_match_ms_max / 1000
        self._subscriptions = subscriptions
        self._changed = changed
        self._queues: dict[str, _Queue] = {}
        self._wanted = trio.Event()

    def __repr__(self) -> str:
        return f"<TopicFilters {self._topic!r} {list(self._queues)}>"

    @property
    def are_active(self) -> bool:
        """Any subscription filters. Then the READY tasks of the topic are kept sorted."""
        return bool(self._queues)

    def subscriptions_changed(self, ready: list[ReadyTask]) -> None:
        """Queues for the filters that there are now; ``ready`` is sorted where need be."""
        filters = {held.filter.key: held.filter for held in self._subscriptions() if held.filter is not None}
        if filters and not self._queues:
            ready.sort(key=lambda task: (task.rank, task.created_at_ms, task.task_id))  # as they compare, but faster
        queues = {key: queue for key, queue in self._queues.items() if key not in filters}
        for queue in queues.values():
            queue.leave(self._ports.clock.monotonic())
        for key, wanted in filters.items():
            queues[key] = self._queues.get(key) or _Queue(wanted, list(ready))
            queues[key].unused_since = None
        self._queues = queues
        self.forget_unused()

    def forget_unused(self) -> None:
        """Queues that nobody came back for."""
        unused = [(queue.unused_since, key) for key, queue in self._queues.items() if queue.unused_since is not None]
        too_old = self._ports.clock.monotonic() - _UNUSED_SECONDS
        for _, key in unused[:-_UNUSED_MAX] + [entry for entry in unused[-_UNUSED_MAX:] if entry[0] <= too_old]:
            del self._queues[key]

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
        self._wanted.set()
        return None

    # --- the service -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            self._wanted = trio.Event()
            for queue in list(self._queues.values()):
                if queue.is_wanted:
                    await self._screen(queue)
            await self._wanted.wait()

    async def _screen(self, queue: _Queue) -> None:
        hints = queue.undecided()
        tasks = await self._tasks(hints)
        began = self._ports.clock.monotonic()
        verdicts = await self._ports.background.run_sync(partial(_verdicts, queue.filter, tasks, self._seconds_max))
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
            size += 0 if task is None else len(task.variables)
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
