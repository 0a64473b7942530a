"""The store's lease clock as the commits show it, and its jumps: consistency.md 19 lets a lease that was given before a
jump forward live as much longer on the clock that jumped."""

from __future__ import annotations

from simulations.world.rows import Transaction
from stellwerk.core.external_task import Lease
from stellwerk.stores.postgres.clock_watch import ClockJump

__all__ = ["StoreClock", "clock_of"]

_JUMP_MS_MIN = 20
"""Less is rounding."""
_RATE_MAX = 1.03
"""And so much is drift."""


class StoreClock:
    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._jumps: list[tuple[int, int, int]] = []
        self._told: ClockJump | None = None
        self.now_ms = 0
        self.us = 0

    def observe(self, transaction: Transaction) -> bool:
        """→ whether it never fell."""
        now_ms, us = clock_of(transaction), transaction.us
        self._told = transaction.jump
        is_fine = now_ms >= self.now_ms
        if self._last is not None:
            elapsed_ms = (us - self.us) / 1000
            leap = now_ms - self.now_ms - elapsed_ms
            if leap > _JUMP_MS_MIN + elapsed_ms * (_RATE_MAX - 1):
                self._jumps.append((self.now_ms, int(leap) + 1, us))
        self._last = (now_ms, us)
        self.now_ms, self.us = max(now_ms, self.now_ms), us
        return is_fine

    def leniency_ms(self, lease: Lease) -> int:
        """How much longer than its row says the lease may be taken for live."""
        seen_ms = sum(by_ms for before_ms, by_ms, _ in self._jumps if lease.since_ms <= before_ms)
        told = self._told
        return max(seen_ms, told.by_ms) if told is not None and lease.since_ms < told.before_ms else seen_ms

    def jumped_since(self, us: int) -> bool:
        return any(at_us >= us for _, _, at_us in self._jumps)


def clock_of(transaction: Transaction) -> int:
    """The lease clock at the commit: a transaction of several statements was judged earlier than that."""
    return transaction.now_ms if transaction.clock_ms is None else transaction.clock_ms
