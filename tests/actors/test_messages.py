"""Messages: published before or after somebody waits, each is correlated once, in order (consistency.md 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from stellwerk.errors import InvariantBroken, LimitExceeded, StoreUnavailable
from stellwerk.limits import Limits
from stellwerk.ports import InstanceFilter, TaskQuery
from stellwerk.wire.messages import Ack, Revoked

CATCH = """<startEvent id="s"/><intermediateCatchEvent id="wait"><messageEventDefinition messageRef="paid"/>
  </intermediateCatchEvent><endEvent id="e"/>"""
CATCH_TWICE = """<startEvent id="s"/>
  <intermediateCatchEvent id="one"><messageEventDefinition messageRef="paid"/></intermediateCatchEvent>
  <serviceTask id="work" stellwerk:topic="work"/>
  <intermediateCatchEvent id="two"><messageEventDefinition messageRef="paid"/></intermediateCatchEvent>
  <endEvent id="e"/>"""
STARTED = """<startEvent id="s"><messageEventDefinition messageRef="order"/></startEvent>
  <serviceTask id="work" stellwerk:topic="work"/><endEvent id="e"/>"""
BOUNDARY = """<startEvent id="s"/><serviceTask id="work" stellwerk:topic="work"/>
  <boundaryEvent id="told" attachedToRef="work" cancelActivity="{}"><messageEventDefinition messageRef="news"/>
  </boundaryEvent><serviceTask id="other" stellwerk:topic="other"/><endEvent id="e"/><endEvent id="f"/>"""


@pytest.fixture
def catch(flow: Any) -> str:
    return CATCH + str(flow("s wait e"))


@pytest.fixture
def started(flow: Any) -> str:
    return STARTED + str(flow("s work e"))


@pytest.fixture
def boundary(flow: Any) -> Any:
    return lambda interrupting: BOUNDARY.format(interrupting) + flow("s work e", "told other f")


async def status(world: Any, instance_id: str, seconds: float = 3) -> str:
    return str((await world.node.wait_for_end(instance_id, timeout_seconds=seconds)).status)


async def variables(world: Any, instance_id: str) -> dict[str, object]:
    return dict((await world.node.view(instance_id)).variables)


async def instances(world: Any) -> Sequence[Any]:
    return await world.node.instances()  # type: ignore[no-any-return]


@pytest.mark.parametrize("first", ["message", "subscription"])
async def test_rule_6_a_message_meets_its_subscription_whichever_comes_first(
    autojump_clock: object, site: Any, catch: str, first: str
) -> None:
    world = await site.start()
    await world.deploy(catch)
    if first == "message":
        await world.node.publish_message("paid", "order-1", {"amount": 5})
    instance_id = await world.node.start_instance("p", {}, business_key="order-1")
    if first == "subscription":
        assert await status(world, instance_id) == "RUNNING"
        await world.node.publish_message("paid", "order-1", {"amount": 5})
    began = trio.current_time()
    assert await status(world, instance_id) == "COMPLETED"
    assert trio.current_time() - began < 0.1, "at once, not by the poll"
    assert await variables(world, instance_id) == {"amount": 5}


async def test_rule_6_one_message_is_for_one_of_two_subscriptions(
    autojump_clock: object, site: Any, catch: str
) -> None:
    world = await site.start()
    await world.deploy(catch)
    both = [await world.node.start_instance("p", {}, business_key="k") for _ in range(2)]
    await world.node.publish_message("paid", "k", {})
    await trio.sleep(5)
    assert sorted([await status(world, instance_id, 0) for instance_id in both]) == ["COMPLETED", "RUNNING"]
    await world.node.publish_message("paid", "k", {})
    assert [await status(world, instance_id) for instance_id in both] == ["COMPLETED", "COMPLETED"]


async def test_rule_6_one_key_is_served_in_the_order_of_arrival(autojump_clock: object, site: Any, flow: Any) -> None:
    """Also when many arrive within one millisecond."""
    world = await site.start()
    await world.deploy(CATCH_TWICE.replace("paid", "step") + flow("s one work two one"))
    peer = await world.connect("work")
    for number in range(12):
        await world.node.publish_message("step", "k", {"number": number})
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    seen = []
    for number in range(0, 12, 2):
        offer = await peer.task()
        assert bytes(offer.variables) == b'{"number":%d}' % number
        seen.append(await peer.complete(offer))
        await trio.sleep(0.01)
        assert (await variables(world, instance_id))["number"] in (number + 1, number + 2)
    assert all(isinstance(answer, Ack) for answer in seen)


async def test_rule_6_order_holds_when_the_wall_clock_is_set_back(
    autojump_clock: object, world: Any, flow: Any
) -> None:
    await world.deploy(CATCH_TWICE + flow("s one work two e"))
    await world.node.publish_message("paid", "k", {"number": 1})
    world.clock.set_by_ms = -600_000
    await trio.sleep(1)
    await world.node.publish_message("paid", "k", {"number": 2})
    await world.node.start_instance("p", {}, business_key="k")
    offer = await (await world.connect("work")).task()
    assert bytes(offer.variables) == b'{"number":1}'


async def test_rule_6_order_holds_for_non_interrupting_boundary_events(
    autojump_clock: object, site: Any, boundary: Any
) -> None:
    world = await site.start()
    await world.deploy(boundary("false"))
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    for number in range(6):
        await world.node.publish_message("news", "k", {"number": number})
    await trio.sleep(0.5)
    peer = await world.connect("other", max_tasks=1)
    for _ in range(6):
        offer = await peer.task()
        assert str(offer.element_id) == "other"
        await peer.complete(offer)
    facts = [fact for step in (await world.node.view(instance_id)).steps for fact in step.facts]
    numbers = [dict(fact.variables)["number"] for fact in facts if type(fact).__name__ == "VariablesSet"]
    assert numbers == list(range(6))


async def test_a_message_is_kept_for_its_time_to_live(autojump_clock: object, site: Any, catch: str) -> None:
    world = await site.start()
    await world.deploy(catch)
    await world.node.publish_message("paid", "in-time", {}, ttl_ms=10_000)
    await world.node.publish_message("paid", "too-late", {}, ttl_ms=10_000)
    await trio.sleep(9)
    in_time = await world.node.start_instance("p", {}, business_key="in-time")
    assert await status(world, in_time, 0.5) == "COMPLETED"
    await trio.sleep(2)
    too_late = await world.node.start_instance("p", {}, business_key="too-late")
    await trio.sleep(120)
    assert await status(world, too_late, 0) == "RUNNING"
    await world.node.publish_message("paid", "too-late", {})
    assert await status(world, too_late) == "COMPLETED"


@pytest.mark.parametrize("hours", [-2, 2])
async def test_rule_19_a_message_is_kept_for_its_time_to_live_however_the_wall_clock_is_set(
    autojump_clock: object, site: Any, catch: str, hours: int
) -> None:
    world = await site.start()
    await world.deploy(catch)
    await world.node.publish_message("paid", "before", {}, message_id="m-before")
    world.clock.set_by_ms = hours * 3_600_000
    await world.node.publish_message("paid", "behind", {}, message_id="m-behind")
    await trio.sleep(65)  # messages whose time has ended have been dropped by now
    world.clock.set_by_ms = 0
    await trio.sleep(65)
    waiting = await world.node.waiting_messages()
    assert [(view.message_id, view.expires_at_ms - view.published_at_ms) for view in waiting] == [
        ("m-before", 3_600_000),
        ("m-behind", 3_600_000),
    ]
    world.clock.set_by_ms = hours * 3_600_000
    for key in ("before", "behind"):
        instance_id = await world.node.start_instance("p", {}, business_key=key)
        assert await status(world, instance_id) == "COMPLETED"


async def test_rule_19_a_message_ends_after_its_time_to_live_although_the_wall_clock_was_set_back(
    autojump_clock: object, site: Any, catch: str
) -> None:
    world = await site.start()
    await world.deploy(catch)
    await world.node.publish_message("paid", "k", {}, message_id="m", ttl_ms=10_000)
    world.clock.set_by_ms = -3_600_000
    await trio.sleep(11)
    assert await world.node.waiting_messages() == []
    assert (await world.node.message("m")).status.value == "expired-or-unknown"
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    assert await status(world, instance_id) == "RUNNING"


async def test_a_time_to_live_of_zero_reaches_only_who_waits_already(
    autojump_clock: object, site: Any, catch: str
) -> None:
    world = await site.start()
    await world.deploy(catch)
    waiting = await world.node.start_instance("p", {}, business_key="a")
    await trio.sleep(0.1)
    for key in ("a", "b"):
        await world.node.publish_message("paid", key, {}, ttl_ms=0)
    assert await status(world, waiting, 0.5) == "COMPLETED"
    await trio.sleep(2)
    late = await world.node.start_instance("p", {}, business_key="b")
    assert await status(world, late) == "RUNNING"


async def test_the_same_message_id_twice_is_one_message(autojump_clock: object, site: Any, catch: str) -> None:
    world = await site.start()
    await world.deploy(catch)
    first = await world.node.start_instance("p", {}, business_key="k")
    await world.node.publish_message("paid", "k", {"try": 1}, message_id="m-1")
    assert await status(world, first) == "COMPLETED"
    second = await world.node.start_instance("p", {}, business_key="k")
    await world.node.publish_message("paid", "k", {"try": 2}, message_id="m-1")
    assert await status(world, second) == "RUNNING"


async def test_another_key_or_name_is_not_correlated(autojump_clock: object, site: Any, catch: str) -> None:
    world = await site.start()
    await world.deploy(catch)
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    for name, key in (("paid", "other"), ("paid", ""), ("Paid", "k"), ("sent", "k"), ("paid", "K")):
        await world.node.publish_message(name, key, {})
    await trio.sleep(3)
    assert await status(world, instance_id, 0) == "RUNNING"


ZEEBE = b"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
  xmlns:zeebe="http://camunda.org/schema/zeebe/1.0">
  <message id="m" name="paid"><extensionElements><zeebe:subscription correlationKey="=order.id"/></extensionElements>
  </message><process id="z" isExecutable="true"><startEvent id="s"/><sequenceFlow id="f" sourceRef="s" targetRef="w"/>
  <intermediateCatchEvent id="w"><messageEventDefinition messageRef="m"/></intermediateCatchEvent>
  <sequenceFlow id="g" sourceRef="w" targetRef="e"/><endEvent id="e"/></process></definitions>"""


