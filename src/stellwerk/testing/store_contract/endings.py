"""How tasks end: terminal states, repeats, draining, cancellation."""

# ruff: noqa: N802 -- tests are named after the rows of the requirements

from __future__ import annotations

import attrs

from stellwerk.core.changes import RowChanges, TaskRequeue
from stellwerk.core.external_task import AttemptEnd, ExternalTask, OutcomeKind, TaskState
from stellwerk.ports import (
    Changeset,
    CheckRepeat,
    LeaseAnswer,
    LeaseAnswerKind,
    LeaseTasks,
    ReleaseLease,
    ReleaseLeases,
    RenewLease,
    RenewLeases,
    RevokedLease,
    TaskEnding,
    TaskLease,
)
from stellwerk.testing.store_contract.world import ContractBase, StoreWorld, holder, new_task

__all__ = ["EndingContract"]


async def _answer(world: StoreWorld, changeset: Changeset) -> LeaseAnswerKind:
    refused = await world.refuse(changeset)
    assert refused.answer is not None
    return refused.answer.kind


async def _check(
    world: StoreWorld, task: ExternalTask, kind: OutcomeKind, digest: str, worker_id: str | None = None
) -> LeaseAnswerKind:
    answer = await world.do(CheckRepeat(task.task_id, task.fence, kind, digest, worker_id), LeaseAnswer)
    return answer.kind


async def _draining_task(world: StoreWorld, *, leased: bool) -> ExternalTask:
    task_id = await world.ready_task()
    if leased:
        await world.lease(task_id)
    task = await world.task(task_id)
    committed = await world.step(task.instance_id, RowChanges(drained_tasks=(task_id,)))
    assert committed.drained_ready == (() if leased else (task_id,))
    return await world.task(task_id)


def _given_up(task_id: str) -> TaskEnding:
    """By an operator."""
    return TaskEnding(task_id, None, "FAILED", None, None, message="given up")


