"""A scripted engine: the tests speak its side of the protocol by hand, message for message."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import h11
import pytest
import trio
import trio.testing
import trio_websocket
import wsproto.utilities
from websockets.exceptions import ConnectionClosed
from websockets.trio.server import ServerConnection, serve

from stellwerk.worker import Task, Worker
from stellwerk.worker.system import Endpoint

Json = dict[str, Any]

LIMITS = {
    "frame_bytes_max": 1_000_000,
    "payload_bytes_max": 100_000,
    "max_tasks_max": 100,
    "lock_duration_ms_min": 1_000,
    "lock_duration_ms_max": 86_400_000,
}


def engine_clock_ms() -> float:
    """Monotonic as the worker's, but another."""
    return trio.current_time() * 1000 + 123_456


class Peer:
    """The engine's end of one connection."""

    def __init__(
        self,
        send_text: Callable[[str], Awaitable[None]],
        receive_text: Callable[[], Awaitable[str | bytes]],
        close: Callable[[int], Awaitable[None]],
    ) -> None:
        self._send_text = send_text
        self._receive_text = receive_text
        self.close = close
        self._waiting: deque[Json] = deque()
        self.log: list[Json] = []
        self.frames: list[list[Json]] = []
        self._worker_ahead_ms = -math.inf
        """The worker's clock against ours: a worker in another process has another one."""

    def _now(self) -> Json:
        """As an engine tells it: the worker's clock as it was at least."""
        now = {"server_time_ms": engine_clock_ms()}
        if self._worker_ahead_ms > -math.inf:
            now["worker_time_ms"] = trio.current_time() * 1000 + self._worker_ahead_ms
        return now

    async def send(self, *messages: Json) -> None:
        frame: object = messages[0] if len(messages) == 1 else list(messages)
        await self._send_text(json.dumps(frame))

    async def receive(self, type_: str, **wanted: object) -> Json:
        """The next message of that type with these fields; others wait for their turn."""
        with trio.fail_after(60):
            while True:
                for message in self._waiting:
                    if message["type"] == type_ and all(message[name] == value for name, value in wanted.items()):
                        self._waiting.remove(message)
                        return message
                await self._read()

    async def _read(self) -> None:
        frame = json.loads(await self._receive_text())
        messages = frame if isinstance(frame, list) else [frame]
        self.frames.append(messages)
        for message in messages:
            if message.get("worker_time_ms") is not None:
                ahead_ms = message["worker_time_ms"] - trio.current_time() * 1000
                self._worker_ahead_ms = max(self._worker_ahead_ms, ahead_ms)
        self.log.extend(messages)
        self._waiting.extend(messages)

    async def receive_any(self) -> None:
        """The next frame, whatever is in it, into `log`."""
        await self._read()

    async def drain_until_closed(self) -> None:
        with trio.fail_after(60):
            try:
                while True:
                    await self._read()
            except (trio_websocket.ConnectionClosed, ConnectionClosed):
                return

    def count(self, type_: str) -> int:
        return sum(message["type"] == type_ for message in self.log)

    async def welcome(self, *, kept: tuple[Json, ...] = (), lost: tuple[Json, ...] = (), **limits: int) -> Json:
        """Answer hello. → the hello"""
        hello = await self.receive("hello")
        await self.send(
            {
                "type": "welcome",
                "session": "session-1",
                **self._now(),
                "heartbeat_ms": 5000,
                "limits": {**LIMITS, **limits},
                "kept": kept,
                "lost": lost,
            }
        )
        return hello

    async def offer(self, *offers: Json, delivery: int = 1) -> None:
        await self.send({"type": "tasks", "delivery": delivery, "tasks": offers, **self._now()})

    async def renew(self, task_id: str, fence: int, remaining_ms: int = 30_000) -> None:
        lease = {"task_id": task_id, "fence": fence, "lock_remaining_ms": remaining_ms, "lock_expires_at": ""}
        await self.send({"type": "renewed", "leases": [lease], **self._now()})

    async def revoke(self, task_id: str, fence: int, reason: str = "cancelled") -> None:
        await self.send({"type": "revoked", "leases": [{"task_id": task_id, "fence": fence, "reason": reason}]})

    async def ack(self, request: Json) -> None:
        await self.send({"type": "ack", "ref": request["ref"]})

    async def nack(self, request: Json, code: str, *, retryable: bool = False) -> None:
        text = f"because {code}"
        await self.send({"type": "nack", "ref": request["ref"], "code": code, "message": text, "retryable": retryable})


