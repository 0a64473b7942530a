"""Rules of a worker's session that both sides need, without any input or output (docs/worker-protocol).

Times are monotonic milliseconds of whoever asks, durations milliseconds.
"""

from __future__ import annotations

import attrs

__all__ = [
    "DELIVERY_TIMEOUT_MS",
    "HEARTBEAT_MS_MAX",
    "HEARTBEAT_MS_MIN",
    "RENEWAL_MARGIN_MS_MAX",
    "FrameLatency",
    "heartbeat_ms",
    "renewal_margin_ms",
    "report_is_fresh",
]

HEARTBEAT_MS_MIN = 250
HEARTBEAT_MS_MAX = 5_000
RENEWAL_MARGIN_MS_MAX = 5_000
DELIVERY_TIMEOUT_MS = 5_000
_WINDOW_MS = 300_000.0


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


@attrs.define
class _WindowMinimum:
    """The smallest value of the last five to ten minutes.

    Two clocks drift apart by a few seconds a day; a minimum that is kept for ever would take the drift for delay.
    """

    _started_ms: float = float("-inf")
    _current: float = float("inf")
    _previous: float = float("inf")

    def add(self, value: float, now_ms: float) -> None:
        if now_ms - self._started_ms >= _WINDOW_MS:
            self._started_ms, self._previous, self._current = now_ms, self._current, float("inf")
        self._current = min(self._current, value)

    @property
    def value(self) -> float | None:
        smallest = min(self._current, self._previous)
        return None if smallest == float("inf") else smallest


@attrs.define
class FrameLatency:
    """How much less a worker may trust a lease than the frame says, because the frame was under way (rule 5).

    A one-way delay cannot be observed. What can be: how much longer than the quickest frame this one took (the
    engine's clock against ours), and the smallest round trip, which bounds the delay of the quickest frame.
    One for each connection: another engine has another clock.
    """

    _offset: _WindowMinimum = attrs.field(factory=_WindowMinimum)
    _round_trip: _WindowMinimum = attrs.field(factory=_WindowMinimum)

    def round_trip(self, duration_ms: float, now_ms: float) -> None:
        """A question (ping, hello) was answered after so long."""
        self._round_trip.add(duration_ms, now_ms)

    def margin_ms(self, server_time_ms: float, arrived_ms: float) -> float:
        """Take note of a frame and say by how much its durations are to be shortened."""
        trip = self._round_trip.value or 0.0
        if server_time_ms <= 0.0:
            return trip
        difference = arrived_ms - server_time_ms
        self._offset.add(difference, arrived_ms)
        usual = self._offset.value
        assert usual is not None
        return difference - usual + trip

    def deadline_ms(self, arrived_ms: float, server_time_ms: float, lock_remaining_ms: int) -> float:
        """Until when (on our clock) a lease of this frame can be trusted."""
        return arrived_ms + lock_remaining_ms - self.margin_ms(server_time_ms, arrived_ms)
