"""Nobody starves behind somebody else's backlog: topics, filters and priorities as the means against it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import msgspec
import pytest
import trio

from stellwerk.actors.polls import TaskConditions
from stellwerk.limits import Limits
from stellwerk.ports import ReadyScan
from stellwerk.stores.memory import MemoryStore
from stellwerk.wire.messages import Subscribe, Tasks

BACKLOG = 1_000
OF_EACH_TENANT = """stellwerk:topic='="charge-" + tenant'"""
MODEL = '<startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="t"/><serviceTask id="t" {}/>' + (
    '<sequenceFlow id="f2" sourceRef="t" targetRef="e"/><endEvent id="e"/>'
)

CAMUNDA = (
    b"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
      xmlns:camunda="http://camunda.org/schema/1.0/bpmn"><process id="p" isExecutable="true">"""
    + MODEL.format('camunda:type="external" camunda:topic="charge-${tenant}"').encode()
    + b"</process></definitions>"
)


async def backlog(world: Any, attributes: str = OF_EACH_TENANT, number: int = BACKLOG) -> None:
    """Of tenant A, before B's one task."""
    await world.deploy(MODEL.format(attributes))
    for count in range(number):
        await world.start(tenant="a", number=count)
    await world.start(tenant="b", number=0)


def tenants(tasks: Any) -> list[str]:
    return [msgspec.json.decode(task.variables)["tenant"] for task in tasks]


async def delivered_after(peer: Any, tenant: str) -> int:
    """How many tasks of others a worker gets, and completes, before the first of this tenant."""
    for count in range(BACKLOG):
        offer = await peer.task()
        if tenants([offer]) == [tenant]:
            return count
        await peer.complete(offer)
    raise AssertionError(f"nothing of {tenant}")


# --- topics ----------------------------------------------------------------------------------------------------------


async def test_fault_102_a_pushed_worker_gets_the_task_of_a_quiet_tenants_topic_at_once(
    autojump_clock: object, world: Any
) -> None:
    await backlog(world)
    peer = await world.connect("charge-a", "charge-b", max_tasks=5)
    first, second = await peer.next(Tasks), await peer.next(Tasks)
    assert Counter(tenants([*first.tasks, *second.tasks])) == {"a": 5, "b": 1}


@pytest.mark.parametrize("topics", [("charge-a", "charge-b"), ("charge-b", "charge-a")], ids=" ".join)
async def test_fault_102_one_poll_of_several_topics_gets_tasks_of_each(
    autojump_clock: object, world: Any, poll: Any, topics: tuple[str, ...]
) -> None:
    await backlog(world, number=100)
    polled = await poll(world, *topics, max_tasks=10)
    assert Counter(tenants(polled.tasks)) == {"a": 9, "b": 1}


async def test_fault_102_polls_with_room_for_one_task_serve_their_topics_in_turn(
    autojump_clock: object, world: Any, poll: Any
) -> None:
    await backlog(world, number=100)
    order = ["charge-a", "charge-empty", "charge-b", "charge-empty-too"]
    served = [*[tenants((await poll(world, *order, max_tasks=1)).tasks) for _ in order]]
    assert Counter(tenant for one in served for tenant in one) == {"a": 3, "b": 1}


async def test_fault_102_room_that_some_topics_do_not_need_is_of_use_to_the_others(
    autojump_clock: object, world: Any, poll: Any
) -> None:
    await backlog(world, number=100)
    polled = await poll(world, "charge-empty", "charge-a", "charge-b", "charge-none", max_tasks=20)
    assert Counter(tenants(polled.tasks)) == {"a": 19, "b": 1}
    assert Counter(tenants((await poll(world, "charge-a", "charge-b")).tasks)) == {"a": 10}


async def test_fault_102_large_tasks_of_one_topic_leave_place_for_those_of_another(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, poll: Any
) -> None:
    limits = attrs.evolve(Limits(), frame_bytes_max=4_000, payload_bytes_max=1_000)
    world = await start_node(nursery, limits=limits)
    await world.deploy(MODEL.format(OF_EACH_TENANT))
    for _ in range(20):
        await world.start(tenant="a", text="x" * 900)
    await world.start(tenant="b")
    served = Counter(tenants((await poll(world, "charge-a", "charge-b")).tasks))
    assert served["b"] == 1
    assert served["a"] >= 2


async def test_fault_102_a_topic_that_is_empty_at_first_gets_its_tasks_as_they_come(
    autojump_clock: object, world: Any, poll: Any, wait_for_tasks: Any
) -> None:
    await world.deploy(MODEL.format(OF_EACH_TENANT))
    for tenant in ("a", "b"):
        waiting = await wait_for_tasks(world, "charge-a", "charge-b", max_tasks=1)
        await world.start(tenant=tenant)
        assert tenants(await waiting.tasks()) == [tenant]


async def test_fault_102_a_model_in_camundas_notation_has_a_topic_for_each_tenant_too(world: Any, poll: Any) -> None:
    await world.node.deploy([("camunda.bpmn", CAMUNDA)])
    for tenant in ("a", "b"):
        await world.start(tenant=tenant)
    assert tenants((await poll(world, "charge-b")).tasks) == ["b"]
    assert tenants((await poll(world, "charge-a")).tasks) == ["a"]


