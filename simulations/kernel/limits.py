"""Limits of time on a host run by that host's clock, as trio's own do there: too fast or too slow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from simulations.kernel.clock import SimulatedClock
from simulations.kernel.scheduling import PLACE

__all__ = ["Limits"]

_move_on_after = trio.move_on_after


class Limits:
    """What takes the place of trio's functions while a run lasts."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._rates = clock.rates

    def move_on_after(self, seconds: float, *, shield: bool = False) -> trio.CancelScope:
        rate = self._rates.get(PLACE.get().partition("#")[0])
        return _move_on_after(seconds if rate is None else true_seconds(seconds, rate), shield=shield)

    @contextmanager
    def fail_after(self, seconds: float, *, shield: bool = False) -> Iterator[trio.CancelScope]:
        """:raises trio.TooSlowError: after so many seconds of this host."""
        with self.move_on_after(seconds, shield=shield) as scope:
            yield scope
        if scope.cancelled_caught:
            raise trio.TooSlowError


def true_seconds(seconds: float, rate: float) -> float:
    """How long that takes by a clock which counts `rate` seconds in a true one; up to a microsecond longer, so that who
    waits until an instant finds that it has come."""
    true = seconds / rate
    return math.ceil(true * 1e6) / 1e6 if math.isfinite(true) else true
