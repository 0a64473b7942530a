"""From trio to asyncio: asyncpg runs on a loop of asyncio inside the trio run that opened it.

A hop over the bridge costs 0.2 ms: one for each call of the store, never one for each query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog
import trio
import trio_asyncio

from stellwerk.errors import StoreUnavailable

__all__ = ["Bridge"]

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class Bridge:
    """A loop of asyncio in a system task of trio, so that it may be opened and closed anywhere.

    It ends with the trio run at the latest.
    """

    def __init__(self) -> None:
        self._loop: trio_asyncio.TrioEventLoop | None = None
        self._opened = trio.Event()
        self._closing = trio.Event()
        self._closed = trio.Event()

    @classmethod
    async def open(cls) -> Bridge:
        bridge = cls()
        trio.lowlevel.spawn_system_task(bridge._hold_loop, name="asyncio loop of the PostgreSQL store")
        try:
            await bridge._opened.wait()
        except trio.Cancelled:
            bridge._closing.set()
            raise
        return bridge

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine of asyncio from any task of this trio run; cancelling the caller cancels it.

        :raises StoreUnavailable: the bridge is closed, or was while the work ran.
        """
        if self._loop is None or self._closing.is_set():
            raise StoreUnavailable("the store is closed")
        try:
            result: T = await self._loop.run_aio_coroutine(work())
        except asyncio.CancelledError:  # not by the caller: that would be trio's
            raise StoreUnavailable("the store is closed") from None
        return result

    async def close(self) -> None:
        """Cancel what still runs on the loop, and wait for its end. May be called again."""
        self._closing.set()
        await self._closed.wait()

    async def _hold_loop(self) -> None:
        try:
            async with trio_asyncio.open_loop() as loop:
                loop.set_exception_handler(_note)
                self._loop = loop
                self._opened.set()
                await self._closing.wait()
        finally:
            self._loop = None
            self._opened.set()
            self._closed.set()


def _note(loop: object, context: dict[str, Any]) -> None:
    """What nobody awaits must not end the run, which is what the loop would do by itself."""
    _log.error("background work failed", what=context.get("message"), exc_info=context.get("exception"))
