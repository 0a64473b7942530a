"""What may befall the database, while engines and workers are at work: clear refusals or waits meanwhile, nothing that
was acknowledged is lost, and it goes on by itself as soon as it can.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import trio

from stellwerk.testing.databases import NoServer, PostgresServer, StopMode

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


def _engine_dsn(cluster: Any) -> str:
    dsn: str = cluster.server.tcp_dsn(_name(cluster.dsn), user=USER)
    return dsn


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
    cluster = cluster_of(tmp_path_factory.mktemp("cluster"), server, dsn)
    try:
        cluster.add_nodes(_engine_dsn(cluster), _engine_dsn(cluster))
        cluster.add_workers(2)
        yield cluster
        cluster.stop()
    finally:
        cluster.end()


async def _until_told(load: Any, text: str, seconds: float = 30.0) -> None:
    """Until a start was refused with a message that contains this text."""
    with trio.move_on_after(seconds):
        while not any(text in message for message in load.answers):
            await trio.sleep(0.02)
        return
    raise AssertionError(f"nobody was told of {text}: {load.troubles()}")


async def _until_refused(node: Any, text: str, seconds: float = 30.0) -> None:
    """Until a question is refused with a message that contains this text. Starts may wait longer: where the connection
    was lost during a commit, nothing else is committed before it is known what became of that.
    """
    with trio.fail_after(seconds):
        while True:
            status, answer = await _blocking(node.ask, "GET", "/api/v1/process-instances?limit=1")
            if status == 503:
                assert answer["code"] == "unavailable"
                assert text in answer["detail"]
                return
            assert status == 200


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_server_that_is_restarted(loaded: Loaded, cluster: Any, server: PostgresServer, mode: StopMode) -> None:
    async with loaded(cluster):
        await _blocking(server.restart, mode)


async def test_server_that_stays_away(loaded: Loaded, cluster: Any, server: PostgresServer) -> None:
    async with loaded(cluster):
        await _blocking(server.stop)
        try:
            await _until_refused(cluster.nodes[0], "cannot be reached")
        finally:
            await _blocking(server.start)


async def test_server_that_is_made_read_only(loaded: Loaded, cluster: Any, server: PostgresServer) -> None:
    async with loaded(cluster) as load:
        await _blocking(lambda: server.reload(default_transaction_read_only="on"))
        try:
            await _until_told(load, "read-only")
            answer = await _blocking(cluster.nodes[0].ask, "GET", "/api/v1/process-instances?limit=1")
            assert answer[0] == 200, "who only reads is served"
        finally:
            await _blocking(server.reset)


async def test_all_connections_are_terminated(loaded: Loaded, cluster: Any, server: PostgresServer) -> None:
    async with loaded(cluster) as load:
        for _ in range(3):
            assert await _blocking(_terminate, server) >= 4  # each node has one that writes, and one that listens
            await load.recovery()


def _terminate(server: PostgresServer) -> int:
    ended = server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", USER)
    return len(ended)


async def test_server_that_is_out_of_connections(loaded: Loaded, cluster: Any, server: PostgresServer) -> None:
    async with loaded(cluster):
        enough = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(_take_all_connections, server, _engine_dsn(cluster), enough)
            for node in cluster.nodes:
                await _until(lambda node=node: "raise its max_connections" in node.log)  # type: ignore[misc]
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
    cluster = cluster_of(tmp_path, server, await _blocking(_new_database, server))
    try:
        await _blocking(cluster.add_nodes, network.dsn(_engine_dsn(cluster)))
        await _blocking(cluster.add_workers, 1)
        yield cluster
        await _blocking(cluster.stop)
    finally:
        cluster.end()


async def test_network_that_is_cut_and_late_and_forgets_connections(loaded: Loaded, remote: Any, network: Any) -> None:
    async with loaded(remote) as load:
        network.cut()
        accepted = network.accepted
        await _until(lambda: network.accepted >= accepted + 3)  # it tries again
        network.heal()
        await load.recovery()
        network.stall("answers")
        await _until(lambda: network.held_bytes > 0)
        network.heal()
        await load.recovery()
        # What was asked for is done, and the answer never comes: engines ask what became of it.
        for _ in range(3):
            held = network.held_bytes
            network.stall("answers")
            await _until(lambda held=held: network.held_bytes > held)  # type: ignore[misc]
            network.cut()
            network.heal()
            await load.recovery()
        # Neither side learns of it, as behind a firewall that was restarted. A statement has 10 s.
        network.forget()
        await load.recovery(after=10)


async def _until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.01)


# --- servers of their own ------------------------------------------------------------------------------------------


@pytest.fixture
def lone(cluster_of: Any, tmp_path: Path) -> Iterator[Callable[[PostgresServer], Any]]:
    """One engine and one worker on a server of the test's own, each in a database of its own."""
    clusters: list[Any] = []

    def start(server: PostgresServer) -> Any:
        cluster = cluster_of(tmp_path, server, _new_database(server))
        clusters.append(cluster)
        cluster.add_nodes(_engine_dsn(cluster))
        cluster.add_workers(1)
        return cluster

    yield start
    for cluster in clusters:
        cluster.end()


