"""Workers that fetch their tasks: what a poll gets and when it is answered, and what becomes of what nobody took."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from stellwerk.core.external_task import AttemptEnd, TaskState
from stellwerk.errors import Conflict, InvalidInput, NotFound, Overloaded, PeerError, StoreUnavailable
from stellwerk.limits import Limits
from stellwerk.wire.messages import Ack, Fail, Tasks

SINGLE = 'stellwerk:singleTry="true"'
KINDS = pytest.mark.parametrize("attributes", ["", SINGLE], ids=["retries", "single try"])


def numbers(tasks: Any) -> list[int]:
    return [msgspec.json.decode(task.variables)["number"] for task in tasks]


async def nothing_is_left(world: Any) -> None:
    """No lease, no subscription, no reservation of a poll that is over."""
    await trio.sleep(1)
    node = world.node
    assert (len(node.polling), len(node.leases), node.leases.under_way, len(node.doubts)) == (0, 0, 0, 0)
    dispatcher = node.live_topics.find("work")
    assert dispatcher is None or dispatcher.workers == 0


# --- when it is answered -------------------------------------------------------------------------------------------


async def test_I1_a_poll_gets_what_is_ready_at_once_in_the_order_of_hand_out(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    await world.deploy(one_task())
    for number in range(5):
        await world.start(number=number)
    began = trio.current_time()
    polled = await poll(world, "work", max_tasks=3, wait_ms=10_000)
    assert numbers(polled.tasks) == [0, 1, 2]
    assert {task.state for task in polled.tasks} == {TaskState.LOCKED}
    assert numbers((await poll(world, "work")).tasks) == [3, 4]
    assert trio.current_time() == began
    for task in polled.tasks:
        await world.node.complete_task(task.task_id, "w", None, fence=task.fence)
    assert [task.state.value for task in await world.node.tasks()] == ["COMPLETED"] * 3 + ["LOCKED"] * 2
    await nothing_is_left(world)


async def test_fault_7_without_a_wait_an_empty_answer_comes_at_once_and_with_one_when_time_is_up(
    autojump_clock: object, world: Any, poll: Any
) -> None:
    began = trio.current_time()
    assert not (await poll(world, "work")).tasks
    assert trio.current_time() == began
    assert not (await poll(world, "work", wait_ms=2_500)).tasks
    assert trio.current_time() == began + 2.5
    await nothing_is_left(world)


async def test_fault_11_a_poll_that_waits_is_answered_as_soon_as_there_is_a_task(
    autojump_clock: object, world: Any, one_task: Any, wait_for_tasks: Any
) -> None:
    await world.deploy(one_task())
    waiting = await wait_for_tasks(world, "work")
    await trio.sleep(1)
    began = trio.current_time()
    await world.start()
    (task,) = await waiting.tasks()
    assert trio.current_time() == began
    assert (task.attempt, task.lease.holder.worker_id) == (1, "w")


async def unlocked(world: Any, task: Any) -> float:
    await world.node.unlock_task(task.task_id, "first", fence=task.fence)
    return 0


async def retry_due(world: Any, task: Any) -> float:
    await world.node.fail_task(task.task_id, "first", "no", retry_after_ms=7_300, fence=task.fence)
    return 7.3


async def lock_expired(world: Any, task: Any) -> float:
    left = float(task.lease.until_ms - world.clock.wall_ms())
    return left / 1000


async def resumed(world: Any, task: Any) -> float:
    """From the incident, which stands for the suspension that other engines have."""
    await world.node.fail_task(task.task_id, "first", "no", retries=0, fence=task.fence)
    (incident,) = await world.node.incidents()
    await world.node.resolve_incident(incident["incident_id"], 2)
    return 0


@pytest.mark.parametrize("cause", [unlocked, retry_due, lock_expired, resumed])
async def test_fault_9_and_10_whatever_makes_a_task_ready_wakes_a_poll_then(
    autojump_clock: object, world: Any, one_task: Any, poll: Any, wait_for_tasks: Any, cause: Any
) -> None:
    await world.deploy(one_task())
    await world.start()
    (task,) = (await poll(world, "work", worker_id="first", lock_duration_ms=20_000)).tasks
    waiting = await wait_for_tasks(world, "work")
    await trio.sleep(1)
    began = trio.current_time()
    due = began + await cause(world, task)
    (again,) = await waiting.tasks()
    assert again.fence > task.fence
    assert due <= trio.current_time() < due + 0.05


async def test_fault_9_a_task_with_a_higher_priority_now_is_the_next_for_a_poll(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    await world.deploy(one_task())
    for number in range(4):
        await world.start(number=number)
    (first,) = (await poll(world, "work", max_tasks=1)).tasks  # the others are known by now
    ready = [task for task in await world.node.tasks() if task.state is TaskState.READY]
    await world.node.set_task_priority(ready[-1].task_id, 100)
    await world.node.set_task_priority(ready[0].task_id, -1)
    assert numbers([first]) == [0]
    assert [numbers((await poll(world, "work", max_tasks=1)).tasks) for _ in range(3)] == [[3], [2], [1]]


# --- whom it serves --------------------------------------------------------------------------------------------------


async def test_fault_1_a_client_that_has_gone_gets_nothing_and_the_next_one_gets_it_at_once(
    autojump_clock: object, world: Any, one_task: Any, wait_for_tasks: Any
) -> None:
    await world.deploy(one_task())
    dead = await wait_for_tasks(world, "work", worker_id="dead")
    dead.scope.cancel()
    await trio.sleep(0)
    await world.start()
    alive = await wait_for_tasks(world, "work", worker_id="alive")
    (task,) = await alive.tasks()
    assert (task.attempt, task.lease.holder.worker_id) == (1, "alive")


@KINDS
@pytest.mark.parametrize("at_birth", [False, True])
async def test_fault_1_what_is_being_locked_for_a_client_as_it_leaves_goes_back(
    autojump_clock: object, world: Any, one_task: Any, wait_for_tasks: Any, attributes: str, at_birth: bool
) -> None:
    await world.deploy(one_task(attributes))
    if not at_birth:
        await world.start()
    world.store.gate = trio.Event()
    dead = await wait_for_tasks(world, "work", worker_id="dead")
    if at_birth:
        world.nursery.start_soon(world.start)
        await trio.sleep(0.1)
    dead.scope.cancel()
    await trio.sleep(1)
    world.store.gate.set()
    alive = await wait_for_tasks(world, "work", worker_id="alive")
    (task,) = await alive.tasks()
    assert trio.current_time() < 3
    attempts = await world.store.attempts(task.task_id)
    assert [(attempt.worker_id, attempt.end) for attempt in attempts] == [("dead", AttemptEnd.RELEASED)]
    assert task.retries_left == task.retries
    await nothing_is_left(world)


@KINDS
async def test_fault_2_what_could_not_be_delivered_goes_back_at_once_without_using_a_retry(
    autojump_clock: object, world: Any, one_task: Any, poll: Any, wait_for_tasks: Any, attributes: str
) -> None:
    await world.deploy(one_task(attributes))
    await world.start()
    undelivered = await poll(world, "work", worker_id="dead")
    waiting = await wait_for_tasks(world, "work", worker_id="alive")
    began = trio.current_time()
    undelivered.give_back()
    undelivered.give_back()  # says nothing new
    (task,) = await waiting.tasks()
    assert trio.current_time() == began
    assert (task.retries_left, task.lock_expiries) == (task.retries, 0)
    assert task.lease.holder.worker_id == "alive"


async def test_fault_2_what_goes_back_goes_back_also_where_the_store_fails_meanwhile(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    await world.deploy(one_task(SINGLE))
    await world.start()
    undelivered = await poll(world, "work")
    world.store.unavailable = True
    undelivered.give_back()
    await trio.sleep(3)
    world.store.unavailable = False
    await trio.sleep(1)
    (task,) = await world.node.tasks()
    assert task.state is TaskState.READY
    await nothing_is_left(world)


async def test_fault_5_workers_that_are_killed_in_the_middle_lose_nothing(
    autojump_clock: object, world: Any, one_task: Any, wait_for_tasks: Any
) -> None:
    """A hundred tasks, and a worker that dies with every third poll as the store answers it."""
    await world.deploy(one_task())
    for number in range(100):
        await world.start(number=number)
    done = 0
    for turn in range(1_000):
        if done == 100:
            break
        if turn % 3 == 0:
            world.store.gate = trio.Event()
            killed = await wait_for_tasks(world, "work", max_tasks=7)
            killed.scope.cancel()
            await trio.sleep(0)
            world.store.gate.set()
            continue
        waiting = await wait_for_tasks(world, "work", max_tasks=7)
        for task in await waiting.tasks():
            await world.node.complete_task(task.task_id, "w", None, fence=task.fence)
            done += 1
    assert done == 100
    assert trio.current_time() < 25, "none of them waited for the end of a lock"
    assert {task.state for task in await world.node.tasks()} == {TaskState.COMPLETED}
    await nothing_is_left(world)


async def test_a_thousand_polls_whose_clients_die_leave_nothing_behind(
    autojump_clock: object, world: Any, one_task: Any, poll: Any, nursery: trio.Nursery
) -> None:
    """Those that are answered as their client dies give back what they got, as the HTTP server does for them."""

    async def client(name: str) -> None:
        (await poll(world, "work", "other", worker_id=name, wait_ms=60_000)).give_back()

    await world.deploy(one_task())
    tasks_before = len(nursery.child_tasks)
    for turn in range(1_000):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as clients:
                for worker in range(2):
                    clients.start_soon(client, f"w-{turn % 50}-{worker}")
                if turn % 20 == 0:
                    clients.start_soon(world.start)
                for _ in range(turn % 11):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
    await nothing_is_left(world)
    assert {task.state for task in await world.node.tasks()} == {TaskState.READY}
    assert len(nursery.child_tasks) == tasks_before
    assert len(world.node.polling.pullers) == 100
    await trio.sleep(61)
    assert len(world.node.polling.pullers) == 0


# --- how much it gets ------------------------------------------------------------------------------------------------


async def test_a_poll_on_several_topics_gets_no_more_than_it_asks_for_over_all(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    for topic in ("a", "b", "c"):
        await world.deploy(one_task().replace('stellwerk:topic="work"', f'stellwerk:topic="{topic}"'), topic)
        for number in range(5):
            await world.start(topic, number=number)
    asked = [len((await poll(world, "a", "b", "c", max_tasks=7)).tasks) for _ in range(3)]
    assert asked == [7, 7, 1]
    assert not (await poll(world, "a", "b", "c", max_tasks=7)).tasks


async def test_fault_14_tasks_that_do_not_fit_into_one_answer_come_in_several_and_none_is_locked_before(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any, poll: Any
) -> None:
    world = await start_node(nursery, limits=Limits(frame_bytes_max=1_000_000, payload_bytes_max=450_000))
    await world.deploy(one_task())
    for number in range(5):
        await world.start(number=number, text="x" * 400_000)
    seen: list[int] = []
    while len(seen) < 5:
        tasks = (await poll(world, "work")).tasks
        assert 1 <= len(tasks) <= 2
        seen += numbers(tasks)
        states = [task.state.value for task in await world.node.tasks()]
        assert states == ["LOCKED"] * len(seen) + ["READY"] * (5 - len(seen))
    assert seen == [0, 1, 2, 3, 4]
    assert {task.attempt for task in await world.node.tasks()} == {1}
    nursery.cancel_scope.cancel()


async def test_fault_59_a_task_that_cannot_be_delivered_is_an_incident_and_never_empties_the_answer(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any, poll: Any
) -> None:
    world = await start_node(nursery, limits=Limits(frame_bytes_max=10_000))
    await world.deploy(one_task())
    for number in range(5):
        await world.start(number=number, text="x" * (20_000 if number == 2 else 10))
    got: list[int] = []
    while tasks := (await poll(world, "work")).tasks:
        got += numbers(tasks)
    assert got == [0, 1, 3, 4]
    (incident,) = await world.node.incidents()
    assert incident["kind"] == "undeliverable"
    nursery.cancel_scope.cancel()


async def test_only_the_variables_that_are_asked_for_are_given(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    await world.deploy(one_task())
    await world.start(number=1, secret="s", region="eu")
    (task,) = (await poll(world, "work", variables=("number", "nothing"))).tasks
    assert msgspec.json.decode(task.variables) == {"number": 1}


# --- beside others ---------------------------------------------------------------------------------------------------


async def test_fault_101_polls_and_pushed_tasks_come_from_one_queue_in_one_order(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    await world.deploy(one_task(), "low")
    await world.deploy(one_task('stellwerk:priority="50"'), "high")
    for number in range(6):
        await world.start("low" if number % 2 else "high", number=number)
    assert numbers((await poll(world, "work", max_tasks=2)).tasks) == [0, 2]
    peer = await world.connect("work", max_tasks=2)
    frame = await peer.next(Tasks)
    assert numbers(frame.tasks) == [4, 1]
    assert numbers((await poll(world, "work", max_tasks=2)).tasks) == [3, 5]


async def test_a_task_that_a_pushed_worker_hands_back_goes_to_a_poll_that_waits(
    autojump_clock: object, world: Any, one_task: Any, wait_for_tasks: Any
) -> None:
    await world.deploy(one_task())
    await world.start()
    peer = await world.connect("work", max_tasks=1)
    offer = await peer.task()
    waiting = await wait_for_tasks(world, "work")
    await peer.say(Fail(peer.ref(), offer.task_id, offer.fence, "no", retry_after_ms=0, retries=2))
    assert isinstance(await peer.answer(offer, peer.refs), Ack)
    (task,) = await waiting.tasks()
    assert task.fence > offer.fence


async def test_two_polls_of_one_worker_get_different_tasks(
    autojump_clock: object, world: Any, one_task: Any, wait_for_tasks: Any
) -> None:
    await world.deploy(one_task())
    waiting = [await wait_for_tasks(world, "work", max_tasks=1) for _ in range(2)]
    for number in range(3):
        await world.start(number=number)
    got = [numbers(await one.tasks()) for one in waiting]
    assert sorted(got) == [[0], [1]]


# --- an engine that cannot -------------------------------------------------------------------------------------------


async def test_a_poll_ends_empty_when_the_node_drains_and_the_next_is_told_to_go_elsewhere(
    autojump_clock: object, world: Any, one_task: Any, poll: Any, wait_for_tasks: Any
) -> None:
    await world.deploy(one_task())
    waiting = await wait_for_tasks(world, "work")
    began = trio.current_time()
    await world.node.drain(30)
    assert not await waiting.tasks()
    assert trio.current_time() - began < 0.1
    await world.start()
    with pytest.raises(Overloaded):
        await poll(world, "work")
    with pytest.raises(Overloaded):
        await world.node.lock_task("t", "w", 30_000)
    await nothing_is_left(world)


async def test_a_drain_waits_for_leases_that_are_on_their_way_to_a_poll(
    autojump_clock: object, world: Any, one_task: Any, wait_for_tasks: Any
) -> None:
    await world.deploy(one_task())
    await world.start()
    world.store.gate = trio.Event()
    waiting = await wait_for_tasks(world, "work")

    async def answer_later() -> None:
        await trio.sleep(1)
        world.store.gate.set()

    world.nursery.start_soon(answer_later)
    await world.node.drain(30)
    (task,) = await waiting.tasks()
    assert task.state is TaskState.LOCKED
    await nothing_is_left(world)


async def test_where_the_store_cannot_lock_a_poll_says_so_and_later_ones_get_the_tasks(
    autojump_clock: object, world: Any, one_task: Any, wait_for_tasks: Any, poll: Any
) -> None:
    await world.deploy(one_task())
    await world.start()
    world.store.unavailable = True
    waiting = await wait_for_tasks(world, "work", wait_ms=0)
    await trio.sleep(10)
    assert isinstance(waiting.error, StoreUnavailable)
    world.store.unavailable = False
    await trio.sleep(3)
    assert len((await poll(world, "work")).tasks) == 1
    await nothing_is_left(world)


async def test_more_polls_than_there_may_be_are_refused_for_now(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, poll: Any, wait_for_tasks: Any
) -> None:
    world = await start_node(nursery, limits=Limits(polls_max=2))
    first, _ = [await wait_for_tasks(world, "work") for _ in range(2)]
    with pytest.raises(Overloaded) as refused:
        await poll(world, "work")
    assert refused.value.retryable
    first.scope.cancel()
    await trio.sleep(0.1)
    assert not (await poll(world, "work")).tasks
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"worker_id": ""}, "worker_id"),
        ({"worker_id": "w" * 201}, "worker_id"),
        ({"worker_id": "w\0"}, "worker_id"),
        ({"max_tasks": 0}, "max_tasks"),
        ({"max_tasks": 10_001}, "max_tasks"),
        ({"lock_duration_ms": 999}, "lock_duration_ms"),
        ({"lock_duration_ms": 86_400_001}, "lock_duration_ms"),
        ({"variables": ("x",) * 1_001}, "variables"),
    ],
)
async def test_a_poll_that_cannot_be_is_refused_with_what_is_wrong(
    autojump_clock: object, world: Any, poll: Any, options: Any, where: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"@ \$\.{where}"):
        await poll(world, "work", **options)
    with pytest.raises(InvalidInput, match=r"@ \$\.topic"):
        await poll(world, "")
    with pytest.raises(InvalidInput, match=r"@ \$\.topics"):
        await poll(world)


# --- one task by its id ----------------------------------------------------------------------------------------------


async def test_one_task_is_locked_by_its_id(autojump_clock: object, world: Any, one_task: Any, poll: Any) -> None:
    await world.deploy(one_task())
    for number in range(3):
        await world.start(number=number)
    (first,) = (await poll(world, "work", max_tasks=1)).tasks
    last = (await world.node.tasks())[-1]
    locked = await world.node.lock_task(last.task_id, "operator", 60_000)
    assert numbers(locked.tasks) == [2]
    with pytest.raises(Conflict):
        await world.node.lock_task(last.task_id, "another", 60_000)
    with pytest.raises(NotFound):
        await world.node.lock_task("no such", "another", 60_000)
    assert numbers((await poll(world, "work")).tasks) == [1]
    await world.node.complete_task(last.task_id, "operator", None)
    with pytest.raises(PeerError):
        await world.node.complete_task(last.task_id, "another", None)
    assert numbers([first]) == [0]
    await nothing_is_left(world)


async def test_a_task_that_is_being_locked_by_its_id_goes_back_if_the_client_leaves(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task(SINGLE))
    await world.start()
    (task,) = await world.node.tasks()
    world.store.gate = trio.Event()
    with trio.move_on_after(1):
        await world.node.lock_task(task.task_id, "w", 60_000)
    world.store.gate.set()
    await trio.sleep(0.1)
    (task,) = await world.node.tasks()
    assert (task.state, task.attempt) == (TaskState.READY, 1)
    await nothing_is_left(world)
