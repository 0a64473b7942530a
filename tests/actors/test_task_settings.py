"""What an operator sets on open tasks: attempts left and priority; and that every node's hand-out follows."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.errors import Conflict, InvalidInput, NotFound
from stellwerk.ports import TaskQuery
from stellwerk.wire.messages import Ack, Fail, Revoked


async def fail(peer: Any, offer: Any) -> None:
    ref = peer.ref()
    await peer.say(Fail(ref, offer.task_id, offer.fence, "it broke", retry_after_ms=0))
    assert isinstance(await peer.answer(offer, ref), Ack)


async def the_task(world: Any, instance_id: str) -> Any:
    (found,) = await world.store.tasks(TaskQuery(instance_id=instance_id))
    return found


# --- attempts ------------------------------------------------------------------------------------------------------


async def test_a_leased_task_gets_another_attempt(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task('stellwerk:retries="1"'))
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    await world.node.set_task_retries(offer.task_id, 2)
    assert (await the_task(world, instance_id)).fence == offer.fence
    await fail(peer, offer)
    again = await peer.task()
    assert again.task_id == offer.task_id
    assert isinstance(await peer.complete(again), Ack)
    assert str((await world.node.wait_for_end(instance_id, timeout_seconds=1)).status) == "COMPLETED"


async def test_a_task_with_an_open_incident_is_tried_again_so_often(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task('stellwerk:retries="1"'), attributes='stellwerk:failurePolicy="incident"')
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    await fail(peer, offer)
    await world.node.wait_for_end(instance_id, timeout_seconds=5, or_incident=True)
    await world.node.set_task_retries(offer.task_id, 4)
    assert await world.node.incidents(instance_id) == []
    await peer.task()
    assert (await the_task(world, instance_id)).retries_left == 4


async def test_a_task_that_has_ended_is_not_tried_again(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    await peer.complete(offer)
    await world.node.wait_for_end(instance_id, timeout_seconds=1)
    before = await the_task(world, instance_id)
    with pytest.raises(Conflict, match=f"the task {offer.task_id} has ended: it is COMPLETED"):
        await world.node.set_task_retries(offer.task_id, 3)
    with pytest.raises(Conflict, match=f"the task {offer.task_id} has ended: it is COMPLETED"):
        await world.node.set_task_priority(offer.task_id, 3)
    assert await the_task(world, instance_id) == before


async def test_a_task_that_nobody_knows_is_not_found(autojump_clock: object, world: Any) -> None:
    with pytest.raises(NotFound, match="there is no task gone"):
        await world.node.set_task_retries("gone", 3)
    with pytest.raises(NotFound, match="there is no task gone"):
        await world.node.set_task_priority("gone", 3)


@pytest.mark.parametrize("retries", [0, -1, 2**31])
async def test_fault_86_a_number_of_attempts_that_makes_no_sense_is_refused(
    autojump_clock: object, world: Any, one_task: Any, retries: int
) -> None:
    await world.deploy(one_task())
    task = await the_task(world, await world.start())
    with pytest.raises(InvalidInput, match=r"retries must be 1 to 2147483647 @ \$\.retries"):
        await world.node.set_task_retries(task.task_id, retries)
    for priority in (2**31, -(2**31)):
        with pytest.raises(InvalidInput, match=r"a priority is -2147483647 to 2147483647 @ \$\.priority"):
            await world.node.set_task_priority(task.task_id, priority)
    assert await the_task(world, task.instance_id) == task


# --- giving up -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["incident", "compensate"])
async def test_a_task_that_is_given_up_waits_with_an_incident_whatever_the_policy(
    autojump_clock: object, world: Any, one_task: Any, policy: str
) -> None:
    await world.deploy(one_task(), attributes=f'stellwerk:failurePolicy="{policy}"')
    instance_id = await world.start()
    task = await the_task(world, instance_id)
    await world.node.give_up_task(task.task_id, "enough")
    (incident,) = await world.node.incidents(instance_id)
    assert (incident["kind"], incident["message"], incident["task_id"]) == ("retries_exhausted", "enough", task.task_id)
    await world.node.give_up_task(task.task_id, "again")  # is given up already
    assert await world.node.incidents(instance_id) == [incident]
    peer = await world.connect("work")
    with trio.move_on_after(60) as waited:
        await peer.task()
    assert waited.cancelled_caught
    await world.node.set_task_retries(task.task_id, 2)
    assert isinstance(await peer.complete(await peer.task()), Ack)
    assert str((await world.node.wait_for_end(instance_id, timeout_seconds=1)).status) == "COMPLETED"


async def test_who_has_a_task_that_is_given_up_is_told_and_its_result_is_not_taken(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    await world.node.give_up_task(offer.task_id, "enough")
    revoked = await peer.next(Revoked)
    assert [(lease.task_id, lease.fence) for lease in revoked.leases] == [(offer.task_id, offer.fence)]
    assert not isinstance(await peer.complete(offer), Ack)
    assert str((await the_task(world, instance_id)).state.value) == "FAILED"
    assert len(await world.node.incidents(instance_id)) == 1


async def test_a_task_that_has_ended_is_not_given_up(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    await peer.complete(offer)
    await world.node.wait_for_end(instance_id, timeout_seconds=1)
    with pytest.raises(Conflict, match=f"the task {offer.task_id} has ended: it is COMPLETED"):
        await world.node.give_up_task(offer.task_id, "no")
    with pytest.raises(NotFound, match="there is no task gone"):
        await world.node.give_up_task("gone", "no")


# --- priority ------------------------------------------------------------------------------------------------------


async def second_offer(peer: Any, tasks: list[str]) -> Any:
    """The store was looked at for it just now: untold, the others go out as they are known for a while."""
    await peer.complete(await peer.task())
    offer = await peer.task()
    assert offer.task_id == tasks[1]
    return offer


async def order_of_the_others(peer: Any, offer: Any, count: int) -> list[str]:
    order = []
    for _ in range(count):
        await peer.complete(offer)
        offer = await peer.task()
        order.append(offer.task_id)
    return order


async def test_a_task_of_higher_priority_goes_out_before_those_that_wait_longer(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=1)
    tasks = [(await the_task(world, await world.start())).task_id for _ in range(5)]
    offer = await second_offer(peer, tasks)
    await world.node.set_task_priority(tasks[4], 1)
    await world.node.set_task_priority(tasks[2], -1)
    assert await order_of_the_others(peer, offer, 3) == [tasks[4], tasks[3], tasks[2]]


async def test_a_leased_task_keeps_its_lease_and_its_next_attempt_goes_first(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=1)
    tasks = [(await the_task(world, await world.start())).task_id for _ in range(2)]
    offer = await peer.task()
    await world.node.set_task_priority(offer.task_id, 9)
    await fail(peer, offer)
    again = await peer.task()
    assert [offer.task_id, again.task_id] == [tasks[0], tasks[0]]


@pytest.mark.parametrize("hints", [True, False])
async def test_other_nodes_hand_out_in_the_new_order(
    autojump_clock: object, nodes: Any, one_task: Any, hints: bool
) -> None:
    """At once where they hear of it, else with their next look at the store."""
    if not hints:
        nodes.lose_hints()
    a, b = await nodes.start(), await nodes.start()
    await a.deploy(one_task())
    tasks = [(await the_task(a, await a.start())).task_id for _ in range(5)]
    peer = await b.connect("work", max_tasks=1)
    offer = await second_offer(peer, tasks)
    await a.node.set_task_priority(tasks[4], 1)
    await trio.sleep(0.1 if hints else 2)
    assert await order_of_the_others(peer, offer, 3) == [tasks[4], tasks[2], tasks[3]]
