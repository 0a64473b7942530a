"""What is deployed: versions that are deleted, processes of which nothing starts, and the guards of new instances."""

from __future__ import annotations

from typing import Any

from stellwerk.core.changes import RowChanges
from stellwerk.errors import Conflict, NotFound
from stellwerk.ids import process_key_of
from stellwerk.ports import (
    Changeset,
    Committed,
    DefinitionRow,
    DeleteDefinition,
    DeployDefinitions,
    Deployed,
    NewInstance,
    PruneInstances,
    RefusedChangeset,
    RefusedGuard,
    SetProcessEnabled,
)
from stellwerk.testing.store_contract.world import START_MS, ContractBase, StoreWorld

__all__ = ["CatalogueContract"]


async def _deploy(world: StoreWorld, *digests: str, key: str = "order") -> list[str]:
    """One version after the other, each started by a message with the name of its digest."""
    found: list[str] = []
    for digest in digests:
        row = DefinitionRow(key, None, digest, b"<xml/>", START_MS, (digest,))
        deployed = await world.do(DeployDefinitions((row,)), Deployed)
        found += [each.definition_id for each in deployed.definitions]
    return found


async def _definitions(world: StoreWorld) -> list[str]:
    return [row.definition_id for row in await world.store.definitions()]


def _start(world: StoreWorld, instance_id: str, definition_id: str = "order:1", **fields: Any) -> Changeset:
    key = process_key_of(definition_id)
    new = NewInstance(definition_id, key, None, must_be_deployed=True, **fields)
    return world.changeset(instance_id, new_instance=new)


class CatalogueContract(ContractBase):
    async def test_a_version_is_deleted_and_the_one_before_takes_its_place(self) -> None:
        async with self.open_world() as world:
            assert await _deploy(world, "a", "b", "c") == ["order:1", "order:2", "order:3"]
            assert await world.store.awaited_names(9) == ["c"]
            await world.do(DeleteDefinition("order:3"), type(None))
            assert await _definitions(world) == ["order:1", "order:2"]
            assert await world.store.definition("order:3") is None
            latest = await world.store.latest_definition("order")
            assert latest is not None
            assert latest.definition_id == "order:2"
            assert await world.store.awaited_names(9) == ["b"]
            await world.do(DeleteDefinition("order:1"), type(None))
            assert await world.store.awaited_names(9) == ["b"]
            await world.reopen()
            assert await _deploy(world, "b", "d") == ["order:2", "order:4"], "no number is used twice"
            for version in (2, 4):
                await world.do(DeleteDefinition(f"order:{version}"), type(None))
            assert await _definitions(world) == []
            assert await world.store.latest_definition("order") is None
            assert await world.store.awaited_names(9) == []
            assert await _deploy(world, "d") == ["order:5"]

    async def test_one_of_which_there_are_instances_is_not_deleted(self) -> None:
        async with self.open_world() as world:
            await _deploy(world, "a", "b")
            await world.commit(_start(world, "i"))
            refused = await world.do(DeleteDefinition("order:1"), Conflict)
            assert refused.code == "in_use"
            await world.do(DeleteDefinition("order:2"), type(None))
            await world.step("i", RowChanges(status="COMPLETED"))
            await world.do(DeleteDefinition("order:1"), Conflict)
            assert await _definitions(world) == ["order:1"]
            await world.transact(PruneInstances(START_MS + 1, 10))
            await world.do(DeleteDefinition("order:1"), type(None))
            assert await _definitions(world) == []

    async def test_what_is_not_deployed_cannot_be_deleted(self) -> None:
        async with self.open_world() as world:
            await _deploy(world, "a")
            for name in (
                "order",
                "order:2",
                "order:0",
                "order:x",
                "other:1",
                "",
                ":1",
                f"order:{10**30}",
                "order:\x001",
            ):
                await world.do(DeleteDefinition(name), NotFound)
            assert await _definitions(world) == ["order:1"]

    async def test_rule_7_nothing_starts_of_a_version_that_was_deleted(self) -> None:
        async with self.open_world() as world:
            await _deploy(world, "a", "b")
            outcomes = await world.transact(
                _start(world, "i", "order:2"), DeleteDefinition("order:1"), _start(world, "j", "order:1")
            )
            assert isinstance(outcomes[0], Committed)
            assert outcomes[2] == RefusedChangeset(RefusedGuard.UNDEPLOYED, "order:1")
            assert await world.store.instance("j") is None
            assert await world.refuse(_start(world, "k", "nothing:1")) == RefusedChangeset(
                RefusedGuard.UNDEPLOYED, "nothing:1"
            )
            await world.step("anything else goes", new_instance=NewInstance("nothing:1", "nothing", None))

    async def test_nothing_of_a_disabled_process_starts(self) -> None:
        async with self.open_world() as world:
            await _deploy(world, "a", "b")
            await _deploy(world, "x", key="other")
            await world.commit(_start(world, "i"))
            assert await world.do(SetProcessEnabled("order", False), bool)
            assert not await world.do(SetProcessEnabled("order", False), bool)
            await world.reopen()
            assert await world.store.disabled_processes() == ["order"]
            disabled = RefusedChangeset(RefusedGuard.DISABLED, "order")
            for version in (1, 2):
                assert await world.refuse(_start(world, "j", f"order:{version}")) == disabled
            await world.commit(_start(world, "k", "other:1"))
            await world.step("i")
            assert await _deploy(world, "c") == ["order:3"], "a later version is disabled too"
            assert await world.refuse(_start(world, "j", "order:3")) == disabled
            assert await world.do(SetProcessEnabled("order", True), bool)
            await world.commit(_start(world, "j", "order:3"))
            assert await world.store.disabled_processes() == []
            await world.do(SetProcessEnabled("nothing", False), NotFound)

    async def test_a_message_finds_no_start_while_the_process_is_disabled(self) -> None:
        async with self.open_world() as world:
            await _deploy(world, "a")
            await world.do(SetProcessEnabled("order", False), bool)
            assert await world.store.awaited_names(9) == []
            await _deploy(world, "b", "c")
            await world.do(DeleteDefinition("order:3"), type(None))
            assert await world.store.awaited_names(9) == []
            await world.do(SetProcessEnabled("order", True), bool)
            assert await world.store.awaited_names(9) == ["b"], "those of the newest version"

    async def test_rule_7_both_guards_of_a_start_hold(self) -> None:
        async with self.open_world() as world:
            await _deploy(world, "a", "b")
            refused = await world.refuse(_start(world, "i", "order:1", must_be_newest=True))
            assert refused == RefusedChangeset(RefusedGuard.DEFINITION, "order:2")
            await world.commit(_start(world, "i", "order:2", must_be_newest=True))
            await world.do(SetProcessEnabled("order", False), bool)
            refused = await world.refuse(_start(world, "j", "order:2", must_be_newest=True))
            assert refused.guard is RefusedGuard.DISABLED
