"""Who has a user task: given by the model or taken by a person, kept through restarts, and told by the history."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from stellwerk.core.facts import UserTaskAssigned
from stellwerk.core.history import decode_facts, decode_state, encode_facts, encode_state
from stellwerk.errors import Conflict, InvalidInput, NotFound

USER = """<startEvent id="s"/><userTask id="check"/><endEvent id="e"/>"""


@pytest.fixture
def user(flow: Any) -> str:
    return USER + str(flow("s check e"))


async def only_task(world: Any) -> Any:
    (row,) = await world.node.user_tasks()
    return row


async def test_one_of_many_who_claim_at_once_gets_it(autojump_clock: object, site: Any, user: str) -> None:
    world = await site.start()
    await world.deploy(user)
    await world.start()
    user_task_id = (await only_task(world))["user_task_id"]
    results: list[tuple[str, str]] = []

    async def claim(name: str) -> None:
        try:
            await world.node.assign_user_task(user_task_id, name)
        except Conflict as refused:
            results.append((name, refused.code))
        else:
            results.append((name, "done"))

    async with trio.open_nursery() as nursery:
        for name in ("ann", "bob", "eve"):
            nursery.start_soon(claim, name)
    (winner,) = [name for name, result in results if result == "done"]
    assert sorted(result for _, result in results) == ["assigned", "assigned", "done"]
    world = await site.restart()
    assert (await only_task(world))["assignee"] == winner
    with pytest.raises(Conflict):
        await world.node.assign_user_task(user_task_id, "somebody else")
    await world.node.assign_user_task(user_task_id, "somebody else", unless_assigned=False)
    assert (await only_task(world))["assignee"] == "somebody else"
    await world.node.assign_user_task(user_task_id, None)
    assert (await only_task(world))["assignee"] is None
    await world.node.complete_user_task(user_task_id, {})
    with pytest.raises(NotFound):
        await world.node.assign_user_task(user_task_id, "ann")


async def test_P3_the_history_gives_the_state_with_who_has_what(autojump_clock: object, site: Any, user: str) -> None:
    world = await site.start()
    await world.deploy(user)
    instance_id = await world.start()
    user_task_id = str((await only_task(world))["user_task_id"])
    await world.node.assign_user_task(user_task_id, "ann")
    await world.node.assign_user_task(user_task_id, "ann")  # she has it already: nothing happens
    steps = await world.node.history(instance_id)
    assert [step.facts for step in steps[1:]] == [(UserTaskAssigned(user_task_id, "ann"),)]
    assert decode_facts(encode_facts(steps[1].facts)) == steps[1].facts
    assert (await world.node.replay(instance_id)).assignees == {user_task_id: "ann"}
    assert (await world.node.replay(instance_id, 1)).assignees == {}
    await world.node.complete_user_task(user_task_id, {})
    assert (await world.node.replay(instance_id)).assignees == {}


async def test_a_snapshot_of_before_anybody_could_claim_is_read(autojump_clock: object, site: Any, user: str) -> None:
    world = await site.start()
    await world.deploy(user)
    state = await world.node.replay(await world.start())
    snapshot = msgspec.json.decode(encode_state(state))
    del snapshot["assignees"]
    assert decode_state(msgspec.json.encode(snapshot)) == state


@pytest.mark.parametrize("name", ["", "a\x00", "x" * 10_000])
async def test_an_assignee_has_a_name(autojump_clock: object, site: Any, user: str, name: str) -> None:
    world = await site.start()
    await world.deploy(user)
    await world.start()
    with pytest.raises(InvalidInput, match=r"\$\.assignee"):
        await world.node.assign_user_task((await only_task(world))["user_task_id"], name)
    assert (await only_task(world))["assignee"] is None


async def test_another_node_has_given_it_away_meanwhile(autojump_clock: object, nodes: Any, user: str) -> None:
    here, there = await nodes.start(), await nodes.start()
    await here.deploy(user)
    await here.start()
    user_task_id = (await only_task(here))["user_task_id"]
    results: list[str] = []

    async def claim(world: Any, name: str) -> None:
        try:
            await world.node.assign_user_task(user_task_id, name)
        except Conflict as refused:
            results.append(refused.code)
        else:
            results.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claim, here, "ann")
        nursery.start_soon(claim, there, "bob")
    assert sorted(results, key=len) in (["ann", "assigned"], ["bob", "assigned"])
    assert (await only_task(there))["assignee"] in results
