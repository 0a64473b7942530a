"""The rest of bpm-engine's API on ``/bpm-engine``: definitions, instances, their history and trace, tasks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from stellwerk.app import ServedEngine
from stellwerk.server.bpm_engine.dialect import NOT_SERVED, bpm_engine
from stellwerk.server.bpm_engine.events import EVENT_NAMES
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.context import ApiContext

DOCS = Path(__file__).parents[3] / "docs/bpm-engine.md"

RACE = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
    xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="race" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="split"/>
    <parallelGateway id="split"/>
    <sequenceFlow id="f2" sourceRef="split" targetRef="work"/>
    <sequenceFlow id="f3" sourceRef="split" targetRef="look"/>
    <serviceTask id="work" stellwerk:topic="work"/>
    <boundaryEvent id="late" attachedToRef="work">
      <timerEventDefinition><timeDuration>P7D</timeDuration></timerEventDefinition>
    </boundaryEvent>
    <sequenceFlow id="f4" sourceRef="late" targetRef="e2"/><endEvent id="e2"/>
    <userTask id="look"/>
    <sequenceFlow id="f5" sourceRef="work" targetRef="join"/>
    <sequenceFlow id="f6" sourceRef="look" targetRef="join"/>
    <parallelGateway id="join"/>
    <sequenceFlow id="f7" sourceRef="join" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>
"""


@pytest.fixture
async def race(client: Any) -> str:
    """An instance in which a worker and somebody else have something to do, side by side."""
    reply = await client.post("/process-definitions/deploy", RACE.encode())
    assert (reply.status, reply.body) == (201, {"process_definition_id": "race"})
    return str(await client.start("race", amount=12.5))


# --- definitions and instances ---------------------------------------------------------------------------------------


async def test_a_file_is_deployed_as_its_server_takes_it(client: Any, order_model: str) -> None:
    again = await client.post("/process-definitions/deploy", order_model.encode())
    assert (again.status, again.body["process_definition_id"]) == (201, "order")
    refused = await client.post("/process-definitions/deploy", b"<definitions/>")
    assert (refused.status, refused.body["code"]) == (400, "deploy_refused")
    assert refused.body["findings"]
    assert refused.body["error"]
    long = await client.post("/process-definitions/deploy", b" " * (10 * 1024 * 1024 + 1))
    assert long.status == 413


async def test_a_file_is_deployed_as_its_specification_says(client: Any) -> None:
    body = {"id": "race", "version": "1.0.0", "definition": RACE}
    for model, version in ((RACE, "1"), (RACE, "1"), (RACE.replace('id="e2"/>', 'id="e2" name="n"/>'), "2")):
        reply = await client.post("/process-definitions", {**body, "definition": model})
        assert (reply.status, reply.body) == (201, {"id": "race", "version": version, "status": "DEPLOYED"})
    other = await client.post("/process-definitions", {**body, "id": "rice"})
    assert (other.status, "$.id" in other.body["error"], "race" in other.body["error"]) == (400, True, True)
    partly = RACE.replace("</definitions>", '<process id="idle"/></definitions>')
    idle = await client.post("/process-definitions", {"id": "idle", "definition": partly})
    assert (idle.status, "$.id" in idle.body["error"]) == (400, True), "nothing of it is deployed"
    long = await client.post("/process-definitions", {**body, "definition": RACE + " " * (10 * 1024 * 1024)})
    assert long.status == 413
    as_json = await client.post("/process-definitions", {**body, "definition": {"nodes": []}})
    assert as_json.status == 501
    assert "BPMN file" in as_json.body["error"]
    broken = await client.post("/process-definitions", {**body, "definition": "<definitions/>"})
    assert (broken.status, broken.body["code"]) == (400, "deploy_refused")


async def test_an_instance_is_started_shown_and_cancelled(client: Any, race: str) -> None:
    shown = await client.get(f"/process-instances/{race}")
    assert (shown.status, shown.body) == (
        200,
        {
            "instance_id": race,
            "process_def_id": "race",
            "status": "RUNNING",
            "current_nodes": ["look", "work"],
        },
    )
    cancelled = await client.post(f"/process-instances/{race}/cancel")
    assert (cancelled.status, cancelled.body) == (200, {"instance_id": race, "status": "TERMINATED"})
    shown = await client.get(f"/process-instances/{race}")
    assert (shown.body["status"], shown.body["current_nodes"]) == ("TERMINATED", [])
    for reply in (
        await client.get("/process-instances/nobody"),
        await client.get("/process-instances/nobody/history"),
        await client.get("/process-instances/nobody/trace"),
        await client.post("/process-instances", {"process_def_id": "nothing"}),
    ):
        assert reply.status == 404
        assert set(reply.body) == {"error", "code"}


