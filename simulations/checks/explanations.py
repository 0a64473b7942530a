"""Which operation of a transaction may have changed which task: what was answered with success, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import attrs

from simulations.world.rows import Transaction
from stellwerk.core.external_task import ExternalTask, Holder, TaskState
from stellwerk.core.facts import Fact, TaskFailed
from stellwerk.ports import (
    Changeset,
    Committed,
    ExpiredLocks,
    ExpireLocks,
    ExtendLease,
    FailTask,
    FetchAndLock,
    LeaseAnswer,
    LeaseAnswerKind,
    LeaseTasks,
    Pruned,
    PruneInstances,
    ReleaseLease,
    ReleaseLeases,
    RenewLease,
    RenewLeases,
    Resumed,
    ResumeSession,
    TaskEnding,
)
from stellwerk.values import frozen

__all__ = ["Act", "ActKind", "Explanations"]


class ActKind(Enum):
    LEASE = "lease"
    FAIL = "fail"
    EXTEND = "extend"
    RENEW = "renew"
    RELEASE = "release"
    RESUME = "resume"
    RESUME_RELEASE = "release by hello"
    EXPIRE = "expire"
    STEP = "step"

    __hash__ = object.__hash__


@frozen
class Act:
    """An operation that was answered with success for one task."""

    kind: ActKind
    fence: int | None = None
    holder: Holder | None = None
    duration_ms: int | None = None
    operation: object = None
    is_started: bool = False
    session_id: str | None = None
    """Of the session that asks; None: it does not matter which."""


@attrs.define
class Explanations:
    """Of one transaction."""

    acts: dict[str, list[Act]] = attrs.field(factory=dict)
    """By task."""
    steps: dict[str, list[Changeset]] = attrs.field(factory=dict)
    """Committed changesets by instance."""
    prunes: bool = False

    @classmethod
    def of(cls, transaction: Transaction) -> Explanations:
        found = cls()
        for operation, outcome in zip(transaction.operations, transaction.outcomes, strict=True):
            found._explain(operation, outcome)
        return found

    def act(self, task_id: str, *kinds: ActKind) -> Act | None:
        return next((act for act in self.acts.get(task_id, ()) if act.kind in kinds), None)

    def step_of(self, instance_id: str) -> bool:
        return instance_id in self.steps

    def ending(self, task: ExternalTask) -> TaskEnding | None:
        for changeset in self.steps.get(task.instance_id, ()):
            for ending in changeset.endings:
                if ending.task_id == task.task_id:
                    return ending
        return None

    def facts(self, instance_id: str) -> Iterator[Fact]:
        for changeset in self.steps.get(instance_id, ()):
            yield from changeset.facts

    def failure_kind(self, task: ExternalTask) -> str | None:
        """Why the step says that the task has failed for good."""
        facts = self.facts(task.instance_id)
        return next(
            (fact.kind for fact in facts if isinstance(fact, TaskFailed) and fact.task_id == task.task_id), None
        )

    def _add(self, task_id: str, act: Act) -> None:
        self.acts.setdefault(task_id, []).append(act)

    def _explain(self, operation: object, outcome: object) -> None:
        match operation:
            case Changeset():
                if isinstance(outcome, Committed):
                    self.steps.setdefault(operation.instance_id, []).append(operation)
                    for birth in operation.birth_leases:
                        self._add(birth.task_id, Act(ActKind.LEASE, None, birth.holder, birth.duration_ms))
            case LeaseTasks():
                assert isinstance(outcome, tuple)
                for wish, task in zip(operation.leases, outcome, strict=True):
                    if task is not None:
                        self._add(wish.task_id, Act(ActKind.LEASE, None, wish.holder, wish.duration_ms))
            case FetchAndLock():
                self._explain_fetch(operation, outcome)
            case PruneInstances():
                self.prunes |= isinstance(outcome, Pruned)
            case _:
                self._explain_lease(operation, outcome)

    def _explain_fetch(self, operation: FetchAndLock, outcome: object) -> None:
        assert isinstance(outcome, tuple)
        for task in outcome:
            assert isinstance(task, ExternalTask)
            act = Act(ActKind.LEASE, None, operation.holder, operation.duration_ms, operation)
            self._add(task.task_id, act)

    def _explain_lease(self, operation: object, outcome: object) -> None:
        match operation:
            case FailTask() if _is_done(outcome):
                self._add(operation.task_id, Act(ActKind.FAIL, operation.fence, operation=operation))
            case ExtendLease() if _is_done(outcome):
                act = Act(ActKind.EXTEND, operation.fence, duration_ms=operation.duration_ms)
                self._add(operation.task_id, act)
            case RenewLeases() | ReleaseLeases() if isinstance(outcome, tuple):
                self._explain_each(operation.leases, outcome)
            case ResumeSession() if isinstance(outcome, Resumed):
                for task in outcome.kept:
                    self._add(task.task_id, Act(ActKind.RESUME, task.fence, operation.holder))
                for task in outcome.released:
                    self._add(task.task_id, Act(ActKind.RESUME_RELEASE, task.fence, operation.holder))
            case ExpireLocks() if isinstance(outcome, ExpiredLocks):
                for task in outcome.returned:
                    self._add(task.task_id, Act(ActKind.EXPIRE, task.fence))
            case _:
                pass

    def _explain_each(self, wishes: Sequence[RenewLease | ReleaseLease], answers: Sequence[object]) -> None:
        for wish, answer in zip(wishes, answers, strict=True):
            if not _is_done(answer):
                continue
            if isinstance(wish, RenewLease):
                self._add(wish.task_id, Act(ActKind.RENEW, wish.fence, session_id=wish.session_id))
            elif not _is_locked_still(answer):  # rule 14: then a hello of the same batch may release it after all
                act = Act(ActKind.RELEASE, wish.fence, is_started=wish.started, session_id=wish.session_id)
                self._add(wish.task_id, act)


def _is_done(outcome: object) -> bool:
    return isinstance(outcome, LeaseAnswer) and outcome.kind is LeaseAnswerKind.DONE


def _is_locked_still(outcome: object) -> bool:
    task = outcome.task if isinstance(outcome, LeaseAnswer) else None
    return task is not None and task.state is TaskState.LOCKED
