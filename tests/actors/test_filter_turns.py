"""Filters of several workers: how many or how slow somebody's are is not at the others' cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from stellwerk.actors.payloads import TaskFilter, make_task_filter
from stellwerk.actors.polls import TaskConditions
from stellwerk.actors.turns import Turns
from stellwerk.errors import Overloaded
from stellwerk.limits import Limits
from stellwerk.wire.messages import ProtocolErrorMessage, Subscribe

T = TypeVar("T")
TASKS = 70
"""They take three batches: of 10, 20 and 40."""
FIRST_LOOK_SECONDS = 5.0


class HeldRunner:
    """What is done in the background waits for leave, from `hold` on."""

    def __init__(self) -> None:
        self._leave = trio.Semaphore(0)
        self._is_held = False

    async def run_sync(self, function: Callable[[], T]) -> T:
        if self._is_held:
            with trio.fail_after(100):
                await self._leave.acquire()
        return function()

    def hold(self) -> None:
        self._is_held = True

    def go_on(self, times: int = 1_000) -> None:
        for _ in range(times):
            self._leave.release()


def key_of(**conditions: Any) -> str:
    made = make_task_filter(TaskConditions(**conditions), Limits())
    assert isinstance(made, TaskFilter)
    return made.key


async def begin_tasks(world: Any, one_task: Any, count: int = TASKS) -> None:
    await world.deploy(one_task())
    for number in range(count):
        await world.node.start_instance("p", {"number": number}, business_key=f"key-{number}")


async def test_one_workers_many_filters_cost_another_worker_a_few_turns_only(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any, wait_for_tasks: Any
) -> None:
    held = HeldRunner()
    world = await start_node(nursery, background=held)
    await begin_tasks(world, one_task)
    held.hold()
    for number in range(50):
        many = TaskConditions(payload=f"no such text {number}")
        await wait_for_tasks(world, "work", worker_id="many", conditions=many)
    last = TaskConditions(payload=f'"number":{TASKS - 1}')
    one = await wait_for_tasks(world, "work", worker_id="one", conditions=last)
    turns = 0
    while not one.answered.is_set():
        held.go_on(1)
        turns += 1
        await trio.sleep(0.01)
    assert len(await one.tasks()) == 1
    assert turns <= 8, "three for it, and for the other at most as many and the one that was under way"
    nursery.cancel_scope.cancel()


async def test_patterns_of_one_topic_do_not_starve_those_of_another(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, task_of: Any, wait_for_tasks: Any
) -> None:
    held = HeldRunner()
    world = await start_node(nursery, background=held)
    topics = [f"topic-{number}" for number in range(20)]
    for number, topic in enumerate((*topics, "other")):
        await world.deploy(task_of(topic), f"p{number}")
        for _ in range(30):
            await world.start(f"p{number}")
    held.hold()
    for topic in topics:
        await wait_for_tasks(world, topic, worker_id="many", conditions=TaskConditions(payload="no such text"))
    one = await wait_for_tasks(world, "other", worker_id="one", conditions=TaskConditions(payload="{}"), max_tasks=1)
    turns = 0
    while not one.answered.is_set():
        held.go_on(1)
        turns += 1
        await trio.sleep(0.01)
    assert turns <= 3
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "conditions",
    [
        {"business_key": "key-5"},
        {"variables": (("number", 5),)},
        {"process_keys": ("p",)},
        {"definition_ids": ("p:1",), "business_key": "key-5"},
    ],
)
async def test_conditions_without_a_pattern_wait_for_none(
    autojump_clock: object,
    start_node: Any,
    nursery: trio.Nursery,
    one_task: Any,
    wait_for_tasks: Any,
    poll: Any,
    conditions: Any,
) -> None:
    """Nothing is done in the background, for as long as there is a pattern that takes for ever."""
    held = HeldRunner()
    world = await start_node(nursery, background=held)
    await begin_tasks(world, one_task)
    held.hold()
    await wait_for_tasks(world, "work", worker_id="slow", conditions=TaskConditions(payload="(a|aa)+$"))
    began = trio.current_time()
    polled = await poll(world, "work", conditions=TaskConditions(**conditions), max_tasks=1)
    assert len(polled.tasks) == 1
    assert trio.current_time() - began < 0.1
    nursery.cancel_scope.cancel()


# --- what could not be decided ---------------------------------------------------------------------------------------


async def test_a_poll_of_which_nothing_was_decided_is_told_so(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any, poll: Any
) -> None:
    held = HeldRunner()
    world = await start_node(nursery, background=held)
    await begin_tasks(world, one_task)
    held.hold()
    wanted = TaskConditions(payload='"number":5[,}]')
    began = trio.current_time()
    with pytest.raises(Overloaded, match="compared with the filter"):
        await poll(world, "work", conditions=wanted)
    assert trio.current_time() - began == pytest.approx(FIRST_LOOK_SECONDS, abs=0.5)
    held.go_on()
    assert len((await poll(world, "work", conditions=wanted)).tasks) == 1
    nursery.cancel_scope.cancel()


async def test_a_poll_of_which_something_was_decided_is_answered(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any, poll: Any
) -> None:
    held = HeldRunner()
    world = await start_node(nursery, background=held)
    await begin_tasks(world, one_task)
    held.hold()
    held.go_on(1)
    assert not (await poll(world, "work", conditions=TaskConditions(payload="no such text"))).tasks
    nursery.cancel_scope.cancel()


async def test_an_empty_topic_needs_no_decision(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, poll: Any
) -> None:
    held = HeldRunner()
    held.hold()
    world = await start_node(nursery, background=held)
    assert not (await poll(world, "work", conditions=TaskConditions(payload="x"))).tasks
    nursery.cancel_scope.cancel()


# --- bounds ----------------------------------------------------------------------------------------------------------


async def test_a_worker_has_so_many_filters_for_a_topic_and_no_more(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, poll: Any, wait_for_tasks: Any
) -> None:
    world = await start_node(nursery, limits=Limits(worker_filters_max=3))
    waiting = [
        await wait_for_tasks(world, "work", worker_id="w", conditions=TaskConditions(business_key=f"k{number}"))
        for number in range(3)
    ]
    one_more = TaskConditions(business_key="one more")
    with pytest.raises(Overloaded, match=r"at most 3 different filters .* w has as many for work"):
        await poll(world, "work", worker_id="w", conditions=one_more)
    again = await wait_for_tasks(world, "work", worker_id="w", conditions=TaskConditions(business_key="k0"))
    assert not (await poll(world, "work", worker_id="w")).tasks
    assert not (await poll(world, "work", worker_id="other", conditions=one_more)).tasks
    assert not (await poll(world, "more work", worker_id="w", conditions=one_more)).tasks
    for one in waiting[1:]:
        one.scope.cancel()
    await trio.sleep(0.01)
    assert not (await poll(world, "work", worker_id="w", conditions=one_more)).tasks
    assert again.error is None
    nursery.cancel_scope.cancel()


async def test_sessions_of_one_worker_share_the_bound(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery
) -> None:
    world = await start_node(nursery, limits=Limits(worker_filters_max=2))
    first = await world.connect("work", worker_id="w", filter="a")
    await first.say(Subscribe("work", filter="b"))
    await world.connect("work", worker_id="w", filter="c")
    third = await world.connect(worker_id="w")
    with pytest.raises(Overloaded, match="at most 2 different filters"):
        await third.say(Subscribe("work", filter="d"))
    await third.say(Subscribe("work", filter="c"))
    assert not [message for message in third.messages if isinstance(message, ProtocolErrorMessage)]
    nursery.cancel_scope.cancel()


async def test_a_worker_that_changes_its_filter_with_every_poll_displaces_its_own_only(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    """What was decided for others stays decided."""
    await begin_tasks(world, one_task, 20)
    steady = TaskConditions(payload="no such text")
    await poll(world, "work", worker_id="steady", conditions=steady)
    filters = world.node.dispatcher("work").filters
    assert filters.decided(key_of(payload="no such text")) == 20
    for number in range(50):
        await poll(world, "work", worker_id="restless", conditions=TaskConditions(payload=f"nor this {number}"))
    assert filters.decided(key_of(payload="no such text")) == 20
    assert filters.decided(key_of(payload="nor this 0")) == 0


# --- turns -----------------------------------------------------------------------------------------------------------


async def test_turns_go_to_who_had_least_and_one_that_comes_late_saves_nothing_up(
    autojump_clock: trio.testing.MockClock, world: Any
) -> None:
    turns = Turns(world.clock)
    for _ in range(3):
        with turns.charged("early"):
            await trio.sleep(1)
    assert turns.had("early") == pytest.approx(3)
    assert turns.had("late") == pytest.approx(2), "as much as the one that is served had before"
    assert turns.least(["early", "late"]) == "late"


async def test_who_gives_up_waiting_leaves_its_turn_to_others(
    autojump_clock: object, world: Any, nursery: trio.Nursery
) -> None:
    turns, served = Turns(world.clock), []

    async def serve(name: str, share: float, scope: trio.CancelScope) -> None:
        with scope:
            async with turns.turn(lambda: share):
                served.append(name)
                await trio.sleep(1)

    scopes = {name: trio.CancelScope() for name in "abcd"}
    for share, name in enumerate(scopes):
        nursery.start_soon(serve, name, -share, scopes[name])
        await trio.sleep(0.1)
    scopes["d"].cancel()
    await trio.sleep(10)
    assert served == ["a", "c", "b"]
