"""Keeping the leases of tasks that were polled: nobody but their worker extends them.

A lease is extended when a third of it is left, by as much as it was given at first. A try that fails is repeated
quickly, until the lease's deadline; then the run aborts the handler.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Protocol

import trio

from stellwerk.worker.leases import Lease, LeaseTable
from stellwerk.worker.system import Clock

__all__ = ["Renewals", "Renewer", "usual_ms"]

_ATTEMPT_S_MIN = 0.25
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0
_TICK_S = 1e-6
"""See `runtime`."""


class Renewer(Protocol):
    async def extend_once(self, lease: Lease, duration_ms: int, timeout_s: float) -> bool:
        """One try, reported if it fails. → whether to try again, if the lease is still held."""


class Renewals:
    """One request for each lease at a time: of two, the answers would not tell in which order they were done."""

    def __init__(self, table: LeaseTable, clock: Clock, start_soon: Callable[..., None], renewer: Renewer) -> None:
        """:param start_soon: in the run's nursery."""
        self._table = table
        self._clock = clock
        self._start_soon = start_soon
        self._renewer = renewer
        self._due: list[tuple[float, int, Lease]] = []
        self._counter = itertools.count()
        self._under_way: set[Lease] = set()
        self._wanted_ms: dict[Lease, int] = {}
        """What handlers asked for while a request for the same lease was under way."""
        self._came_closer = trio.Event()

    def __repr__(self) -> str:
        return f"<Renewals of {len(self._due)} leases, {len(self._under_way)} under way>"

    async def run(self) -> None:
        while True:
            self._start_due()
            self._came_closer = trio.Event()
            next_ms = self._due[0][0] if self._due else math.inf
            with trio.move_on_after(max(_TICK_S, (next_ms - self._now_ms()) / 1000)):
                await self._came_closer.wait()

    def watch(self, lease: Lease) -> None:
        """From now on until it is not held any more."""
        self._forget_ended()
        is_next = not self._due or self._due_ms(lease) < self._due[0][0]
        heapq.heappush(self._due, (self._due_ms(lease), next(self._counter), lease))
        if is_next:
            self._came_closer.set()

    def extend(self, lease: Lease, duration_ms: int) -> None:
        """Now, because the handler asks for it."""
        if lease in self._under_way:
            self._wanted_ms[lease] = max(duration_ms, self._wanted_ms.get(lease, 0))
        else:
            self._start(lease, duration_ms)

    def _start_due(self) -> None:
        now_ms = self._now_ms()
        while self._due and self._due[0][0] <= now_ms:
            lease = heapq.heappop(self._due)[2]
            if not self._table.is_held(lease) or lease in self._under_way:
                continue
            if self._due_ms(lease) > now_ms:  # extended meanwhile
                self.watch(lease)
            else:
                self._start(lease, usual_ms(lease))

    def _start(self, lease: Lease, duration_ms: int) -> None:
        self._under_way.add(lease)
        self._start_soon(self._extend, lease, duration_ms)

    async def _extend(self, lease: Lease, duration_ms: int) -> None:
        for attempt in itertools.count():
            if not self._table.is_held(lease):
                break
            if not await self._renewer.extend_once(lease, duration_ms, self._patience_s(lease)):
                break
            # Done late, after a longer one, it makes the lock shorter again: that one is not relied on then.
            lease.unsure_ms = min(lease.unsure_ms, duration_ms)
            await self._clock.sleep(min(_PAUSE_S_MAX, math.ldexp(_PAUSE_S_MIN, min(attempt, 10))))
        self._under_way.discard(lease)
        wanted_ms = self._wanted_ms.pop(lease, None)
        if not self._table.is_held(lease):
            return
        if wanted_ms is not None and lease.deadline_ms - self._now_ms() < wanted_ms:
            self._start(lease, wanted_ms)
        else:
            self.watch(lease)

    def _patience_s(self, lease: Lease) -> float:
        """An answer that does not come must leave time for another try."""
        return max(_ATTEMPT_S_MIN, (lease.deadline_ms - self._now_ms()) / 3000)

    def _due_ms(self, lease: Lease) -> float:
        return lease.deadline_ms - usual_ms(lease) / 3

    def _forget_ended(self) -> None:
        if len(self._due) > 64 + 4 * len(self._table):
            self._due = [entry for entry in self._due if self._table.is_held(entry[2])]
            heapq.heapify(self._due)

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000


def usual_ms(lease: Lease) -> int:
    """What the lease was given at first, in whole seconds: a little of it had passed when its task was sent."""
    return max(1, math.ceil(lease.offer.lock_remaining_ms / 1000)) * 1000
