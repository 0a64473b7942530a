"""The checkers of leases: good histories pass, and each doctored one is found under its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from simulations.checks.commit_checks import CommitChecks
from simulations.checks.rehearsal import Findings, Rehearsal, holder
from simulations.world.rows import RowChange, Transaction
from stellwerk.core.commands import EndTaskInFailure, FailureKind, ResolveIncident, ThrowBpmnError
from stellwerk.core.external_task import AttemptEnd, ExternalTask, OutcomeKind, TaskAttempt, TaskState
from stellwerk.core.facts import IncidentResolved
from stellwerk.json_values import digest
from stellwerk.ports import (
    Changeset,
    CheckRepeat,
    ExpireLocks,
    ExtendLease,
    FailTask,
    FetchAndLock,
    PruneInstances,
    ReleaseLease,
    ReleaseLeases,
    RenewLease,
    RenewLeases,
    ResumeSession,
    TaskEnding,
)

HEAD = (
    '<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"'
    ' xmlns:stellwerk="https://stellwerk.dev/bpmn" xmlns:camunda="http://camunda.org/schema/1.0/bpmn">'
)
ONE_TASK = f"""{HEAD}<process id="one" isExecutable="true">
<startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="work"/>
<serviceTask id="work" camunda:type="external" camunda:topic="work"/>
<sequenceFlow id="f2" sourceRef="work" targetRef="e"/><endEvent id="e"/></process></definitions>"""


class Play:
    """One instance with one task."""

    def __init__(self, task_changes: dict[str, Any] | None = None) -> None:
        self.findings = Findings()
        self.checks = CommitChecks(self.findings)
        self.rehearsal = Rehearsal(self.checks)
        self.definition_id = self.rehearsal.deploy(ONE_TASK)
        self.rehearsal.start("i1", self.definition_id)
        if task_changes:
            # As the model might have said: the row is written before the checkers see it.
            self.rehearsal.tables.tasks[self.task.task_id] = attrs.evolve(self.task, **task_changes)
            self.findings, old = Findings(), self.rehearsal.transactions
            self.checks = CommitChecks(self.findings)
            self.rehearsal.observers = [self.checks]
            for transaction in old:
                self.checks.committed(with_task(transaction, **task_changes))

    @property
    def task(self) -> ExternalTask:
        (task,) = self.rehearsal.tasks("i1", *TaskState)
        return task

    def leased(self, worker: str = "w1", duration_ms: int = 10_000) -> ExternalTask:
        return self.rehearsal.lease(self.task, worker, duration_ms)

    def fail(self, task: ExternalTask, retries: int | None = None, retry_after_ms: int | None = 1_000) -> None:
        operation = FailTask(task.task_id, task.fence, "d", "broken", None, retry_after_ms, retries, "w1")
        self.rehearsal.transact(operation)

    def fail_for_good(self, task: ExternalTask) -> None:
        command = EndTaskInFailure(
            task.task_id, task.fence, FailureKind.RETRIES_EXHAUSTED, "broken", "d", worker_id="w1"
        )
        ending = TaskEnding(task.task_id, task.fence, "FAILED", OutcomeKind.FAIL, "d", worker_id="w1")
        self.rehearsal.step(command, "i1", ending)

    def doctored(self, change: Callable[[Transaction], Transaction]) -> set[str]:
        """The last transaction, changed, told to checkers that saw all before it as it was."""
        findings = Findings()
        checks = CommitChecks(findings)
        *before, last = self.rehearsal.transactions
        for transaction in before:
            checks.committed(transaction)
        assert not findings.violations
        checks.committed(change(last))
        return findings.invariants


def with_task(transaction: Transaction, **fields: Any) -> Transaction:
    """Whatever is written to tasks, with other contents."""
    return _changed(transaction, lambda row: attrs.evolve(row, **fields) if isinstance(row, ExternalTask) else row)


def with_lease(transaction: Transaction, **fields: Any) -> Transaction:
    def doctor(row: object) -> object:
        if isinstance(row, ExternalTask) and row.lease is not None:
            return attrs.evolve(row, lease=attrs.evolve(row.lease, **fields))
        return row

    return _changed(transaction, doctor)


def with_attempt(transaction: Transaction, **fields: Any) -> Transaction:
    return _changed(transaction, lambda row: attrs.evolve(row, **fields) if isinstance(row, TaskAttempt) else row)


def _changed(transaction: Transaction, doctor: Callable[[object], object]) -> Transaction:
    changes = tuple(attrs.evolve(change, after=doctor(change.after)) for change in transaction.changes)
    return attrs.evolve(transaction, changes=changes)


def earlier(transaction: Transaction, milliseconds: int) -> Transaction:
    """The same at another time of the store's clock."""
    return attrs.evolve(transaction, now_ms=transaction.now_ms - milliseconds, us=transaction.us - 1000 * milliseconds)


