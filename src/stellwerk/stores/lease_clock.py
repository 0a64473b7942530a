"""The clock that judges leases on an embedded store (consistency.md 19)."""

from __future__ import annotations

from stellwerk.instants import InstantMs
from stellwerk.ports import Clock

__all__ = ["LeaseClock"]


class LeaseClock:
    """max(stored high-water mark, wall clock at opening) + monotonic time since: no jump of the wall clock moves it."""

    __slots__ = ("_base_ms", "_clock", "_opened_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base_ms: InstantMs = clock.wall_ms()
        self._opened_at = clock.monotonic()

    def open(self, high_water_ms: InstantMs) -> None:
        self._base_ms = max(high_water_ms, self._clock.wall_ms())
        self._opened_at = self._clock.monotonic()

    def now_ms(self) -> InstantMs:
        return self._base_ms + int((self._clock.monotonic() - self._opened_at) * 1000)
