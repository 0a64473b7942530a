"""The schema's migrations: several nodes at once, older and newer ones side by side, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest
import trio

from stellwerk.errors import StoreUnavailable
from stellwerk.stores.postgres import migrations
from stellwerk.stores.postgres.faults import unavailable
from stellwerk.stores.postgres.migrations import Migration, known_migrations, migrate
from stellwerk.testing.databases import PostgresServer

FIRST = Migration(1, "first", "CREATE TABLE stellwerk.things (name text);")
SECOND = Migration(2, "second", "CREATE INDEX things_by_name ON stellwerk.things (name);")
EXPANDING = Migration(2, "second", "-- readable from 1\nALTER TABLE stellwerk.things ADD COLUMN size bigint;")
BROKEN = Migration(2, "second", "CREATE TABLE stellwerk.more (name text); SELECT * FROM nothing_of_this_name;")


async def _migrate(link: Any, known: Sequence[Migration] | None = None) -> None:
    await link.write(lambda connection: migrate(connection, link.connections.where, known))


async def _applied(link: Any) -> list[int]:
    rows = await link.read(lambda connection: connection.fetch("SELECT number FROM stellwerk.schema_migrations"))
    return sorted(row["number"] for row in rows)


async def test_several_nodes_start_at_once_on_an_empty_database(open_link: Any, empty_dsn: str) -> None:
    links = [await open_link(empty_dsn) for _ in range(6)]
    async with trio.open_nursery() as nursery:
        for link in links:
            nursery.start_soon(_migrate, link)
    assert await _applied(links[0]) == [migration.number for migration in known_migrations()]


async def test_a_migrated_database_is_left_alone(open_link: Any, postgres_dsn: str) -> None:
    link = await open_link(postgres_dsn)
    before = await link.value("SELECT max(applied_at) FROM stellwerk.schema_migrations")
    await _migrate(link)
    assert await link.value("SELECT max(applied_at) FROM stellwerk.schema_migrations") == before


async def test_a_start_that_finds_nothing_to_do_does_not_wait_for_the_lock(open_link: Any, postgres_dsn: str) -> None:
    other = await open_link(postgres_dsn)
    link = await open_link(postgres_dsn)
    locks = "SELECT pg_advisory_lock(x'7374656C6C776572'::bit(64)::bigint)"
    await other.written(locks)
    with trio.fail_after(3):
        await _migrate(link)


async def test_what_is_new_is_added(open_link: Any, empty_dsn: str) -> None:
    link = await open_link(empty_dsn)
    await _migrate(link, [FIRST])
    await link.written("INSERT INTO stellwerk.things VALUES ('kept')")
    await _migrate(link, [FIRST, EXPANDING])
    assert await _applied(link) == [1, 2]
    assert await link.value("SELECT name FROM stellwerk.things WHERE size IS NULL") == "kept"


async def test_an_older_node_works_on_a_newer_schema_that_it_can_read(open_link: Any, empty_dsn: str) -> None:
    newer, older = await open_link(empty_dsn), await open_link(empty_dsn)
    await _migrate(newer, [FIRST, EXPANDING])
    await _migrate(older, [FIRST])
    assert await _applied(older) == [1, 2]


async def test_an_older_node_refuses_a_newer_schema_that_it_cannot_read(open_link: Any, empty_dsn: str) -> None:
    newer, older = await open_link(empty_dsn), await open_link(empty_dsn)
    await _migrate(newer, [FIRST, SECOND])
    with pytest.raises(StoreUnavailable, match=r"stellwerk_.*later version.*readable from 2, this version knows 1"):
        await _migrate(older, [FIRST])


async def test_one_migration_that_cannot_be_read_counts_whatever_came_after(open_link: Any, empty_dsn: str) -> None:
    newer, older = await open_link(empty_dsn), await open_link(empty_dsn)
    third = Migration(3, "third", "-- readable from 1\nCREATE TABLE stellwerk.others (name text);")
    await _migrate(newer, [FIRST, SECOND, third])
    with pytest.raises(StoreUnavailable, match="readable from 2"):
        await _migrate(older, [FIRST])


async def test_nodes_at_work_are_not_held_up_by_one_that_waits_for_a_table(
    open_link: Any, open_session: Any, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup reads the tables: whoever waits for it must let the others pass now and then."""
    monkeypatch.setattr(migrations, "_LOCK_SECONDS_MAX", 1)
    monkeypatch.setattr(migrations, "_PAUSE_SECONDS", 0.2)
    link, worker = await open_link(empty_dsn), await open_link(empty_dsn)
    await _migrate(link, [FIRST])
    backup = await open_session(worker)
    await backup.hold("SELECT * FROM stellwerk.things")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_migrate, link, [FIRST, EXPANDING])
        while await worker.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NOT NULL") == 0:
            await trio.sleep(0.01)
        with trio.fail_after(3):
            await worker.written("INSERT INTO stellwerk.things VALUES ('work goes on')")
        assert await _applied(worker) == [1]
        await backup.release()
    assert await _applied(link) == [1, 2]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_hold_all_text_is_refused(
    open_link: Any, postgres_server: Any, empty_dsn: str, encoding: str
) -> None:
    name = f"in_{encoding.lower()}"
    postgres_server.query(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        link = await open_link(postgres_server.dsn(name))
        with pytest.raises(StoreUnavailable, match=f"has the encoding {encoding}.*createdb --encoding=UTF8"):
            await _migrate(link)
        await link.bridge.run(link.connections.close)
    finally:
        postgres_server.drop_database(name)


@pytest.mark.parametrize(
    "foreign",
    ["CREATE TABLE stellwerk.schema_migrations (id int)", "CREATE FUNCTION stellwerk.f() RETURNS int RETURN 1"],
)
async def test_a_foreign_schema_is_recognised_by_whatever_is_in_it(
    open_link: Any, empty_dsn: str, foreign: str
) -> None:
    link = await open_link(empty_dsn)
    await link.written("CREATE SCHEMA stellwerk")
    await link.written(foreign)
    with pytest.raises(StoreUnavailable, match="has a schema named stellwerk that is not one of this program"):
        await _migrate(link)


async def test_a_changed_migration_is_refused(open_link: Any, empty_dsn: str) -> None:
    link = await open_link(empty_dsn)
    await _migrate(link, [FIRST])
    with pytest.raises(StoreUnavailable, match="schema 1 that is not the one of this version"):
        await _migrate(link, [Migration(1, "first", FIRST.text + " "), SECOND])
    assert await _applied(link) == [1]


async def test_a_foreign_schema_of_our_name_is_left_alone(open_link: Any, empty_dsn: str) -> None:
    link = await open_link(empty_dsn)
    await link.write(lambda connection: connection.execute("CREATE SCHEMA stellwerk; CREATE TABLE stellwerk.a ()"))
    with pytest.raises(StoreUnavailable, match=r"stellwerk_.*a schema named stellwerk that is not one of this program"):
        await _migrate(link)
    assert await link.value("SELECT count(*) FROM pg_class WHERE relnamespace = 'stellwerk'::regnamespace") == 1


async def test_tables_of_others_in_the_same_database_do_no_harm(open_link: Any, empty_dsn: str) -> None:
    link = await open_link(empty_dsn)
    await link.written("CREATE TABLE public.instances (name text)")
    await _migrate(link)
    assert await link.value("SELECT count(*) FROM public.instances") == 0


async def test_a_migration_that_fails_leaves_nothing_behind(open_link: Any, empty_dsn: str) -> None:
    link = await open_link(empty_dsn)
    with pytest.raises(asyncpg.UndefinedTableError):
        await _migrate(link, [FIRST, BROKEN])
    assert await link.value("SELECT to_regnamespace('stellwerk')") is None
    await _migrate(link, [FIRST, SECOND])
    assert await _applied(link) == [1, 2]


async def test_who_may_not_create_the_schema_is_told_what_to_grant(
    open_link: Any, breakable_server: PostgresServer
) -> None:
    dsn = breakable_server.create_database(is_migrated=False)
    database = dsn.partition("?")[0].rpartition("/")[2]
    breakable_server.query("CREATE ROLE modest LOGIN")
    try:
        link = await open_link(breakable_server.tcp_dsn(database, user="modest"))
        with pytest.raises(asyncpg.InsufficientPrivilegeError) as refused:
            await _migrate(link)
        assert "GRANT CREATE ON DATABASE" in unavailable(refused.value, "it").message
        breakable_server.query("CREATE SCHEMA stellwerk AUTHORIZATION modest", dsn=dsn)
        await _migrate(link)  # an empty schema of one's own will do
        await link.bridge.run(link.connections.close)
    finally:
        breakable_server.drop_database(dsn)
        breakable_server.query("DROP ROLE modest")


def test_the_files_are_numbered_without_gaps() -> None:
    known = known_migrations()
    assert [migration.number for migration in known] == list(range(1, len(known) + 1))


@pytest.mark.parametrize("first_line, readable_from", [("-- readable from 3", 3), ("-- adds a column", 7)])
def test_the_first_line_says_which_versions_can_go_on(first_line: str, readable_from: int) -> None:
    assert Migration(7, "seventh", f"{first_line}\nSELECT 1;").readable_from == readable_from