async def test_a_start_that_is_repeated_with_its_key_is_one(client: Any) -> None:
    body = {"process_def_id": "order", "variables": {"order_id": "123"}}
    key = "Idempotency-Key: k-1\r\n"
    first, again = [await client.post("/process-instances", body, key) for _ in range(2)]
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body == {"instance_id": first.body["instance_id"], "status": "RUNNING"}
    other = await client.post("/process-instances", {**body, "variables": {}}, key)
    assert (other.status, other.body["code"]) == (422, "idempotency_conflict")


# --- history and trace -----------------------------------------------------------------------------------------------


async def test_P3_a_history_counts_from_0_and_knows_the_token_of_every_event(sdk: Any, client: Any, race: str) -> None:
    (task,) = await sdk.fetch_and_lock("w-1", ["work"])
    await sdk.complete(task.task_id, "w-1", {"done": "yes"})
    (user_task,) = (await client.get("/tasks?type=user")).body
    reply = await client.post(f"/tasks/{user_task['task_id']}/complete", {"variables": {"approved": True}})
    assert (reply.status, reply.body) == (200, {"status": "COMPLETED"})
    assert (await client.ended(race))["status"] == "COMPLETED"
    history = (await client.get(f"/process-instances/{race}/history")).body
    events = history["events"]
    assert (history["instance_id"], history["more"]) == (race, False)
    assert [event["sequence"] for event in events] == list(range(len(events)))
    assert len({event["id"] for event in events}) == len(events)
    assert {event["category"] for event in events} == {"instance", "token", "external"}
    assert all(event["occurred_at"].isdecimal() and event["payload"]["instance_id"] == race for event in events)
    assert (events[0]["event_type"], events[-1]["event_type"]) == ("ProcessStarted", "ProcessCompleted")
    assert (events[0]["payload"]["process_id"], events[0]["payload"]["initial_variables"]) == (
        "race",
        {"amount": "12.5"},
    )
    of_token = (await client.get(f"/process-instances/{race}/history?token_id={task.token_id}")).body["events"]
    assert of_token == [event for event in events if event["payload"].get("token_id") == task.token_id]
    kinds = [event["event_type"] for event in of_token]
    assert {"TokenArrived", "TaskCreated", "ExternalTaskCompleted", "TimerScheduled", "TimerDisarmed"} <= {*kinds}
    arrived = (await client.get(f"/process-instances/{race}/history?event_type=TokenArrived&x=1")).body["events"]
    assert arrived == [event for event in events if event["event_type"] == "TokenArrived"]
    assert {event["payload"]["node_id"] for event in arrived} == {"s", "split", "work", "look", "join", "e"}
    assert (await client.get(f"/process-instances/{race}/history?token_id=x")).body["events"] == []


async def test_a_history_that_is_asked_for_in_parts_is_the_same(client: Any, race: str) -> None:
    whole = (await client.get(f"/process-instances/{race}/history")).body["events"]
    found: list[Any] = []
    more, after = True, ""
    while more:
        part = (await client.get(f"/process-instances/{race}/history?limit=3{after}")).body
        assert len(part["events"]) <= 3
        found += part["events"]
        more, after = part["more"], f"&after={found[-1]['sequence']}"
    assert found == whole
    for query in ("limit=0", "limit=10001", "after=x"):
        assert (await client.get(f"/process-instances/{race}/history?{query}")).status == 400


async def test_P3_a_trace_tells_of_tokens_and_of_every_lease(sdk: Any, client: Any, race: str) -> None:
    (task,) = await sdk.fetch_and_lock("w-1", ["work"])
    await sdk.fail(task.task_id, "w-1", "the bank is closed", retry_after_ms=0)
    await sdk.fetch_and_lock("w-2", ["work"])
    trace = (await client.get(f"/process-instances/{race}/trace")).body
    assert trace["instance"] == (await client.get(f"/process-instances/{race}")).body
    timelines = {line["token_id"]: line for line in trace["token_timelines"]}
    line = timelines[task.token_id]
    assert (line["node_id"], line["status"], line["events"][-1]["event_type"]) == ("work", "WAITING", "TokenArrived")
    (history,) = trace["external_task_history"]
    assert (history["task_id"], history["token_id"], history["process_instance_id"]) == (
        task.task_id,
        task.token_id,
        race,
    )
    told = [(event["event_type"], event["payload"]["worker_id"]) for event in history["events"]]
    assert told == [("ExternalTaskLocked", "w-1"), ("ExternalTaskFailed", "w-1"), ("ExternalTaskLocked", "w-2")]
    assert history["events"][1]["payload"]["error_message"] == "the bank is closed"
    await client.post(f"/process-instances/{race}/cancel")
    ended = (await client.get(f"/process-instances/{race}/trace")).body["token_timelines"]
    by_id = {line["token_id"]: line for line in ended}
    line = by_id[task.token_id]
    assert (line["status"], line["events"][-1]["event_type"]) == ("TERMINATED", "TokenCancelled")


# --- tasks -----------------------------------------------------------------------------------------------------------


