"""``/engine-rest/task``: what waits for people."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
async def task(camunda: Any) -> Any:
    await camunda.start("approval", businessKey="B-1", variables={"sum": {"value": 7}})
    (row,) = (await camunda.get("/task")).body
    return row


async def test_a_task_says_what_it_is(camunda: Any, task: Any) -> None:
    assert (task["name"], task["taskDefinitionKey"], task["processDefinitionId"]) == (
        "Approve",
        "approve",
        "approval:1",
    )
    assert (task["assignee"], task["formKey"], task["suspended"]) == (None, "embedded:app:a.html", False)
    assert task["created"].endswith("+0000")
    assert (await camunda.get(f"/task/{task['id']}")).body == task
    variables = (await camunda.get(f"/task/{task['id']}/variables")).body
    assert variables["sum"] == {"type": "Integer", "value": 7, "valueInfo": {}}


async def test_completing_a_task_goes_on_with_its_variables(camunda: Any, task: Any) -> None:
    body = {"variables": {"approved": {"value": True, "type": "Boolean"}}, "withVariablesInReturn": True}
    reply = await camunda.post(f"/task/{task['id']}/complete", body)
    assert reply.status == 200
    assert reply.body["approved"]["value"] is True
    assert await camunda.status(task["processInstanceId"]) == "COMPLETED"
    for again in (
        await camunda.post(f"/task/{task['id']}/complete", {}),
        await camunda.get(f"/task/{task['id']}"),
    ):
        assert (again.status, again.body["type"]) == (404, "RestException")


async def test_completing_without_a_body_answers_204(camunda: Any, task: Any) -> None:
    assert (await camunda.send("POST", f"/task/{task['id']}/complete")).status == 204
    assert (await camunda.get("/task/count")).body == {"count": 0}


async def test_a_task_is_claimed_by_one_person_and_given_back(camunda: Any, task: Any) -> None:
    path = f"/task/{task['id']}"
    assert (await camunda.post(f"{path}/claim", {"userId": "ann"})).status == 204
    assert (await camunda.get(path)).body["assignee"] == "ann"
    refused = await camunda.post(f"{path}/claim", {"userId": "bob"})
    assert (refused.status, refused.body["type"]) == (400, "RestException")
    assert (await camunda.post(f"{path}/assignee", {"userId": "bob"})).status == 204
    assert (await camunda.get(path)).body["assignee"] == "bob"
    assert (await camunda.post(f"{path}/unclaim")).status == 204
    assert (await camunda.get(path)).body["assignee"] is None
    assert (await camunda.post(f"{path}/claim", {})).status == 400


async def test_tasks_are_listed_by_who_they_are_for(camunda: Any, task: Any) -> None:
    async def count(query: str) -> int:
        rows = (await camunda.get(f"/task?{query}")).body
        assert (await camunda.get(f"/task/count?{query}")).body == {"count": len(rows)}
        return len(rows)

    assert await count("candidateGroup=sales") == 1
    assert await count("candidateGroup=other") == 0
    assert await count("candidateUser=ann") == 0
    assert await count("unassigned=true&processDefinitionKey=approval&taskDefinitionKey=approve") == 1
    assert await count("processDefinitionKey=shipping") == 0
    await camunda.post(f"/task/{task['id']}/claim", {"userId": "ann"})
    assert await count("assignee=ann&assigned=true") == 1
    assert await count("assignee=bob") == 0
    assert await count("candidateGroup=sales") == 0
    assert await count(f"processInstanceId={task['processInstanceId']}") == 1
    assert len((await camunda.post("/task", {"assignee": "ann", "sorting": [{"sortBy": "created"}]})).body) == 1
    assert (await camunda.post("/task/count", {"assignee": "bob"})).body == {"count": 0}
    assert (await camunda.get("/task?dueBefore=2026-01-01T00:00:00.000%2B0000")).status == 501
