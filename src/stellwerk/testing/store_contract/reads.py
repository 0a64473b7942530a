"""What can be asked of a store."""

# ruff: noqa: N802 -- tests are named after the rows of the requirements

from __future__ import annotations

from typing import Any

from stellwerk.core.changes import IncidentRow, RowChanges, UserTaskRow
from stellwerk.ports import InstanceFilter, Store, StoredInstance, TaskQuery
from stellwerk.testing.store_contract.world import START_MS, ContractBase, new_task

__all__ = ["ReadContract"]


class ReadContract(ContractBase):
    async def test_L9_the_store_is_used_through_the_port_alone(self) -> None:
        async with self.open_world() as world:
            store: Store = world.store
            for method in (name for name in vars(Store) if not name.startswith("_")):
                assert hasattr(store, method)
            task_id = await world.ready_task()
            (task,) = await world.fetch()
            await world.fail(task, retry_after_ms=0)
            (task,) = await world.fetch()
            await world.commit(world.completion(task))
            assert await world.state(task_id) == "COMPLETED"

    async def test_an_instance_comes_back_with_all_its_steps(self) -> None:
        async with self.open_world() as world:
            await world.step("i")
            await world.step("i", RowChanges(status="FAILED"))
            await world.reopen()
            loaded = await world.store.load_instance("i")
            assert isinstance(loaded, StoredInstance)
            assert (loaded.version, loaded.definition_id, loaded.status) == (2, "order:1", "FAILED")
            assert loaded.snapshot is None
            assert list(loaded.steps) == list(await world.store.history("i"))
            assert [step.version for step in loaded.steps] == [1, 2]
            assert await world.store.load_instance("nothing") is None

    async def test_a_history_is_read_in_slices(self) -> None:
        async with self.open_world() as world:
            for _ in range(5):
                await world.step("i")
            await world.step("other")

            async def versions(after: int, limit: int | None) -> list[int]:
                return [step.version for step in await world.store.history("i", after=after, limit=limit)]

            assert await versions(0, None) == [1, 2, 3, 4, 5]
            assert await versions(0, 2) == [1, 2]
            assert await versions(2, 2) == [3, 4]
            assert await versions(4, 2) == [5]
            assert await versions(5, None) == await versions(9, 2) == []
            assert await versions(0, 0) == []

    async def test_an_instance_comes_back_from_its_newest_snapshot(self) -> None:
        async with self.open_world() as world:
            await world.step("i", snapshot=b"\x00first")
            await world.step("i", snapshot=b"\xffsecond")
            await world.step("i")
            loaded = await world.store.load_instance("i")
            assert loaded is not None
            assert (loaded.snapshot, [step.version for step in loaded.steps]) == (b"\xffsecond", [3])
            assert len(await world.store.history("i")) == 3

    async def test_instances_are_listed_newest_first_by_pages(self) -> None:
        async with self.open_world() as world:
            for name in ("a", "b", "c"):
                await world.step(name)
            world.clock.advance(1_000)
            await world.step("d")
            await world.step("b", RowChanges(status="COMPLETED"))

            async def page(wanted: InstanceFilter = InstanceFilter(), **bounds: object) -> list[str]:
                found = await world.store.instances(wanted, **bounds)  # type: ignore[arg-type]
                return [row.instance_id for row in found]

            assert await page() == ["d", "c", "b", "a"]
            assert await page(limit=2) == ["d", "c"]
            assert await page(limit=2, after="c") == ["b", "a"]
            assert await page(InstanceFilter(status="RUNNING")) == ["d", "c", "a"]
            assert await page(InstanceFilter(process_key="order"), after="d") == ["c", "b", "a"]
            assert await page(InstanceFilter(process_key="nothing")) == []
            ended = await world.store.instance("b")
            assert ended is not None
            assert (ended.started_at_ms, ended.ended_at_ms) == (START_MS, START_MS + 1_000)
            assert (ended.status, ended.business_key) == ("COMPLETED", "business key")

    async def test_an_instance_that_ends_in_its_first_step_has_ended(self) -> None:
        async with self.open_world() as world:
            await world.step("i", RowChanges(status="COMPLETED"))
            ended = await world.store.instance("i")
            assert ended is not None
            assert (ended.status, ended.version, ended.ended_at_ms) == ("COMPLETED", 1, START_MS)

    async def test_tasks_are_listed_by_instance_topic_and_state(self) -> None:
        async with self.open_world() as world:
            first = await world.instance_with(new_task("t1"), new_task("t2", topic="ship"))
            await world.instance_with(new_task("t3"))
            await world.lease("t3")

            async def listed(limit: int = 1000, **wanted: Any) -> list[str]:
                return [task.task_id for task in await world.store.tasks(TaskQuery(**wanted), limit=limit)]

            assert await listed() == ["t1", "t2", "t3"]
            assert await listed(instance_id=first) == ["t1", "t2"]
            assert await listed(topic="payment") == ["t1", "t3"]
            assert await listed(topic="payment", state="LOCKED") == ["t3"]
            assert await listed(limit=1) == ["t1"]
            assert await world.store.task("nothing") is None

    async def test_user_tasks_and_incidents_are_listed(self) -> None:
        async with self.open_world() as world:
            user_task = UserTaskRow("u", "User_1", "Check", None, ("ann",), ("clerks", "x"), None, b'{"a":1}', "soon")
            incident = IncidentRow("x", "model_fault", "Task_1", "no such variable", None)
            await world.step("i", RowChanges(user_tasks_opened=(user_task,), incidents_opened=(incident,)))
            (row,) = await world.store.user_tasks()
            assert row == {
                "user_task_id": "u",
                "instance_id": "i",
                "element_id": "User_1",
                "name": "Check",
                "assignee": None,
                "candidate_users": ("ann",),
                "candidate_groups": ("clerks", "x"),
                "form": None,
                "variables": b'{"a":1}',
                "created_at_ms": START_MS,
                "due_at": "soon",
            }
            (row,) = await world.store.incidents("i")
            assert row == {
                "incident_id": "x",
                "instance_id": "i",
                "kind": "model_fault",
                "element_id": "Task_1",
                "message": "no such variable",
                "task_id": None,
                "opened_at_ms": START_MS,
            }
            assert await world.store.incidents("other") == []

    async def test_user_tasks_and_incidents_are_listed_by_pages(self) -> None:
        async with self.open_world() as world:
            for instance_id, names in (("i", "adb"), ("j", "ec")):
                tasks = tuple(UserTaskRow(name, "User_1", None, None, (), (), None, b"{}") for name in names)
                incidents = tuple(IncidentRow(name, "model_fault", "Task_1", "m") for name in names)
                await world.step(instance_id, RowChanges(user_tasks_opened=tasks, incidents_opened=incidents))

            async def page(*instance_id: str, **wanted: object) -> str:
                tasks = await world.store.user_tasks(*instance_id, **wanted)  # type: ignore[arg-type]
                incidents = await world.store.incidents(*instance_id, **wanted)  # type: ignore[arg-type]
                ids = [row["user_task_id"] for row in tasks]
                assert ids == [row["incident_id"] for row in incidents]
                return "".join(map(str, ids))

            assert await page() == "abcde"
            assert await page(limit=2) == "ab"
            assert await page(limit=2, after="b") == "cd"
            assert await page(limit=2, after="d") == "e"
            assert await page(after="e") == ""
            assert await page("i", limit=2) == "ab"
            assert await page("i", limit=2, after="b") == "d"
            await world.step("i", RowChanges(incidents_resolved=("b",), user_tasks_closed=("b",)))
            assert await page(limit=2, after="b") == "cd", "the end of a page may be gone when the next is asked for"

    async def test_what_waits_for_somebody_is_found_by_its_id(self) -> None:
        async with self.open_world() as world:
            incident = IncidentRow("x", "bpmn_error", "Task_1", "m")
            task = UserTaskRow("u", "Task_2", "Check", "ada", (), ("staff",), None, b"{}")
            await world.step("i", RowChanges(incidents_opened=(incident,), user_tasks_opened=(task,)))
            await world.step("j", RowChanges(incidents_opened=(IncidentRow("y", "bpmn_error", "Task_1", "m"),)))
            assert await world.store.incident("x") == (await world.store.incidents("i"))[0]
            assert await world.store.user_task("u") == (await world.store.user_tasks("i"))[0]
            await world.step("i", RowChanges(incidents_resolved=("x",), user_tasks_closed=("u",)))
            assert await world.store.incident("x") is None
            assert await world.store.user_task("u") is None

    async def test_open_incidents_are_counted_for_many_instances_at_once(self) -> None:
        async with self.open_world() as world:
            for instance_id, names in (("i", "ab"), ("j", "c"), ("k", ""), ("l", "d")):
                incidents = tuple(IncidentRow(name, "model_fault", "Task_1", "m") for name in names)
                await world.step(instance_id, RowChanges(incidents_opened=incidents))
            await world.step("l", RowChanges(incidents_resolved=("d",)))
            assert await world.store.incident_counts(["i", "k", "l", "nothing"]) == {"i": 2}
            assert await world.store.incident_counts([]) == {}
