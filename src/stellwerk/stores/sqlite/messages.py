"""Messages that an SQLite file keeps, and what waits for them. Each function takes the connection first."""

from __future__ import annotations

import sqlite3
from itertools import groupby
from operator import itemgetter

from stellwerk.instants import INSTANT_MS_MAX, InstantMs
from stellwerk.json_values import dumps
from stellwerk.ports import KeptMessage, MatchedMessage
from stellwerk.stores import rows

__all__ = ["awaited_names", "drop_messages", "matched_messages", "message", "receivers", "waiting_messages"]

# By somebody who did so before its time to live ended.
_IS_AWAITED = """
    CASE WHEN m.instance_id IS NULL THEN
        EXISTS (
            SELECT 1 FROM subscriptions s
            WHERE s.name = m.name AND s.key = m.key AND s.opened_at_ms < m.expires_at_ms)
        OR EXISTS (SELECT 1 FROM start_subscriptions t WHERE t.name = m.name AND t.opened_at_ms < m.expires_at_ms)
    ELSE EXISTS (
        SELECT 1 FROM subscriptions s WHERE s.instance_id = m.instance_id AND s.opened_at_ms < m.expires_at_ms
            AND s.name = m.name AND m.key IN ('', s.key))
    END"""
_KEPT = f"""
SELECT message_id, name, key, published_at_ms, expires_at_ms, is_consumed, {_IS_AWAITED} AS is_awaited, instance_id
FROM messages m"""  # noqa: S608 -- constants, here and below
_ENDED = "FROM messages AS m WHERE expires_at_ms <= ?1"
_DROP = f"""
DELETE {_ENDED} AND (is_consumed = 1 OR message_id IN (SELECT value FROM json_each(?2)) OR NOT {_IS_AWAITED})"""  # noqa: S608
# Whoever waits before this instant can take it, however late: as long as it lives, everybody.
_UNTIL = f"CASE WHEN m.expires_at_ms > ?1 THEN {INSTANT_MS_MAX} ELSE m.expires_at_ms END"
# Both parts walk along their indexes, and are merged as they are read: who wants a few need not read them all.
_MESSAGE_COLUMNS = ", ".join(f"m.{column}" for column in rows.MESSAGE_COLUMNS)
_MATCHES = f"""
SELECT {_MESSAGE_COLUMNS}, s.subscription_id, s.instance_id,
    (SELECT definition_id FROM start_subscriptions t WHERE t.name = m.name AND t.opened_at_ms < {_UNTIL}
        ORDER BY t.process_key LIMIT 1) AS starts, s.opened_at_ms
FROM messages m LEFT JOIN subscriptions s ON s.name = m.name AND s.key = m.key AND s.opened_at_ms < {_UNTIL}
WHERE m.is_consumed = 0 AND m.instance_id IS NULL
    AND (s.subscription_id IS NOT NULL OR starts IS NOT NULL)
UNION ALL
SELECT {_MESSAGE_COLUMNS}, s.subscription_id, s.instance_id, NULL, s.opened_at_ms
FROM messages m CROSS JOIN subscriptions s ON s.instance_id = m.instance_id AND s.opened_at_ms < {_UNTIL}
    AND s.name = m.name AND m.key IN ('', s.key)
WHERE m.is_consumed = 0 AND m.instance_id IS NOT NULL
ORDER BY m.published_at_ms, m.message_id, s.opened_at_ms, s.subscription_id"""  # noqa: S608 -- constants
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
_RECEIVERS = """
SELECT instance_id, key FROM subscriptions WHERE name = ? ORDER BY key, opened_at_ms, subscription_id LIMIT ?"""


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


def drop_messages(connection: sqlite3.Connection, now_ms: InstantMs, given_up: tuple[str, ...]) -> tuple[int, int]:
    """See `DropMessages`. → how many, and how many of them still waited."""
    (before,) = connection.execute(f"SELECT count(*) {_ENDED} AND is_consumed = 0", (now_ms,)).fetchone()
    dropped = connection.execute(_DROP, (now_ms, dumps(list(given_up)).decode())).rowcount
    (after,) = connection.execute(f"SELECT count(*) {_ENDED} AND is_consumed = 0", (now_ms,)).fetchone()
    return dropped, before - after


def message(connection: sqlite3.Connection, message_id: str) -> KeptMessage | None:
    row = connection.execute(f"{_KEPT} WHERE message_id = ?", (message_id,)).fetchone()
    return None if row is None else _kept(row)


def waiting_messages(
    connection: sqlite3.Connection, now_ms: InstantMs, limit: int, after: str | None
) -> list[KeptMessage]:
    """By id."""
    statement = f"""{_KEPT}
WHERE is_consumed = 0 AND (expires_at_ms > ? OR is_awaited) AND message_id > ? ORDER BY message_id LIMIT ?"""
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


def receivers(connection: sqlite3.Connection, name: str, limit: int) -> list[tuple[str, str]]:
    """By key and since when they wait."""
    return connection.execute(_RECEIVERS, (name, limit)).fetchall()
