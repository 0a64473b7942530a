"""Lists by filters and pages, and what waits on each topic."""

from __future__ import annotations

from typing import Any

import pytest

from stellwerk.core.changes import IncidentRow, NewTask, RowChanges
from stellwerk.errors import InvalidInput
from stellwerk.ids import process_key_of
from stellwerk.ports import InstanceFilter, LeaseAnswer, NewInstance, SetTaskRetries, TaskQuery, TopicBacklog
from stellwerk.testing.store_contract.world import START_MS, ContractBase, StoreWorld, holder, new_task

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


async def _task_pages(world: StoreWorld, limit: int, **wanted: Any) -> list[list[str]]:
    pages: list[list[str]] = []
    after: str | None = None
    while len(pages) < 10:
        page = await world.store.tasks(TaskQuery(**wanted), limit=limit, after=after)
        if not page:
            return pages
        pages.append([task.task_id for task in page])
        after = page[-1].task_id
    raise AssertionError(f"the pages have no end: {pages}")


async def _tasks(world: StoreWorld, **conditions: Any) -> str:
    """The ids of all tasks that fit, as one word; as many are counted."""
    wanted = TaskQuery(**conditions)
    found = [task.task_id for task in await world.store.tasks(wanted)]
    assert await world.store.count_tasks(wanted) == len(found)
    return "".join(found)


async def _some_tasks(world: StoreWorld) -> None:
    """Of three instances, one after the other: a, b, c; d; e, f, g. Worker w1 holds a and f, w2 holds e."""

    async def instance(name: str, definition_id: str, business_key: str, *tasks: NewTask) -> None:
        key = process_key_of(definition_id)
        start = NewInstance(definition_id, key, business_key)
        await world.step(name, RowChanges(new_tasks=tasks), new_instance=start)
        world.clock.advance(1_000)

    second = {"element_id": "Task_2", "priority": 5}
    ship = new_task("c", topic="ship", priority=-3)
    await instance("i1", "order:1", "A-17", new_task("a"), new_task("b", **second), ship)
    await instance("i2", "order:12", "B-18", new_task("d"))
    await instance("i3", "order2:1", "A-17", new_task("e"), new_task("f", retries=1))
    await instance("i4", "order2:2", "A-17", new_task("g", **second))
    await world.fail(await world.lease("b", holder("w1")), retry_after_ms=60_000)
    await world.commit(world.completion(await world.lease("d", holder("w1"))))
    await world.lease("f", holder("w1"), 1_000)
    await world.do(SetTaskRetries("f", 0), LeaseAnswer)
    world.clock.advance(1_000)
    await world.lease("a", holder("w1"))
    await world.lease("e", holder("w2"))


