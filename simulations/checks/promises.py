"""What workers were told to be durable must be in the rows from then on, whatever crashes (D1, A1, I1)."""

from __future__ import annotations

from collections.abc import Iterator

from simulations.checks.reports import Reports
from simulations.checks.shadow import Shadow
from simulations.world.rows import Transaction
from stellwerk.core.external_task import AttemptEnd, ExternalTask, OutcomeKind, TaskAttempt, TaskOutcome
from stellwerk.core.lease import recorded_outcome
from stellwerk.values import frozen

__all__ = ["Promise", "Promises"]


@frozen
class Promise:
    """An acknowledged request."""

    task_id: str
    fence: int
    kind: OutcomeKind
    request_digest: str
    place: str


class Promises:
    def __init__(self, reports: Reports, shadow: Shadow) -> None:
        self._reports = reports
        self._shadow = shadow
        self._given: dict[str, dict[int, Promise]] = {}
        self._finals: dict[tuple[str, int], int] = {}
        """Lease → the commit that recorded how its worker ended it."""
        self._synced = 0

    # --- from the workers ------------------------------------------------------------------------------------------

    def given(self, promise: Promise) -> None:
        """A worker got an ``ack``."""
        self._reports.always(
            "D1", self._is_kept(promise), lambda: f"{_shown(promise)}, and the rows say {self._now(promise)}"
        )
        number = self._finals.get((promise.task_id, promise.fence), 0)
        is_safe = number <= self._synced
        self._reports.always("D1", is_safe, lambda: f"{_shown(promise)} by commit {number}, synced is {self._synced}")
        others = self._given.setdefault(promise.task_id, {})
        for other in others.values():
            if not _may_both(other, promise):
                self._reports.always("A1", False, f"{_shown(promise)}, and before it {_shown(other)}")
        others.setdefault(promise.fence, promise)

    # --- from the database -----------------------------------------------------------------------------------------

    def committed(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            row = change.after
            if isinstance(row, ExternalTask):
                if row.outcome is not None:
                    self._finals.setdefault((row.task_id, row.fence), transaction.number)
                self._recheck(row.task_id)
            elif row is None and isinstance(change.before, ExternalTask):
                self._given.pop(change.before.task_id, None)  # pruned: the promise ends with the retention

    def undone(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            row = change.after
            if isinstance(row, ExternalTask):
                if self._finals.get((row.task_id, row.fence)) == transaction.number:
                    del self._finals[(row.task_id, row.fence)]
                self._recheck(row.task_id)

    def synced(self, number: int) -> None:
        self._synced = number

    def leases_given_back(self) -> Iterator[tuple[str, int]]:
        """Task and fence of those that nobody ended by a request of his own."""
        for key, attempt in self._shadow.attempts.items():
            if attempt.end in (AttemptEnd.RELEASED, AttemptEnd.EXPIRED):
                yield key

    def recheck_all(self) -> None:
        """At the end of a run."""
        for task_id in self._given:
            self._recheck(task_id)

    def _recheck(self, task_id: str) -> None:
        for promise in self._given.get(task_id, {}).values():
            if not self._is_kept(promise):
                self._reports.always("D1", False, f"{_shown(promise)}, but now the rows say {self._now(promise)}")

    # --- rows ------------------------------------------------------------------------------------------------------

    def _recorded(self, task_id: str, fence: int) -> TaskOutcome | None:
        task = self._shadow.tasks.get(task_id)
        if task is None:
            return None
        return recorded_outcome(task, fence, self._shadow.attempts.get((task_id, fence)))

    def _is_kept(self, promise: Promise) -> bool:
        recorded = self._recorded(promise.task_id, promise.fence)
        if recorded is not None:
            return (recorded.kind, recorded.request_digest) == (promise.kind, promise.request_digest)
        return self._repeats_newest(promise)

    def _repeats_newest(self, promise: Promise) -> bool:
        """Rule 13: a failure told again by a worker under another fence gets the answer of its newest attempt."""
        if promise.kind is not OutcomeKind.FAIL:
            return False
        ends: list[TaskAttempt] = [
            attempt
            for attempt in self._shadow.attempts_of_task(promise.task_id)
            if attempt.end is AttemptEnd.FAILED and attempt.request_digest == promise.request_digest
        ]
        return bool(ends)

    def _now(self, promise: Promise) -> str:
        task = self._shadow.tasks.get(promise.task_id)
        if task is None:
            return "that there is no such task"
        return f"{task.state.value} fence {task.fence}, recorded {self._recorded(promise.task_id, promise.fence)}"


def _may_both(first: Promise, second: Promise) -> bool:
    """A lease ends in one way, and nothing comes after a completion."""
    if first.fence == second.fence:
        return (first.kind, first.request_digest) == (second.kind, second.request_digest)
    earlier = min(first, second, key=lambda promise: promise.fence)
    return earlier.kind is not OutcomeKind.COMPLETE


def _shown(promise: Promise) -> str:
    what = f"{promise.kind.value} of task {promise.task_id} with fence {promise.fence}"
    return f"{promise.place} was told that its {what} is durable"