class EndingContract(ContractBase):
    # --- rule 8 ----------------------------------------------------------------------------------------------------

    async def test_rule_8_a_last_failure_is_left_to_the_instance(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(retries=1)
            answer = await world.fail(task)
            assert (answer.kind, answer.task) == (LeaseAnswerKind.NEEDS_INSTANCE, task)
            assert await world.task(task.task_id) == task
            assert list(await world.store.attempts(task.task_id)) == []
            await world.commit(world.ending(task, "FAILED", OutcomeKind.FAIL))
            failed = await world.task(task.task_id)
            assert (failed.state.value, failed.retries_left, failed.error_message) == ("FAILED", 0, "message")
            (attempt,) = await world.store.attempts(task.task_id)
            assert (attempt.end, attempt.message, attempt.details) == (AttemptEnd.FAILED, "message", b'{"d":1}')

    async def test_rule_8_the_instance_may_not_end_a_task_with_retries_left(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(retries=2)
            end = world.ending(task, "FAILED", OutcomeKind.FAIL)
            assert await _answer(world, end) is LeaseAnswerKind.LEASE_LOST
            assert await world.task(task.task_id) == task
            assert (await world.fail(task, retries=0)).kind is LeaseAnswerKind.NEEDS_INSTANCE
            gives_up = (attrs.evolve(end.endings[0], worker_gives_up=True),)
            await world.commit(attrs.evolve(end, endings=gives_up))

    async def test_rule_8_an_expired_single_try_task_stays_locked_until_its_instance_steps(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(single_try=True)
            world.clock.advance(30_000)
            for _ in range(2):
                expired = await world.expire()
                assert (expired.returned, expired.failing) == ((), (task,))
            assert await world.fetch() == []
            await world.commit(world.ending(task, "EXPIRED", None))
            assert (await world.expire()).failing == ()
            assert await world.state(task.task_id) == "EXPIRED"
            (attempt,) = await world.store.attempts(task.task_id)
            assert attempt.end is AttemptEnd.EXPIRED

    async def test_rule_8_completed_and_cancelled_tasks_never_change_again(self) -> None:
        async with self.open_world() as world:
            completed, cancelled = await world.leased_task(), await world.leased_task()
            await world.commit(world.completion(completed))
            await world.step(cancelled.instance_id, RowChanges(cancelled_tasks=(cancelled.task_id,)))
            before = [await world.task(task.task_id) for task in (completed, cancelled)]
            world.clock.advance(60_000)
            for task in (completed, cancelled):
                await world.fail(task, "other")
                await world.transact(
                    LeaseTasks((TaskLease(task.task_id, holder(), 1_000),)),
                    RenewLeases((RenewLease(task.task_id, task.fence, "boot-1"),)),
                    ReleaseLeases((ReleaseLease(task.task_id, task.fence, None, started=False),)),
                )
                await world.step(task.instance_id, RowChanges(cancelled_tasks=(task.task_id,)))
                await world.step(task.instance_id, RowChanges(drained_tasks=(task.task_id,)))
            await world.expire()
            assert [await world.task(task.task_id) for task in (completed, cancelled)] == before

    # --- L5, L8 and rule 12 ----------------------------------------------------------------------------------------

    async def test_L5_complete_needs_the_locked_task_its_fence_its_worker_and_time(self) -> None:
        async with self.open_world() as world:
            ready = await world.task(await world.ready_task())
            assert await _answer(world, world.completion(ready)) is LeaseAnswerKind.LEASE_LOST
            task = await world.lease(ready.task_id)
            stale = attrs.evolve(task, fence=task.fence - 1)
            assert await _answer(world, world.completion(stale)) is LeaseAnswerKind.LEASE_LOST
            foreign = world.completion(task)
            ending = attrs.evolve(foreign.endings[0], worker_id="another worker")
            assert await _answer(world, attrs.evolve(foreign, endings=(ending,))) is LeaseAnswerKind.LEASE_LOST
            unknown = TaskEnding("nothing", 1, "COMPLETED", OutcomeKind.COMPLETE, "d")
            assert await _answer(world, attrs.evolve(foreign, endings=(unknown,))) is LeaseAnswerKind.UNKNOWN
            world.clock.advance(30_000)
            assert await _answer(world, world.completion(task)) is LeaseAnswerKind.LEASE_LOST
            assert await world.task(task.task_id) == task

    async def test_L8_a_repeated_completion_is_the_same_success_also_after_reopening(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            await world.commit(world.completion(task))
            before = await world.task(task.task_id)
            for _ in range(2):
                assert await _check(world, task, OutcomeKind.COMPLETE, "result") is LeaseAnswerKind.REPEATED
                assert await _check(world, task, OutcomeKind.COMPLETE, "x") is LeaseAnswerKind.ALREADY_FINISHED
                assert await _check(world, task, OutcomeKind.FAIL, "result") is LeaseAnswerKind.ALREADY_FINISHED
                assert await _answer(world, world.completion(task)) is LeaseAnswerKind.REPEATED
                assert await _answer(world, world.completion(task, "x")) is LeaseAnswerKind.ALREADY_FINISHED
                world.clock.advance(60_000)
                await world.reopen()
            assert await world.task(task.task_id) == before

    async def test_L8_a_repeated_failure_costs_one_retry_also_after_reopening(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            assert (await world.fail(task)).kind is LeaseAnswerKind.DONE
            for _ in range(2):
                answer = await world.fail(task)
                assert answer.kind is LeaseAnswerKind.REPEATED
                assert answer.task is not None
                assert answer.task.retries_left == 2
                assert (await world.fail(task, "another")).kind is LeaseAnswerKind.ALREADY_FINISHED
                await world.reopen()
            assert len(await world.store.attempts(task.task_id)) == 1

    async def test_rule_12_repeats_are_known_after_a_later_attempt(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            await world.fail(task, retry_after_ms=0)
            later = await world.lease(task.task_id)
            await world.reopen()
            assert (await world.fail(task, retry_after_ms=0)).kind is LeaseAnswerKind.REPEATED
            assert (await world.fail(task, "another")).kind is LeaseAnswerKind.ALREADY_FINISHED
            assert await _answer(world, world.completion(task)) is LeaseAnswerKind.ALREADY_FINISHED
            assert await _check(world, task, OutcomeKind.FAIL, "fail") is LeaseAnswerKind.REPEATED
            assert await world.task(task.task_id) == later
            await world.commit(world.completion(later))
            assert (await world.fail(task)).kind is LeaseAnswerKind.REPEATED

    async def test_rule_12_a_repeat_within_one_batch_is_one(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            first = world.completion(task)
            again = attrs.evolve(first, expected_version=2)
            outcomes = await world.transact(first, again)
            assert "REPEATED" in str(outcomes[1])

    async def test_rule_12_a_bpmn_error_is_remembered_and_keeps_the_retries(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            await world.commit(world.ending(task, "COMPLETED", OutcomeKind.BPMN_ERROR))
            assert await _check(world, task, OutcomeKind.BPMN_ERROR, "digest") is LeaseAnswerKind.REPEATED
            assert await _check(world, task, OutcomeKind.COMPLETE, "digest") is LeaseAnswerKind.ALREADY_FINISHED
            assert (await world.task(task.task_id)).retries_left == 3
            (attempt,) = await world.store.attempts(task.task_id)
            assert attempt.end is AttemptEnd.BPMN_ERROR

    async def test_rule_12_a_fence_that_never_was_or_expired_has_no_outcome(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            assert await _check(world, task, OutcomeKind.FAIL, "d") is LeaseAnswerKind.LEASE_LOST
            world.clock.advance(30_000)
            await world.expire()
            assert await _check(world, task, OutcomeKind.FAIL, "d") is LeaseAnswerKind.LEASE_LOST
            assert (await world.fail(task)).kind is LeaseAnswerKind.LEASE_LOST
            unknown = attrs.evolve(task, task_id="nothing")
            assert await _check(world, unknown, OutcomeKind.FAIL, "d") is LeaseAnswerKind.UNKNOWN
            assert (await world.fail(unknown)).kind is LeaseAnswerKind.UNKNOWN

    # --- rule 13 ---------------------------------------------------------------------------------------------------

    async def test_rule_13_a_fail_equal_to_the_workers_newest_attempt_costs_no_retry(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(by=holder("w"))
            await world.fail(task, retry_after_ms=0)
            other = await world.lease(task.task_id, holder("v"))
            await world.fail(other, "of v", retry_after_ms=0)
            assert await _check(world, other, OutcomeKind.FAIL, "fail", "w") is LeaseAnswerKind.REPEATED
            assert await _check(world, other, OutcomeKind.FAIL, "fail", "v") is LeaseAnswerKind.ALREADY_FINISHED
            assert await _check(world, other, OutcomeKind.FAIL, "fail", "u") is LeaseAnswerKind.ALREADY_FINISHED
            assert (await world.task(task.task_id)).retries_left == 1

    # --- rule 15 ---------------------------------------------------------------------------------------------------

    async def test_rule_15_a_draining_task_is_never_leased_again(self) -> None:
        async with self.open_world() as world:
            task = await _draining_task(world, leased=False)
            assert await world.fetch() == []
            assert (await world.store.ready_tasks("payment", 10)).tasks == ()
            wish = TaskLease(task.task_id, holder(), 1_000)
            assert await world.do(LeaseTasks((wish,)), tuple) == (None,)
            assert list(await world.store.draining_ready(10)) == [(task.instance_id, task.task_id)]
            end = TaskEnding(task.task_id, None, "CANCELLED", None, None)
            await world.step(task.instance_id, endings=(end,))
            assert await world.state(task.task_id) == "CANCELLED"
            assert list(await world.store.draining_ready(10)) == []

    async def test_rule_15_the_completion_of_a_draining_task_is_accepted(self) -> None:
        async with self.open_world() as world:
            task = await _draining_task(world, leased=True)
            await world.commit(world.completion(task))
            assert await world.state(task.task_id) == "COMPLETED"

    async def test_rule_15_failure_and_expiry_end_a_draining_task_through_its_instance(self) -> None:
        async with self.open_world() as world:
            failing = await _draining_task(world, leased=True)
            assert (await world.fail(failing)).kind is LeaseAnswerKind.NEEDS_INSTANCE
            await world.commit(world.ending(failing, "CANCELLED", OutcomeKind.FAIL))
            expiring = await _draining_task(world, leased=True)
            world.clock.advance(30_000)
            assert [task.task_id for task in (await world.expire()).failing] == [expiring.task_id]
            await world.commit(world.ending(expiring, "CANCELLED", None))
            for task in (failing, expiring):
                assert await world.state(task.task_id) == "CANCELLED"

    async def test_rule_8_a_lease_that_lives_after_all_is_not_ended_for_its_expiry(self) -> None:
        async with self.open_world() as world:
            for final_state in ("FAILED", "CANCELLED"):
                is_draining = final_state == "CANCELLED"
                task = await (_draining_task(world, leased=True) if is_draining else world.leased_task())
                end = world.ending(task, final_state, None)
                past_due = attrs.evolve(end, endings=(attrs.evolve(end.endings[0], only_past_due=True),))
                assert await _answer(world, past_due) is LeaseAnswerKind.LEASE_LOST
                assert await world.state(task.task_id) == "LOCKED"
                world.clock.advance(30_000)
                await world.commit(past_due)
                assert await world.state(task.task_id) == final_state

    async def test_rule_15_a_released_draining_task_waits_for_its_end(self) -> None:
        async with self.open_world() as world:
            task = await _draining_task(world, leased=True)
            release = ReleaseLeases((ReleaseLease(task.task_id, task.fence, None, started=False),))
            (answer,) = await world.do(release, tuple)
            assert answer.kind is LeaseAnswerKind.DONE
            assert await world.fetch() == []
            assert len(await world.store.draining_ready(10)) == 1

    async def test_rule_15_a_task_with_a_lease_is_not_ended_as_drained(self) -> None:
        async with self.open_world() as world:
            task = await _draining_task(world, leased=True)
            end = TaskEnding(task.task_id, None, "CANCELLED", None, None)
            refused = world.changeset(task.instance_id, endings=(end,))
            assert await _answer(world, refused) is LeaseAnswerKind.LEASE_LOST

    # --- given up by an operator -----------------------------------------------------------------------------------

    async def test_a_task_that_is_given_up_waits_for_nobody_until_it_is_requeued(self) -> None:
        async with self.open_world() as world:
            instance_id = await world.instance_with(new_task("a"), new_task("b"))
            await world.step(instance_id, endings=(_given_up("a"),))
            await world.reopen()
            task = await world.task("a")
            assert (task.state, task.retries_left) == (TaskState.FAILED, 0)
            assert (task.error_message, task.lease) == ("given up", None)
            assert [found.task_id for found in await world.fetch()] == ["b"]
            requeue = RowChanges(requeued_tasks=(TaskRequeue("a", 2, b"{}"),))
            await world.step(instance_id, requeue)
            assert [found.task_id for found in await world.fetch()] == ["a"]

    async def test_rule_18_a_leased_task_that_is_given_up_is_revoked(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            committed = await world.step(task.instance_id, endings=(_given_up(task.task_id),))
            assert committed.revoked == (RevokedLease(task.task_id, "payment", task.fence, holder()),)
            assert await world.state(task.task_id) == "FAILED"
            (attempt,) = await world.store.attempts(task.task_id)
            assert attempt.end is AttemptEnd.REVOKED
            assert await _answer(world, world.completion(task)) is LeaseAnswerKind.LEASE_LOST
            assert (await world.expire()).next_expiry_ms is None

    async def test_rule_15_a_draining_task_is_not_given_up(self) -> None:
        async with self.open_world() as world:
            task = await _draining_task(world, leased=True)
            refused = world.changeset(task.instance_id, endings=(_given_up(task.task_id),))
            assert await _answer(world, refused) is LeaseAnswerKind.LEASE_LOST
            assert await world.task(task.task_id) == task

    # --- rule 18 ---------------------------------------------------------------------------------------------------

    async def test_rule_18_a_cancelling_step_returns_the_leases_that_it_revoked(self) -> None:
        async with self.open_world() as world:
            instance_id = await world.instance_with(new_task("live"), new_task("due"), new_task("ready"))
            due = await world.lease("due", duration_ms=1_000)
            world.clock.advance(1_000)
            live = await world.lease("live", holder("w", session_no=4))
            committed = await world.step(instance_id, RowChanges(cancelled_tasks=("live", "due", "ready")))
            assert committed.revoked == (
                RevokedLease("live", "payment", live.fence, holder("w", session_no=4)),
                RevokedLease("due", "payment", due.fence, holder()),
            )
            for task_id in ("live", "due"):
                (attempt,) = await world.store.attempts(task_id)
                assert attempt.end is AttemptEnd.REVOKED

    async def test_rule_18_a_revoked_fence_is_final_whatever_arrives_later(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            await world.step(task.instance_id, RowChanges(cancelled_tasks=(task.task_id,)))
            renew = RenewLeases((RenewLease(task.task_id, task.fence, "boot-1"),))
            (answer,) = await world.do(renew, tuple)
            assert answer.kind is LeaseAnswerKind.CANCELLED
            assert (await world.fail(task)).kind is LeaseAnswerKind.CANCELLED
            assert await _answer(world, world.completion(task)) is LeaseAnswerKind.CANCELLED
            assert await _check(world, task, OutcomeKind.COMPLETE, "r") is LeaseAnswerKind.CANCELLED
