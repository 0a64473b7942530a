"""Lists of instances and tasks by pages, and the backlog of each topic. Each function takes the connection first.

Finished tasks are the bulk of a file; nothing here reads them that can do without.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter

from stellwerk.core.external_task import ExternalTask
from stellwerk.instants import InstantMs
from stellwerk.json_values import dumps
from stellwerk.ports import InstanceFilter, InstanceSummary, TopicBacklog
from stellwerk.stores import rows
from stellwerk.stores.tables import no_page_after

__all__ = ["incident_counts", "instances", "tasks", "topic_backlogs"]

_INSTANCE_COLUMNS = ", ".join(f"i.{column}" for column in rows.INSTANCE_COLUMNS)
_TASK_COLUMNS = ", ".join(rows.TASK_COLUMNS)


# --- instances -----------------------------------------------------------------------------------------------------

_FILTERS = {
    "status": "i.status = ?",
    "process_key": "i.process_key = ?",
    "definition_id": "i.definition_id = ?",
    "business_key": "i.business_key = ?",
    "started_from_ms": "i.started_at_ms >= ?",
    "started_before_ms": "i.started_at_ms < ?",
}
_WITHOUT_INCIDENT = "NOT EXISTS (SELECT 1 FROM incidents x WHERE x.instance_id = i.instance_id)"
# Few instances have incidents: CROSS JOIN makes SQLite begin with them.
_WITH_INCIDENT = (
    "(SELECT DISTINCT instance_id FROM incidents) x CROSS JOIN instances i ON i.instance_id = x.instance_id"
)


def instances(
    connection: sqlite3.Connection, wanted: InstanceFilter, limit: int, after: str | None
) -> list[InstanceSummary]:
    """Newest first."""
    conditions, parameters = _given({condition: getattr(wanted, name) for name, condition in _FILTERS.items()})
    if wanted.with_incident is False:
        conditions.append(_WITHOUT_INCIDENT)
    if after is not None:
        conditions.append("(i.started_at_ms, i.instance_id) < (?, ?)")
        parameters += [_start_of(connection, after), after]
    statement = (
        f"SELECT {_INSTANCE_COLUMNS} FROM {_WITH_INCIDENT if wanted.with_incident else 'instances i'}"  # noqa: S608 -- constants, here and below
        f"{_where(conditions)} ORDER BY i.started_at_ms DESC, i.instance_id DESC LIMIT ?"
    )
    return [rows.instance_from_row(row) for row in connection.execute(statement, (*parameters, limit)).fetchall()]


def _start_of(connection: sqlite3.Connection, instance_id: str) -> InstantMs:
    row = connection.execute("SELECT started_at_ms FROM instances WHERE instance_id = ?", (instance_id,)).fetchone()
    if row is None:
        raise no_page_after("instance", instance_id)
    started_at_ms: InstantMs = row[0]
    return started_at_ms


_COUNT_INCIDENTS = """
SELECT instance_id, count(*) FROM incidents WHERE instance_id IN (SELECT value FROM json_each(?))
GROUP BY instance_id"""


def incident_counts(connection: sqlite3.Connection, instance_ids: Sequence[str]) -> dict[str, int]:
    """Of those instances that have any."""
    return dict(connection.execute(_COUNT_INCIDENTS, (dumps(list(instance_ids)).decode(),)).fetchall())


def _given(wanted: Mapping[str, object]) -> tuple[list[str], list[object]]:
    given = {condition: value for condition, value in wanted.items() if value is not None}
    return list(given), list(given.values())


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


# --- tasks ---------------------------------------------------------------------------------------------------------

_READY = "state = 'READY' AND draining = 0 AND available_at <= updated_at"
_BACKING_OFF = "state = 'READY' AND draining = 0 AND available_at > updated_at"
_DRAINED = "state = 'READY' AND draining = 1"
_LOCKED = "state = 'LOCKED'"
_OPEN = {"READY": (_READY, _BACKING_OFF, _DRAINED), "LOCKED": (_LOCKED,)}
"""The conditions of the partial indexes, for which SQLite looks word by word."""

_Anchor = tuple[InstantMs, str]
"""(created, id) of the row after which the page begins."""


def tasks(
    connection: sqlite3.Connection,
    instance_id: str | None,
    topic: str | None,
    state: str | None,
    limit: int,
    after: str | None,
) -> list[ExternalTask]:
    """Oldest first."""
    anchor = None if after is None else _anchor(connection, after)
    wanted = {"task_type = ?": topic, "process_instance = ?": instance_id}
    if instance_id is not None:
        return _few(connection, ("TRUE",), {**wanted, "state = ?": state}, limit, anchor)
    if state in _OPEN:
        return _few(connection, _OPEN[state], wanted, limit, anchor)
    return _of_all(connection, {**wanted, "state = ?": state}, limit, anchor)


def _anchor(connection: sqlite3.Connection, task_id: str) -> _Anchor:
    row = connection.execute("SELECT created_at FROM external_tasks WHERE task_id = ?", (task_id,)).fetchone()
    if row is None:
        raise no_page_after("external task", task_id)
    return row[0], task_id


def _few(
    connection: sqlite3.Connection,
    indexed: Sequence[str],
    wanted: Mapping[str, str | None],
    limit: int,
    anchor: _Anchor | None,
) -> list[ExternalTask]:
    """Of what an index finds: all keys are sorted, but only the page's rows are read."""
    conditions, parameters = _given(wanted)
    if anchor is not None:
        conditions.append("(created_at, task_id) > (?, ?)")
        parameters += anchor
    keys = " UNION ALL ".join(
        f"SELECT created_at, task_id FROM external_tasks{_where([index, *conditions])}"  # noqa: S608
        for index in indexed
    )
    statement = (
        f"SELECT {_TASK_COLUMNS} FROM external_tasks WHERE task_id IN"  # noqa: S608
        f" (SELECT task_id FROM ({keys}) ORDER BY created_at, task_id LIMIT ?) ORDER BY created_at, task_id"
    )
    found = connection.execute(statement, (*parameters * len(indexed), limit)).fetchall()
    return [rows.task_from_row(row) for row in found]


