"""Instances, messages and people's tasks over the HTTP API."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from stellwerk.app import ServedEngine

SNAPSHOT_EVERY = 100
"""Steps."""


async def test_instance_is_shown_whole(deployed: Any) -> None:
    instance_id = await deployed.start(variables={"amount": 12.5, "big": 10**30}, business_key="A-17")
    view = (await deployed.get(f"/process-instances/{instance_id}")).body
    assert (view["status"], view["process"], view["definition_id"]) == ("RUNNING", "order", "order:1")
    assert (view["business_key"], view["ended_at"]) == ("A-17", None)
    assert view["variables"] == {"amount": 12.5, "big": 10**30}
    (token,) = view["tokens"]
    assert (token["node_id"], token["status"]) == ("charge", "ACTIVE")
    (task,) = view["tasks"]
    assert (task["element_id"], task["topic"], task["state"], task["retries_left"]) == ("charge", "charge", "READY", 3)
    assert (task["variables"], task["lease"], task["attempts"]) == ({"amount": 12.5, "big": 10**30}, None, [])
    assert view["current_nodes"] == ["charge"]
    assert "history" not in view


async def test_tokens_say_what_they_wait_for(deployed: Any, engine: ServedEngine) -> None:
    instance_id = await deployed.start()
    view = (await deployed.get(f"/process-instances/{instance_id}")).body
    (token,) = view["tokens"]
    (task,) = view["tasks"]
    wait = {"kind": "external_task", "wait_id": task["task_id"], "node_id": "charge"}
    assert token["waits"] == [wait | {"name": None, "key": None, "due_at": None}]
    instance_id = await deployed.start("approval")
    view = (await deployed.get(f"/process-instances/{instance_id}")).body
    assert [(wait["kind"], wait["node_id"]) for wait in view["tokens"][0]["waits"]] == [("user_task", "approve")]
    await engine.node.cancel_instance(instance_id, "why not")
    assert (await deployed.get(f"/process-instances/{instance_id}")).body["tokens"] == []


async def test_same_request_id_gives_the_same_instance(deployed: Any) -> None:
    first = await deployed.start(request_id="r-1")
    assert await deployed.start(request_id="r-1") == first
    assert await deployed.start(request_id="r-2") != first


async def test_instances_are_listed_in_pages_newest_first(deployed: Any) -> None:
    started = [await deployed.start() for _ in range(5)]
    page = (await deployed.get("/process-instances?limit=3")).body["instances"]
    rest = (await deployed.get(f"/process-instances?limit=3&after={page[-1]['instance_id']}")).body["instances"]
    rows = [(row["started_at"], row["instance_id"]) for row in page + rest]
    assert rows == sorted(rows, reverse=True), "by id where they started in the same millisecond"
    assert sorted(instance_id for _, instance_id in rows) == sorted(started)
    assert (await deployed.get("/process-instances?status=COMPLETED")).body["instances"] == []
    assert len((await deployed.get("/process-instances?process=order&status=RUNNING")).body["instances"]) == 5


async def test_cancelled_instance_wakes_who_waits_for_its_end(deployed: Any, engine: ServedEngine) -> None:
    instance_id = await deployed.start()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            reply = await deployed.get(f"/process-instances/{instance_id}/wait?timeout_ms=60000")
            assert reply.body["status"] == "CANCELLED"

        nursery.start_soon(wait)
        await engine.node.cancel_instance(instance_id, "why not")
    reply = await deployed.post(f"/process-instances/{instance_id}/cancel", {})
    assert reply.status == 409


async def test_wait_gives_the_instance_as_it_is_when_time_is_up(deployed: Any) -> None:
    reply = await deployed.get(f"/process-instances/{await deployed.start()}/wait?timeout_ms=1")
    assert (reply.status, reply.body["status"]) == (200, "RUNNING")


async def test_wait_ends_when_the_engine_drains(deployed: Any, engine: ServedEngine) -> None:
    instance_id = await deployed.start()
    await deployed.stream.send_all(
        f"GET /api/v1/process-instances/{instance_id}/wait?timeout_ms=600000 HTTP/1.1\r\nHost: here\r\n\r\n".encode()
    )
    await trio.testing.wait_all_tasks_blocked(0.05)
    with trio.fail_after(5):
        await engine.drain(0.1)
        reply = await deployed.reply()
    assert (reply.body["status"], reply.headers["connection"]) == ("RUNNING", "close")


async def test_wait_ends_when_the_client_leaves(deployed: Any, engine: ServedEngine) -> None:
    instance_id = await deployed.start()
    request = f"GET /api/v1/process-instances/{instance_id}/wait?timeout_ms=600000 HTTP/1.1\r\nHost: here\r\n\r\n"
    await deployed.stream.send_all(request.encode())
    await deployed.stream.send_eof()
    with trio.fail_after(5):
        assert (await deployed.reply()).body["status"] == "RUNNING"


@pytest.mark.parametrize(
    "process, path, name", [("approval", "user-tasks", "user_tasks"), ("stuck", "incidents", "incidents")]
)
async def test_what_waits_for_people_is_listed_by_pages(
    deployed: Any, engine: ServedEngine, process: str, path: str, name: str
) -> None:
    instances = [await deployed.start(process) for _ in range(5)]
    if process == "stuck":
        for instance_id in instances:
            await deployed.get(f"/process-instances/{instance_id}/wait?timeout_ms=5000&or_incident=true")

    async def page(query: str) -> tuple[list[str], bool]:
        body = (await deployed.get(f"/{path}{query}")).body
        return [row[f"{name[:-1]}_id"] for row in body[name]], body["more"]

    first, more = await page("?limit=2")
    assert (len(first), more) == (2, True)
    second, more = await page(f"?limit=2&after={first[-1]}")
    assert (len(second), more) == (2, True)
    third, more = await page(f"?limit=2&after={second[-1]}")
    assert (len(third), more) == (1, False)
    assert await page("") == (first + second + third, False)
    (row,) = (await deployed.get(f"/{path}?instance_id={instances[3]}")).body[name]
    assert row["instance_id"] == instances[3]
    for limit in ("0", "1001", "x"):
        assert (await deployed.get(f"/{path}?limit={limit}")).status == 400


async def test_instances_say_whether_there_are_more(deployed: Any) -> None:
    for _ in range(3):
        await deployed.start()
    assert [(await deployed.get(f"/process-instances?limit={limit}")).body["more"] for limit in (2, 3)] == [True, False]


@pytest.mark.parametrize("steps_before", [1, SNAPSHOT_EVERY - 2])
async def test_instance_is_shown_without_its_history(deployed: Any, engine: ServedEngine, steps_before: int) -> None:
    """Why it ended is told all the same, also where the last step was kept as a snapshot."""
    instance_id = await deployed.start("approval")
    path = f"/process-instances/{instance_id}"
    for number in range(steps_before):
        await engine.node.set_variables(instance_id, {"number": number})
    assert (await deployed.get(f"{path}?history=false")).body["reason"] is None
    await deployed.post(f"{path}/cancel", {"reason": "ordered twice"})
    whole = (await deployed.get(f"{path}?history=true")).body
    assert (whole["version"], whole["history"][-1]["version"]) == (steps_before + 2, steps_before + 2)
    assert (whole.pop("history")[0]["event_type"], whole.pop("more_history")) == ("InstanceStarted", False)
    brief = (await deployed.get(path)).body
    assert brief == whole
    assert (brief["status"], brief["reason"]) == ("CANCELLED", "ordered twice")
    assert (await deployed.get(f"{path}?history=no")).status == 400


async def test_user_task_is_completed(deployed: Any) -> None:
    instance_id = await deployed.start("approval", variables={"who": "me"})
    (task,) = (await deployed.get("/user-tasks")).body["user_tasks"]
    assert (task["instance_id"], task["element_id"], task["name"]) == (instance_id, "approve", "Approve")
    assert task["variables"] == {"who": "me"}
    path = f"/user-tasks/{task['user_task_id']}/complete"
    assert (await deployed.post(path, {"variables": {"approved": True}})).status == 200
    reply = await deployed.get(f"/process-instances/{instance_id}/wait?timeout_ms=5000")
    assert reply.body["status"] == "COMPLETED"
    view = (await deployed.get(f"/process-instances/{instance_id}")).body
    assert view["variables"] == {"who": "me", "approved": True}
    assert (await deployed.post(path, {})).status in (404, 409)


async def test_message_starts_an_instance(deployed: Any) -> None:
    reply = await deployed.post("/messages", {"name": "paid", "variables": {"a": 1}, "message_id": "m-1"})
    assert (reply.status, reply.body) == (201, {"message_id": "m-1"})
    with trio.fail_after(5):
        while not (page := (await deployed.get("/process-instances?process=paid")).body["instances"]):
            await trio.sleep(0.01)
    assert len(page) == 1


async def test_variables_are_set_by_hand(deployed: Any) -> None:
    instance_id = await deployed.start(variables={"a": 1, "b": 1})
    path = f"/process-instances/{instance_id}"
    reply = await deployed.post(f"{path}/variables", {"variables": {"b": {"c": 10**30}, "d": None}})
    assert (reply.status, reply.body) == (200, {})
    view = (await deployed.get(path)).body
    assert view["variables"] == {"a": 1, "b": {"c": 10**30}, "d": None}
    assert (await deployed.get(f"{path}/history")).body["history"][-1]["event_type"] == "VariablesSet"
    await deployed.post(f"{path}/cancel", {})
    refused = await deployed.post(f"{path}/variables", {"variables": {}})
    assert (refused.status, refused.body["code"]) == (409, "ended")


# --- starting ------------------------------------------------------------------------------------------------------


async def test_start_says_how_far_the_instance_came(deployed: Any) -> None:
    reply = await deployed.post("/process-instances", {"process_def_id": "order"})
    assert (reply.status, sorted(reply.body), reply.body["status"]) == (201, ["instance_id", "status"], "RUNNING")
    assert reply.headers["location"] == f"/api/v1/process-instances/{reply.body['instance_id']}"


async def test_start_takes_the_version_that_is_asked_for(deployed: Any, order_model: str) -> None:
    file = {"name": "order.bpmn", "xml": order_model + "<!-- 2 -->"}
    assert (await deployed.post("/process-definitions", {"files": [file]})).status == 201
    for process_def_id, definition_id in (("order", "order:2"), ("order:1", "order:1"), ("order:2", "order:2")):
        instance_id = await deployed.start(process_def_id)
        assert (await deployed.get(f"/process-instances/{instance_id}")).body["definition_id"] == definition_id


async def test_start_waits_for_the_end(deployed: Any, engine: ServedEngine) -> None:
    answers: list[Any] = []

    async def start() -> None:
        body = {"process_def_id": "approval", "variables": {"a": 1}, "wait_ms": 60_000}
        answers.append(await deployed.post("/process-instances", body))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        with trio.fail_after(5):
            while not (found := await engine.node.user_tasks()):
                await trio.sleep(0.01)
            await engine.node.complete_user_task(str(found[0]["user_task_id"]), {"approved": True})
    (answer,) = answers
    assert answer.status == 201
    assert answer.body.pop("instance_id") == found[0]["instance_id"]
    assert answer.body == {
        "status": "COMPLETED",
        "variables": {"a": 1, "approved": True},
        "incidents": [],
        "reason": None,
    }


async def test_start_waits_for_an_incident(deployed: Any) -> None:
    reply = await deployed.post("/process-instances", {"process_def_id": "stuck", "wait_ms": 8000})
    (incident,) = reply.body["incidents"]
    assert (reply.status, reply.body["status"], incident["element_id"]) == (201, "RUNNING", "c")


async def test_start_does_not_wait_longer_than_it_is_told(deployed: Any) -> None:
    reply = await deployed.post("/process-instances", {"process_def_id": "order", "wait_ms": 1})
    assert (reply.status, reply.body["status"], reply.body["incidents"]) == (201, "RUNNING", [])


async def test_start_that_waits_is_answered_when_the_engine_drains(deployed: Any, engine: ServedEngine) -> None:
    content = b'{"process_def_id": "order", "wait_ms": 600000}'
    head = f"POST /api/v1/process-instances HTTP/1.1\r\nHost: here\r\nContent-Length: {len(content)}\r\n\r\n"
    await deployed.stream.send_all(head.encode() + content)
    with trio.fail_after(5):
        while not await engine.node.instances():
            await trio.sleep(0.01)
        await engine.drain(0.1)
        reply = await deployed.reply()
    assert (reply.status, reply.body["status"]) == (201, "RUNNING")


# --- finding -------------------------------------------------------------------------------------------------------


async def test_instances_are_found_by_what_they_are(deployed: Any, engine: ServedEngine) -> None:
    first = await deployed.start(business_key="A-1")
    second = await deployed.start("approval", business_key="A-2")
    await trio.sleep(0.002)  # started_at has milliseconds
    stuck = await deployed.start("stuck", business_key="A-1")
    await deployed.has_incident(stuck)
    await engine.node.cancel_instance(first, "not wanted")

    async def found(query: str) -> set[str]:
        reply = await deployed.get(f"/process-instances?{query}")
        assert reply.status == 200, reply
        return {row["instance_id"] for row in reply.body["instances"]}

    started_at = (await deployed.get(f"/process-instances/{stuck}")).body["started_at"]
    in_berlin = (f"{int(started_at[11:13]) + 2:02d}{started_at[13:-1]}", started_at[:10])
    assert await found("business_key=A-1") == {first, stuck}
    assert await found("business_key=A-1&status=CANCELLED") == {first}
    assert await found("definition_id=approval:1") == {second}
    assert await found("process=stuck") == {stuck}
    assert await found("with_incident=true") == {stuck}
    assert await found("with_incident=false") == {first, second}
    assert await found(f"started_from={started_at}") == {stuck}
    assert await found(f"started_before={started_at}") == {first, second}
    assert await found(f"started_before={started_at[:-1]}0001Z") == {first, second, stuck}, "it began before that"
    if in_berlin[0] < "24":
        assert await found(f"started_from={in_berlin[1]}T{in_berlin[0]}%2B02:00") == {stuck}


@pytest.mark.parametrize(
    "query",
    [
        "started_from=yesterday",
        "started_from=2026-01-01",
        "started_from=2026-01-01T00:00:00",
        "started_before=2026-13-01T00:00:00Z",
        "started_before=2026-01-01T00:00:00+02:00",  # + is a space there
        "started_before=0000-01-01T00:00:00Z",
        "with_incident=yes",
        "process=a&process=b",
    ],
)
async def test_malformed_condition_is_refused_in_words(client: Any, query: str) -> None:
    reply = await client.get(f"/process-instances?{query}")
    assert (reply.status, reply.body["code"]) == (400, "invalid")
    assert query.partition("=")[0] in reply.body["detail"]