@contextmanager
def _on_small_disk(server: PostgresServer, mebibytes: int) -> Iterator[None]:
    """The data of a server that was never started, on a file system of that size."""
    kept = server.directory / "kept"
    server.data.rename(kept)
    server.data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(server.data)]
    mounted = subprocess.run(mount, capture_output=True, text=True) if shutil.which("mount") else None
    if mounted is None or mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted: {'no mount' if mounted is None else mounted.stderr.strip()}")
    try:
        subprocess.run(["cp", "-a", f"{kept}/.", str(server.data)], check=True)
        yield
    finally:
        server.stop("immediate")
        subprocess.run(["umount", "-l", str(server.data)], check=True)


async def test_disk_that_is_full(loaded: Loaded, lone: Callable[[PostgresServer], Any]) -> None:
    server = _new_server()
    try:
        with _on_small_disk(server, 200):
            await _blocking(server.start)
            cluster = await _blocking(lone, server)
            async with loaded(cluster) as load:
                ballast = server.data / "ballast"
                await _blocking(_fill, ballast)
                await _until_told(load, "its disk is full")
                ballast.unlink()
            await _blocking(cluster.stop)
    finally:
        await _blocking(server.close)


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as ballast:
        while True:
            try:
                ballast.write(bytes(1024 * 1024))
            except OSError:
                return


@pytest.fixture
def movable_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """Its clock is off by what stands in its file ``clock``."""
    library = next(filter(Path.exists, _FAKETIME), None)
    if library is None:
        pytest.skip("no libfaketime to set a server's clock with")
    server = _new_server()
    try:
        _set_clock(server, "+0")
        with monkeypatch.context() as environment:  # for the server alone
            environment.setenv("LD_PRELOAD", str(library))
            environment.setenv("FAKETIME_TIMESTAMP_FILE", str(server.directory / "clock"))
            environment.setenv("FAKETIME_NO_CACHE", "1")
            environment.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            server.start()
        yield server
    finally:
        server.close()


def _set_clock(server: PostgresServer, offset: str) -> None:
    new = server.directory / "clock.new"
    new.write_text(f"{offset}\n")
    new.chmod(0o644)
    new.replace(server.directory / "clock")


@pytest.mark.parametrize("seconds", [5, 3600])
async def test_clock_that_is_set_forward_and_back(
    loaded: Loaded, lone: Callable[[PostgresServer], Any], movable_server: PostgresServer, seconds: int
) -> None:
    cluster = await _blocking(lone, movable_server)
    async with loaded(cluster) as load:
        for offset, said in ((f"+{seconds}s", "database clock set forward"), ("+0", "database clock set back")):
            _set_clock(movable_server, offset)
            await _until(lambda said=said: said in cluster.nodes[0].log)  # type: ignore[misc]
            await load.recovery()
            await load.settle()
    await _blocking(cluster.stop)