def without(transaction: Transaction, table: str) -> Transaction:
    return attrs.evolve(transaction, changes=tuple(item for item in transaction.changes if item.table != table))


def step_of(transaction: Transaction) -> Changeset:
    (step,) = transaction.operations
    assert isinstance(step, Changeset)
    return step


def unasked(transaction: Transaction) -> Transaction:
    return attrs.evolve(transaction, operations=(), outcomes=())


# --- good histories ------------------------------------------------------------------------------------------------


def test_the_life_of_a_task_in_all_its_turns_breaks_nothing() -> None:
    play = Play()
    rehearsal = play.rehearsal
    task = play.leased()
    rehearsal.pass_ms(1_000)
    rehearsal.transact(RenewLeases((RenewLease(task.task_id, task.fence, "session-1-of-w1"),)))
    rehearsal.transact(ExtendLease(task.task_id, task.fence, 20_000))
    rehearsal.transact(ResumeSession(holder("w1", 2), ((task.task_id, task.fence),)))
    rehearsal.transact(ReleaseLeases((ReleaseLease(task.task_id, task.fence, None, True),)))
    task = play.leased("w2", 1_000)
    rehearsal.pass_ms(1_000)
    rehearsal.transact(ExpireLocks(10))
    rehearsal.transact(FetchAndLock(holder("w1"), ("work",), 1, 5_000))
    play.fail(play.task)
    rehearsal.pass_ms(1_000)
    play.fail(play.leased())
    rehearsal.pass_ms(1_000)
    play.fail_for_good(play.leased())
    assert play.task.state is TaskState.FAILED
    (incident,) = rehearsal.tables.incidents
    rehearsal.step(ResolveIncident(incident, 2), "i1")
    rehearsal.transact(ResumeSession(holder("w1", 3), ()))
    play.leased()
    rehearsal.transact(ResumeSession(holder("w1", 4), ()))
    rehearsal.complete(play.leased())
    rehearsal.pass_ms(5)
    rehearsal.transact(PruneInstances(rehearsal.now_ms, 10))
    assert not play.findings.violations
    for name in (
        "lease: extended by request",
        "lease: renewed",
        "lease: moved to a later session",
        "lease: expired",
        "task: failed with retries left",
        "task: retries exhausted",
        "incident: resolved, task offered again",
        "lease: released by hello",
    ):
        assert play.findings.happened[name], name


def test_a_bpmn_error_and_a_cancellation_break_nothing() -> None:
    play = Play()
    task = play.leased()
    command = ThrowBpmnError(task.task_id, task.fence, "NO", None, None, {}, "d", "w1")
    ending = TaskEnding(task.task_id, task.fence, "FAILED", OutcomeKind.BPMN_ERROR, "d", worker_id="w1")
    play.rehearsal.step(command, "i1", ending)
    play.rehearsal.start("i2", play.definition_id)
    (other,) = play.rehearsal.tasks("i2")
    play.rehearsal.lease(other)
    play.rehearsal.cancel("i2")
    play.rehearsal.cancel("i1")
    assert not play.findings.violations
    assert play.findings.happened["task: cancelled while leased"]


def test_what_a_crash_undid_may_happen_in_another_way() -> None:
    play = Play()
    task = play.leased()
    rehearsal = play.rehearsal
    rehearsal.pass_ms(10)
    checks, findings = play.checks, play.findings
    rehearsal.observers = []
    rehearsal.complete(task)
    completed = rehearsal.transactions[-1]
    checks.committed(completed)
    checks.undone(completed)
    other = Play()
    fresh = other.leased()
    assert fresh == task
    other.rehearsal.pass_ms(20)
    other.rehearsal.transact(ReleaseLeases((ReleaseLease(task.task_id, task.fence, None, False),)))
    released = attrs.evolve(other.rehearsal.transactions[-1], number=completed.number + 1)
    checks.committed(released)
    checks.synced(released.number)
    assert not findings.violations
    with pytest.raises(ValueError, match="cannot be undone"):
        checks.undone(released)


