"""Every pair of a state and a command, in every variant of the row: what the table says, or nothing."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest

from stellwerk.core.external_task import (
    AttemptEnd,
    ExternalTask,
    Holder,
    Lease,
    OutcomeKind,
    TaskAttempt,
    TaskOutcome,
    TaskState,
)
from stellwerk.core.lease import (
    TRANSITIONS,
    Cancel,
    Drain,
    End,
    Expire,
    Extend,
    Fail,
    LeaseAnswerKind,
    LeaseCommand,
    LeaseCommandKind,
    Release,
    Renew,
    Requeue,
    Resume,
    TakeLease,
    apply_lease_command,
    command_kind,
)

NOW = 1_800_000_000_000
FENCE = 7
HOLDER = Holder("worker", "boot", 1, "session-1")
LATER_SESSION = Holder("worker", "boot", 2, "session-2")
DONE, LOST = LeaseAnswerKind.DONE, LeaseAnswerKind.LEASE_LOST


def task(state: TaskState, **changes: Any) -> ExternalTask:
    has_lease = state is not TaskState.READY
    row = ExternalTask(
        task_id="t",
        instance_id="i",
        token_id="k",
        activity_id="a",
        element_id="Task_1",
        definition_id="p:1",
        business_key=None,
        topic="payment",
        priority=0,
        created_at_ms=NOW - 60_000,
        updated_at_ms=NOW - 10_000,
        available_at_ms=NOW - 10_000,
        state=state,
        retries_left=3,
        retries=3,
        retry_backoffs_ms=(),
        attempt=int(has_lease),
        lock_expiries=0,
        lock_expiries_max=10,
        single_try=False,
        lock_duration_ms=None,
        draining=False,
        fence=FENCE if has_lease else 0,
        lease=Lease(HOLDER, FENCE, NOW - 10_000, NOW + 20_000, 30_000) if has_lease else None,
        outcome=TaskOutcome(OutcomeKind.COMPLETE, "done") if state is TaskState.COMPLETED else None,
        error_message=None,
        variables=b"{}",
        headers=b"{}",
    )
    return attrs.evolve(row, **changes)


def past_due(row: ExternalTask) -> ExternalTask:
    assert row.lease is not None
    return attrs.evolve(row, lease=attrs.evolve(row.lease, until_ms=NOW))


def ending(outcome: OutcomeKind | None, state: TaskState, fence: int | None = FENCE) -> End:
    digest = None if outcome is None else "digest"
    return End(fence=fence, outcome=outcome, final_state=state, request_digest=digest, message="m")


def commands(fence: int = FENCE) -> list[LeaseCommand]:
    """One of each kind."""
    return [
        TakeLease(HOLDER, 30_000),
        ending(OutcomeKind.COMPLETE, TaskState.COMPLETED, fence),
        ending(OutcomeKind.BPMN_ERROR, TaskState.FAILED, fence),
        ending(OutcomeKind.FAIL, TaskState.FAILED, fence),
        ending(None, TaskState.FAILED, fence),
        ending(None, TaskState.CANCELLED, None),
        ending(None, TaskState.FAILED, None),
        Fail(fence=fence, request_digest="digest", message="m"),
        Extend(fence, 60_000),
        Renew(fence, "session-1"),
        Release(fence, None, started=True),
        Resume(fence, LATER_SESSION),
        Expire(),
        Cancel(),
        Drain(),
        Requeue(1, b"{}"),
    ]


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "last_retry": {"retries_left": 1},
    "draining": {"draining": True},
    "single_try": {"single_try": True},
    "expiry_limit": {"lock_expiries_max": 1},
    "in_back_off": {"available_at_ms": NOW + 1},
}


def rows(state: TaskState) -> dict[str, ExternalTask]:
    found = {name: task(state, **changes) for name, changes in VARIANTS.items()}
    if state is TaskState.LOCKED:
        found |= {f"{name}, past due": past_due(row) for name, row in list(found.items())}
    return found


def test_commands_are_one_of_each_kind() -> None:
    assert {command_kind(command) for command in commands()} == set(LeaseCommandKind)
    assert set(TRANSITIONS) == set(TaskState)


@pytest.mark.parametrize("state", list(TaskState), ids=lambda state: str(state.value))
@pytest.mark.parametrize("position", range(len(LeaseCommandKind)), ids=lambda n: command_kind(commands()[n]).value)
def test_every_state_and_command_follows_the_table_or_changes_nothing(state: TaskState, position: int) -> None:
    kind = command_kind(commands()[position])
    accepted = 0
    for (_, row), fence in itertools.product(rows(state).items(), (FENCE, FENCE - 1, FENCE + 1)):
        after, attempt, answer = apply_lease_command(row, commands(fence)[position], NOW)
        if answer is DONE:
            accepted += 1
            assert after.state in TRANSITIONS[state][kind]
            assert after.fence >= row.fence
        else:
            assert after is row
            assert attempt is None
    assert (accepted > 0) == (kind in TRANSITIONS[state])


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.CANCELLED])
def test_completed_and_cancelled_tasks_never_change(state: TaskState) -> None:
    assert TRANSITIONS[state] == {}


@pytest.mark.parametrize(
    "command", [command for command in commands(FENCE - 1) if getattr(command, "fence", None)], ids=repr
)
def test_a_stale_fence_is_refused_whatever_the_command(command: LeaseCommand) -> None:
    assert apply_lease_command(task(TaskState.LOCKED), command, NOW)[2] is LOST


NEEDS_TIME = (
    LeaseCommandKind.COMPLETE,
    LeaseCommandKind.BPMN_ERROR,
    LeaseCommandKind.FAIL,
    LeaseCommandKind.LAST_FAIL,
    LeaseCommandKind.EXTEND,
    LeaseCommandKind.RENEW,
    LeaseCommandKind.RELEASE,
    LeaseCommandKind.RESUME,
)


@pytest.mark.parametrize("command", [c for c in commands() if command_kind(c) in NEEDS_TIME], ids=repr)
def test_a_lock_that_has_run_out_is_no_lease(command: LeaseCommand) -> None:
    row = past_due(task(TaskState.LOCKED, retries_left=1))
    assert apply_lease_command(row, command, NOW)[2] is LOST
    assert row.lease is not None
    still_valid = attrs.evolve(row, lease=attrs.evolve(row.lease, until_ms=NOW + 1))
    expected = LeaseAnswerKind.NEEDS_INSTANCE if isinstance(command, Fail) else DONE
    assert apply_lease_command(still_valid, command, NOW)[2] is expected


# --- single commands -----------------------------------------------------------------------------------------------


def test_rule_11_a_fence_grows_by_the_clock_or_by_one() -> None:
    after, _, _ = apply_lease_command(task(TaskState.READY, fence=5), TakeLease(HOLDER, 1_000), NOW)
    assert after.fence == NOW
    after, _, _ = apply_lease_command(task(TaskState.READY, fence=NOW + 5), TakeLease(HOLDER, 1_000), NOW)
    assert after.fence == NOW + 6
    assert after.lease == Lease(HOLDER, NOW + 6, NOW, NOW + 1_000, 1_000)


def test_the_models_lock_duration_overrides_the_workers() -> None:
    after, _, _ = apply_lease_command(task(TaskState.READY, lock_duration_ms=5_000), TakeLease(HOLDER, 1_000), NOW)
    assert after.lease is not None
    assert after.lease.until_ms == NOW + 5_000


def test_a_failure_uses_one_retry_and_backs_off() -> None:
    after, attempt, _ = apply_lease_command(
        task(TaskState.LOCKED), Fail(fence=FENCE, request_digest="d", message="no"), NOW
    )
    assert (after.state, after.retries_left, after.available_at_ms) == (TaskState.READY, 2, NOW + 1_000)
    assert after.error_message == "no"
    assert attempt == TaskAttempt("t", FENCE, "worker", NOW - 10_000, NOW, AttemptEnd.FAILED, "d", "no", None)


@pytest.mark.parametrize(
    ("changes", "fail", "available_in_ms", "retries_left"),
    [
        ({}, {"retry_after_ms": 0}, 0, 2),
        ({}, {"retry_after_ms": 77, "jitter": 0.9}, 77, 2),
        ({"retry_backoffs_ms": (10, 20)}, {"jitter": 0.9}, 10, 2),
        ({"retry_backoffs_ms": (10, 20), "retries_left": 2}, {}, 20, 1),
        ({"retries_left": 2}, {}, 2_000, 1),
        ({"retries_left": 2}, {"jitter": 0.5}, 1_500, 1),
        ({}, {"retries": 9}, 1_000, 9),
    ],
)
def test_the_wait_after_a_failure(
    changes: dict[str, Any], fail: dict[str, int], available_in_ms: int, retries_left: int
) -> None:
    command = Fail(fence=FENCE, request_digest="d", message="no", **fail)  # type: ignore[arg-type]
    after, _, _ = apply_lease_command(task(TaskState.LOCKED, **changes), command, NOW)
    assert (after.available_at_ms - NOW, after.retries_left) == (available_in_ms, retries_left)


@pytest.mark.parametrize(
    ("changes", "retries"),
    [({"retries_left": 1}, None), ({"retries_left": 3}, 0), ({"draining": True}, None), ({"draining": True}, 5)],
)
def test_rule_8_a_last_failure_needs_the_instance(changes: dict[str, Any], retries: int | None) -> None:
    row = task(TaskState.LOCKED, **changes)
    fail = Fail(fence=FENCE, request_digest="d", message="no", retries=retries)
    assert apply_lease_command(row, fail, NOW) == (row, None, LeaseAnswerKind.NEEDS_INSTANCE)
    end = attrs.evolve(ending(OutcomeKind.FAIL, TaskState.FAILED), worker_gives_up=retries == 0)
    after, attempt, answer = apply_lease_command(row, end, NOW)
    assert (after.state, answer) == (TaskState.FAILED, DONE)
    assert attempt is not None
    assert attempt.end is AttemptEnd.FAILED


def test_rule_8_the_instance_may_not_end_a_task_with_retries_left() -> None:
    end = ending(OutcomeKind.FAIL, TaskState.FAILED)
    assert apply_lease_command(task(TaskState.LOCKED), end, NOW)[2] is LOST


def test_a_bpmn_error_never_changes_the_retries() -> None:
    after, attempt, _ = apply_lease_command(
        task(TaskState.LOCKED), ending(OutcomeKind.BPMN_ERROR, TaskState.COMPLETED), NOW
    )
    assert after.retries_left == 3
    assert attempt is not None
    assert attempt.end is AttemptEnd.BPMN_ERROR


def test_an_expiry_uses_no_retry_and_is_counted() -> None:
    after, attempt, _ = apply_lease_command(past_due(task(TaskState.LOCKED)), Expire(), NOW)
    assert (after.state, after.retries_left, after.lock_expiries) == (TaskState.READY, 3, 1)
    assert attempt is not None
    assert attempt.end is AttemptEnd.EXPIRED


@pytest.mark.parametrize(
    "changes", [{"single_try": True}, {"lock_expiries_max": 3, "lock_expiries": 2}, {"draining": True}]
)
def test_the_last_expiry_needs_the_instance(changes: dict[str, Any]) -> None:
    row = past_due(task(TaskState.LOCKED, **changes))
    assert apply_lease_command(row, Expire(), NOW) == (row, None, LeaseAnswerKind.NEEDS_INSTANCE)
    after, attempt, answer = apply_lease_command(row, ending(None, TaskState.EXPIRED), NOW)
    assert (after.state, answer, after.lock_expiries) == (TaskState.EXPIRED, DONE, row.lock_expiries + 1)
    assert attempt is not None
    assert attempt.end is AttemptEnd.EXPIRED


def test_without_a_limit_a_lock_may_expire_for_ever() -> None:
    row = past_due(task(TaskState.LOCKED, lock_expiries_max=0, lock_expiries=10_000))
    assert apply_lease_command(row, Expire(), NOW)[2] is DONE


def test_a_live_lease_does_not_end_as_expired() -> None:
    assert apply_lease_command(task(TaskState.LOCKED), ending(None, TaskState.EXPIRED), NOW)[2] is LOST
    assert apply_lease_command(task(TaskState.LOCKED), ending(None, TaskState.FAILED), NOW)[2] is DONE


def test_rule_12_the_recorded_outcome_is_asked_first() -> None:
    fail = Fail(fence=FENCE, request_digest="d", message="no")
    failed, attempt, _ = apply_lease_command(task(TaskState.LOCKED), fail, NOW)
    other = attrs.evolve(fail, request_digest="other")
    complete = ending(OutcomeKind.COMPLETE, TaskState.COMPLETED)
    again, _, _ = apply_lease_command(failed, TakeLease(HOLDER, 1_000), NOW + 60_000)
    for row in (failed, again):
        assert apply_lease_command(row, fail, NOW + 60_000, attempt)[2] is LeaseAnswerKind.REPEATED
        assert apply_lease_command(row, other, NOW + 60_000, attempt)[2] is LeaseAnswerKind.ALREADY_FINISHED
        assert apply_lease_command(row, complete, NOW + 60_000, attempt)[2] is LeaseAnswerKind.ALREADY_FINISHED
        extend = apply_lease_command(row, Extend(FENCE, 1_000), NOW + 60_000, attempt)
        assert extend[2] is LeaseAnswerKind.ALREADY_FINISHED


def test_rule_14_a_started_single_try_task_stays_locked_when_released() -> None:
    row = task(TaskState.LOCKED, single_try=True)
    assert apply_lease_command(row, Release(FENCE, None, started=True), NOW) == (row, None, DONE)
    after, attempt, _ = apply_lease_command(row, Release(FENCE, None, started=False), NOW)
    assert after.state is TaskState.READY
    assert attempt is not None
    assert attempt.end is AttemptEnd.RELEASED


def test_rule_15_a_draining_task_is_never_leased_again_and_may_complete() -> None:
    assert apply_lease_command(task(TaskState.READY, draining=True), TakeLease(HOLDER, 1_000), NOW)[2] is LOST
    complete = ending(OutcomeKind.COMPLETE, TaskState.COMPLETED)
    assert apply_lease_command(task(TaskState.LOCKED, draining=True), complete, NOW)[2] is DONE
    drained = ending(None, TaskState.CANCELLED, None)
    assert apply_lease_command(task(TaskState.READY, draining=True), drained, NOW)[2] is DONE
    assert apply_lease_command(task(TaskState.READY), drained, NOW)[2] is LOST


@pytest.mark.parametrize(
    "holder",
    [
        Holder("worker", "boot", 1, "session-2"),
        Holder("worker", "another boot", 2, "session-2"),
        Holder("another worker", "boot", 2, "session-2"),
    ],
)
def test_rule_17_only_a_later_session_of_the_same_boot_takes_over(holder: Holder) -> None:
    assert apply_lease_command(task(TaskState.LOCKED), Resume(FENCE, holder), NOW)[2] is LOST
    after, _, _ = apply_lease_command(task(TaskState.LOCKED), Resume(FENCE, LATER_SESSION), NOW)
    assert after.lease == Lease(LATER_SESSION, FENCE, NOW - 10_000, NOW + 20_000, 30_000)


def test_a_renewal_is_for_the_leases_own_session_and_never_shortens() -> None:
    assert apply_lease_command(task(TaskState.LOCKED), Renew(FENCE, "session-0"), NOW)[2] is LOST
    renewed, _, _ = apply_lease_command(task(TaskState.LOCKED), Renew(FENCE, "session-1"), NOW)
    assert renewed.lease is not None
    assert renewed.lease.until_ms == NOW + 30_000
    extended, _, _ = apply_lease_command(task(TaskState.LOCKED), Extend(FENCE, 90_000), NOW)
    renewed, _, _ = apply_lease_command(extended, Renew(FENCE, "session-1"), NOW)
    assert renewed.lease is not None
    assert renewed.lease.until_ms == NOW + 90_000


def test_rule_9_a_requeued_task_has_a_retry_and_its_next_fence_is_newer() -> None:
    failed, _, _ = apply_lease_command(
        task(TaskState.LOCKED, retries_left=1), ending(OutcomeKind.FAIL, TaskState.FAILED), NOW
    )
    requeued, _, _ = apply_lease_command(failed, Requeue(0, b"{}"), NOW)
    assert (requeued.state, requeued.retries_left) == (TaskState.READY, 1)
    leased, _, _ = apply_lease_command(requeued, TakeLease(HOLDER, 1_000), NOW)
    assert leased.fence > failed.fence


GIVE_UP = ending(None, TaskState.FAILED, None)


@pytest.mark.parametrize("changes", [{}, {"available_at_ms": NOW + 60_000}, {"single_try": True}])
def test_a_task_that_waits_is_given_up_and_nobody_gets_it_until_it_is_requeued(changes: dict[str, Any]) -> None:
    after, attempt, answer = apply_lease_command(task(TaskState.READY, **changes), GIVE_UP, NOW)
    assert (after.state, after.retries_left, after.error_message, answer) == (TaskState.FAILED, 0, "m", DONE)
    assert attempt is None
    assert apply_lease_command(after, TakeLease(HOLDER, 1_000), NOW + 99_000)[2] is LOST
    requeued, _, _ = apply_lease_command(after, Requeue(2, b"{}"), NOW)
    assert (requeued.state, requeued.retries_left) == (TaskState.READY, 2)


@pytest.mark.parametrize("row", [task(TaskState.LOCKED), past_due(task(TaskState.LOCKED))], ids=["live", "past due"])
def test_a_leased_task_is_given_up_too_and_its_holder_has_lost_it(row: ExternalTask) -> None:
    after, attempt, _ = apply_lease_command(row, GIVE_UP, NOW)
    assert after.state is TaskState.FAILED
    assert attempt is not None
    assert attempt.end is AttemptEnd.REVOKED
    for command in (ending(OutcomeKind.COMPLETE, TaskState.COMPLETED), Renew(FENCE, "session-1"), Expire()):
        assert apply_lease_command(after, command, NOW)[2] is LOST


@pytest.mark.parametrize("state", [TaskState.READY, TaskState.LOCKED])
def test_rule_15_a_draining_task_is_not_given_up(state: TaskState) -> None:
    assert apply_lease_command(task(state, draining=True), GIVE_UP, NOW)[2] is LOST


def test_a_cancelled_lease_leaves_an_attempt_and_its_worker_is_told() -> None:
    after, attempt, _ = apply_lease_command(task(TaskState.LOCKED), Cancel(), NOW)
    assert attempt is not None
    assert attempt.end is AttemptEnd.REVOKED
    complete = ending(OutcomeKind.COMPLETE, TaskState.COMPLETED)
    assert apply_lease_command(after, complete, NOW)[2] is LeaseAnswerKind.CANCELLED


def test_L5_another_workers_name_does_not_help_with_the_right_fence() -> None:
    complete = attrs.evolve(ending(OutcomeKind.COMPLETE, TaskState.COMPLETED), worker_id="another worker")
    assert apply_lease_command(task(TaskState.LOCKED), complete, NOW)[2] is LOST
