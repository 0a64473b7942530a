"""One of the processes of ``stellwerk serve --nodes N``: ``python -m stellwerk.cli.fleet_node``, started by `fleet`.

It reads its options from standard input, and after them what its parent wants. Where that ends its parent has ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from stellwerk.app import AppConfig, CannotListen, ServedEngine, make_room, serve_engine, without_group
from stellwerk.cli.fleet import DRAIN, HAND_OVER, READY
from stellwerk.cli.mistakes import Mistake
from stellwerk.cli.serving import DRAIN_SECONDS_MAX, ServeOptions
from stellwerk.errors import StellwerkError
from stellwerk.system.machine import show_as
from stellwerk.system.memory import collect_seldom
from stellwerk.system.signals import exit_on_next, open_stop_signals

__all__ = ["main"]

_FAILED = 2
_PIECE_BYTES = 4096
_TO_PARENT = 1


class _Wishes:
    """What parent and signals want, in order."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[str](100)
        self._opening: trio.CancelScope | None = None

    @contextmanager
    def opening(self) -> Iterator[Callable[[], None]]:
        """Around what may wait for its database for long: to drain ends it at once, until what is given is called."""
        with trio.CancelScope() as self._opening:
            yield self._opened

    def _opened(self) -> None:
        self._opening = None

    async def _drain(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        await self._send.send(DRAIN)

    async def next(self) -> str:
        return await self._receive.receive()

    async def until_drain(self) -> None:
        while await self.next() != DRAIN:
            pass

    async def hear_parent(self, lines: _Lines) -> None:
        while (line := await lines.next()) is not None:
            await (self._drain() if line == DRAIN else self._send.send(line))
        await self._drain()  # its parent is gone, and nobody would ever end it

    async def hear_signals(self, signals: AsyncIterator[int]) -> None:
        """SIGTERM and SIGINT, as the whole group of processes may get them; the second ends it at once."""
        await anext(signals)
        await self._drain()
        await exit_on_next(signals)


class _Lines:
    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._buffer = b""

    async def next(self) -> str | None:
        """None: there are no more."""
        while b"\n" not in self._buffer:
            piece = await self._stream.receive_some(_PIECE_BYTES)
            if not piece:
                return None
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


async def _run() -> None:
    lines = _Lines(trio.lowlevel.FdStream(os.dup(0)))
    first = await lines.next()
    if first is None:
        return
    order: dict[str, Any] = json.loads(first)
    config = ServeOptions.of(order["options"]).config(tuple(order["descriptors"]), Path(order["directory"]))
    wishes = _Wishes()
    make_room(config.http_limits)
    with without_group(), open_stop_signals() as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wishes.hear_parent, lines)
            nursery.start_soon(wishes.hear_signals, signals)
            await _serve(config, wishes)
            nursery.cancel_scope.cancel()


async def _serve(config: AppConfig, wishes: _Wishes) -> None:
    with wishes.opening() as opened:
        async with serve_engine(config) as engine:
            opened()
            _say(READY)
            await _serve_until_gone(engine, config, wishes)


async def _serve_until_gone(engine: ServedEngine, config: AppConfig, wishes: _Wishes) -> None:
    if await wishes.next() == HAND_OVER and await _hand_over(engine, config, wishes):
        return
    await engine.drain(DRAIN_SECONDS_MAX)


async def _hand_over(engine: ServedEngine, config: AppConfig, wishes: _Wishes) -> bool:
    """Until all have gone; → False when the parent stops altogether before."""
    limits = config.http_limits
    clients_seconds = limits.idle_seconds_max + limits.body_seconds_max
    all_gone = False
    async with trio.open_nursery() as nursery:

        async def stop_when_told() -> None:
            await wishes.until_drain()
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop_when_told)
        await engine.hand_over(workers_seconds=DRAIN_SECONDS_MAX, clients_seconds=clients_seconds)
        all_gone = True
        nursery.cancel_scope.cancel()
    return all_gone


def _say(line: str) -> None:
    try:
        os.write(_TO_PARENT, line.encode() + b"\n")
    except OSError:
        return  # its parent is gone: standard input says so, too


def main() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # for the parent, who may have it from a terminal
    show_as("stellwerk-node")
    collect_seldom()
    try:
        trio.run(_run)
    except (CannotListen, StellwerkError, Mistake) as error:
        _say(json.dumps({"failed": str(error)}))
        sys.exit(_FAILED)


if __name__ == "__main__":
    main()
