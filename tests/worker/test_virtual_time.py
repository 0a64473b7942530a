"""A worker under a clock that stands still until somebody waits for it to go on."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing

from stellwerk.worker import Task, Worker

LOOKS_MAX = 1_000
"""At one instant."""
ROUNDS, LEASES_AT_ONCE = 60, 10
"""One end in a hundred is rounded so."""


class CountingClock:
    """trio's; time does not pass by itself, so who looks again and again without waiting would do so for ever."""

    def __init__(self) -> None:
        self._seen_at = -1.0
        self._looks = 0

    def monotonic(self) -> float:
        now = trio.current_time()
        self._looks = self._looks + 1 if now == self._seen_at else 0
        self._seen_at = now
        assert self._looks < LOOKS_MAX, f"looked at the clock {LOOKS_MAX} times at {now!r}"
        return now

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


async def test_lease_ends_however_its_end_is_rounded(
    engine: Any, offer: Any, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """What lies between the end in ms and the clock in seconds may be less than a clock can express."""
    worker = Worker("http://engine:10560", worker_id="w1", dial=engine.dial, clock=CountingClock())
    ended: list[int] = []

    @worker.task("payment")
    async def pay(task: Task) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(task.fence)

    nursery.start_soon(worker.serve)
    peer = await engine.accept_welcomed()
    for delivery in range(1, ROUNDS + 1):
        offers = [
            offer(f"t{number}", delivery, lock_remaining_ms=1_000 + 37 * number) for number in range(LEASES_AT_ONCE)
        ]
        await peer.offer(*offers, delivery=delivery)
        await trio.sleep(2.000137)
    assert len(ended) == ROUNDS * LEASES_AT_ONCE
    nursery.cancel_scope.cancel()
