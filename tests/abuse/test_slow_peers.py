"""Peers that take their time: those that drip bytes, those that stop reading, those that are not there any more.

The engine of these tests has deadlines of about a second; it is a process of its own.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio

HEAD = b"POST /api/v1/messages HTTP/1.1\r\nHost: here\r\n"
BODY = HEAD + b"Content-Length: 100000\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = (
    b"GET /workers HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: stellwerk.v1\r\n"
    b"Sec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
)
FRAME = bytes([0x81, 0xFE, 0x40, 0x00]) + bytes(4)
"""The head of a text frame of 16 KiB (RFC 6455, 5.2), with an all-zero mask."""


def greeting(boot_id: str, **subscription: object) -> bytes:
    """A frame with a worker's first words."""
    hello = {"type": "hello", "worker_id": "w", "boot_id": boot_id, "session_no": 1, "client": "test"}
    content = json.dumps([hello, {"type": "subscribe", **subscription}]).encode()
    return bytes([0x81, 0xFE, *len(content).to_bytes(2, "big")]) + bytes(4) + content


async def drip(engine: Any, begin: bytes, drop: bytes) -> bytes:
    """Send `begin`, and then `drop` ten times a second for ever. → what the engine said before it hung up."""
    async with engine.peer() as peer, trio.open_nursery() as nursery:

        async def send() -> None:
            try:
                await peer.send(begin)
                while True:
                    await trio.sleep(0.1)
                    await peer.send(drop)
            except trio.BrokenResourceError:
                pass

        nursery.start_soon(send)
        said: bytes = await peer.rest()
        nursery.cancel_scope.cancel()
    return said


async def all_of(number: int, one: Callable[[], Any]) -> list[Any]:
    results: list[Any] = []

    async def run() -> None:
        results.append(await one())

    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(run)
    return results


DRIPPED = {
    "a header": (HEAD + b"X-Slow: ", b"x", b"HTTP/1.1 408 "),
    "headers": (HEAD, b"X: y\r\n", b"HTTP/1.1 408 "),
    "a body": (BODY, b" ", b"HTTP/1.1 408 "),
    "chunks": (CHUNKED, b"1\r\n \r\n", b"HTTP/1.1 408 "),
    "a chunk": (CHUNKED + b"ffff\r\n", b" ", b"HTTP/1.1 408 "),
    "hello": (UPGRADE + FRAME, b" ", b'"too_slow"'),
}
"""How it begins, what comes drop by drop, and what is answered in the end."""


async def test_who_drips_bytes_is_told_so_and_let_go(impatient: Any, other_works: Any) -> None:
    said: dict[str, list[bytes]] = {}

    async def drip_all(name: str, begin: bytes, drop: bytes) -> None:
        said[name] = await all_of(40, lambda: drip(impatient, begin, drop))

    async def drip_heartbeat() -> None:
        """After its hello: nothing whole is heard from it for several heartbeats."""
        worker = greeting("dripping", topic="abused", lock_duration_ms=1_500)
        said["a heartbeat"] = [await drip(impatient, UPGRADE + worker + FRAME, b" ")]

    async with impatient.all_returns(), other_works(impatient) as other, trio.open_nursery() as nursery:
        nursery.start_soon(drip_heartbeat)
        for name, (begin, drop, _) in DRIPPED.items():
            nursery.start_soon(drip_all, name, begin, drop)
        await other.served()
    (of_worker,) = said["a heartbeat"]
    assert b'"welcome"' in of_worker
    assert b'"too_slow"' in of_worker
    for name, (_, _, answer) in DRIPPED.items():
        assert len(said[name]) == 40
        assert [each for each in said[name] if answer not in each] == [], name


# --- readers that stop -----------------------------------------------------------------------------------------------


@pytest.fixture
async def long_answer(impatient: Any) -> str:
    """A path whose answer fills the buffers of a connection within a few requests."""
    instance_id = await impatient.start("served", text=os.urandom(330_000).hex())
    await impatient.ask("POST", f"/api/v1/process-instances/{instance_id}/cancel")
    return f"/api/v1/process-instances/{instance_id}"


async def test_who_reads_no_answers_is_let_go(impatient: Any, other_works: Any, long_answer: str) -> None:
    requests = 20 * f"GET {long_answer} HTTP/1.1\r\nHost: here\r\n\r\n".encode()
    answered = 0

    async def stall() -> None:
        nonlocal answered
        async with impatient.peer(receive_bytes=4096) as peer:
            await peer.send(requests)
            await trio.lowlevel.wait_readable(peer.stream.socket)
            answered += 1
            await trio.sleep_forever()

    async with impatient.all_returns(memory_max=48 * 2**20), other_works(impatient) as other:
        files = impatient.files
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(stall)
            await until(lambda: answered == 30)
            await other.served()
            await until(lambda: impatient.files <= files)
            nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.01)


async def test_a_worker_that_stops_reading_loses_its_tasks_to_others(impatient: Any, other_works: Any) -> None:
    text = os.urandom(330_000).hex()
    worker = greeting("stalled", topic="abused", max_tasks=100, lock_duration_ms=600_000)
    async with impatient.all_returns(memory_max=64 * 2**20), other_works(impatient):
        async with impatient.peer(receive_bytes=4096) as peer:
            await peer.send(UPGRADE + worker)
            started = {await impatient.start(text=text) for _ in range(10)}
            tasks: dict[str, Any] = {}
            poll = {"worker_id": "reader", "task_types": ["abused"], "max_tasks": 5, "wait_ms": 10_000}
            while len(tasks) < len(started):
                reply = await impatient.ask("POST", "/api/v1/external-tasks/fetch-and-lock", poll)
                assert reply.body, "a lock of ten minutes is still there"
                tasks |= {task["process_instance_id"]: task for task in reply.body}
        assert tasks.keys() == started
        assert {task["retries"] for task in tasks.values()} == {3}
        for task in tasks.values():
            path = f"/api/v1/external-tasks/{task['task_id']}/complete"
            assert (await impatient.ask("POST", path, {"worker_id": "reader"})).status == 200


# --- half-open connections -------------------------------------------------------------------------------------------

POLL = b'{"worker_id": "gone", "task_types": ["nothing"], "wait_ms": 500}'
SILENT = {
    "nothing sent": b"",
    "in the head": HEAD,
    "in the body": BODY + b"{",
    "in a chunk": CHUNKED + b"9\r\n{",
    "after an answer": b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n",
    "while it polls": b"POST /api/v1/external-tasks/fetch-and-lock HTTP/1.1\r\nHost: here\r\n"
    b"Content-Length: %d\r\n\r\n" % len(POLL) + POLL,
    "after the upgrade": UPGRADE,
    "in a frame": UPGRADE + FRAME,
}


async def test_connections_whose_other_end_is_gone_are_let_go(impatient: Any, other_works: Any) -> None:
    """The other end never says anything more; or it says that it will not, and goes on listening."""
    let_go: list[str] = []

    async def fall_silent(state: str, sent: bytes, ends: bool) -> None:
        async with impatient.peer() as peer:
            await peer.send(sent)
            if ends:
                await peer.stream.send_eof()
            await peer.rest()
            let_go.append(state)

    async with impatient.all_returns(), other_works(impatient) as other, trio.open_nursery() as nursery:
        for state, sent in SILENT.items():
            for _ in range(20):
                nursery.start_soon(fall_silent, state, sent, False)
                nursery.start_soon(fall_silent, state, sent, True)
        await other.served()
    assert Counter(let_go) == dict.fromkeys(SILENT, 40)
