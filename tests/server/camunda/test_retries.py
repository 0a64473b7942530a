"""``retries`` of external tasks: one and many, and 0, which stops a task at an incident."""

from __future__ import annotations

from typing import Any

import pytest


async def retries_of(camunda: Any, task_id: str) -> Any:
    return (await camunda.get(f"/external-task/{task_id}")).body["retries"]


async def incidents(camunda: Any) -> list[Any]:
    return list((await camunda.api.get("/incidents")).body["incidents"])


@pytest.fixture
async def shipped(camunda: Any) -> tuple[Any, list[str], list[str]]:
    """The client, three instances of ``shipping``, and their tasks."""
    instances = [await camunda.start("shipping", businessKey=f"B-{number}") for number in range(3)]
    rows = {row["processInstanceId"]: row["id"] for row in (await camunda.get("/external-task")).body}
    return camunda, instances, [rows[instance_id] for instance_id in instances]


async def test_with_no_retries_a_task_stands_at_an_incident_and_nobody_gets_it(shipped: Any) -> None:
    camunda, instances, tasks = shipped
    assert (await camunda.put(f"/external-task/{tasks[0]}/retries", {"retries": 0})).status == 204
    (incident,) = await incidents(camunda)
    assert (incident["kind"], incident["instance_id"]) == ("retries_exhausted", instances[0])
    assert incident["message"] == "its retries were set to 0"
    assert await retries_of(camunda, tasks[0]) == 0
    assert [row["id"] for row in (await camunda.get("/external-task?noRetriesLeft=true")).body] == [tasks[0]]
    assert (await camunda.get("/external-task/count?withRetriesLeft=true")).body == {"count": 2}
    assert {task["id"] for task in await camunda.fetch("pack")} == {*tasks[1:]}
    assert (await camunda.get(f"/process-instance/{instances[0]}")).status == 200
    trace = await camunda.api.get(f"/process-instances/{instances[0]}/trace")
    assert trace.status == 200

    assert (await camunda.put(f"/external-task/{tasks[0]}/retries", {"retries": 0})).status == 204
    assert len(await incidents(camunda)) == 1
    assert (await camunda.put(f"/external-task/{tasks[0]}/retries", {"retries": 2})).status == 204
    assert await incidents(camunda) == []
    task = await camunda.fetch_one("pack", worker="w-2")
    assert task["id"] == tasks[0]
    assert (await camunda.post(f"/external-task/{tasks[0]}/complete", {"workerId": "w-2"})).status == 204
    assert await camunda.status(instances[0]) == "COMPLETED"


async def test_a_locked_task_is_taken_from_its_worker(shipped: Any) -> None:
    camunda, _, _ = shipped
    task = await camunda.fetch_one("pack", max_tasks=1)
    assert (await camunda.put(f"/external-task/{task['id']}/retries", {"retries": 0})).status == 204
    assert len(await incidents(camunda)) == 1
    reply = await camunda.post(f"/external-task/{task['id']}/complete", {"workerId": "w-1"})
    assert (reply.status, reply.body["type"]) == (400, "RestException")
    assert await retries_of(camunda, task["id"]) == 0


async def test_a_task_that_has_ended_has_no_retries_to_set(shipped: Any) -> None:
    camunda, _, _ = shipped
    task = await camunda.fetch_one("pack", max_tasks=1)
    await camunda.post(f"/external-task/{task['id']}/complete", {"workerId": "w-1"})
    reply = await camunda.put(f"/external-task/{task['id']}/retries", {"retries": 0})
    assert (reply.status, reply.body["type"]) == (400, "RestException")
    assert await incidents(camunda) == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"externalTaskIds": [0, 2, 0]}, [0, 2]),
        ({"processInstanceIds": [1]}, [1]),
        ({"externalTaskQuery": {"topicName": "pack"}}, [0, 1, 2]),
        ({"externalTaskQuery": {"topicName": "pack"}, "externalTaskIds": [1]}, [0, 1, 2]),
        ({"processInstanceQuery": {"businessKey": "B-2"}}, [2]),
        ({"processInstanceQuery": {"businessKey": "B-1"}, "processInstanceIds": [0]}, [0, 1]),
    ],
)
@pytest.mark.parametrize("retries", [0, 7])
async def test_many_are_set_at_once(shipped: Any, asked: dict[str, Any], expected: list[int], retries: int) -> None:
    camunda, instances, tasks = shipped
    names = {"externalTaskIds": tasks, "processInstanceIds": instances}
    body = {name: [names[name][n] for n in value] if name in names else value for name, value in asked.items()}
    reply = await camunda.put("/external-task/retries", {"retries": retries, **body})
    assert (reply.status, reply.body) == (204, "")
    found = [await retries_of(camunda, task_id) for task_id in tasks]
    assert found == [retries if number in expected else None for number in range(3)]
    assert len(await incidents(camunda)) == (0 if retries else len(expected))


