"""Listing the rows of the memory store: filters, pages and the backlog of each topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Any, TypeVar

from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.ids import is_among, process_key_of
from stellwerk.instants import InstantMs
from stellwerk.ports import InstanceFilter, InstanceSummary, TaskQuery, TopicBacklog
from stellwerk.stores.memory_tables import MemoryTables
from stellwerk.stores.tables import no_page_after

__all__ = [
    "count_tasks",
    "held_leases",
    "incident_counts",
    "instances",
    "tasks",
    "topic_backlogs",
]

R = TypeVar("R")


def instances(tables: MemoryTables, wanted: InstanceFilter, limit: int, after: str | None) -> list[InstanceSummary]:
    with_incident = {waiting.instance_id for waiting in tables.incidents.values()}
    found = [row for row in tables.instances.values() if _fits(row, wanted, row.instance_id in with_incident)]
    anchor = None if after is None else tables.instances.get(after)
    if after is not None and anchor is None:
        raise no_page_after("instance", after)
    return _page(found, _newest_first, limit, anchor)


def _fits(row: InstanceSummary, wanted: InstanceFilter, has_incident: bool) -> bool:
    return (
        wanted.status in (None, row.status)
        and wanted.process_key in (None, row.process_key)
        and (wanted.process_keys is None or is_among(row.process_key, wanted.process_keys))
        and wanted.definition_id in (None, row.definition_id)
        and wanted.business_key in (None, row.business_key)
        and wanted.with_incident in (None, has_incident)
        and (wanted.started_from_ms is None or row.started_at_ms >= wanted.started_from_ms)
        and (wanted.started_before_ms is None or row.started_at_ms < wanted.started_before_ms)
    )


def _newest_first(row: InstanceSummary) -> tuple[int, tuple[int, ...]]:
    # One more number for the end: of two ids the longer is the greater.
    return -row.started_at_ms, (*(-ord(char) for char in row.instance_id), 1)


def tasks(
    tables: MemoryTables, wanted: TaskQuery, now_ms: InstantMs, limit: int, after: str | None
) -> list[ExternalTask]:
    anchor = None if after is None else tables.tasks.get(after)
    if after is not None and anchor is None:
        raise no_page_after("external task", after)
    return _page(list(_fitting(tables, wanted, now_ms)), _oldest_first, limit, anchor)


def count_tasks(tables: MemoryTables, wanted: TaskQuery, now_ms: InstantMs) -> int:
    return sum(1 for _ in _fitting(tables, wanted, now_ms))


def _fitting(tables: MemoryTables, wanted: TaskQuery, now_ms: InstantMs) -> Iterator[ExternalTask]:
    ids: Iterable[str] = tables.tasks if wanted.instance_id is None else tables.tasks_of.get(wanted.instance_id, ())
    if wanted.task_ids is not None:
        ids = {*wanted.task_ids}.intersection(ids)
    for task in map(tables.tasks.__getitem__, ids):
        if _is_of(task, wanted) and _is_as(task, wanted, now_ms):
            yield task


def _is_of(task: ExternalTask, wanted: TaskQuery) -> bool:
    return (
        wanted.topic in (None, task.topic)
        and wanted.definition_id in (None, task.definition_id)
        and wanted.process_key in (None, process_key_of(task.definition_id))
        and wanted.element_id in (None, task.element_id)
        and (wanted.business_key is None or wanted.business_key == task.business_key)
    )


def _is_as(task: ExternalTask, wanted: TaskQuery, now_ms: InstantMs) -> bool:
    lease = task.lease if task.state is TaskState.LOCKED else None
    return (
        wanted.state in (None, task.state.value)
        and (wanted.worker_id is None or (lease is not None and lease.holder.worker_id == wanted.worker_id))
        and wanted.is_locked in (None, lease is not None and lease.until_ms > now_ms)
        and wanted.with_retries_left in (None, task.retries_left > 0)
        and (wanted.priority_from is None or task.priority >= wanted.priority_from)
        and (wanted.priority_to is None or task.priority <= wanted.priority_to)
    )


def _oldest_first(task: ExternalTask) -> tuple[InstantMs, str]:
    return task.created_at_ms, task.task_id


def _page(rows: list[R], key: Callable[[R], Any], limit: int, anchor: R | None) -> list[R]:
    if anchor is not None:
        last = key(anchor)
        rows = [row for row in rows if key(row) > last]
    return nsmallest(limit, rows, key=key)


def held_leases(tables: MemoryTables, worker_ids: Sequence[str], now_ms: InstantMs) -> Mapping[tuple[str, str], int]:
    wanted = {*worker_ids}
    held = Counter[tuple[str, str]]()
    for until_ms, task_id in tables.locked:
        lease = tables.tasks[task_id].lease
        if until_ms > now_ms and lease is not None and lease.holder.worker_id in wanted:
            held[lease.holder.worker_id, tables.tasks[task_id].topic] += 1
    return held


def topic_backlogs(tables: MemoryTables, now_ms: InstantMs) -> list[TopicBacklog]:
    locked: dict[str, int] = {}
    for _, task_id in tables.locked:
        topic = tables.tasks[task_id].topic
        locked[topic] = locked.get(topic, 0) + 1
    topics = {*locked, *tables.ready_by_topic, *tables.waiting_by_topic}
    found = [_backlog(tables, topic, locked.get(topic, 0), now_ms) for topic in sorted(topics)]
    return [backlog for backlog in found if backlog.ready or backlog.backing_off or backlog.locked]


def _backlog(tables: MemoryTables, topic: str, locked: int, now_ms: InstantMs) -> TopicBacklog:
    ready = [tables.tasks[task_id].available_at_ms for *_, task_id in tables.ready_by_topic.get(topic, ())]
    waiting = [available_at_ms for available_at_ms, _ in tables.waiting_by_topic.get(topic, ())]
    due_again = [available_at_ms for available_at_ms in waiting if available_at_ms <= now_ms]
    return TopicBacklog(
        topic=topic,
        ready=len(ready) + len(due_again),
        backing_off=len(waiting) - len(due_again),
        locked=locked,
        oldest_ready_at_ms=min((*ready, *due_again), default=None),
    )


def incident_counts(tables: MemoryTables, instance_ids: Sequence[str]) -> Mapping[str, int]:
    wanted = {*instance_ids}
    return Counter(waiting.instance_id for waiting in tables.incidents.values() if waiting.instance_id in wanted)