def _of_all(
    connection: sqlite3.Connection, wanted: Mapping[str, str | None], limit: int, anchor: _Anchor | None
) -> list[ExternalTask]:
    """Along the table itself, where tasks lie in the order of their creation: the lease clock never goes back.

    Those of one millisecond lie in any order and are read together.
    """
    conditions, parameters = _given(wanted)
    statement = f"SELECT {_TASK_COLUMNS} FROM external_tasks{_where(['rowid > ?', *conditions])} ORDER BY rowid"  # noqa: S608
    found: list[rows.SqlRow] = []
    with closing(connection.execute(statement, (_row_before(connection, anchor), *parameters))) as cursor:
        for row in cursor:
            if len(found) >= limit and (not found or _age(row)[0] > _age(found[-1])[0]):
                break
            if anchor is None or _age(row) > anchor:
                found.append(row)
    return [rows.task_from_row(row) for row in sorted(found, key=_age)[:limit]]


def _age(row: rows.SqlRow) -> _Anchor:
    return row[_CREATED_AT], row[_TASK_ID]


def _row_before(connection: sqlite3.Connection, anchor: _Anchor | None) -> int:
    """The last row of the milliseconds before the anchor's."""
    if anchor is None:
        return 0
    row = connection.execute(_SELECT_ROW_BEFORE, (anchor[1], anchor[0])).fetchone()
    return 0 if row is None else int(row[0])


_CREATED_AT, _TASK_ID = rows.TASK_COLUMNS.index("created_at"), rows.TASK_COLUMNS.index("task_id")
_SELECT_ROW_BEFORE = """
SELECT rowid FROM external_tasks
WHERE rowid < (SELECT rowid FROM external_tasks WHERE task_id = ?) AND created_at < ?
ORDER BY rowid DESC LIMIT 1"""


# --- topics --------------------------------------------------------------------------------------------------------

_COUNT_READY = f"""
SELECT task_type, count(*), 0, 0, min(available_at) FROM external_tasks WHERE {_READY} GROUP BY task_type"""  # noqa: S608
_COUNT_BACKING_OFF = f"""
SELECT task_type, sum(available_at <= ?1), sum(available_at > ?1), 0, min(available_at)
FROM external_tasks WHERE {_BACKING_OFF} GROUP BY task_type"""  # noqa: S608
_COUNT_LOCKED = f"SELECT task_type, 0, 0, count(*), NULL FROM external_tasks WHERE {_LOCKED} GROUP BY task_type"  # noqa: S608


def topic_backlogs(connection: sqlite3.Connection, now_ms: InstantMs) -> list[TopicBacklog]:
    """By topic."""
    counted = [
        *connection.execute(_COUNT_READY).fetchall(),
        *connection.execute(_COUNT_BACKING_OFF, (now_ms,)).fetchall(),
        *connection.execute(_COUNT_LOCKED).fetchall(),
    ]
    by_topic = groupby(sorted(counted, key=itemgetter(0)), key=itemgetter(0))
    return [_backlog(topic, list(group)) for topic, group in by_topic]


def _backlog(topic: str, counted: Sequence[rows.SqlRow]) -> TopicBacklog:
    available = [row[4] for row in counted if row[1]]
    return TopicBacklog(
        topic=topic,
        ready=sum(row[1] for row in counted),
        backing_off=sum(row[2] for row in counted),
        locked=sum(row[3] for row in counted),
        oldest_ready_at_ms=min(available, default=None),
    )
