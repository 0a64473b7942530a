"""The worker SDK of bpm-engine 0.2 as far as a server sees it: what it sends, and what it can read.

Written from the structs of ``bpm-engine-worker-sdk`` 0.2.0 (src/client.rs) and what serde does with them: unknown
fields are ignored, a field that is missing or of another type makes the whole answer unreadable.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import attrs
import msgspec
import pytest
import trio

from stellwerk.app import ServedEngine

PREFIX = "/bpm-engine/api/v1"


class FetchedTask(msgspec.Struct):
    """``FetchAndLockResponseItem``"""

    task_id: str
    token_id: str
    process_instance_id: str
    task_type: str
    variables: dict[str, str]


class ErrorBody(msgspec.Struct):
    error: str


@attrs.frozen
class EngineError(Exception):
    """``ClientError::Engine``"""

    status: int
    message: str


@attrs.frozen
class Answer:
    status: int
    headers: dict[str, str]
    text: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.text)


@attrs.define
class Client:
    """Of the API as a whole. Paths are behind its prefix."""

    api: Any
    _connect: Callable[[], Awaitable[Any]]
    headers: str = ""
    """Lines that go with every request."""

    async def get(self, path: str) -> Answer:
        return await self.send("GET", path)

    async def post(self, path: str, body: object = None, headers: str = "") -> Answer:
        return await self.send("POST", path, body, headers)

    async def send(self, method: str, path: str, body: object = None, headers: str = "") -> Answer:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"{method} {PREFIX}{path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nAccept: */*\r\n"
        lines = f"{head}{self.headers}{headers}Content-Length: {len(content)}\r\n\r\n"
        with trio.fail_after(20):
            with suppress(trio.BrokenResourceError):  # what is too long is refused before all of it was sent
                await self.api.stream.send_all(lines.encode() + content)
            status, answered = await self.api.head()
            text = await self.api.body({"content-length": "0", **answered})
        if answered.get("connection") == "close":  # it was refused before its body was read
            await self.api.stream.aclose()
            self.api = await self._connect()
        return Answer(status, answered, text)

    async def start(self, process: str = "order", **variables: object) -> str:
        reply = await self.post("/process-instances", {"process_def_id": process, "variables": variables})
        assert reply.status == 201, reply
        return str(reply.body["instance_id"])

    async def ended(self, instance_id: str) -> Any:
        """The instance whole, as the engine's own API has it, when it has ended or has an incident."""
        await self.api.get(f"/process-instances/{instance_id}/wait?timeout_ms=8000&or_incident=true")
        return (await self.api.get(f"/process-instances/{instance_id}")).body


@attrs.define
class Sdk:
    """``EngineClient``"""

    client: Client

    async def fetch_and_lock(
        self, worker_id: str, task_types: list[str], max_tasks: int = 10, lock_duration_ms: int = 30_000
    ) -> list[FetchedTask]:
        body = {
            "worker_id": worker_id,
            "task_types": task_types,
            "max_tasks": max_tasks,
            "lock_duration_ms": lock_duration_ms,
        }
        answer = await self.ask("/external-tasks/fetch-and-lock", body)
        return msgspec.json.decode(answer.text, type=list[FetchedTask])

    async def complete(self, task_id: str, worker_id: str, variables: dict[str, str] | None = None) -> None:
        more = {"variables": variables} if variables else {}
        await self.ask(f"/external-tasks/{task_id}/complete", {"worker_id": worker_id, **more})

    async def fail(self, task_id: str, worker_id: str, error: str, retry_after_ms: int | None = None) -> None:
        more = {} if retry_after_ms is None else {"retry_after_ms": retry_after_ms}
        await self.ask(f"/external-tasks/{task_id}/fail", {"worker_id": worker_id, "error": error, **more})

    async def ask(self, path: str, body: object) -> Answer:
        """:raises EngineError: as the SDK tells it."""
        text = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        answer = await self.client.post(path, text)
        if not 200 <= answer.status < 300:
            # The SDK makes do with the status where it cannot read this. Nobody then knows what was wrong.
            raise EngineError(answer.status, msgspec.json.decode(answer.text, type=ErrorBody).error)
        return answer


@pytest.fixture
async def connect_sdk(
    engine: ServedEngine, connect_to: Callable[[ServedEngine], Any], order_model: str
) -> AsyncIterator[Callable[[], Awaitable[Sdk]]]:
    """``await connect_sdk()``: one more, with a connection of its own. ``order_model`` is deployed."""
    await engine.node.deploy([("order.bpmn", order_model.encode())])
    async with AsyncExitStack() as connections:

        async def connect() -> Any:
            return await connections.enter_async_context(connect_to(engine))

        async def sdk() -> Sdk:
            return Sdk(Client(await connect(), connect))

        yield sdk


@pytest.fixture
async def sdk(connect_sdk: Callable[[], Awaitable[Sdk]]) -> Sdk:
    return await connect_sdk()


@pytest.fixture
def client(sdk: Sdk) -> Client:
    return sdk.client


@pytest.fixture
def refused() -> Callable[[Awaitable[object]], Awaitable[EngineError]]:
    """``await refused(sdk.complete(…))``: how the SDK tells it."""

    async def ask(request: Awaitable[object]) -> EngineError:
        with pytest.raises(EngineError) as found:
            await request
        assert found.value.message
        return found.value

    return ask


@pytest.fixture
def basic() -> Callable[[str], str]:
    """A header line with a key, as reqwest makes it of ``http://worker:KEY@host``."""

    def header(key: str) -> str:
        return f"Authorization: Basic {base64.b64encode(f'worker:{key}'.encode()).decode()}\r\n"

    return header
