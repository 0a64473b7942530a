"""What an operator sets on a task changes that alone, and only while the task is open."""

from __future__ import annotations

import attrs
import pytest

from stellwerk.core.external_task import ExternalTask, Holder, Lease, TaskState
from stellwerk.core.lease import LeaseAnswerKind, TakeLease, apply_lease_command
from stellwerk.core.task_settings import set_priority, set_retries

NOW_MS = 10_000


def task(state: TaskState, **changes: object) -> ExternalTask:
    lease = None if state is TaskState.READY else Lease(Holder("w", "b", 1, "s"), 7, 9_000, 39_000, 30_000)
    row = ExternalTask(
        task_id="t",
        instance_id="i",
        token_id="token",
        activity_id="a",
        element_id="Task_1",
        definition_id="order:1",
        business_key=None,
        topic="payment",
        priority=0,
        created_at_ms=1_000,
        updated_at_ms=9_000,
        available_at_ms=1_000,
        state=state,
        retries_left=2,
        retries=3,
        retry_backoffs_ms=(),
        attempt=1,
        lock_expiries=1,
        lock_expiries_max=10,
        single_try=False,
        lock_duration_ms=None,
        draining=False,
        fence=0 if lease is None else 7,
        lease=lease,
        outcome=None,
        error_message="it broke",
        variables=b"{}",
        headers=b"{}",
    )
    return attrs.evolve(row, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [TaskState.READY, TaskState.LOCKED])
def test_an_open_task_keeps_all_else(state: TaskState) -> None:
    before = task(state)
    after, answer = set_retries(before, 9, NOW_MS)
    assert (answer, after) == (
        LeaseAnswerKind.DONE,
        attrs.evolve(before, retries_left=9, updated_at_ms=NOW_MS),
    )
    after, answer = set_priority(before, -4, NOW_MS)
    assert (answer, after) == (LeaseAnswerKind.DONE, attrs.evolve(before, priority=-4, updated_at_ms=NOW_MS))


@pytest.mark.parametrize("state", [state for state in TaskState if state not in (TaskState.READY, TaskState.LOCKED)])
def test_a_task_that_is_over_is_left_alone(state: TaskState) -> None:
    before = task(state)
    refusal = LeaseAnswerKind.CANCELLED if state is TaskState.CANCELLED else LeaseAnswerKind.ALREADY_FINISHED
    for after, answer in (set_retries(before, 9, NOW_MS), set_priority(before, 9, NOW_MS)):
        assert after is before
        assert answer is refusal


def test_a_task_that_was_available_stays_so_when_the_clock_was_set_back() -> None:
    before = task(TaskState.READY, available_at_ms=8_500)
    for after, _ in (set_retries(before, 9, 8_000), set_priority(before, 9, 8_000)):
        assert after.updated_at_ms == before.updated_at_ms
        _, _, answer = apply_lease_command(after, TakeLease(Holder("w", "b", 1, "s"), 1_000), 8_000)
        assert answer is LeaseAnswerKind.DONE


def test_a_task_that_backs_off_does_so_until_its_time() -> None:
    before = task(TaskState.READY, available_at_ms=NOW_MS + 1)
    take = TakeLease(Holder("w", "b", 1, "s"), 1_000)
    for after, _ in (set_retries(before, 9, NOW_MS), set_priority(before, 9, NOW_MS)):
        assert apply_lease_command(after, take, NOW_MS)[2] is LeaseAnswerKind.LEASE_LOST
        assert apply_lease_command(after, take, NOW_MS + 1)[2] is LeaseAnswerKind.DONE
