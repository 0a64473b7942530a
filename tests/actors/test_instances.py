"""Instances under load: many commands at once, mailboxes that are full, a store that fails."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from stellwerk.actors import instance as module
from stellwerk.core.decide import decide
from stellwerk.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from stellwerk.limits import Limits
from stellwerk.ports import Changeset, RefusedChangeset, RefusedGuard, TaskQuery
from stellwerk.wire.messages import Ack, Complete, Nack, Tasks

WIDE = """<startEvent id="s"/><parallelGateway id="fork"/>{}<parallelGateway id="join"/><endEvent id="e"/>"""


@pytest.fixture
def wide(flow: Any) -> Any:
    def draw(width: int, element: str = '<serviceTask id="{}" stellwerk:topic="work"/>') -> str:
        names = [f"t{number}" for number in range(width)]
        body = WIDE.format("".join(element.format(name) for name in names))
        return str(body + flow("s fork", *(f"fork {name} join" for name in names), "join e"))

    return draw


async def test_a_wide_instance_needs_few_commits(autojump_clock: object, world: Any, wide: Any) -> None:
    await world.deploy(wide(200))
    instance_id = await world.start()
    peer = await world.connect("work", max_tasks=200)
    offers: list[Any] = []
    while len(offers) < 200:
        offers += (await peer.next(Tasks)).tasks
    before = len(world.store.transactions)
    await peer.say(*(Complete(number + 1, offer.task_id, offer.fence) for number, offer in enumerate(offers)))
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    steps = [
        operation
        for operations in world.store.transactions[before:]
        for operation in operations
        if isinstance(operation, Changeset)
    ]
    assert len(steps) <= 3
    for number in range(200):
        assert isinstance(await peer.next(Ack, lambda ack, ref=number + 1: ack.ref == ref), Ack)


async def test_many_refusals_in_one_batch_are_not_decided_over_and_over(
    autojump_clock: object, world: Any, wide: Any, monkeypatch: Any
) -> None:
    """All leases have run out; only two of two hundred are valid."""
    await world.deploy(wide(200))
    instance_id = await world.start()
    peer = await world.connect("work", max_tasks=200)
    offers: list[Any] = []
    while len(offers) < 200:
        offers += (await peer.next(Tasks)).tasks
    decided = 0

    def counting(state: Any, command: Any, context: Any) -> Any:
        nonlocal decided
        decided += 1
        return decide(state, command, context)

    monkeypatch.setattr(module, "decide", counting)
    requests = [
        Complete(number + 1, offer.task_id, offer.fence if number in (20, 170) else 1)
        for number, offer in enumerate(offers)
    ]
    await peer.say(*requests)
    for request in requests:
        answer = await peer.next(object, lambda message, ref=request.ref: getattr(message, "ref", None) == ref)
        assert isinstance(answer, Nack if request.fence == 1 else Ack)
    assert decided < 1_000
    states = Counter(task.state.value for task in await world.store.tasks(TaskQuery(instance_id=instance_id)))
    assert states == {"COMPLETED": 2, "LOCKED": 198}


async def test_a_view_shows_all_tasks_of_a_wide_instance(autojump_clock: object, world: Any, wide: Any) -> None:
    await world.deploy(wide(1_100))
    view = await world.node.view(await world.start())
    assert len(view.tasks) == 1_100


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "x" * 1_000])
async def test_texts_that_no_store_keeps_are_refused_at_the_door(
    autojump_clock: object, site: Any, wide: Any, text: str
) -> None:
    world = await site.start()
    await world.deploy(wide(2))
    node = world.node
    for ask in (
        node.start_instance("p", {}, business_key=text),
        node.start_instance("p", {}, request_id=text),
        node.publish_message(text, "k", {}),
        node.publish_message("m", text, {}),
        node.publish_message("m", "k", {}, message_id=text),
    ):
        with pytest.raises(InvalidInput):
            await ask
    for ttl_ms in (-1, 2**70):
        with pytest.raises(InvalidInput):
            await node.publish_message("m", "k", {}, ttl_ms=ttl_ms)
    assert not await node.instances()


async def test_a_full_mailbox_makes_senders_wait_and_loses_nothing(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, wide: Any
) -> None:
    world = await start_node(nursery, limits=Limits(mailbox_commands_max=3))
    await world.deploy(wide(40, '<userTask id="{}"/>'))
    instance_id = await world.start()
    rows = await world.node.user_tasks()
    done: list[str] = []

    async def complete(row: Any) -> None:
        await world.node.complete_user_task(row["user_task_id"], {row["element_id"]: True})
        done.append(row["element_id"])

    world.store.gate = trio.Event()
    async with trio.open_nursery() as people:
        for row in rows:
            people.start_soon(complete, row)
        await trio.sleep(1)
        assert not done
        assert "3/3" in repr(world.node._instances._live[instance_id][0].mailbox)
        people.start_soon(world.node.publish_message, "else", "where", {})
        await trio.sleep(1)
        world.store.gate.set()
    assert len(done) == 40
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "COMPLETED"
    assert len((await world.node.view(instance_id)).variables) == 40
    nursery.cancel_scope.cancel()


async def test_cancelling_gets_through_a_full_mailbox(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, wide: Any
) -> None:
    world = await start_node(nursery, limits=Limits(mailbox_commands_max=3))
    await world.deploy(wide(40, '<userTask id="{}"/>'))
    instance_id = await world.start()
    answers: Counter[str] = Counter()

    async def complete(row: Any) -> None:
        try:
            await world.node.complete_user_task(row["user_task_id"], {})
        except (Conflict, NotFound) as refused:
            answers[refused.code] += 1
        else:
            answers["done"] += 1

    world.store.gate = trio.Event()
    async with trio.open_nursery() as people:
        for row in (await world.node.user_tasks())[:20]:
            people.start_soon(complete, row)
        await trio.sleep(1)
        people.start_soon(world.node.cancel_instance, instance_id, "enough")
        await trio.sleep(1)
        world.store.gate.set()
    assert answers.total() == 20
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "CANCELLED"
    nursery.cancel_scope.cancel()


async def test_a_store_that_is_gone_for_a_while_answers_errors_and_loses_nothing(
    autojump_clock: object, world: Any, wide: Any
) -> None:
    await world.deploy(wide(3))
    instance_id = await world.start()
    peer = await world.connect("work", max_tasks=3, lock_duration_ms=600_000)
    offers: list[Any] = []
    while len(offers) < 3:
        offers += (await peer.next(Tasks)).tasks
    assert isinstance(await peer.complete(offers[0], a=1), Ack)
    world.store.unavailable = True
    answer = await peer.complete(offers[1], b=2)
    peer.holding[offers[1].task_id] = offers[1].fence
    assert isinstance(answer, Nack)
    assert (answer.code, answer.retryable) == ("unavailable", True)
    for ask in (world.start(), world.node.cancel_instance(instance_id, "no"), world.node.publish_message("m", "k", {})):
        with pytest.raises(StoreUnavailable):
            await ask
    await trio.sleep(20)
    world.store.unavailable = False
    assert (await world.node.view(instance_id)).variables == {"a": 1}
    for offer in offers[1:]:
        assert isinstance(await peer.complete(offer, b=2), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    again = await world.start()
    frame = await peer.next(Tasks)
    assert frame.tasks[0].process_instance_id == again


async def test_one_result_that_the_store_cannot_hold_is_refused_alone(
    autojump_clock: object, world: Any, wide: Any
) -> None:
    """The others of its batch are done, and the instance works on."""
    await world.deploy(wide(5))
    instance_id = await world.start()
    peer = await world.connect("work", max_tasks=5, lock_duration_ms=600_000)
    offers: list[Any] = []
    while len(offers) < 5:
        offers += (await peer.next(Tasks)).tasks
    poison = offers[1].task_id
    intact = world.store.transact

    async def transact(operations: Any) -> Any:
        outcomes = list(await intact([item for item in operations if not is_poison(item)]))
        return [
            RefusedChangeset(RefusedGuard.DATA, "ValueError: too odd") if is_poison(item) else outcomes.pop(0)
            for item in operations
        ]

    def is_poison(operation: Any) -> bool:
        return isinstance(operation, Changeset) and any(ending.task_id == poison for ending in operation.endings)

    world.store.transact = transact
    await peer.say(*(Complete(number + 1, offer.task_id, offer.fence) for number, offer in enumerate(offers)))
    for number, offer in enumerate(offers):
        answer = await peer.answer(offer, number + 1)
        assert isinstance(answer, Nack if offer.task_id == poison else Ack), number
    world.store.transact = intact
    peer.holding[poison] = offers[1].fence
    assert isinstance(await peer.complete(offers[1]), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"


async def test_passivated_instances_take_commands_as_they_leave(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, wide: Any
) -> None:
    """Far more instances than may live at once, with small mailboxes."""
    world = await start_node(nursery, limits=Limits(mailbox_commands_max=1, live_instances_max=2, instance_idle_ms=1))
    await world.deploy(wide(6, '<userTask id="{}"/>'))
    instances = [await world.start() for _ in range(10)]
    async with trio.open_nursery() as people:
        for number, row in enumerate(await world.node.user_tasks()):
            people.start_soon(_later, number % 7 / 3, world.node.complete_user_task, row["user_task_id"], {})
    for instance_id in instances:
        assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    await trio.sleep(5)
    assert world.node.statistics()["instances_live"] == 0
    nursery.cancel_scope.cancel()


async def _later(seconds: float, function: Any, *arguments: Any) -> None:
    await trio.sleep(seconds)
    await function(*arguments)


async def test_rule_1_two_nodes_on_one_store_step_one_instance(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, wide: Any
) -> None:
    """What a node has in memory is old after each step of the other: it reads again and decides again."""
    left = await start_node(nursery)
    right = await start_node(nursery, store=left.store, seed=2)
    await left.deploy(wide(12, '<userTask id="{}"/>'))
    instance_id = await left.start()
    rows = list(await left.node.user_tasks())
    for number, row in enumerate(rows[:6]):
        await (left, right)[number % 2].node.complete_user_task(row["user_task_id"], {row["element_id"]: number})
    async with trio.open_nursery() as people:
        for number, row in enumerate(rows[6:]):
            world = (left, right)[number % 2]
            people.start_soon(world.node.complete_user_task, row["user_task_id"], {row["element_id"]: number})
    assert (await right.node.wait_for_end(instance_id, timeout_seconds=1)).status == "COMPLETED"
    view = await left.node.view(instance_id)
    assert len(view.variables) == 12
    assert [step.version for step in view.steps] == list(range(1, view.summary.version + 1))
    nursery.cancel_scope.cancel()


async def test_commands_for_unknown_instances_are_not_found_and_leave_nothing(
    autojump_clock: object, world: Any
) -> None:
    for _ in range(3):
        with pytest.raises(NotFound):
            await world.node.cancel_instance("nobody", "why")
        with pytest.raises(NotFound):
            await world.node.complete_user_task("nothing", {})
    await trio.sleep(60)
    assert world.node.statistics()["instances_live"] == 0


async def test_E1_a_fault_that_one_command_meets_refuses_no_other(
    autojump_clock: object, world: Any, wide: Any, monkeypatch: Any
) -> None:
    await world.deploy(wide(5))
    instance_id = await world.start()
    peer = await world.connect("work", max_tasks=5, lock_duration_ms=600_000)
    offers: list[Any] = []
    while len(offers) < 5:
        offers += (await peer.next(Tasks)).tasks

    def faulty(state: Any, command: Any, context: Any) -> Any:
        if getattr(command, "task_id", None) == offers[2].task_id:
            raise ZeroDivisionError("a mistake of ours")
        return decide(state, command, context)

    monkeypatch.setattr(module, "decide", faulty)
    await peer.say(*(Complete(number + 1, offer.task_id, offer.fence) for number, offer in enumerate(offers)))
    answers = [await peer.answer(offer, number + 1) for number, offer in enumerate(offers)]
    assert [getattr(answer, "code", "ack") for answer in answers] == ["ack", "ack", "internal", "ack", "ack"]
    monkeypatch.setattr(module, "decide", decide)
    peer.holding[offers[2].task_id] = offers[2].fence
    assert isinstance(await peer.complete(offers[2]), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "COMPLETED"


async def test_a_node_that_stops_leaves_nobody_waiting(autojump_clock: object, site: Any, wide: Any) -> None:
    """Requests under way, and those that come when it is too late, hear that the engine stops."""
    errors: list[str] = []

    async def hold_up(name: str) -> None:
        if name == "before-commit" and world.node.draining:
            await trio.sleep_forever()

    world = await site.start(pause_point=hold_up)
    await world.deploy(wide(2))
    instance_id = await world.start()

    async def ask(function: Any, *arguments: Any) -> None:
        try:
            await function(*arguments)
        except StoreUnavailable as error:
            errors.append(error.message)

    world.node.draining = True
    async with trio.open_nursery() as callers:
        callers.start_soon(ask, world.node.publish_message, "m", "k", {})
        callers.start_soon(ask, world.node.start_instance, "p", {})
        callers.start_soon(ask, world.node.cancel_instance, instance_id, "why")
        callers.start_soon(ask, world.deploy, wide(3))
        await trio.sleep(1)
        callers.start_soon(ask, world.node.publish_message, "m", "k", {})
        await trio.sleep(1)
        site.kill()
        await site.ended.wait()
        callers.start_soon(ask, world.node.publish_message, "m", "late", {})
    assert errors == ["the engine stops; the request may be repeated"] * 6
