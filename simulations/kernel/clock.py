"""Virtual time: it stands still while anything can run, and then goes on to the next deadline."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

__all__ = ["SimulatedClock"]

_LONG_SECONDS = 1e9


class SimulatedClock(trio.abc.Clock):
    """True time of the simulated world in seconds, from 0. Only trio's public interface is used.

    The run loop asks how long it may sleep only when nothing can run, so that is the moment to go on.
    `trio.testing.wait_all_tasks_blocked` never returns under this clock.
    """

    def __init__(self, on_deadlock: Callable[[], None]) -> None:
        """:param on_deadlock: every task waits, and none for a time."""
        self.seconds = 0.0
        self._on_deadlock = on_deadlock

    def start_clock(self) -> None:
        return

    def current_time(self) -> float:
        return self.seconds

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if deadline == math.inf:
            self._on_deadlock()
        elif deadline > self.seconds:
            self.seconds = deadline
        return 0.0
