"""Listing the rows of the memory store: filters, pages and the backlog of each topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from typing import Any, TypeVar

from stellwerk.core.changes import SubscriptionRow
from stellwerk.core.external_task import ExternalTask
from stellwerk.instants import InstantMs
from stellwerk.ports import InstanceFilter, InstanceSummary, KeptMessage, TopicBacklog
from stellwerk.stores.memory_tables import MemoryTables, StoredMessage
from stellwerk.stores.tables import no_page_after

__all__ = [
    "awaited_names",
    "incident_counts",
    "instances",
    "message",
    "tasks",
    "topic_backlogs",
    "waiting_messages",
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
    tables: MemoryTables,
    instance_id: str | None,
    topic: str | None,
    state: str | None,
    limit: int,
    after: str | None,
) -> list[ExternalTask]:
    ids = tables.tasks if instance_id is None else tables.tasks_of.get(instance_id, ())
    found = [
        task
        for task in map(tables.tasks.__getitem__, ids)
        if topic in (None, task.topic) and state in (None, task.state.value)
    ]
    anchor = None if after is None else tables.tasks.get(after)
    if after is not None and anchor is None:
        raise no_page_after("external task", after)
    return _page(found, _oldest_first, limit, anchor)


def _oldest_first(task: ExternalTask) -> tuple[InstantMs, str]:
    return task.created_at_ms, task.task_id


def _page(rows: list[R], key: Callable[[R], Any], limit: int, anchor: R | None) -> list[R]:
    if anchor is not None:
        last = key(anchor)
        rows = [row for row in rows if key(row) > last]
    return nsmallest(limit, rows, key=key)


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


def message(tables: MemoryTables, message_id: str) -> KeptMessage | None:
    stored = tables.messages.get(message_id)
    return None if stored is None else _kept(tables, [stored])[0]


def waiting_messages(tables: MemoryTables, now_ms: InstantMs, limit: int, after: str | None) -> list[KeptMessage]:
    ids = (
        message_id
        for message_id, stored in tables.messages.items()
        if not stored.is_consumed and stored.row.expires_at_ms > now_ms and (after is None or message_id > after)
    )
    return _kept(tables, [tables.messages[message_id] for message_id in nsmallest(limit, ids)])


def _kept(tables: MemoryTables, found: Sequence[StoredMessage]) -> list[KeptMessage]:
    subscribed, starting = _subscribed(tables), _starting(tables)
    return [
        KeptMessage(
            message_id=stored.row.message_id,
            name=stored.row.name,
            key=stored.row.key,
            published_at_ms=stored.row.published_at_ms,
            expires_at_ms=stored.row.expires_at_ms,
            is_correlated=stored.is_consumed,
            is_awaited=stored.row.name in starting or (stored.row.name, stored.row.key) in subscribed,
        )
        for stored in found
    ]


def _subscribed(tables: MemoryTables) -> set[tuple[str, str]]:
    """Names with keys."""
    rows = (waiting.row for waiting in tables.subscriptions.values())
    return {(row.name, row.key) for row in rows if isinstance(row, SubscriptionRow)}


def _starting(tables: MemoryTables) -> set[str]:
    return {start.name for group in tables.start_subscriptions.values() for start in group}


def awaited_names(tables: MemoryTables, limit: int) -> list[str]:
    return nsmallest(limit, {name for name, _ in _subscribed(tables)} | _starting(tables))


def incident_counts(tables: MemoryTables, instance_ids: Sequence[str]) -> Mapping[str, int]:
    wanted = {*instance_ids}
    return Counter(waiting.instance_id for waiting in tables.incidents.values() if waiting.instance_id in wanted)
