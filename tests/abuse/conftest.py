"""Engines in processes of their own, peers that speak in bytes, and somebody else who is to be served all the while."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from websockets.trio.client import ClientConnection, connect
from websockets.typing import Subprotocol

_HERE = Path(__file__).parent
_SECONDS = 20.0
"""Nothing takes nearly as long, unless the engine hangs."""
_FILES = 2_048
_NUMBERS = itertools.count()
_MODEL = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="{key}" isExecutable="true">
    <startEvent id="s"/><serviceTask id="task" stellwerk:topic="{key}"/><endEvent id="e"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="task"/><sequenceFlow id="f2" sourceRef="task" targetRef="e"/>
  </process>
</definitions>"""


@attrs.frozen
class Reply:
    status: int
    headers: dict[str, str]
    body: Any
    """What the JSON says, else bytes."""


class Peer:
    """The client's end of a connection. Every wait has a deadline, so that a hanging engine fails its test."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        with trio.fail_after(_SECONDS):
            await self.stream.send_all(data)

    async def ask(self, method: str, path: str, body: object = None, headers: str = "") -> Reply:
        """`body`: bytes as they are, anything else as JSON; None: there is none."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: here\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
        await self.send(head.encode() + content)
        return await self.reply()

    async def reply(self) -> Reply:
        with trio.fail_after(_SECONDS):
            lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            size = int(headers.get("content-length", "0"))
            while len(self._buffer) < size:
                await self._more()
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        is_json = "json" in headers.get("content-type", "")
        return Reply(int(lines[0].split(" ")[1]), headers, json.loads(body) if is_json and body else body)

    async def rest(self) -> bytes:
        """All until the engine closes; a reset ends it too."""
        with trio.fail_after(_SECONDS):
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

    async def _more(self) -> None:
        data = await self.stream.receive_some(65536)
        assert data, f"the engine closed in the middle of {self._buffer!r}"
        self._buffer += bytes(data)


class Session:
    """A worker's WebSocket, spoken by another implementation than ours."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._received: list[dict[str, Any]] = []

    async def say(self, *messages: dict[str, object]) -> None:
        await self.connection.send(json.dumps(list(messages)))

    async def next(self, *kinds: str) -> dict[str, Any]:
        """The next message of one of these types."""
        with trio.fail_after(_SECONDS):
            while True:
                for message in self._received:
                    if message["type"] in kinds:
                        self._received.remove(message)
                        return message
                frame = json.loads(await self.connection.recv())
                self._received += frame if isinstance(frame, list) else [frame]


@attrs.define(eq=False)
class Engine:
    """A process that listens."""

    process: subprocess.Popen[str]
    port: int
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def memory(self) -> int:
        """Bytes that it has in memory now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    @property
    def files(self) -> int:
        """That it has open, sockets among them."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @asynccontextmanager
    async def peer(self, receive_bytes: int | None = None) -> AsyncIterator[Peer]:
        """`receive_bytes`: the size of its buffer for what it does not read."""
        raw = trio.socket.socket()
        if receive_bytes is not None:
            raw.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_bytes)
        with trio.fail_after(_SECONDS):
            await raw.connect(("127.0.0.1", self.port))
        async with trio.SocketStream(raw) as stream:
            yield Peer(stream)

    async def ask(self, method: str, path: str, body: object = None, headers: str = "") -> Reply:
        async with self.peer() as peer:
            return await peer.ask(method, path, body, headers)

    @asynccontextmanager
    async def asker(self) -> AsyncIterator[Callable[..., Awaitable[Reply]]]:
        """Like `ask`, on a connection that is kept for as long as the engine keeps it."""
        async with AsyncExitStack() as stack:
            peer: Peer | None = None

            async def ask(*request: Any) -> Reply:
                nonlocal peer
                if peer is None:
                    peer = await stack.enter_async_context(self.peer())
                reply = await peer.ask(*request)
                if reply.headers.get("connection") == "close":
                    await peer.stream.aclose()
                    peer = None
                return reply

            yield ask

    @asynccontextmanager
    async def worker(self, hello: dict[str, object] | None = None, **options: Any) -> AsyncIterator[Session]:
        """A WebSocket; with `hello` welcomed already."""
        url = f"ws://127.0.0.1:{self.port}/workers"
        async with connect(url, subprotocols=[Subprotocol("stellwerk.v1")], max_size=None, **options) as connection:
            session = Session(connection)
            if hello is not None:
                await session.say(hello)
                await session.next("welcome")
            yield session

    async def start(self, process: str = "abused", **variables: object) -> str:
        reply = await self.ask("POST", "/api/v1/process-instances", {"process_def_id": process, "variables": variables})
        assert reply.status == 201, reply
        return str(reply.body["instance_id"])

    @asynccontextmanager
    async def all_returns(self, memory_max: int = 24 * 2**20) -> AsyncIterator[None]:
        """Afterwards it has no more files open than before, and hardly more memory.

        What was freed stays with the process for what comes next: where that is much, it is done once before.
        """
        files, memory = self.files, self.memory
        yield
        with trio.move_on_after(_SECONDS):
            while self.files > files or self.memory > memory + memory_max:
                await trio.sleep(0.02)
        assert self.files <= files
        assert self.memory - memory <= memory_max, f"{(self.memory - memory) / 2**20:.0f} MiB more than before"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


# --- engines ---------------------------------------------------------------------------------------------------------

StartEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def start_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    """``start_engine("--option", …)``: ``stellwerk serve`` on a file of its own, with the processes ``served`` and
    ``abused``, each of one task with the topic of that name. ``program``: of this directory, in its place."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("what a process has open is only told by Linux")
    engines: list[Engine] = []

    def start(*options: str, files_max: int | None = None, program: str | None = None) -> Engine:
        folder = tmp_path_factory.mktemp("abuse")
        database = str(folder / "engine.db")
        serve = ["-m", "stellwerk", "serve", "--db", database, "--port", "0", *options]
        command = [sys.executable, *(serve if program is None else [str(_HERE / program), database])]
        if files_max is not None:
            command = ["sh", "-c", f'ulimit -n {files_max} && exec "$@"', "sh", *command]
        log_file = folder / "engine.log"
        with log_file.open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        engines.append(Engine(process, 0, log_file))
        assert process.stdout is not None
        announced = re.search(r"listening on http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert announced is not None, log_file.read_text()
        engines[-1].port = int(announced[1])
        return engines[-1]

    yield start
    for engine in engines:
        engine.end()


def _deploy(engine: Engine, headers: dict[str, str] | None = None) -> None:
    files = [{"name": f"{key}.bpmn", "xml": _MODEL.format(key=key)} for key in ("served", "abused")]
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=_SECONDS)
    try:
        connection.request("POST", "/api/v1/process-definitions", json.dumps({"files": files}), headers or {})
        reply = connection.getresponse()
        assert reply.status == 201, reply.read()
    finally:
        connection.close()


