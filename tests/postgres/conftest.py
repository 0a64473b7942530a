"""Servers that may be stopped and choked, a network that may be cut, a pooler, and connections to all of it."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import pwd
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar
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

Direction = Literal["requests", "answers"]


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


# --- the network between ---------------------------------------------------------------------------------------------


class Network:
    """A TCP proxy in front of one port of this machine. It does what networks do.

    `dsn` leads through it. `cut` breaks all connections and refuses new ones, `stall` delivers nothing but goes on
    taking what is sent (half-open: neither side learns of it), `heal` ends both: what was held back arrives late.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener: trio.SocketListener | None = None
        self._nursery: trio.Nursery | None = None
        self._streams: set[trio.SocketStream] = set()
        self._flows: dict[Direction, trio.Event] = {"requests": _set_event(), "answers": _set_event()}
        self._is_cut = False
        self.port = 0
        self.accepted = 0
        """How many connections came."""

    def dsn(self, dsn: str) -> str:
        """The same database, through this network (its server listens on 127.0.0.1)."""
        parts = urlsplit(dsn)
        user = parts.netloc.rpartition("@")[0] or "postgres"
        return f"postgresql://{user}@127.0.0.1:{self.port}{parts.path}"

    def cut(self) -> None:
        self._is_cut = True
        for stream in self._streams:
            _reset(stream)

    def stall(self, *directions: Direction) -> None:
        """:param directions: none: both. Only ``"answers"``: what is asked is done, and nobody hears of it."""
        for direction in directions or ("requests", "answers"):
            self._flows[direction] = trio.Event()

    def heal(self) -> None:
        self._is_cut = False
        for flow in self._flows.values():
            flow.set()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        self.port = listener.socket.getsockname()[1]
        await trio.serve_listeners(self._carry, [listener], task_status=_Started(task_status))

    async def _carry(self, client: trio.SocketStream) -> None:
        self.accepted += 1
        if self._is_cut:
            _reset(client)
            return
        async with client, await trio.open_tcp_stream(*self._target) as server:
            self._streams |= {client, server}
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, client, server, "requests")
                    nursery.start_soon(self._pump, server, client, "answers")
            finally:
                self._streams -= {client, server}

    async def _pump(self, source: trio.SocketStream, sink: trio.SocketStream, direction: Direction) -> None:
        try:
            while data := await source.receive_some(65536):
                await self._flows[direction].wait()
                await sink.send_all(data)
            await self._flows[direction].wait()
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            _reset(source)
            _reset(sink)


class _Started:
    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status = task_status

    def started(self, _listeners: object = None) -> None:
        self._task_status.started()


def _set_event() -> trio.Event:
    event = trio.Event()
    event.set()
    return event


def _reset(stream: trio.SocketStream) -> None:
    """Close with RST, which is what a cut looks like to whoever still sends."""
    if stream.socket.fileno() >= 0:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.socket.close()


OpenNetwork = Callable[[PostgresServer], Awaitable[Network]]


@pytest.fixture
async def open_network(nursery: trio.Nursery) -> OpenNetwork:
    async def open_one(server: PostgresServer) -> Network:
        network = Network(("127.0.0.1", server.port))
        await nursery.start(network.serve)
        return network

    return open_one


@pytest.fixture
async def network(breakable_server: PostgresServer, open_network: OpenNetwork) -> Network:
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
default_pool_size = 5
max_client_conn = 100
logfile = {folder}/log
"""


@pytest.fixture(scope="session")
def pooler_port(postgres_server: PostgresAccess) -> Iterator[int]:
    """The port of pgbouncer in transaction mode before the server of `postgres_dsn`."""
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


# --- asyncio, without trio and the bridge ------------------------------------------------------------------------------


class AsyncioDatabase:
    """One connection to a database, for tests that are not async: each call runs an event loop until it has ended."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self.connection: asyncpg.Connection = self._runner.run(asyncpg.connect(dsn, server_settings={"jit": "off"}))

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
            connection = await asyncpg.connect(self.dsn, server_settings={"jit": "off"})
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


@pytest.fixture
def asyncio_database(postgres_dsn: str) -> Iterator[AsyncioDatabase]:
    """A migrated database of its own."""
    database = AsyncioDatabase(postgres_dsn)
    yield database
    database.close()
