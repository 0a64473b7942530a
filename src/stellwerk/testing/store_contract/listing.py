"""Lists by filters and pages, and what waits on each topic."""

from __future__ import annotations

import pytest

from stellwerk.core.changes import IncidentRow, RowChanges
from stellwerk.errors import InvalidInput
from stellwerk.ports import InstanceFilter, NewInstance, TopicBacklog
from stellwerk.testing.store_contract.world import START_MS, ContractBase, StoreWorld, new_task

__all__ = ["ListingContract"]


async def _ids(world: StoreWorld, **wanted: object) -> str:
    """The ids of all instances that fit, as one word."""
    found = await world.store.instances(InstanceFilter(**wanted))  # type: ignore[arg-type]
    return "".join(row.instance_id for row in found)


async def _some_instances(world: StoreWorld) -> None:
    """a, b and c started one second after the other, d with c; b has ended; a and d have an incident."""
    keys = {"a": "A-17", "b": "B-18", "c": "A-17", "d": None}
    for name, business_key in keys.items():
        version = 2 if name in "cd" else 1
        await world.step(name, new_instance=NewInstance(f"order:{version}", "order", business_key))
        if name != "c":
            world.clock.advance(1_000)
    await world.step("e", new_instance=NewInstance("return:1", "return", "A-17"))
    await world.step("b", RowChanges(status="COMPLETED"))
    for name in "ad":
        await world.step(name, RowChanges(incidents_opened=(IncidentRow(f"x{name}", "k", "Task_1", "m"),)))
    await world.step("d", RowChanges(incidents_opened=(IncidentRow("second", "k", "Task_1", "m"),)))


async def _task_pages(world: StoreWorld, limit: int, **wanted: object) -> list[list[str]]:
    pages: list[list[str]] = []
    after: str | None = None
    while len(pages) < 10:
        page = await world.store.tasks(**wanted, limit=limit, after=after)  # type: ignore[arg-type]
        if not page:
            return pages
        pages.append([task.task_id for task in page])
        after = page[-1].task_id
    raise AssertionError(f"the pages have no end: {pages}")