async def test_the_model_may_compute_the_key(autojump_clock: object, site: Any) -> None:
    world = await site.start()
    await world.node.deploy([("z.bpmn", ZEEBE)])
    seven, eight = [await world.node.start_instance("z", {"order": {"id": number}}) for number in (7, 8)]
    await world.node.publish_message("paid", "8", {})
    assert await status(world, eight) == "COMPLETED"
    assert await status(world, seven) == "RUNNING"


# --- boundary events -----------------------------------------------------------------------------------------------


async def test_fault_70_an_interrupting_message_revokes_the_leased_task(
    autojump_clock: object, site: Any, boundary: Any
) -> None:
    world = await site.start()
    await world.deploy(boundary("true"))
    peer = await world.connect("work", "other")
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    offer = await peer.task()
    await world.node.publish_message("news", "k", {"why": "cancelled"})
    revoked = await peer.next(Revoked)
    assert [(lease.task_id, lease.fence) for lease in revoked.leases] == [(offer.task_id, offer.fence)]
    answer: Any = await peer.complete(offer)
    assert answer.code in ("cancelled", "lease_lost")
    other = await peer.task()
    assert bytes(other.variables) == b'{"why":"cancelled"}'
    await peer.complete(other)
    assert await status(world, instance_id) == "COMPLETED"