# --- doctored ones -------------------------------------------------------------------------------------------------


def test_L1_a_lease_of_a_task_that_somebody_has() -> None:
    play = Play()
    first = play.leased()
    play.rehearsal.transact(ReleaseLeases((ReleaseLease(first.task_id, first.fence, None, True),)))
    play.rehearsal.pass_ms(5)
    play.leased("w2")

    findings = Findings()
    checks = CommitChecks(findings)
    for transaction in play.rehearsal.transactions[:-2]:
        checks.committed(transaction)
    stolen = play.rehearsal.transactions[-1]
    (change,) = stolen.changes
    checks.committed(attrs.evolve(stolen, changes=(attrs.evolve(change, before=first),)))
    assert "L1" in findings.invariants


def test_L1_a_lease_that_nobody_asked_for() -> None:
    play = Play()
    play.leased()
    assert "L1" in play.doctored(unasked)


def test_L1_a_lease_for_another_than_the_asker() -> None:
    play = Play()
    play.leased()
    assert play.doctored(lambda last: with_lease(last, holder=holder("w2"))) == {"L1"}


def test_L1_a_lease_goes_over_to_another_process() -> None:
    play = Play()
    task = play.leased()
    play.rehearsal.transact(ResumeSession(holder("w1", 2), ((task.task_id, task.fence),)))
    assert "L1" in play.doctored(lambda last: with_lease(last, holder=attrs.evolve(holder("w1", 2), boot_id="other")))


@pytest.mark.parametrize("step", [0, -5])
def test_L2_a_fence_that_does_not_grow(step: int) -> None:
    play = Play()
    fence = play.leased().fence + step
    play.rehearsal.transact(ReleaseLeases((ReleaseLease(play.task.task_id, play.task.fence, None, True),)))
    play.leased("w2")
    assert "L2" in play.doctored(lambda last: with_lease(with_task(last, fence=fence), fence=fence))


def test_L2_a_fence_that_a_crash_took_back_is_given_again() -> None:
    play = Play()
    play.leased()
    leased = play.rehearsal.transactions[-1]
    findings = Findings()
    checks = CommitChecks(findings)
    for transaction in play.rehearsal.transactions:
        checks.committed(transaction)
    checks.undone(leased)
    checks.committed(attrs.evolve(leased, number=leased.number + 1))
    assert findings.invariants == {"L2"}


def test_rule_11_a_fence_behind_the_clock() -> None:
    play = Play()
    play.rehearsal.pass_ms(1_000)
    play.leased()
    assert play.doctored(lambda last: with_lease(with_task(last, fence=7), fence=7)) == {"L2"}


@pytest.mark.parametrize("lasts_ms", [0, -1, 24 * 3_600_000 + 1])
def test_L3_a_lease_that_is_over_or_too_long(lasts_ms: int) -> None:
    play = Play()
    play.leased()
    assert play.doctored(lambda last: with_lease(last, until_ms=play.rehearsal.now_ms + lasts_ms)) == {"L3"}


def test_L3_an_expired_lock_is_revived() -> None:
    play = Play()
    task = play.leased(duration_ms=1_000)
    play.rehearsal.pass_ms(900)
    play.rehearsal.transact(ExtendLease(task.task_id, task.fence, 5_000))
    assert play.doctored(lambda last: earlier(last, -200)) == {"L3"}


def test_L4_a_lock_is_reclaimed_before_its_end() -> None:
    play = Play()
    play.leased(duration_ms=1_000)
    play.rehearsal.pass_ms(1_000)
    play.rehearsal.transact(ExpireLocks(10))
    assert play.doctored(lambda last: earlier(last, 1)) == {"L4"}


def test_L4_a_lease_vanishes() -> None:
    play = Play()
    task = play.leased()
    play.rehearsal.transact(ReleaseLeases((ReleaseLease(task.task_id, task.fence, None, True),)))
    assert play.doctored(lambda last: without(last, "attempts")) == {"L4"}
    assert {"L4", "I2"} <= play.doctored(unasked)


