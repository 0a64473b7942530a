"""Messages that PostgreSQL keeps, and what waits for them. Each function takes the connection first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import asyncpg

from stellwerk.instants import INSTANT_MS_MAX, InstantMs
from stellwerk.ports import KeptMessage, MatchedMessage
from stellwerk.stores import rows
from stellwerk.stores.postgres.parameters import findable, least_after

__all__ = ["IS_AWAITED", "awaited_names", "matched_messages", "message", "receivers", "waiting_messages"]

IS_AWAITED = """
    CASE WHEN m.instance_id IS NULL THEN
        coalesce((
            SELECT opened_at_ms FROM stellwerk.subscriptions s
            WHERE s.name = m.name AND s.key = m.key ORDER BY opened_at_ms LIMIT 1) < m.expires_at_ms, false)
        OR EXISTS (
            SELECT FROM stellwerk.start_subscriptions t
            WHERE t.name = m.name AND t.opened_at_ms < m.expires_at_ms OFFSET 0)
    ELSE EXISTS (
        SELECT FROM stellwerk.subscriptions s
        WHERE s.instance_id = m.instance_id AND s.opened_at_ms < m.expires_at_ms
            AND s.name = m.name AND m.key IN ('', s.key) OFFSET 0)
    END"""
"""Of a message ``m``: by somebody who did so before its time to live ended.

LIMIT and OFFSET 0: one look at the index for each message, never a table of all subscriptions beforehand. That one was
opened in time is asked of the first of them: with it as a condition the planner hopes to find one soon in the table.
"""
_KEPT = f"""
SELECT message_id, name, key, published_at_ms, expires_at_ms, is_consumed, {IS_AWAITED}, instance_id
FROM stellwerk.messages m"""  # noqa: S608 -- constants
_WAITING = f"""{_KEPT}
WHERE NOT is_consumed AND (expires_at_ms > $1 OR {IS_AWAITED}) AND message_id >= $2 ORDER BY message_id LIMIT $3"""
# Whoever waits before this instant can take it, however late: as long as it lives, everybody.
_UNTIL = f"CASE WHEN m.expires_at_ms > $1 THEN {INSTANT_MS_MAX} ELSE m.expires_at_ms END"
# The first message for a name and key goes to the first subscription, the second to the second, by arrival and by when
# they were opened: two lists laid side by side, since a join of the two is a gamble with statistics that are a minute
# old. One that is too late for the subscription beside it waits for the next look, when others have left the lists.
_MATCHED_MESSAGES = f"""
WITH awaited AS MATERIALIZED (
    SELECT message_id, name, key, published_at_ms, {_UNTIL} AS until_ms FROM stellwerk.messages m
    WHERE NOT is_consumed AND m.instance_id IS NULL AND (
        (
            SELECT opened_at_ms FROM stellwerk.subscriptions s
            WHERE s.name = m.name AND s.key = m.key ORDER BY opened_at_ms LIMIT 1) < {_UNTIL}
        OR EXISTS (
            SELECT FROM stellwerk.start_subscriptions t WHERE t.name = m.name AND t.opened_at_ms < {_UNTIL} OFFSET 0))
    ORDER BY published_at_ms, message_id LIMIT $3
),
listed AS MATERIALIZED (
    SELECT name, key, count(*) AS messages,
        array_agg(message_id ORDER BY published_at_ms, message_id) AS message_ids,
        array_agg(published_at_ms ORDER BY published_at_ms, message_id) AS instants,
        array_agg(until_ms ORDER BY published_at_ms, message_id) AS untils
    FROM awaited GROUP BY name, key
),
paired AS (
    SELECT pair.message_id, pair.published_at_ms, fitting.subscription_id, fitting.instance_id, starting.definition_id
    FROM listed
    CROSS JOIN LATERAL (
        SELECT array_agg(subscription_id ORDER BY opened_at_ms, subscription_id) AS subscription_ids,
            array_agg(instance_id ORDER BY opened_at_ms, subscription_id) AS instance_ids,
            array_agg(opened_at_ms ORDER BY opened_at_ms, subscription_id) AS openings
        FROM (
            SELECT subscription_id, instance_id, opened_at_ms FROM stellwerk.subscriptions s
            WHERE s.name = listed.name AND s.key = listed.key
            ORDER BY opened_at_ms, subscription_id LIMIT least(listed.messages, $2)
        ) first
    ) waiting
    CROSS JOIN LATERAL unnest(message_ids, instants, untils, subscription_ids, instance_ids, openings)
        AS pair (message_id, published_at_ms, until_ms, subscription_id, instance_id, opened_at_ms)
    LEFT JOIN LATERAL (
        SELECT pair.subscription_id, pair.instance_id WHERE pair.opened_at_ms < pair.until_ms
    ) fitting ON true
    LEFT JOIN LATERAL (
        SELECT definition_id FROM stellwerk.start_subscriptions t
        WHERE t.name = listed.name AND t.opened_at_ms < pair.until_ms ORDER BY process_key LIMIT 1
    ) starting ON fitting.subscription_id IS NULL
    WHERE fitting.subscription_id IS NOT NULL OR starting.definition_id IS NOT NULL
    ORDER BY pair.published_at_ms, pair.message_id LIMIT $2
),
addressed AS MATERIALIZED (
    SELECT message_id, published_at_ms, instance_id, name, key, until_ms, row_number() OVER (
        PARTITION BY instance_id, name, key ORDER BY published_at_ms, message_id) AS place
    FROM (
        SELECT m.*, {_UNTIL} AS until_ms FROM stellwerk.messages m WHERE NOT is_consumed AND instance_id IS NOT NULL
    ) m
    WHERE EXISTS (
        SELECT FROM stellwerk.subscriptions s
        WHERE s.instance_id = m.instance_id AND s.opened_at_ms < m.until_ms
            AND s.name = m.name AND m.key IN ('', s.key) OFFSET 0)
),
delivered AS (
    SELECT message_id, published_at_ms, subscription_id, addressed.instance_id, NULL AS definition_id
    FROM addressed CROSS JOIN LATERAL (
        SELECT subscription_id FROM stellwerk.subscriptions s
        WHERE s.instance_id = addressed.instance_id AND s.opened_at_ms < addressed.until_ms
            AND s.name = addressed.name AND addressed.key IN ('', s.key)
        ORDER BY opened_at_ms, subscription_id LIMIT 1 OFFSET addressed.place - 1
    ) waiting
    ORDER BY published_at_ms, message_id LIMIT $2
),
matched AS (
    SELECT message_id, published_at_ms, subscription_id, instance_id, definition_id FROM paired
    UNION ALL SELECT * FROM delivered
)
SELECT {", ".join(f"m.{column}" for column in rows.MESSAGE_COLUMNS)},
    matched.instance_id, subscription_id, CASE WHEN subscription_id IS NULL THEN definition_id END, is_cut
