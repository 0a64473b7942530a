"""What is read from PostgreSQL outside of transactions. Each function takes the connection first.

Each question is one statement, so that its answer is of one moment although other nodes commit all the time. Where the
lease clock matters, `now_ms` dictates it (for tests); None: the database's own, read within the statement.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import asyncpg

from stellwerk.core.external_task import ExternalTask, TaskAttempt
from stellwerk.core.history import decode_facts
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    DefinitionRow,
    DueTimer,
    HistoryStep,
    InboxRow,
    InstanceSummary,
    ReadyScan,
    ReadyTask,
    StoredInstance,
    UserTaskFilter,
)
from stellwerk.stores import rows
from stellwerk.stores.catalogue import split_definition_id
from stellwerk.stores.postgres.parameters import Parameters, findable, least_after, where

__all__ = [
    "BACKING_OFF",
    "DRAINED",
    "LOCKED",
    "READY",
    "attempts",
    "claim_timers",
    "definition",
    "definitions",
    "disabled_processes",
    "draining_ready",
    "due_timers",
    "history",
    "inbox",
    "incident",
    "incidents",
    "instance",
    "latest_definition",
    "lease_now",
    "load_instance",
    "next_lock_expiry",
    "ready_tasks",
    "standing_leases",
    "task",
    "user_task",
    "user_tasks",
]

READY = "state = 'READY' AND NOT draining AND available_at <= updated_at"
BACKING_OFF = "state = 'READY' AND NOT draining AND available_at > updated_at"
DRAINED = "state = 'READY' AND draining"
LOCKED = "state = 'LOCKED'"
"""The conditions of the partial indexes."""

_BIGINT_MAX = 2**63 - 1


# --- instances -----------------------------------------------------------------------------------------------------

# The snapshot comes along with the first step only: it may be large.
_LOAD_INSTANCE = """
SELECT i.version, i.definition_id, i.status,
    CASE WHEN lag(h.version) OVER (ORDER BY h.version) IS NULL THEN s.snapshot END AS snapshot,
    h.version, h.at_ms, h.facts
FROM stellwerk.instances i
LEFT JOIN stellwerk.snapshots s ON s.instance_id = i.instance_id
LEFT JOIN stellwerk.history h ON h.instance_id = i.instance_id AND h.version > coalesce(s.version, 0)
WHERE i.instance_id = $1
ORDER BY h.version"""
_HISTORY = """
SELECT version, at_ms, facts FROM stellwerk.history
WHERE instance_id = $1 AND version > $2 ORDER BY version LIMIT $3"""
_INSTANCE = f"SELECT {', '.join(rows.INSTANCE_COLUMNS)} FROM stellwerk.instances WHERE instance_id = $1"  # noqa: S608 -- constants, here and below


async def load_instance(connection: asyncpg.Connection, instance_id: str) -> StoredInstance | None:
    found = await connection.fetch(_LOAD_INSTANCE, findable(instance_id))
    if not found:
        return None
    version, definition_id, status, snapshot = found[0][:4]
    steps = tuple(_step(row[4:]) for row in found if row[4] is not None)
    return StoredInstance(version, definition_id, status, snapshot, steps)


async def history(
    connection: asyncpg.Connection, instance_id: str, *, after: int = 0, limit: int | None = None
) -> list[HistoryStep]:
    return [_step(row) for row in await connection.fetch(_HISTORY, findable(instance_id), after, limit)]


def _step(row: rows.SqlRow) -> HistoryStep:
    version, at_ms, facts = row
    return HistoryStep(version, at_ms, decode_facts(facts))


async def instance(connection: asyncpg.Connection, instance_id: str) -> InstanceSummary | None:
    row = await connection.fetchrow(_INSTANCE, findable(instance_id))
    return None if row is None else rows.instance_from_row(row)


# --- definitions ---------------------------------------------------------------------------------------------------

_DEFINITIONS = f"SELECT {', '.join(rows.DEFINITION_COLUMNS)} FROM stellwerk.definitions"  # noqa: S608


async def definition(connection: asyncpg.Connection, definition_id: str) -> DefinitionRow | None:
    named = split_definition_id(definition_id)
    if named is None:
        return None
    statement = f"{_DEFINITIONS} WHERE process_key = $1 AND version = $2"
    row = await connection.fetchrow(statement, findable(named[0]), named[1])
    return None if row is None else rows.definition_from_row(row)


async def latest_definition(connection: asyncpg.Connection, key: str) -> DefinitionRow | None:
    statement = f"{_DEFINITIONS} WHERE process_key = $1 ORDER BY version DESC LIMIT 1"
    row = await connection.fetchrow(statement, findable(key))
    return None if row is None else rows.definition_from_row(row)


async def definitions(connection: asyncpg.Connection) -> list[DefinitionRow]:
    found = await connection.fetch(f"{_DEFINITIONS} ORDER BY process_key, version")
    return [rows.definition_from_row(row) for row in found]


async def disabled_processes(connection: asyncpg.Connection) -> list[str]:
    found = await connection.fetch(
        "SELECT process_key FROM stellwerk.processes WHERE NOT is_enabled ORDER BY process_key"
    )
    return [row[0] for row in found]


# --- tasks ---------------------------------------------------------------------------------------------------------

_TASK = f"SELECT {', '.join(rows.TASK_COLUMNS)} FROM stellwerk.external_tasks WHERE task_id = $1"  # noqa: S608
_ATTEMPTS = f"""
SELECT {", ".join(rows.ATTEMPT_COLUMNS)} FROM stellwerk.task_attempts WHERE task_id = $1 ORDER BY fence"""  # noqa: S608
# Of thousands of tasks their variables must not come along, nor be read: what is large is stored apart and compressed,
# to a third or so.
_HINT_COLUMNS = """
-priority AS rank, created_at, task_id, lock_duration_ms,
    pg_column_size(variables) * CASE WHEN pg_column_size(variables) > 2000 THEN 3 ELSE 1 END AS payload_bytes"""
_ORDER_OF_HAND_OUT = "-priority, created_at, task_id"
# The first row: what time it is, and when the next retry comes due.
_READY_TASKS = f"""
WITH clock AS MATERIALIZED (SELECT coalesce($2::bigint, stellwerk.now_ms()) AS now_ms)
SELECT now_ms AS rank, (
        SELECT min(available_at) FROM stellwerk.external_tasks
        WHERE task_type = $1 AND {BACKING_OFF} AND available_at > (SELECT now_ms FROM clock)
    ) AS created_at, NULL AS task_id, NULL::bigint AS lock_duration_ms, NULL::int AS payload_bytes
