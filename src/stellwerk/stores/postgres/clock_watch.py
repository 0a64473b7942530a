"""Whether the database's clock, which judges leases, was set (consistency.md 19).

It is compared with monotonic time whenever somebody reads it. Set forward, it makes leases look expired whose workers
are alive. So the sweep for expired locks pauses until the last of them has really run out, and until then they count as
ending later by as much as the clock jumped: their workers renew and complete them as ever.
"""

from __future__ import annotations

import attrs

from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.instants import InstantMs
from stellwerk.ports import Log
from stellwerk.values import frozen

__all__ = ["JUMP_MS_MIN", "PAUSE_SECONDS_MAX", "ClockJump", "ClockWatch", "LeaseTime"]

JUMP_MS_MIN = 1_000
"""Less is taken for noise."""
PAUSE_SECONDS_MAX = 3_600.0
_DRIFT = 0.1
"""How far two clocks may run apart while nobody sets them: chrony slews by up to 8.3 %."""


@frozen
class ClockJump:
    """A jump forward while leases run that were given before it."""

    before_ms: InstantMs
    """They began earlier than this; those that were given since began later."""
    by_ms: int


@frozen
class LeaseTime:
    """What a transaction has to know of the time."""

    now_ms: InstantMs | None = None
    """Dictated by a test; None: the database's clock."""
    jump: ClockJump | None = None
    looked_ms: InstantMs | None = None
    """What the clock showed when it was last compared with monotonic time; None: it was not, just before."""
    lock_ms: int | None = None
    """How long to wait for the locks of others; None: as the connection does."""

    def as_it_was_seen(self) -> LeaseTime:
        """What had ended by then has ended, also if the clock is set right now."""
        return self if self.looked_ms is None else attrs.evolve(self, now_ms=self.looked_ms)

    def as_it_is(self, task: ExternalTask) -> ExternalTask:
        """With the end that its lease has on the clock that jumped."""
        lease, jump = task.lease, self.jump
        if jump is None or lease is None or task.state is not TaskState.LOCKED or lease.since_ms >= jump.before_ms:
            return task
        # Once it is written like this it counts as one that was given since.
        since_ms = max(lease.since_ms + jump.by_ms, jump.before_ms)
        return attrs.evolve(task, lease=attrs.evolve(lease, since_ms=since_ms, until_ms=lease.until_ms + jump.by_ms))


class ClockWatch:
    """Pure but for the log: all times come in."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._low_ms = self._high_ms = 0.0
        """Where the database's clock minus monotonic time lies."""
        self._observed_at: float | None = None
        self._jumped_at = float("-inf")
        self._paused_until = float("-inf")
        self._jump = ClockJump(0, 0)
        self._jumped_to_ms: InstantMs = 0
        self._is_limited = True
        self.jumps_forward = 0
        self.jumps_backward = 0

    def __repr__(self) -> str:
        return f"ClockWatch(forward={self.jumps_forward}, backward={self.jumps_backward})"

    def observe(self, now_ms: InstantMs, asked_at: float, answered_at: float) -> None:
        """The database's clock showed `now_ms` at some moment between the two (monotonic, seconds).

        Both are needed: an answer that was long on its way must not look like a jump.
        """
        low_ms, high_ms = now_ms - answered_at * 1000, now_ms - asked_at * 1000
        if self._observed_at is None:
            self._low_ms, self._high_ms, self._observed_at = low_ms, high_ms, answered_at
        elif asked_at >= self._jumped_at:  # what was asked before the jump tells nothing about the clock after it
            self._compare(low_ms, high_ms, answered_at, self._observed_at)

    def pause_seconds(self, monotonic: float) -> float:
        """How much longer no lock may be taken for expired; 0 when nothing is wrong."""
        return max(0.0, self._paused_until - monotonic)

    def jump(self, monotonic: float) -> ClockJump | None:
        """The one that leases suffer from; None: no pause is on."""
        return self._jump if self.pause_seconds(monotonic) else None

    @property
    def wants_limit(self) -> InstantMs | None:
        """`limit_pause` is to be told of the leases that began earlier than this; None: it was told already.

        Not of those that were given between the jump and its discovery: by the clock as it was they would seem to end
        as much later as the clock jumped, and the pause would last for all of it.
        """
        return None if self._is_limited else self._jump.before_ms

    def limit_pause(self, before_ms: InstantMs, last_end_ms: InstantMs | None) -> None:
        """No lease that began earlier than `before_ms` ends later than this, on the clock as it was then."""
        if before_ms != self._jump.before_ms:
            return  # meanwhile the clock jumped again
        self._is_limited = True
        left_ms = 0 if last_end_ms is None else last_end_ms + self._jump.by_ms - self._jumped_to_ms
        self._paused_until = min(self._paused_until, self._jumped_at + max(0, left_ms) / 1000)

    def next_sweep_ms(self, expiry_ms: InstantMs | None, now_ms: InstantMs, monotonic: float) -> InstantMs | None:
        """When to look for expired locks again, on the database's clock.

        :param expiry_ms: when the next lock expires; None: there are no locks.
        """
        pause_ms = self.pause_seconds(monotonic) * 1000
        if expiry_ms is None or not pause_ms:
            return expiry_ms
        return max(expiry_ms, now_ms + int(pause_ms) + 1)

    def _compare(self, low_ms: float, high_ms: float, answered_at: float, observed_at: float) -> None:
        drift_ms = max(0.0, answered_at - observed_at) * 1000 * _DRIFT
        known_low_ms, known_high_ms = self._low_ms - drift_ms, self._high_ms + drift_ms
        jump_ms = (low_ms + high_ms - self._low_ms - self._high_ms) / 2
        self._observed_at = max(answered_at, observed_at)
        if low_ms > known_high_ms + JUMP_MS_MIN:
            self._jumped_forward(jump_ms / 1000, answered_at, low_ms + answered_at * 1000)
        elif high_ms < known_low_ms - JUMP_MS_MIN:
            self._jumped_backward(-jump_ms / 1000, answered_at)
        elif max(low_ms, known_low_ms) <= min(high_ms, known_high_ms):
            # Both hold: a slow answer takes nothing away from what a quick one told.
            low_ms, high_ms = max(low_ms, known_low_ms), min(high_ms, known_high_ms)
        self._low_ms, self._high_ms = low_ms, high_ms

    def _jumped_forward(self, seconds: float, at: float, now_ms: float) -> None:
        pause = min(PAUSE_SECONDS_MAX, self.pause_seconds(at) + seconds)
        by_ms = seconds * 1000 + (self._jump.by_ms if self.pause_seconds(at) else 0)
        self._jump, self._jumped_to_ms = ClockJump(int(now_ms - seconds * 500), int(by_ms)), int(now_ms)
        self._jumped_at, self._paused_until, self._is_limited = at, at + pause, False
        self.jumps_forward += 1
        self._log.error("database clock set forward", seconds=round(seconds, 3), sweep_paused_seconds=round(pause, 3))

    def _jumped_backward(self, seconds: float, at: float) -> None:
        """Leases last longer by as much. What is taken back of a jump forward needs no pause any more."""
        self._jumped_at = at
        self._paused_until -= seconds
        self._jump = attrs.evolve(self._jump, by_ms=self._jump.by_ms - int(seconds * 1000))
        self.jumps_backward += 1
        pause = self.pause_seconds(at)
        self._log.error("database clock set back", seconds=round(seconds, 3), sweep_paused_seconds=round(pause, 3))
