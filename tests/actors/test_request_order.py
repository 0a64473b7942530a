"""Requests of one worker for one lease take effect in the order in which they were sent."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest
import trio

from stellwerk.limits import Limits
from stellwerk.wire.messages import Ack, BpmnErrorReport, Complete, Extend, Fail, Nack, Release


def request(kind: str, ref: int, offer: Any) -> Any:
    lease = (ref, offer.task_id, offer.fence)
    match kind:
        case "complete":
            return Complete(*lease, msgspec.Raw(b"{}"))
        case "fail":
            return Fail(*lease, "no", retries=0)
        case "bpmn_error":
            return BpmnErrorReport(*lease, "NO_STOCK")
        case "release":
            return Release(*lease, started=True)
        case _:
            return Extend(*lease, lock_duration_ms=60_000)


@pytest.mark.parametrize("kinds", list(permutations(["complete", "fail", "bpmn_error"])), ids="-".join)
async def test_the_first_request_of_a_frame_wins(
    autojump_clock: object, world: Any, one_task: Any, kinds: tuple[str, ...]
) -> None:
    await world.deploy(one_task(), attributes='stellwerk:failurePolicy="incident"')
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    await peer.say(*(request(kind, ref, offer) for ref, kind in enumerate(kinds, 1)))
    first, *later = [await peer.answer(offer, ref) for ref in (1, 2, 3)]
    assert isinstance(first, Ack)
    assert [answer.code for answer in later] == ["already_finished"] * 2
    state = {"complete": "COMPLETED", "fail": "FAILED", "bpmn_error": "FAILED"}[kinds[0]]
    ((task, _),) = (await world.node.view(offer.process_instance_id)).tasks
    assert task.state.value == state


async def test_what_follows_a_release_is_refused(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    kinds = ("extend", "release", "complete")
    await peer.say(*(request(kind, ref, offer) for ref, kind in enumerate(kinds, 1)))
    answers = [await peer.answer(offer, ref) for ref in (1, 2, 3)]
    assert [type(answer) for answer in answers] == [Ack, Ack, Nack]
    assert answers[2].code == "lease_lost"
    assert (await peer.task()).fence > offer.fence


async def test_other_leases_are_not_held_up(autojump_clock: object, world: Any, one_task: Any) -> None:
    """All of them land in one transaction, as requests of different leases always did."""
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=20)
    for _ in range(20):
        await world.start()
    await trio.sleep(0.1)
    before = world.node.statistics()["commits"]["transactions"]
    await peer.say(*(request("complete", ref, offer) for ref, offer in enumerate(peer.offers.values(), 1)))
    for ref, offer in enumerate(list(peer.offers.values()), 1):
        assert isinstance(await peer.answer(offer, ref), Ack)
    assert world.node.statistics()["commits"]["transactions"] - before <= 2


async def test_requests_that_wait_for_an_earlier_one_are_bounded(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any
) -> None:
    world = await start_node(nursery, limits=Limits(frame_bytes_max=5_000))
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    world.store.gate = trio.Event()
    await peer.say(*(request("complete", ref, offer) for ref in range(1, 101)))
    refused = await peer.answer(offer, 100)
    assert isinstance(refused, Nack)
    assert (refused.code, refused.retryable) == ("unavailable", True)
    world.store.gate.set()
    answers = [await peer.answer(offer, ref) for ref in range(1, 100)]
    assert [type(answer) for answer in answers[:9]] == [Ack] * 9, "an identical repeat hears the same"
    assert not peer.session.is_busy
    nursery.cancel_scope.cancel()
