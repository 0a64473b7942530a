"""What may befall the database, while engines and workers are at work: clear refusals or waits meanwhile, nothing that
was acknowledged is lost, and it goes on by itself as soon as it can.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import trio

from stellwerk.testing.databases import NoServer, PostgresServer, StopMode

RECOVERY_SECONDS_MAX = 10.0
"""On a machine that does something else as well; most often it takes less than one."""
LOG_LINES_MAX = 40
"""Of one node, for one trouble from its beginning to its end, workers that come back included."""
USER = "engine"
"""Not an administrator: those get connections when nobody else does."""
SETTINGS = {"synchronous_commit": "on", "max_connections": "40"}
"""What is acknowledged survives the death of the process; not that of the machine, which no test brings about."""

_FAKETIME = (
    Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"),
    Path("/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1"),
    Path("/usr/lib/faketime/libfaketime.so.1"),
)

Loaded = Callable[..., AbstractAsyncContextManager[Any]]


def _new_server(**settings: str) -> PostgresServer:
    try:
        return PostgresServer({**SETTINGS, **settings})
    except NoServer as error:
        pytest.skip(str(error))


def _new_database(server: PostgresServer) -> str:
    """→ the administrator's DSN of an empty database that belongs to `USER`."""
    if not server.query("SELECT FROM pg_roles WHERE rolname = $1", USER):
        server.query(f"CREATE ROLE {USER} LOGIN")
    dsn = server.create_database(is_migrated=False)
    server.query(f'ALTER DATABASE "{_name(dsn)}" OWNER TO {USER}')
    return dsn


def _name(dsn: str) -> str:
    return urlsplit(dsn).path.lstrip("/")


def _engine_dsn(server: PostgresServer, dsn: str) -> str:
    return server.tcp_dsn(_name(dsn), user=USER)


async def _blocking(function: Callable[..., Any], *arguments: object) -> Any:
    return await trio.to_thread.run_sync(function, *arguments)


# --- two engines on a server that is well again after each test ----------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with _new_server() as server:
        yield server


@pytest.fixture(scope="module")
def dsn(server: PostgresServer) -> str:
    return _new_database(server)


