"""Stopping an engine while its peers do their worst: it ends within its grace, as the command's help says."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import trio

WITHIN_SECONDS = 5.0
HELLO = {"type": "hello", "worker_id": "stalled", "boot_id": "stalled", "session_no": 1, "client": "test"}
SUBSCRIBE = {"type": "subscribe", "topic": "abused", "max_tasks": 100, "lock_duration_ms": 600_000}
POLL = b'{"worker_id": "waiting", "task_types": ["nothing"], "wait_ms": 600000}'


async def test_an_engine_ends_within_its_grace_whatever_its_peers_do(
    start_engine: Callable[..., Any], deploy: Callable[[Any], None]
) -> None:
    """One has stopped reading answers, one tasks; one drips a head and one a body; one waits for work for long."""
    engine = start_engine()
    deploy(engine)
    text = os.urandom(330_000).hex()
    long = await engine.start("served", text=text)
    asked = f"GET /api/v1/process-instances/{long} HTTP/1.1\r\nHost: here\r\n\r\n".encode()
    posted = b"POST /api/v1/messages HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n"
    async with (
        engine.peer(receive_bytes=4096) as reader,
        engine.peer() as head,
        engine.peer() as body,
        engine.peer() as poll,
        engine.peer(),
        engine.worker(HELLO) as worker,
        trio.open_nursery() as nursery,
    ):
        await reader.send(20 * asked)
        await trio.lowlevel.wait_readable(reader.stream.socket)
        await poll.send(b"POST /api/v1/external-tasks/fetch-and-lock HTTP/1.1\r\nHost: here\r\n")
        await poll.send(b"Content-Length: %d\r\n\r\n" % len(POLL) + POLL)
        nursery.start_soon(drip, head, posted[:60])
        nursery.start_soon(drip, body, posted)
        await worker.say(SUBSCRIBE)
        for _ in range(10):
            await engine.start("abused", text=text)
        began = trio.current_time()
        engine.process.send_signal(signal.SIGTERM)
        with trio.fail_after(WITHIN_SECONDS + 5):
            code = await trio.to_thread.run_sync(engine.process.wait)
        assert (code, trio.current_time() - began < WITHIN_SECONDS) == (0, True)
        nursery.cancel_scope.cancel()
    assert "event=stopped" in engine.log
    assert "Traceback" not in engine.log
    assert "level=error" not in engine.log


async def drip(peer: Any, begin: bytes) -> None:
    try:
        await peer.send(begin)
        while True:
            await trio.sleep(0.1)
            await peer.send(b"x")
    except trio.BrokenResourceError:
        pass