@pytest.fixture(scope="session")
def deploy() -> Callable[..., None]:
    """``deploy(engine, headers)``: the two processes."""
    return _deploy


@pytest.fixture(scope="session")
def files_max() -> int:
    """How many files `engine` may have open."""
    return _FILES


@pytest.fixture(scope="session")
def running_engine(start_engine: StartEngine) -> Engine:
    engine = start_engine(files_max=_FILES)
    _deploy(engine)
    return engine


@pytest.fixture(scope="session")
def running_impatient(start_engine: StartEngine) -> Engine:
    engine = start_engine(program="impatient.py")
    _deploy(engine)
    return engine


def _unharmed(engine: Engine, faults: Sequence[str] = ()) -> Iterator[Engine]:
    told = len(engine.log)
    yield engine
    assert engine.process.poll() is None, engine.log
    assert "Traceback" not in engine.log[told:], engine.log[told:]
    assert "level=error" not in engine.log[told:], engine.log[told:]


@pytest.fixture
def engine(running_engine: Engine) -> Iterator[Engine]:
    """``stellwerk serve``. Whatever a test does to it, it logs no mistake of its own."""
    yield from _unharmed(running_engine)


@pytest.fixture
def impatient(running_impatient: Engine) -> Iterator[Engine]:
    """The same with short deadlines."""
    yield from _unharmed(running_impatient)


# --- somebody else ---------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Other:
    """A client and worker who minds its own business: starts an instance, fetches its task, completes it, looks."""

    _peer: Peer
    _headers: str
    _name: str
    _begun: int = 0
    _ended: int = 0
    _one_more: trio.Event = attrs.field(factory=trio.Event)
    may_end: bool = False

    async def work(self) -> None:
        """Until it may end, with a whole cycle."""
        while not self.may_end:
            self._begun += 1
            await self._cycle()
            self._ended += 1
            self._one_more.set()
            self._one_more = trio.Event()

    async def served(self) -> None:
        """Wait for the end of a cycle that begins from now on."""
        last = self._begun
        with trio.fail_after(_SECONDS):
            while self._ended <= last:
                await self._one_more.wait()

    async def _cycle(self) -> None:
        start = {"process_def_id": "served", "variables": {"of": self._name}}
        started = await self._ask("POST", "/process-instances", start)
        # An earlier test that failed may have left tasks.
        mine = {"filter": f'"of":"{self._name}"', "wait_ms": 5_000}
        poll = {"worker_id": "other", "task_types": ["served"], **mine}
        (task,) = await self._ask("POST", "/external-tasks/fetch-and-lock", poll)
        assert task["process_instance_id"] == started["instance_id"]
        result = {"worker_id": "other", "variables": {"done": True}}
        await self._ask("POST", f"/external-tasks/{task['task_id']}/complete", result)
        instance = await self._ask("GET", f"/process-instances/{started['instance_id']}/wait?timeout_ms=5000")
        assert instance["status"] == "COMPLETED"

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        reply = await self._peer.ask(method, f"/api/v1{path}", body, self._headers)
        assert reply.status < 300, reply
        return reply.body


@pytest.fixture
def other_works() -> Callable[..., AbstractAsyncContextManager[Other]]:
    """``async with other_works(engine) as other``: all the while; every answer has to be right and in time."""

    @asynccontextmanager
    async def work(engine: Engine, headers: str = "") -> AsyncIterator[Other]:
        async with engine.peer() as peer, trio.open_nursery() as nursery:
            other = Other(peer, headers, f"other {next(_NUMBERS)}")
            nursery.start_soon(other.work)
            await other.served()
            yield other
            await other.served()
            other.may_end = True

    return work