class ListingContract(ContractBase):
    # --- instances -------------------------------------------------------------------------------------------------

    async def test_instances_are_found_by_each_filter(self) -> None:
        async with self.open_world() as world:
            await _some_instances(world)
            assert await _ids(world) == "edcba"
            assert await _ids(world, status="COMPLETED") == "b"
            assert await _ids(world, process_key="order") == "dcba"
            assert await _ids(world, process_keys=("return",)) == "e"
            assert await _ids(world, process_keys=("order", "return")) == "edcba"
            assert await _ids(world, process_keys=("orde", "ret")) == ""
            assert await _ids(world, process_keys=("orde*", "gone")) == "dcba"
            assert await _ids(world, process_keys=("*",)) == "edcba"
            assert await _ids(world, process_keys=()) == ""
            assert await _ids(world, process_keys=("order",), business_key="A-17") == "ca"
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
                    await world.store.tasks(TaskQuery(state=state), after="gone")

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
            (first, *_) = await world.store.tasks(TaskQuery(state="READY"), limit=1)
            await world.lease(first.task_id)
            assert [task.task_id for task in await world.store.tasks(TaskQuery(state="READY"), after="a")] == ["b", "c"]

    async def test_tasks_are_found_and_counted_by_each_condition(self) -> None:
        async with self.open_world() as world:
            await _some_tasks(world)
            assert await _tasks(world) == "abcdefg"
            assert await _tasks(world, instance_id="i1") == "abc"
            assert await _tasks(world, topic="ship") == "c"
            assert await _tasks(world, state="READY") == "bcg"
            assert await _tasks(world, state="LOCKED") == "aef"
            assert await _tasks(world, state="COMPLETED") == "d"
            assert await _tasks(world, state="WAITING") == ""
            assert await _tasks(world, definition_id="order2:1") == "ef"
            assert await _tasks(world, process_key="order") == "abcd"
            assert await _tasks(world, process_key="order2") == "efg"
            assert await _tasks(world, process_key="orde") == await _tasks(world, process_key="order2:1") == ""
            assert await _tasks(world, element_id="Task_2") == "bg"
            assert await _tasks(world, business_key="A-17") == "abcefg"
            assert await _tasks(world, with_retries_left=True) == "abcdeg"
            assert await _tasks(world, with_retries_left=False) == "f"
            assert await _tasks(world, priority_from=1) == "bg"
            assert await _tasks(world, priority_to=-1) == "c"
            assert await _tasks(world, priority_from=0, priority_to=0) == "adef"
            assert await _tasks(world, task_ids=("g", "a", "gone", "a")) == "ag"
            assert await _tasks(world, task_ids=()) == ""

    async def test_whoever_holds_a_task_is_asked_of_its_present_lease_alone(self) -> None:
        """b was held by that worker before; the lock of f has run out."""
        async with self.open_world() as world:
            await _some_tasks(world)
            assert await _tasks(world, worker_id="w1") == "af"
            assert await _tasks(world, worker_id="w2") == "e"
            assert await _tasks(world, worker_id="w3") == ""
            assert await _tasks(world, is_locked=True) == "ae"
            assert await _tasks(world, is_locked=False) == "bcdfg"
            assert await _tasks(world, worker_id="w1", is_locked=True) == "a"
            assert await _tasks(world, worker_id="w1", is_locked=False) == "f"
            assert await _tasks(world, worker_id="w1", state="READY") == ""
            assert await _tasks(world, is_locked=True, state="COMPLETED") == ""
            assert await _tasks(world, is_locked=False, state="LOCKED") == "f"

    async def test_all_conditions_on_tasks_must_hold(self) -> None:
        async with self.open_world() as world:
            await _some_tasks(world)
            assert await _tasks(world, business_key="A-17", state="READY") == "bcg"
            assert await _tasks(world, business_key="A-17", process_key="order", topic="payment") == "ab"
            assert await _tasks(world, business_key="B-18", instance_id="i1") == ""
            assert await _tasks(world, instance_id="i1", state="LOCKED") == "a"
            assert await _tasks(world, instance_id="i1", task_ids=("b", "e")) == "b"
            assert await _tasks(world, task_ids=("a", "b", "e"), state="LOCKED", worker_id="w1") == "a"
            assert await _tasks(world, state="READY", priority_from=0, element_id="Task_2", topic="payment") == "bg"
            assert await _tasks(world, state="READY", with_retries_left=False) == ""

    async def test_tasks_are_listed_by_pages_under_each_condition(self) -> None:
        async with self.open_world() as world:
            await _some_tasks(world)
            assert await _task_pages(world, 2, process_key="order2") == [["e", "f"], ["g"]]
            assert await _task_pages(world, 2, task_ids=("g", "d", "a")) == [["a", "d"], ["g"]]
            assert await _task_pages(world, 1, worker_id="w1") == [["a"], ["f"]]
            assert await _task_pages(world, 1, is_locked=True) == [["a"], ["e"]]
            assert await _task_pages(world, 3, is_locked=False) == [["b", "c", "d"], ["f", "g"]]
            assert await _task_pages(world, 4, business_key="A-17") == [["a", "b", "c", "e"], ["f", "g"]]
            assert await _task_pages(world, 5, priority_to=0) == [["a", "c", "d", "e", "f"]]

    async def test_leases_are_counted_by_worker_and_topic(self) -> None:
        async with self.open_world() as world:
            assert dict(await world.store.held_leases(("w1", "w2"))) == {}
            names = ("a", "b", "c", "d", "e")
            await world.instance_with(
                *(new_task(name, topic="ship" if name == "e" else "payment") for name in names), new_task("ready")
            )
            for name in ("a", "b", "e"):
                await world.lease(name, holder("w1"))
            await world.lease("c", holder("w1"), 2_000)
            await world.lease("d", holder("w2"))
            held = {("w1", "payment"): 3, ("w1", "ship"): 1, ("w2", "payment"): 1}
            assert dict(await world.store.held_leases(("w1", "w2", "gone", "nul\0"))) == held
            assert dict(await world.store.held_leases(("w2",))) == {("w2", "payment"): 1}
            assert dict(await world.store.held_leases(())) == {}
            world.clock.advance(2_000)
            held["w1", "payment"] = 2  # one has run out
            assert dict(await world.store.held_leases(("w1", "w2"))) == held

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
