"""What happened in an instance, over the HTTP API: its history by pages, its trace, its states (requirement P3)."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path
from typing import Any, get_args

import pytest
import trio

from stellwerk.app import ServedEngine
from stellwerk.core.events import EventCategory, category_of
from stellwerk.core.facts import Fact

DOCUMENT = Path(__file__).parents[2] / "docs" / "http-api.md"


async def whole_history(client: Any, instance_id: str, limit: int) -> list[Any]:
    """Page after page."""
    events: list[Any] = []
    while True:
        after = events[-1]["sequence"] if events else 0
        page = (await client.get(f"/process-instances/{instance_id}/history?limit={limit}&after={after}")).body
        assert len(page["history"]) <= limit
        events += page["history"]
        if not page["more"]:
            return events


async def test_P3_history_tells_every_event_in_order_without_gaps(deployed: Any) -> None:
    instance_id = await deployed.start("approval", variables={"who": "me"})
    (task,) = (await deployed.get("/user-tasks")).body["user_tasks"]
    await deployed.post(f"/user-tasks/{task['user_task_id']}/complete", {"variables": {"ok": True}})
    events = await whole_history(deployed, instance_id, 1000)
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert sorted(events[0]) == ["category", "event_type", "occurred_at", "payload", "sequence", "version"]
    assert (events[0]["event_type"], events[0]["category"]) == ("InstanceStarted", "instance")
    assert events[0]["payload"]["variables"] == {"who": "me"}
    assert [event["event_type"] for event in events if event["category"] == "user_task"] == [
        "UserTaskCreated",
        "UserTaskCompleted",
    ]
    assert (events[-1]["event_type"], events[-1]["version"]) == ("InstanceCompleted", 2)
    versions = [event["version"] for event in events]
    assert versions == sorted(versions)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100, 1000])
async def test_P3_pages_of_any_length_are_the_same_history(deployed: Any, engine: ServedEngine, limit: int) -> None:
    """Also while it grows, and when a page is asked for again or by somebody who has not read those before."""
    instance_id = await deployed.start("approval")
    for number in range(60):
        await engine.node.set_variables(instance_id, {"number": number})
    whole = await whole_history(deployed, instance_id, 1000)
    assert await whole_history(deployed, instance_id, limit) == whole
    path = f"/process-instances/{instance_id}/history"
    for after in (0, 5, 6, 40, len(whole) - 1):
        expected = {"history": whole[after : after + 3], "more": after + 3 < len(whole)}
        assert (await deployed.get(f"{path}?after={after}&limit=3")).body == expected
    assert (await deployed.get(f"{path}?after={len(whole)}")).body == {"history": [], "more": False}
    assert (await deployed.get(f"{path}?after={len(whole) + 7}")).body == {"history": [], "more": False}
    await engine.node.set_variables(instance_id, {"number": 60})
    grown = await whole_history(deployed, instance_id, limit)
    assert grown[:-1] == whole
    assert grown[-1]["payload"]["variables"] == {"number": 60}
    assert (await deployed.get(f"{path}?after={len(whole)}")).body == {"history": grown[-1:], "more": False}


async def test_answer_is_bounded_however_large_the_events_are(deployed: Any, engine: ServedEngine) -> None:
    instance_id = await deployed.start("approval")
    for number in range(20):
        await engine.node.set_variables(instance_id, {"text": f"{number} " + "x" * 1_000_000})
    path = f"/process-instances/{instance_id}/history?limit=1000"
    page = await deployed.get(path)
    assert int(page.headers["content-length"]) < 10_000_000
    assert page.body["more"]
    texts = [
        event["payload"]["variables"]["text"].partition(" ")[0]
        for event in await whole_history(deployed, instance_id, 1000)
        if event["event_type"] == "VariablesSet"
    ]
    assert texts == [str(number) for number in range(20)]
    shown = await deployed.get(f"/process-instances/{instance_id}?history=true")
    assert shown.body["more_history"]
    assert int(shown.headers["content-length"]) < 12_000_000


async def test_instance_that_was_pruned_and_started_again_has_a_history_of_its_own(
    deployed: Any, engine: ServedEngine
) -> None:
    """Where a page ended in the old one is no place in the new one."""
    instance_id = await deployed.start("approval", request_id="r-1")
    await engine.node.set_variables(instance_id, {f"n{number}": number for number in range(3)})
    old = await whole_history(deployed, instance_id, 4)
    await engine.node.cancel_instance(instance_id, "away with it")
    await trio.sleep(0.002)  # it ended before this millisecond
    assert await engine.node.prune(0) == 1
    path = f"/process-instances/{instance_id}"
    assert [(await deployed.get(path + more)).status for more in ("", "/history?after=4", "/trace")] == [404] * 3
    body = {"process_def_id": "approval", "request_id": "r-1", "variables": {"new": True}}
    for _ in range(2):
        reply = await deployed.post("/process-instances", body)
        assert (reply.status, reply.body["instance_id"]) == (201, instance_id)
    new = await whole_history(deployed, instance_id, 4)
    assert new[0]["payload"]["variables"] == {"new": True}
    assert [event["sequence"] for event in new] == list(range(1, len(new) + 1))
    assert len(new) < len(old)


async def test_long_history_does_not_hold_up_others(deployed: Any, engine: ServedEngine, connect_to: Any) -> None:
    """It is put into JSON in the background, which is busy here until the others were answered."""
    instance_id = await deployed.start("approval")
    for number in range(250):
        await engine.node.set_variables(instance_id, {"number": number})
    path = f"/process-instances/{instance_id}"
    release = threading.Event()
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await deployed.get(f"{path}/history?limit=1000"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.node.ports.background.run_sync, release.wait)
        nursery.start_soon(ask)
        try:
            async with connect_to(engine) as other:
                for _ in range(20):
                    assert (await other.get(path)).status == 200
            assert answers == []
        finally:
            release.set()
    (answer,) = answers
    assert answer.body["history"][-1]["event_type"] == "VariablesSet"
    assert answer.body["history"][-1]["version"] == 251


def test_every_event_has_a_category_and_the_document_lists_them_all() -> None:
    listed: dict[str, set[str]] = {}
    for line in DOCUMENT.read_text(encoding="utf-8").partition("| `category` |")[2].splitlines()[2:]:
        if not line.startswith("|"):
            break
        category, kinds = [cell.strip() for cell in line.strip("|").split("|")]
        listed[category.strip("`")] = {kind.strip(" `") for kind in kinds.split(",")}
    expected: dict[str, set[str]] = {category.value: set() for category in EventCategory}
    for kind in get_args(Fact):
        expected[category_of(kind.__new__(kind)).value].add(kind.__name__)
    assert listed == expected


# --- trace ---------------------------------------------------------------------------------------------------------


async def test_P3_trace_tells_who_held_a_task_under_which_fence(
    deployed: Any, engine: ServedEngine, connect_worker: Any
) -> None:
    instance_id = await deployed.start()
    async with connect_worker(engine, "charge", worker_id="billing") as worker:
        first = await worker.task()
        await worker.say(
            type="fail", ref=1, task_id=first["task_id"], fence=first["fence"], message="no funds", retry_after_ms=0
        )
        second = await worker.task()
        await worker.say(type="complete", ref=2, task_id=second["task_id"], fence=second["fence"], variables={})
        while (await worker.next("ack"))["ref"] != 2:
            pass
    trace = (await deployed.get(f"/process-instances/{instance_id}/trace")).body
    assert trace["instance_id"] == instance_id
    (task,) = trace["tasks"]
    assert (task["task_id"], task["topic"], task["state"]) == (first["task_id"], "charge", "COMPLETED")
    ends = [(lease["fence"], lease["worker_id"], lease["end"], lease["message"]) for lease in task["leases"]]
    assert ends == [(first["fence"], "billing", "failed", "no funds"), (second["fence"], "billing", "completed", None)]
    assert all(lease["since"] <= lease["until"] for lease in task["leases"])
    (token,) = trace["tokens"]
    assert (token["origin"], token["parent_id"]) == ("start", None)
    assert [(stay["node_id"], stay["end"]) for stay in token["stays"]] == [
        ("s", "left"),
        ("charge", "left"),
        ("e", "ended"),
    ]
    entered = token["stays"][1]["entered"]
    assert (entered["version"], entered["at"][-1]) == (1, "Z")


# --- state ---------------------------------------------------------------------------------------------------------


async def test_P3_replay_gives_the_state_after_each_step(deployed: Any, engine: ServedEngine) -> None:
    instance_id = await deployed.start("approval", variables={"a": 0, "big": 10**30})
    for number in (1, 2):
        await engine.node.set_variables(instance_id, {"a": number})
    path = f"/process-instances/{instance_id}"
    answer: Any = None
    for version in (1, 2, 3):
        answer = (await deployed.get(f"{path}/state?at={version}")).body
        assert answer["version"] == version
        state = answer["state"]
        assert state["scopes"][state["root_scope_id"]]["variables"] == {"a": version - 1, "big": 10**30}
        assert [token["node_id"] for token in state["tokens"].values()] == ["approve"]
    assert (await deployed.get(f"{path}/state")).body == answer
    history = (await deployed.get(f"{path}/history")).body["history"]
    assert history[0]["payload"]["variables"] == {"a": 0, "big": 10**30}
    assert answer["at"] == history[-1]["occurred_at"]


@pytest.mark.parametrize("at", [0, 2, 2**53 - 1])
async def test_step_that_is_not_there_is_refused_in_words(deployed: Any, at: int) -> None:
    reply = await deployed.get(f"/process-instances/{await deployed.start()}/state?at={at}")
    assert (reply.status, reply.body["code"]) == (400, "invalid")
    assert f"no step {at}" in reply.body["detail"]


@pytest.mark.parametrize("what", ["trace", "state"])
async def test_P3_many_readers_of_a_long_life_do_not_hold_it_in_memory_all_at_once(
    file_engine: ServedEngine, connect_to: Any, what: str
) -> None:
    instance_id = await file_engine.node.start_instance("approval", {})

    async def read() -> None:
        async with connect_to(file_engine) as reader:
            assert (await reader.get(f"/process-instances/{instance_id}/{what}")).status == 200

    for number in range(_LONG_STEPS):
        await file_engine.node.set_variables(instance_id, {"pad": f"{number:5}" * (_LONG_STEP_BYTES // 5)})
    tracemalloc.start()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(_READERS):
                nursery.start_soon(read)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < _READERS / 3 * _LONG_STEPS * _LONG_STEP_BYTES


_LONG_STEPS, _LONG_STEP_BYTES, _READERS = 100, 50_000, 16


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_P3_the_history_can_be_asked_for_by_category_and_type(deployed: Any, limit: int) -> None:
    instance_id = await deployed.start("approval")
    (task,) = (await deployed.get("/user-tasks")).body["user_tasks"]
    await deployed.post(f"/user-tasks/{task['user_task_id']}/complete", {"variables": {"ok": True}})
    path = f"/process-instances/{instance_id}/history"
    everything = (await deployed.get(path)).body["history"]
    for field in ("category", "event_type"):
        for name in {event[field] for event in everything}:
            pages: list[Any] = []
            more, after = True, 0
            while more:
                page = (await deployed.get(f"{path}?{field}={name}&limit={limit}&after={after}")).body
                pages += page["history"]
                more, after = page["more"], pages[-1]["sequence"]
            assert pages == [event for event in everything if event[field] == name]
    both = (await deployed.get(f"{path}?category=token&event_type=TaskCreated")).body
    assert both == {"history": [], "more": False}


@pytest.mark.parametrize("query", ["category=nothing", "event_type=nothing", "event_type=taskcreated"])
async def test_what_no_event_is(deployed: Any, query: str) -> None:
    instance_id = await deployed.start("approval")
    reply = await deployed.get(f"/process-instances/{instance_id}/history?{query}")
    assert (reply.status, reply.body["code"]) == (400, "invalid")
    assert reply.body["path"] == f"query.{query.partition('=')[0]}"
