"""Lists of instances by pages, and the backlog of each topic. Each function takes the connection first.

Finished tasks are the bulk of a file; nothing here reads them that can do without.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from stellwerk.instants import InstantMs
from stellwerk.json_values import dumps
from stellwerk.ports import InstanceFilter, InstanceSummary, TopicBacklog
from stellwerk.stores import rows
from stellwerk.stores.sqlite.task_listing import BACKING_OFF, LOCKED, READY
from stellwerk.stores.tables import no_page_after, split_names

__all__ = ["incident_counts", "instances", "topic_backlogs"]

_INSTANCE_COLUMNS = ", ".join(f"i.{column}" for column in rows.INSTANCE_COLUMNS)


# --- instances -----------------------------------------------------------------------------------------------------

_FILTERS = {
    "status": "i.status = ?",
    "process_key": "i.process_key = ?",
    "definition_id": "i.definition_id = ?",
    "business_key": "i.business_key = ?",
    "started_from_ms": "i.started_at_ms >= ?",
    "started_before_ms": "i.started_at_ms < ?",
}
_OF_PROCESSES = """(
    i.process_key IN (SELECT value FROM json_each(?))
    OR EXISTS (SELECT 1 FROM json_each(?) WHERE substr(i.process_key, 1, length(value)) = value))"""
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
    if wanted.process_keys is not None:
        conditions.append(_OF_PROCESSES)
        parameters += [dumps(list(names)).decode() for names in split_names(wanted.process_keys)]
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


# --- topics --------------------------------------------------------------------------------------------------------

_COUNT_READY = f"""
SELECT task_type, count(*), 0, 0, min(available_at) FROM external_tasks WHERE {READY} GROUP BY task_type"""  # noqa: S608
_COUNT_BACKING_OFF = f"""
SELECT task_type, sum(available_at <= ?1), sum(available_at > ?1), 0, min(available_at)
FROM external_tasks WHERE {BACKING_OFF} GROUP BY task_type"""  # noqa: S608
_COUNT_LOCKED = f"SELECT task_type, 0, 0, count(*), NULL FROM external_tasks WHERE {LOCKED} GROUP BY task_type"  # noqa: S608


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
