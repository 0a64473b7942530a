"""What commits and refusals show to have happened: the sometimes-properties that the database's side can see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulations.checks.reports import Reports
from simulations.checks.shadow import Shadow
from simulations.world.rows import Transaction
from stellwerk.core.external_task import ExternalTask, OutcomeKind, TaskState
from stellwerk.core.instance import InstanceState
from stellwerk.ports import (
    Changeset,
    CheckRepeat,
    Committed,
    DeployDefinitions,
    Deployed,
    ExpiredLocks,
    ExpireLocks,
    ExtendLease,
    FailTask,
    LeaseAnswer,
    LeaseAnswerKind,
    Operation,
    Outcome,
    PublishMessage,
    RefusedChangeset,
    RefusedGuard,
    ReleaseLease,
    ReleaseLeases,
    RenewLeases,
    Resumed,
    ResumeSession,
)

__all__ = ["OutcomeNotes"]

_SWEEP_US = 200_000
_FAR_OFF_MS = 1_800_000
_GUARDS = {
    RefusedGuard.VERSION: "step: refused for a stale version",
    RefusedGuard.MESSAGE: "step: refused, another subscription got the message",
    RefusedGuard.INCIDENT: "step: refused, the incident was resolved before",
    RefusedGuard.DEFINITION: "step: refused, a newer version was deployed meanwhile",
}


class OutcomeNotes:
    """Looks at rows as they were before the transaction."""

    def __init__(self, reports: Reports, shadow: Shadow, states: Mapping[str, InstanceState]) -> None:
        self._reports = reports
        self._shadow = shadow
        self._states = states
        self._stepped_by: dict[str, str] = {}
        self._last_sweep: tuple[str, int] | None = None

    def committed(self, transaction: Transaction) -> None:
        for operation, outcome in zip(transaction.operations, transaction.outcomes, strict=True):
            self._note(transaction, operation, outcome)

    def _note(self, transaction: Transaction, operation: Operation, outcome: Outcome) -> None:
        match operation, outcome:
            case Changeset(), Committed():
                self._stepped(transaction, operation)
            case Changeset(), RefusedChangeset():
                self._refused(operation, outcome, transaction.now_ms)
            case ExpireLocks(), ExpiredLocks():
                self._swept(transaction, outcome)
            case ResumeSession(), Resumed():
                self._resumed(outcome)
            case ((FailTask() | ExtendLease() | CheckRepeat()), LeaseAnswer()):
                self._answered(operation, outcome, transaction.now_ms)
            case ((RenewLeases() | ReleaseLeases()), tuple()):
                kinds = [answer.kind for answer in outcome]
                what = "renewal" if isinstance(operation, RenewLeases) else "release"
                self._reports.sometimes(f"lease: {what} refused", LeaseAnswerKind.LEASE_LOST in kinds)
                if isinstance(operation, ReleaseLeases):
                    self._taken_back(operation.leases)
            case DeployDefinitions(), Deployed():
                self._reports.sometimes("process: redeployed while instances run", self._is_redeployed(outcome))
            case PublishMessage(), False:
                self._reports.sometimes("message: published twice, kept once")
            case _:
                pass

    def _stepped(self, transaction: Transaction, step: Changeset) -> None:
        reports = self._reports
        before = self._stepped_by.get(step.instance_id)
        self._stepped_by[step.instance_id] = transaction.node
        is_other = before not in (None, transaction.node)
        reports.sometimes("step: taken over by another node", is_other)
        reports.sometimes("saga: taken over by another node in the middle", is_other and self._is_compensating(step))
        is_far_off = abs(step.at_ms - transaction.now_ms) > _FAR_OFF_MS
        reports.sometimes("step: by a node whose wall clock is half an hour off", is_far_off)
        reports.sometimes("step: several commands in one", len(step.endings) > 1)
        reports.sometimes("step: batch with several steps", len(transaction.operations) > 1)
        reports.sometimes("task: drained by its failing scope", bool(step.changes.drained_tasks))
        reports.sometimes("process: cancelled while a task was leased", self._cancels_leased(step))
        reports.sometimes("incident: opened", bool(step.changes.incidents_opened))

    def _is_compensating(self, step: Changeset) -> bool:
        state = self._states.get(step.instance_id)
        return state is not None and bool(state.compensations)

    def _cancels_leased(self, step: Changeset) -> bool:
        tasks = (self._shadow.tasks.get(task_id) for task_id in step.changes.cancelled_tasks)
        return step.changes.status == "CANCELLED" and any(
            task is not None and task.state is TaskState.LOCKED for task in tasks
        )

    def _refused(self, step: Changeset, refused: RefusedChangeset, now_ms: int) -> None:
        name = _GUARDS.get(refused.guard)
        if name is not None:
            self._reports.sometimes(name)
        if refused.guard is not RefusedGuard.LEASE or refused.answer is None:
            return
        self._reports.sometimes("step: one command of several refused", len(step.endings) > 1)
        ending = next(ending for ending in step.endings if ending.task_id == refused.subject)
        if ending.outcome is not None:
            self._late(refused.answer, ending.fence, ending.outcome, now_ms)

    def _answered(self, operation: FailTask | ExtendLease | CheckRepeat, answer: LeaseAnswer, now_ms: int) -> None:
        if isinstance(operation, ExtendLease):
            self._reports.sometimes("lease: extension refused", answer.kind is LeaseAnswerKind.LEASE_LOST)
        else:
            kind = operation.kind if isinstance(operation, CheckRepeat) else OutcomeKind.FAIL
            self._late(answer, operation.fence, kind, now_ms)

    def _late(self, answer: LeaseAnswer, fence: int | None, kind: OutcomeKind, now_ms: int) -> None:
        """A request that came too late, or once more."""
        name = kind.value
        if answer.kind is LeaseAnswerKind.REPEATED:
            self._reports.sometimes(f"request: repeated {name} got the same answer")
            later = answer.task is not None and fence is not None and answer.task.fence > fence
            self._reports.sometimes("request: repeated after a later attempt", later)
        elif answer.kind is LeaseAnswerKind.ALREADY_FINISHED:
            self._reports.sometimes("request: refused, finished in another way")
        elif answer.kind is LeaseAnswerKind.CANCELLED:
            self._reports.sometimes("request: refused, cancelled")
        elif answer.kind is LeaseAnswerKind.LEASE_LOST and answer.task is not None and fence is not None:
            self._stale(answer.task, fence, now_ms)

    def _stale(self, task: ExternalTask, fence: int, now_ms: int) -> None:
        is_newer = task.fence > fence
        self._reports.sometimes(
            "request: refused, another worker has the task", is_newer and task.state is TaskState.LOCKED
        )
        self._reports.sometimes("request: refused, stale fence", is_newer)
        is_past = task.fence == fence and task.lease is not None and task.lease.until_ms <= now_ms
        self._reports.sometimes("request: refused, lock expired", is_past)

    def _taken_back(self, leases: Sequence[ReleaseLease]) -> None:
        """What a session wants back has gone over to a later one."""
        for wish in leases:
            task = self._shadow.tasks.get(wish.task_id)
            if task is None or task.lease is None or task.fence != wish.fence:
                continue
            is_other = wish.session_id not in (None, task.lease.holder.session_id)
            self._reports.sometimes("lease: wanted back by a session that has it no more", is_other)

    def _swept(self, transaction: Transaction, outcome: ExpiredLocks) -> None:
        last = self._last_sweep
        is_second = last is not None and last[0] != transaction.node and transaction.us - last[1] <= _SWEEP_US
        self._reports.sometimes("lease: two nodes swept at the same time", is_second and bool(outcome.returned))
        self._last_sweep = (transaction.node, transaction.us)
        self._reports.sometimes("lease: expiry left to the instance", bool(outcome.failing))

    def _resumed(self, outcome: Resumed) -> None:
        self._reports.sometimes("session: leases kept by hello", bool(outcome.kept))
        for lost in outcome.lost:
            self._reports.sometimes(f"session: hello named a lease that was {lost.reason}")
        self._reports.sometimes("session: leases released by hello", bool(outcome.released))

    def _is_redeployed(self, outcome: Deployed) -> bool:
        keys = {row.key for row in outcome.definitions if row.version > 1} - set(outcome.unchanged)
        running = (row for row in self._shadow.instances.values() if row.status == "RUNNING")
        return bool(keys) and any(row.process_key in keys for row in running)