async def test_a_non_interrupting_message_happens_each_time_beside_the_task(
    autojump_clock: object, site: Any, boundary: Any
) -> None:
    world = await site.start()
    await world.deploy(boundary("false"))
    peer = await world.connect("work")
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    offer = await peer.task()
    for _ in range(3):
        await world.node.publish_message("news", "k", {})
    await trio.sleep(0.5)
    assert isinstance(await peer.complete(offer), Ack)
    other = await world.connect("other", max_tasks=1)
    for _ in range(3):
        assert isinstance(await other.complete(await other.task()), Ack)
    assert await status(world, instance_id) == "COMPLETED"
    await world.node.publish_message("news", "k", {})
    await trio.sleep(2)
    assert len(await world.store.tasks(TaskQuery(instance_id=instance_id))) == 4


async def test_a_message_without_room_waits_and_the_engine_stays_at_rest(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, boundary: Any
) -> None:
    """A refusal that will be the same at once is not asked for again at once."""
    world = await start_node(nursery, limits=Limits(instance_tokens_max=2))
    await world.deploy(boundary("false"))
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    await world.node.publish_message("news", "k", {"number": 1})
    await trio.sleep(1)
    await world.node.publish_message("news", "k", {"number": 2})
    with trio.fail_after(20):
        await trio.sleep(10)
    peer = await world.connect("other")
    await peer.complete(await peer.task())
    assert bytes((await peer.task()).variables) == b'{"number":2}'
    assert await status(world, instance_id, 0) == "RUNNING"
    nursery.cancel_scope.cancel()


# --- start events --------------------------------------------------------------------------------------------------


async def test_rule_6_a_start_message_starts_one_instance(autojump_clock: object, site: Any, started: str) -> None:
    world = await site.start()
    await world.deploy(started)
    for _ in range(3):
        await world.node.publish_message("order", "k-1", {"total": 9}, message_id="m-1")
    await trio.sleep(3)
    (one,) = await instances(world)
    assert (one.business_key, one.status) == ("k-1", "RUNNING")
    assert await variables(world, one.instance_id) == {"total": 9}


