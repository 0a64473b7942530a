"""One run of a simulated world, from its seed to its digests."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from itertools import count

import trio

from simulations.kernel.clock import SimulatedClock
from simulations.kernel.draws import Draws, sub_seed
from simulations.kernel.properties import Properties
from simulations.kernel.scheduling import Scheduler, deterministic
from simulations.kernel.seal import Escape, sealed
from simulations.kernel.trace import Trace

__all__ = ["Simulation", "Stuck"]

_IDLE_ROUNDS_MAX = 1_000
_TAKING_DOWN_SECONDS_MAX = 600.0
"""Simulated ones: what still waits then, although it was cancelled, would wait for ever."""


class Stuck(RuntimeError):
    """A run cannot be taken down: some task goes on, or waits, where it cannot be cancelled."""


class Simulation:
    def __init__(self, seed: int, *, schedule: str = "keyed", keep_trace: bool = False) -> None:
        self.seed = seed
        self.clock = SimulatedClock(self._deadlocked, self._time_is_up)
        self.trace = Trace(self.clock, is_kept=keep_trace)
        self.properties = Properties(self.trace, self.now, self.abort)
        self.scheduler = Scheduler(sub_seed(seed, "schedule"), schedule, self._livelocked)
        self.is_over = False
        """Aborted or done: no port of a host may make anybody wait any more."""
        self.on_over: list[Callable[[], None]] = []
        """Called once, before everything is cancelled."""
        self._root: trio.CancelScope | None = None
        self._idle_rounds = count(1)

    def now(self) -> float:
        """True seconds since the start."""
        return self.clock.seconds

    def draws(self, *key: object) -> Draws:
        return Draws(self.seed, *key)

    def abort(self) -> None:
        """End the run now. What happens while it is taken down is neither traced nor judged."""
        if self.is_over:
            return
        self.is_over = True
        self.trace.is_closed = True
        self.properties.is_closed = True
        self.clock.last_instant = self.clock.seconds + _TAKING_DOWN_SECONDS_MAX
        for tell in self.on_over:
            tell()
        if self._root is not None:
            self.scheduler.thaw_all()
            self._root.cancel()

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` until it returns or the run is aborted. Cycles are collected before and not during it, since when
        that happens is no decision of the seed."""
        _collect_garbage()
        gc.disable()
        try:
            with deterministic(self.scheduler), sealed(self.seed, self.clock, self._escaped):
                trio.run(self._main, main, clock=self.clock)
        finally:
            gc.enable()

    async def _main(self, main: Callable[[], Awaitable[None]]) -> None:
        with trio.CancelScope() as self._root:
            try:
                await main()
            except* Escape:
                assert self.properties.violations, "an escape is told at once"
            except* Exception as error:
                # Of a run that is being taken down nothing is judged.
                self.properties.always("P0", False, f"the run broke: {_first_of(error)!r}")
                if not self.properties.violations:
                    raise
            finally:
                self.abort()

    # --- what ends a run -------------------------------------------------------------------------------------------

    def _deadlocked(self) -> None:
        """Called in trio's run loop, where nothing may be raised but what ends everything."""
        self.properties.always("P2", False, "every task waits, and none for a time")
        if next(self._idle_rounds) > _IDLE_ROUNDS_MAX:
            raise Stuck("the run cannot be taken down: every task waits where it cannot be cancelled")

    def _livelocked(self, what: str) -> None:
        """As `_deadlocked`."""
        if self.is_over:
            raise Stuck(f"the run cannot be taken down: {what}")
        self.properties.always("P1", False, what)

    def _time_is_up(self) -> None:
        """As `_deadlocked`."""
        raise Stuck(f"the run cannot be taken down: it still goes on after {_TAKING_DOWN_SECONDS_MAX:g} s")

    def _escaped(self, what: str) -> None:
        self.properties.always("P4", False, f"{what} was reached for, which is outside the simulation")


def _collect_garbage() -> None:
    """What was there before the first run stays, and need not be looked through before each."""
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()


def _first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
