"""External tasks, topics and workers over the HTTP API."""

from __future__ import annotations

from typing import Any

import trio

from stellwerk.app import ServedEngine

FETCH = "/external-tasks/fetch-and-lock"


async def topic(client: Any, name: str) -> Any:
    (row,) = [row for row in (await client.get("/topics")).body["topics"] if row["topic"] == name]
    return row


async def until(client: Any, name: str, **fields: object) -> Any:
    """The topic's row as soon as it is like that."""
    with trio.fail_after(5):
        while not (row := await topic(client, name)).items() >= fields.items():
            await trio.sleep(0.01)
    return row


# --- tasks ---------------------------------------------------------------------------------------------------------


async def test_tasks_are_listed_by_pages_oldest_first(deployed: Any) -> None:
    instances = [await deployed.start(variables={"n": number}) for number in range(5)]
    found: list[Any] = []
    more = True
    while more:
        after = f"&after={found[-1]['task_id']}" if found else ""
        page = (await deployed.get(f"/external-tasks?limit=2{after}")).body
        more = page["more"]
        assert len(page["tasks"]) == (2 if more else 1)
        found += page["tasks"]
    assert sorted(task["instance_id"] for task in found) == sorted(instances)
    rows = [(task["created_at"], task["task_id"]) for task in found]
    assert rows == sorted(rows)
    assert all((task["topic"], task["element_id"], task["state"]) == ("charge", "charge", "READY") for task in found)
    assert not {"variables", "headers", "attempts"} & found[0].keys(), "they may be large"


async def test_page_is_as_long_as_it_may_be(deployed: Any, engine: ServedEngine) -> None:
    """However few are read at once."""
    async with trio.open_nursery() as nursery:
        for _ in range(250):
            nursery.start_soon(engine.node.start_instance, "order", {})
    for limit, length, more in ((1, 1, True), (99, 99, True), (100, 100, True), (249, 249, True), (250, 250, False)):
        page = (await deployed.get(f"/external-tasks?limit={limit}")).body
        assert (len(page["tasks"]), page["more"]) == (length, more)
    ids = [task["task_id"] for task in (await deployed.get("/external-tasks?limit=1000")).body["tasks"]]
    assert (len(ids), len(set(ids))) == (250, 250)


async def test_tasks_are_found_by_what_they_are(deployed: Any, engine: ServedEngine, connect_worker: Any) -> None:
    first = await deployed.start()
    async with connect_worker(engine, "charge") as worker:
        offer = await worker.task()
        second = await deployed.start()
        cases = {
            "state=LOCKED": [first],
            "state=READY": [second],
            f"instance_id={second}": [second],
            "topic=charge": [first, second],
            "topic=nothing": [],
            f"topic=charge&state=LOCKED&instance_id={second}": [],
        }
        for query, instances in cases.items():
            tasks = (await deployed.get(f"/external-tasks?{query}")).body["tasks"]
            assert [task["instance_id"] for task in tasks] == instances, query
        (locked,) = (await deployed.get("/external-tasks?state=LOCKED")).body["tasks"]
        assert (locked["task_id"], locked["lease"]["worker_id"]) == (offer["task_id"], "w-1")


async def test_tasks_are_found_by_who_has_them_and_by_what_they_are_of(deployed: Any) -> None:
    first = await deployed.start(business_key="A-17")
    second = await deployed.start(business_key="B-4")
    fetched = await deployed.post(FETCH, {"worker_id": "w/1 ü", "task_types": ["charge"], "max_tasks": 1})
    (mine,) = fetched.body
    (other,) = (await deployed.get("/external-tasks?state=READY")).body["tasks"]
    assert (await deployed.send("PUT", f"/external-tasks/{other['task_id']}/priority", {"priority": -7})).status == 200
    cases = {
        "worker_id=w%2F1%20%C3%BC": [first],
        "worker_id=w%2F1%20%C3%BC&state=locked&is_locked=true": [first],
        "worker_id=w%2F1%20%C3%BC&topic=nothing": [],
        "worker_id=somebody": [],
        "is_locked=false": [second],
        "business_key=B-4": [second],
        "process=order": [first, second],
        "process=stuck": [],
        "definition_id=order:1&element_id=charge": [first, second],
        "definition_id=order:2": [],
        "element_id=e": [],
        "with_retries_left=true": [first, second],
        "with_retries_left=false": [],
        "priority_from=-7&priority_to=-7": [second],
        "priority_from=0": [first],
    }
    for query, instances in cases.items():
        tasks = (await deployed.get(f"/external-tasks?{query}")).body["tasks"]
        assert [task["instance_id"] for task in tasks] == instances, query
    assert mine["process_instance_id"] == first
    for query in ("is_locked=perhaps", "priority_from=high", "worker=w", "state=lost"):
        refused = await deployed.get(f"/external-tasks?{query}")
        assert (refused.status, query.partition("=")[0] in refused.body["detail"]) == (400, True), refused


async def test_task_is_shown_with_its_attempts(deployed: Any, engine: ServedEngine, connect_worker: Any) -> None:
    await deployed.start(variables={"amount": 12.5})
    async with connect_worker(engine, "charge") as worker:
        offer = await worker.task()
        await worker.say(
            type="fail",
            ref=1,
            task_id=offer["task_id"],
            fence=offer["fence"],
            message="no funds",
            details={"code": 7},
            retry_after_ms=60_000,
        )
        await worker.next("ack")
    task = (await deployed.get(f"/external-tasks/{offer['task_id']}")).body
    assert (task["state"], task["retries_left"], task["variables"]) == ("READY", 2, {"amount": 12.5})
    (attempt,) = task["attempts"]
    assert (attempt["end"], attempt["message"], attempt["details"]) == ("failed", "no funds", {"code": 7})
    assert await until(deployed, "charge", ready=0, backing_off=1, locked=0, is_unattended=False)


