"""Deleting what belongs to instances that ended long ago, in small steps: several nodes may do so at once."""

from __future__ import annotations

import asyncpg

from stellwerk.instants import InstantMs
from stellwerk.stores.tables import DataFault

__all__ = ["prune"]

# An instance that somebody works on, or prunes, is for another time. COALESCE hides the status from a planner that has
# no statistics yet, takes those three for rare, and sorts the whole table.
_LOCK_ENDED = """
SELECT instance_id FROM stellwerk.instances
WHERE ended_at_ms IS NOT NULL AND ended_at_ms < $1
    AND coalesce(status IN ('COMPLETED', 'FAILED', 'CANCELLED'), false)
ORDER BY ended_at_ms, instance_id LIMIT $2 FOR UPDATE SKIP LOCKED"""
# One instance after the other is counted, as long as those before it are not enough rows.
_CHOOSE = """
WITH RECURSIVE chosen (place, instance_id, row_count) AS (
    SELECT 0, NULL::text, 0::bigint
    UNION ALL
    SELECT place + 1, candidate.instance_id, row_count
        + (SELECT count(*) FROM stellwerk.history h WHERE h.instance_id = candidate.instance_id)
        + (SELECT count(*) FROM stellwerk.external_tasks t WHERE t.process_instance = candidate.instance_id)
        + (SELECT count(*) FROM stellwerk.external_tasks t
            CROSS JOIN LATERAL (SELECT FROM stellwerk.task_attempts a WHERE a.task_id = t.task_id OFFSET 0) attempts
            WHERE t.process_instance = candidate.instance_id)
    FROM chosen CROSS JOIN LATERAL (SELECT ($1::text[])[place + 1] AS instance_id) candidate
    WHERE row_count < $2 AND place < cardinality($1::text[])
)
SELECT instance_id FROM chosen WHERE instance_id IS NOT NULL"""
# Here and below: without statistics, a planner that sees how many ids there are would read the whole table. So they
# come out of a subquery. Tasks are locked in the order of their ids, as everybody does.
_LOCK_TASKS = """
SELECT task_id FROM stellwerk.external_tasks WHERE process_instance = ANY (ARRAY(SELECT unnest($1::text[])))
ORDER BY task_id FOR UPDATE"""
_DELETE = """
WITH ended_attempts AS (DELETE FROM stellwerk.task_attempts WHERE task_id = ANY (ARRAY(SELECT unnest($2::text[])))),
ended_tasks AS (DELETE FROM stellwerk.external_tasks WHERE task_id = ANY (ARRAY(SELECT unnest($2::text[])))),
ended_history AS (DELETE FROM stellwerk.history WHERE instance_id = ANY (ARRAY(SELECT unnest($1::text[])))),
ended_snapshots AS (DELETE FROM stellwerk.snapshots WHERE instance_id = ANY (ARRAY(SELECT unnest($1::text[])))),
ended_timers AS (DELETE FROM stellwerk.timers WHERE instance_id = ANY (ARRAY(SELECT unnest($1::text[])))),
ended_subscriptions AS (DELETE FROM stellwerk.subscriptions WHERE instance_id = ANY (ARRAY(SELECT unnest($1::text[])))),
ended_user_tasks AS (DELETE FROM stellwerk.user_tasks WHERE instance_id = ANY (ARRAY(SELECT unnest($1::text[])))),
ended_incidents AS (DELETE FROM stellwerk.incidents WHERE instance_id = ANY (ARRAY(SELECT unnest($1::text[])))),
ended_inbox AS (DELETE FROM stellwerk.inbox WHERE instance_id = ANY (ARRAY(SELECT unnest($1::text[]))))
DELETE FROM stellwerk.instances WHERE instance_id = ANY (ARRAY(SELECT unnest($1::text[])))"""


async def prune(connection: asyncpg.Connection, ended_before_ms: InstantMs, limit: int, rows_max: int) -> int:
    """Delete the longest ended instances, and all rows that are their own. → how many instances.

    :param limit: at most so many instances.
    :param rows_max: after so many rows of history, tasks and attempts it is enough.
    :raises DataFault: a limit below one.
    """
    if limit < 1:
        raise DataFault(f"a slice of {limit} instances cannot be pruned")
    async with connection.transaction():
        # A statement sees what was committed before it began. All that others wrote to an instance or a task is there
        # once its row is locked: the statement that locks may miss some of that, the next one does not.
        ended = [row[0] for row in await connection.fetch(_LOCK_ENDED, ended_before_ms, min(limit, rows_max))]
        if not ended:
            return 0
        chosen = [row[0] for row in await connection.fetch(_CHOOSE, ended, rows_max)]
        task_ids = [row[0] for row in await connection.fetch(_LOCK_TASKS, chosen)]
        await connection.execute(_DELETE, chosen, task_ids)
    return len(chosen)