async def test_open_tasks_are_listed_by_type(sdk: Any, client: Any, race: str) -> None:
    await client.start("approval")
    both = (await client.get("/tasks")).body
    users, externals = (await client.get("/tasks?type=user")).body, (await client.get("/tasks?type=external")).body
    assert both == users + externals
    assert [(task["node_id"], task["type"], task["task_type"]) for task in users] == [
        ("look", "user", "user"),
        ("approve", "user", "user"),
    ]
    (external,) = externals
    assert (external["instance_id"], external["node_id"], external["type"]) == (race, "work", "external")
    (task,) = await sdk.fetch_and_lock("w-1", ["work"])
    assert task.task_id == external["task_id"]
    assert (await client.get("/tasks?type=external")).body == externals, "a locked one is open"
    assert (await client.get("/tasks?type=other")).status == 400
    refused = await client.post(f"/tasks/{task.task_id}/complete", {})
    assert refused.status == 404


async def test_more_tasks_than_a_list_may_have_are_all_there(client: Any, engine: ServedEngine) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(230):
            variables: dict[str, object] = {"n": number}
            nursery.start_soon(engine.node.start_instance, "order", variables)
    found = (await client.get("/tasks?type=external")).body
    assert len({task["task_id"] for task in found}) == len(found) == 230


# --- who may, and what is not there ----------------------------------------------------------------------------------


async def test_scopes_and_processes_hold_here_too(client: Any, race: str, basic: Any) -> None:
    order = await client.start("order")
    admin = await client.api.post("/keys", {"name": "admin", "scopes": ["admin"]})
    bearer = f"Authorization: Bearer {admin.body['key']}\r\n"

    async def make(**rights: object) -> str:
        return str(basic((await client.api.post("/keys", {"name": "some", **rights}, bearer)).body["key"]))

    for path in (f"/process-instances/{race}", "/tasks"):
        reply = await client.get(path)
        assert (reply.status, reply.body["code"]) == (401, "unauthenticated")
        assert reply.headers["www-authenticate"]
    client.headers = await make(scopes=["worker"])
    assert (await client.post("/process-instances", {"process_def_id": "order"})).status == 403
    client.headers = await make(scopes=["client"])
    for path, body in (
        ("/process-definitions/deploy", RACE.encode()),
        ("/process-definitions", {"id": "race", "definition": RACE}),
        (f"/process-instances/{race}/cancel", {}),
        ("/external-tasks/x/complete", {"worker_id": "w"}),
    ):
        assert (await client.post(path, body)).status == 403, path
    client.headers = await make(scopes=["client", "operator"], processes=["order"])
    assert [task["instance_id"] for task in (await client.get("/tasks")).body] == [order]
    assert (await client.get(f"/process-instances/{order}/history")).status == 200
    for path in ("", "/history", "/trace"):
        assert (await client.get(f"/process-instances/{race}{path}")).status == 403
    for path, body in (
        (f"/process-instances/{race}/cancel", {}),
        ("/process-instances", {"process_def_id": "race"}),
        ("/process-definitions/deploy", RACE.encode()),
        ("/process-definitions", {"id": "race", "definition": RACE}),
    ):
        assert (await client.post(path, body)).status == 403, path


def nameless(path: str) -> str:
    """Parameters have other names in the code."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def listed_under(heading: str) -> list[str]:
    section = DOCS.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    first_cells = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `")]
    return [nameless(path) for cell in first_cells for path in re.findall(r"`([A-Z]+ /[^`]*)`", cell)]


async def test_the_documentation_lists_exactly_what_is_served(engine: ServedEngine) -> None:
    endpoints = bpm_engine(ApiContext(engine.node, Draining())).endpoints
    served = {f"{endpoint.method} {nameless(endpoint.path)}" for endpoint in endpoints}
    unserved = {f"{method} {nameless(path)}" for method, path in NOT_SERVED}
    assert sorted(listed_under("What answers 501")) == sorted(unserved)
    assert sorted(listed_under("What is served")) == sorted(path for path in served - unserved if " /{}" not in path)


def test_the_documentation_lists_the_events_that_have_other_names() -> None:
    section = DOCS.read_text(encoding="utf-8").split("## History\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+)` \| `(\w+)`", section, re.MULTILINE))
    assert listed == {(name, fact.__name__) for fact, name in EVENT_NAMES.items()}


@pytest.mark.parametrize(
    "request_line", [*(f"{method} {path}" for method, path in NOT_SERVED), "GET /nothing", "PATCH /tasks"]
)
async def test_what_is_not_served_answers_501_with_a_way_out(client: Any, request_line: str) -> None:
    method, path = re.sub(r"\{[^}]*\}", "x", request_line).split(" ")
    for body in (None, {"signal": "alarm", "instance_id": "x", "payload": {}}, b"no JSON"):
        if body is None or method != "GET":
            reply = await client.send(method, path, body)
            assert (reply.status, reply.body["code"]) == (501, "not_implemented")
            assert "/api/v1" in reply.body["error"] or "docs/" in reply.body["error"]
