"""A message for one instance reaches that one only, whatever its key, and starts nothing."""

from __future__ import annotations

from typing import Any

import pytest

from stellwerk.errors import Conflict, NotFound

CATCH = """<startEvent id="s"/><intermediateCatchEvent id="wait"><messageEventDefinition messageRef="paid"/>
  </intermediateCatchEvent><endEvent id="e"/>"""
STARTED = """<startEvent id="s"><messageEventDefinition messageRef="paid"/></startEvent><endEvent id="e"/>"""


async def statuses(world: Any, *instance_ids: str) -> list[str]:
    return [(await world.node.wait_for_end(name, timeout_seconds=3)).status for name in instance_ids]


@pytest.mark.parametrize("key", ["", "k"])
async def test_only_the_instance_that_is_named_gets_it(autojump_clock: object, site: Any, flow: Any, key: str) -> None:
    world = await site.start()
    await world.deploy(CATCH + str(flow("s wait e")))
    first, second = [await world.node.start_instance("p", {}, business_key="k") for _ in range(2)]
    await world.node.publish_message("paid", key, {"amount": 5}, instance_id=second)
    assert await statuses(world, second, first) == ["COMPLETED", "RUNNING"]
    assert dict((await world.node.view(second)).variables) == {"amount": 5}


async def test_another_key_does_not_fit(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start()
    await world.deploy(CATCH + str(flow("s wait e")))
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    message_id = await world.node.publish_message("paid", "wrong", {}, instance_id=instance_id)
    assert await statuses(world, instance_id) == ["RUNNING"]
    seen = await world.node.message(message_id)
    assert (seen.status.value, seen.instance_id, seen.is_awaited) == ("waiting", instance_id, False)


async def test_it_starts_no_instance(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start()
    await world.deploy(CATCH + str(flow("s wait e")))
    await world.deploy(STARTED + str(flow("s e")), "started")
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    await world.node.publish_message("paid", "nobody", {}, instance_id=instance_id)
    assert await statuses(world, instance_id) == ["RUNNING"]
    assert [row.process_key for row in await world.node.instances()] == ["p"]


async def test_rule_6_messages_for_all_and_for_one_are_taken_in_order(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    world = await site.start()
    twice = CATCH.replace('id="wait"', 'id="{}"')
    body = twice.format("one") + twice.format("two").replace('<startEvent id="s"/>', "").replace(
        '<endEvent id="e"/>', ""
    )
    await world.deploy(body + str(flow("s one two e")))
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    await world.node.publish_message("paid", "k", {"last": "for all"})
    await world.node.publish_message("paid", "", {"last": "for one"}, instance_id=instance_id)
    assert await statuses(world, instance_id) == ["COMPLETED"]
    assert dict((await world.node.view(instance_id)).variables) == {"last": "for one"}


async def test_an_instance_that_is_not_there_or_has_ended(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start()
    await world.deploy(CATCH + str(flow("s wait e")))
    with pytest.raises(NotFound, match="there is no instance nobody"):
        await world.node.publish_message("paid", "k", {}, instance_id="nobody")
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    for _ in range(2):  # again after it has ended the instance
        assert await world.node.publish_message("paid", "", {}, message_id="m", instance_id=instance_id) == "m"
        assert await statuses(world, instance_id) == ["COMPLETED"]
    with pytest.raises(Conflict, match="is COMPLETED") as refused:
        await world.node.publish_message("paid", "", {}, instance_id=instance_id)
    assert refused.value.code == "ended"
