"""Lists and counts of external tasks. Each function takes the connection first.

Finished tasks are the bulk of a database; nothing here reads them that can do without. A subquery with ``OFFSET 0`` is
planned apart from what surrounds it: such queries keep their plan whatever the statistics say.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.instants import InstantMs
from stellwerk.ports import TaskQuery
from stellwerk.stores import rows
from stellwerk.stores.postgres.parameters import Parameters, findable, where
from stellwerk.stores.postgres.reads import BACKING_OFF, DRAINED, LOCKED, READY
from stellwerk.stores.tables import no_page_after

__all__ = ["count_tasks", "held_leases", "tasks"]

_ENDED_KINDS = {
    state.value: (f"state = '{state.value}'",)
    for state in TaskState
    if state not in (TaskState.READY, TaskState.LOCKED)
}
_KINDS = {"READY": (READY, BACKING_OFF, DRAINED), "LOCKED": (LOCKED,), **_ENDED_KINDS}
"""By state: the conditions of indexes that have all its tasks between them. A state in a parameter would find none."""
_ALL_KINDS = tuple(kind for kinds in _KINDS.values() for kind in kinds)
_EQUAL = {
    "topic": "task_type = {}",
    "worker_id": "state = 'LOCKED' AND lock_owner = {}",
    "definition_id": "definition_id = {}",
    "process_key": "rtrim(definition_id, '0123456789') = {}::text || ':'",
    "element_id": "element_id = {}",
    "business_key": "business_key = {}",
    "priority_from": "priority >= {}::bigint",
    "priority_to": "priority <= {}::bigint",
}
_IS_LOCKED = "(state = 'LOCKED' AND lock_expire_at > (SELECT coalesce({}::bigint, stellwerk.now_ms())))"
_CREATED_AT = "SELECT created_at FROM stellwerk.external_tasks WHERE task_id = $1"
_TASK_COLUMNS = ", ".join(f"t.{column}" for column in rows.TASK_COLUMNS)
_HELD_LEASES = f"""
SELECT lock_owner, task_type, count(*) FROM stellwerk.external_tasks
WHERE {LOCKED} AND lock_owner = ANY ($1::text[]) AND {_IS_LOCKED.format("$2")}
GROUP BY lock_owner, task_type"""  # noqa: S608
_OF_INSTANCE = "SELECT * FROM stellwerk.external_tasks WHERE process_instance = {} OFFSET 0"
_BY_ID = "SELECT * FROM stellwerk.external_tasks WHERE task_id = ANY ({}::text[]) OFFSET 0"
_OF_INSTANCES = """
SELECT t.* FROM (SELECT instance_id FROM stellwerk.instances WHERE business_key = {} OFFSET 0) i
CROSS JOIN LATERAL (SELECT * FROM stellwerk.external_tasks t WHERE t.process_instance = i.instance_id OFFSET 0) t"""


async def tasks(
    connection: asyncpg.Connection, wanted: TaskQuery, now_ms: InstantMs | None, limit: int, after: str | None
) -> list[ExternalTask]:
    """Oldest first.

    :param now_ms: the lease clock. None: the database's own.
    """
    parameters = Parameters()
    conditions = _conditions(wanted, now_ms, parameters)
    if after is not None:
        created_at_ms = await connection.fetchval(_CREATED_AT, findable(after))
        if created_at_ms is None:
            raise no_page_after("external task", after)
        conditions.append(f"(created_at, task_id) > ({parameters.add(created_at_ms)}, {parameters.add(after)})")
    pages = _pages(_sources(wanted, parameters), conditions, parameters.add(limit))
    return [rows.task_from_row(row) for row in await connection.fetch(_rows_of(pages), *parameters)] if pages else []


async def count_tasks(connection: asyncpg.Connection, wanted: TaskQuery, now_ms: InstantMs | None) -> int:
    parameters = Parameters()
    conditions = _conditions(wanted, now_ms, parameters)
    counts = " UNION ALL ".join(
        f"SELECT count(*) AS tasks FROM {source}{where([*kind, *conditions])}"  # noqa: S608 -- constants, here and below
        for source, kind in _sources(wanted, parameters)
    )
    if not counts:
        return 0
    return int(await connection.fetchval(f"SELECT sum(tasks)::bigint FROM ({counts}) counted", *parameters))  # noqa: S608


async def held_leases(
    connection: asyncpg.Connection, worker_ids: Sequence[str], now_ms: InstantMs | None
) -> dict[tuple[str, str], int]:
    """By worker id and topic."""
    counted = await connection.fetch(_HELD_LEASES, [findable(worker_id) for worker_id in worker_ids], now_ms)
    return {(worker_id, topic): count for worker_id, topic, count in counted}


# --- conditions ----------------------------------------------------------------------------------------------------


def _conditions(wanted: TaskQuery, now_ms: InstantMs | None, parameters: Parameters) -> list[str]:
    """All but those that `_sources` takes."""
    conditions = [
        condition.format(parameters.add(value))
        for name, condition in _EQUAL.items()
        if (value := getattr(wanted, name)) is not None
    ]
    if wanted.with_retries_left is not None:
        conditions.append("retries > 0" if wanted.with_retries_left else "retries <= 0")
    if wanted.is_locked is not None:
        is_locked = _IS_LOCKED.format(parameters.add(now_ms))
        conditions.append(is_locked if wanted.is_locked else f"NOT {is_locked}")
    return conditions


_Source = tuple[str, Sequence[str]]
"""What to select from, and on what conditions beside those of `_conditions`."""


def _sources(wanted: TaskQuery, parameters: Parameters) -> Sequence[_Source]:
    """They have all that is wanted between them, and nothing twice; an index answers each."""
    subquery = _subquery(wanted, parameters)
    if subquery is None:
        return [("stellwerk.external_tasks", [kind]) for kind in _kinds(wanted)]
    conditions = [] if wanted.state is None else [f"state = {parameters.add(wanted.state)}"]
    if wanted.task_ids is not None and wanted.instance_id is not None:
        conditions.append(f"process_instance = {parameters.add(wanted.instance_id)}")
    return [(f"({subquery}) found", conditions)]


def _subquery(wanted: TaskQuery, parameters: Parameters) -> str | None:
    if wanted.task_ids is not None:
        return _BY_ID.format(parameters.add([findable(task_id) for task_id in wanted.task_ids]))
    if wanted.instance_id is not None:
        return _OF_INSTANCE.format(parameters.add(wanted.instance_id))
    if wanted.business_key is not None:
        return _OF_INSTANCES.format(parameters.add(wanted.business_key))
    return None


def _kinds(wanted: TaskQuery) -> Sequence[str]:
    if wanted.state is not None:
        return _KINDS.get(wanted.state, ())
    return (LOCKED,) if wanted.worker_id is not None or wanted.is_locked else _ALL_KINDS


# --- pages ---------------------------------------------------------------------------------------------------------


def _pages(sources: Sequence[_Source], conditions: Sequence[str], limit: str) -> str:
    """Of each source the first keys, and of all these the first again."""
    pages = [
        f"(SELECT created_at, task_id FROM {source}{where([*kind, *conditions])}"  # noqa: S608
        f" ORDER BY created_at, task_id LIMIT {limit})"
        for source, kind in sources
    ]
    joined = " UNION ALL ".join(pages)
    return f"SELECT * FROM ({joined}) kinds ORDER BY created_at, task_id LIMIT {limit}" if joined else ""  # noqa: S608


def _rows_of(keys: str) -> str:
    """Keys are sorted without the rows: only the page's are read."""
    return (
        f"SELECT {_TASK_COLUMNS} FROM ({keys}) page CROSS JOIN LATERAL"  # noqa: S608
        " (SELECT * FROM stellwerk.external_tasks t WHERE t.task_id = page.task_id OFFSET 0) t"
        " ORDER BY page.created_at, page.task_id"
    )