def test_L4_the_hello_of_another_process_releases_it() -> None:
    play = Play()
    play.leased()
    play.rehearsal.transact(ResumeSession(holder("w1", 2), ()))

    def of_another(last: Transaction) -> Transaction:
        return attrs.evolve(last, operations=(ResumeSession(attrs.evolve(holder("w1", 2), boot_id="other"), ()),))

    assert play.doctored(of_another) == {"L4"}


def test_L1_a_lease_that_a_hello_keeps_does_not_move() -> None:
    play = Play()
    task = play.leased()
    play.rehearsal.transact(ResumeSession(holder("w1", 2), ((task.task_id, task.fence),)))
    assert not play.findings.violations
    assert "L1" in play.doctored(lambda last: without(last, "tasks"))


def test_L4_an_earlier_session_gives_back_what_the_later_one_has() -> None:
    play = Play()
    task = play.leased()
    old = task.lease.holder.session_id if task.lease is not None else ""
    play.rehearsal.transact(ReleaseLeases((ReleaseLease(task.task_id, task.fence, old, False),)))

    def of_an_earlier_one(last: Transaction) -> Transaction:
        wish = ReleaseLease(task.task_id, task.fence, "an earlier session", False)
        return attrs.evolve(last, operations=(ReleaseLeases((wish,)),))

    assert play.doctored(of_an_earlier_one) == {"L4"}


def test_L5_completed_with_a_stale_fence_by_another_or_too_late() -> None:
    play = Play()
    task = play.leased(duration_ms=1_000)
    play.rehearsal.pass_ms(999)
    play.rehearsal.complete(task)

    def with_ending(last: Transaction, **fields: Any) -> Transaction:
        step = step_of(last)
        (ending,) = step.endings
        return attrs.evolve(last, operations=(attrs.evolve(step, endings=(attrs.evolve(ending, **fields),)),))

    assert play.doctored(lambda last: last) == set()
    assert "L5" in play.doctored(lambda last: with_ending(last, fence=task.fence - 1))
    assert "L5" in play.doctored(lambda last: with_ending(last, worker_id="w2"))
    assert "L5" in play.doctored(lambda last: earlier(last, -1))
    assert "L5" in play.doctored(lambda last: with_task(last, state=TaskState.FAILED))


def test_rule_19_after_a_jump_of_the_stores_clock_a_lease_may_be_ended_as_much_later() -> None:
    play = Play()
    task = play.leased(duration_ms=1_000)
    play.rehearsal.pass_ms(500)
    play.rehearsal.complete(task)

    def after_jump(last: Transaction) -> Transaction:
        return attrs.evolve(last, now_ms=last.now_ms + 60_000)

    assert play.doctored(after_jump) == set()


def test_L5_a_task_ends_without_a_step_of_its_instance() -> None:
    play = Play()
    play.rehearsal.complete(play.leased())
    assert {"F2", "L5", "I2"} <= play.doctored(unasked)


def test_L7_a_single_try_task_is_offered_again_after_its_expiry() -> None:
    play = Play()
    play.leased(duration_ms=1_000)
    play.rehearsal.pass_ms(1_000)
    play.rehearsal.transact(ExpireLocks(10))
    single = [_changed(item, _single_try) for item in play.rehearsal.transactions]
    findings = Findings()
    checks = CommitChecks(findings)
    for transaction in single:
        checks.committed(_before_too(transaction))
    assert findings.invariants == {"L7"}


def _single_try(row: object) -> object:
    return attrs.evolve(row, single_try=True) if isinstance(row, ExternalTask) else row


def _before_too(transaction: Transaction) -> Transaction:
    changes = tuple(attrs.evolve(change, before=_single_try(change.before)) for change in transaction.changes)
    return attrs.evolve(transaction, changes=changes)


