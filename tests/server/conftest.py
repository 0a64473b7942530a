"""A server on a real socket, and a peer that speaks in bytes."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import attrs
import h11
import pytest
import trio

from stellwerk.server.http.connection import HttpHost, UpgradeHandler
from stellwerk.server.http.exchange import Application
from stellwerk.server.http.limits import HttpLimits
from stellwerk.server.serving import Server
from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.logging import LogLevel, open_log
from stellwerk.system.sockets import listening_port, open_listeners


@attrs.frozen
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection") != "close"


class Peer:
    """The client's end of a connection. Every wait has a deadline, so that a hanging server fails its test."""

    SECONDS = 10

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        with trio.fail_after(self.SECONDS):
            await self.stream.send_all(data)

    async def ask(self, data: bytes, *, body_follows: bool = True) -> Answer:
        await self.send(data)
        return await self.answer(body_follows=body_follows)

    async def answer(self, *, body_follows: bool = True) -> Answer:
        head = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = b""
        if body_follows and headers.get("transfer-encoding") == "chunked":
            while size := int(await self._until(b"\r\n"), 16):
                body += (await self._exactly(size + 2))[:-2]
            await self._until(b"\r\n")
        elif body_follows:
            body = await self._exactly(int(headers.get("content-length", "0")))
        return Answer(int(head[0].split(" ")[1]), headers, body)

    async def rest(self) -> bytes:
        """All until the server closes; a reset ends it too."""
        with trio.fail_after(self.SECONDS):
            try:
                while data := await self.stream.receive_some(65536):
                    self._buffer += bytes(data)
            except trio.BrokenResourceError:
                pass
        rest, self._buffer = self._buffer, b""
        return rest

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            await self._more()
        head, _, self._buffer = self._buffer.partition(mark)
        return head

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    async def _more(self) -> None:
        with trio.fail_after(self.SECONDS):
            data = await self.stream.receive_some(65536)
        assert data, f"the server closed in the middle of {self._buffer!r}"
        self._buffer += bytes(data)


class RunningServer:
    def __init__(self, server: Server, host: HttpHost, port: int, log: io.StringIO, scope: trio.CancelScope) -> None:
        self.server = server
        self.host = host
        self.port = port
        self.scope = scope
        self.ended = trio.Event()
        self.peers: list[Peer] = []
        self._log = log

    @property
    def log_lines(self) -> list[str]:
        return self._log.getvalue().splitlines()

    async def connect(self) -> Peer:
        self.peers.append(Peer(await trio.open_tcp_stream("127.0.0.1", self.port)))
        return self.peers[-1]


StartServer: TypeAlias = Callable[..., Awaitable[RunningServer]]


@pytest.fixture
async def start_server(nursery: trio.Nursery) -> AsyncIterator[StartServer]:
    running: list[RunningServer] = []

    async def start(
        application: Application,
        *,
        limits: HttpLimits | None = None,
        upgrade: Callable[[h11.Request], UpgradeHandler | None] = lambda _request: None,
    ) -> RunningServer:
        log = io.StringIO()
        host = HttpHost(
            application=application,
            upgrade=upgrade,
            limits=limits or HttpLimits(),
            clock=SystemClock(),
            entropy=SystemEntropy(),
            log=open_log(LogLevel.WARNING, stream=log),
        )
        listeners = await open_listeners("127.0.0.1", 0)
        server = RunningServer(Server(host), host, listening_port(listeners), log, trio.CancelScope())
        running.append(server)

        async def run(task_status: trio.TaskStatus[None]) -> None:
            with server.scope:
                await server.server.serve(listeners, task_status=task_status)
            server.ended.set()

        await nursery.start(run)
        return server

    yield start
    for server in running:
        server.scope.cancel()
        with trio.fail_after(5):
            await server.ended.wait()
        for peer in server.peers:
            await peer.stream.aclose()
