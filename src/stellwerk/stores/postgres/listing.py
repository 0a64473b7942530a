"""Lists of instances and tasks by pages, and the backlog of each topic. Each function takes the connection first.

Finished tasks are the bulk of a database; nothing here reads them that can do without. A subquery with ``OFFSET 0`` is
planned apart from what surrounds it: such queries keep their plan whatever the statistics say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import asyncpg

from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.instants import InstantMs
from stellwerk.ports import InstanceFilter, InstanceSummary, TopicBacklog
from stellwerk.stores import rows
from stellwerk.stores.postgres.parameters import Parameters, findable, where
from stellwerk.stores.postgres.reads import BACKING_OFF, DRAINED, LOCKED, READY
from stellwerk.stores.tables import no_page_after

__all__ = ["incident_counts", "instances", "tasks", "topic_backlogs"]


# --- instances -----------------------------------------------------------------------------------------------------

_INSTANCE_COLUMNS = ", ".join(f"i.{column}" for column in rows.INSTANCE_COLUMNS)
_FILTERS = {
    "status": "i.status =",
    "process_key": "i.process_key =",
    "definition_id": "i.definition_id =",
    "business_key": "i.business_key =",
    "started_from_ms": "i.started_at_ms >=",
    "started_before_ms": "i.started_at_ms <",
}
_WITHOUT_INCIDENT = "NOT EXISTS (SELECT FROM stellwerk.incidents x WHERE x.instance_id = i.instance_id OFFSET 0)"
# Few instances have incidents: they are looked up from those.
_WITH_INCIDENT = """(SELECT DISTINCT instance_id FROM stellwerk.incidents) x
CROSS JOIN LATERAL (SELECT * FROM stellwerk.instances i WHERE i.instance_id = x.instance_id OFFSET 0) i"""
_STARTED_AT = "SELECT started_at_ms FROM stellwerk.instances WHERE instance_id = $1"
_COUNT_INCIDENTS = """
SELECT instance_id, count(*) FROM stellwerk.incidents WHERE instance_id = ANY ($1::text[]) GROUP BY instance_id"""


async def instances(
    connection: asyncpg.Connection, wanted: InstanceFilter, limit: int, after: str | None
) -> list[InstanceSummary]:
    """Newest first."""
    parameters = Parameters()
    conditions = _given({condition: getattr(wanted, name) for name, condition in _FILTERS.items()}, parameters)
    if wanted.with_incident is False:
        conditions.append(_WITHOUT_INCIDENT)
    if after is not None:
        started_at_ms = await connection.fetchval(_STARTED_AT, findable(after))
        if started_at_ms is None:
            raise no_page_after("instance", after)
        anchor = f"({parameters.add(started_at_ms)}, {parameters.add(after)})"
        conditions.append(f"(i.started_at_ms, i.instance_id) < {anchor}")
    statement = (
        f"SELECT {_INSTANCE_COLUMNS} FROM {_WITH_INCIDENT if wanted.with_incident else 'stellwerk.instances i'}"  # noqa: S608 -- constants, here and below
        f"{where(conditions)} ORDER BY i.started_at_ms DESC, i.instance_id DESC LIMIT {parameters.add(limit)}"
    )
    return [rows.instance_from_row(row) for row in await connection.fetch(statement, *parameters)]


def _given(wanted: Mapping[str, object], parameters: Parameters) -> list[str]:
    return [f"{condition} {parameters.add(value)}" for condition, value in wanted.items() if value is not None]


async def incident_counts(connection: asyncpg.Connection, instance_ids: Sequence[str]) -> dict[str, int]:
    """Of those instances that have any."""
    found = await connection.fetch(_COUNT_INCIDENTS, [findable(instance_id) for instance_id in instance_ids])
    return {row[0]: row[1] for row in found}


# --- tasks ---------------------------------------------------------------------------------------------------------

_READY_KINDS = (READY, BACKING_OFF, DRAINED)
_ENDED_KINDS = {
    state.value: (f"state = '{state.value}'",)
    for state in TaskState
    if state not in (TaskState.READY, TaskState.LOCKED)
}
_KINDS = {"READY": _READY_KINDS, "LOCKED": (LOCKED,), **_ENDED_KINDS}
"""By state: the conditions of indexes that have all its tasks between them. A state in a parameter would find none."""
_ALL_KINDS = tuple(kind for kinds in _KINDS.values() for kind in kinds)
_CREATED_AT = "SELECT created_at FROM stellwerk.external_tasks WHERE task_id = $1"
_TASK_COLUMNS = ", ".join(f"t.{column}" for column in rows.TASK_COLUMNS)


async def tasks(
    connection: asyncpg.Connection,
    instance_id: str | None,
    topic: str | None,
    state: str | None,
    limit: int,
    after: str | None,
) -> list[ExternalTask]:
    """Oldest first."""
    parameters = Parameters()
    conditions = [] if topic is None else [f"task_type = {parameters.add(topic)}"]
    if after is not None:
        created_at_ms = await connection.fetchval(_CREATED_AT, findable(after))
        if created_at_ms is None:
            raise no_page_after("external task", after)
        conditions.append(f"(created_at, task_id) > ({parameters.add(created_at_ms)}, {parameters.add(after)})")
    if instance_id is None:
        keys = _keys_by_state(_ALL_KINDS if state is None else _KINDS.get(state, ()), conditions, parameters.add(limit))
    else:
        conditions += [] if state is None else [f"state = {parameters.add(state)}"]
        keys = _keys_of_instance(parameters.add(instance_id), conditions, parameters.add(limit))
    return [rows.task_from_row(row) for row in await connection.fetch(_rows_of(keys), *parameters)] if keys else []


def _keys_by_state(kinds: Sequence[str], conditions: Sequence[str], limit: str) -> str:
    """Of each kind the first keys, and of all these the first again."""
    pages = (
        f"(SELECT created_at, task_id FROM stellwerk.external_tasks{where([kind, *conditions])}"  # noqa: S608
        f" ORDER BY created_at, task_id LIMIT {limit})"
        for kind in kinds
    )
    joined = " UNION ALL ".join(pages)
    return f"SELECT * FROM ({joined}) kinds ORDER BY created_at, task_id LIMIT {limit}" if joined else ""  # noqa: S608


def _keys_of_instance(instance_id: str, conditions: Sequence[str], limit: str) -> str:
    of_instance = f"SELECT * FROM stellwerk.external_tasks WHERE process_instance = {instance_id} OFFSET 0"  # noqa: S608
    return (
        f"SELECT created_at, task_id FROM ({of_instance}) of_instance{where(conditions)}"  # noqa: S608
        f" ORDER BY created_at, task_id LIMIT {limit}"
    )


def _rows_of(keys: str) -> str:
    """Keys are sorted without the rows: only the page's are read."""
    return (
        f"SELECT {_TASK_COLUMNS} FROM ({keys}) page CROSS JOIN LATERAL"  # noqa: S608
        " (SELECT * FROM stellwerk.external_tasks t WHERE t.task_id = page.task_id OFFSET 0) t"
        " ORDER BY page.created_at, page.task_id"
    )


