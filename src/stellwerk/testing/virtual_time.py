"""Time that stands still until a test moves it, on trio's own clock."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, TypeVarTuple

import trio
import trio.testing

from stellwerk.errors import Conflict
from stellwerk.instants import InstantMs
from stellwerk.ports import Clock

__all__ = ["VirtualTime", "run_in_virtual_time"]

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_PAST_THE_INSTANT_SECONDS = 0.0001
"""So much later than a whole millisecond is where the clock is put: what is rounded down must not end before it."""
_ROUNDING_SECONDS = 0.000001
"""So much later, at most, sleeps of whole milliseconds end that began there: the sums of floats are inexact."""
_INSTANT_SECONDS = _PAST_THE_INSTANT_SECONDS + _ROUNDING_SECONDS


def run_in_virtual_time(
    function: Callable[[*Arguments], Awaitable[T]],
    *arguments: *Arguments,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> T:
    """`trio.run` with a clock that stands still until somebody moves it, `open_process_test` for example.

    ``clock``: another one for the run, which must be a `trio.testing.MockClock` for `open_process_test`.
    """
    return trio.run(
        function, *arguments, clock=trio.testing.MockClock() if clock is None else clock, instruments=instruments
    )


class VirtualTime:
    """The clock of this trio run, as the engine's wall time."""

    def __init__(self, wall: Clock) -> None:
        """:raises Conflict: the run has a clock that cannot be moved."""
        clock = trio.lowlevel.current_clock()
        if not isinstance(clock, trio.testing.MockClock):
            raise Conflict(
                "time cannot be moved in this trio run: use the pytest fixture process_test, "
                "stellwerk.testing.run_in_virtual_time(main), or trio.run(main, clock=trio.testing.MockClock())"
            )
        self._clock = clock
        self._wall = wall

    def now_ms(self) -> InstantMs:
        return self._wall.wall_ms()

    def ms_to_next_deadline(self) -> int:
        """Until the millisecond in which the next task that sleeps wakes up; at least 1, at most 1000."""
        since_present = self._seconds_to_next_deadline() + self._clock.current_time() - self._present()
        return min(1000, max(1, math.ceil(min(since_present - _INSTANT_SECONDS, 1.0) * 1000)))

    def nudge(self) -> bool:
        """Wake up who sleeps until the present millisecond, but missed it by how floats add up.

        → whether there was somebody. Time moves on by that little only, and never into the next millisecond.
        """
        seconds = self._seconds_to_next_deadline()
        is_now = self._clock.current_time() + seconds <= self._present() + _INSTANT_SECONDS
        if is_now:
            self._clock.jump(max(0.0, seconds))
        return is_now

    def _present(self) -> float:
        """The whole millisecond that it is, on trio's clock."""
        return round(self._clock.current_time() * 1000) / 1000

    @staticmethod
    def _seconds_to_next_deadline() -> float:
        return trio.lowlevel.current_statistics().seconds_to_next_deadline

    def jump_to(self, instant_ms: InstantMs) -> None:
        """Never backwards. Whoever sleeps until then wakes up at the caller's next checkpoint."""
        epoch_ms = self.now_ms() - round(self._clock.current_time() * 1000)
        wanted = (instant_ms - epoch_ms) / 1000 + _PAST_THE_INSTANT_SECONDS
        self._clock.jump(max(0.0, wanted - self._clock.current_time()))
