"""What was waited for within a message's time to live is correlated, however late: also when the engine was away."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.json_values import dumps
from stellwerk.limits import Limits
from stellwerk.ports import MessageRow, PublishMessage

CATCH = """<startEvent id="s"/><intermediateCatchEvent id="wait"><messageEventDefinition messageRef="paid"/>
  </intermediateCatchEvent><endEvent id="e"/>"""
CATCH_TWICE = """<startEvent id="s"/>
  <intermediateCatchEvent id="one"><messageEventDefinition messageRef="paid"/></intermediateCatchEvent>
  <intermediateCatchEvent id="two"><messageEventDefinition messageRef="paid"/></intermediateCatchEvent>
  <endEvent id="e"/>"""
STARTED = """<startEvent id="s"><messageEventDefinition messageRef="order"/></startEvent>
  <serviceTask id="work" stellwerk:topic="work"/><endEvent id="e"/>"""
BOUNDARY = """<startEvent id="s"/><serviceTask id="work" stellwerk:topic="work"/>
  <boundaryEvent id="told" attachedToRef="work" cancelActivity="false"><messageEventDefinition messageRef="news"/>
  </boundaryEvent><serviceTask id="other" stellwerk:topic="other"/><endEvent id="e"/><endEvent id="f"/>"""

_AWAY_SECONDS = 7_200


async def _waiting(world: Any, key: str) -> str:
    """→ the id of an instance whose subscription is open."""
    instance_id = str(await world.node.start_instance("p", {}, business_key=key))
    await trio.sleep(0.1)
    return instance_id


async def _status(world: Any, instance_id: str, seconds: float = 3) -> str:
    return str((await world.node.wait_for_end(instance_id, timeout_seconds=seconds)).status)


async def _publish_and_die(site: Any, world: Any, *message: Any, **options: Any) -> str:
    """The message is acknowledged, and the node is killed before it is correlated."""
    message_id = str(await world.node.publish_message(*message, **options))
    site.kill()
    await site.ended.wait()
    return message_id


async def _leave_published(site: Any, name: str, key: str, *message_ids: str) -> None:
    """What a node leaves behind that dies as soon as these messages are durable. They live for a second."""
    store = site.make_store()
    await store.open()
    now_ms = await store.lease_now()
    rows = (
        MessageRow(message_id, name, key, dumps({"by": message_id}), now_ms, now_ms + 1_000)
        for message_id in message_ids
    )
    assert list(await store.transact([PublishMessage(row) for row in rows])) == [True] * len(message_ids)
    await store.close()


@pytest.mark.parametrize("ttl_ms", [0, 60_000])
async def test_a_node_that_dies_between_publishing_and_correlating_correlates_when_it_is_back(
    autojump_clock: object, site: Any, flow: Any, ttl_ms: int
) -> None:
    world = await site.start()
    await world.deploy(CATCH + flow("s wait e"))
    instance_id = await _waiting(world, "k")
    message_id = await _publish_and_die(site, world, "paid", "k", {"amount": 5}, ttl_ms=ttl_ms)
    await trio.sleep(_AWAY_SECONDS)

    store = site.make_store()
    await store.open()
    now_ms = await store.lease_now()
    kept = await store.message(message_id)
    await store.close()
    assert kept.expires_at_ms < now_ms
    assert (kept.is_correlated, kept.is_awaited) == (False, True)

    world = await site.start()
    assert await _status(world, instance_id, 1) == "COMPLETED"
    assert dict((await world.node.view(instance_id)).variables) == {"amount": 5}
    assert (await world.node.message(message_id)).status.value in ("correlated", "expired-or-unknown")


async def test_a_message_that_came_first_and_was_waited_for_in_time_is_correlated_too(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    world = await site.start()
    await world.deploy(CATCH + flow("s wait e"))
    await world.node.publish_message("paid", "k", {}, ttl_ms=10_000)
    await trio.sleep(9)
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    site.kill()
    await site.ended.wait()
    await trio.sleep(_AWAY_SECONDS)
    world = await site.start()
    assert await _status(world, instance_id, 1) == "COMPLETED"


async def test_who_begins_to_wait_after_the_time_to_live_gets_nothing(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    world = await site.start()
    await world.deploy(CATCH + flow("s wait e"))
    message_id = await _publish_and_die(site, world, "paid", "k", {}, ttl_ms=1_000)
    await trio.sleep(1)
    world = await site.start()
    instance_id = await _waiting(world, "k")
    await trio.sleep(120)
    assert await _status(world, instance_id, 0) == "RUNNING"
    assert (await world.node.message(message_id)).name is None, "it is not kept for who came too late"


async def test_of_two_messages_for_one_subscription_the_first_is_taken_and_the_other_goes(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    world = await site.start()
    await world.deploy(CATCH_TWICE + flow("s one two e"))
    instance_id = await _waiting(world, "k")
    site.kill()
    await site.ended.wait()
    await _leave_published(site, "paid", "k", "m-1", "m-2")
    await trio.sleep(_AWAY_SECONDS)
    world = await site.start()
    await trio.sleep(120)
    assert await _status(world, instance_id, 0) == "RUNNING"
    assert (await world.node.view(instance_id)).variables["by"] == "m-1"
    assert await world.node.waiting_messages() == []
    assert (await world.node.message("m-2")).name is None


async def test_every_late_message_reaches_what_went_on_waiting_all_the_time(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    """A boundary event that does not interrupt takes as many as come."""
    world = await site.start()
    await world.deploy(BOUNDARY + flow("s work e", "told other f"))
    await _waiting(world, "k")
    site.kill()
    await site.ended.wait()
    ids = [f"m-{number}" for number in range(5)]
    await _leave_published(site, "news", "k", *ids)
    await trio.sleep(_AWAY_SECONDS)
    world = await site.start()
    peer = await world.connect("other")
    for _ in ids:
        await peer.complete(await peer.task())
    await trio.sleep(120)
    assert await world.node.waiting_messages() == []


async def test_a_late_message_starts_the_instance_that_it_would_have_started(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    world = await site.start()
    await world.deploy(STARTED + flow("s work e"))
    await _publish_and_die(site, world, "order", "A-17", {"item": 1}, ttl_ms=0)
    await trio.sleep(_AWAY_SECONDS)
    world = await site.start()
    peer = await world.connect("work")
    await peer.complete(await peer.task())
    (instance,) = await world.node.instances()
    assert instance.business_key == "A-17"
    await trio.sleep(120)
    assert len(await world.node.instances()) == 1


async def test_a_message_whose_instance_exists_does_not_stay_for_ever(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    """It was published again after it had been forgotten: what starts by it goes on waiting."""
    world = await site.start()
    await world.deploy(STARTED + flow("s work e"))
    await world.node.publish_message("order", "k", {}, message_id="m", ttl_ms=0)
    await trio.sleep(120)
    assert (await world.node.message("m")).name is None
    await world.node.publish_message("order", "k", {}, message_id="m", ttl_ms=0)
    await trio.sleep(200)
    assert (await world.node.message("m")).name is None
    assert len(await world.node.instances()) == 1


async def test_a_message_that_waits_for_room_is_tried_once_a_second_and_goes_with_its_time(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    world = await site.start(limits=Limits(instance_tokens_max=2))
    await world.deploy(BOUNDARY + flow("s work e", "told other f"))
    await _waiting(world, "k")
    await world.node.publish_message("news", "k", {})
    await trio.sleep(1)
    refused = await world.node.publish_message("news", "k", {}, ttl_ms=0)
    tried = 0
    post = world.node.post

    async def counting(instance_id: str, envelope: Any) -> None:
        nonlocal tried
        tried += 1
        await post(instance_id, envelope)

    world.node.post = counting
    await trio.sleep(30)
    view = await world.node.message(refused)
    assert (view.status.value, view.is_awaited) == ("waiting", True), "although its time has ended"
    assert list(await world.node.waiting_messages()) == [view]
    assert 25 <= tried <= 35
    await trio.sleep(90)
    assert (await world.node.message(refused)).name is None


async def test_a_late_message_is_taken_when_there_is_room_at_last(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start(limits=Limits(instance_tokens_max=2))
    await world.deploy(BOUNDARY + flow("s work e", "told other f"))
    await _waiting(world, "k")
    peer = await world.connect("other")
    await world.node.publish_message("news", "k", {"by": 1})
    first = await peer.task()
    refused = await world.node.publish_message("news", "k", {"by": 2}, ttl_ms=0)
    await trio.sleep(10)
    await peer.complete(first)
    second = await peer.task()
    assert second.task_id != first.task_id
    assert (await world.node.message(refused)).status.value == "correlated"
