"""Rules of a worker's session that both sides need, without any input or output (docs/worker-protocol).

Times are monotonic milliseconds of whoever asks, durations milliseconds.
"""

from __future__ import annotations

from collections import deque

import attrs

__all__ = [
    "CLOCK_DRIFT_MAX",
    "DELIVERY_TIMEOUT_MS",
    "HEARTBEAT_MS_MAX",
    "HEARTBEAT_MS_MIN",
    "RENEWAL_MARGIN_MS_MAX",
    "PeerClock",
    "heartbeat_ms",
    "lease_deadline_ms",
    "renewal_margin_ms",
    "report_is_fresh",
    "surely_left",
]

HEARTBEAT_MS_MIN = 250
HEARTBEAT_MS_MAX = 5_000
RENEWAL_MARGIN_MS_MAX = 5_000
DELIVERY_TIMEOUT_MS = 5_000
CLOCK_DRIFT_MAX = 0.001
"""By how much the clocks of two machines may differ in speed, at most.

That of a computer is good to 0.01 %; while NTP corrects it, an operating system makes it faster or slower by up to
0.05 %, and the other machine's the other way.
"""
_REPORTS_REMEMBERED = 8
"""As NTP's clock filter: among so many one was quick, and none is so old that clocks worse than they should be matter.
"""


def heartbeat_ms(shortest_lock_ms: int | None) -> int:
    """How often the worker reports: a sixth of the shortest lock of its subscriptions. None: it has none yet."""
    if shortest_lock_ms is None:
        return HEARTBEAT_MS_MAX
    return max(HEARTBEAT_MS_MIN, min(HEARTBEAT_MS_MAX, shortest_lock_ms // 6))


def renewal_margin_ms(lock_duration_ms: int) -> int:
    """A lease with less than this left is renewed: 5 s, or a third of its duration if that is less."""
    return min(RENEWAL_MARGIN_MS_MAX, lock_duration_ms // 3)


def report_is_fresh(report_age_ms: float, heartbeat: int) -> bool:
    """Only a report younger than two heartbeats justifies a renewal (consistency rule 18)."""
    return report_age_ms < 2 * heartbeat


def surely_left(duration: float) -> float:
    """Of a duration on another machine's clock: so much of ours has not passed before it is over."""
    return duration * (1.0 - CLOCK_DRIFT_MAX)


@attrs.define
class PeerClock:
    """What the clock of another machine shows at least, after what that machine said of it (protocol rule 5).

    Whoever says "my clock shows q" did so before it is heard; how long before cannot be observed. So from then on its
    clock shows at least q, and goes on from there hardly slower than ours. What was longest under way says least, and
    so does what was heard long ago: the best of the last few counts.
    """

    _heard: deque[tuple[float, float]] = attrs.field(factory=lambda: deque(maxlen=_REPORTS_REMEMBERED))
    """What it showed, and when that was heard on our clock; ms."""

    def heard(self, shown_ms: float | None, now_ms: float) -> None:
        """None: it did not say."""
        if shown_ms is not None:
            self._heard.append((shown_ms, now_ms))

    def at_least_ms(self, now_ms: float) -> float | None:
        """None: it never said."""
        return max((shown_ms + surely_left(now_ms - heard_ms) for shown_ms, heard_ms in self._heard), default=None)


def lease_deadline_ms(made_ms: float, lock_remaining_ms: float) -> float:
    """Until when (on its own clock) a worker can trust a lease.

    :param made_ms: what its clock showed already when the engine counted ``lock_remaining_ms``.
    """
    if lock_remaining_ms <= 0:
        return 0.0  # it was over when its frame was made, whatever the clocks say
    return made_ms + surely_left(lock_remaining_ms)
