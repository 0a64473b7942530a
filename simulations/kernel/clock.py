"""Virtual time: it stands still while anything can run, and then goes on to the next deadline.

Who sleeps does not use trio's deadlines, which cost a cancel scope and an exception each: the clock itself makes the
task runnable again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

import trio

__all__ = ["Alarm", "SimulatedClock"]


class SimulatedClock(trio.abc.Clock):
    """True time of the simulated world in seconds, from 0. Only trio's public interface is used.

    The run loop asks how long it may sleep only when nothing can run, so that is the moment to go on.
    `trio.testing.wait_all_tasks_blocked` never returns under this clock.
    """

    def __init__(self, on_deadlock: Callable[[], None], on_time_up: Callable[[], None]) -> None:
        """:param on_deadlock: every task waits, and none for a time.
        :param on_time_up: `last_instant` has passed; asked each time that time goes on then."""
        self.seconds = 0.0
        self.rates: dict[str, float] = {}
        """Seconds that the clock of a host counts in a true one, by its name; of those that have one."""
        self.last_instant = math.inf
        self._on_deadlock = on_deadlock
        self._on_time_up = on_time_up
        self._sleepers: list[tuple[float, int, _Sleeper]] = []
        """A heap. Who woke up before, or is to wake up at another time now, stays in it until then."""
        self._numbers = count()

    def start_clock(self) -> None:
        return

    def current_time(self) -> float:
        return self.seconds

    def deadline_to_sleep_time(self, deadline: float) -> float:
        deadline = min(deadline, self._next_wake_up())
        if deadline == math.inf:
            self._on_deadlock()
        elif deadline > self.seconds:
            self.seconds = deadline
            if deadline > self.last_instant:
                self._on_time_up()
        self._wake_up()
        return 0.0

    def _next_wake_up(self) -> float:
        sleepers = self._sleepers
        while sleepers:
            instant, _, sleeper = sleepers[0]
            if sleeper.task is not None and sleeper.instant == instant:
                return instant
            heapq.heappop(sleepers)
        return math.inf

    def _wake_up(self) -> None:
        sleepers = self._sleepers
        while sleepers and sleepers[0][0] <= self.seconds:
            instant, _, sleeper = heapq.heappop(sleepers)
            if sleeper.instant == instant:
                sleeper.wake()

    # --- sleeping --------------------------------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        """In the place of `trio.sleep`.

        :raises ValueError: a time that is negative or no number.
        """
        if not seconds >= 0:
            raise ValueError(f"cannot sleep for {seconds} seconds")
        await self.sleep_until(self.seconds + seconds)

    async def sleep_until(self, instant: float) -> None:
        """In the place of `trio.sleep_until`."""
        if instant <= self.seconds:
            await trio.lowlevel.checkpoint()
            return
        await self.rest(_Sleeper(), instant)

    async def rest(self, sleeper: _Sleeper, instant: float) -> None:
        """Until `instant`, or until somebody wakes this sleeper."""
        sleeper.task = trio.lowlevel.current_task()
        self.set_alarm(sleeper, instant)
        await trio.lowlevel.wait_task_rescheduled(sleeper.abort)
        # As with a scope of trio: who was cancelled after the time had come, and before its turn, is cancelled.
        await trio.lowlevel.checkpoint_if_cancelled()

    def set_alarm(self, sleeper: _Sleeper, instant: float) -> None:
        sleeper.instant = instant
        if instant < math.inf:
            heapq.heappush(self._sleepers, (instant, next(self._numbers), sleeper))


class _Sleeper:
    """One sleep of one task."""

    __slots__ = ("instant", "task")

    def __init__(self) -> None:
        self.instant = math.inf
        self.task: trio.lowlevel.Task | None = None
        """None: it is awake."""

    def abort(self, _: object) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def wake(self) -> None:
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task)


class Alarm:
    """One task that sleeps until an instant, which others may move while it sleeps: it wakes up just once."""

    __slots__ = ("_clock", "_scope", "_sleeper")

    def __init__(self) -> None:
        self._clock: SimulatedClock | None = None
        self._sleeper = _Sleeper()
        self._scope: trio.CancelScope | None = None
        """Of who sleeps under another clock, such as that of trio's own tests."""

    async def sleep_until(self, instant: float) -> None:
        clock = trio.lowlevel.current_clock()
        if not isinstance(clock, SimulatedClock):
            with trio.CancelScope(deadline=instant) as self._scope:
                await trio.sleep_forever()
        elif instant <= clock.seconds:
            await trio.lowlevel.checkpoint()
        else:
            self._clock, self._sleeper = clock, _Sleeper()
            await clock.rest(self._sleeper, instant)

    def wake_at(self, instant: float) -> None:
        """Sooner or later than it would have. Nothing if nobody sleeps."""
        if self._scope is not None:
            self._scope.deadline = instant
        elif self._clock is not None and self._sleeper.task is not None:
            if instant <= self._clock.seconds:
                self._sleeper.wake()
            else:
                self._clock.set_alarm(self._sleeper, instant)

    def wake(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        else:
            self._sleeper.wake()
