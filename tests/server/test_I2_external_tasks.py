"""External tasks in ProcessCube's API: their data model and their states, over HTTP and in virtual time."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import attrs
import pytest
import trio
from trio.testing import MockClock

import stellwerk

Json: TypeAlias = dict[str, Any]

PREFIX = "/atlas_engine/api/v1"
MODEL = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="cube" isExecutable="true" stellwerk:failurePolicy="incident">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="work"/>
    <serviceTask id="work" stellwerk:topic="work" {}/>
    <sequenceFlow id="f2" sourceRef="work" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>
"""
# Of the 17 fields of the data model these 14 are there, and the three of a task's end are not: it has none yet.
OF_EVERY_TASK = {
    "id",
    "workerId",
    "topic",
    "isSingleTry",
    "flowNodeInstanceId",
    "correlationId",
    "processDefinitionId",
    "processModelId",
    "processInstanceId",
    "ownerId",
    "payload",
    "lockExpirationTime",
    "state",
    "createdAt",
}
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@attrs.frozen
class Cube:
    """ProcessCube's API of an engine."""

    client: Any

    async def deploy(self, attributes: str = "") -> None:
        await self.ask("POST", "/process_definitions", {"xml": MODEL.format(attributes)}, status=204)

    async def start(self, **more: object) -> str:
        body = {"processModelId": "cube", "returnOn": 1, "initialToken": {"amount": 12.5}, **more}
        return str((await self.ask("POST", "/process_models/cube/start", body))["processInstanceId"])

    async def fetch(self, **more: object) -> list[Json]:
        wanted = {"workerId": "w", "topicName": "work", "maxTasks": 10, "lockDuration": 30_000, **more}
        tasks: list[Json] = await self.ask(
            "POST", "/external_tasks/fetch_and_lock", {"longPollingTimeout": 0, **wanted}
        )
        return tasks

    async def task_data(self, instance_id: str) -> Json:
        """What the flow node instance of the task says about it."""
        found = await self.ask("GET", f"/flow_node_instances?processInstanceId={instance_id}")
        (task,) = (node["externalTaskData"] for node in found["flowNodeInstances"] if "externalTaskData" in node)
        assert None not in task.values()
        return dict(task)

    async def ask(self, method: str, path: str, body: object = None, *, status: int = 200) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {PREFIX}{path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(content)}\r\n\r\n"
        await self.client.stream.send_all(head.encode() + content)
        found, headers = await self.client.head()
        answer = None if found == 204 else json.loads(await self.client.body(headers))
        assert found == status, answer
        return answer


@pytest.fixture
async def cube(autojump_clock: MockClock, client_on: Any) -> AsyncIterator[Cube]:
    async with stellwerk.open_engine() as engine:
        stream: trio.abc.Stream = await engine._workers._listener.connect()
        async with stream:
            yield Cube(client_on(stream))


async def test_I2_a_task_that_is_handed_out_has_all_fields_but_those_of_its_end_and_no_other(
    autojump_clock: MockClock, cube: Cube
) -> None:
    await cube.deploy()
    instance_id = await cube.start(correlationId="order-17")
    (task,) = await cube.fetch()
    assert task.keys() == OF_EVERY_TASK
    known = {
        "workerId": "w",
        "topic": "work",
        "isSingleTry": False,
        "correlationId": "order-17",
        "processDefinitionId": "cube:1",
        "processModelId": "cube",
        "processInstanceId": instance_id,
        "ownerId": "stellwerk",
        "payload": {"amount": 12.5},
        "state": "pending",
    }
    assert task.items() >= known.items()
    assert DATE.fullmatch(task["lockExpirationTime"])
    assert DATE.fullmatch(task["createdAt"])
    assert task["lockExpirationTime"] > task["createdAt"]
    found = await cube.ask("GET", f"/flow_node_instances?processInstanceId={instance_id}")
    ids = {node["flowNodeInstanceId"]: node["flowNodeId"] for node in found["flowNodeInstances"]}
    assert ids[task["flowNodeInstanceId"]] == "work"
    assert (await cube.task_data(instance_id))["externalTaskId"] == task["id"]


async def test_I2_a_single_try_says_so(autojump_clock: MockClock, cube: Cube) -> None:
    await cube.deploy('stellwerk:singleTry="true"')
    await cube.start()
    (task,) = await cube.fetch()
    assert task.keys() == OF_EVERY_TASK
    assert task["isSingleTry"] is True


async def test_I2_a_task_is_pending_until_it_is_locked_and_while_it_is(autojump_clock: MockClock, cube: Cube) -> None:
    await cube.deploy()
    instance_id = await cube.start()
    waiting = await cube.task_data(instance_id)
    assert waiting["state"] == "pending"
    assert not {"workerId", "lockExpirationTime", "finishedAt"} & waiting.keys()
    (task,) = await cube.fetch()
    locked = await cube.task_data(instance_id)
    assert (locked["state"], locked["workerId"]) == ("pending", "w")
    assert locked["lockExpirationTime"] == task["lockExpirationTime"]
    await trio.sleep(31)
    again = await cube.task_data(instance_id)
    assert (again["state"], "workerId" in again) == ("pending", False), "its lock has run out, and others may have it"


@pytest.mark.parametrize(
    ("verb", "body", "instance"),
    [
        ("finish", {"result": {"receipt": 1}}, "finished"),
        ("error", {"error": {"errorCode": "E", "errorMessage": "no", "errorDetails": {}}}, "error"),
    ],
)
async def test_I2_a_task_is_finished_after_a_result_and_after_an_error(
    autojump_clock: MockClock, cube: Cube, verb: str, body: Json, instance: str
) -> None:
    await cube.deploy()
    instance_id = await cube.start()
    (task,) = await cube.fetch()
    await cube.ask("PUT", f"/external_tasks/{task['id']}/{verb}", {"workerId": "w", **body}, status=204)
    ended = await cube.task_data(instance_id)
    assert ended["state"] == "finished"
    assert DATE.fullmatch(ended["finishedAt"])
    assert not {"workerId", "lockExpirationTime"} & ended.keys()
    found = await cube.ask("GET", f"/process_instances/query?processInstanceId={instance_id}")
    assert [one["state"] for one in found["processInstances"]] == [instance]


async def test_I2_a_single_try_whose_lock_has_run_out_is_expired(autojump_clock: MockClock, cube: Cube) -> None:
    await cube.deploy('stellwerk:singleTry="true"')
    instance_id = await cube.start()
    (task,) = await cube.fetch()
    assert (await cube.task_data(instance_id))["state"] == "pending"
    await trio.sleep(31)
    assert await cube.fetch() == []
    expired = await cube.task_data(instance_id)
    assert expired["state"] == "expired"
    assert DATE.fullmatch(expired["finishedAt"])
    assert not {"workerId", "lockExpirationTime"} & expired.keys()
    late = {"workerId": "w", "result": {}}
    error = await cube.ask("PUT", f"/external_tasks/{task['id']}/finish", late, status=409)
    assert (error["code"], "expired" in error["message"].lower()) == (409, False)
    await cube.ask("PUT", f"/process_instances/{instance_id}/retry", {}, status=204)
    assert (await cube.task_data(instance_id))["state"] == "pending"
    assert [again["id"] for again in await cube.fetch()] == [task["id"]]
