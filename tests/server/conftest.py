"""A server on a real socket and a peer that speaks in bytes; an engine with its API, and a client of that."""

from __future__ import annotations

import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import h11
import pytest
import trio
from websockets.trio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from stellwerk.app import MEMORY, AppConfig, ServedEngine, serve_engine
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


# --- an engine and its API -----------------------------------------------------------------------------------------

ORDER = """<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <message id="m" name="paid"/>
  <process id="order" isExecutable="true">
    <startEvent id="s"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="charge"/>
    <serviceTask id="charge" stellwerk:topic="charge"/>
    <sequenceFlow id="f2" sourceRef="charge" targetRef="e"/>
    <endEvent id="e"/>
  </process>
  <process id="approval" isExecutable="true">
    <startEvent id="s2"/>
    <sequenceFlow id="g1" sourceRef="s2" targetRef="approve"/>
    <userTask id="approve" name="Approve"/>
    <sequenceFlow id="g2" sourceRef="approve" targetRef="e2"/>
    <endEvent id="e2"/>
  </process>
  <process id="paid" isExecutable="true">
    <startEvent id="s3"><messageEventDefinition messageRef="m"/></startEvent>
    <sequenceFlow id="h1" sourceRef="s3" targetRef="e3"/>
    <endEvent id="e3"/>
  </process>
</definitions>
"""

STUCK = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t">
  <process id="stuck" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="c"/><exclusiveGateway id="c"/>
    <sequenceFlow id="f2" sourceRef="c" targetRef="e">
      <conditionExpression>=a &gt; 0</conditionExpression>
    </sequenceFlow>
    <endEvent id="e"/>
  </process>
