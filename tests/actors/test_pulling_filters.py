"""Workers that fetch only some tasks of a topic: the conditions hold together, and what they hide is not in the way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from stellwerk.actors.polls import Poll, PollTopic, TaskConditions
from stellwerk.errors import InvalidInput
from stellwerk.wire.messages import Tasks


def numbers(tasks: Any) -> list[int]:
    return [msgspec.json.decode(task.variables)["number"] for task in tasks]


@pytest.fixture
async def orders(world: Any, one_task: Any) -> Any:
    """Ten tasks of process p: even numbers in the EU, and every third one urgent."""
    await world.deploy(one_task())
    for number in range(10):
        variables = {"number": number, "region": "us" if number % 2 else "eu", "urgent": number % 3 == 0}
        await world.node.start_instance("p", variables, business_key=f"key-{number}")
    return world


ALL = list(range(10))


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({}, ALL),
        ({"payload": '"region":"eu"'}, [0, 2, 4, 6, 8]),
        ({"variables": (("region", "eu"),)}, [0, 2, 4, 6, 8]),
        ({"variables": (("region", "eu"), ("urgent", True))}, [0, 6]),
        ({"variables": (("number", 3.0),)}, [3]),
        ({"variables": (("urgent", 1),)}, []),
        ({"variables": (("number", "3"),)}, []),
        ({"variables": (("no such", None),)}, []),
        ({"business_key": "key-7"}, [7]),
        ({"definition_ids": ("p:1",)}, ALL),
        ({"definition_ids": ("p:2", "q:1")}, []),
        ({"process_keys": ("q", "p")}, ALL),
        ({"process_keys": ("p*",)}, ALL),
        ({"process_keys": ("*",)}, ALL),
        ({"process_keys": ("pp*", "q")}, []),
        ({"process_keys": ()}, []),
        ({"payload": '"region":"us"', "variables": (("urgent", True),), "process_keys": ("p",)}, [3, 9]),
    ],
)
async def test_fault_99_all_conditions_of_a_poll_hold_together(
    autojump_clock: object, orders: Any, poll: Any, conditions: Any, found: list[int]
) -> None:
    began = trio.current_time()
    polled = await poll(orders, "work", conditions=TaskConditions(**conditions))
    assert numbers(polled.tasks) == found
    assert trio.current_time() - began < 0.1, "without a wait"


async def test_fault_7_an_empty_answer_comes_as_soon_as_the_filter_has_seen_every_task(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    await world.deploy(one_task())
    for number in range(700):
        await world.start(number=number)
    nobody = TaskConditions(payload="no such text")
    last = TaskConditions(variables=(("number", 699),))
    assert not (await poll(world, "work", conditions=nobody)).tasks
    assert numbers((await poll(world, "work", conditions=last)).tasks) == [699]


async def test_what_a_filter_has_rejected_is_not_searched_again_at_the_next_poll(
    autojump_clock: object, world: Any, one_task: Any, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.deploy(one_task())
    for number in range(50):
        await world.start(number=number)
    read: list[str] = []
    task_of = world.store.task

    async def counted(task_id: str) -> Any:
        read.append(task_id)
        return await task_of(task_id)

    monkeypatch.setattr(world.store, "task", counted)
    for _ in range(5):
        assert not (await poll(world, "work", conditions=TaskConditions(payload="nothing"))).tasks
        await trio.sleep(10)
    assert len(read) == 50
    await world.start(number=99)
    assert not (await poll(world, "work", conditions=TaskConditions(payload="nothing"))).tasks
    assert len(read) == 51


async def test_filters_that_nobody_comes_back_with_are_forgotten(
    autojump_clock: object, world: Any, one_task: Any, poll: Any
) -> None:
    await world.deploy(one_task())
    await world.connect("work", max_tasks=1)  # so that the topic lives
    await world.start(number=0)
    await world.start(number=1)
    for number in range(30):
        await poll(world, "work", conditions=TaskConditions(payload=f"nothing {number}"))
    dispatcher = world.node.live_topics.dispatcher("work")
    assert len(repr(dispatcher.filters)) < 1_000
    await trio.sleep(61)
    assert len((await poll(world, "work")).tasks) == 1
    assert not dispatcher.filters.are_active


async def test_polls_with_other_filters_and_a_connected_worker_share_a_topic(
    autojump_clock: object, orders: Any, poll: Any
) -> None:
    eu = TaskConditions(variables=(("region", "eu"),))
    assert numbers((await poll(orders, "work", max_tasks=2, conditions=eu)).tasks) == [0, 2]
    peer = await orders.connect("work", max_tasks=3)
    assert numbers((await peer.next(Tasks)).tasks) == [1, 3, 4]
    us = TaskConditions(variables=(("region", "us"),))
    assert numbers((await poll(orders, "work", conditions=us)).tasks) == [5, 7, 9]
    assert numbers((await poll(orders, "work")).tasks) == [6, 8]


async def test_a_task_that_fits_wakes_a_filtering_poll_and_others_do_not(
    autojump_clock: object, world: Any, one_task: Any, wait_for_tasks: Any
) -> None:
    await world.deploy(one_task())
    waiting = await wait_for_tasks(world, "work", conditions=TaskConditions(business_key="mine"))
    await world.node.start_instance("p", {"number": 1}, business_key="theirs")
    await trio.sleep(5)
    assert not waiting.answered.is_set()
    began = trio.current_time()
    await world.node.start_instance("p", {"number": 2}, business_key="mine")
    assert numbers(await waiting.tasks()) == [2]
    assert trio.current_time() - began < 0.05


async def test_one_poll_may_name_a_topic_twice_with_other_conditions(autojump_clock: object, orders: Any) -> None:
    asked = [TaskConditions(variables=(("number", number),)) for number in (7, 2)]
    topics = [PollTopic(topic="work", lock_duration_ms=30_000, conditions=one) for one in asked]
    polled = await orders.node.fetch_and_lock(Poll(worker_id="w", topics=tuple(topics), max_tasks=10))
    assert numbers(polled.tasks) == [2, 7]
    assert orders.node.live_topics.dispatcher("work").workers == 0


@pytest.mark.parametrize("pattern", ["(", "x" * 2_000, "(?x)a", "(a{1000}){1000}"])
async def test_a_filter_that_cannot_be_is_refused(autojump_clock: object, world: Any, poll: Any, pattern: str) -> None:
    with pytest.raises(InvalidInput, match=r"@ \$\.filter"):
        await poll(world, "work", conditions=TaskConditions(payload=pattern))
    with pytest.raises(InvalidInput, match=r"@ \$\.variables\.a"):
        await poll(world, "work", conditions=TaskConditions(variables=(("a", "\0"),)))
    assert len(world.node.polling) == 0
