"""Servers that may be stopped and choked, a network that may be cut, a pooler, and connections to all of it."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import asyncpg
import attrs
import pytest
import trio

from stellwerk.stores.postgres.bridge import Bridge
from stellwerk.stores.postgres.connections import Connections
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.testing.databases import NoServer, PostgresAccess, PostgresServer

T = TypeVar("T")

# --- servers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _shared_breakable_server() -> Iterator[PostgresServer]:
    rules = ["host all +with_password 127.0.0.1/32 scram-sha-256", "host all +kept_out 127.0.0.1/32 reject"]
    try:
        server = PostgresServer(access_rules=rules)
    except NoServer as error:
        pytest.skip(str(error))
    with server:
        server.query("CREATE ROLE with_password")
        server.query("CREATE ROLE kept_out")
        yield server


@pytest.fixture
def breakable_server(_shared_breakable_server: PostgresServer) -> Iterator[PostgresServer]:
    """A private server that the test may stop, restart and reconfigure (``reload``); it is whole again afterwards."""
    yield _shared_breakable_server
    if not _shared_breakable_server.is_running:
        _shared_breakable_server.start()
    _shared_breakable_server.reset()


@pytest.fixture
def breakable_dsn(breakable_server: PostgresServer) -> Iterator[str]:
    """A migrated database on it."""
    dsn = breakable_server.create_database()
    yield dsn
    if not breakable_server.is_running:
        breakable_server.start()
    breakable_server.drop_database(dsn)


@pytest.fixture
def empty_dsn(postgres_server: PostgresAccess) -> Iterator[str]:
    """A database that was never migrated."""
    dsn = postgres_server.create_database(is_migrated=False)
    yield dsn
    postgres_server.drop_database(dsn)


# --- connections -----------------------------------------------------------------------------------------------------


@attrs.frozen
class Link:
    """`Connections`, used from trio."""

    bridge: Bridge
    connections: Connections

    async def read(self, work: Callable[[Any], Awaitable[T]]) -> T:
        return await self.bridge.run(lambda: self.connections.read(work))

    async def write(self, work: Callable[[Any], Awaitable[T]]) -> T:
        return await self.bridge.run(lambda: self.connections.write(work))

    async def value(self, statement: str, *arguments: object) -> Any:
        """The one value that a reading connection gets."""
        return await self.read(lambda connection: connection.fetchval(statement, *arguments))

    async def written(self, statement: str, *arguments: object) -> Any:
        """The one value that the writing connection gets."""
        return await self.write(lambda connection: connection.fetchval(statement, *arguments))


class OpenLink(Protocol):
    async def __call__(self, dsn: str, **settings: Any) -> Link: ...


@pytest.fixture
async def open_link() -> AsyncIterator[OpenLink]:
    """Opens connections; settings are those of `PostgresConfig`."""
    links: list[Link] = []
    numbers = itertools.count(1)

    async def open_one(dsn: str, **settings: Any) -> Link:
        config = PostgresConfig(dsn=dsn, **settings)
        bridge = await Bridge.open()
        link = Link(bridge, Connections(config, f"node-{next(numbers)}", lambda: 0.5))
        links.append(link)
        await bridge.run(link.connections.open)
        return link

    yield open_one
    for link in links:
        await link.bridge.run(link.connections.close)
        await link.bridge.close()


@attrs.frozen
class Session:
    """A connection that somebody else has, in a transaction where it is wanted."""

    link: Any
    connection: Any

    async def execute(self, statement: str) -> None:
        await self.link.bridge.run(partial(self.connection.execute, statement))

    async def value(self, statement: str, *arguments: object) -> Any:
        return await self.link.bridge.run(partial(self.connection.fetchval, statement, *arguments))

    async def hold(self, statement: str) -> None:
        """What it locks stays locked until `release`."""
        await self.execute(f"BEGIN; {statement}")

    async def release(self) -> None:
        await self.execute("COMMIT")

    async def look(self, statement: str) -> Any:
        """What the others do now: a transaction would go on seeing what it saw first."""
        await self.execute("SELECT pg_stat_clear_snapshot()")
        return await self.value(statement)

    async def all_wait(self, count: int) -> None:
        """Until so many others wait for locks."""
        with trio.fail_after(10):
            while await self.look(_WAITING) != count:
                await trio.sleep(0.005)

    async def count(self, table: str) -> int:
        found: int = await self.value(f"SELECT count(*) FROM stellwerk.{table}")
        return found


_WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"""


