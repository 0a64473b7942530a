"""Until when workers take leases for their own (L6, K1, K2, H1), with clocks that drift and frames that are late.

A belief that outlives its lease is what makes two workers charge one card. That it cannot is not for the store to see:
it is the worker's own arithmetic on durations (protocol rule 5). That promises nothing for clocks that drift by more
than `CLOCK_DRIFT_MAX`, as simulated ones do: what they may spoil is allowed (`Drift`), and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs

from simulations.checks.drift import Drift
from simulations.checks.reports import Reports
from simulations.checks.store_clock import StoreClock, clock_of
from simulations.world.rows import RowChange, Transaction
from stellwerk.core.external_task import AttemptEnd, ExternalTask, TaskAttempt, TaskState
from stellwerk.wire.messages import (
    BpmnErrorReport,
    Complete,
    EngineMessage,
    Fail,
    Hello,
    Holding,
    LeaseRef,
    Revoked,
    WorkerMessage,
)
from stellwerk.worker.task import Task

__all__ = ["Beliefs"]

_ROUNDING_SECONDS = 0.000_01
_REPORTS_MAX = 16
"""Of the worker's last reports the engine may go by: the eight that it remembers, while others are under way."""
_UNHEARD_SECONDS = 0.5
_LATE = 0.03
_LATE_SECONDS = 0.01
"""The SDK waits for the end of a lease on trio's clock, which here is not the worker's own: that may be 2 % faster."""

LeaseKey = tuple[str, int]


@attrs.define
class _Belief:
    place: str
    fence: int
    since: float
    until: float
    allowance: float
    """So much of it may be the clocks' fault."""

    def surely_holds(self, now: float) -> bool:
        return self.until - self.allowance > now

    @property
    def let_go_by(self) -> float:
        """The latest instant at which a process that does not stand still has given it up."""
        return self.until + (self.until - self.since) * _LATE + _LATE_SECONDS


