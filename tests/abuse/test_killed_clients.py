"""A thousand clients that ask for tasks and are gone: nothing of them is left in the engine, which serves others."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import trio

CYCLES, AT_ONCE = 1_000, 50


def poll(number: int, wait_ms: int) -> bytes:
    asked = {"worker_id": f"killed-{number % 20}", "task_types": ["abused"], "wait_ms": wait_ms}
    body = json.dumps(asked).encode()
    path = b"/api/v1/external-tasks/fetch-and-lock"
    return b"POST %s HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%s" % (path, len(body), body)


async def kill(peer: Any) -> None:
    """As the operating system does for a process that was killed with unread data: the other side gets a reset."""
    peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await peer.stream.aclose()


async def connect_and_kill(engine: Any, number: int) -> None:
    """At once or a little later, every third in the middle of its request."""
    async with engine.peer() as peer:
        request = poll(number, wait_ms=0 if number % 4 == 0 else 60_000)
        await peer.send(request[: len(request) - number % 3])
        for _ in range(number % 9):
            await trio.sleep(0)
        await kill(peer)


async def test_fault_1_a_thousand_connect_and_kill_cycles_leave_no_file_open_and_get_no_task(
    engine: Any, other_works: Any
) -> None:
    async with other_works(engine) as other, engine.all_returns():
        for begin in range(0, CYCLES, AT_ONCE):
            async with trio.open_nursery() as nursery:
                for number in range(begin, begin + AT_ONCE):
                    nursery.start_soon(connect_and_kill, engine, number)
        await other.served()
    instance_id = await engine.start()
    asked = {"worker_id": "alive", "task_types": ["abused"], "wait_ms": 5_000, "max_tasks": 1_000}
    tasks = (await engine.ask("POST", "/api/v1/external-tasks/fetch-and-lock", asked)).body
    assert [task["attempt"] for task in tasks if task["process_instance_id"] == instance_id] == [1]
