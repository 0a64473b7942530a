"""A node's connections when the database, or the way to it, goes away and comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
import trio

from stellwerk.errors import StoreUnavailable
from stellwerk.stores.postgres.faults import Fault, fault_of
from stellwerk.testing.databases import PostgresServer

OTHERS = "FROM pg_stat_activity WHERE application_name LIKE 'stellwerk%' AND pid <> pg_backend_pid()"


async def test_connections_say_who_they_are_and_have_limits(open_link: Any, postgres_dsn: str) -> None:
    link = await open_link(postgres_dsn, command_seconds_max=4)
    for ask in (link.value, link.written):
        assert await ask("SHOW application_name") == "stellwerk node-1"
        assert await ask("SHOW statement_timeout") == "3600ms"
        assert await ask("SHOW lock_timeout") == "1500ms"
        assert await ask("SHOW idle_in_transaction_session_timeout") == "3600ms"
        assert await ask("SHOW default_transaction_isolation") == "read committed"


async def test_reads_share_as_many_connections_as_are_allowed(open_link: Any, postgres_dsn: str) -> None:
    link = await open_link(postgres_dsn, reading_connections_max=3)
    pids = set()

    async def read() -> None:
        pids.add(await link.value("SELECT pg_backend_pid() FROM pg_sleep(0.02)"))

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(read)
    assert len(pids) == 3


async def test_writes_take_turns_on_one_connection(open_link: Any, postgres_dsn: str) -> None:
    link = await open_link(postgres_dsn)
    running = 0
    pids = set()

    async def work(connection: Any) -> None:
        nonlocal running
        running += 1
        assert running == 1
        pids.add(await connection.fetchval("SELECT pg_backend_pid() FROM pg_sleep(0.005)"))
        running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(link.write, work)
    assert len(pids) == 1


async def test_who_waits_too_long_for_a_connection_is_told(open_link: Any, postgres_dsn: str) -> None:
    link = await open_link(postgres_dsn, reading_connections_max=1, command_seconds_max=0.3)

    async def hold(connection: Any) -> None:
        while True:
            await connection.fetchval("SELECT pg_sleep(0.1)")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.read, hold)
        nursery.start_soon(link.write, hold)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StoreUnavailable, match="all 1 reading connections are busy"):
            await link.value("SELECT 1")
        with pytest.raises(StoreUnavailable, match="has not answered an earlier request yet"):
            await link.written("SELECT 1")
        nursery.cancel_scope.cancel()


async def test_terminated_connections_are_made_anew(
    open_link: Any, breakable_server: PostgresServer, breakable_dsn: str
) -> None:
    link = await open_link(breakable_dsn)
    await link.value("SELECT 1")
    listening = await link.bridge.run(link.connections.listen)
    terminated = breakable_server.query(f"SELECT pg_terminate_backend(pid) {OTHERS}")
    assert len(terminated) == 3
    assert await link.value("SELECT 2") == 2
    assert await link.written("SELECT 3") == 3
    again = await link.bridge.run(link.connections.listen)
    assert await link.bridge.run(lambda: again.fetchval("SELECT 4")) == 4
    assert listening.is_closed()
    await link.bridge.run(again.close)


async def test_a_write_whose_connection_is_terminated_is_in_doubt(
    open_link: Any, breakable_server: PostgresServer, breakable_dsn: str, eventually: Any
) -> None:
    link = await open_link(breakable_dsn)
    await link.written("CREATE TABLE numbers (number int)")
    faults = []

    async def write() -> None:
        try:
            await link.written("INSERT INTO numbers SELECT 1 FROM pg_sleep(5)")
        except asyncpg.PostgresError as error:
            faults.append(fault_of(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        sleeping = f"SELECT pid {OTHERS} AND query LIKE '%pg_sleep(5)%' AND state = 'active'"
        await eventually(lambda: len(breakable_server.query(sleeping)) == 1)
        breakable_server.query(f"SELECT pg_terminate_backend(pid) {OTHERS}")
    assert faults == [Fault.LOST]
    assert await link.written("SELECT count(*) FROM numbers") == 0


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_of_the_server_is_waited_for(
    open_link: Any, breakable_server: PostgresServer, breakable_dsn: str, mode: Any
) -> None:
    link = await open_link(breakable_dsn)
    await link.value("SELECT 1")
    await trio.to_thread.run_sync(breakable_server.stop, mode)
    answers = []

    async def ask(function: Callable[[str], Awaitable[int]], number: int) -> None:
        answers.append(await function(f"SELECT {number}"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, link.value, 1)
        nursery.start_soon(ask, link.written, 2)
        await trio.sleep(0.2)  # a moment of outage in which both try in vain
        await trio.to_thread.run_sync(breakable_server.start)
    assert sorted(answers) == [1, 2]


async def test_a_server_that_stays_away_is_reported_in_time(
    open_link: Any, breakable_server: PostgresServer, breakable_dsn: str
) -> None:
    link = await open_link(breakable_dsn, connect_seconds_max=0.4)
    breakable_server.stop()
    for ask in (link.value, link.written):
        with (
            trio.fail_after(3),
            pytest.raises(StoreUnavailable, match=r"stellwerk_.*cannot be reached.*check host and"),
        ):
            await ask("SELECT 1")
    breakable_server.start()
    assert await link.written("SELECT 1") == 1


async def test_too_many_connections_are_waited_for_or_named(
    open_link: Any, breakable_server: PostgresServer, breakable_dsn: str
) -> None:
    breakable_server.query("CREATE ROLE modest LOGIN CONNECTION LIMIT 1")
    database = breakable_dsn.partition("?")[0].rpartition("/")[2]
    dsn = breakable_server.tcp_dsn(database, user="modest")
    try:
        link = await open_link(dsn, connect_seconds_max=0.4)
        with pytest.raises(StoreUnavailable, match=r"too many connections.*max_connections.*pgbouncer"):
            await link.value("SELECT 1")
        assert await link.written("SELECT 1") == 1
        breakable_server.query("ALTER ROLE modest CONNECTION LIMIT 2")
        assert await link.value("SELECT 1") == 1
        await link.bridge.run(link.connections.close)
    finally:
        breakable_server.query("DROP ROLE modest")


async def test_max_connections_of_the_server_is_reached(open_link: Any) -> None:
    with PostgresServer({"max_connections": "5", "superuser_reserved_connections": "1"}) as server:
        server.query("CREATE ROLE plain LOGIN")
        dsn = server.tcp_dsn("postgres", user="plain")
        links = [await open_link(dsn, connect_seconds_max=0.4) for _ in range(4)]
        with pytest.raises(StoreUnavailable, match=r"reserved for .*superuser.*max_connections"):
            await links[0].value("SELECT 1")
        await links[3].bridge.run(links[3].connections.close)
        assert await links[0].value("SELECT 1") == 1


async def test_a_server_set_to_read_only_refuses_and_recovers(
    open_link: Any, breakable_server: PostgresServer, breakable_dsn: str
) -> None:
    link = await open_link(breakable_dsn)
    await link.written("CREATE TABLE numbers (number int)")
    before = await link.written("SELECT pg_backend_pid()")
    breakable_server.reload(default_transaction_read_only="on")
    assert fault_of(await _first_error(link, "INSERT INTO numbers VALUES (1)")) is Fault.REFUSED
    assert await link.value("SELECT 1") == 1
    assert await link.written("SELECT pg_backend_pid()") != before
    breakable_server.reset()
    with trio.fail_after(5):
        while not await _is_written(link, "INSERT INTO numbers VALUES (2)"):
            pass


async def _first_error(link: Any, statement: str) -> asyncpg.PostgresError:
    """A setting reaches each connection a moment after it was changed."""
    with trio.fail_after(5):
        while True:
            try:
                await link.written(statement)
            except asyncpg.PostgresError as error:
                return error


async def _is_written(link: Any, statement: str) -> bool:
    try:
        await link.written(statement)
    except asyncpg.ReadOnlySQLTransactionError:
        return False
    return True


async def test_a_cancelled_write_gives_its_turn_and_no_connection_in_the_middle_of_something(
    open_link: Any, postgres_dsn: str
) -> None:
    link = await open_link(postgres_dsn)
    await link.written("CREATE TABLE numbers (number int)")

    async def insert_slowly(connection: Any) -> None:
        async with link.connections.transaction(connection):
            await connection.execute("INSERT INTO numbers VALUES (1)")
            await connection.execute("SELECT pg_sleep(30)")

    with trio.move_on_after(0.2) as scope:
        await link.write(insert_slowly)
    assert scope.cancelled_caught
    assert await link.written("SELECT count(*) FROM numbers") == 0


async def test_a_transaction_left_open_is_not_handed_on(open_link: Any, postgres_dsn: str) -> None:
    link = await open_link(postgres_dsn, reading_connections_max=1)
    for use, ask in ((link.read, link.value), (link.write, link.written)):
        await use(lambda connection: connection.execute("BEGIN; CREATE TABLE left_over (number int)"))
        assert await ask("SELECT to_regclass('left_over')") is None


async def test_nothing_is_done_once_it_is_closed(open_link: Any, postgres_dsn: str) -> None:
    link = await open_link(postgres_dsn)
    await link.bridge.run(link.connections.close)
    for ask in (link.value, link.written):
        with pytest.raises(StoreUnavailable, match="closed"):
            await ask("SELECT 1")
