"""Too much of everything: heads, bodies, frames and depth without end. It is refused in words, and held nowhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from websockets.exceptions import ConnectionClosed

HELLO = {"type": "hello", "worker_id": "w", "session_no": 1, "client": "test"}
HEAD = b"POST /api/v1/messages HTTP/1.1\r\nHost: here\r\n"
PIECE = 256 * 1024
CHUNK = b"%x\r\n%s\r\n" % (PIECE, b" " * PIECE)
PEERS = 8


async def flood(engine: Any, begin: bytes, piece: bytes) -> bytes:
    """Send `begin`, then `piece` for ever. → what the engine said before it hung up."""
    async with engine.peer() as peer, trio.open_nursery() as nursery:

        async def send() -> None:
            with suppress(trio.BrokenResourceError):
                await peer.send(begin)
                while True:
                    await peer.send(piece)

        nursery.start_soon(send)
        said: bytes = await peer.rest()
        nursery.cancel_scope.cancel()
    return said


FLOODS = {
    "a line": (b"GET /", b"x" * 1000, b"HTTP/1.1 431 "),
    "a header": (HEAD + b"X: ", b"x" * 1000, b"HTTP/1.1 431 "),
    "headers": (HEAD, b"X: y\r\n" * 200, b"HTTP/1.1 431 "),
    "the head of a chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * 1000, b"HTTP/1.1 4"),
    "a body with a length": (HEAD + b"Content-Length: 99999999999\r\n\r\n", b" " * PIECE, b"HTTP/1.1 413 "),
    "a body in chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK, b"HTTP/1.1 413 "),
    "files": (
        HEAD.replace(b"messages", b"process-definitions") + b"Transfer-Encoding: chunked\r\n\r\n",
        CHUNK,
        b"HTTP/1.1 413 ",
    ),
    "a form": (
        HEAD.replace(b"api/v1/messages", b"engine-rest/deployment/create")
        + b"Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b'41\r\n--b\r\nContent-Disposition: form-data; name="a"; filename="a.bpmn"\r\n\r\n\r\n',
        CHUNK,
        b"HTTP/1.1 4",
    ),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_what_never_ends_is_refused_and_not_kept(engine: Any, other_works: Any, name: str) -> None:
    begin, piece, answer = FLOODS[name]
    said: list[bytes] = []

    async def flood_once() -> None:
        said.append(await flood(engine, begin, piece))

    async with engine.all_returns(memory_max=64 * 2**20), other_works(engine) as other:
        async with trio.open_nursery() as nursery:
            for _ in range(PEERS):
                nursery.start_soon(flood_once)
        await other.served()
    assert len(said) == PEERS
    # One that goes on sending after the answer may get to see a reset in its place.
    assert {each[: len(answer)] for each in said} - {b""} == {answer}


# --- frames ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def hostile(engine: Any, boot_id: str) -> AsyncIterator[Any]:
    async with engine.worker({**HELLO, "boot_id": boot_id}, compression=None) as session:
        yield session


async def closed_with(connection: Any) -> int | None:
    """The code with which the engine closed it."""
    with trio.fail_after(20), suppress(ConnectionClosed):
        while True:
            await connection.recv()
    received = connection.protocol.close_rcvd
    return None if received is None else int(received.code)


async def test_fragments_without_end_are_refused_and_not_kept(engine: Any, other_works: Any) -> None:
    """Each is small; together they are one frame of 256 MiB."""
    codes: list[int | None] = []

    async def send_for_ever(number: int) -> None:
        async with hostile(engine, f"fragments-{number}") as session:
            with trio.fail_after(20), suppress(ConnectionClosed):
                await session.connection.send([" " * PIECE] * 1_000)
            codes.append(await closed_with(session.connection))

    async with engine.all_returns(memory_max=96 * 2**20), other_works(engine) as other:
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(send_for_ever, number)
        await other.served()
    # Who goes on sending after the close may get to see a reset in its place.
    assert 1009 in codes
    assert set(codes) <= {1009, None}


DEEP = {
    "arrays": "[" * 100_000 + "]" * 100_000,
    "objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "a little too deep": "[" * 101 + "]" * 101,
}


@pytest.mark.parametrize("deep", DEEP)
@pytest.mark.parametrize("kind", ["complete", "fail", "bpmn_error"])
async def test_a_deep_value_in_a_report_is_refused_and_the_task_goes_on(engine: Any, kind: str, deep: str) -> None:
    needed = {"complete": {}, "fail": {"message": "m"}, "bpmn_error": {"code": "C"}}[kind]
    field = "details" if kind == "fail" else "variables"
    await engine.start()
    async with hostile(engine, f"deep-{kind}-{deep}") as session:
        await session.say({"type": "subscribe", "topic": "abused", "max_tasks": 1})
        offered = await session.next("tasks")
        (task,) = offered["tasks"]
        lease = {"task_id": task["task_id"], "fence": task["fence"]}
        head = json.dumps({"type": kind, "ref": 1, **lease, **needed})[:-1]
        await session.connection.send(f'{head}, "{field}": {{"v": {DEEP[deep]}}}}}')
        answer = await session.next("nack", "error")
        assert answer["code"] == "invalid", answer
        assert "nested" in answer["message"] or "not JSON" in answer["message"], answer
    path = f"/api/v1/external-tasks/{task['task_id']}/complete"
    assert (await engine.ask("POST", path, {"worker_id": "w"})).status == 200


@pytest.mark.parametrize("deep", DEEP)
async def test_a_deep_value_in_a_request_is_refused(engine: Any, other_works: Any, deep: str) -> None:
    body = f'{{"process_def_id": "abused", "variables": {{"v": {DEEP[deep]}}}}}'.encode()
    async with other_works(engine):
        reply = await engine.ask("POST", "/api/v1/process-instances", body)
    assert (reply.status, reply.body["code"]) == (400, "invalid"), reply


async def test_variables_beyond_the_limit_are_refused_with_the_limit(engine: Any) -> None:
    """The body may be longer than they, so that this is said about them and not about it."""
    body = {"process_def_id": "abused", "variables": {"text": "x" * 1_100_000}}
    reply = await engine.ask("POST", "/api/v1/process-instances", body)
    assert (reply.status, reply.body["code"]) == (413, "too_large")
    assert "1048576" in reply.body["detail"]


NO_UTF8 = b'{"type":"authenticate","token":"\xff"}'


@pytest.mark.parametrize(
    "frame, codes",
    [
        (bytes([0xC1, 0x85]) + bytes(4) + b"small", {None}),
        (bytes([0x89, 0xFE, 0x01, 0x00]) + bytes(4) + bytes(256), {None}),
        (bytes([0x80, 0x80]) + bytes(4), {None}),
        (bytes([0x81, 0xFF, 0x7F]) + bytes([0xFF] * 7) + bytes(4) + bytes(9_000_000), {1009, None}),
        (bytes([0x82, 0x80 | len(NO_UTF8)]) + bytes(4) + NO_UTF8, {1001}),
    ],
    ids=["compressed, though that was not agreed", "a long ping", "a continuation of nothing", "of 8 EiB", "no UTF-8"],
)
async def test_a_frame_that_no_client_may_send_ends_its_connection(
    engine: Any, other_works: Callable[..., Any], frame: bytes, codes: set[int | None]
) -> None:
    """None: there is no WebSocket any more in which a code could be said."""
    async with engine.all_returns(), other_works(engine), hostile(engine, "frames") as session:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await session.connection.stream.send_all(frame)
        assert await closed_with(session.connection) in codes
