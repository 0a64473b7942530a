"""Messages that an SQLite file keeps, and what waits for them. Each function takes the connection first."""

from __future__ import annotations

import sqlite3
from itertools import groupby
from operator import itemgetter

from stellwerk.instants import InstantMs
from stellwerk.ports import KeptMessage, MatchedMessage
from stellwerk.stores import rows

__all__ = ["awaited_names", "matched_messages", "message", "waiting_messages"]

_KEPT = """
SELECT message_id, name, key, published_at_ms, expires_at_ms, is_consumed,
    CASE WHEN instance_id IS NULL THEN
        EXISTS (SELECT 1 FROM subscriptions s WHERE s.name = messages.name AND s.key = messages.key)
        OR EXISTS (SELECT 1 FROM start_subscriptions t WHERE t.name = messages.name)
    ELSE EXISTS (
        SELECT 1 FROM subscriptions s WHERE s.instance_id = messages.instance_id AND s.name = messages.name
            AND messages.key IN ('', s.key))
    END, instance_id
FROM messages"""
# Both parts walk along their indexes, and are merged as they are read: who wants a few need not read them all.
_MESSAGE_COLUMNS = ", ".join(f"m.{column}" for column in rows.MESSAGE_COLUMNS)
_MATCHES = f"""
SELECT {_MESSAGE_COLUMNS}, s.subscription_id, s.instance_id,
    (SELECT definition_id FROM start_subscriptions t WHERE t.name = m.name ORDER BY t.process_key LIMIT 1) AS starts
FROM messages m LEFT JOIN subscriptions s ON s.name = m.name AND s.key = m.key
WHERE m.is_consumed = 0 AND m.instance_id IS NULL AND m.expires_at_ms > ?1
    AND (s.subscription_id IS NOT NULL OR starts IS NOT NULL)
UNION ALL
SELECT {_MESSAGE_COLUMNS}, s.subscription_id, s.instance_id, NULL
FROM messages m CROSS JOIN subscriptions s ON s.instance_id = m.instance_id AND s.name = m.name AND m.key IN ('', s.key)
WHERE m.is_consumed = 0 AND m.instance_id IS NOT NULL AND m.expires_at_ms > ?1
ORDER BY m.published_at_ms, m.message_id, s.subscription_id"""  # noqa: S608 -- constants
_SUBSCRIPTION, _INSTANCE, _STARTS = (len(rows.MESSAGE_COLUMNS) + n for n in range(3))
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


def matched_messages(connection: sqlite3.Connection, now_ms: InstantMs, limit: int) -> list[MatchedMessage]:
    """Each message with the first subscription that no older message takes, else with what it starts."""
    matched: list[MatchedMessage] = []
    taken: set[str] = set()
    for _, group in groupby(connection.execute(_MATCHES, (now_ms,)), key=itemgetter(0)):
        if len(matched) == limit:
            break
        candidates = list(group)
        message = rows.message_from_row(candidates[0][:_SUBSCRIPTION])
        waiting = (row for row in candidates if row[_SUBSCRIPTION] is not None)
        free = next((row for row in waiting if row[_SUBSCRIPTION] not in taken), None)
        if free is not None:
            taken.add(free[_SUBSCRIPTION])
            matched.append(MatchedMessage(message, free[_INSTANCE], free[_SUBSCRIPTION], None))
        elif candidates[0][_STARTS] is not None:
            matched.append(MatchedMessage(message, None, None, candidates[0][_STARTS]))
    return matched


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
        instance_id=row[7],
    )


def awaited_names(connection: sqlite3.Connection, limit: int) -> list[str]:
    """Sorted."""
    return [name for (name,) in connection.execute(_AWAITED_NAMES, (limit,)).fetchall()]
