"""As many connections as one can get: those that stay idle, and more than the engine may have files open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

CLIENTS = Path(__file__).with_name("idle_clients.py")


@asynccontextmanager
async def idle_clients(engine: Any, number: int) -> AsyncIterator[dict[str, int]]:
    """So many connections of another process. → how many of each kind were answered."""
    command = [sys.executable, str(CLIENTS), str(engine.port), str(number)]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    said = b""
    with trio.fail_after(60):
        while b"\n" not in said:
            piece = await process.stdout.receive_some()
            assert piece, "the clients ended"
            said += piece
        yield json.loads(said)
        await process.stdin.aclose()
        assert await process.wait() == 0


async def test_half_of_all_files_are_idle_connections_and_others_are_served(
    engine: Any, other_works: Any, files_max: int
) -> None:
    number = files_max // 2
    files, memory = engine.files, engine.memory

    async def hold_them() -> None:
        async with other_works(engine) as other, idle_clients(engine, number) as answered:
            assert sum(answered.values()) == number, answered
            assert engine.files >= files + number
            await other.served()
            assert (await engine.ask("GET", "/readyz")).status == 200, "new ones are served too"
            # A connection that does nothing costs little: ten thousand fit into a gigabyte.
            assert (engine.memory - memory) / number < 100_000

    await hold_them()
    with trio.fail_after(20):
        while engine.files > files:
            await trio.sleep(0.01)
    async with engine.all_returns(memory_max=16 * 2**20):
        await hold_them()


async def test_connections_beyond_the_limit_are_closed_at_once_and_leave_files_to_the_engine(
    start_engine: Callable[..., Any], deploy: Callable[[Any], None], other_works: Any
) -> None:
    """The limit follows from how many files the process may have open."""
    engine = start_engine(files_max=128)
    deploy(engine)
    async with other_works(engine) as other, trio.open_nursery() as nursery:
        closed = 0

        async def connect() -> None:
            nonlocal closed
            async with engine.peer() as peer:
                assert await peer.rest() == b""
                closed += 1

        for _ in range(300):
            nursery.start_soon(connect)
        with trio.fail_after(20):
            while closed < 200:
                await trio.sleep(0.01)
        assert engine.files < 128
        await other.served()
        nursery.cancel_scope.cancel()
    with trio.fail_after(20):
        while engine.files > 40:
            await trio.sleep(0.01)
    assert (await engine.ask("GET", "/readyz")).status == 200
    assert "Traceback" not in engine.log
    assert engine.log.count("connections refused") < 10