</definitions>
"""


@attrs.frozen
class Reply:
    status: int
    headers: dict[str, str]
    body: Any
    """What the JSON says, else text or bytes."""


class ApiClient:
    """One connection to an engine, kept alive."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = bytearray()

    async def get(self, path: str) -> Reply:
        """`path`: behind ``/api/v1``, unless it begins with two slashes."""
        return await self.ask(f"GET {_target(path)} HTTP/1.1\r\nHost: here\r\n\r\n".encode())

    async def post(self, path: str, body: object, headers: str = "") -> Reply:
        return await self.send("POST", path, body, headers)

    async def send(self, method: str, path: str, body: object, headers: str = "") -> Reply:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{method} {_target(path)} HTTP/1.1\r\nHost: here\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
        return await self.ask(head.encode() + content)

    async def start(self, process: str = "order", **more: object) -> str:
        reply = await self.post("/process-instances", {"process_def_id": process, **more})
        assert reply.status == 201, reply
        return str(reply.body["instance_id"])

    async def has_incident(self, instance_id: str) -> None:
        """Wait for one."""
        reply = await self.get(f"/process-instances/{instance_id}/wait?timeout_ms=8000&or_incident=true")
        assert reply.body["status"] == "RUNNING", reply

    async def ask(self, request: bytes) -> Reply:
        with trio.fail_after(10):
            await self.stream.send_all(request)
            return await self.reply()

    async def reply(self) -> Reply:
        status, headers = await self.head()
        body = await self.body(headers)
        kind = headers["content-type"].partition(";")[0]
        read: dict[str, Callable[[bytes], Any]] = {
            "application/json": json.loads,
            "application/problem+json": json.loads,
            "text/plain": bytes.decode,
        }
        return Reply(status, headers, read.get(kind, bytes)(body))

    async def body(self, headers: dict[str, str]) -> bytes:
        """Of the answer whose head was read."""
        size = int(headers["content-length"])
        while len(self._buffer) < size:
            await self._more()
        body = bytes(self._buffer[:size])
        del self._buffer[:size]
        return body

    async def head(self) -> tuple[int, dict[str, str]]:
        """Of the next answer; its body stays to be read."""
        head = (await self._until(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        return int(head[0].split(" ")[1]), headers

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            await self._more()
        head, _, self._buffer = self._buffer.partition(mark)
        return bytes(head)

    async def _more(self) -> None:
        data = await self.stream.receive_some(65536)
        assert data
        self._buffer += data


@pytest.fixture
def client_on() -> Callable[[trio.SocketStream], ApiClient]:
    """A client on a connection that stands: one of memory, too, so that time can be virtual."""
    return ApiClient


def _target(path: str) -> str:
    return path[1:] if path.startswith("//") else f"/api/v1{path}"


def _port_of(engine: ServedEngine) -> int:
    return int(engine.url.rpartition(":")[2])


@pytest.fixture
def order_model() -> str:
    """Processes ``order`` (a task of topic charge), ``approval`` (a user task) and ``paid`` (started by a message)."""
    return ORDER


@pytest.fixture
def stuck_model() -> str:
    """A process ``stuck``, which opens an incident without a variable ``a``."""
    return STUCK


@pytest.fixture
async def engine() -> AsyncIterator[ServedEngine]:
    async with serve_engine(AppConfig(db=MEMORY, port=0, log_level=LogLevel.ERROR)) as running:
        yield running


@pytest.fixture
async def file_engine(tmp_path: Path) -> AsyncIterator[ServedEngine]:
    """An engine on the file ``engine.db``, with the models deployed."""
    config = AppConfig(db=tmp_path / "engine.db", port=0, log_level=LogLevel.ERROR, synchronous="NORMAL")
    async with serve_engine(config) as running:
        await running.node.deploy([("order.bpmn", ORDER.encode()), ("stuck.bpmn", STUCK.encode())])
        yield running


@pytest.fixture
def connect_to(nursery: trio.Nursery) -> Callable[[ServedEngine], Any]:
    """``async with connect_to(engine) as client``: one more connection."""

    @asynccontextmanager
    async def connect_client(engine: ServedEngine) -> AsyncIterator[ApiClient]:
        async with await trio.open_tcp_stream("127.0.0.1", _port_of(engine)) as stream:
            yield ApiClient(stream)

    return connect_client


@pytest.fixture
async def client(engine: ServedEngine, connect_to: Callable[[ServedEngine], Any]) -> AsyncIterator[ApiClient]:
    async with connect_to(engine) as connected:
        yield connected


@pytest.fixture
async def deployed(client: ApiClient) -> ApiClient:
    """With ``order_model`` and a process ``stuck``, which opens an incident without a variable ``a``."""
    files = [{"name": "order.bpmn", "xml": ORDER}, {"name": "stuck.bpmn", "xml": STUCK}]
    reply = await client.post("/process-definitions", {"files": files})
    assert reply.status == 201, reply
    return client


class Worker:
    """A worker's end of a WebSocket, driven message by message."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._received: list[dict[str, Any]] = []

    async def say(self, **message: object) -> None:
        await self._connection.send(json.dumps(message))

    async def next(self, *kinds: str) -> dict[str, Any]:
        """The next message of one of these types."""
        with trio.fail_after(10):
            while True:
                for message in self._received:
                    if message["type"] in kinds:
                        self._received.remove(message)
                        return message
                frame = json.loads(await self._connection.recv())
                self._received += frame if isinstance(frame, list) else [frame]

    async def task(self) -> dict[str, Any]:
        """The only task of the next frame, confirmed."""
        frame = await self.next("tasks")
        (offer,) = frame["tasks"]
        await self.say(type="received", delivery=frame["delivery"])
        return dict(offer)


@pytest.fixture
def connect_worker() -> Callable[..., Any]:
    """``async with connect_worker(engine, "topic", worker_id=…) as worker``, with room for one task of each topic."""

    @asynccontextmanager
    async def connect_it(engine: ServedEngine, *topics: str, worker_id: str = "w-1") -> AsyncIterator[Worker]:
        url = f"ws://127.0.0.1:{_port_of(engine)}/workers"
        async with connect(url, subprotocols=[Subprotocol("stellwerk.v1")]) as connection:
            worker = Worker(connection)
            await worker.say(
                type="hello", worker_id=worker_id, boot_id=f"boot-{worker_id}", session_no=1, client="test/1"
            )
            await worker.next("welcome")
            for topic in topics:
                await worker.say(type="subscribe", topic=topic, max_tasks=1)
            yield worker

    return connect_it


# --- golden files ----------------------------------------------------------------------------------------------------

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Placeholders:
    """``<name>`` in a golden file: any value of the kind that the name tells, and the same wherever it stands."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def fill(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self.fill(item) for name, item in value.items()}
        if isinstance(value, str) and value in self._values:
            return self._values[value]
        return value

    def fill_path(self, path: str) -> str:
        for name, value in self._values.items():
            path = path.replace(name, str(value))
        return path

    def meet(self, expected: Any, found: Any) -> None:
        if isinstance(expected, dict):
            assert isinstance(found, dict)
            assert set(expected) == set(found)
            for name, item in expected.items():
                self.meet(item, found[name])
        elif isinstance(expected, list):
            assert isinstance(found, list)
            assert len(expected) == len(found), found
            for one, other in zip(expected, found, strict=True):
                self.meet(one, other)
        elif isinstance(expected, str) and expected.startswith("<"):
            self._bind(expected, found)
        else:
            assert expected == found
            assert type(expected) is type(found)

    def _bind(self, name: str, found: Any) -> None:
        if name.endswith("_at>"):
            assert INSTANT.fullmatch(found)
        elif name.endswith(("_ms>", "fence>")):
            assert type(found) is int
            assert found > 0
        else:
            assert isinstance(found, str)
        assert self._values.setdefault(name, found) == found, name


@pytest.fixture
def placeholders() -> Placeholders:
    return Placeholders()
