"""Topics are forgotten when nobody has to do with them, and nothing is lost by that."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from stellwerk.limits import Limits
from stellwerk.wire.messages import Ack, ProtocolErrorMessage, Release, Renewed, Subscribe, Unsubscribe

MINUTE = 60


def live_topics(world: Any) -> int:
    return int(world.node.statistics()["topics_live"])


async def test_a_topic_without_workers_and_leases_is_forgotten(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", *(f"topic-{number}" for number in range(50)))
    await world.start()
    await peer.complete(await peer.task())
    await trio.sleep(5 * MINUTE)
    assert live_topics(world) == 51, "a worker waits there"
    running = len(world.node._nursery.child_tasks)
    peer.drop()
    await trio.sleep(MINUTE)
    assert live_topics(world) == 0
    assert world.node.statistics()["topics"] == {}
    assert len(world.node._nursery.child_tasks) <= running - 51


async def test_a_topic_comes_back_with_what_became_ready_meanwhile(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    peer.drop()
    await world.start(number=1)
    await trio.sleep(MINUTE)
    assert live_topics(world) == 0, "tasks that nobody takes stand in the store"
    await world.start(number=2)
    assert live_topics(world) == 0
    other = await world.connect("work", filter='"number":2')
    assert isinstance(await other.complete(await other.task()), Ack)
    last = await world.connect("work")
    assert isinstance(await last.complete(await last.task()), Ack)
    assert trio.current_time() < MINUTE + 2


async def test_a_lease_keeps_its_topic_until_it_ends(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=600_000)
    await world.start()
    offer = await peer.task()
    peer.drop()
    await trio.sleep(5 * MINUTE)
    assert live_topics(world) == 1
    await peer.connect()
    await peer.next(Renewed)  # at the end of the lock, by the dispatcher that watched it all the time
    assert isinstance(await peer.complete(offer), Ack)
    peer.drop()
    await trio.sleep(MINUTE)
    assert live_topics(world) == 0


async def test_a_task_given_back_without_a_topic_is_not_lost(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=20_000)
    await world.start()
    offer = await peer.task()
    peer.drop()
    other = await world.connect()
    await other.say(Release(1, offer.task_id, offer.fence, started=True))
    await other.answer(offer, 1)
    await trio.sleep(MINUTE)
    assert live_topics(world) == 0
    await other.say(Subscribe("work"))
    assert (await other.task()).task_id == offer.task_id


async def test_too_many_topics_are_forgotten_at_once(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery
) -> None:
    world = await start_node(nursery, limits=Limits(live_topics_max=100))
    for round_number in range(10):
        peer = await world.connect(*(f"topic-{round_number}-{number}" for number in range(90)))
        await trio.testing.wait_all_tasks_blocked()
        peer.drop()
    assert live_topics(world) <= 100
    nursery.cancel_scope.cancel()


async def test_the_statistics_name_a_bounded_number_of_topics(autojump_clock: object, world: Any) -> None:
    for worker in range(3):
        await world.connect(*(f"{worker}-{number}-".ljust(200, "x") for number in range(1_000)))
    statistics = world.node.statistics()
    assert statistics["topics_live"] == 3_000
    assert len(json.dumps(statistics)) < 500_000


@pytest.mark.parametrize("topic", ["", "y" * 201, "y" * 1_000_000], ids=["empty", "long", "huge"])
async def test_a_topic_that_cannot_be_cannot_be_unsubscribed(autojump_clock: object, world: Any, topic: str) -> None:
    peer = await world.connect()
    await peer.say(Unsubscribe(topic))
    error = await peer.next(ProtocolErrorMessage)
    assert (error.code, len(error.message) < 200) == ("invalid", True)


async def test_unsubscribing_creates_nothing(autojump_clock: object, world: Any) -> None:
    peer = await world.connect()
    for number in range(2_000):
        await peer.say(Unsubscribe(f"topic-{number}"))
    assert not peer.session.closed
    assert peer.session.topics == ()
    assert live_topics(world) == 0


async def test_ended_leases_with_long_locks_leave_memory(autojump_clock: object, world: Any, one_task: Any) -> None:
    """The renewal of a lock of a day is due in a day; the lease ended long before."""
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=100, lock_duration_ms=24 * 3_600_000)
    for _ in range(1_500):
        await world.start()
        await peer.complete(await peer.task())
    assert len(world.node.dispatcher("work")._renewals) <= 1_000
