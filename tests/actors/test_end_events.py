"""Waiting for an end event: it may have been reached long ago, be reached while the instance runs on, or never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from stellwerk.errors import NotFound
from stellwerk.wire.messages import Ack

FORK = """<startEvent id="s"/><parallelGateway id="fork"/><serviceTask id="left" stellwerk:topic="left"/>
  <serviceTask id="right" stellwerk:topic="right"/><endEvent id="first"/><endEvent id="second"/>"""
FAILING = """<startEvent id="s"/><serviceTask id="work" stellwerk:topic="work"/>
  <endEvent id="broken"><errorEventDefinition errorRef="wrong"/></endEvent>"""
INNER = """<startEvent id="s"/><subProcess id="sub"><startEvent id="is"/><endEvent id="inner"/>{}</subProcess>
  <serviceTask id="work" stellwerk:topic="work"/><endEvent id="outer"/>"""
SENDING = """<startEvent id="s"/><endEvent id="sent" stellwerk:topic="send"><messageEventDefinition messageRef="m"/>
  </endEvent>"""


@pytest.fixture
def fork(flow: Any) -> str:
    return FORK + str(flow("s fork left first", "fork right second"))


@pytest.fixture
def reached(autojump_clock: object) -> Callable[..., Any]:
    """What the wait gave, and how many seconds it took."""

    async def wait(world: Any, *names: str, seconds: float = 60) -> tuple[Any, float]:
        began = trio.current_time()
        found = await world.node.wait_for_end_event(*names, timeout_seconds=seconds)
        return found, trio.current_time() - began

    return wait


async def test_the_first_end_event_while_the_instance_runs_on(
    autojump_clock: object, site: Any, fork: str, reached: Any
) -> None:
    world = await site.start()
    await world.deploy(fork)
    peer = await world.connect("left", max_tasks=1)
    instance_id = await world.start(order=1)
    offer = await peer.task()

    async def complete_later() -> None:
        await trio.sleep(5)
        assert isinstance(await peer.complete(offer, found=True), Ack)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(complete_later)
        found, seconds = await reached(world, instance_id)
    assert (found.element_id, found.variables) == ("first", {"order": 1, "found": True})
    assert found.summary.status == "RUNNING"
    assert 5 <= seconds < 5.1, "woken by the step, not by a poll"


async def test_one_that_was_reached_before(autojump_clock: object, site: Any, fork: str, reached: Any) -> None:
    world = await site.start()
    await world.deploy(fork)
    peer = await world.connect("left", "right", max_tasks=1)
    instance_id = await world.start()
    left, right = await peer.task(), await peer.task()
    for offer in sorted((left, right), key=lambda offer: offer.topic):
        await peer.complete(offer, **{offer.topic: 1})
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    world = await site.restart()
    found, _ = await reached(world, instance_id, "first")
    assert (found.element_id, found.variables) == ("first", {"left": 1}), "as they were then"
    found, _ = await reached(world, instance_id, "second")
    assert (found.element_id, found.variables) == ("second", {"left": 1, "right": 1})
    assert found.summary.status == "COMPLETED"


async def test_time_is_up(autojump_clock: object, site: Any, fork: str, reached: Any) -> None:
    world = await site.start()
    await world.deploy(fork)
    found, seconds = await reached(world, await world.start(), seconds=7)
    assert found is None
    assert seconds == pytest.approx(7)


async def test_the_instance_ends_without_it(autojump_clock: object, site: Any, fork: str, reached: Any) -> None:
    world = await site.start()
    await world.deploy(fork)
    instance_id = await world.start(order=1)

    async def cancel_later() -> None:
        await trio.sleep(3)
        await world.node.cancel_instance(instance_id, "not wanted")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_later)
        found, seconds = await reached(world, instance_id, "second")
    assert (found.element_id, found.variables, found.summary.status) == (None, {"order": 1}, "CANCELLED")
    assert 3 <= seconds < 3.1


async def test_an_end_event_that_only_waited_was_not_reached(
    autojump_clock: object, site: Any, flow: Any, reached: Any
) -> None:
    """Its message is an external task, and the instance is cancelled before anybody sends it."""
    world = await site.start()
    await world.deploy(SENDING + str(flow("s sent")))
    cancelled, sent = await world.start(), await world.start()
    await world.node.cancel_instance(cancelled, "not wanted")
    assert (await reached(world, cancelled))[0].element_id is None
    peer = await world.connect("send")
    assert isinstance(await peer.complete(await peer.task()), Ack)
    assert (await reached(world, sent))[0].element_id == "sent"


async def test_an_error_that_nobody_catches_is_no_end(
    autojump_clock: object, site: Any, flow: Any, reached: Any
) -> None:
    world = await site.start()
    error = '<error id="wrong" errorCode="WRONG"/>'
    xml = f"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
      xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">{error}<process id="p" isExecutable="true"
      stellwerk:failurePolicy="compensate">{FAILING}{flow("s work broken")}</process></definitions>"""
    await world.node.deploy([("failing.bpmn", xml.encode())])
    instance_id = await world.start()
    peer = await world.connect("work")
    await peer.complete(await peer.task())
    assert (await reached(world, instance_id, seconds=1))[0] is None, "an incident waits there"
    found = await world.node.wait_for_end_event(instance_id, or_incident=True)
    assert (found.element_id, found.summary.status) == (None, "RUNNING")
    await world.node.cancel_instance(instance_id, "not wanted")
    found, _ = await reached(world, instance_id, "broken")
    assert (found.element_id, found.summary.status) == (None, "CANCELLED")


async def test_end_events_of_subprocesses_count_only_by_their_names(
    autojump_clock: object, site: Any, flow: Any, reached: Any
) -> None:
    world = await site.start()
    await world.deploy(INNER.format(flow("is inner").replace("flow.", "inner.")) + str(flow("s sub work outer")))
    instance_id = await world.start()
    assert (await reached(world, instance_id, "inner"))[0].element_id == "inner"
    assert (await reached(world, instance_id, seconds=1))[0] is None


async def test_names_that_nobody_knows(autojump_clock: object, site: Any, fork: str, reached: Any) -> None:
    world = await site.start()
    await world.deploy(fork)
    with pytest.raises(NotFound, match='process "p" has no end event "left"'):
        await reached(world, await world.start(), "left")
    with pytest.raises(NotFound, match="there is no instance nobody"):
        await reached(world, "nobody")


async def test_a_step_of_another_node(autojump_clock: object, nodes: Any, fork: str, reached: Any) -> None:
    here, there = await nodes.start(), await nodes.start()
    await here.deploy(fork)
    instance_id = await here.start()
    peer = await there.connect("right")
    offer = await peer.task()
    await peer.complete(offer)
    found, seconds = await reached(here, instance_id, "second")
    assert found.element_id == "second"
    assert seconds < 1.5