FROM clock
UNION ALL (
    SELECT * FROM (
        (SELECT {_HINT_COLUMNS} FROM stellwerk.external_tasks
         WHERE task_type = $1 AND {READY} ORDER BY {_ORDER_OF_HAND_OUT} LIMIT $3)
        UNION ALL
        (SELECT {_HINT_COLUMNS} FROM stellwerk.external_tasks
         WHERE task_type = $1 AND {BACKING_OFF} AND available_at <= (SELECT now_ms FROM clock)
         ORDER BY {_ORDER_OF_HAND_OUT} LIMIT $3)
    ) found ORDER BY rank, created_at, task_id LIMIT $3
)"""  # noqa: S608
_LAST_LOCK_END = """
SELECT max(lock_expire_at) FROM stellwerk.external_tasks WHERE state = 'LOCKED' AND lock_since < $1"""
_NEXT_LOCK_EXPIRY = f"""
SELECT (SELECT min(lock_expire_at) FROM stellwerk.external_tasks WHERE {LOCKED}),
    coalesce($1::bigint, stellwerk.now_ms())"""  # noqa: S608
_DRAINING_READY = f"""
SELECT process_instance, task_id FROM stellwerk.external_tasks WHERE {DRAINED} ORDER BY task_id LIMIT $1"""  # noqa: S608
# By key, in a subquery of its own: with the state beside it the planner might take an index of states.
_STANDING_LEASES = """
SELECT asked.task_id, asked.fence
FROM unnest($1::text[], $2::bigint[]) AS asked (task_id, fence)
CROSS JOIN LATERAL (
    SELECT state, lock_fence FROM stellwerk.external_tasks t WHERE t.task_id = asked.task_id OFFSET 0
) known
WHERE known.state = 'LOCKED' AND known.lock_fence = asked.fence"""


async def task(connection: asyncpg.Connection, task_id: str) -> ExternalTask | None:
    row = await connection.fetchrow(_TASK, findable(task_id))
    return None if row is None else rows.task_from_row(row)


async def attempts(connection: asyncpg.Connection, task_id: str) -> list[TaskAttempt]:
    return [rows.attempt_from_row(row) for row in await connection.fetch(_ATTEMPTS, findable(task_id))]


async def ready_tasks(connection: asyncpg.Connection, topic: str, limit: int, now_ms: InstantMs | None) -> ReadyScan:
    first, *found = await connection.fetch(_READY_TASKS, findable(topic), now_ms, limit)
    return ReadyScan(tuple(ReadyTask(*row) for row in found), first[1], first[0])


async def next_lock_expiry(
    connection: asyncpg.Connection, now_ms: InstantMs | None
) -> tuple[InstantMs | None, InstantMs]:
    """When the first lock runs out, or ran out, and what time it is."""
    expiry_ms, clock_ms = await connection.fetchrow(_NEXT_LOCK_EXPIRY, now_ms)
    return expiry_ms, clock_ms


async def last_lock_end(connection: asyncpg.Connection, *, before_ms: InstantMs) -> InstantMs | None:
    """The latest end of a lease that began before that. None: there is none."""
    end_ms: InstantMs | None = await connection.fetchval(_LAST_LOCK_END, before_ms)
    return end_ms


async def lease_now(connection: asyncpg.Connection) -> InstantMs:
    instant: InstantMs = await connection.fetchval("SELECT stellwerk.now_ms()")
    return instant


async def draining_ready(connection: asyncpg.Connection, limit: int) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in await connection.fetch(_DRAINING_READY, limit)]


async def standing_leases(
    connection: asyncpg.Connection, leases: Sequence[tuple[str, int]]
) -> Collection[tuple[str, int]]:
    asked = [lease for lease in leases if findable(lease[0]) is not None and abs(lease[1]) <= _BIGINT_MAX]
    found = await connection.fetch(_STANDING_LEASES, [lease[0] for lease in asked], [lease[1] for lease in asked])
    return {(row[0], row[1]) for row in found}


# --- timers --------------------------------------------------------------------------------------------------------

_CLAIM_MS = 10_000
"""So long a node that takes due timers keeps the others off them."""
_DUE_TIMERS = """
SELECT timer_id, instance_id, due_at_ms FROM stellwerk.timers ORDER BY due_at_ms, timer_id LIMIT $1"""
# The first row: when the next timer is due that was not taken, on the wall clock as $1. One that another node has (or
# is just about to have) is due again when that node's claim runs out.
_CLAIM_TIMERS = f"""
WITH clock AS MATERIALIZED (SELECT coalesce($3::bigint, stellwerk.now_ms()) AS now_ms),
due AS MATERIALIZED (
    SELECT timer_id FROM stellwerk.timers
    WHERE due_at_ms <= $1 AND claimed_until_ms <= (SELECT now_ms FROM clock)
    ORDER BY due_at_ms, timer_id LIMIT $2 FOR UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE stellwerk.timers SET claimed_until_ms = (SELECT now_ms FROM clock) + {_CLAIM_MS}
    WHERE timer_id = ANY (ARRAY(SELECT timer_id FROM due))
    RETURNING timer_id, instance_id, due_at_ms
)
SELECT NULL AS timer_id, NULL AS instance_id, CASE WHEN (SELECT count(*) FROM due) < $2 THEN least(
        (SELECT min(due_at_ms) FROM stellwerk.timers WHERE due_at_ms > $1),
        (SELECT min($1 + CASE WHEN claimed_until_ms > now_ms THEN claimed_until_ms - now_ms ELSE {_CLAIM_MS} END)
         FROM clock, (
            SELECT claimed_until_ms FROM stellwerk.timers
            WHERE due_at_ms <= $1 AND timer_id <> ALL (ARRAY(SELECT timer_id FROM due))
            ORDER BY due_at_ms, timer_id LIMIT 1000
        ) others)
    ) ELSE (
        SELECT due_at_ms FROM stellwerk.timers
        WHERE claimed_until_ms <= (SELECT now_ms FROM clock) AND timer_id <> ALL (ARRAY(SELECT timer_id FROM due))
        ORDER BY due_at_ms, timer_id LIMIT 1
    ) END AS due_at_ms
