"""Deleting what ended long ago."""

from __future__ import annotations

import pytest

from stellwerk.core.changes import IncidentRow, RowChanges, SubscriptionRow, TimerRow, UserTaskRow
from stellwerk.errors import InvalidInput
from stellwerk.ports import (
    Committed,
    LeaseAnswerKind,
    MessageRow,
    Pruned,
    PruneInstances,
    PublishMessage,
    RefusedChangeset,
    StoredInstance,
)
from stellwerk.testing.store_contract.world import START_MS, ContractBase, StoreWorld, new_task

__all__ = ["PruningContract"]


async def _with_all_kinds(world: StoreWorld, name: str) -> None:
    """An instance with rows in every table, ids beginning with its name."""
    changes = RowChanges(
        new_tasks=(new_task(f"{name}-locked"), new_task(f"{name}-ready"), new_task(f"{name}-backing-off")),
        timers_armed=(TimerRow(f"{name}-timer", "T", START_MS),),
        subscriptions_opened=(SubscriptionRow(f"{name}-subscription", "C", "paid", name),),
        user_tasks_opened=(UserTaskRow(f"{name}-user-task", "U", None, None, (), (), None, b"{}"),),
        incidents_opened=(IncidentRow(f"{name}-incident", "k", "E", "m"),),
    )
    await world.step(name, changes, snapshot=b"s")
    await world.lease(f"{name}-locked")
    await world.fail(await world.lease(f"{name}-backing-off"), retry_after_ms=5_000)


async def _rows_of(world: StoreWorld, name: str) -> list[object]:
    """All that can be read of that instance, and what the scans over all instances find of it."""
    store, ids = world.store, [f"{name}-locked", f"{name}-ready", f"{name}-backing-off"]
    found: list[object] = [await store.load_instance(name), await store.instance(name), await store.history(name)]
    for task_id in ids:
        found += [await store.task(task_id), list(await store.attempts(task_id))]
    timers, _ = await store.due_timers(START_MS, 10)
    ready = await store.ready_tasks("payment", 10)
    found += [row for row in await store.instances() if row.instance_id == name]
    found += [row for row in await store.tasks() if row.instance_id == name]
    found += [task for task in ready.tasks if task.task_id in ids]
    found += [timer for timer in timers if timer.instance_id == name]
    found += [*await store.user_tasks(name), *await store.incidents(name)]
    found += [match for match in await store.matched_messages(START_MS, 10) if match.instance_id == name]
    return found


async def _ended(world: StoreWorld, *names: str) -> None:
    """One second after the other."""
    for name in names:
        await world.step(name, RowChanges(status="COMPLETED"))
        world.clock.advance(1_000)


async def _prune(world: StoreWorld, before_ms: int | None = None, limit: int = 100) -> int:
    """→ how many instances."""
    operation = PruneInstances(world.clock.wall_ms() if before_ms is None else before_ms, limit)
    return (await world.do(operation, Pruned)).instances


async def _left(world: StoreWorld) -> str:
    return "".join(row.instance_id for row in reversed(await world.store.instances()))