def make_offer(task_id: str = "t1", fence: int = 7, topic: str = "payment", **changes: Any) -> Json:
    return {
        "task_id": task_id,
        "fence": fence,
        "topic": topic,
        "token_id": "token-1",
        "process_instance_id": "instance-1",
        "process_definition_id": "order:3",
        "business_key": "order-17",
        "element_id": "Task_Pay",
        "attempt": 1,
        "retries_left": 3,
        "priority": 5,
        "created_at": "2026-01-01T00:00:00.000Z",
        "lock_remaining_ms": 30_000,
        "lock_expires_at": "2026-01-01T00:00:30.000Z",
        "variables": {"amount": 12},
        "headers": {"currency": "EUR"},
        "single_try": False,
        **changes,
    }


class ScriptedEngine:
    """Accepts connections over memory streams, so that time is virtual; `refuses` makes it unreachable."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._send, self._streams = trio.open_memory_channel[trio.abc.Stream](100)
        self.refuses = False
        self.dials: list[float] = []

    async def dial(self, endpoint: Endpoint) -> trio.abc.Stream:
        self.dials.append(trio.current_time())
        if self.refuses:
            raise ConnectionRefusedError("nobody there")
        ours, theirs = trio.testing.memory_stream_pair()
        await self._send.send(ours)
        return theirs

    async def accept_stream(self) -> trio.abc.Stream:
        with trio.fail_after(120):
            return await self._streams.receive()

    async def accept(self, *, unread_frames_max: int = 10_000) -> Peer:
        """With ``unread_frames_max=0`` the peer stalls (and answers no ping) as soon as the test does not read."""
        stream = await self.accept_stream()
        peer: Peer = await self._nursery.start(self._host, stream, unread_frames_max)
        return peer

    async def _host(self, stream: trio.abc.Stream, unread_frames_max: int, task_status: trio.TaskStatus[Peer]) -> None:
        try:
            async with trio.open_nursery() as nursery:
                request = await trio_websocket.wrap_server_stream(
                    nursery, stream, message_queue_size=unread_frames_max, max_message_size=10**8
                )
                assert request.path == "/workers"
                websocket = await request.accept(subprotocol="stellwerk.v1")

                async def close(code: int) -> None:
                    with trio.move_on_after(0.01):
                        await websocket.aclose(code)
                    await stream.aclose()

                task_status.started(Peer(websocket.send_message, websocket.get_message, close))
        except* wsproto.utilities.LocalProtocolError:
            # trio-websocket cannot answer a ping that arrives while it closes.
            await stream.aclose()

    async def accept_welcomed(self, **arguments: Any) -> Peer:
        peer = await self.accept()
        await peer.welcome(**arguments)
        await peer.receive("subscribe")
        return peer


class Observed:
    """A worker, and what its callbacks were told."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.errors: list[tuple[str, Exception, Task | None]] = []
        self.heartbeats: list[tuple[str, str | None]] = []
        self._changed = trio.Event()
        worker.on_error(self._on_error)
        worker.on_heartbeat(self._on_heartbeat)

    def _on_error(self, kind: str, error: Exception, task: Task | None) -> None:
        self.errors.append((kind, error, task))
        self._has_changed()

    def _on_heartbeat(self, operation: str, task_id: str | None) -> None:
        self.heartbeats.append((operation, task_id))
        self._has_changed()

    def _has_changed(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @property
    def error_kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.errors]

    async def wait_for_error(self, kind: str) -> Exception:
        with trio.fail_after(300):
            while True:
                for seen, error, _ in self.errors:
                    if seen == kind:
                        return error
                await self._changed.wait()

    async def wait_for_heartbeat(self, operation: str, task_id: str | None = None) -> None:
        with trio.fail_after(300):
            while (operation, task_id) not in self.heartbeats:
                await self._changed.wait()