async def test_rule_6_a_start_message_waits_for_its_process(autojump_clock: object, site: Any, started: str) -> None:
    world = await site.start()
    await world.node.publish_message("order", "k-1", {})
    await trio.sleep(3)
    assert not await instances(world)
    await world.deploy(started)
    await trio.sleep(0.5)
    assert len(await instances(world)) == 1


async def test_rule_6_a_start_message_is_tried_again_after_a_refused_commit(
    autojump_clock: object, world: Any, started: str
) -> None:
    await world.deploy(started)
    await world.node.publish_message("order", "k-1", {})
    world.store.refuse_changesets = 2
    await trio.sleep(5)
    assert world.store.refuse_changesets == 0
    assert len(await instances(world)) == 1


async def test_rule_6_the_instance_id_is_derived_from_the_message(
    autojump_clock: object, site: Any, started: str
) -> None:
    """The node dies with the start under way: the next one starts the same instance, no second one."""
    world = await site.start()
    await world.deploy(started)
    await world.node.publish_message("order", "k-1", {}, message_id="m-1")
    await trio.sleep(3)
    (before,) = await instances(world)
    world = await site.restart()
    await world.node.publish_message("order", "k-1", {}, message_id="m-1")
    await trio.sleep(3)
    (after,) = await instances(world)
    assert after.instance_id == before.instance_id


async def test_rule_6_a_start_message_that_was_forgotten_starts_no_second_instance(
    autojump_clock: object, site: Any, started: str
) -> None:
    """Its time to live is over and its row is dropped. Sent again, it still names the instance that it started."""
    world = await site.start()
    await world.deploy(started)
    await world.node.publish_message("order", "k-1", {}, message_id="m-1", ttl_ms=5_000)
    await trio.sleep(200)
    await world.node.publish_message("order", "k-1", {}, message_id="m-1", ttl_ms=60_000)
    await world.node.publish_message("order", "k-2", {}, message_id="m-2", ttl_ms=60_000)
    await trio.sleep(10)
    assert sorted(row.business_key for row in await instances(world)) == ["k-1", "k-2"]


async def test_a_waiting_instance_goes_before_a_new_one(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start()
    body = """<startEvent id="s"><messageEventDefinition messageRef="order"/></startEvent>
      <receiveTask id="again" messageRef="order"/><endEvent id="e"/>"""
    await world.deploy(body + flow("s again e"))
    for _ in range(3):
        await world.node.publish_message("order", "k", {})
        await trio.sleep(0.1)
    assert sorted(row.status for row in await instances(world)) == ["COMPLETED", "RUNNING"]


async def test_a_start_message_that_cannot_start_holds_up_no_other(
    autojump_clock: object, site: Any, started: str, catch: str
) -> None:
    """The definition of one message cannot be read any more: the others are correlated."""
    world = await site.start()
    await world.deploy(started)
    await world.deploy(catch, "q")
    waiting = await world.node.start_instance("q", {}, business_key="k")
    cache = world.node.definition_cache
    intact = cache.get

    async def get(definition_id: str) -> Any:
        if definition_id == "p:1":
            raise InvariantBroken("the stored definition cannot be read any more")
        return await intact(definition_id)

    cache.get = get
    await world.node.publish_message("order", "k", {})
    await world.node.publish_message("paid", "k", {})
    assert await status(world, waiting) == "COMPLETED"
    cache.get = intact
    await trio.sleep(2)
    assert len(await world.node.instances(InstanceFilter(process_key="p"))) == 1


# --- publishing ----------------------------------------------------------------------------------------------------


async def test_publishing_answers_when_it_is_durable(autojump_clock: object, world: Any, catch: str) -> None:
    await world.deploy(catch)
    world.store.unavailable = True
    with pytest.raises(StoreUnavailable):
        await world.node.publish_message("paid", "k", {}, message_id="m-1")
    world.store.unavailable = False
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    assert await status(world, instance_id) == "RUNNING"
    await world.node.publish_message("paid", "k", {}, message_id="m-1")
    assert await status(world, instance_id) == "COMPLETED"


async def test_too_much_is_refused_before_it_is_stored(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery
) -> None:
    world = await start_node(nursery, limits=Limits(payload_bytes_max=100))
    with pytest.raises(LimitExceeded):
        await world.node.publish_message("paid", "k", {"text": "x" * 200})
    nursery.cancel_scope.cancel()
