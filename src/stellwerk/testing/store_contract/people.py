"""User tasks: who has them, and which of them somebody looks for."""

from __future__ import annotations

from collections.abc import Mapping

from stellwerk.core.changes import RowChanges, UserTaskAssignment, UserTaskRow
from stellwerk.ports import NewInstance, UserTaskFilter
from stellwerk.testing.store_contract.world import ContractBase, StoreWorld

__all__ = ["PeopleContract"]


def _user_task(name: str, assignee: str | None = None, users: str = "", groups: str = "") -> UserTaskRow:
    candidates = tuple(users.split()), tuple(groups.split())
    return UserTaskRow(name, "User_1", None, assignee, *candidates, None, b"{}")


def _assigned(**assignees: str | None) -> RowChanges:
    rows = tuple(UserTaskAssignment(name, assignee) for name, assignee in assignees.items())
    return RowChanges(user_tasks_assigned=rows)


async def _assignees(world: StoreWorld) -> Mapping[object, object]:
    return {row["user_task_id"]: row["assignee"] for row in await world.store.user_tasks()}


class PeopleContract(ContractBase):
    async def test_a_user_task_is_assigned_and_given_back(self) -> None:
        async with self.open_world() as world:
            await world.step("i", RowChanges(user_tasks_opened=(_user_task("a"), _user_task("b", "ann"))))
            await world.step("i", _assigned(a="bob", b="bob"))
            await world.reopen()
            assert await _assignees(world) == {"a": "bob", "b": "bob"}
            await world.step("i", _assigned(b=None))
            assert await _assignees(world) == {"a": "bob", "b": None}
            await world.step("i", RowChanges(user_tasks_closed=("a",)))
            assert await _assignees(world) == {"b": None}

    async def test_the_last_of_several_steps_in_one_transaction_counts(self) -> None:
        async with self.open_world() as world:
            opened = RowChanges(user_tasks_opened=(_user_task("a"), _user_task("b"), _user_task("c")))
            changes = (_assigned(a="ann", b="bob"), _assigned(a="eve", c="eve"), _assigned(a=None, b="dan"))
            later = enumerate(changes, start=1)
            steps = [world.changeset("i", each, expected_version=version, new_instance=None) for version, each in later]
            await world.transact(world.changeset("i", opened), *steps)
            assert await _assignees(world) == {"a": None, "b": "dan", "c": "eve"}

    async def test_user_tasks_are_found_by_people_and_processes(self) -> None:
        async with self.open_world() as world:
            first = (_user_task("a", "ann", "bob eve"), _user_task("b", None, "bob", "clerks x"))
            second = (_user_task("c", "bob", "", "clerks"), _user_task("d", None, "ann"))
            await world.step("i", RowChanges(user_tasks_opened=first))
            new = NewInstance("bill:1", "bill", None)
            await world.step("j", RowChanges(user_tasks_opened=second), new_instance=new)

            async def found(*instance_id: str, limit: int = 10, after: str | None = None, **wanted: object) -> str:
                fits = UserTaskFilter(**wanted)  # type: ignore[arg-type]
                rows = await world.store.user_tasks(*instance_id, wanted=fits, limit=limit, after=after)
                return "".join(str(row["user_task_id"]) for row in rows)

            assert await found() == "abcd"
            assert await found(assignee="ann") == "a"
            assert await found(is_assigned=True) == "ac"
            assert await found(is_assigned=False) == "bd"
            assert await found(candidate_user="bob") == "ab"
            assert await found(candidate_group="clerks") == "bc"
            assert await found(candidate_group="clerk") == ""
            assert await found(candidate_group='clerks"') == ""
            assert await found(process_keys=("bill",)) == "cd"
            assert await found(process_keys=("order", "bill"), limit=2, after="a") == "bc"
            assert await found(process_keys=()) == ""
            assert await found("i", candidate_group="clerks", is_assigned=False) == "b"
            assert await found("j", process_keys=("order",)) == ""
            assert await found(assignee="\x00", process_keys=("\x00",)) == ""
