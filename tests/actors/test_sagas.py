"""Sagas with real workers: what was done is undone in reverse order, each thing once (requirement E4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from stellwerk.errors import StellwerkError
from stellwerk.ports import TaskQuery
from stellwerk.wire.messages import Ack, BpmnErrorReport, Fail, Tasks

TOPICS = ("flight", "hotel", "car", "pay", "no-flight", "no-hotel", "no-car", "manual", "tell")


def step(name: str) -> str:
    """A task with its undoing."""
    return f"""<serviceTask id="{name}" stellwerk:topic="{name}"/>
      <boundaryEvent id="undo-{name}" attachedToRef="{name}"><compensateEventDefinition/></boundaryEvent>
      <serviceTask id="no-{name}" stellwerk:topic="no-{name}" stellwerk:retries="1" isForCompensation="true"/>
      <association id="way-{name}" sourceRef="undo-{name}" targetRef="no-{name}" associationDirection="One"/>"""


PAY = '<serviceTask id="pay" stellwerk:topic="pay" stellwerk:retries="2"/>'


@pytest.fixture
def trip(flow: Any) -> str:
    body = f'<startEvent id="s"/>{step("flight")}{step("hotel")}{step("car")}{PAY}<endEvent id="e"/>'
    return str(body + flow("s flight hotel car pay e"))


@pytest.fixture
def nested(flow: Any) -> str:
    """The hotel and the car are booked in a subprocess that is complete when the payment fails."""
    inner = flow("is hotel car ie").replace("flow.", "inner.")
    body = f"""<startEvent id="s"/>{step("flight")}<subProcess id="stay"><startEvent id="is"/>{step("hotel")}
      {step("car")}<endEvent id="ie"/>{inner}</subProcess>{PAY}<endEvent id="e"/>"""
    return str(body + flow("s flight stay pay e"))


async def fail(peer: Any, offer: Any, retries: int | None = None) -> None:
    ref = peer.ref()
    await peer.say(Fail(ref, offer.task_id, offer.fence, "no money", retries=retries))
    assert isinstance(await peer.answer(offer, ref), Ack)


async def report(peer: Any, offer: Any) -> None:
    ref = peer.ref()
    raw = msgspec.Raw(b"{}")
    await peer.say(BpmnErrorReport(ref, offer.task_id, offer.fence, "broke", "no money", variables=raw, details=raw))
    assert isinstance(await peer.answer(offer, ref), Ack)


async def book(peer: Any, *names: str) -> None:
    """Complete these tasks; each must be offered alone."""
    for number, name in enumerate(names):
        offer = await peer.task()
        assert offer.element_id == name
        assert isinstance(await peer.complete(offer, last=name, number=number), Ack)


async def status(world: Any, instance_id: str, seconds: float = 1) -> str:
    return str((await world.node.wait_for_end(instance_id, timeout_seconds=seconds)).status)


async def states(world: Any, instance_id: str) -> dict[str, str]:
    return {task.element_id: task.state.value for task in await world.store.tasks(TaskQuery(instance_id=instance_id))}


@pytest.mark.parametrize("how", ["exhausted", "given up", "business error"])
async def test_E4_failure_undoes_in_reverse_order_one_after_the_other(
    autojump_clock: object, site: Any, trip: str, how: str
) -> None:
    world = await site.start()
    await world.deploy(trip)
    peer = await world.connect(*TOPICS)
    instance_id = await world.start(customer=7)
    await book(peer, "flight", "hotel", "car")
    match how:
        case "exhausted":
            await fail(peer, await peer.task())
            await fail(peer, await peer.task())
        case "given up":
            await fail(peer, await peer.task(), retries=0)
        case _:
            await report(peer, await peer.task())
    seen = []
    for name in ("no-car", "no-hotel", "no-flight"):
        offer = await peer.task()
        assert offer.element_id == name
        assert await status(world, instance_id, 0.1) == "RUNNING"
        seen.append(msgspec.json.decode(bytes(offer.variables)))
        assert isinstance(await peer.complete(offer), Ack)
    assert seen == [
        {"customer": 7, "last": "car", "number": 2},
        {"customer": 7, "last": "hotel", "number": 1},
        {"customer": 7, "last": "flight", "number": 0},
    ], "each sees the variables as they were when its activity was completed"
    assert await status(world, instance_id) == "FAILED"
    found = await states(world, instance_id)
    assert found.pop("pay") == "FAILED"
    assert set(found.values()) == {"COMPLETED"}


async def test_E4_a_failure_with_retries_left_is_no_failed_saga(autojump_clock: object, site: Any, trip: str) -> None:
    world = await site.start()
    await world.deploy(trip)
    peer = await world.connect(*TOPICS)
    instance_id = await world.start()
    await book(peer, "flight", "hotel", "car")
    await fail(peer, await peer.task())
    again = await peer.task()
    assert again.element_id == "pay"
    assert isinstance(await peer.complete(again), Ack)
    assert await status(world, instance_id) == "COMPLETED"
    assert set(await states(world, instance_id)) == {"flight", "hotel", "car", "pay"}


async def test_E4_a_failing_handler_is_an_incident_and_never_nests(
    autojump_clock: object, site: Any, trip: str
) -> None:
    world = await site.start()
    await world.deploy(trip)
    peer = await world.connect(*TOPICS)
    instance_id = await world.start()
    await book(peer, "flight", "hotel", "car")
    await fail(peer, await peer.task(), retries=0)
    await book(peer, "no-car")
    hotel = await peer.task()
    await fail(peer, hotel)
    await trio.sleep(60)
    (incident,) = await world.store.incidents(instance_id)
    assert (incident["kind"], incident["element_id"]) == ("compensation_failed", "no-hotel")
    assert await status(world, instance_id) == "RUNNING"
    assert "no-flight" not in await states(world, instance_id)
    world = await site.restart()
    peer = await world.connect(*TOPICS)
    await world.node.resolve_incident(incident["incident_id"])
    again = await peer.task()
    assert (again.task_id, again.element_id) == (hotel.task_id, "no-hotel")
    assert again.fence > hotel.fence
    assert isinstance(await peer.complete(again), Ack)
    await book(peer, "no-flight")
    assert await status(world, instance_id) == "FAILED"


@pytest.mark.parametrize("how", ["failure", "error"])
async def test_E4_what_a_completed_subprocess_did_is_undone(
    autojump_clock: object, site: Any, nested: str, how: str
) -> None:
    world = await site.start()
    await world.deploy(nested)
    peer = await world.connect(*TOPICS)
    instance_id = await world.start()
    await book(peer, "flight", "hotel", "car")
    pay = await peer.task()
    await (report(peer, pay) if how == "error" else fail(peer, pay, retries=0))
    await book(peer, "no-car", "no-hotel", "no-flight")
    assert await status(world, instance_id) == "FAILED"


async def test_E4_a_failure_inside_a_subprocess_undoes_both_levels(
    autojump_clock: object, site: Any, nested: str
) -> None:
    world = await site.start()
    await world.deploy(nested)
    peer = await world.connect(*TOPICS)
    instance_id = await world.start()
    await book(peer, "flight", "hotel")
    await fail(peer, await peer.task(), retries=0)
    await book(peer, "no-hotel", "no-flight")
    assert await status(world, instance_id) == "FAILED"


async def test_E4_each_thing_is_undone_once_whatever_the_store_refuses(
    autojump_clock: object, world: Any, trip: str
) -> None:
    """Every commit of the saga fails once; what is refused is asked for again."""
    await world.deploy(trip)
    peer = await world.connect(*TOPICS, lock_duration_ms=3_600_000)
    instance_id = await world.start()
    await book(peer, "flight", "hotel", "car")
    done: list[str] = []
    while not done or done[-1] != "no-flight":
        frame = await peer.next(Tasks)
        for offer in frame.tasks:
            world.store.refuse_changesets = 1
            if offer.element_id == "pay":
                ref = peer.ref()
                await peer.say(Fail(ref, offer.task_id, offer.fence, "no money", retries=0))
                assert not isinstance(await peer.answer(offer, ref), Ack)
                peer.holding[offer.task_id] = offer.fence
                await fail(peer, offer, retries=0)
                continue
            assert not isinstance(await peer.complete(offer), Ack)
            peer.holding[offer.task_id] = offer.fence
            assert isinstance(await peer.complete(offer), Ack)
            done.append(offer.element_id)
    assert done == ["no-car", "no-hotel", "no-flight"]
    assert await status(world, instance_id) == "FAILED"
    assert len(await world.store.tasks(TaskQuery(instance_id=instance_id))) == 7


async def test_a_saga_can_be_cancelled_while_it_compensates(autojump_clock: object, site: Any, trip: str) -> None:
    world = await site.start()
    await world.deploy(trip)
    peer = await world.connect(*TOPICS)
    instance_id = await world.start()
    await book(peer, "flight", "hotel", "car")
    await fail(peer, await peer.task(), retries=0)
    offer = await peer.task()
    await world.node.cancel_instance(instance_id, "by hand")
    assert await status(world, instance_id) == "CANCELLED"
    assert not isinstance(await peer.complete(offer), Ack)
    with pytest.raises(StellwerkError):
        await world.node.cancel_instance(instance_id, "twice")
    await trio.sleep(10)
    assert "no-hotel" not in await states(world, instance_id)