# --- topics and workers --------------------------------------------------------------------------------------------


async def test_fault_56_ready_work_without_a_worker_is_flagged(
    deployed: Any, engine: ServedEngine, connect_worker: Any
) -> None:
    """It would wait for ever without a word."""
    assert (await deployed.get("/topics")).body == {"topics": []}
    await deployed.start()
    waiting = await topic(deployed, "charge")
    since = waiting.pop("oldest_ready_at")
    assert since[-1] == "Z"
    assert waiting == {
        "topic": "charge",
        "ready": 1,
        "backing_off": 0,
        "locked": 0,
        "workers": 0,
        "free": 0,
        "is_unattended": True,
    }
    async with connect_worker(engine, "charge", "other") as worker:
        await worker.task()
        await deployed.start()
        row = await until(deployed, "charge", ready=1, locked=1)
        assert (row["workers"], row["free"], row["is_unattended"]) == (1, 0, False), "it is full, but it is there"
        assert await topic(deployed, "other") == {
            "topic": "other",
            "ready": 0,
            "backing_off": 0,
            "locked": 0,
            "oldest_ready_at": None,
            "workers": 1,
            "free": 1,
            "is_unattended": False,
        }
        await worker.say(type="unsubscribe", topic="charge")
        assert await until(deployed, "charge", workers=0, is_unattended=True)
        await worker.say(type="subscribe", topic="charge", max_tasks=1)
        assert await until(deployed, "charge", workers=1, is_unattended=False)
    assert await until(deployed, "charge", workers=0, is_unattended=True)


async def test_oldest_ready_task_says_how_long_a_topic_waits(deployed: Any) -> None:
    await deployed.start()
    first = await topic(deployed, "charge")
    await trio.sleep(0.002)
    await deployed.start()
    assert await topic(deployed, "charge") == {**first, "ready": 2}


async def test_workers_are_listed_with_what_they_hold(deployed: Any, engine: ServedEngine, connect_worker: Any) -> None:
    assert (await deployed.get("/workers")).body == {"workers": []}
    await deployed.start()
    async with connect_worker(engine, "charge", worker_id="a") as worker, connect_worker(engine, worker_id="b"):
        await worker.task()
        first, second = (await deployed.get("/workers")).body["workers"]
        assert (first["worker_id"], first["client"], first["connected_at"][-1]) == ("a", "test/1", "Z")
        assert first["topics"] == [{"topic": "charge", "max_tasks": 1, "held": 1}]
        assert (second["worker_id"], second["topics"]) == ("b", [])
        assert first["session_id"] != second["session_id"]
        [node] = (await deployed.get("/nodes")).body["nodes"]
        assert first["node"] == second["node"] == node["name"]
    with trio.fail_after(5):
        while (await deployed.get("/workers")).body["workers"]:
            await trio.sleep(0.01)


async def test_workers_that_poll_are_listed_with_what_they_hold(deployed: Any) -> None:
    for _ in range(4):
        await deployed.start()
    assert (
        len((await deployed.post(FETCH, {"worker_id": "w", "task_types": ["charge", "ship"], "max_tasks": 3})).body)
        == 3
    )
    (task,) = (await deployed.post(FETCH, {"worker_id": "v", "task_types": ["charge"]})).body
    first, second = (await deployed.get("/workers")).body["workers"]
    assert (first["worker_id"], first["topics"]) == ("v", [{"topic": "charge", "max_tasks": 10, "held": 1}])
    assert (second["worker_id"], second["topics"]) == (
        "w",
        [{"topic": "charge", "max_tasks": 3, "held": 3}, {"topic": "ship", "max_tasks": 3, "held": 0}],
    )
    held = (await deployed.get("/external-tasks?worker_id=w")).body["tasks"]
    assert [one["lease"]["worker_id"] for one in held] == ["w"] * 3
    done = await deployed.post(
        f"/external-tasks/{task['task_id']}/complete", {"worker_id": "v", "fence": task["fence"]}
    )
    assert done.status == 200
    unlocked = await deployed.post(f"/external-tasks/{held[0]['task_id']}/unlock", {"worker_id": "w"})
    assert unlocked.status == 200
    topics = [one["topics"][0] for one in (await deployed.get("/workers")).body["workers"]]
    assert [one["held"] for one in topics] == [0, 2]


async def test_a_worker_that_is_pushed_to_and_polls_is_counted_once(
    deployed: Any, engine: ServedEngine, connect_worker: Any
) -> None:
    await deployed.start()
    async with connect_worker(engine, "charge", worker_id="w") as worker:
        await worker.task()
        await deployed.start()
        (_,) = (await deployed.post(FETCH, {"worker_id": "w", "task_types": ["charge"], "wait_ms": 5000})).body
        workers = (await deployed.get("/workers")).body["workers"]
        assert [one["topics"][0]["held"] for one in workers] == [1, 1]


async def test_the_list_is_only_read(client: Any) -> None:
    assert (await client.post("/external-tasks", {})).status == 405
