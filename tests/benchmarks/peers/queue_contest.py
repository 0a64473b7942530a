"""What every job queue does that is measured beside us: take jobs in, work them off, and start each one soon.

Argument of the program: the database's URL. Uses nothing but the standard library: peers run it in an environment of
their own.
"""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

__all__ = ["JobQueue", "Tally", "compete", "until"]

_ASK_EVERY_SECONDS = 0.005


class Tally:
    """The handler's side: counts jobs, and notes when each one of a latency run starts. All in the loop's thread."""

    def __init__(self) -> None:
        self.starts: dict[int, float] = {}
        self.first: float | None = None
        """When the first handler started since this was cleared, or `begin` was called."""
        self._handled = 0
        self._expected = 0
        self._done = asyncio.Event()

    def clear(self) -> None:
        self.first = None

    def begin(self) -> None:
        self.first = time.perf_counter()

    def expect(self, jobs: int) -> Callable[[], Awaitable[object]]:
        """→ what waits for so many."""
        self._handled, self._expected, self._done = 0, jobs, asyncio.Event()
        return self._done.wait

    def handle(self, number: int, started: float | None = None) -> None:
        started = time.perf_counter() if started is None else started
        self.first = started if self.first is None else self.first
        self.starts[number] = started
        self._handled += 1
        if self._handled == self._expected:
            self._done.set()


class JobQueue(Protocol):
    async def load(self, jobs: int) -> None:
        """Put in so many that do nothing; no worker runs yet."""

    async def drain(self, jobs: int) -> None:
        """Run a worker until all of them are durably done."""

    async def listen(self) -> None:
        """Have a worker for what `send` sends."""

    async def send(self, number: int) -> None: ...


async def until(question: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is true: the queue's own tables say what is durable."""
    while not await question():
        await asyncio.sleep(_ASK_EVERY_SECONDS)


async def compete(version: str, tally: Tally, queue: JobQueue) -> None:
    """Answer lines of JSON on standard input: ``{"do": "load" | "drain", "jobs": N}`` and ``{"do": "latency", "jobs":
    N, "rate": R}``."""
    _say({"version": version, "runtime": f"Python {platform.python_version()}"})
    while line := await asyncio.to_thread(sys.stdin.readline):
        command: dict[str, Any] = json.loads(line)
        if command["do"] == "latency":
            _say(await _latency(queue, tally, command["jobs"], command["rate"]))
        else:
            work = {"load": queue.load, "drain": queue.drain}[command["do"]](command["jobs"])
            _say(await _measure(tally, work))


async def _measure(tally: Tally, work: Awaitable[None]) -> Mapping[str, float]:
    """Time counts from the first handler's start, where there are handlers, and not from that of the worker."""
    tally.clear()
    began, cpu = time.perf_counter(), time.process_time()
    await work
    began = began if tally.first is None else tally.first
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}


async def _latency(queue: JobQueue, tally: Tally, jobs: int, rate: float) -> Mapping[str, object]:
    """Jobs at a steady pace, whether or not the ones before have started."""
    await queue.listen()
    started = tally.expect(jobs)
    sent, sends = [], []
    began = time.perf_counter()
    for number in range(jobs):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        sent.append(time.perf_counter())
        sends.append(asyncio.ensure_future(queue.send(number)))
    await asyncio.gather(*sends)
    await started()
    return {"waits_ms": [(tally.starts[number] - at) * 1000 for number, at in enumerate(sent)]}


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)
