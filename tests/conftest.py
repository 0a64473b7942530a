"""Options of the whole test suite, the PostgreSQL server, and a network to it that breaks."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
import trio

from stellwerk.testing.databases import NoServer, PostgresAccess, PostgresServer, find_server

pytest_plugins = ["pytester"]  # for the tests of our own plugin

# Before anything imports it: its assertions shall tell what they compared.
pytest.register_assert_rewrite("stellwerk.testing.store_contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=12, help="how often the engine is killed with SIGKILL under load")
    parser.addoption("--kill-seed", type=int, default=1, help="the seed of the moments at which it is killed")
    parser.addoption("--chaos-seconds", type=float, default=6, help="how long two nodes are killed and cut off")
    parser.addoption("--chaos-seed", type=int, default=1, help="the seed of what befalls them")
    parser.addoption("--sim-seed", type=int, default=1, help="the first seed that is simulated")
    parser.addoption("--sim-seeds", type=int, default=8, help="how many small seeds are simulated, and a large one")
    parser.addoption("--failover", action="store_true", help="also let a standby take the place of its primary")


@pytest.fixture(scope="session", autouse=True)
def no_terminal() -> None:
    """Processes that run tests side by side are told the width of a terminal, which none of them has."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Some tests log texts with lone surrogates, which no report can carry to another process."""
    report = yield
    if report is not None and "sections" in report:
        report["sections"] = [tuple(_printable(text) for text in section) for section in report["sections"]]
    return report


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresAccess]:
    """One server for all tests; who stops or chokes it starts one of its own (`PostgresServer`)."""
    try:
        server = find_server()
    except NoServer as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def postgres_dsn(postgres_server: PostgresAccess) -> Iterator[str]:
    """A database of its own for the test, migrated."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


# --- a network --------------------------------------------------------------------------------------------------------

Direction = Literal["requests", "answers"]
Flows = dict[Direction, trio.Event]
"""Data pass while the event of their direction is set."""


class Network:
    """A TCP proxy in front of one port of this machine. It does what networks do.

    `dsn` leads through it. `cut` breaks all connections and refuses new ones, `stall` delivers nothing but goes on
    taking what is sent (half-open: neither side learns of it), `heal` ends both: what was held back arrives late.
    `forget` is a stall for ever for the connections that there are; new ones pass.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._streams: set[trio.SocketStream] = set()
        self._flows = _open_flows()
        self._is_cut = False
        self.port = 0
        self.accepted = 0
        """How many connections came."""
        self.held_bytes = 0
        """How much was held back, all in all."""

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

    def forget(self) -> None:
        self.stall()
        self._flows = _open_flows()

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
        flows = self._flows
        async with client, await trio.open_tcp_stream(*self._target) as server:
            self._streams |= {client, server}
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, client, server, flows, "requests")
                    nursery.start_soon(self._pump, server, client, flows, "answers")
            finally:
                self._streams -= {client, server}

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, flows: Flows, direction: Direction
    ) -> None:
        try:
            while data := await source.receive_some(65536):
                if not flows[direction].is_set():
                    self.held_bytes += len(data)
                    await flows[direction].wait()
                await sink.send_all(data)
            await flows[direction].wait()
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            _reset(source)
            _reset(sink)


class _Started:
    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status = task_status

    def started(self, _listeners: object = None) -> None:
        self._task_status.started()


def _open_flows() -> Flows:
    flows: Flows = {"requests": trio.Event(), "answers": trio.Event()}
    for flow in flows.values():
        flow.set()
    return flows


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
