"""More bytes of tasks than a connection should carry at once: they go in turns, and nothing queues (fault 14)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.limits import Limits
from stellwerk.wire.messages import ProtocolErrorMessage, Received, Subscribe, Tasks

FRAME_BYTES = 10_000
LARGE = "x" * 2_000
LIMITS = Limits(frame_bytes_max=FRAME_BYTES, session_outbox_bytes_max=4 * FRAME_BYTES)


def frames(peer: Any) -> list[Tasks]:
    return [message for message in peer.messages if isinstance(message, Tasks)]


async def world_with(start_node: Any, nursery: trio.Nursery, one_task: Any, topics: list[str]) -> Any:
    world = await start_node(nursery, limits=LIMITS)
    for topic in topics:
        await world.deploy(one_task().replace('topic="work"', f'topic="{topic}"'), key=f"p-{topic}")
    return world


@pytest.mark.parametrize("worker_is_first", [True, False])
@pytest.mark.parametrize("topics", [["work"], ["one", "two", "three", "four", "five", "six"]], ids=["one", "six"])
async def test_fault_14_no_more_than_two_frames_await_their_confirmation(
    autojump_clock: object,
    start_node: Any,
    nursery: trio.Nursery,
    one_task: Any,
    topics: list[str],
    *,
    worker_is_first: bool,
) -> None:
    world = await world_with(start_node, nursery, one_task, topics)
    peer = await world.connect(*topics, max_tasks=100) if worker_is_first else None
    if peer is not None:
        peer.confirms = False
    async with trio.open_nursery() as starters:
        for number in range(48):
            starters.start_soon(lambda topic: world.start(f"p-{topic}", text=LARGE), topics[number % len(topics)])
    if peer is None:
        peer = await world.connect()
        peer.confirms = False
        await peer_subscribes(peer, topics)
    await trio.sleep(1)
    assert 0 < len(peer.offers) * len(LARGE) <= 2 * FRAME_BYTES
    while len(peer.offers) < 48:
        before = len(peer.offers)
        with trio.fail_after(5):  # none is taken back
            await peer.say(Received(frames(peer)[-1].delivery))
            await trio.sleep(0.1)
        assert 0 < (len(peer.offers) - before) * len(LARGE) <= 2 * FRAME_BYTES
    assert all(offer.attempt == 1 for offer in peer.offers.values())
    assert not [message for message in peer.messages if isinstance(message, ProtocolErrorMessage)]
    nursery.cancel_scope.cancel()


async def peer_subscribes(peer: Any, topics: list[str]) -> None:
    await peer.say(*(Subscribe(topic, max_tasks=100) for topic in topics))


async def test_fault_14_small_tasks_are_not_held_up_by_the_number_of_frames(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any
) -> None:
    world = await start_node(nursery)
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=100)
    peer.confirms = False
    for _ in range(100):
        await world.start()
    await trio.sleep(0.1)
    assert len(peer.offers) == 100
    nursery.cancel_scope.cancel()
