"""A worker process that connects again."""

from __future__ import annotations

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask, Holder
from stellwerk.ports import LostLease, Resumed, ResumeSession
from stellwerk.testing.store_contract.world import ContractBase, StoreWorld, holder

__all__ = ["SessionContract"]


async def _resume(world: StoreWorld, by: Holder, *holding: ExternalTask) -> Resumed:
    named = tuple((task.task_id, task.fence) for task in holding)
    return await world.do(ResumeSession(by, named), Resumed)


class SessionContract(ContractBase):
    async def test_rule_10_hello_releases_the_leases_of_its_boot_that_it_does_not_name(self) -> None:
        async with self.open_world() as world:
            held, dropped = await world.leased_task(), await world.leased_task()
            other_boot = await world.leased_task(by=holder(boot_id="other boot"))
            other_worker = await world.leased_task(by=holder("other"))
            resumed = await _resume(world, holder(session_no=2), held)
            assert [task.task_id for task in resumed.kept] == [held.task_id]
            assert [(task.task_id, task.state.value) for task in resumed.released] == [(dropped.task_id, "READY")]
            assert resumed.lost == ()
            for task in (other_boot, other_worker):
                assert await world.task(task.task_id) == task
            assert (await world.task(dropped.task_id)).retries_left == 3

    async def test_rule_14_hello_releases_a_single_try_only_where_its_worker_never_began_it(self) -> None:
        async with self.open_world() as world:
            never, begun, ordinary = [await world.leased_task(single_try=single) for single in (True, True, False)]
            unknown = ResumeSession(holder(session_no=2), ())
            resumed = await world.do(unknown, Resumed)
            assert [task.task_id for task in resumed.released] == [ordinary.task_id]
            assert [await world.task(task.task_id) for task in (never, begun)] == [never, begun]
            named = ((begun.task_id, begun.fence), (never.task_id, never.fence - 1))
            resumed = await world.do(ResumeSession(holder(session_no=3), (), named), Resumed)
            assert [(task.task_id, task.state.value) for task in resumed.released] == [(never.task_id, "READY")]
            assert (resumed.kept, resumed.lost) == ((), ())
            assert await world.task(begun.task_id) == begun
            assert not await world.store.attempts(begun.task_id)
            world.clock.advance(30_000)
            assert [task.task_id for task in (await world.expire()).failing] == [begun.task_id]

    async def test_rule_17_named_leases_move_to_the_new_session_with_their_fence_and_time(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            world.clock.advance(10_000)
            (kept,) = (await _resume(world, holder(session_no=2), task)).kept
            assert kept == await world.task(task.task_id)
            assert kept.lease is not None
            assert task.lease is not None
            assert (kept.fence, kept.lease.until_ms) == (task.fence, task.lease.until_ms)
            assert kept.lease.holder == holder(session_no=2)
            await world.commit(world.completion(kept))

    async def test_rule_17_an_older_session_takes_nothing_back(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(by=holder(session_no=2))
            for session_no in (1, 2):
                resumed = await _resume(world, holder(session_no=session_no), task)
                assert (resumed.kept, resumed.released) == ((), ())
                assert resumed.lost == (LostLease(task.task_id, task.fence, "lost"),)
                assert (await _resume(world, holder(session_no=session_no))).released == ()
            assert await world.task(task.task_id) == task

    async def test_rule_17_two_processes_with_one_worker_id_live_side_by_side(self) -> None:
        async with self.open_world() as world:
            first = await world.leased_task(by=holder(boot_id="first"))
            resumed = await _resume(world, holder(boot_id="second", session_no=9), first)
            assert resumed.lost == (LostLease(first.task_id, first.fence, "lost"),)
            assert await world.task(first.task_id) == first

    async def test_rule_10_lost_leases_come_with_their_reason(self) -> None:
        async with self.open_world() as world:
            completed, failed, cancelled = [await world.leased_task() for _ in range(3)]
            expired, due, released, leased_again = [await world.leased_task() for _ in range(4)]
            await world.commit(world.completion(completed))
            await world.fail(failed)
            await world.step(cancelled.instance_id, RowChanges(cancelled_tasks=(cancelled.task_id,)))
            await _resume(world, holder(session_no=2), expired, due, leased_again)
            assert await world.state(released.task_id) == "READY"
            world.clock.advance(30_000)
            assert len((await world.expire(limit=1)).returned) == 1
            tasks = (completed, failed, cancelled, released)
            resumed = await _resume(world, holder(session_no=3), *tasks)
            assert [lost.reason for lost in resumed.lost] == ["finished", "finished", "cancelled", "lost"]
            past = (expired, due, leased_again)
            resumed = await _resume(world, holder(session_no=4), *past)
            assert [lost.reason for lost in resumed.lost] == ["expired"] * 3
            await world.expire()
            again = await world.lease(leased_again.task_id, holder("other"))
            resumed = await _resume(world, holder(session_no=5), leased_again)
            assert [lost.reason for lost in resumed.lost] == ["expired"]
            assert await world.task(again.task_id) == again
            unknown = await world.do(ResumeSession(holder(), (("nothing", 1),)), Resumed)
            assert unknown.lost == (LostLease("nothing", 1, "lost"),)

    async def test_rule_10_a_lock_that_has_run_out_is_left_to_the_sweep(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            world.clock.advance(30_000)
            assert (await _resume(world, holder(session_no=2))).released == ()
            assert [item.task_id for item in (await world.expire()).returned] == [task.task_id]