async def test_incidents_of_many_are_resolved_at_once(shipped: Any) -> None:
    camunda, _, tasks = shipped
    await camunda.put("/external-task/retries", {"retries": 0, "externalTaskIds": tasks})
    assert await camunda.fetch("pack") == []
    body = {"retries": 1, "externalTaskQuery": {"noRetriesLeft": True}}
    assert (await camunda.put("/external-task/retries", body)).status == 204
    assert {task["id"] for task in await camunda.fetch("pack")} == {*tasks}
    assert await incidents(camunda) == []


async def test_where_one_of_many_cannot_be_set_none_is(shipped: Any) -> None:
    camunda, _, tasks = shipped
    done = await camunda.fetch_one("pack", max_tasks=1)
    await camunda.post(f"/external-task/{done['id']}/complete", {"workerId": "w-1"})
    for wrong in ("nobody", done["id"]):
        body = {"retries": 0, "externalTaskIds": [*tasks[1:], wrong]}
        reply = await camunda.put("/external-task/retries", body)
        assert (reply.status, reply.body["type"]) == (404, "RestException")
    assert await incidents(camunda) == []


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"externalTaskIds": ["x"]}, 400, "retries is missing"),
        ({"retries": None, "externalTaskIds": ["x"]}, 400, "@ $.retries"),
        ({"retries": -1, "externalTaskIds": ["x"]}, 400, "@ $.retries"),
        ({"retries": 2**31, "externalTaskIds": ["x"]}, 400, "@ $.retries"),
        ({"retries": 1}, 400, "externalTaskIds is empty"),
        ({"retries": 1, "externalTaskIds": []}, 400, "externalTaskIds is empty"),
        ({"retries": 1, "externalTaskQuery": {"topicName": "none"}}, 400, "externalTaskIds is empty"),
        ({"retries": 1, "externalTaskIds": ["x", 7]}, 400, "@ $.externalTaskIds[1]"),
        ({"retries": 1, "externalTaskQuery": {"topicName": 7}}, 400, "@ $.externalTaskQuery.topicName"),
        ({"retries": 1, "externalTaskQuery": []}, 400, "@ $.externalTaskQuery"),
        (
            {"retries": 1, "externalTaskQuery": {"priorityLowerThanOrEquals": "x"}},
            400,
            "@ $.externalTaskQuery.priorityLowerThanOrEquals",
        ),
        ({"retries": 1, "externalTaskQuery": {"executionId": "x"}}, 501, "only by externalTaskId, "),
        ({"retries": 1, "processInstanceQuery": {"tenantIdIn": ["x"]}}, 501, "only by processInstanceIds, "),
        ({"retries": 1, "historicProcessInstanceQuery": {}}, 501, "ask by processInstanceQuery"),
        ([], 400, "expected an object"),
        ({"retries": 1, "processInstanceIds": [f"i-{n}" for n in range(1001)]}, 400, "at most 1000"),
    ],
)
async def test_what_cannot_be_set_at_once_is_refused(shipped: Any, body: Any, status: int, said: str) -> None:
    camunda, _, tasks = shipped
    reply = await camunda.put("/external-task/retries", body)
    assert reply.status == status, reply
    assert said in reply.body["message"]
    assert [await retries_of(camunda, task_id) for task_id in tasks] == [None] * 3