def test_L7_a_single_try_task_whose_handler_began_is_released() -> None:
    play = Play({"single_try": True})
    task = play.leased()
    play.rehearsal.transact(ReleaseLeases((ReleaseLease(task.task_id, task.fence, None, False),)))
    assert not play.findings.violations
    findings = Findings()
    checks = CommitChecks(findings)
    *before, last = play.rehearsal.transactions
    for transaction in before:
        checks.committed(_before_too(_changed(transaction, _single_try)))
    begun = ReleaseLeases((ReleaseLease(task.task_id, task.fence, None, True),))
    checks.committed(attrs.evolve(last, operations=(begun,)))
    assert findings.invariants == {"L7"}


def test_rule_14_a_release_that_released_nothing_explains_nothing() -> None:
    """A session gives back what its worker left out of a report, which a single try survives; a hello of the same batch
    says that it was never begun, and releases it."""
    play = Play({"single_try": True})
    task = play.leased()
    dropped = ReleaseLeases((ReleaseLease(task.task_id, task.fence, None, True),))
    play.rehearsal.transact(dropped, ResumeSession(holder("w1", 2), (), begun=()))
    assert play.task.state is TaskState.READY
    assert not play.findings.violations
    findings = Findings()
    checks = CommitChecks(findings)
    *before, last = play.rehearsal.transactions
    for transaction in before:
        checks.committed(_before_too(_changed(transaction, _single_try)))
    checks.committed(attrs.evolve(last, operations=(dropped,), outcomes=last.outcomes[:1]))
    assert "L4" in findings.invariants


def test_L8_a_topic_that_was_not_asked_for() -> None:
    play = Play()
    play.rehearsal.transact(FetchAndLock(holder("w1"), ("work",), 1, 5_000))
    other = FetchAndLock(holder("w1"), ("secrets",), 1, 5_000)
    assert play.doctored(lambda last: attrs.evolve(last, operations=(other,))) == {"L8"}


def test_F1_a_completed_task_changes() -> None:
    play = Play()
    play.rehearsal.complete(play.leased())
    done = play.task
    change = RowChange("tasks", done.task_id, done, attrs.evolve(done, state=TaskState.READY))
    last = play.rehearsal.transactions[-1]
    play.checks.committed(attrs.evolve(last, number=last.number + 1, changes=(change,)))
    assert "F1" in play.findings.invariants


def test_F1_a_failed_task_is_taken_up_again_without_its_incident() -> None:
    play = Play()
    play.fail(play.leased(), retries=1, retry_after_ms=0)
    play.fail_for_good(play.leased())
    (incident,) = play.rehearsal.tables.incidents
    play.rehearsal.step(ResolveIncident(incident, 1), "i1")

    def no_incident(last: Transaction) -> Transaction:
        step = step_of(last)
        facts = tuple(fact for fact in step.facts if not isinstance(fact, IncidentResolved))
        return attrs.evolve(last, operations=(attrs.evolve(step, facts=facts),))

    assert "F1" in play.doctored(no_incident)


def test_R1_a_failure_costs_one_retry_or_what_the_worker_says() -> None:
    play = Play()
    play.fail(play.leased())
    assert play.task.retries_left == 2
    assert play.doctored(lambda last: with_task(last, retries_left=3)) == {"R1"}
    assert play.doctored(lambda last: with_task(last, retries_left=1)) == {"R1"}
    play.rehearsal.pass_ms(1_000)
    play.fail(play.leased(), retries=9)
    assert not play.findings.violations


def test_R2_an_expiry_or_a_release_costs_a_retry() -> None:
    play = Play()
    play.leased(duration_ms=1_000)
    play.rehearsal.pass_ms(1_000)
    play.rehearsal.transact(ExpireLocks(10))
    assert play.doctored(lambda last: with_task(last, retries_left=2)) == {"R2"}
    assert play.doctored(lambda last: with_task(last, lock_expiries=0)) == {"R2"}
    task = play.leased()
    play.rehearsal.transact(ReleaseLeases((ReleaseLease(task.task_id, task.fence, None, True),)))
    assert play.doctored(lambda last: with_task(last, retries_left=2)) == {"R2"}


def test_R3_leased_before_its_next_attempt() -> None:
    play = Play()
    play.fail(play.leased())
    play.rehearsal.pass_ms(1_000)
    play.leased()
    assert play.doctored(lambda last: earlier(last, 1)) >= {"R3"}


def test_R3_the_back_off_that_was_asked_for_is_not_kept() -> None:
    play = Play()
    play.fail(play.leased())
    assert play.doctored(lambda last: with_task(last, available_at_ms=play.rehearsal.now_ms)) == {"R3"}


