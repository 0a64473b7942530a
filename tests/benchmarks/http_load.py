"""Clients of one HTTP server, in a process of their own: some connections, each with one request at a time.

Commands (lines of JSON on standard input): ``fetch`` locks so many tasks, ten with each request, ``complete``
completes them, ``empty`` asks the handler that does nothing. Each gives the ``requests`` made and the ``seconds`` that
they took. It ends with its input.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import attrs
import trio
from tests.benchmarks.models import TOPIC

__all__: list[str] = []

_TASKS = 10
"""With one request."""
_POLL = {"worker_id": "loader", "task_types": [TOPIC], "max_tasks": _TASKS, "lock_duration_ms": 3_600_000}

Ask = Callable[[bytes], Awaitable[bytes]]


def _request(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@attrs.define(eq=False)
class _Connection:
    _stream: trio.SocketStream
    _buffer: bytes = b""

    async def ask(self, request: bytes) -> bytes:
        """→ the body of the answer, whose status is 200."""
        await self._stream.send_all(request)
        while b"\r\n\r\n" not in self._buffer:
            await self._more()
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        self._buffer = rest
        assert head.startswith(b"HTTP/1.1 200 "), head + rest
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(self._buffer) < size:
            await self._more()
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return body

    async def _more(self) -> None:
        piece = await self._stream.receive_some(65_536)
        assert piece, "the server closed"
        self._buffer += piece


@attrs.define(eq=False)
class _Clients:
    _connections: list[_Connection]
    _tasks: list[str] = attrs.field(factory=list)

    async def fetch(self, tasks: int) -> int:
        requests = under_way = 0
        poll = _request("/api/v1/external-tasks/fetch-and-lock", _POLL)

        async def fetch_all(ask: Ask) -> None:
            nonlocal requests, under_way
            while len(self._tasks) + under_way < tasks:
                requests += 1
                under_way += _TASKS
                found = json.loads(await ask(poll))
                under_way -= _TASKS
                self._tasks += [task["task_id"] for task in found]

        await self._all(fetch_all)
        return requests

    async def complete(self) -> int:
        body = {"worker_id": "loader", "variables": {"done": True}}
        return await self._share(_request(f"/api/v1/external-tasks/{each}/complete", body) for each in self._tasks)

    async def empty(self, requests: int) -> int:
        body = {"worker_id": "loader", "variables": {"done": True}}
        return await self._share(_request("/empty", body) for _ in range(requests))

    async def _share(self, requests: Iterable[bytes]) -> int:
        left: Iterator[bytes] = iter(requests)
        made = 0

        async def ask_some(ask: Ask) -> None:
            nonlocal made
            for request in left:
                await ask(request)
                made += 1

        await self._all(ask_some)
        return made

    async def _all(self, run: Callable[[Ask], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            for connection in self._connections:
                nursery.start_soon(run, connection.ask)


async def _run(port: int, connections: int) -> None:
    opened = [_Connection(await trio.open_tcp_stream("127.0.0.1", port)) for _ in range(connections)]
    clients = _Clients(opened)
    commands: dict[str, Callable[..., Awaitable[int]]] = {
        "fetch": clients.fetch,
        "complete": clients.complete,
        "empty": clients.empty,
    }
    while line := await trio.to_thread.run_sync(sys.stdin.readline):
        command: dict[str, Any] = json.loads(line)
        began = time.perf_counter()
        requests = await commands[command.pop("do")](**command)
        print(json.dumps({"requests": requests, "seconds": time.perf_counter() - began}), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--url", required=True)
    arguments.add_argument("--connections", type=int, required=True)
    options = arguments.parse_args()
    trio.run(_run, int(options.url.rpartition(":")[2]), options.connections)


if __name__ == "__main__":
    main()