class ListingContract(ContractBase):
    # --- instances -------------------------------------------------------------------------------------------------

    async def test_instances_are_found_by_each_filter(self) -> None:
        async with self.open_world() as world:
            await _some_instances(world)
            assert await _ids(world) == "edcba"
            assert await _ids(world, status="COMPLETED") == "b"
            assert await _ids(world, process_key="order") == "dcba"
            assert await _ids(world, definition_id="order:2") == "dc"
            assert await _ids(world, business_key="A-17") == "eca"
            assert await _ids(world, business_key="A-1") == ""
            assert await _ids(world, with_incident=True) == "da"
            assert await _ids(world, with_incident=False) == "ecb"
            assert await _ids(world, started_from_ms=START_MS + 2_000) == "edc"
            assert await _ids(world, started_before_ms=START_MS + 2_000) == "ba"
            assert await _ids(world, started_from_ms=START_MS + 1_000, started_before_ms=START_MS + 1_001) == "b"

    async def test_all_filters_must_fit(self) -> None:
        async with self.open_world() as world:
            await _some_instances(world)
            assert await _ids(world, business_key="A-17", process_key="order") == "ca"
            assert await _ids(world, business_key="A-17", with_incident=True) == "a"
            assert await _ids(world, status="RUNNING", with_incident=False, started_before_ms=START_MS + 9_000) == "ec"
            assert await _ids(world, status="COMPLETED", with_incident=True) == ""
            await world.step("a", RowChanges(incidents_resolved=("xa",)))
            assert await _ids(world, with_incident=True) == "d"

    async def test_instances_are_listed_by_pages_under_each_filter(self) -> None:
        async with self.open_world() as world:
            await _some_instances(world)
            for wanted in (
                InstanceFilter(),
                InstanceFilter(status="RUNNING"),
                InstanceFilter(business_key="A-17"),
                InstanceFilter(with_incident=True),
                InstanceFilter(with_incident=False),
                InstanceFilter(started_from_ms=START_MS + 1_000, process_key="order"),
            ):
                whole = list(await world.store.instances(wanted))
                paged = list(await world.store.instances(wanted, limit=1))
                while paged[-1] != whole[-1]:
                    paged += await world.store.instances(wanted, limit=1, after=paged[-1].instance_id)
                assert paged == whole
                assert not await world.store.instances(wanted, after=whole[-1].instance_id)

    async def test_of_two_ids_the_longer_one_is_the_greater(self) -> None:
        async with self.open_world() as world:
            for name in ("i1", "i10", "i2", "iü", "i"):
                await world.step(name)
            found = [row.instance_id for row in await world.store.instances()]
            assert found == ["iü", "i2", "i10", "i1", "i"]
            assert [row.instance_id for row in await world.store.instances(after="i10")] == ["i1", "i"]

    async def test_a_page_after_something_that_is_not_there_is_refused(self) -> None:
        async with self.open_world() as world:
            await world.ready_task()
            with pytest.raises(InvalidInput, match=r"after: there is no instance gone \(any more\)"):
                await world.store.instances(after="gone")
            for state in (None, "READY", "LOCKED", "COMPLETED"):
                with pytest.raises(InvalidInput, match=r"after: there is no external task gone \(any more\)"):
                    await world.store.tasks(state=state, after="gone")

    # --- tasks -----------------------------------------------------------------------------------------------------

    async def test_tasks_are_listed_by_pages_oldest_first(self) -> None:
        async with self.open_world() as world:
            await world.instance_with(new_task("m"), new_task("z"), new_task("a"))
            await world.instance_with(new_task("k"))
            world.clock.advance(1_000)
            await world.instance_with(new_task("c", topic="ship"), new_task("b"))
            assert await _task_pages(world, 2) == [["a", "k"], ["m", "z"], ["b", "c"]]
            assert await _task_pages(world, 4) == [["a", "k", "m", "z"], ["b", "c"]]
            assert await _task_pages(world, 5) == [["a", "k", "m", "z", "b"], ["c"]]
            assert await _task_pages(world, 2, topic="payment") == [["a", "k"], ["m", "z"], ["b"]]

    async def test_tasks_are_listed_by_pages_whatever_their_state(self) -> None:
        async with self.open_world() as world:
            instance_id = await world.instance_with(*(new_task(name) for name in "fedcba"))
            for name in "ace":
                await world.lease(name)
            await world.fail(await world.task("a"), retry_after_ms=5_000)
            await world.step(instance_id, RowChanges(drained_tasks=("b",)))
            await world.commit(world.completion(await world.task("c")))
            assert await _task_pages(world, 2, state="READY") == [["a", "b"], ["d", "f"]]
            assert await _task_pages(world, 1, state="READY", topic="payment") == [["a"], ["b"], ["d"], ["f"]]
            assert await _task_pages(world, 2, state="LOCKED") == [["e"]]
            assert await _task_pages(world, 2, state="COMPLETED") == [["c"]]
            assert await _task_pages(world, 4, instance_id=instance_id) == [["a", "b", "c", "d"], ["e", "f"]]
            assert await _task_pages(world, 4, instance_id=instance_id, state="LOCKED") == [["e"]]
            assert await _task_pages(world, 4, instance_id=instance_id, topic="ship") == []
            assert await _task_pages(world, 4, instance_id="other") == []

    async def test_the_row_before_a_page_may_have_changed_its_state(self) -> None:
        async with self.open_world() as world:
            await world.instance_with(*(new_task(name) for name in "abc"))
            (first, *_) = await world.store.tasks(state="READY", limit=1)
            await world.lease(first.task_id)
            assert [task.task_id for task in await world.store.tasks(state="READY", after="a")] == ["b", "c"]

    # --- topics ----------------------------------------------------------------------------------------------------

    async def test_the_backlog_of_each_topic_is_counted(self) -> None:
        async with self.open_world() as world:
            assert list(await world.store.topic_backlogs()) == []
            await world.instance_with(*(new_task(f"p{number}") for number in range(4)), new_task("s", topic="ship"))
            world.clock.advance(1_000)
            await world.ready_task()
            await world.lease("s")
            payment, ship = await world.store.topic_backlogs()
            assert payment == TopicBacklog(
                topic="payment", ready=5, backing_off=0, locked=0, oldest_ready_at_ms=START_MS
            )
            assert ship == TopicBacklog(topic="ship", ready=0, backing_off=0, locked=1, oldest_ready_at_ms=None)
            for number in range(4):
                await world.lease(f"p{number}")
            (payment, _) = await world.store.topic_backlogs()
            assert payment == TopicBacklog(
                topic="payment", ready=1, backing_off=0, locked=4, oldest_ready_at_ms=START_MS + 1_000
            )

    async def test_a_task_that_backs_off_becomes_ready_with_time(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            await world.fail(task, retry_after_ms=5_000)
            (backlog,) = await world.store.topic_backlogs()
            assert (backlog.ready, backlog.backing_off, backlog.oldest_ready_at_ms) == (0, 1, None)
            world.clock.advance(5_000)
            (backlog,) = await world.store.topic_backlogs()
            assert (backlog.ready, backlog.backing_off, backlog.oldest_ready_at_ms) == (1, 0, START_MS + 5_000)
            await world.ready_task()
            (backlog,) = await world.store.topic_backlogs()
            assert (backlog.ready, backlog.oldest_ready_at_ms) == (2, START_MS + 5_000)

    async def test_a_topic_without_open_work_has_no_backlog(self) -> None:
        """Nor has one whose tasks only wait for their instance to end them: no worker could help."""
        async with self.open_world() as world:
            await world.commit(world.completion(await world.leased_task()))
            instance_id = await world.instance_with(new_task("drained"))
            await world.step(instance_id, RowChanges(drained_tasks=("drained",)))
            assert list(await world.store.topic_backlogs()) == []
