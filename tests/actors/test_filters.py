"""Subscriptions that take only some tasks of a topic, or only some variables of a task (requirement W5)."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import msgspec
import pytest
import structlog.testing
import trio

from stellwerk.actors.payloads import TaskFilter, make_task_filter, selected_variables
from stellwerk.actors.polls import TaskConditions
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.errors import InvalidInput
from stellwerk.limits import Limits
from stellwerk.wire.messages import ProtocolErrorMessage, Subscribe, Tasks

REGION_EU = '"region":"eu"'
REGION_US = '"region":"us"'


def filter_of(**conditions: Any) -> TaskFilter:
    made = make_task_filter(TaskConditions(**conditions), Limits())
    assert made is not None
    return made


def task_with(variables: bytes, **more: Any) -> ExternalTask:
    values: dict[str, Any] = {
        "task_id": "t",
        "instance_id": "i",
        "token_id": "k",
        "activity_id": "a",
        "element_id": "e",
        "definition_id": "order:3",
        "business_key": None,
        "topic": "work",
        "priority": 0,
        "created_at_ms": 0,
        "updated_at_ms": 0,
        "available_at_ms": 0,
        "state": TaskState.READY,
        "retries_left": 3,
        "retries": 3,
        "retry_backoffs_ms": (),
        "attempt": 0,
        "lock_expiries": 0,
        "lock_expiries_max": 10,
        "single_try": False,
        "lock_duration_ms": None,
        "draining": False,
        "fence": 0,
        "lease": None,
        "outcome": None,
        "error_message": None,
        "variables": variables,
        "headers": b"{}",
    }
    return ExternalTask(**values | more)


def variables_of(offer: Any) -> Any:
    return msgspec.json.decode(offer.variables)


async def offers_of(peer: Any, count: int) -> list[Any]:
    offers: list[Any] = []
    while len(offers) < count:
        offers += (await peer.next(Tasks)).tasks
    assert len(offers) == count
    return offers


async def nothing_more(peer: Any, seconds: float = 10) -> None:
    await trio.sleep(seconds)
    assert not [message for message in peer.messages if isinstance(message, Tasks)]


def count_reads(store: Any, monkeypatch: Any) -> Counter[str]:
    """How often the dispatchers read the store from now on."""
    reads: Counter[str] = Counter()
    for name in ("task", "ready_tasks"):
        original = getattr(store, name)

        async def counted(*arguments: Any, name: str = name, original: Any = original) -> Any:
            reads[name] += 1
            return await original(*arguments)

        monkeypatch.setattr(store, name, counted)
    return reads


# --- variables -----------------------------------------------------------------------------------------------------


async def test_a_subscription_gets_only_the_variables_that_it_names(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", variables=("b", "absent", "a"))
    await world.start(a=1, b={"x": [1, 2.5, "ü"]}, c="secret")
    assert bytes((await peer.task()).variables) == '{"a":1,"b":{"x":[1,2.5,"ü"]}}'.encode()
    await peer.say(Subscribe("work", variables=()))
    await world.start(a=1)
    assert bytes((await peer.task()).variables) == b"{}"
    await peer.say(Subscribe("work"))
    await world.start(a=1)
    assert bytes((await peer.task()).variables) == b'{"a":1}'


async def test_a_task_that_fits_no_frame_as_a_whole_is_delivered_in_part(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any
) -> None:
    world = await start_node(nursery, limits=Limits(frame_bytes_max=5_000))
    await world.deploy(one_task())
    peer = await world.connect("work", variables=("small",))
    await world.start(small=1, large="x" * 10_000)
    assert variables_of(await peer.task()) == {"small": 1}
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("text", [b"[1,2]", b'"text"', b"null", b"17"])
def test_variables_that_are_no_object_are_sent_whole(text: bytes) -> None:
    assert selected_variables(text, ("a",)) == text


# --- filters: who gets what ----------------------------------------------------------------------------------------


async def test_W5_workers_with_complementary_filters_get_their_own(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    eu = await world.connect("work", filter=REGION_EU, max_tasks=100)
    us = await world.connect("work", filter=REGION_US, max_tasks=100)
    for number in range(40):
        await world.start(number=number, region="eu" if number % 4 else "us")
    assert {variables_of(offer)["region"] for offer in await offers_of(eu, 30)} == {"eu"}
    assert {variables_of(offer)["region"] for offer in await offers_of(us, 10)} == {"us"}


async def test_fault_99_all_conditions_of_a_filter_have_to_hold(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """They are one expression, as the worker guide shows it; nothing joins them by *or*."""
    await world.deploy(one_task())
    peer = await world.connect("work", filter='(?=.*"region":"eu").*"kind":"card"', max_tasks=100)
    for region in ("eu", "us"):
        for kind in ("card", "cash"):
            await world.start(region=region, kind=kind)
    (offer,) = await offers_of(peer, 1)
    assert variables_of(offer) == {"region": "eu", "kind": "card"}
    await nothing_more(peer)


async def test_W5_tasks_that_do_not_match_block_neither_later_ones_nor_other_workers(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    for number in range(30):
        await world.start(number=number, region="eu")
        await trio.sleep(0.01)
    await world.start(number=30, region="us")
    us = await world.connect("work", filter=REGION_US)
    assert variables_of(await us.task())["number"] == 30
    await nothing_more(us)
    anything = await world.connect("work", max_tasks=100)
    assert [variables_of(offer)["number"] for offer in await offers_of(anything, 30)] == list(range(30))
    await world.start(number=31, region="eu")
    assert variables_of(await anything.task())["number"] == 31
    await nothing_more(us)


async def test_W5_matching_tasks_come_by_priority_and_then_by_age(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task(), "low")
    await world.deploy(one_task('stellwerk:priority="50"'), "high")
    for number in range(12):
        for key in ("low", "high"):
            await world.start(key, number=number, process=key, region="eu" if number % 2 else "us")
            await trio.sleep(0.01)
    eu = await world.connect("work", filter=REGION_EU, max_tasks=2)
    seen = []
    for _ in range(6):
        for offer in await offers_of(eu, 2):
            values = variables_of(offer)
            seen.append((values["process"], values["number"]))
        for offer in list(eu.offers.values()):
            if offer.task_id in eu.holding:
                await eu.complete(offer)
    assert seen == [("high", number) for number in range(1, 12, 2)] + [("low", number) for number in range(1, 12, 2)]


async def test_W5_a_second_subscribe_changes_the_filter(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", filter=REGION_EU)
    await world.start(region="us")
    await nothing_more(peer)
    await peer.say(Subscribe("work", filter=REGION_US))
    assert variables_of(await peer.task()) == {"region": "us"}
    await world.start(region="eu")
    await nothing_more(peer)
    await peer.say(Subscribe("work"))
    assert variables_of(await peer.task()) == {"region": "eu"}


async def test_W5_a_task_that_comes_back_is_offered_to_those_that_match(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """The worker that held it dies; the one without a match never gets it."""
    await world.deploy(one_task())
    first = await world.connect("work", filter=REGION_EU)
    us = await world.connect("work", filter=REGION_US)
    await world.start(region="eu")
    offer = await first.task()
    first.drop()
    second = await world.connect("work", filter=REGION_EU)
    again = await second.task()
    assert again.task_id == offer.task_id
    assert again.fence > offer.fence
    await nothing_more(us)


async def test_W5_tasks_that_nobody_takes_do_not_hide_those_behind_them(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any
) -> None:
    """More of them than hints are kept without filters."""
    world = await start_node(nursery, limits=Limits(ready_hints_max=10, filtered_hints_max=100))
    await world.deploy(one_task())
    for number in range(50):
        await world.start(number=number, region="eu")
    await world.start(number=50, region="us")
    us = await world.connect("work", filter=REGION_US)
    assert variables_of(await us.task())["number"] == 50
    nursery.cancel_scope.cancel()


# --- filters: what they cost ---------------------------------------------------------------------------------------


async def test_W5_nothing_spins_while_all_tasks_are_rejected(
    autojump_clock: object, world: Any, one_task: Any, monkeypatch: Any
) -> None:
    await world.deploy(one_task())
    reads = count_reads(world.store, monkeypatch)
    peer = await world.connect("work", filter=REGION_EU)
    for number in range(20):
        await world.start(number=number, region="us")
    await nothing_more(peer, 60)
    assert reads["task"] == 20
    assert reads["ready_tasks"] <= 65
    await world.start(region="eu")
    assert variables_of(await peer.task()) == {"region": "eu"}
    assert reads["task"] == 21


async def test_without_filters_no_task_is_read(
    autojump_clock: object, world: Any, one_task: Any, monkeypatch: Any
) -> None:
    await world.deploy(one_task())
    reads = count_reads(world.store, monkeypatch)
    peer = await world.connect("work", max_tasks=5)
    for _ in range(10):
        await world.start(region="us")
    for offer in await offers_of(peer, 5):
        await peer.complete(offer)
    await offers_of(peer, 5)
    assert reads["task"] == 0


async def test_tasks_that_ended_while_nobody_took_them_are_forgotten(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    await world.connect("work", filter=REGION_EU)
    instances = [await world.start(number=number) for number in range(10)]
    await trio.sleep(5)
    assert world.node.dispatcher("work").ready == 10
    for instance_id in instances[:7]:
        await world.node.cancel_instance(instance_id, "not needed")
    await trio.sleep(5)
    assert world.node.dispatcher("work").ready == 3


async def test_W5_a_pattern_that_backtracks_for_ever_stalls_nobody(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    hostile = "(a|aa)+$"
    with structlog.testing.capture_logs() as logs:
        slow = await world.connect("work", filter=hostile, worker_id="slow")
        other = await world.connect("work", filter='"other":', max_tasks=100)
        began = time.monotonic()
        for number in range(5):
            await world.start(number=number, text="a" * 20_000 + "!")
        await world.start(other=True)
        assert variables_of(await other.task()) == {"other": True}
        await nothing_more(slow)
        assert time.monotonic() - began < 20
        await world.start(short="a")
        await nothing_more(slow)
    assert [entry["worker"] for entry in logs if "takes too long" in entry["event"]] == ["slow"]
    anything = await world.connect("work", max_tasks=100)
    await offers_of(anything, 6)


# --- filters: nonsense ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        "(unclosed",
        "[z-a]",
        "x" * 1_001,
        "(" * 400 + "a" + ")" * 400,
        "a{1000000000}",
        "(?:(?:(?:a{99}){99}){99}){99}",
        "(?x)(?:(?:a) {1000}) {1000}",
        "(?L)(?u)a",
    ],
)
async def test_W5_a_filter_that_makes_no_sense_ends_the_session(
    autojump_clock: object, world: Any, pattern: str
) -> None:
    peer = await world.connect("work")
    await peer.say(Subscribe("work", filter=pattern))
    error = await peer.next(ProtocolErrorMessage)
    assert error.code == "invalid"
    assert error.message.endswith("@ $.filter")


async def test_too_many_names_of_variables_end_the_session(autojump_clock: object, world: Any) -> None:
    peer = await world.connect("work")
    await peer.say(Subscribe("work", variables=tuple(f"v{number}" for number in range(1_001))))
    error = await peer.next(ProtocolErrorMessage)
    assert (error.code, error.message.endswith("@ $.variables")) == ("invalid", True)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}.*\d{4}-\d{2}-\d{2}", True),
        (r'"amount":\d{4,}[,}]', True),
        (r'"amount":\d{5,}[,}]', False),
        (r'(?i)"REGION":"(eu|us)"', True),
        (r"^{.*}$", True),
        ("", True),
    ],
)
def test_a_filter_is_searched_in_the_compact_text(pattern: str, matches: bool) -> None:
    text = b'{"amount":1999,"id":"00000000-0000-4000-8000-0123456789ab","on":"2026-01-31","region":"eu"}'
    assert filter_of(payload=pattern).matches(task_with(text), 1) is matches


def test_a_filter_is_refused_before_it_can_fill_the_memory() -> None:
    filter_of(payload="a{40000}")
    with pytest.raises(InvalidInput, match="too large together"):
        filter_of(payload="(a{1000}){1000}")
