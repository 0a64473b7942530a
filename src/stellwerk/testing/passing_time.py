"""Moving the clock of a test, so that everything that comes due on the way happens at its own instant."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import trio.testing

from stellwerk.app.engine import Engine
from stellwerk.instants import EPOCH, InstantMs, to_rfc3339
from stellwerk.testing.handlers import HandlerWorkers
from stellwerk.testing.recording import Recording
from stellwerk.testing.virtual_time import VirtualTime
from stellwerk.testing.work import described

__all__ = ["PassingTime"]

_LEAP_MS = 1_000
"""Workers stay connected while the clock moves less than that at once."""
_STEPS_MAX = 100_000


class PassingTime:
    """The part of `ProcessTest` that has to do with time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        """All of it; `settle` after using it directly, so that the kit sees what happened."""
        self.recording = Recording(engine.node)
        self._time = VirtualTime(engine.node.ports.clock)
        self._workers = HandlerWorkers(engine)

    @property
    def now(self) -> datetime:
        """The engine's wall time, in UTC."""
        return EPOCH + timedelta(milliseconds=self._time.now_ms())

    async def settle(self) -> None:
        """Wait until nothing moves any more without time passing, and see what happened."""
        await self._workers.start()
        await trio.testing.wait_all_tasks_blocked()
        await self.recording.refresh()

    async def advance(
        self,
        duration: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Let so much time pass. What comes due on the way happens at its own instant, in order."""
        span = (duration or timedelta()) + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if span < timedelta():
            raise ValueError(f"time does not run backwards: {span}")
        await self.advance_to_ms(self._time.now_ms() + span // timedelta(milliseconds=1))

    async def advance_to(self, instant: datetime) -> None:
        """Like `advance`, up to an instant.

        :raises ValueError: it lies in the past, or has no time zone.
        """
        if instant.tzinfo is None:
            raise ValueError(f"{instant} has no time zone: give it one, like datetime.UTC")
        if instant < self.now:
            raise ValueError(f"time does not run backwards: it is {self.now.isoformat()} already")
        await self.advance_to_ms((instant.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1))

    async def advance_to_next_timer(self) -> list[str]:
        """Move the clock exactly to the next timer of any instance, and let happen what it does.

        → the ids of the elements whose timers fired.

        :raises AssertionError: no timer is armed.
        """
        await self.settle()
        timers = [timer.due_at_ms for record in self.recording for timer in record.state.timers.values()]
        if not timers:
            raise AssertionError(f"no timer is armed\n{self._described()}")
        before = {record.instance_id: len(record.timers_fired) for record in self.recording}
        await self.advance_to_ms(min(timers))
        return [
            node_id for record in self.recording for node_id in record.timers_fired[before.get(record.instance_id, 0) :]
        ]

    async def advance_to_ms(self, target_ms: InstantMs) -> None:
        for _ in range(_STEPS_MAX):
            await self._settle_instant()
            if self._time.now_ms() >= target_ms:
                return
            await self._step(target_ms)
        raise AssertionError(
            f"{_STEPS_MAX} things came due until {to_rfc3339(self._time.now_ms())}: a timer repeats too often"
        )

    async def advance_until(
        self, is_reached: Callable[[], bool], within: timedelta, describe: Callable[[], str]
    ) -> None:
        """:raises AssertionError: nothing comes due any more, or not within that time."""
        last_ms = self._time.now_ms() + within // timedelta(milliseconds=1)
        for _ in range(_STEPS_MAX):
            await self._settle_instant()
            if is_reached():
                return
            if await self._next_due_ms() is None and not self._is_somebody_about_to_wake:
                raise AssertionError(f"nothing moves, however much time passes\n{describe()}")
            if self._time.now_ms() >= last_ms:
                raise AssertionError(f"not within {within}: it is {to_rfc3339(self._time.now_ms())}\n{describe()}")
            await self._step(last_ms)
        raise AssertionError(f"{_STEPS_MAX} things came due, and it still did not happen\n{describe()}")

    async def _step(self, target_ms: InstantMs) -> None:
        """Move the clock to what comes due next, at most to the target."""
        now_ms = self._time.now_ms()
        due_ms = await self._next_due_ms()
        if self._is_somebody_about_to_wake or (due_ms is not None and due_ms <= now_ms):
            # Handlers may be asleep, and services look at what is due a moment later.
            next_ms = min(target_ms, now_ms + self._time.ms_to_next_deadline())
        else:
            next_ms = target_ms if due_ms is None else min(target_ms, due_ms)
            if next_ms - now_ms >= _LEAP_MS:
                await self._workers.stop()
        self._time.jump_to(next_ms)

    @property
    def _is_somebody_about_to_wake(self) -> bool:
        """A handler that is at work, or a service: one that slept from a fraction of a millisecond on looks at what is
        due a fraction later."""
        return self._workers.are_busy or self._time.ms_to_next_deadline() == 1

    async def _settle_instant(self) -> None:
        """`settle`, with everything that is due at this very millisecond."""
        await self.settle()
        while self._time.nudge():
            await self.settle()

    async def _next_due_ms(self) -> InstantMs | None:
        """The next timer, end of a lock, or attempt that a handler will make, in wall time."""
        store = self.engine.node.ports.store
        now_ms = self._time.now_ms()
        due, next_timer_ms = await store.due_timers(now_ms, 1)
        found = [timer.due_at_ms for timer in due] + ([] if next_timer_ms is None else [next_timer_ms])
        expiry_ms, lease_now_ms = await store.next_lock_expiry()
        if expiry_ms is not None:
            found.append(now_ms + expiry_ms - lease_now_ms)
        for topic in self._workers.topics:
            scan = await store.ready_tasks(topic, 1)
            if scan.next_available_ms is not None:
                found.append(now_ms + scan.next_available_ms - scan.now_ms)
        return min(found, default=None)

    def _described(self) -> str:
        return "\n".join(described(record) for record in self.recording) or "no instance was started"
