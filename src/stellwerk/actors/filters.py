"""The filtering subscriptions of a topic: which READY tasks each of their filters takes.

Each filter has a queue of the tasks that it has not rejected, in the order of hand-out. The dispatcher takes from its
front; where the front is not decided yet, the screening service reads variables from the store and searches them in
the background, a batch at a time. Renewals and other subscriptions never wait for that. What was decided once stays
decided while the task is READY: variables of a task never change.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import trio

from stellwerk.actors.leases import Subscription
from stellwerk.actors.payloads import PayloadFilter
from stellwerk.limits import Limits
from stellwerk.ports import Ports, ReadyTask

__all__ = ["TopicFilters", "insert_sorted", "remove_sorted"]

_BATCH_MAX = 100
_BATCH_BYTES_MAX = 4 * 1024 * 1024
_BATCH_SECONDS = 0.05
"""Batches become smaller when one takes longer: the thread also serves others."""


@attrs.define(eq=False)
class _Queue:
    """READY tasks that one filter takes, or that it may take."""

    filter: PayloadFilter
    waiting: list[ReadyTask]
    """In order of hand-out."""
    matching: set[str] = attrs.field(factory=set)
    """Those of `waiting` that are known to match."""
    is_wanted: bool = False
    """Somebody has room, and the first of `waiting` is not decided."""
    batch: int = 10

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
    """``changed`` is called when more is decided."""

    def __init__(
        self,
        topic: str,
        ports: Ports,
        limits: Limits,
        subscriptions: Mapping[str, Subscription],
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
        filters = {held.filter.text: held.filter for held in self._subscriptions.values() if held.filter is not None}
        if filters and not self._queues:
            ready.sort(key=lambda task: (task.rank, task.created_at_ms, task.task_id))  # as they compare, but faster
        self._queues = {
            text: self._queues.get(text) or _Queue(payload_filter, list(ready))
            for text, payload_filter in filters.items()
        }

    def add(self, task: ReadyTask) -> None:
        for queue in self._queues.values():
            insert_sorted(queue.waiting, task)

    def remove(self, task: ReadyTask) -> None:
        for queue in self._queues.values():
            queue.remove(task)

    def first(self, text: str) -> ReadyTask | None:
        """The task that this filter takes next. None: there is none, or it is not decided yet (and soon will be)."""
        queue = self._queues[text]
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
        tasks = queue.undecided()
        payloads = await self._payloads(tasks)
        began = self._ports.clock.monotonic()
        verdicts = await self._ports.background.run_sync(partial(_verdicts, queue.filter, payloads, self._seconds_max))
        queue.batch_took(self._ports.clock.monotonic() - began)
        for task, verdict in zip(tasks, verdicts, strict=False):
            queue.decide(task, verdict is True)
            if verdict is None:
                self._log_slowness(queue.filter.text, task)
        queue.is_wanted = False
        self._changed()

    async def _payloads(self, tasks: Sequence[ReadyTask]) -> list[bytes | None]:
        """Of the first of these tasks, as many as fit into a batch; None: the row is gone."""
        payloads: list[bytes | None] = []
        size = 0
        for hint in tasks:
            task = await self._ports.store.task(hint.task_id)
            payloads.append(None if task is None else task.variables)
            size += 0 if task is None else len(task.variables)
            if size > _BATCH_BYTES_MAX:
                break
        return payloads

    def _log_slowness(self, text: str, task: ReadyTask) -> None:
        for subscription in self._subscriptions.values():
            slow = subscription.filter
            if slow is not None and slow.text == text and not slow.slowness_is_logged:
                slow.slowness_is_logged = True
                self._ports.log.warning(
                    "a filter takes too long; the task counts as not matching",
                    topic=self._topic,
                    worker=subscription.link.holder.worker_id,
                    filter=text,
                    task=task.task_id,
                )


def _verdicts(payload_filter: PayloadFilter, payloads: Sequence[bytes | None], seconds_max: float) -> list[bool | None]:
    """One for each payload, but the first that takes too long (None) is the last: there may be many such."""
    verdicts: list[bool | None] = []
    for payload in payloads:
        # A row that is gone refuses the lease, and with that the hint goes too.
        verdicts.append(True if payload is None else payload_filter.matches(payload, seconds_max))
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
