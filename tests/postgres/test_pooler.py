"""Through pgbouncer in transaction mode: each transaction may run on another server connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import structlog
import trio

from stellwerk.errors import StoreUnavailable
from stellwerk.ports import Store
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.migrations import migrate
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.system.entropy import SystemEntropy
from stellwerk.testing.databases import PostgresAccess
from stellwerk.testing.store_contract import DictatedLeaseClock, ManualClock
from stellwerk.testing.store_contract.changesets import ChangesetContract
from stellwerk.testing.store_contract.endings import EndingContract
from stellwerk.testing.store_contract.leases import LeaseContract


async def test_a_pooler_that_nobody_told_of_is_named(open_link: Any, pooled_dsn: str) -> None:
    with (
        trio.fail_after(5),
        pytest.raises(StoreUnavailable, match=r"unsupported startup parameter.*pooler.*--listen-db"),
    ):
        await open_link(pooled_dsn, connect_seconds_max=60)


async def test_reads_and_writes_go_through_a_pooler(open_link: Any, pooled_dsn: str) -> None:
    """More clients than the pooler has connections: prepared statements or settings of a session would be missed."""
    links = [await open_link(pooled_dsn, is_pooled=True) for _ in range(4)]
    connections = links[0].connections
    await links[0].write(lambda connection: connection.execute("CREATE TABLE numbers (number int, name text)"))

    async def insert(connection: Any) -> None:
        async with connections.statement(connection):
            await connection.execute(
                "INSERT INTO numbers SELECT * FROM unnest($1::int[], $2::text[])", [1, 2], ["one", "two"]
            )

    async def work(link: Any) -> None:
        for _ in range(5):
            await link.write(insert)
            assert await link.value("SELECT min(name) FROM numbers WHERE number = $1", 2) == "two"

    async with trio.open_nursery() as nursery:
        for link in links:
            nursery.start_soon(work, link)
            nursery.start_soon(work, link)
    assert await links[0].value("SELECT count(*) FROM numbers") == 4 * 2 * 5 * 2


async def test_transactions_have_their_limits_behind_a_pooler_too(open_link: Any, pooled_dsn: str) -> None:
    link = await open_link(pooled_dsn, is_pooled=True, command_seconds_max=4)

    async def written(connection: Any) -> object:
        async with link.connections.transaction(connection):
            return await connection.fetchval("SHOW statement_timeout")

    assert await link.write(written) == "3600ms"
    assert await link.value("SHOW lock_timeout") == "1500ms"


async def test_a_read_may_begin_a_transaction_of_its_own(open_link: Any, pooled_dsn: str, postgres_dsn: str) -> None:
    async def read(connection: Any) -> object:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return await connection.fetchval("SHOW transaction_isolation")

    for link in (await open_link(pooled_dsn, is_pooled=True), await open_link(postgres_dsn)):
        assert await link.read(read) == "repeatable read"


async def test_a_database_is_migrated_through_a_pooler(
    open_link: Any, postgres_server: PostgresAccess, pooler_port: int, empty_dsn: str
) -> None:
    dsn = f"postgresql://postgres@127.0.0.1:{pooler_port}{urlsplit(empty_dsn).path}"
    links = [await open_link(dsn, is_pooled=True) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for link in links:
            nursery.start_soon(link.write, lambda connection: migrate(connection, "it"))
    assert postgres_server.query("SELECT FROM stellwerk.schema_migrations", dsn=empty_dsn)


async def test_listening_goes_past_the_pooler(open_link: Any, pooled_dsn: str, postgres_dsn: str) -> None:
    link = await open_link(pooled_dsn, is_pooled=True, listen_dsn=postgres_dsn)
    heard: list[str] = []
    received = trio.Event()

    def hear(*notice: Any) -> None:
        heard.append(notice[-1])
        received.set()

    listening = await link.bridge.run(link.connections.listen)
    await link.bridge.run(lambda: listening.add_listener("things", hear))
    await link.write(lambda connection: connection.execute("NOTIFY things, 'one'"))
    with trio.fail_after(5):
        await received.wait()
    assert heard == ["one"]
    await link.bridge.run(listening.close)


_EMPTY = """
DO $$ DECLARE found text; BEGIN
    FOR found IN SELECT tablename FROM pg_tables
        WHERE schemaname = 'stellwerk' AND tablename <> 'schema_migrations'
    LOOP
        EXECUTE 'DELETE FROM stellwerk.' || quote_ident(found);
    END LOOP;
END $$"""


_SERVERS = 4


async def _open_servers(dsn: str) -> None:
    """Let the pooler have so many connections to that database, so that no two transactions in a row get the same."""
    connections = [await asyncpg.connect(dsn, statement_cache_size=0) for _ in range(_SERVERS)]
    for statement in ("BEGIN; SELECT 1", "COMMIT"):
        for connection in connections:
            await connection.execute(statement)
    for connection in connections:
        await connection.close()


@pytest.fixture(scope="class")
def shared_dsns(postgres_server: PostgresAccess, pooler_port: int) -> Iterator[tuple[str, str]]:
    """Of one database: through the pooler, and past it."""
    dsn = postgres_server.create_database()
    pooled = f"postgresql://postgres@127.0.0.1:{pooler_port}{urlsplit(dsn).path}"
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(_open_servers(pooled))
    yield pooled, dsn
    postgres_server.drop_database(dsn)


class TestPostgresStoreThroughPooler(ChangesetContract, EndingContract, LeaseContract):
    """What the store promises, it promises behind a pooler too."""

    @pytest.fixture(autouse=True)
    def place(self, postgres_server: PostgresAccess, shared_dsns: tuple[str, str]) -> None:
        pooled, direct = shared_dsns
        postgres_server.query(_EMPTY, dsn=direct)
        self.config = PostgresConfig(dsn=pooled, listen_dsn=direct, is_pooled=True, reading_connections_max=2)

    def make_store(self, clock: ManualClock) -> Store:
        return PostgresStore(
            self.config,
            clock=clock,
            entropy=SystemEntropy(),
            log=structlog.get_logger(),
            node_id="pooled",
            lease_clock=DictatedLeaseClock(clock),
        )