class Beliefs:
    """A `WorkerObserver` and a `CommitObserver`. To be told of a commit before the workers hear of it."""

    def __init__(
        self,
        reports: Reports,
        now: Callable[[], float],
        *,
        drift: Drift | None = None,
        is_running: Callable[[str], bool] = lambda _place: True,
    ) -> None:
        """``drift``: of the clocks; None: there is none.

        ``is_running``: whether the process at that place lives (frozen is alive); the dead believe nothing.
        """
        self._reports = reports
        self._now = now
        self._drift = Drift({}) if drift is None else drift
        self._is_running = is_running
        self._clock = StoreClock()
        self._ends: dict[LeaseKey, float] = {}
        """Until when the store ever gave each lease, in true seconds."""
        self._lengths: dict[LeaseKey, float] = {}
        """How long a lease lasted when it was given that end, in true seconds."""
        self._given_us: dict[LeaseKey, int] = {}
        self._expired: dict[LeaseKey, int] = {}
        """When the rows ended a lease by expiry, true µs."""
        self._beliefs: dict[str, dict[int, _Belief]] = {}
        """By task and fence."""
        self._told: dict[str, deque[float]] = {}
        """When each process told the time by its clock, in its present session."""
        self._held: dict[str, dict[LeaseKey, None]] = {}
        """By process: what it believes in."""
        self._active: dict[str, float] = {}
        """When anything was last heard of each process."""
        self._revoked: dict[str, list[tuple[LeaseKey, float]]] = {}
        """By process: what was taken away from it, and when it heard."""
        self._boots: dict[str, str] = {}
        """By place: the process that said hello there last."""

    # --- CommitObserver --------------------------------------------------------------------------------------------

    def committed(self, transaction: Transaction) -> None:
        self._clock.observe(transaction)
        for change in transaction.changes:
            if isinstance(change.after, ExternalTask):
                self._task_written(change.after, transaction)
            elif isinstance(change.after, TaskAttempt) and change.after.end is AttemptEnd.EXPIRED:
                self._lease_expired((change.after.task_id, change.after.fence), transaction.us)

    def _task_written(self, task: ExternalTask, transaction: Transaction) -> None:
        if task.state is not TaskState.LOCKED or task.lease is None:
            return
        key = (task.task_id, task.fence)
        length = self._drift.true_length((task.lease.until_ms - clock_of(transaction)) / 1000)
        end = transaction.us / 1e6 + length
        if key not in self._ends or end > self._ends[key]:
            self._ends[key], self._lengths[key] = end, length
        self._given_us.setdefault(key, transaction.us)

    def _lease_expired(self, key: LeaseKey, us: int) -> None:
        self._expired[key] = us
        belief = self._beliefs.get(key[0], {}).get(key[1])
        is_believed = belief is not None and belief.until > us / 1e6 and self._is_running(belief.place)
        self._reports.sometimes("worker: believed in a lease when it expired", is_believed)
        is_unheard = belief is not None and self._ends.get(key, 0.0) - belief.until > _UNHEARD_SECONDS
        self._reports.sometimes("worker: never heard of the last renewal", is_unheard)

    def undone(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            if _is_expiry(change):
                assert isinstance(change.after, TaskAttempt)
                self._expired.pop((change.after.task_id, change.after.fence), None)

    def synced(self, number: int) -> None:
        """Nothing to do."""

    # --- WorkerObserver --------------------------------------------------------------------------------------------

    def believes(self, place: str, task_id: str, fence: int, until: float) -> None:
        now = self._now()
        key = (task_id, fence)
        if until <= now:  # nothing is believed that is over
            self._beliefs.setdefault(task_id, {}).pop(fence, None)
            self._held.get(place, {}).pop(key, None)
            return
        told = self._told.get(place)
        since_told = until - (told[0] if told else now)
        allowance = self._drift.excess(place, since_told, self._lengths.get(key, 0.0)) + _ROUNDING_SECONDS
        end = self._ends.get(key)
        is_founded = end is not None and until <= end + allowance
        # A jump of the store's clock forward is made up for by longer leases, which may not stand in the row yet.
        is_excused = end is not None and self._clock.jumped_since(self._given_us[key])
        if not (is_founded or is_excused):
            shown = "never gave it" if end is None else f"gave it until {end:.6f}"
            what = f"{place} believes in lease {fence} of task {task_id} until {until:.6f}, but the store {shown}"
            self._reports.always("K1", False, what)
        beliefs = self._beliefs.setdefault(task_id, {})
        beliefs[fence] = _Belief(place, fence, now, until, allowance)
        self._held.setdefault(place, {})[key] = None
        if len(beliefs) > 1:
            self._check_overlap(task_id, beliefs, beliefs[fence], now)

    def _check_overlap(self, task_id: str, beliefs: dict[int, _Belief], newest: _Belief, now: float) -> None:
        for earlier in beliefs.values():
            if earlier.fence >= newest.fence or not earlier.surely_holds(now) or newest.until <= now:
                continue
            expired_us = self._expired.get((task_id, earlier.fence))
            if expired_us is None or not self._is_running(earlier.place):
                self._reports.sometimes("worker: believed in a lease that was freed early", expired_us is None)
                continue
            if self._clock.jumped_since(self._given_us.get((task_id, earlier.fence), 0)):
                continue
            self._reports.always(
                "L6",
                False,
                f"{earlier.place} believes in lease {earlier.fence} of task {task_id} until {earlier.until:.6f}, and "
                f"{newest.place} in lease {newest.fence} since {now:.6f}; the first expired at {expired_us / 1e6:.6f}",
            )

    def let_go(self, place: str, task_id: str, fence: int) -> None:
        beliefs = self._beliefs.get(task_id)
        belief = None if beliefs is None else beliefs.get(fence)
        if beliefs is not None and belief is not None and belief.place == place:
            self._reports.sometimes("worker: gave up a lease at its deadline", belief.until <= self._now())
            del beliefs[fence]
            self._held.get(place, {}).pop((task_id, fence), None)

    def sent(self, place: str, message: WorkerMessage) -> None:
        if isinstance(message, Hello):
            self._greeted(place, message.boot_id)
        self._check_revoked(place)
        self._check_deadlines(place)
        if isinstance(message, Hello | Holding):
            self._told.setdefault(place, deque(maxlen=_REPORTS_MAX)).append(self._now())
        match message:
            case Complete() | Fail() | BpmnErrorReport():
                key = (message.task_id, message.fence)
                self._reports.sometimes("worker: result sent after its lease had expired", key in self._expired)
            case Holding():
                self._check_report(place, message.leases)
            case Hello():
                self._check_report(place, message.holding)
            case _:
                pass

    def _greeted(self, place: str, boot_id: str) -> None:
        self._told[place] = deque(maxlen=_REPORTS_MAX)
        if self._boots.setdefault(place, boot_id) == boot_id:
            return
        self._boots[place] = boot_id  # the one before gave up, and believes nothing any more
        for task_id, fence in self._held.pop(place, ()):
            self._beliefs[task_id].pop(fence, None)
        self._revoked.pop(place, None)

    def _check_report(self, place: str, told: Sequence[LeaseRef]) -> None:
        """Rule 16: whatever is left out would be given to somebody else."""
        named = {(lease.task_id, lease.fence) for lease in told}
        for key in self._held.get(place, ()):
            if key not in named:
                what = f"{place} believes in lease {key[1]} of task {key[0]} and leaves it out of its report"
                self._reports.always("H1", False, what)

    def received(self, place: str, message: EngineMessage) -> None:
        """Its effect on the leases is told by `believes` and `let_go`."""
        self._check_revoked(place)
        self._check_deadlines(place)
        now = self._now()
        if isinstance(message, Revoked):
            keys = [((notice.task_id, notice.fence), now) for notice in message.leases]
            self._revoked.setdefault(place, []).extend(keys)

    def _check_deadlines(self, place: str) -> None:
        """A lease is let go at its deadline (protocol rule 5): by the next sign of life after one that came later."""
        now = self._now()
        before, self._active[place] = self._active.get(place, now), now
        if before >= now:
            return
        for task_id, fence in self._held.get(place, ()):
            belief = self._beliefs.get(task_id, {}).get(fence)
            if belief is not None and belief.place == place and belief.let_go_by < before:
                what = f"{place} goes on with lease {fence} of task {task_id}, which it could trust until "
                self._reports.always("K1", False, f"{what}{belief.until:.6f}")

    def _check_revoked(self, place: str) -> None:
        """What was revoked must be let go at once: by the next time that anything is heard of the process."""
        waiting = self._revoked.get(place)
        if not waiting or waiting[-1][1] >= self._now():
            return
        for key, heard in self._revoked.pop(place):
            if key in self._held.get(place, ()):
                what = f"{place} goes on with lease {key[1]} of task {key[0]}, which was revoked at {heard:.6f}"
                self._reports.always("K1", False, what)

    def handler_began(self, place: str, task: Task) -> None:
        now = self._now()
        belief = self._beliefs.get(task.id, {}).get(task.fence)
        if belief is None or belief.place != place or belief.until <= now - _ROUNDING_SECONDS:
            ended = "" if belief is None else f", which it trusts until {belief.until:.6f}"
            what = f"at {now:.6f} {place} begins with task {task.id} on lease {task.fence}{ended}"
            self._reports.always("K2", False, what)

    def handler_ended(self, place: str, task: Task, outcome: str) -> None:
        key = (task.id, task.fence)
        self._reports.sometimes("worker: handler ended after its lease had expired", key in self._expired)


def _is_expiry(change: RowChange) -> bool:
    return isinstance(change.after, TaskAttempt) and change.after.end is AttemptEnd.EXPIRED
