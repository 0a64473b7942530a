"""Processes that are switched off, and versions that are deleted: nothing of them starts, from any node."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.errors import Conflict, NotFound
from stellwerk.wire.messages import Ack


async def versions(world: Any) -> list[str]:
    return [row.definition_id for row in await world.node.definitions()]


async def definitions_of_instances(world: Any) -> list[str]:
    return sorted(row.definition_id for row in await world.node.instances())


# --- disabled ------------------------------------------------------------------------------------------------------


async def test_nothing_of_a_disabled_process_starts_and_what_runs_goes_on(
    autojump_clock: object, site: Any, task_of: Any
) -> None:
    world = await site.start()
    await world.deploy(task_of("a"))
    instance_id = await world.start()
    assert await world.node.set_process_enabled("p", False)
    assert not await world.node.set_process_enabled("p", False), "nothing changed"
    world = await site.restart()
    await world.deploy(task_of("b"))
    for version in (None, 1, 2):
        with pytest.raises(Conflict, match='process "p" is disabled') as refused:
            await world.node.start_instance("p", {}, version=version)
        assert refused.value.code == "disabled"
    assert await world.node.disabled_processes() == ["p"]
    peer = await world.connect("a")
    assert isinstance(await peer.complete(await peer.task()), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "COMPLETED"
    assert await world.node.set_process_enabled("p", True)
    await world.start()
    assert await definitions_of_instances(world) == ["p:1", "p:2"]
    assert await world.node.disabled_processes() == []


async def test_a_repeated_start_gets_its_instance_also_later(autojump_clock: object, site: Any, task_of: Any) -> None:
    world = await site.start()
    await world.deploy(task_of("a"))
    instance_id = await world.node.start_instance("p", {}, request_id="r")
    await world.node.set_process_enabled("p", False)
    assert await world.node.start_instance("p", {}, request_id="r") == instance_id


async def test_messages_wait_until_the_process_is_enabled(autojump_clock: object, site: Any, started_by: Any) -> None:
    world = await site.start()
    await world.deploy(started_by("order"))
    await world.node.set_process_enabled("p", False)
    await world.deploy(started_by("other"))
    message_id = await world.node.publish_message("other", "k", {})
    assert not (await world.node.message(message_id)).is_awaited
    world = await site.restart()
    await world.node.wait_for_end(await _anything_else(world, task=True), timeout_seconds=3)
    assert (await world.node.message(message_id)).status.value == "waiting"
    await world.node.set_process_enabled("p", True)
    assert (await world.node.message(message_id)).is_awaited
    peer = await world.connect("work")
    assert (await peer.task()).topic == "work"
    assert await definitions_of_instances(world) == ["other:1", "p:2"]


async def _anything_else(world: Any, *, task: bool) -> str:
    """An instance of another process, so that time passes."""
    assert task
    flows = '<sequenceFlow id="f" sourceRef="s" targetRef="t"/>'
    await world.deploy(f'<startEvent id="s"/><userTask id="t"/>{flows}', "other")
    return str(await world.start("other"))


async def test_one_that_nobody_knows(autojump_clock: object, site: Any) -> None:
    world = await site.start()
    with pytest.raises(NotFound, match='no process "p" is deployed'):
        await world.node.set_process_enabled("p", False)


async def test_another_node_starts_nothing_either(autojump_clock: object, nodes: Any, task_of: Any) -> None:
    here, there = await nodes.start(), await nodes.start()
    nodes.lose_hints()
    await here.deploy(task_of("a"))
    await there.start()
    await here.node.set_process_enabled("p", False)
    with pytest.raises(Conflict, match="disabled"):
        await there.start()


# --- deleted -------------------------------------------------------------------------------------------------------


async def test_a_version_without_instances_can_be_deleted(autojump_clock: object, site: Any, task_of: Any) -> None:
    world = await site.start()
    for topic in ("a", "b", "c"):
        await world.deploy(task_of(topic))
    await world.node.delete_definition("p:3")
    await world.start()
    assert await definitions_of_instances(world) == ["p:2"], "the newest that is left"
    with pytest.raises(NotFound, match='no definition "p:3" is deployed'):
        await world.node.start_instance("p", {}, version=3)
    with pytest.raises(NotFound):
        await world.node.delete_definition("p:3")
    world = await site.restart()
    await world.deploy(task_of("d"))
    assert await versions(world) == ["p:1", "p:2", "p:4"], "no number is used twice"


@pytest.mark.parametrize("has_ended", [False, True])
async def test_one_with_instances_stays(autojump_clock: object, site: Any, task_of: Any, has_ended: bool) -> None:
    """Also for one that has ended: what happened in it could not be shown any more."""
    world = await site.start()
    await world.deploy(task_of("a"))
    instance_id = await world.start()
    if has_ended:
        await world.node.cancel_instance(instance_id, "not wanted")
    with pytest.raises(Conflict, match='there are instances of "p:1"') as refused:
        await world.node.delete_definition("p:1")
    assert refused.value.code == "in_use"
    assert await versions(world) == ["p:1"]
    if has_ended:
        await trio.sleep(1)
        await world.node.prune(0)
        await world.node.delete_definition("p:1")
        assert await versions(world) == []
        with pytest.raises(NotFound, match='no process "p" is deployed'):
            await world.start()


@pytest.mark.parametrize("definition_id", ["p", "p:0", "p:2", "p:x", "", ":", "q:1", "p:99999999999999999999"])
async def test_what_is_not_deployed(autojump_clock: object, site: Any, task_of: Any, definition_id: str) -> None:
    world = await site.start()
    await world.deploy(task_of("a"))
    with pytest.raises(NotFound):
        await world.node.delete_definition(definition_id)
    assert await versions(world) == ["p:1"]


async def test_messages_start_the_version_that_is_left(autojump_clock: object, site: Any, started_by: Any) -> None:
    world = await site.start()
    await world.deploy(started_by("order"))
    await world.deploy(started_by("other"))
    assert await world.node.awaited_names(9) == ["other"]
    await world.node.delete_definition("p:2")
    assert await world.node.awaited_names(9) == ["order"]
    await world.node.publish_message("order", "k", {})
    peer = await world.connect("work")
    await peer.task()
    assert await definitions_of_instances(world) == ["p:1"]


async def test_another_node_that_knew_it_starts_the_one_that_is_left(
    autojump_clock: object, nodes: Any, task_of: Any
) -> None:
    here, there = await nodes.start(), await nodes.start()
    await here.deploy(task_of("a"))
    await here.deploy(task_of("b"))
    warm = await there.node.definition_cache.latest("p")
    assert warm.row.definition_id == "p:2"
    nodes.lose_hints()
    await here.node.delete_definition("p:2")
    await there.start()
    assert await definitions_of_instances(here) == ["p:1"]
    with pytest.raises(NotFound):
        await there.node.start_instance("p", {}, version=2)
