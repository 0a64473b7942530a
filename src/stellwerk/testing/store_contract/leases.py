"""Leasing, renewing, failing, expiring: the life of a lease."""

# ruff: noqa: N802 -- tests are named after the rows of the requirements

from __future__ import annotations

from typing import Any

import trio

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import AttemptEnd, ExternalTask, OutcomeKind
from stellwerk.ports import (
    Committed,
    ExtendLease,
    FetchAndLock,
    LeaseAnswer,
    LeaseAnswerKind,
    LeaseTasks,
    RefusedChangeset,
    ReleaseLease,
    ReleaseLeases,
    RenewLease,
    RenewLeases,
    TaskLease,
)
from stellwerk.testing.store_contract.world import START_MS, ContractBase, StoreWorld, holder, new_task

__all__ = ["LeaseContract"]


async def _release(
    world: StoreWorld, task: ExternalTask, *, started: bool, session_id: str | None = None
) -> LeaseAnswer:
    release = ReleaseLeases((ReleaseLease(task.task_id, task.fence, session_id, started),))
    answer: LeaseAnswer = (await world.do(release, tuple))[0]
    return answer


def _until_ms(answer: LeaseAnswer) -> int:
    assert answer.task is not None
    assert answer.task.lease is not None
    return answer.task.lease.until_ms


