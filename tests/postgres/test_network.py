"""A network between node and database that breaks, or that goes silent."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.errors import StoreUnavailable
from stellwerk.stores.postgres.faults import Fault, fault_of
from stellwerk.testing.databases import PostgresServer


async def _fault_of_write(link: Any, statement: str) -> Fault | None:
    try:
        await link.written(statement)
    except Exception as error:
        return fault_of(error)
    return None


async def test_a_cut_network_is_reported_and_healed(open_link: Any, network: Any, breakable_dsn: str) -> None:
    link = await open_link(network.dsn(breakable_dsn), connect_seconds_max=0.4)
    assert await link.value("SELECT 1") == 1
    network.cut()
    with trio.fail_after(3), pytest.raises(StoreUnavailable, match="stellwerk_"):
        await link.value("SELECT 1")
    # Whoever notices the loss before the work begins knows that nothing happened.
    assert await _fault_of_write(link, "SELECT 1") in (Fault.LOST, Fault.REFUSED)
    assert await _fault_of_write(link, "SELECT 1") is Fault.REFUSED
    network.heal()
    assert await link.value("SELECT 2") == 2
    assert await link.written("SELECT 3") == 3


async def test_a_short_cut_is_not_noticed_by_who_reads(open_link: Any, network: Any, breakable_dsn: str) -> None:
    link = await open_link(network.dsn(breakable_dsn))
    assert await link.value("SELECT 1") == 1
    network.cut()
    network.heal()
    assert await link.value("SELECT 2") == 2


async def test_a_silent_network_does_not_hold_anyone_for_ever(open_link: Any, network: Any, breakable_dsn: str) -> None:
    link = await open_link(network.dsn(breakable_dsn), connect_seconds_max=0.3, command_seconds_max=0.3)
    assert await link.value("SELECT 1") == 1
    network.stall()
    with trio.fail_after(4):
        with pytest.raises(StoreUnavailable, match="does not answer in time"):
            await link.value("SELECT 1")
        assert await _fault_of_write(link, "SELECT 1") is Fault.LOST
        with pytest.raises(StoreUnavailable, match="does not answer in time"):
            await link.written("SELECT 1")
    network.heal()
    assert await link.value("SELECT 2") == 2
    assert await link.written("SELECT 3") == 3


async def test_a_write_whose_answer_is_lost_may_have_happened(
    open_link: Any, network: Any, breakable_server: PostgresServer, breakable_dsn: str
) -> None:
    link = await open_link(network.dsn(breakable_dsn), connect_seconds_max=0.3, command_seconds_max=0.5)
    await link.written("CREATE TABLE numbers (number int)")
    insert = "INSERT INTO numbers VALUES (1) RETURNING number"
    await link.written(insert)  # now its messages need no answer before the last
    network.stall("answers")
    assert await _fault_of_write(link, insert) is Fault.LOST
    assert len(breakable_server.query("SELECT FROM numbers", dsn=breakable_dsn)) == 2


async def test_a_node_that_went_silent_in_a_transaction_does_not_keep_its_locks(
    open_link: Any, network: Any, breakable_server: PostgresServer, breakable_dsn: str
) -> None:
    silent = await open_link(network.dsn(breakable_dsn), command_seconds_max=0.6)
    other = await open_link(breakable_dsn)
    await other.written("CREATE TABLE numbers (number int)")
    await other.written("INSERT INTO numbers VALUES (1)")

    async def lock_and_fall_silent(connection: Any) -> None:
        async with silent.connections.transaction(connection):
            await connection.execute("UPDATE numbers SET number = 2")
            network.stall()
            await connection.execute("UPDATE numbers SET number = 3")

    async with trio.open_nursery() as nursery:

        async def fall_silent() -> None:
            with pytest.raises((TimeoutError, OSError)):
                await silent.write(lock_and_fall_silent)

        nursery.start_soon(fall_silent)
        while not breakable_server.query("SELECT FROM pg_stat_activity WHERE state = 'idle in transaction'"):
            await trio.sleep(0.01)
        with trio.fail_after(5):
            assert await other.written("UPDATE numbers SET number = number + 10 RETURNING number") == 11


async def test_the_next_host_is_taken_when_the_first_is_silent(
    open_link: Any, open_network: Any, breakable_server: PostgresServer, breakable_dsn: str
) -> None:
    silent = await open_network(breakable_server)
    silent.stall()
    hosts = f"127.0.0.1:{silent.port},127.0.0.1:{breakable_server.port}"
    database = breakable_dsn.partition("?")[0].rpartition("/")[2]
    with trio.fail_after(3):
        link = await open_link(f"postgresql://postgres@{hosts}/{database}", connect_seconds_max=0.6)
        assert await link.value("SELECT 1") == 1


async def test_only_a_primary_will_do_and_a_promoted_one_is_found(open_link: Any) -> None:
    with PostgresServer() as old, PostgresServer() as new:
        old.query("CREATE TABLE numbers (number int)")
        new.query("CREATE TABLE numbers (number int)")
        new.stop()
        (new.data / "standby.signal").touch()
        new.start()
        dsn = f"postgresql://postgres@127.0.0.1:{new.port},127.0.0.1:{old.port}/postgres"
        link = await open_link(dsn, connect_seconds_max=0.5)
        assert await link.written("SHOW port") == str(old.port)
        await trio.to_thread.run_sync(old.stop, "immediate")
        assert await _fault_of_write(link, "INSERT INTO numbers VALUES (1)") in (Fault.LOST, Fault.REFUSED)
        with pytest.raises(StoreUnavailable, match="none of its servers can be written to"):
            await link.written("INSERT INTO numbers VALUES (1)")
        new.query("SELECT pg_promote()")
        assert await link.written("INSERT INTO numbers VALUES (1) RETURNING number") == 1
        assert await link.value("SHOW port") == str(new.port)


async def test_many_connections_that_are_lost_together_come_back_after_pauses(
    open_link: Any, network: Any, breakable_dsn: str
) -> None:
    """A database that is away is not hammered: pauses double from 100 ms."""
    link = await open_link(network.dsn(breakable_dsn), connect_seconds_max=1.2)
    network.cut()
    before = network.accepted
    async with trio.open_nursery() as nursery:
        for _ in range(4):

            async def read() -> None:
                with pytest.raises(StoreUnavailable):
                    await link.value("SELECT 1")

            nursery.start_soon(read)
    assert network.accepted - before <= 24  # each of the four: at once, and after 75, 150, 300 and 600 ms
