"""What workers were told must agree with the rows: what is durable stays so, whatever crashes (D1, A1), and nothing is
refused that was done (I1) or could be done (I3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulations.checks.reports import Reports
from simulations.checks.shadow import Shadow
from simulations.world.rows import Transaction
from stellwerk.core.external_task import AttemptEnd, ExternalTask, OutcomeKind, TaskAttempt, TaskOutcome, TaskState
from stellwerk.core.lease import recorded_outcome
from stellwerk.values import frozen

__all__ = ["Promise", "Promises"]


@frozen
class Promise:
    """A final request that was answered."""

    task_id: str
    fence: int
    kind: OutcomeKind
    request_digest: str
    place: str


class Promises:
    def __init__(self, reports: Reports, shadow: Shadow) -> None:
        self._reports = reports
        self._shadow = shadow
        self.lease_now_ms: Callable[[], int] | None = None
        """The store's lease clock at this very moment; None: nobody knows it, and I3 is not judged."""
        self._given: dict[str, dict[int, Promise]] = {}
        self._finals: dict[tuple[str, int], int] = {}
        """Lease → the commit that recorded how its worker ended it."""
        self._begun: dict[tuple[str, int], str] = {}
        """Lease → the process whose handler began."""
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

    def denied(self, asked: Promise, answer: str) -> None:
        """A worker was told for good that its lease is over. A fence is given once, so a lease that stands now has
        stood ever since it was given."""
        if asked.task_id not in self._shadow.tasks:
            return
        what = f"{asked.place} was refused ({answer}) its {asked.kind.value} of task {asked.task_id}"
        recorded = self._recorded(asked.task_id, asked.fence)
        is_done = recorded is not None and _is_outcome(recorded, asked)
        self._reports.always("I1", not is_done, lambda: f"{what} with fence {asked.fence}, which the rows say was done")
        self._reports.always(
            "I3",
            not self._stands(asked.task_id, asked.fence),
            lambda: f"{what} with fence {asked.fence}, and that lease stands: {self._now(asked)}",
        )

    def began(self, place: str, task_id: str, fence: int) -> None:
        """A worker began to work on a lease."""
        self._begun[(task_id, fence)] = place
        self._check_begun((task_id, fence))

    def _check_begun(self, lease: tuple[str, int]) -> None:
        """Rule 14: what may have been begun by its single worker is given to nobody else."""
        task, attempt = self._shadow.tasks.get(lease[0]), self._shadow.attempts.get(lease)
        is_given_back = task is not None and task.single_try and attempt is not None
        if is_given_back and attempt is not None and attempt.end is AttemptEnd.RELEASED:
            what = f"{self._begun[lease]} has begun the single try of task {lease[0]} on lease {lease[1]}"
            self._reports.always("L7", False, f"{what}, which was taken back as if nobody had")

    def _stands(self, task_id: str, fence: int) -> bool:
        task = self._shadow.tasks.get(task_id)
        if task is None or task.state is not TaskState.LOCKED or task.fence != fence or task.lease is None:
            return False
        return self.lease_now_ms is not None and task.lease.until_ms > self.lease_now_ms()

    # --- from the database -----------------------------------------------------------------------------------------

    def committed(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            row = change.after
            if isinstance(row, ExternalTask):
                if row.outcome is not None:
                    self._finals.setdefault((row.task_id, row.fence), transaction.number)
                self._recheck(row.task_id)
            elif isinstance(row, TaskAttempt):
                if (row.task_id, row.fence) in self._begun:
                    self._check_begun((row.task_id, row.fence))
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
            return _is_outcome(recorded, promise)
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


def _is_outcome(recorded: TaskOutcome, promise: Promise) -> bool:
    return (recorded.kind, recorded.request_digest) == (promise.kind, promise.request_digest)


def _may_both(first: Promise, second: Promise) -> bool:
    """A lease ends in one way, and nothing comes after a completion."""
    if first.fence == second.fence:
        return (first.kind, first.request_digest) == (second.kind, second.request_digest)
    earlier = min(first, second, key=lambda promise: promise.fence)
    return earlier.kind is not OutcomeKind.COMPLETE


def _shown(promise: Promise) -> str:
    what = f"{promise.kind.value} of task {promise.task_id} with fence {promise.fence}"
    return f"{promise.place} was told that its {what} is durable"
