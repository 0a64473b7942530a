"""A database that an earlier version of stellwerk wrote goes on where it stopped."""

from __future__ import annotations

from typing import Any

import structlog

from stellwerk.ports import ApiKeyRow, DropMessages, Identity, Scope, StoreApiKey
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.migrations import known_migrations, migrate
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.system.entropy import SystemEntropy
from stellwerk.testing.databases import PostgresAccess
from stellwerk.testing.store_contract import DictatedLeaseClock, ManualClock, StoreWorld
from stellwerk.testing.store_contract.world import START_MS

_RELEASED = 2
"""The schema of the first release on PostgreSQL."""
_WRITTEN_BY_THAT_RELEASE = (
    f"""
INSERT INTO stellwerk.instances
    (instance_id, definition_id, process_key, business_key, status, version, started_at_ms, ended_at_ms)
VALUES ('running', 'order:1', 'order', 'A-17', 'RUNNING', 1, {START_MS}, NULL)""",
    f"INSERT INTO stellwerk.history (instance_id, version, at_ms, facts) VALUES ('running', 1, {START_MS}, '[]')",
    f"""
INSERT INTO stellwerk.external_tasks
    (task_id, process_instance, token_id, activity_id, element_id, definition_id, task_type, priority, created_at,
     retries_total, retry_backoffs_ms, lock_expiries_max, single_try, variables, headers, updated_at, available_at,
     state, retries, attempt, lock_expiries, draining, fence)
VALUES ('ready', 'running', 'token', 'activity', 'Task_1', 'order:1', 'payment', 0, {START_MS}, 3, '[]', 10, false,
    '{{"order":1}}', '{{}}', {START_MS}, {START_MS}, 'READY', 3, 0, 0, false, 0)""",
)


async def _migrate(link: Any, number_max: int) -> None:
    known = [migration for migration in known_migrations() if migration.number <= number_max]
    await link.write(lambda connection: migrate(connection, link.connections.where, known))


def _applied(server: PostgresAccess, dsn: str) -> list[int]:
    found = server.query("SELECT number FROM stellwerk.schema_migrations ORDER BY number", dsn=dsn)
    return [row["number"] for row in found]


async def test_a_database_of_the_released_schema_is_brought_up_to_date(
    postgres_server: PostgresAccess, open_link: Any, empty_dsn: str
) -> None:
    link = await open_link(empty_dsn)
    await _migrate(link, _RELEASED)
    for statement in _WRITTEN_BY_THAT_RELEASE:
        await link.written(statement)
    assert _applied(postgres_server, empty_dsn) == [1, 2]

    clock = ManualClock()
    store = PostgresStore(
        PostgresConfig(dsn=empty_dsn),
        clock=clock,
        entropy=SystemEntropy(),
        log=structlog.get_logger(),
        node_id="upgrade",
        lease_clock=DictatedLeaseClock(clock),
    )
    await store.open()
    assert _applied(postgres_server, empty_dsn) == [migration.number for migration in known_migrations()]
    world = StoreWorld(store, clock, {"running": 1})
    (task,) = await world.fetch()
    await world.commit(world.completion(task))
    assert await world.state("ready") == "COMPLETED"
    assert await store.has_api_keys() is False
    identity = Identity(name="anna", scopes=(Scope.CLIENT,))
    row = ApiKeyRow(key_id="k", secret_digest="d", identity=identity, created_at_ms=START_MS)
    assert await world.transact(StoreApiKey(row)) == [None]
    assert await store.api_key("k") == row
    await store.close()


async def test_nodes_of_the_release_go_on_beside_the_table_of_api_keys(
    postgres_server: PostgresAccess, open_link: Any, empty_dsn: str
) -> None:
    newer, older = await open_link(empty_dsn), await open_link(empty_dsn)
    await _migrate(newer, _RELEASED + 1)
    await _migrate(older, _RELEASED)
    assert _applied(postgres_server, empty_dsn) == [1, 2, 3]


async def test_what_waits_in_a_database_of_the_schema_before_has_waited_since_ever(
    postgres_server: PostgresAccess, open_link: Any, empty_dsn: str
) -> None:
    link = await open_link(empty_dsn)
    await _migrate(link, 4)
    opened = "INSERT INTO stellwerk.subscriptions (subscription_id, instance_id, element_id, name, key) VALUES "
    await link.written(f"{opened} ('s', 'i', 'Catch_1', 'paid', 'k')")
    await link.written("INSERT INTO stellwerk.start_subscriptions VALUES ('order', 'ordered', 'order:1')")
    published = (
        "INSERT INTO stellwerk.messages (message_id, name, key, variables, published_at_ms, expires_at_ms)"
        " SELECT id, name, 'k', '{}', 1, 2 FROM unnest($1::text[], $2::text[]) AS m (id, name)"
    )
    await link.written(published, ["m1", "m2", "m3"], ["paid", "ordered", "unheard"])
    await _migrate(link, 5)
    await _migrate(await open_link(empty_dsn), 4)  # a node of the version before goes on, and opens others
    await link.written(f"{opened} ('later', 'j', 'Catch_1', 'paid', 'k')")

    clock = ManualClock()
    store = PostgresStore(
        PostgresConfig(dsn=empty_dsn),
        clock=clock,
        entropy=SystemEntropy(),
        log=structlog.get_logger(),
        node_id="upgrade",
    )
    await store.open()
    assert list(await store.transact([DropMessages(1_000)])) == [1]
    found = await store.matched_messages(1_000, 10)
    assert [(match.message.message_id, match.subscription_id, match.definition_id) for match in found] == [
        ("m1", "s", None),
        ("m2", None, "order:1"),
    ]
    await store.close()
    openings = "SELECT subscription_id, opened_at_ms <= stellwerk.now_ms() AND opened_at_ms > 1000 AS is_now"
    rows = postgres_server.query(f"{openings} FROM stellwerk.subscriptions ORDER BY 1", dsn=empty_dsn)
    assert [(row["subscription_id"], row["is_now"]) for row in rows] == [("later", True), ("s", False)]