class Served:
    """A worker that is served in the background."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.ended = trio.Event()

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        await self._worker.serve(task_status=task_status)
        self.ended.set()


@pytest.fixture
def serve_worker(nursery: trio.Nursery) -> Callable[[Worker], Awaitable[Served]]:
    """Serve a worker in the background, and wait until it has begun."""

    async def begin(worker: Worker) -> Served:
        served = Served(worker)
        await nursery.start(served.serve)
        return served

    return begin


@pytest.fixture
def engine(nursery: trio.Nursery) -> ScriptedEngine:
    return ScriptedEngine(nursery)


@pytest.fixture
def scripted_engine() -> type[ScriptedEngine]:
    """For tests that run trio themselves."""
    return ScriptedEngine


@pytest.fixture
def observed(engine: ScriptedEngine) -> Observed:
    return Observed(Worker("http://engine:10560", worker_id="w1", dial=engine.dial))


@pytest.fixture
def offer() -> Callable[..., Json]:
    return make_offer


@pytest.fixture
def observe() -> Callable[[Worker], Observed]:
    return Observed


# --- an engine that is polled ----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Asked:
    """One request of a worker, to be answered by the test."""

    connection: HttpPeer
    path: str
    headers: dict[str, str]
    body: Json
    at: float
    """When it arrived, on trio's clock."""

    @property
    def verb(self) -> str:
        return self.path.rsplit("/", 1)[1]

    @property
    def task_id(self) -> str:
        return self.path.split("/")[-2]

    async def answer(self, body: object = None, status: int = 200, headers: dict[str, str] | None = None) -> None:
        text = json.dumps({} if body is None else body).encode()
        await self.connection.send(status, text, headers or {})

    async def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        await self.answer({"code": code, "detail": f"because {code}", "error": ""}, status, headers)

    async def extend(self) -> None:
        """The good answer to extend-lock."""
        remaining = self.body["extension_ms"]
        await self.answer({"lock_expire_at": "2026-01-01T00:01:00.000Z", "lock_remaining_ms": remaining})

    async def hang_up(self) -> None:
        """Without an answer."""
        await self.connection.close()


class HttpPeer:
    """The engine's end of one HTTP connection."""

    def __init__(self, stream: trio.abc.Stream, engine: PolledEngine) -> None:
        self._stream = stream
        self._engine = engine
        self._http = h11.Connection(h11.SERVER)
        self.worker_left = trio.Event()
        """The worker closed its side."""

    async def serve(self) -> None:
        try:
            while isinstance(request := await self._next_event(), h11.Request):
                await self._hear(request)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.worker_left.set()

    async def _hear(self, request: h11.Request) -> None:
        body = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
        headers = {name.decode(): value.decode() for name, value in request.headers}
        self._answered = trio.Event()
        self._engine.hear(Asked(self, request.target.decode(), headers, json.loads(body), trio.current_time()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._notice_end)
            await self._answered.wait()
            nursery.cancel_scope.cancel()
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()

    async def _notice_end(self) -> None:
        try:
            data = await self._stream.receive_some()
            assert data == b"", "the worker sends one request at a time"
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._answered.set()  # by nothing
        self.worker_left.set()

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self._stream.receive_some()))
        return event

    async def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        head = h11.Response(status_code=status, headers=[("content-length", str(len(body))), *headers.items()])
        events = (head, h11.Data(data=body), h11.EndOfMessage())
        await self._stream.send_all(b"".join(self._http.send(event) or b"" for event in events))
        self._answered.set()

    async def close(self) -> None:
        await self._stream.aclose()


