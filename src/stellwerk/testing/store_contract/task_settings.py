"""What an operator sets on open tasks: attempts left and priority."""

from __future__ import annotations

import attrs
import pytest

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask, OutcomeKind
from stellwerk.errors import InvalidInput
from stellwerk.ports import LeaseAnswer, LeaseAnswerKind, Operation, SetTaskPriority, SetTaskRetries
from stellwerk.testing.store_contract.world import START_MS, ContractBase, StoreWorld, new_task

__all__ = ["TaskSettingContract"]

_DONE = LeaseAnswerKind.DONE


async def _set(world: StoreWorld, operation: Operation) -> ExternalTask:
    """It is done, and the answer is the row."""
    answer = await world.do(operation, LeaseAnswer)
    assert answer.kind is _DONE
    assert answer.task is not None
    assert answer.task == await world.task(answer.task.task_id)
    return answer.task


class TaskSettingContract(ContractBase):
    async def test_retries_are_set_on_a_ready_task_and_nothing_else_changes(self) -> None:
        async with self.open_world() as world:
            task_id = await world.ready_task()
            before = await world.task(task_id)
            world.clock.advance(1_000)
            after = await _set(world, SetTaskRetries(task_id, 9))
            assert after == attrs.evolve(before, retries_left=9, updated_at_ms=START_MS + 1_000)
            await world.reopen()
            assert await world.task(task_id) == after

    async def test_retries_are_set_on_a_leased_task_whose_lease_goes_on(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(retries=1)
            after = await _set(world, SetTaskRetries(task.task_id, 2))
            assert (after.fence, after.lease, after.state) == (task.fence, task.lease, task.state)
            assert (await world.fail(task, retry_after_ms=0)).kind is _DONE
            assert (await world.task(task.task_id)).retries_left == 1
            again = await world.lease(task.task_id)
            assert (await world.fail(again)).kind is LeaseAnswerKind.NEEDS_INSTANCE

    async def test_the_priority_of_ready_tasks_orders_them_anew(self) -> None:
        async with self.open_world() as world:
            await world.instance_with(new_task("a"), new_task("b"), new_task("c", priority=5))
            assert (await _set(world, SetTaskPriority("b", 10))).priority == 10
            assert (await _set(world, SetTaskPriority("c", -1))).priority == -1
            assert [hint.task_id for hint in (await world.store.ready_tasks("payment", 9)).tasks] == ["b", "a", "c"]
            await world.reopen()
            assert [task.task_id for task in await world.fetch()] == ["b", "a", "c"]
            assert [(await world.task(name)).priority for name in "abc"] == [0, 10, -1]

    async def test_the_priority_of_a_leased_task_counts_from_its_next_attempt(self) -> None:
        async with self.open_world() as world:
            await world.instance_with(new_task("a"), new_task("b"))
            leased = await world.lease("b")
            after = await _set(world, SetTaskPriority("b", 1))
            assert after == attrs.evolve(leased, priority=1)
            assert (await world.fail(leased, retry_after_ms=0)).kind is _DONE
            assert [task.task_id for task in await world.fetch()] == ["b", "a"]

    async def test_a_task_that_backs_off_goes_on_doing_so(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            await world.fail(task, retry_after_ms=5_000)
            world.clock.advance(1_000)
            await _set(world, SetTaskPriority(task.task_id, 7))
            await _set(world, SetTaskRetries(task.task_id, 7))
            assert await world.fetch() == []
            scan = await world.store.ready_tasks("payment", 9)
            assert (scan.tasks, scan.next_available_ms) == ((), START_MS + 5_000)
            world.clock.advance(4_000)
            (again,) = await world.fetch()
            assert (again.priority, again.retries_left) == (7, 7)

    async def test_a_task_whose_back_off_has_ended_is_available_in_its_new_place(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            await world.fail(task, retry_after_ms=1_000)
            other = await world.ready_task()
            world.clock.advance(1_000)
            await _set(world, SetTaskPriority(task.task_id, -1))
            assert [task.task_id for task in await world.fetch()] == [other, task.task_id]

    async def test_in_one_batch_the_last_setting_counts(self) -> None:
        async with self.open_world() as world:
            task_id = await world.ready_task()
            operations = (SetTaskPriority(task_id, 5), SetTaskRetries(task_id, 8), SetTaskPriority(task_id, 0))
            answers = await world.transact(*operations)
            assert [answer.kind for answer in answers if isinstance(answer, LeaseAnswer)] == [_DONE] * 3
            task = await world.task(task_id)
            assert (task.priority, task.retries_left) == (0, 8)

    @pytest.mark.parametrize("operation", [SetTaskRetries, SetTaskPriority])
    async def test_a_task_that_is_not_open_keeps_what_it_has(
        self, operation: type[SetTaskRetries | SetTaskPriority]
    ) -> None:
        async with self.open_world() as world:
            completed, failed = await world.leased_task(), await world.leased_task(retries=1)
            await world.commit(world.completion(completed))
            await world.commit(world.ending(failed, "FAILED", OutcomeKind.FAIL))
            cancelled = await world.task(await world.ready_task())
            await world.step(cancelled.instance_id, RowChanges(cancelled_tasks=(cancelled.task_id,)))
            refusals = {
                completed: LeaseAnswerKind.ALREADY_FINISHED,
                failed: LeaseAnswerKind.ALREADY_FINISHED,
                cancelled: LeaseAnswerKind.CANCELLED,
            }
            for task, refusal in refusals.items():
                before = await world.task(task.task_id)
                assert await world.do(operation(task.task_id, 7), LeaseAnswer) == LeaseAnswer(refusal, before)
                assert await world.task(task.task_id) == before
            unknown = await world.do(operation("unknown", 7), LeaseAnswer)
            assert unknown == LeaseAnswer(LeaseAnswerKind.UNKNOWN)

    async def test_a_number_that_no_row_can_hold_is_refused_alone(self) -> None:
        async with self.open_world() as world:
            task_id = await world.ready_task()
            before = await world.task(task_id)
            outcomes = await world.transact(SetTaskPriority(task_id, 2**70), SetTaskRetries(task_id, 4))
            if isinstance(outcomes[0], LeaseAnswer):
                return  # this store holds numbers of any size
            assert isinstance(outcomes[0], InvalidInput)
            assert await world.task(task_id) == attrs.evolve(before, retries_left=4)