async def test_fault_102_topics_with_as_many_tasks_get_equal_parts_and_places_that_are_left_over_go_round(
    autojump_clock: object, world: Any, poll: Any
) -> None:
    await world.deploy(MODEL.format(OF_EACH_TENANT))
    for count in range(75):
        await world.start(tenant="abc"[count % 3])
    topics = ["charge-a", "charge-b", "charge-c"]
    for _ in range(2):
        assert Counter(tenants((await poll(world, *topics, max_tasks=9)).tasks)) == {"a": 3, "b": 3, "c": 3}
    of_ten = [Counter(tenants((await poll(world, *topics, max_tasks=10)).tasks)) for _ in range(3)]
    assert [sorted(counts.values()) for counts in of_ten] == [[3, 3, 4]] * 3
    assert sum(of_ten, Counter()) == {"a": 10, "b": 10, "c": 10}
    of_one = [tenants((await poll(world, *topics, max_tasks=1)).tasks) for _ in range(6)]
    assert of_one[:3] == of_one[3:]
    assert sorted(of_one[:3]) == [["a"], ["b"], ["c"]]


async def test_fault_102_so_it_is_for_a_poll_on_another_node_than_the_one_that_made_the_tasks(
    autojump_clock: object, nodes: Any, poll: Any
) -> None:
    maker, other = await nodes.start(), await nodes.start()
    await backlog(maker, number=30)
    began = trio.current_time()
    polled = await poll(other, "charge-a", "charge-empty", "charge-b", max_tasks=10)
    assert Counter(tenants(polled.tasks)) == {"a": 9, "b": 1}
    assert trio.current_time() - began < 0.5


class Slow(MemoryStore):
    """It tells what is READY in one topic after a while only."""

    async def ready_tasks(self, topic: str, limit: int) -> ReadyScan:
        if topic == "charge-b":
            await trio.sleep(3)
        return await super().ready_tasks(topic, limit)


async def test_fault_102_a_topic_of_which_the_store_tells_nothing_keeps_the_others_waiting_for_a_moment_only(
    autojump_clock: object, world: Any, start_node: Any, nursery: trio.Nursery, poll: Any
) -> None:
    world = await start_node(nursery, Slow(world.clock))
    await backlog(world, number=30)
    began = trio.current_time()
    assert tenants((await poll(world, "charge-a", "charge-b", max_tasks=10)).tasks) == ["a"] * 10
    assert trio.current_time() - began <= 0.5
    await trio.sleep(3)
    polled = await poll(world, "charge-a", "charge-b", max_tasks=10)
    assert Counter(tenants(polled.tasks)) == {"a": 9, "b": 1}


# --- filters ---------------------------------------------------------------------------------------------------------


async def test_fault_102_a_worker_with_a_filter_is_capacity_that_others_cannot_use_up(
    autojump_clock: object, world: Any, poll: Any
) -> None:
    """In one topic the oldest goes first, so that B waits behind all of A's, unless somebody is there for B alone."""
    await backlog(world, 'stellwerk:topic="charge"', number=50)
    for_all = await world.connect("charge", max_tasks=1)
    for_b = await world.connect("charge", max_tasks=1, filter='"tenant":"b"')
    assert await delivered_after(for_b, "b") == 0
    assert tenants([await for_all.task()]) == ["a"]
    await world.start(tenant="b", number=1)
    only_b = TaskConditions(variables=(("tenant", "b"),))
    assert tenants((await poll(world, "charge", conditions=only_b)).tasks) == ["b"]


async def test_fault_102_in_one_topic_without_filters_the_oldest_goes_first_whoever_it_belongs_to(
    autojump_clock: object, world: Any
) -> None:
    """What the worker guide says plainly: there are no weights."""
    await backlog(world, 'stellwerk:topic="charge"', number=30)
    assert await delivered_after(await world.connect("charge", max_tasks=1), "b") == 30


# --- priorities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["push", "poll"])
async def test_fault_101_an_old_task_overtakes_a_stream_of_urgent_ones_once_its_priority_is_raised(
    autojump_clock: object, world: Any, poll: Any, way: str
) -> None:
    """Nothing ages by itself; whoever watches the waiting times raises what has waited for too long."""
    await world.deploy(MODEL.format('stellwerk:topic="charge" stellwerk:priority="=urgency"'))
    await world.start(tenant="old", urgency=1)
    (old,) = await world.node.tasks()
    served: list[str] = []
    peer = await world.connect("charge", max_tasks=0)
    for count in range(20):
        if count == 10:
            await world.node.set_task_priority(old.task_id, 100)
        await world.start(tenant=f"urgent {count}", urgency=50)
        if way == "poll":
            served += tenants((await poll(world, "charge", max_tasks=1)).tasks)
        else:
            await peer.say(Subscribe("charge", max_tasks=1))
            offer = await peer.task()
            await peer.say(Subscribe("charge", max_tasks=0))
            await peer.complete(offer)
            served += tenants([offer])
    assert served == [*(f"urgent {count}" for count in range(10)), "old", *(f"urgent {n}" for n in range(10, 19))]
