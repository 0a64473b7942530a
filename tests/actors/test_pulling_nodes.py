"""Workers that fetch from one of several nodes on a store; and how operators see workers that are not connected."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.core.external_task import AttemptEnd, TaskState

AT_ONCE = 0.05
A_SECOND = 1.1
IN_TIME = pytest.mark.parametrize(("hints", "seconds"), [(True, AT_ONCE), (False, A_SECOND)])


@pytest.fixture
async def pair(nodes: Any, one_task: Any) -> Any:
    async def start(hints: bool = True) -> Any:
        if not hints:
            nodes.lose_hints()
        a, b = await nodes.start(), await nodes.start()
        await a.deploy(one_task())
        await trio.sleep(0.3)
        return a, b

    return start


@IN_TIME
async def test_fault_10_a_task_that_another_node_creates_wakes_a_poll(
    autojump_clock: object, pair: Any, wait_for_tasks: Any, hints: bool, seconds: float
) -> None:
    a, b = await pair(hints)
    waiting = await wait_for_tasks(a, "work")
    await trio.sleep(3)
    began = trio.current_time()
    await b.start()
    (task,) = await waiting.tasks()
    assert trio.current_time() - began < seconds
    await b.node.complete_task(task.task_id, "w", {"done": True}, fence=task.fence)
    assert (await a.node.outcome(task.instance_id)).summary.status == "COMPLETED"


@IN_TIME
async def test_fault_9_and_10_a_lock_that_ends_on_one_node_wakes_a_poll_on_another(
    autojump_clock: object, pair: Any, poll: Any, wait_for_tasks: Any, hints: bool, seconds: float
) -> None:
    a, b = await pair(hints)
    await a.start()
    (task,) = (await poll(a, "work", worker_id="first", lock_duration_ms=10_000)).tasks
    waiting = await wait_for_tasks(b, "work")
    await trio.sleep(3)
    await a.node.unlock_task(task.task_id, "first")
    began = trio.current_time()
    (again,) = await waiting.tasks()
    assert trio.current_time() - began < seconds
    waiting = await wait_for_tasks(a, "work")
    due = trio.current_time() + (again.lease.until_ms - b.clock.wall_ms()) / 1000
    (last,) = await waiting.tasks()
    assert due <= trio.current_time() < due + seconds
    assert last.fence > again.fence > task.fence


async def test_without_a_wait_a_node_finds_what_others_left_before(
    autojump_clock: object, pair: Any, nodes: Any, poll: Any
) -> None:
    a, b = await pair()
    nodes.lose_hints()
    assert not (await poll(a, "work")).tasks  # it has just looked
    for _ in range(20):
        await b.start()
        began = trio.current_time()
        (task,) = (await poll(a, "work")).tasks
        assert trio.current_time() - began < 0.1
        await b.node.complete_task(task.task_id, "w", None)
        assert not (await poll(a, "work")).tasks


async def test_polls_of_two_nodes_never_get_the_same_task(
    autojump_clock: object, pair: Any, wait_for_tasks: Any
) -> None:
    a, b = await pair()
    waiting = [await wait_for_tasks(world, "work", max_tasks=3) for world in (a, b) * 5]
    for _ in range(30):
        await a.start()
    await trio.sleep(2)
    got = [task.task_id for one in waiting if one.polled for task in one.polled.tasks]
    assert len(got) == len(set(got)) > 0
    locked = [task.task_id for task in await a.node.tasks() if task.state is TaskState.LOCKED]
    assert sorted(got) == sorted(locked)


async def test_what_is_under_way_for_a_poll_when_its_client_leaves_goes_back_and_other_nodes_hear_of_it(
    autojump_clock: object, pair: Any, wait_for_tasks: Any
) -> None:
    a, b = await pair()
    await a.start()
    a.store.seconds = 2.0
    dead = await wait_for_tasks(a, "work")
    alive = await wait_for_tasks(b, "work", worker_id="alive")
    await trio.sleep(1.0)
    dead.scope.cancel()
    await trio.sleep(0.5)
    if not alive.answered.is_set():
        a.store.seconds = 0.0005
    (task,) = await alive.tasks()
    assert task.lease.holder.worker_id == "alive"
    attempts = await a.store.attempts(task.task_id)
    assert [attempt.end for attempt in attempts if attempt.worker_id == "w"] in ([], [AttemptEnd.RELEASED])
    assert trio.current_time() < 20


# --- how they are seen -----------------------------------------------------------------------------------------------


async def test_a_worker_that_polled_lately_is_listed_and_its_topic_attended(
    autojump_clock: object, pair: Any, poll: Any
) -> None:
    a, b = await pair()
    await a.start()
    assert [topic.is_unattended for topic in await b.node.topics()] == [True]
    assert not (await poll(a, "other", "more", worker_id="puller", max_tasks=4)).tasks
    await poll(a, "work", worker_id="puller", max_tasks=4)
    await trio.sleep(1)
    for world in (a, b):
        (worker,) = await world.node.workers()
        assert (worker.worker_id, worker.node) == ("puller", "host:1")
        assert {topic.topic: topic.max_tasks for topic in worker.topics} == {"other": 4, "more": 4, "work": 4}
        topics = {topic.topic: topic for topic in await world.node.topics()}
        assert (topics["work"].workers, topics["work"].free, topics["work"].is_attended) == (1, 0, True)
    assert a.node.report().workers == 1
    await trio.sleep(70)
    for world in (a, b):
        assert not await world.node.workers()
        assert not [topic for topic in await world.node.topics() if topic.is_attended]


async def test_what_a_worker_that_polls_holds_is_seen_from_every_node(
    autojump_clock: object, pair: Any, poll: Any
) -> None:
    a, b = await pair()
    for _ in range(5):
        await a.start()
    (first, *_) = (await poll(a, "work", worker_id="puller", max_tasks=3, lock_duration_ms=30_000)).tasks
    await poll(b, "work", worker_id="other", max_tasks=1, lock_duration_ms=5_000)
    await trio.sleep(1)
    for world in (a, b):
        other, puller = await world.node.workers()
        assert [(topic.topic, topic.max_tasks, topic.held) for topic in other.topics] == [("work", 1, 1)]
        assert [(topic.topic, topic.max_tasks, topic.held) for topic in puller.topics] == [("work", 3, 3)]
    await a.node.complete_task(first.task_id, "puller", None)
    await trio.sleep(5)
    held = [worker.topics[0].held for worker in await b.node.workers()]
    assert held == [0, 2], "one is done, and one has run out"


async def test_a_worker_that_has_no_room_to_poll_is_listed_while_it_extends_its_locks(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    await world.deploy(one_task())
    await world.start()
    (task,) = (await poll(world, "work", "other", worker_id="puller", max_tasks=1)).tasks
    for _ in range(10):
        await trio.sleep(20)
        await world.node.extend_task(task.task_id, "puller", 30_000)
    (worker,) = await world.node.workers()
    assert [(topic.topic, topic.max_tasks, topic.held) for topic in worker.topics] == [("work", 1, 1)]
    await world.node.complete_task(task.task_id, "puller", None)
    await trio.sleep(70)
    assert not await world.node.workers()


async def test_what_a_worker_holds_of_a_topic_for_which_it_polls_no_more_is_listed(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    await world.deploy(one_task())
    await world.start()
    assert (await poll(world, "work", worker_id="puller", lock_duration_ms=600_000)).tasks
    for _ in range(3):
        await trio.sleep(30)
        await poll(world, "other", worker_id="puller", max_tasks=2)
    (worker,) = await world.node.workers()
    assert [(topic.topic, topic.max_tasks, topic.held) for topic in worker.topics] == [("other", 2, 0), ("work", 0, 1)]


async def test_a_worker_that_waits_is_listed_however_long_and_with_the_room_it_has(
    autojump_clock: object, world: Any, wait_for_tasks: Any
) -> None:
    waiting = await wait_for_tasks(world, "work", "other", worker_id="puller", max_tasks=4, wait_ms=300_000)
    await trio.sleep(200)
    (worker,) = await world.node.workers()
    assert [topic.topic for topic in worker.topics] == ["work", "other"]
    assert [(topic.topic, topic.workers, topic.free) for topic in await world.node.topics()] == [
        ("other", 1, 4),
        ("work", 1, 4),
    ]
    assert not await waiting.tasks()
    await trio.sleep(30)
    assert len(await world.node.workers()) == 1
    await trio.sleep(40)
    assert not await world.node.workers()


async def test_a_topic_that_is_polled_for_raises_no_alarm(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    await world.deploy(one_task())
    for _ in range(8):
        await world.start()
    for _ in range(7):
        await poll(world, "work", max_tasks=1, lock_duration_ms=3_600_000)
        await trio.sleep(30)
    assert not world.node.attendance.unattended
    await trio.sleep(120)
    assert set(world.node.attendance.unattended) == {"work"}


async def test_those_who_polled_are_remembered_within_bounds(autojump_clock: object, world: Any, poll: Any) -> None:
    for number in range(1_300):
        await poll(world, f"topic-{number}", worker_id="one")
    (worker,) = await world.node.workers()
    assert len(worker.topics) == world.node.limits.session_topics_max
    assert worker.topics[-1].topic == "topic-1299"