class PruningContract(ContractBase):
    async def test_all_that_belongs_to_an_ended_instance_goes_and_nothing_else(self) -> None:
        async with self.open_world() as world:
            for name in ("ended", "running"):
                message = MessageRow(f"message for {name}", "paid", name, b"{}", START_MS, START_MS + 9_000)
                await world.transact(PublishMessage(message))
                await _with_all_kinds(world, name)
            before = [await _rows_of(world, name) for name in ("ended", "running")]
            assert len(before[0]) == len(before[1]) == 18
            await world.step("ended", RowChanges(status="FAILED"))
            world.clock.wall += 1
            assert await _prune(world) == 1
            for _ in range(2):
                nothing = await _rows_of(world, "ended")
                assert [found for found in nothing if found not in (None, [])] == []
                assert [match.subscription_id for match in await world.store.matched_messages(START_MS, 10)] == [
                    "running-subscription"
                ]
                assert sum(backlog.ready + backlog.locked for backlog in await world.store.topic_backlogs()) == 2
                running = await _rows_of(world, "running")
                assert [row for row in running if row not in before[1]] == []
                assert len(running) == 18
                await world.reopen()

    async def test_what_runs_or_ended_too_late_stays(self) -> None:
        async with self.open_world() as world:
            await world.step("r")
            await _ended(world, "a", "b", "c")
            assert await _prune(world, START_MS) == 0
            assert await _prune(world, START_MS + 2_000) == 2
            assert await _left(world) == "rc"
            assert await _prune(world, START_MS + 2_001) == 1
            assert await _prune(world, START_MS + 1_000_000) == 0
            assert await _left(world) == "r"

    @pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED"])
    async def test_every_way_to_end_is_an_end(self, status: str) -> None:
        async with self.open_world() as world:
            await world.step("i", RowChanges(status=status))
            assert await _prune(world, START_MS + 1) == 1
            assert await _left(world) == ""

    async def test_an_instance_that_runs_again_stays(self) -> None:
        async with self.open_world() as world:
            await _ended(world, "i")
            await world.step("i", RowChanges(status="RUNNING"))
            assert await _prune(world) == 0
            await world.step("i", RowChanges(status="CANCELLED"))
            assert await _prune(world, START_MS + 1_000) == 0, "it ended later than the first time"
            assert await _prune(world, START_MS + 1_001) == 1

    async def test_a_large_prune_is_many_slices_the_longest_ended_first(self) -> None:
        async with self.open_world() as world:
            for name in "abcde":
                await world.step(name)
            await _ended(world, *"ebadc")
            assert await _prune(world, limit=2) == 2
            assert await _left(world) == "acd"
            assert await _prune(world, limit=2) == 2
            assert await _left(world) == "c"
            assert [await _prune(world, limit=2) for _ in range(2)] == [1, 0]

    async def test_a_slice_ends_early_when_its_instances_are_large(self) -> None:
        async with self.open_world() as world:
            for name in "abcd":
                await world.step(name, RowChanges(new_tasks=tuple(new_task(f"{name}{n}") for n in range(2_600))))
            await _ended(world, *"abcd")
            assert [await _prune(world) for _ in range(3)] == [2, 2, 0]
            assert list(await world.store.tasks()) == []

    async def test_a_slice_of_no_instance_is_refused_and_its_neighbours_are_applied(self) -> None:
        async with self.open_world() as world:
            await _ended(world, "i")
            outcomes = await world.transact(
                world.changeset("j"), PruneInstances(world.clock.wall_ms(), 0), world.changeset("k")
            )
            assert [type(outcome) for outcome in outcomes] == [Committed, InvalidInput, Committed]
            assert await _left(world) == "ijk"

    async def test_an_id_that_was_pruned_is_new_again(self) -> None:
        async with self.open_world() as world:
            await world.step("i", RowChanges(new_tasks=(new_task("t"),)))
            end = world.changeset("i", RowChanges(status="COMPLETED"), snapshot=b"of the old one")
            world.versions.clear()
            again = world.changeset("i", RowChanges(new_tasks=(new_task("t", topic="ship"),)))
            outcomes = await world.transact(end, PruneInstances(START_MS + 1, 10), again)
            assert [type(outcome) for outcome in outcomes] == [Committed, Pruned, Committed]
            loaded = await world.store.load_instance("i")
            assert isinstance(loaded, StoredInstance)
            assert (loaded.version, loaded.snapshot, loaded.status) == (1, None, "RUNNING")
            assert len(loaded.steps) == len(await world.store.history("i")) == 1
            assert [(task.topic, task.fence) for task in await world.store.tasks()] == [("ship", 0)]

    async def test_a_step_or_a_request_for_what_was_pruned_is_refused(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            late = world.completion(task)
            await _ended(world, task.instance_id)
            assert await _prune(world) == 1
            assert isinstance(await world.refuse(late), RefusedChangeset)
            assert (await world.fail(task)).kind is LeaseAnswerKind.UNKNOWN
            assert await world.expire() is not None
            assert await world.fetch() == []
