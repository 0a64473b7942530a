"""A database file that an earlier version of stellwerk wrote goes on where it stopped."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stellwerk.core.changes import RowChanges
from stellwerk.ports import ApiKeyRow, DropMessages, Identity, Pruned, PruneInstances, Scope, StoreApiKey
from stellwerk.stores.sqlite import SqliteStore
from stellwerk.stores.sqlite import migrations as module
from stellwerk.stores.sqlite.migrations import known_migrations
from stellwerk.system.file_lock import FileLock
from stellwerk.system.threads import InlineRunner
from stellwerk.testing.store_contract import ManualClock, StoreWorld
from stellwerk.testing.store_contract.world import new_task


def store_at(path: Path) -> SqliteStore:
    return SqliteStore(path, runner=InlineRunner(), clock=ManualClock(), lock=FileLock(path))


def applied(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as database:
        return [row[0] for row in database.execute("SELECT number FROM schema_migrations ORDER BY number")]


async def test_a_file_of_the_first_schema_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.db"
    everything = known_migrations()
    with monkeypatch.context() as earlier_version:
        earlier_version.setattr(module, "known_migrations", lambda: everything[:1])
        store = store_at(path)
        await store.open()
        world = StoreWorld(store, ManualClock())
        await world.step("ended", RowChanges(status="COMPLETED"))
        await world.step("running", RowChanges(new_tasks=(new_task("leased"), new_task("ready"))))
        leased = await world.lease("leased")
        await store.close()
    assert applied(path) == [1]

    store = store_at(path)
    await store.open()
    assert applied(path) == [migration.number for migration in everything]
    world = StoreWorld(store, ManualClock(), {"running": 1})
    assert [task.task_id for task in await world.fetch()] == ["ready"]
    await world.commit(world.completion(leased))
    assert await world.do(PruneInstances(world.clock.wall_ms() + 1, 10), Pruned) == Pruned(1)
    assert [row.instance_id for row in await store.instances()] == ["running"]
    (backlog,) = await store.topic_backlogs()
    assert (backlog.ready, backlog.locked) == (0, 1)
    await store.close()


async def test_what_waits_in_a_file_of_the_schema_before_has_waited_since_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database, monkeypatch.context() as earlier_version:
        before = [migration for migration in known_migrations() if migration.number <= 4]
        earlier_version.setattr(module, "known_migrations", lambda: before)
        module.migrate(database, str(path))
        database.execute("INSERT INTO subscriptions VALUES ('s', 'i', 'Catch_1', 'paid', 'k')")
        database.execute("INSERT INTO start_subscriptions VALUES ('order', 'ordered', 'order:1')")
        for message_id, name in (("m1", "paid"), ("m2", "ordered"), ("m3", "unheard")):
            database.execute(
                "INSERT INTO messages (message_id, name, key, variables, published_at_ms, expires_at_ms)"
                " VALUES (?, ?, 'k', '{}', 1, 2)",
                (message_id, name),
            )
    assert applied(path) == [1, 2, 3, 4]

    store = store_at(path)
    await store.open()
    assert list(await store.transact([DropMessages(1_000)])) == [1]
    found = await store.matched_messages(1_000, 10)
    assert [(match.message.message_id, match.subscription_id, match.definition_id) for match in found] == [
        ("m1", "s", None),
        ("m2", None, "order:1"),
    ]
    await store.close()


async def test_a_file_of_the_schema_before_api_keys_gets_their_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.db"
    before = [migration for migration in known_migrations() if migration.number <= 2]
    with monkeypatch.context() as earlier_version:
        earlier_version.setattr(module, "known_migrations", lambda: before)
        store = store_at(path)
        await store.open()
        await StoreWorld(store, ManualClock()).step("running", RowChanges(new_tasks=(new_task("ready"),)))
        await store.close()
    assert applied(path) == [1, 2]

    store = store_at(path)
    await store.open()
    assert await store.has_api_keys() is False
    assert await store.task("ready") is not None
    identity = Identity(name="anna", scopes=(Scope.CLIENT,))
    row = ApiKeyRow(key_id="k", secret_digest="d", identity=identity, created_at_ms=1)
    assert list(await store.transact([StoreApiKey(row)])) == [None]
    await store.close()
    await store.open()
    assert list(await store.api_keys()) == [row]
    await store.close()