class PolledEngine:
    """Answers HTTP requests by hand, over memory streams, so that time is virtual; `refuses` makes it unreachable."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._waiting: deque[Asked] = deque()
        self._heard = trio.Event()
        self.refuses = False
        self.dials = 0
        self.log: list[Asked] = []

    async def dial(self, endpoint: Endpoint) -> trio.abc.Stream:
        self.dials += 1
        if self.refuses:
            raise ConnectionRefusedError("nobody there")
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(HttpPeer(ours, self).serve)
        return theirs

    def hear(self, asked: Asked) -> None:
        self.log.append(asked)
        self._waiting.append(asked)
        self._heard.set()
        self._heard = trio.Event()

    async def receive(self, verb: str, task_id: str | None = None, **wanted: object) -> Asked:
        """The next request of that verb (``complete|fail``: of these) with these fields; others wait for their turn."""
        verbs = verb.split("|")
        with trio.fail_after(2_000):
            while True:
                for asked in self._waiting:
                    fits = asked.verb in verbs and task_id in (None, asked.task_id)
                    if fits and all(asked.body.get(name) == value for name, value in wanted.items()):
                        self._waiting.remove(asked)
                        return asked
                await self._heard.wait()

    async def receive_poll(self, **wanted: object) -> Asked:
        """The next poll that is to be answered with tasks, if there are any; quick ones bring nothing."""
        while True:
            poll = await self.receive("fetch-and-lock", None, **wanted)
            if poll.body["wait_ms"]:
                return poll
            await poll.answer([])

    async def bring_nothing(self) -> None:
        """Answer every further poll when its time is up."""
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._wait_in_vain, await self.receive("fetch-and-lock"))

    async def _wait_in_vain(self, poll: Asked) -> None:
        await trio.sleep(poll.body["wait_ms"] / 1000)
        await poll.answer([])

    async def extend_all(self) -> None:
        while True:
            await (await self.receive("extend-lock")).extend()

    def count(self, verb: str) -> int:
        return sum(asked.verb == verb for asked in self.log)


def make_task(task_id: str = "t1", fence: int = 7, topic: str = "payment", **changes: Any) -> Json:
    return {
        "task_id": task_id,
        "token_id": "token-1",
        "process_instance_id": "instance-1",
        "task_type": topic,
        "variables": {"amount": 12},
        "fence": fence,
        "lock_expire_at": "2026-01-01T00:00:30.000Z",
        "lock_remaining_ms": 30_000,
        "retries": 3,
        "attempt": 1,
        "priority": 5,
        "business_key": "order-17",
        "process_definition_id": "order:3",
        "element_id": "Task_Pay",
        "created_at": "2026-01-01T00:00:00.000Z",
        "headers": {"currency": "EUR"},
        "single_try": False,
        **changes,
    }


@pytest.fixture
def polled(nursery: trio.Nursery) -> PolledEngine:
    return PolledEngine(nursery)


@pytest.fixture
def polled_engine() -> type[PolledEngine]:
    """For tests that run trio themselves."""
    return PolledEngine


@pytest.fixture
def polling(polled: PolledEngine) -> Observed:
    return Observed(Worker("http://engine:10560", worker_id="w1", transport="http", dial=polled.dial))


@pytest.fixture
def pulled_task() -> Callable[..., Json]:
    return make_task


# --- an engine on the network ----------------------------------------------------------------------------------------


class NetworkEngine:
    """The scripted engine on a real TCP port, by another WebSocket library than ours."""

    def __init__(self) -> None:
        self._send, self._peers = trio.open_memory_channel[Peer](100)
        self.url = ""

    async def handle(self, connection: ServerConnection) -> None:
        async def send_text(text: str) -> None:
            await connection.send(text)

        async def receive_text() -> str | bytes:
            text: str | bytes = await connection.recv()
            assert isinstance(text, str), "the worker sends text frames"
            return text

        async def close(code: int) -> None:
            await connection.aclose(code)

        assert connection.subprotocol == "stellwerk.v1"
        await self._send.send(Peer(send_text, receive_text, close))
        await connection.wait_closed()

    async def accept_welcomed(self, **arguments: Any) -> Peer:
        with trio.fail_after(20):
            peer = await self._peers.receive()
        await peer.welcome(**arguments)
        await peer.receive("subscribe")
        return peer


@pytest.fixture
async def network_engine() -> AsyncIterator[NetworkEngine]:
    engine = NetworkEngine()
    async with trio.open_nursery() as nursery:
        server = await nursery.start(_serve, engine)
        port = server.listeners[0].socket.getsockname()[1]
        engine.url = f"http://127.0.0.1:{port}"
        yield engine
        nursery.cancel_scope.cancel()


async def _serve(engine: NetworkEngine, task_status: trio.TaskStatus[Any]) -> None:
    await serve(
        engine.handle,
        0,
        host="127.0.0.1",
        subprotocols=["stellwerk.v1"],  # type: ignore[list-item]
        task_status=task_status,
    )
