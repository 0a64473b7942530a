"""Nodes start instances of a version while another deletes it: no instance is left without its definition."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import structlog
import trio

from stellwerk.errors import Conflict
from stellwerk.ports import (
    Changeset,
    Committed,
    DefinitionRow,
    DeleteDefinition,
    DeployDefinitions,
    Deployed,
    MessageRow,
    NewInstance,
    Outcome,
    PublishMessage,
    RefusedChangeset,
    RefusedGuard,
    SetProcessEnabled,
)
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.system.entropy import SystemEntropy
from stellwerk.testing.store_contract.world import START_MS, ManualClock, StoreWorld

NODES = 4
ROUNDS = 25


@asynccontextmanager
async def opened(dsn: str, number: int) -> AsyncIterator[StoreWorld]:
    clock = ManualClock()
    store = PostgresStore(
        PostgresConfig(dsn=dsn, reading_connections_max=1),
        clock=clock,
        entropy=SystemEntropy(),
        log=structlog.get_logger(),
        node_id=f"node-{number}",
    )
    await store.open()
    try:
        yield StoreWorld(store, clock)
    finally:
        await store.close()


@pytest.fixture
async def worlds(postgres_dsn: str) -> AsyncIterator[list[StoreWorld]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(postgres_dsn, number)) for number in range(NODES)]


async def _deploy(world: StoreWorld, key: str) -> str:
    deployed = await world.do(DeployDefinitions((DefinitionRow(key, None, "1", b"<xml/>", START_MS),)), Deployed)
    return deployed.definitions[0].definition_id


def _start(world: StoreWorld, instance_id: str, definition_id: str, **fields: Any) -> Changeset:
    new = NewInstance(definition_id, definition_id.rpartition(":")[0], None, must_be_deployed=True)
    return world.changeset(instance_id, new_instance=new, **fields)


@pytest.mark.parametrize("is_direct", [True, False])
async def test_rule_7_a_start_and_the_end_of_its_definition_exclude_each_other(
    worlds: list[StoreWorld], is_direct: bool
) -> None:
    """Directly, in one round trip; or carefully, because it takes a message along."""
    seen: set[type] = set()
    for number in range(ROUNDS):
        definition_id = await _deploy(worlds[0], f"p{number}")
        outcomes: list[Outcome] = []

        async def start(world: StoreWorld, name: str, definition_id: str, outcomes: list[Outcome]) -> None:
            await world.transact(PublishMessage(MessageRow(name, "m", "", b"{}", START_MS, START_MS + 1)))
            consumed = () if is_direct else (name,)
            outcomes += await world.transact(_start(world, name, definition_id, messages_consumed=consumed))

        async with trio.open_nursery() as nursery:
            for place, world in enumerate(worlds[1:]):
                nursery.start_soon(start, world, f"{number}-{place}", definition_id, outcomes)
            await trio.sleep(0.0005 * (number % 8))
            (deleted,) = await worlds[0].transact(DeleteDefinition(definition_id))
        started = [outcome for outcome in outcomes if isinstance(outcome, Committed)]
        seen.add(type(deleted))
        if deleted is None:
            assert started == []
            assert outcomes == [RefusedChangeset(RefusedGuard.UNDEPLOYED, definition_id)] * (NODES - 1)
            assert await worlds[0].store.definition(definition_id) is None
        else:
            assert isinstance(deleted, Conflict)
            assert started
            assert await worlds[0].store.definition(definition_id) is not None
    assert seen <= {type(None), Conflict}


async def test_nothing_starts_once_another_node_was_told_that_the_process_is_disabled(
    worlds: list[StoreWorld],
) -> None:
    for number in range(5):
        definition_id = await _deploy(worlds[0], f"p{number}")
        assert await worlds[0].do(SetProcessEnabled(f"p{number}", False), bool)
        for world in worlds:
            (outcome,) = await world.transact(_start(world, f"i{number}", definition_id))
            assert outcome == RefusedChangeset(RefusedGuard.DISABLED, f"p{number}")
