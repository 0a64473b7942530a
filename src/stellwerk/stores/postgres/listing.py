"""Lists of instances by pages, and the backlog of each topic. Each function takes the connection first.

Finished tasks are the bulk of a database; nothing here reads them that can do without. A subquery with ``OFFSET 0`` is
planned apart from what surrounds it: such queries keep their plan whatever the statistics say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import asyncpg

from stellwerk.instants import InstantMs
from stellwerk.ports import InstanceFilter, InstanceSummary, TopicBacklog
from stellwerk.stores import rows
from stellwerk.stores.postgres.parameters import Parameters, findable, where
from stellwerk.stores.postgres.reads import BACKING_OFF, LOCKED, READY
from stellwerk.stores.tables import no_page_after, split_names

__all__ = ["incident_counts", "instances", "topic_backlogs"]


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
_OF_PROCESSES = """(
    i.process_key = ANY ({}::text[])
    OR EXISTS (SELECT FROM unnest({}::text[]) AS beginning WHERE starts_with(i.process_key, beginning)))"""
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
    if wanted.process_keys is not None:
        names = ([*map(findable, part)] for part in split_names(wanted.process_keys))
        conditions.append(_OF_PROCESSES.format(*map(parameters.add, names)))
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