FROM (SELECT count(*) = $3 AS is_cut FROM awaited) counted
LEFT JOIN (
    matched CROSS JOIN LATERAL (SELECT * FROM stellwerk.messages m WHERE m.message_id = matched.message_id OFFSET 0) m
) ON true
ORDER BY matched.published_at_ms, matched.message_id"""  # noqa: S608 -- constants
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
_RECEIVERS = """
SELECT instance_id, key FROM stellwerk.subscriptions WHERE name = $1
ORDER BY key, opened_at_ms, subscription_id LIMIT $2"""


async def matched_messages(connection: asyncpg.Connection, now_ms: InstantMs, limit: int) -> list[MatchedMessage]:
    """Each message with the first subscription that no older message takes, else with what it starts."""
    # Of a great many that wait, the oldest are nearly always enough.
    found, is_cut = await _matched_of_oldest(connection, now_ms, limit, 2 * limit)
    if is_cut and len(found) < limit:
        found, _ = await _matched_of_oldest(connection, now_ms, limit, None)
    return found


async def _matched_of_oldest(
    connection: asyncpg.Connection, now_ms: InstantMs, limit: int, oldest: int | None
) -> tuple[list[MatchedMessage], bool]:
    """Among so many that something waits for (None: all), and whether there may be more of them."""
    found = await connection.fetch(_MATCHED_MESSAGES, now_ms, limit, oldest)
    width = len(rows.MESSAGE_COLUMNS)
    matches = [
        MatchedMessage(rows.message_from_row(row[:width]), *row[width : width + 3])
        for row in found
        if row[0] is not None
    ]
    return list(_once_each(matches))[:limit], bool(found[0][width + 3])


def _once_each(matches: Iterable[MatchedMessage]) -> Iterator[MatchedMessage]:
    """Without those whose subscription an older message takes that was addressed in another way: they wait for the next
    look, which follows as soon as that one has reached it."""
    taken: set[str] = set()
    for match in matches:
        if match.subscription_id is None:
            yield match
        elif match.subscription_id not in taken:
            taken.add(match.subscription_id)
            yield match


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
        instance_id=row[7],
    )


async def awaited_names(connection: asyncpg.Connection, limit: int) -> list[str]:
    """Sorted."""
    return [row[0] for row in await connection.fetch(_AWAITED_NAMES, limit)]


async def receivers(connection: asyncpg.Connection, name: str, limit: int) -> list[tuple[str, str]]:
    """By key and since when they wait."""
    return [(row[0], row[1]) for row in await connection.fetch(_RECEIVERS, name, limit)]