# --- topics --------------------------------------------------------------------------------------------------------

_TOPIC_BACKLOGS = f"""
WITH clock AS MATERIALIZED (SELECT coalesce($1::bigint, stellwerk.now_ms()) AS now_ms)
SELECT task_type, sum(ready)::bigint, sum(backing_off)::bigint, sum(locked)::bigint, min(oldest_ready_at_ms)
FROM (
    SELECT task_type, count(*) AS ready, 0 AS backing_off, 0 AS locked, min(available_at) AS oldest_ready_at_ms
    FROM stellwerk.external_tasks WHERE {READY} GROUP BY task_type
    UNION ALL
    SELECT task_type, count(*) FILTER (WHERE available_at <= now_ms), count(*) FILTER (WHERE available_at > now_ms), 0,
        min(available_at) FILTER (WHERE available_at <= now_ms)
    FROM stellwerk.external_tasks, clock WHERE {BACKING_OFF} GROUP BY task_type
    UNION ALL
    SELECT task_type, 0, 0, count(*), NULL FROM stellwerk.external_tasks WHERE {LOCKED} GROUP BY task_type
) counted GROUP BY task_type ORDER BY task_type"""  # noqa: S608


async def topic_backlogs(connection: asyncpg.Connection, now_ms: InstantMs | None) -> list[TopicBacklog]:
    """By topic."""
    found = await connection.fetch(_TOPIC_BACKLOGS, now_ms)
    return [
        TopicBacklog(topic=topic, ready=ready, backing_off=backing_off, locked=locked, oldest_ready_at_ms=oldest)
        for topic, ready, backing_off, locked, oldest in found
    ]
