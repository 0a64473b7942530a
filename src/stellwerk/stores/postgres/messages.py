"""What PostgreSQL tells about messages that are kept. Each function takes the connection first."""

from __future__ import annotations

import asyncpg

from stellwerk.instants import InstantMs
from stellwerk.ports import KeptMessage
from stellwerk.stores import rows
from stellwerk.stores.postgres.parameters import findable, least_after

__all__ = ["awaited_names", "message", "waiting_messages"]

# OFFSET 0: one look at the index for each message, never a table of all subscriptions beforehand.
_KEPT = """
SELECT message_id, name, key, published_at_ms, expires_at_ms, is_consumed,
    EXISTS (SELECT FROM stellwerk.subscriptions s WHERE s.name = m.name AND s.key = m.key OFFSET 0)
    OR EXISTS (SELECT FROM stellwerk.start_subscriptions t WHERE t.name = m.name OFFSET 0)
FROM stellwerk.messages m"""
_WAITING = f"""{_KEPT}
WHERE NOT is_consumed AND expires_at_ms > $1 AND message_id >= $2 ORDER BY message_id LIMIT $3"""
# One step along the index for each name: many instances wait for messages of a few names.
_AWAITED_NAMES = """
WITH RECURSIVE waiting (name, place) AS (
    SELECT min(name), 1::bigint FROM stellwerk.subscriptions
    UNION ALL
    SELECT (SELECT min(name) FROM stellwerk.subscriptions s WHERE s.name > waiting.name), place + 1
    FROM waiting WHERE name IS NOT NULL AND place < $1
)
SELECT name FROM waiting WHERE name IS NOT NULL
UNION
SELECT name FROM stellwerk.start_subscriptions
ORDER BY name LIMIT $1"""


async def message(connection: asyncpg.Connection, message_id: str) -> KeptMessage | None:
    row = await connection.fetchrow(f"{_KEPT} WHERE message_id = $1", findable(message_id))
    return None if row is None else _kept(row)


async def waiting_messages(
    connection: asyncpg.Connection, now_ms: InstantMs, limit: int, after: str | None
) -> list[KeptMessage]:
    """By id."""
    first = "" if after is None else least_after(after)
    return [_kept(row) for row in await connection.fetch(_WAITING, now_ms, first, limit)]


def _kept(row: rows.SqlRow) -> KeptMessage:
    return KeptMessage(
        message_id=row[0],
        name=row[1],
        key=row[2],
        published_at_ms=row[3],
        expires_at_ms=row[4],
        is_correlated=row[5],
        is_awaited=row[6],
    )


async def awaited_names(connection: asyncpg.Connection, limit: int) -> list[str]:
    """Sorted."""
    return [row[0] for row in await connection.fetch(_AWAITED_NAMES, limit)]
