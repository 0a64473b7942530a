"""The clock that judges leases."""

from __future__ import annotations

from stellwerk.ports import LeaseAnswerKind
from stellwerk.testing.store_contract.world import START_MS, ContractBase

__all__ = ["ClockContract"]


class ClockContract(ContractBase):
    async def test_rule_19_a_jump_of_the_wall_clock_moves_no_lease(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            world.clock.wall += 3_600_000
            assert await world.store.lease_now() == START_MS
            assert (await world.expire()).returned == ()
            world.clock.wall -= 7_200_000
            world.clock.seconds += 30
            assert await world.store.lease_now() == START_MS + 30_000
            assert [item.task_id for item in (await world.expire()).returned] == [task.task_id]

    async def test_rule_19_the_clock_goes_on_from_its_high_water_mark_after_reopening(self) -> None:
        async with self.open_world() as world:
            world.clock.seconds += 600
            task = await world.leased_task()
            assert task.fence == START_MS + 600_000
            world.clock.wall -= 3_600_000
            await world.reopen()
            assert await world.store.lease_now() == START_MS + 600_000
            assert (await world.fail(task)).kind is LeaseAnswerKind.DONE

    async def test_rule_19_time_passes_while_the_store_is_closed(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            await world.store.close()
            world.clock.wall += 30_000
            await world.store.open()
            assert [item.task_id for item in (await world.expire()).returned] == [task.task_id]

    async def test_rule_19_one_instant_for_the_whole_transaction(self) -> None:
        async with self.open_world() as world:
            world.clock.seconds += 5
            first = await world.step("i")
            assert first.now_ms == START_MS + 5_000
