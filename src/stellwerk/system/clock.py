"""The clock of the machine, and one for virtual time."""

from __future__ import annotations

import time

import trio

from stellwerk.instants import InstantMs

__all__ = ["VIRTUAL_EPOCH_MS", "SystemClock", "VirtualClock", "is_virtual_time"]

VIRTUAL_EPOCH_MS: InstantMs = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the wall time of a `VirtualClock` when trio's clock shows 0, where `MockClock` starts."""


def is_virtual_time() -> bool:
    """Whether this trio run has another clock than trio's own, such as `trio.testing.MockClock`."""
    # trio has no public name for its own clock; its class is the only one that lives in a private module of trio.
    return not type(trio.lowlevel.current_clock()).__module__.startswith("trio._")


class SystemClock:
    """`Clock`: wall time from the machine, monotonic time and sleep from trio."""

    def wall_ms(self) -> InstantMs:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class VirtualClock:
    """`Clock`: everything from trio's clock, which somebody moves; wall time starts at an epoch of its own."""

    def __init__(self, epoch_ms: InstantMs = VIRTUAL_EPOCH_MS) -> None:
        self._epoch_ms = epoch_ms

    def __repr__(self) -> str:
        return f"VirtualClock({self._epoch_ms})"

    def wall_ms(self) -> InstantMs:
        # Rounded: who sleeps until an instant must not wake up a fraction of a millisecond before it.
        return self._epoch_ms + round(trio.current_time() * 1000)

    def monotonic(self) -> float:
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)
