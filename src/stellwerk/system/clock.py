"""The clock of the machine."""

from __future__ import annotations

import time

import trio

from stellwerk.instants import InstantMs

__all__ = ["SystemClock"]


class SystemClock:
    """`Clock`: wall time from the machine, monotonic time and sleep from trio, so that virtual time holds."""

    def wall_ms(self) -> InstantMs:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)