class LeaseContract(ContractBase):
    # --- L1, L2 ----------------------------------------------------------------------------------------------------

    async def test_L1_ready_locked_completed(self) -> None:
        async with self.open_world() as world:
            task_id = await world.ready_task()
            assert await world.state(task_id) == "READY"
            task = await world.lease(task_id)
            assert await world.state(task_id) == "LOCKED"
            await world.commit(world.completion(task))
            assert await world.state(task_id) == "COMPLETED"

    async def test_L1_a_failure_with_retries_left_makes_it_ready_and_the_last_one_failed(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(retries=2)
            await world.fail(task, retry_after_ms=0)
            assert await world.state(task.task_id) == "READY"
            task = await world.lease(task.task_id)
            await world.commit(world.ending(task, "FAILED", OutcomeKind.FAIL))
            assert await world.state(task.task_id) == "FAILED"

    async def test_L1_an_expired_lock_makes_it_ready(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            world.clock.advance(30_000)
            assert await world.state(task.task_id) == "LOCKED"
            (returned,) = (await world.expire()).returned
            assert (returned.state.value, returned.lease) == ("READY", task.lease)
            assert returned == await world.task(task.task_id)

    async def test_L2_an_expiry_uses_no_retry_and_its_limit_is_the_instances_matter(self) -> None:
        async with self.open_world() as world:
            task_id = await world.ready_task(lock_expiries_max=2)
            await world.lease(task_id)
            world.clock.advance(30_000)
            (returned,) = (await world.expire()).returned
            assert (returned.lock_expiries, returned.retries_left) == (1, 3)
            leased = await world.lease(task_id)
            assert leased.attempt == 2
            world.clock.advance(30_000)
            assert (await world.expire()).failing == (leased,)
            await world.commit(world.ending(leased, "FAILED", None))
            assert (await world.task(task_id)).lock_expiries == 2
            ends = [attempt.end for attempt in await world.store.attempts(task_id)]
            assert ends == [AttemptEnd.EXPIRED, AttemptEnd.EXPIRED]

    # --- L4 --------------------------------------------------------------------------------------------------------

    async def test_L4_order_is_priority_then_creation_then_id(self) -> None:
        async with self.open_world() as world:
            await world.instance_with(new_task("b"), new_task("a"), new_task("low", priority=-1))
            world.clock.advance(1_000)
            await world.instance_with(new_task("0"), new_task("high", priority=5), new_task("z", topic="other"))
            scan = await world.store.ready_tasks("payment", 10)
            assert [task.task_id for task in scan.tasks] == ["high", "a", "b", "0", "low"]
            assert list(scan.tasks) == sorted(scan.tasks)
            assert [task.task_id for task in await world.fetch(max_tasks=2)] == ["high", "a"]
            fetched = await world.fetch("other", "payment", "other", "nothing", max_tasks=9)
            assert [task.task_id for task in fetched] == ["b", "0", "z", "low"]

    async def test_L4_fetch_gives_the_lease_that_was_asked_for(self) -> None:
        async with self.open_world() as world:
            task_id = await world.ready_task()
            (task,) = await world.fetch(by=holder("w", "b", 3))
            assert task == await world.task(task_id)
            assert task.lease is not None
            assert (task.lease.holder, task.lease.since_ms) == (holder("w", "b", 3), START_MS)
            assert (task.lease.until_ms, task.lease.duration_ms) == (START_MS + 30_000, 30_000)
            assert await world.fetch(max_tasks=0) == []

    async def test_L4_no_two_workers_get_the_same_task_however_many_fetch_at_once(self) -> None:
        async with self.open_world() as world:
            ids = [world.fresh("task") for _ in range(200)]
            await world.instance_with(*(new_task(task_id) for task_id in ids))
            fetched: list[str] = []

            async def fetch(worker: str) -> None:
                while tasks := await world.fetch(max_tasks=3, by=holder(worker)):
                    fetched.extend(task.task_id for task in tasks)

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(fetch, f"worker {number}")
            assert sorted(fetched) == sorted(ids)

    async def test_L4_two_fetches_in_one_batch_share_nothing(self) -> None:
        async with self.open_world() as world:
            await world.instance_with(*(new_task(f"t{number}") for number in range(5)))
            fetch = FetchAndLock(holder(), ("payment",), 3, 1_000)
            lease = LeaseTasks((TaskLease("t0", holder("late"), 1_000),))
            first, second, third = await world.transact(fetch, fetch, lease)
            assert isinstance(first, tuple)
            assert isinstance(second, tuple)
            assert [task.task_id for task in first + second] == ["t0", "t1", "t2", "t3", "t4"]
            assert third == (None,)

    async def test_L4_a_task_created_in_the_same_batch_can_be_fetched(self) -> None:
        async with self.open_world() as world:
            task = new_task("t")
            create = world.changeset("i")
            changes = type(create.changes)(new_tasks=(task,))
            fetch = FetchAndLock(holder(), ("payment",), 3, 1_000)
            _, fetched = await world.transact(world.changeset("i", changes), fetch)
            assert isinstance(fetched, tuple)
            assert [task.task_id for task in fetched] == ["t"]

    async def test_L4_only_ready_tasks_are_leased_by_key(self) -> None:
        async with self.open_world() as world:
            first, second = await world.ready_task(), await world.ready_task()
            wishes = tuple(TaskLease(task_id, holder(), 1_000) for task_id in (first, first, "nothing", second))
            leased = await world.do(LeaseTasks(wishes), tuple)
            assert [task and task.task_id for task in leased] == [first, None, None, second]

    async def test_fault_59_rows_that_cannot_be_had_leave_the_others_of_a_fetch(self) -> None:
        """Two of them are of one instance, which moves on in the same transaction; another step in it is refused."""
        async with self.open_world() as world:
            taken = await world.leased_task()
            instance_id = await world.instance_with(new_task("cancelled"), new_task("beside it"))
            good = await world.ready_task()
            keys = (taken.task_id, "unknown", "cancelled", "beside it", good)
            wishes = LeaseTasks(tuple(TaskLease(key, holder("w"), 30_000) for key in keys))
            cancelling = world.changeset(instance_id, RowChanges(cancelled_tasks=("cancelled",)))
            stale = world.changeset(taken.instance_id, RowChanges(cancelled_tasks=(taken.task_id,)), expected_version=7)
            unwritable = world.changeset("new", RowChanges(new_tasks=(new_task(good),)))
            outcomes = await world.transact(cancelling, stale, unwritable, wishes)
            assert [type(outcome) for outcome in outcomes] == [Committed, RefusedChangeset, RefusedChangeset, tuple]
            leased = outcomes[3]
            assert isinstance(leased, tuple)
            assert [task and task.task_id for task in leased] == [None, None, None, "beside it", good]
            again = await world.ready_task()
            assert [task.task_id for task in await world.fetch()] == [again]

    async def test_L4_the_models_lock_duration_overrides_the_workers(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(lock_duration_ms=7_000)
            assert task.lease is not None
            assert task.lease.until_ms == START_MS + 7_000
            await world.ready_task(lock_duration_ms=8_000)
            assert (await world.store.ready_tasks("payment", 10)).tasks[0].lock_duration_ms == 8_000

    # --- L6 --------------------------------------------------------------------------------------------------------

    async def test_L6_a_failed_task_is_offered_again_after_its_back_off(self) -> None:
        async with self.open_world() as world:
            await world.leased_task()
            task = await world.leased_task()
            answer = await world.fail(task)
            assert answer.task is not None
            assert (answer.task.retries_left, answer.task.error_message) == (2, "out of order")
            scan = await world.store.ready_tasks("payment", 10)
            assert (scan.tasks, scan.next_available_ms) == ((), START_MS + 1_000)
            assert await world.fetch() == []
            wish = TaskLease(task.task_id, holder(), 1_000)
            assert await world.do(LeaseTasks((wish,)), tuple) == (None,)
            world.clock.advance(1_000)
            scan = await world.store.ready_tasks("payment", 10)
            assert ([item.task_id for item in scan.tasks], scan.next_available_ms) == ([task.task_id], None)
            assert [item.task_id for item in await world.fetch()] == [task.task_id]

    async def test_L6_a_task_whose_back_off_ended_keeps_its_place(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            await world.fail(task, retry_after_ms=1_000)
            world.clock.advance(1_000)
            younger = await world.ready_task()
            urgent = await world.ready_task(priority=1)
            order = [item.task_id for item in (await world.store.ready_tasks("payment", 10)).tasks]
            assert order == [urgent, task.task_id, younger]
            assert [item.task_id for item in await world.fetch(max_tasks=2)] == order[:2]

    async def test_L6_worker_and_model_decide_the_wait_before_the_default_does(self) -> None:
        async with self.open_world() as world:
            cases: tuple[tuple[dict[str, Any], dict[str, Any], int], ...] = (
                ({}, {"retry_after_ms": 5, "jitter": 0.5}, 5),
                ({"retry_backoffs_ms": (7, 9)}, {"jitter": 0.5}, 7),
                ({"retry_backoffs_ms": (7, 9)}, {"retry_after_ms": 5}, 5),
                ({}, {"jitter": 0.5}, 750),
            )
            for changes, fields, wait_ms in cases:
                answer = await world.fail(await world.leased_task(**changes), **fields)
                assert answer.task is not None
                assert answer.task.available_at_ms == START_MS + wait_ms

    async def test_L6_an_explicit_number_of_retries_is_obeyed(self) -> None:
        async with self.open_world() as world:
            answer = await world.fail(await world.leased_task(retries=1), retries=4)
            assert answer.kind is LeaseAnswerKind.DONE
            assert answer.task is not None
            assert answer.task.retries_left == 4

    async def test_L6_a_failure_past_the_locks_end_costs_nothing(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            world.clock.advance(30_000)
            assert (await world.fail(task)).kind is LeaseAnswerKind.LEASE_LOST
            assert await world.task(task.task_id) == task

    # --- L7 --------------------------------------------------------------------------------------------------------

    async def test_L7_locks_are_reclaimed_in_the_order_of_their_ends_up_to_the_limit(self) -> None:
        async with self.open_world() as world:
            ids = [await world.ready_task() for _ in range(4)]
            for position, task_id in enumerate(ids):
                await world.lease(task_id, duration_ms=10_000 - 1_000 * position)
            expired = await world.expire()
            assert (expired.returned, expired.next_expiry_ms) == ((), START_MS + 7_000)
            world.clock.advance(9_000)
            expired = await world.expire(limit=2)
            assert [task.task_id for task in expired.returned] == [ids[3], ids[2]]
            expired = await world.expire()
            assert [task.task_id for task in expired.returned] == [ids[1]]
            assert (expired.next_expiry_ms, expired.now_ms) == (START_MS + 10_000, START_MS + 9_000)
            assert len(await world.fetch()) == 3

    async def test_L7_tasks_that_wait_for_their_instance_do_not_hide_the_others(self) -> None:
        async with self.open_world() as world:
            waiting = [await world.leased_task(single_try=True) for _ in range(5)]
            world.clock.advance(1_000)
            crashed = await world.leased_task()
            world.clock.advance(30_000)
            expired = await world.expire(limit=3)
            assert [task.task_id for task in expired.returned] == [crashed.task_id]
            assert list(expired.failing) == waiting[:3]

    async def test_L7_a_reclaimed_task_gets_a_newer_fence_and_the_old_one_is_refused(self) -> None:
        async with self.open_world() as world:
            old = await world.leased_task()
            world.clock.advance(30_000)
            await world.expire()
            (new,) = await world.fetch(by=holder("second"))
            assert new.fence > old.fence
            refused = await world.refuse(world.completion(old))
            assert refused.answer is not None
            assert refused.answer.kind is LeaseAnswerKind.LEASE_LOST
            await world.commit(world.completion(new))

    # --- extend, renew, release ------------------------------------------------------------------------------------

    async def test_an_extension_counts_from_now(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            world.clock.advance(10_000)
            answer = await world.do(ExtendLease(task.task_id, task.fence, 60_000), LeaseAnswer)
            assert (answer.kind, _until_ms(answer)) == (LeaseAnswerKind.DONE, START_MS + 70_000)
            stale = await world.do(ExtendLease(task.task_id, task.fence - 1, 60_000), LeaseAnswer)
            assert stale.kind is LeaseAnswerKind.LEASE_LOST
            world.clock.advance(60_000)
            late = await world.do(ExtendLease(task.task_id, task.fence, 60_000), LeaseAnswer)
            assert late.kind is LeaseAnswerKind.LEASE_LOST

    async def test_rule_17_a_renewal_is_for_the_fence_and_session_of_the_row(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            world.clock.advance(20_000)
            renew = RenewLeases(
                (
                    RenewLease(task.task_id, task.fence, "boot-1"),
                    RenewLease(task.task_id, task.fence, "boot-0"),
                    RenewLease(task.task_id, task.fence - 1, "boot-1"),
                    RenewLease("nothing", 1, "boot-1"),
                )
            )
            answers: tuple[LeaseAnswer, ...] = await world.do(renew, tuple)
            lost = LeaseAnswerKind.LEASE_LOST
            assert [answer.kind for answer in answers] == [LeaseAnswerKind.DONE, lost, lost, LeaseAnswerKind.UNKNOWN]
            assert _until_ms(answers[0]) == START_MS + 50_000
            world.clock.advance(30_000)
            (late,) = await world.do(RenewLeases(renew.leases[:1]), tuple)
            assert late.kind is lost

    async def test_a_release_gives_the_task_back_at_once_and_uses_no_retry(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            assert (await _release(world, task, started=True)).kind is LeaseAnswerKind.DONE
            (again,) = await world.fetch()
            assert (again.retries_left, again.attempt) == (3, 2)
            assert (await _release(world, task, started=True)).kind is LeaseAnswerKind.LEASE_LOST
            (attempt,) = await world.store.attempts(task.task_id)
            assert attempt.end is AttemptEnd.RELEASED

    async def test_rule_14_single_try_returns_only_where_its_handler_did_not_start(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(single_try=True)
            answer = await _release(world, task, started=True)
            assert (answer.kind, answer.task) == (LeaseAnswerKind.DONE, task)
            taken_back = await _release(world, task, started=True, session_id="boot-1")
            assert (taken_back.kind, taken_back.task) == (LeaseAnswerKind.DONE, task)
            answer = await _release(world, task, started=False, session_id="boot-1")
            assert answer.task is not None
            assert answer.task.state.value == "READY"

    async def test_rule_17_the_engine_takes_back_only_from_the_session_it_means(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            lost = await _release(world, task, started=False, session_id="boot-0")
            assert lost.kind is LeaseAnswerKind.LEASE_LOST
            assert await world.state(task.task_id) == "LOCKED"
            done = await _release(world, task, started=False, session_id="boot-1")
            assert done.kind is LeaseAnswerKind.DONE