UNION ALL
SELECT timer_id, instance_id, due_at_ms FROM claimed"""  # noqa: S608


async def due_timers(
    connection: asyncpg.Connection, now_ms: InstantMs, limit: int
) -> tuple[list[DueTimer], InstantMs | None]:
    found = [DueTimer(*row) for row in await connection.fetch(_DUE_TIMERS, limit + 1)]
    due = [timer for timer in found[:limit] if timer.due_at_ms <= now_ms]
    return due, found[len(due)].due_at_ms if len(found) > len(due) else None


async def claim_timers(
    connection: asyncpg.Connection, now_ms: InstantMs, limit: int, lease_now_ms: InstantMs | None = None
) -> tuple[list[DueTimer], InstantMs | None]:
    """Consistency.md 22. Writes, so it needs a connection to the primary.

    :param now_ms: wall clock: what is due.
    :param lease_now_ms: the lease clock, on which claims are; None: the database's.
    """
    first, *claimed = await connection.fetch(_CLAIM_TIMERS, now_ms, limit, lease_now_ms)
    due = [DueTimer(*row) for row in claimed]
    return sorted(due, key=lambda timer: (timer.due_at_ms, timer.timer_id)), first[2]


# --- what waits for somebody ---------------------------------------------------------------------------------------


async def incidents(
    connection: asyncpg.Connection, instance_id: str | None = None, limit: int = 1000, after: str | None = None
) -> list[Mapping[str, object]]:
    found = await _page(connection, "incidents", rows.INCIDENT_COLUMNS, instance_id, limit, after)
    return [rows.incident_from_row(row) for row in found]


async def incident(connection: asyncpg.Connection, incident_id: str) -> Mapping[str, object] | None:
    row = await _by_key(connection, "incidents", rows.INCIDENT_COLUMNS, incident_id)
    return None if row is None else rows.incident_from_row(row)


# OFFSET 0: one look at the index for each, never a table of all instances beforehand.
_OF_PROCESSES = """
EXISTS (SELECT FROM stellwerk.instances i WHERE i.instance_id = listed.instance_id
    AND i.process_key = ANY({}::text[]) OFFSET 0)"""


async def user_tasks(
    connection: asyncpg.Connection,
    instance_id: str | None = None,
    limit: int = 1000,
    after: str | None = None,
    wanted: UserTaskFilter = UserTaskFilter(),
) -> list[Mapping[str, object]]:
    conditions = {
        "assignee = {}": wanted.assignee,
        "(assignee IS NOT NULL) = {}::boolean": wanted.is_assigned,
        "candidate_users::jsonb ? {}": wanted.candidate_user,
        "candidate_groups::jsonb ? {}": wanted.candidate_group,
        _OF_PROCESSES: None if wanted.process_keys is None else [*filter(findable, wanted.process_keys)],
    }
    found = await _page(connection, "user_tasks", rows.USER_TASK_COLUMNS, instance_id, limit, after, conditions)
    return [rows.user_task_from_row(row) for row in found]


async def user_task(connection: asyncpg.Connection, user_task_id: str) -> Mapping[str, object] | None:
    row = await _by_key(connection, "user_tasks", rows.USER_TASK_COLUMNS, user_task_id)
    return None if row is None else rows.user_task_from_row(row)


async def _by_key(
    connection: asyncpg.Connection, table: str, columns: Sequence[str], key: str
) -> asyncpg.Record | None:
    """The first of the columns is the key."""
    statement = f"SELECT {', '.join(columns)} FROM stellwerk.{table} WHERE {columns[0]} = $1"  # noqa: S608
    return await connection.fetchrow(statement, findable(key))


async def _page(
    connection: asyncpg.Connection,
    table: str,
    columns: Sequence[str],
    instance_id: str | None,
    limit: int,
    after: str | None,
    wanted: Mapping[str, object] = MappingProxyType({}),
) -> list[asyncpg.Record]:
    """:param wanted: conditions with a place for their values; None: not asked for."""
    parameters = Parameters()
    source = f"stellwerk.{table} listed"
    if instance_id is not None:
        # Apart, or the planner may walk along the key in the hope to meet the instance's rows soon.
        source = f"(SELECT * FROM {source} WHERE instance_id = {parameters.add(instance_id)} OFFSET 0) listed"  # noqa: S608
    conditions = [] if after is None else [f"{columns[0]} >= {parameters.add(least_after(after))}"]
    conditions += [text.format(parameters.add(value)) for text, value in wanted.items() if value is not None]
    statement = (
        f"SELECT {', '.join(columns)} FROM {source}{where(conditions)}"  # noqa: S608
        f" ORDER BY {columns[0]} LIMIT {parameters.add(limit)}"
    )
    found: list[asyncpg.Record] = await connection.fetch(statement, *parameters)
    return found


# --- the inbox -----------------------------------------------------------------------------------------------------

_INBOX = "SELECT instance_id, dedupe_key, command FROM stellwerk.inbox ORDER BY arrival LIMIT $1"


async def inbox(connection: asyncpg.Connection, limit: int) -> list[InboxRow]:
    found = await connection.fetch(_INBOX, limit)
    return [InboxRow(instance_id, dedupe_key, command.encode()) for instance_id, dedupe_key, command in found]