@pytest.fixture(scope="module")
def cluster(
    server: PostgresServer, dsn: str, cluster_of: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    cluster = cluster_of(tmp_path_factory.mktemp("cluster"), server)
    try:
        cluster.add_nodes(_engine_dsn(server, dsn), _engine_dsn(server, dsn))
        cluster.add_workers(2)
        yield cluster
        cluster.stop()
    finally:
        cluster.end()


@pytest.fixture
def loaded(load_on: Any, request: pytest.FixtureRequest) -> Loaded:
    """Work goes on before, meanwhile, and soon afterwards; in the end all is there, and the logs are short."""

    @asynccontextmanager
    async def run(cluster: Any, dsn: str) -> AsyncIterator[Any]:
        load = load_on(cluster, request.node.name, dsn)
        await _blocking(load.deploy)
        before = [len(node.log.splitlines()) for node in cluster.nodes]
        async with trio.open_nursery() as nursery:
            for starter in ("one", "other"):
                nursery.start_soon(load.start_instances, starter)
            await load.progress(20)
            yield load
            recovery = await load.progress(20, RECOVERY_SECONDS_MAX)
            await load.end(30)
        load.check()
        print(f"{len(load.started)} instances, 20 results within {recovery:.1f} s, {dict(load.answers)}")
        for node, lines in zip(cluster.nodes, before, strict=True):
            written = node.log.splitlines()[lines:]
            print(len(written))
            assert len(written) <= LOG_LINES_MAX, "\n".join(written)
            assert "Traceback" not in node.log, node.log

    return run


async def _until_told(load: Any, *texts: str, seconds: float = 30.0) -> None:
    """Until a start was refused with a message that contains one of these texts."""
    with trio.move_on_after(seconds):
        while not any(text in message for message in load.answers for text in texts):
            await trio.sleep(0.02)
        return
    raise AssertionError(f"nobody was told {texts}: {load.troubles()}")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_server_that_is_restarted(
    loaded: Loaded, cluster: Any, dsn: str, server: PostgresServer, mode: StopMode
) -> None:
    async with loaded(cluster, dsn):
        await _blocking(server.restart, mode)


async def test_server_that_stays_away(loaded: Loaded, cluster: Any, dsn: str, server: PostgresServer) -> None:
    async with loaded(cluster, dsn) as load:
        await _blocking(server.stop)
        try:
            await _until_told(load, "cannot be reached", "starting or stopping")
        finally:
            await _blocking(server.start)


async def test_server_that_is_made_read_only(loaded: Loaded, cluster: Any, dsn: str, server: PostgresServer) -> None:
    async with loaded(cluster, dsn) as load:
        await _blocking(lambda: server.reload(default_transaction_read_only="on"))
        try:
            await _until_told(load, "read-only")
            answer = await _blocking(cluster.nodes[0].ask, "GET", "/api/v1/process-instances?limit=1")
            assert answer[0] == 200, "who only reads is served"
        finally:
            await _blocking(server.reset)


async def test_all_connections_are_terminated(loaded: Loaded, cluster: Any, dsn: str, server: PostgresServer) -> None:
    async with loaded(cluster, dsn) as load:
        for _ in range(3):
            assert await _blocking(_terminate, server) >= 4  # each node has one that writes, and one that listens
            await load.progress(10, RECOVERY_SECONDS_MAX)


def _terminate(server: PostgresServer) -> int:
    ended = server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", USER)
    return len(ended)


async def test_server_that_is_out_of_connections(
    loaded: Loaded, cluster: Any, dsn: str, server: PostgresServer
) -> None:
    async with loaded(cluster, dsn) as load:
        enough = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(_take_all_connections, server, _engine_dsn(server, dsn), enough)
            await _until_told(load, "max_connections")
            enough.set()


async def _take_all_connections(
    server: PostgresServer, dsn: str, enough: trio.Event, *, task_status: trio.TaskStatus[None]
) -> None:
    """From those who have them too, until `enough`."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        taken: list[asyncpg.Connection] = []

        def take() -> None:
            while True:
                try:
                    taken.append(runner.run(asyncpg.connect(dsn, server_settings={"application_name": "a crowd"})))
                except asyncpg.TooManyConnectionsError:
                    if not _terminate_engines(server):
                        return

        def give_back() -> None:
            for connection in taken:
                runner.run(connection.close())

        await _blocking(take)
        try:
            task_status.started()
            await enough.wait()
        finally:
            with trio.CancelScope(shield=True):
                await _blocking(give_back)


def _terminate_engines(server: PostgresServer) -> int:
    statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'stellwerk %'"
    return len(server.query(statement))


# --- the network between -------------------------------------------------------------------------------------------


@pytest.fixture
async def network(open_network: Callable[[PostgresServer], Awaitable[Any]], server: PostgresServer) -> Any:
    return await open_network(server)


@pytest.fixture
async def remote(cluster_of: Any, server: PostgresServer, network: Any, tmp_path: Path) -> AsyncIterator[Any]:
    """One engine behind `network`, on a database of its own."""
    cluster = cluster_of(tmp_path, server)
    cluster.dsn = await _blocking(_new_database, server)
    try:
        await _blocking(cluster.add_nodes, network.dsn(_engine_dsn(server, cluster.dsn)))
        await _blocking(cluster.add_workers, 1)
        yield cluster
        await _blocking(cluster.stop)
    finally:
        cluster.end()


async def test_network_that_is_cut_and_falls_silent(loaded: Loaded, remote: Any, network: Any) -> None:
    async with loaded(remote, remote.dsn) as load:
        network.cut()
        await _until_told(load, "cannot be reached")
        network.heal()
        await load.progress(10, RECOVERY_SECONDS_MAX)
        network.stall("answers")
        await trio.testing.wait_all_tasks_blocked(0.2)
        network.heal()
        await load.progress(10, RECOVERY_SECONDS_MAX)


async def test_network_that_forgets_connections(loaded: Loaded, remote: Any, network: Any) -> None:
    """Neither side learns of it, as behind a firewall that was restarted. Statements have 10 s."""
    async with loaded(remote, remote.dsn) as load:
        network.forget()
        print("after", await load.progress(10, 10 + RECOVERY_SECONDS_MAX))
