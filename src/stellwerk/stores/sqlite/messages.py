"""What an SQLite file tells about messages that are kept. Each function takes the connection first."""

from __future__ import annotations

import sqlite3

from stellwerk.instants import InstantMs
from stellwerk.ports import KeptMessage
from stellwerk.stores import rows

__all__ = ["awaited_names", "message", "waiting_messages"]

_KEPT = """
SELECT message_id, name, key, published_at_ms, expires_at_ms, is_consumed,
    EXISTS (SELECT 1 FROM subscriptions s WHERE s.name = messages.name AND s.key = messages.key)
    OR EXISTS (SELECT 1 FROM start_subscriptions t WHERE t.name = messages.name)
FROM messages"""
# One step along the index for each name: many instances wait for messages of a few names.
_AWAITED_NAMES = """
WITH RECURSIVE
    waiting (name) AS (
        SELECT min(name) FROM subscriptions
        UNION ALL
        SELECT (SELECT min(name) FROM subscriptions WHERE name > waiting.name) FROM waiting WHERE name IS NOT NULL
        LIMIT ?1 + 1
    )
SELECT name FROM waiting WHERE name IS NOT NULL
UNION
SELECT name FROM start_subscriptions
ORDER BY name LIMIT ?1"""


def message(connection: sqlite3.Connection, message_id: str) -> KeptMessage | None:
    row = connection.execute(f"{_KEPT} WHERE message_id = ?", (message_id,)).fetchone()
    return None if row is None else _kept(row)


def waiting_messages(
    connection: sqlite3.Connection, now_ms: InstantMs, limit: int, after: str | None
) -> list[KeptMessage]:
    """By id."""
    statement = f"{_KEPT} WHERE is_consumed = 0 AND expires_at_ms > ? AND message_id > ? ORDER BY message_id LIMIT ?"
    return [_kept(row) for row in connection.execute(statement, (now_ms, after or "", limit)).fetchall()]


def _kept(row: rows.SqlRow) -> KeptMessage:
    return KeptMessage(
        message_id=row[0],
        name=row[1],
        key=row[2],
        published_at_ms=row[3],
        expires_at_ms=row[4],
        is_correlated=bool(row[5]),
        is_awaited=bool(row[6]),
    )


def awaited_names(connection: sqlite3.Connection, limit: int) -> list[str]:
    """Sorted."""
    return [name for (name,) in connection.execute(_AWAITED_NAMES, (limit,)).fetchall()]
