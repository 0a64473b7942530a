"""What is refused leaves nothing behind that only the collector of cycles would free.

``stellwerk serve`` lets that one look seldom. An exception that is kept by a frame of its own traceback is such a
cycle, with all that its frames hold: a few hundred refused bodies of some megabytes would fill any memory before.
"""

from __future__ import annotations

import gc
import json
import types
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from stellwerk.app import MEMORY, AppConfig, ServedEngine, serve_engine
from stellwerk.system.logging import LogLevel

TIMES = 5


def post(path: str, body: bytes, headers: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


CHUNKED = b"POST /api/v1/messages HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADE = (
    b"GET /workers HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: stellwerk.v1\r\n\r\n"
)


def frame(*messages: dict[str, object]) -> bytes:
    content = json.dumps(messages).encode()
    size = bytes([0x80 | len(content)]) if len(content) < 126 else bytes([0xFE, *len(content).to_bytes(2, "big")])
    return b"\x81" + size + bytes(4) + content


HELLO: dict[str, object] = {"type": "hello", "worker_id": "w", "boot_id": "b", "session_no": 1, "client": "test"}
CLOSE = bytes([0x88, 0x82]) + bytes(4) + b"\x03\xe8"
"""The other half of the closing handshake."""
FORM = "Content-Type: multipart/form-data; boundary=b\r\n"
REFUSED = {
    "no such path": b"GET /nothing HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n",
    "no such instance": b"GET /api/v1/process-instances/x HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n",
    "no JSON": post("/api/v1/process-instances", b"{"),
    "another shape": post("/api/v1/process-instances", b'{"variables": [], "more": 1}'),
    "shapes within": post("/api/v1/process-definitions", b'{"files": [{"name": 1}, {"xml": 2}, 3]}'),
    "too deep": post("/api/v1/process-instances", b"[" * 200 + b"]" * 200),
    "NUL": post("/api/v1/messages", b'{"name": "\\u0000"}'),
    "variables too long": post("/api/v1/messages", b'{"name":"x","variables":{"a":"%s"}}' % (b"x" * 2_000_000)),
    "body too long": b"POST /api/v1/messages HTTP/1.1\r\nHost: here\r\nContent-Length: 99999999\r\n\r\n",
    "body without end": CHUNKED + (b"40000\r\n" + b" " * 0x40000 + b"\r\n") * 20,
    "no chunk": CHUNKED + b"xyz\r\n",
    "no HTTP": b"nonsense\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "head too long": b"GET /" + b"x" * 40_000,
    "path no UTF-8": b"GET /%FF HTTP/1.1\r\nHost: here\r\n\r\n",
    "no such task": post("/api/v1/external-tasks/x/complete", b'{"worker_id": "w"}'),
    "Camunda, no JSON": post("/engine-rest/external-task/fetchAndLock", b"{"),
    "Camunda, another shape": post("/engine-rest/external-task/fetchAndLock", b'{"topics": [1, {"topicName": 2}]}'),
    "Camunda, no form": post("/engine-rest/deployment/create", b"--b\r\n?", FORM),
    "ProcessCube, another shape": post("/atlas_engine/api/v1/external_tasks/fetch_and_lock", b'{"topicName": {}}'),
    "no hello": UPGRADE + frame({"type": "holding", "leases": []}),
    "a bad hello": UPGRADE + frame({**HELLO, "worker_id": ""}),
    "a bad message": UPGRADE + frame(HELLO) + frame({"type": "subscribe", "topic": 1}),
    "NUL in a message": UPGRADE + frame(HELLO) + frame({"type": "unsubscribe", "topic": "\0"}),
}  # fmt: skip


@pytest.fixture
async def served() -> AsyncIterator[ServedEngine]:
    async with serve_engine(AppConfig(db=MEMORY, port=0, log_level=LogLevel.ERROR)) as engine:
        yield engine


@contextmanager
def garbage() -> Iterator[list[Any]]:
    """What has become unreachable in the meantime, and was not freed."""
    found: list[Any] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def exchange(engine: ServedEngine, sent: bytes, *, leaves: bool = False) -> bytes:
    """→ all that the engine said until it closed."""
    received = b""
    async with await trio.open_tcp_stream("127.0.0.1", int(engine.url.rpartition(":")[2])) as stream:
        with trio.fail_after(10):
            try:
                await stream.send_all(sent)
                if leaves:
                    await stream.send_eof()
                while piece := await stream.receive_some(65536):
                    received += bytes(piece)
                    if b'"type":"error"' in received:
                        await stream.send_all(CLOSE)
            except trio.BrokenResourceError:  # it did not read all
                pass
    return received


def kept_frames(objects: list[Any]) -> set[str]:
    """Names of the functions whose frames are among them."""
    return {each.f_code.co_qualname for each in objects if isinstance(each, types.FrameType)}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_request_is_freed_at_once(served: ServedEngine, name: str) -> None:
    answer = await exchange(served, REFUSED[name])
    assert answer[9:10] == b"4" or b'"type":"error"' in answer or not answer, answer
    with garbage() as left:
        for _ in range(TIMES):
            await exchange(served, REFUSED[name])
        await trio.testing.wait_all_tasks_blocked(0.02)
    assert kept_frames(left) == set()
    assert [each for each in left if isinstance(each, BaseException)] == []
    assert [len(each) for each in left if isinstance(each, bytes | bytearray) and len(each) > 10_000] == []


@pytest.mark.parametrize("sent", [b"GET /liv", CHUNKED + b"5\r\nab", post("/api/v1/messages", b"{}")[:-1], UPGRADE])
async def test_who_leaves_in_the_middle_is_freed_at_once(served: ServedEngine, sent: bytes) -> None:
    await exchange(served, sent, leaves=True)
    with garbage() as left:
        for _ in range(TIMES):
            await exchange(served, sent, leaves=True)
        await trio.testing.wait_all_tasks_blocked(0.02)
    assert kept_frames(left) == set()