@pytest.fixture
async def open_session(open_link: OpenLink) -> AsyncIterator[Callable[[Link], Awaitable[Session]]]:
    """Opens a connection past every pooler and network; it is closed at the end, before the links are."""
    sessions: list[Session] = []

    async def open_one(link: Link) -> Session:
        sessions.append(Session(link, await link.bridge.run(link.connections.listen)))
        return sessions[-1]

    yield open_one
    for session in sessions:
        await session.link.bridge.run(session.connection.close)


# --- the network between ---------------------------------------------------------------------------------------------


@pytest.fixture
async def network(breakable_server: PostgresServer, open_network: Callable[[PostgresServer], Awaitable[Any]]) -> Any:
    """Between the test and `breakable_server`."""
    return await open_network(breakable_server)


# --- the pooler ------------------------------------------------------------------------------------------------------

_POOLER_SETTINGS = """
[databases]
* = host=127.0.0.1 port={port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
server_round_robin = 1
default_pool_size = 5
max_client_conn = 100
logfile = {folder}/log
"""


@pytest.fixture(scope="session")
def pooler_port(postgres_server: PostgresAccess) -> Iterator[int]:
    """The port of pgbouncer in transaction mode before the server of `postgres_dsn`; of the connections that it has to
    a database, each transaction gets the one that was idle for longest."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None or not isinstance(postgres_server, PostgresServer):
        pytest.skip("no pgbouncer, or no private server to put it before")
    with tempfile.TemporaryDirectory(prefix="swp", dir="/tmp") as name:
        folder = Path(name)
        port = _free_port()
        (folder / "users").write_text('"postgres" ""\n')
        settings = _POOLER_SETTINGS.format(port=postgres_server.port, own_port=port, folder=folder)
        (folder / "ini").write_text(settings)
        process = subprocess.Popen([program, "-q", str(folder / "ini")], **_not_as_root(folder))
        try:
            _wait_for_port(port, process)
            yield port
        finally:
            process.terminate()
            process.wait()


@pytest.fixture
def pooled_dsn(postgres_dsn: str, pooler_port: int) -> str:
    """The database of `postgres_dsn`, through pgbouncer."""
    return f"postgresql://postgres@127.0.0.1:{pooler_port}{urlsplit(postgres_dsn).path}"


def _not_as_root(folder: Path) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    for path in (folder, *folder.iterdir()):
        os.chown(path, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    pytest.fail("pgbouncer does not start")


# --- waiting ---------------------------------------------------------------------------------------------------------


async def _eventually(is_so: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until something outside of the test's own tasks has happened."""
    with trio.fail_after(seconds if math.isfinite(seconds) else 5.0):
        while not is_so():
            await trio.sleep(0.01)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    return _eventually


# --- asyncio, without trio and the bridge ----------------------------------------------------------------------------


_SETTINGS = {"jit": "off", "lock_timeout": "10s"}


class AsyncioDatabase:
    """One connection to a database, for tests that are not async: each call runs an event loop until it has ended."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self.connection: asyncpg.Connection = self._runner.run(asyncpg.connect(dsn, server_settings=_SETTINGS))

    def ask(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any) -> T:
        """What a function answers whose first parameter is the connection."""
        return self._runner.run(function(self.connection, *arguments, **named))

    def execute(self, statement: str, *arguments: object) -> None:
        self._runner.run(self.connection.execute(statement, *arguments))

    def fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        found: list[asyncpg.Record] = self._runner.run(self.connection.fetch(statement, *arguments))
        return found

    def together(self, *works: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> list[T]:
        """All at once, each on a connection of its own. → what they answer, in order."""

        async def alone(work: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> T:
            connection = await asyncpg.connect(self.dsn, server_settings=_SETTINGS)
            try:
                return await work(connection)
            finally:
                await connection.close()

        async def all_of_them() -> list[T]:
            return list(await asyncio.gather(*map(alone, works)))

        return self._runner.run(all_of_them())

    def close(self) -> None:
        self._runner.run(self.connection.close())
        self._runner.close()


@pytest.fixture(scope="session")
def new_asyncio_database(
    postgres_server: PostgresAccess,
) -> Callable[[], AbstractContextManager[AsyncioDatabase]]:
    """A migrated database of its own, for so long."""

    @contextmanager
    def create() -> Iterator[AsyncioDatabase]:
        dsn = postgres_server.create_database()
        database = AsyncioDatabase(dsn)
        yield database
        database.close()
        postgres_server.drop_database(dsn)

    return create


@pytest.fixture
def asyncio_database(
    new_asyncio_database: Callable[[], AbstractContextManager[AsyncioDatabase]],
) -> Iterator[AsyncioDatabase]:
    with new_asyncio_database() as database:
        yield database
