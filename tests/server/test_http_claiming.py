"""Who has a user task, and lists of those that somebody looks for, over the HTTP API."""

from __future__ import annotations

from typing import Any

import pytest

MODEL = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn">
  <process id="{key}" isExecutable="true"><startEvent id="s"/><sequenceFlow id="f" sourceRef="s" targetRef="check"/>
    <userTask id="check" {attributes}/></process></definitions>"""


@pytest.fixture
async def people(client: Any) -> Any:
    """``one`` is for clerks, ``two`` is ann's."""
    models = {"one": 'camunda:candidateGroups="clerks,staff"', "two": 'camunda:assignee="ann"'}
    files = [{"name": f"{key}.bpmn", "xml": MODEL.format(key=key, attributes=it)} for key, it in models.items()]
    assert (await client.post("/process-definitions", {"files": files})).status == 201
    for key in models:
        await client.start(key)
    return client


async def found(client: Any, query: str = "") -> list[str]:
    rows = (await client.get(f"/user-tasks{query}")).body["user_tasks"]
    return [f"{row['element_id']} {row['assignee']}" for row in rows]


async def id_of(client: Any, process: str) -> str:
    (row,) = (await client.get(f"/user-tasks?process={process}")).body["user_tasks"]
    return str(row["user_task_id"])


async def test_a_user_task_is_claimed_once_and_given_back(people: Any) -> None:
    path = f"/user-tasks/{await id_of(people, 'one')}"
    for _ in range(2):  # the answer to the first may have been lost
        reply = await people.post(f"{path}/claim", {"assignee": "bob"})
        assert (reply.status, reply.body) == (200, {})
    refused = await people.post(f"{path}/claim", {"assignee": "eve"})
    assert (refused.status, refused.body["code"]) == (409, "assigned")
    assert "bob" not in refused.body["detail"]
    assert await found(people, "?assignee=bob") == ["check bob"]
    for _ in range(2):
        assert (await people.post(f"{path}/unclaim", {})).status == 200
    assert await found(people, "?process=one") == ["check None"]
    assert (await people.post(f"{path}/claim", {"assignee": "eve"})).status == 200
    assert (await people.post(f"{path}/complete", {})).status == 200, "the engine does not mind by whom"
    assert (await people.post(f"{path}/claim", {"assignee": "eve"})).status == 404


async def test_the_model_may_have_given_it_to_somebody(people: Any) -> None:
    path = f"/user-tasks/{await id_of(people, 'two')}"
    assert (await people.post(f"{path}/claim", {"assignee": "bob"})).body["code"] == "assigned"
    assert (await people.post(f"{path}/claim", {"assignee": "ann"})).status == 200
    assert (await people.post(f"{path}/unclaim", {})).status == 200
    assert (await people.post(f"{path}/claim", {"assignee": "bob"})).status == 200


async def test_P3_history_trace_and_state_tell_who_had_it(people: Any) -> None:
    user_task_id = await id_of(people, "one")
    await people.post(f"/user-tasks/{user_task_id}/claim", {"assignee": "bob"})
    await people.post(f"/user-tasks/{user_task_id}/unclaim", {})
    await people.post(f"/user-tasks/{user_task_id}/claim", {"assignee": "ann"})
    (row,) = (await people.get("/process-instances?process=one")).body["instances"]
    path = f"/process-instances/{row['instance_id']}"
    events = (await people.get(f"{path}/history?event_type=UserTaskAssigned")).body["history"]
    assert [event["payload"]["assignee"] for event in events] == ["bob", None, "ann"]
    assert {event["category"] for event in events} == {"user_task"}
    (token,) = (await people.get(f"{path}/trace")).body["tokens"]
    assert [wait["assignee"] for stay in token["stays"] for wait in stay["waits"]] == ["ann"]
    states = [(await people.get(f"{path}/state?at={version}")).body["state"]["assignees"] for version in (1, 2, 3, 4)]
    assert states == [{}, {user_task_id: "bob"}, {}, {user_task_id: "ann"}]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["check None", "check ann"]),
        ("?assignee=ann", ["check ann"]),
        ("?assignee=nobody", []),
        ("?candidate_group=staff", ["check None"]),
        ("?candidate_group=sta", []),
        ("?process=two", ["check ann"]),
        ("?process=two&candidate_group=staff", []),
    ],
)
async def test_user_tasks_are_found(people: Any, query: str, expected: list[str]) -> None:
    assert await found(people, query) == expected


@pytest.mark.parametrize("body", [{}, {"assignee": ""}, {"assignee": None}, {"assignee": 1}, {"assignee": "a\x00"}])
async def test_an_assignee_is_a_name(people: Any, body: object) -> None:
    path = f"/user-tasks/{await id_of(people, 'one')}/claim"
    reply = await people.post(path, body)
    assert (reply.status, reply.body["code"]) == (400, "invalid")
    assert await found(people, "?process=one") == ["check None"]
    too_long = await people.post(path, {"assignee": "a" * 256})
    assert (too_long.status, too_long.body["code"]) == (413, "too_large")