def test_R3_failed_for_good_with_retries_left() -> None:
    play = Play()
    play.fail(play.leased(), retries=1, retry_after_ms=0)
    play.fail_for_good(play.leased())
    leased = play.rehearsal.transactions[-2].changes[0].after
    assert isinstance(leased, ExternalTask)
    before = attrs.evolve(leased, retries_left=2)

    def with_retries(last: Transaction) -> Transaction:
        changes = tuple(
            attrs.evolve(change, before=before) if isinstance(change.before, ExternalTask) else change
            for change in last.changes
        )
        return attrs.evolve(last, changes=changes)

    assert "R3" in play.doctored(with_retries)


def test_I1_an_outcome_is_not_kept() -> None:
    play = Play()
    play.rehearsal.complete(play.leased())
    assert play.doctored(lambda last: with_task(last, outcome=None)) == {"I1"}


def test_I1_an_attempt_is_told_in_another_way_or_rewritten() -> None:
    play = Play()
    play.fail(play.leased(), retries=1, retry_after_ms=0)
    attempt = play.rehearsal.tables.attempts[play.task.task_id][play.task.fence]
    play.fail_for_good(play.leased())
    assert "I1" in play.doctored(lambda last: with_attempt(last, end=AttemptEnd.RELEASED))
    rewritten = RowChange("attempts", (attempt.task_id, attempt.fence), attempt, attrs.evolve(attempt, message="no"))
    last = play.rehearsal.transactions[-1]
    play.checks.committed(attrs.evolve(last, number=last.number + 1, changes=(rewritten,)))
    assert play.findings.invariants == {"I1"}


def test_I2_a_refused_request_has_an_effect() -> None:
    play = Play()
    task = play.leased()
    play.rehearsal.transact(ExtendLease(task.task_id, task.fence, 60_000))
    last = play.rehearsal.transactions[-1]
    refused = play.rehearsal.transact(ExtendLease(task.task_id, task.fence - 1, 60_000))
    assert "I2" in play.doctored(lambda _: attrs.evolve(last, outcomes=tuple(refused)))


def test_W1_a_write_that_rests_on_a_row_which_is_not_the_newest() -> None:
    play = Play()
    task = play.leased()
    play.rehearsal.transact(ExtendLease(task.task_id, task.fence, 20_000))
    play.rehearsal.transact(ExtendLease(task.task_id, task.fence, 30_000))

    def lost_update(last: Transaction) -> Transaction:
        return attrs.evolve(last, changes=(attrs.evolve(last.changes[0], before=task),))

    assert play.doctored(lost_update) == {"W1"}


def test_T1_the_lease_clock_falls() -> None:
    play = Play()
    play.rehearsal.pass_ms(1_000)
    play.leased()
    assert "T1" in play.doctored(lambda last: earlier(last, 2_000))


def test_T1_a_transaction_of_several_statements_may_have_been_judged_before_others_committed() -> None:
    play = Play()
    play.rehearsal.pass_ms(1_000)
    play.leased()

    def judged_early(last: Transaction) -> Transaction:
        long_ago = with_lease(with_task(last, fence=last.now_ms), fence=last.now_ms)
        return attrs.evolve(long_ago, now_ms=last.now_ms - 1_001, clock_ms=last.now_ms)

    assert play.doctored(judged_early) == set()


def test_refusals_without_any_write_are_seen_too() -> None:
    play = Play()
    first = play.leased(duration_ms=1_000)
    play.rehearsal.pass_ms(1_000)
    play.rehearsal.transact(ExpireLocks(10))
    second = play.leased("w2")
    play.rehearsal.complete(second)
    late = FailTask(first.task_id, first.fence, "d", "broken", None, None, None, "w1")
    repeated = CheckRepeat(second.task_id, second.fence, OutcomeKind.COMPLETE, digest({}), "w2")
    play.rehearsal.observers = []
    play.rehearsal.transact(late, repeated)
    play.findings.happened.clear()
    play.checks.unchanged(play.rehearsal.transactions[-1])
    assert play.findings.happened["request: refused, stale fence"] == 1
    assert play.findings.happened["request: repeated complete got the same answer"] == 1
