"""What the engine complains of is called as the caller has called it, and stands where the caller has put it."""

from __future__ import annotations

from typing import Any

import pytest

WORKER = {"workerId": "w-1"}
TOPIC = {"topicName": "pack", "lockDuration": 20_000}
FETCH = {"workerId": "w-1", "maxTasks": 1, "topics": [TOPIC]}
LONG = "x" * 230
"""Longer than names of the engine's own, shorter than Camunda's."""


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("external-task/fetchAndLock", {**FETCH, "workerId": ""}, "$.workerId"),
        ("external-task/fetchAndLock", {**FETCH, "workerId": LONG}, "$.workerId"),
        ("external-task/fetchAndLock", {**FETCH, "maxTasks": 10**6}, "$.maxTasks"),
        ("external-task/fetchAndLock", {**FETCH, "asyncResponseTimeout": 10**8}, "$.asyncResponseTimeout"),
        (
            "external-task/fetchAndLock",
            {**FETCH, "topics": [TOPIC, {**TOPIC, "topicName": ""}]},
            "$.topics[1].topicName",
        ),
        (
            "external-task/fetchAndLock",
            {**FETCH, "topics": [TOPIC, {**TOPIC, "lockDuration": 1}]},
            "$.topics[1].lockDuration",
        ),
        (
            "external-task/fetchAndLock",
            {**FETCH, "topics": [{**TOPIC, "variables": [f"v{number}" for number in range(10_000)]}]},
            "$.topics[0].variables",
        ),
        ("external-task/{task}/extendLock", {**WORKER, "newDuration": 1}, "$.newDuration"),
        ("external-task/{task}/lock", {**WORKER, "lockDuration": 1}, "$.lockDuration"),
        ("external-task/{task}/lock", {"workerId": "w-2", "lockDuration": 1}, "$.lockDuration"),
        ("external-task/{task}/failure", {**WORKER, "retries": 2**40}, "$.retries"),
        ("external-task/{task}/failure", {**WORKER, "retryTimeout": 2**50}, "$.retryTimeout"),
        ("external-task/{task}/failure", {**WORKER, "errorMessage": "x" * 70_000}, "$.errorMessage"),
        ("external-task/{task}/failure", {**WORKER, "localVariables": {"a": {"value": 1}}}, "$.localVariables"),
        ("external-task/{task}/bpmnError", {**WORKER, "errorCode": ""}, "$.errorCode"),
        ("external-task/{task}/bpmnError", {**WORKER, "errorCode": LONG}, "$.errorCode"),
        (
            "external-task/{task}/bpmnError",
            {**WORKER, "errorCode": "E", "errorMessage": "x" * 70_000},
            "$.errorMessage",
        ),
        ("external-task/{task}/complete", {"workerId": ""}, "$.workerId"),
        ("process-definition/key/approval/start", {"businessKey": LONG}, "$.businessKey"),
        ("process-definition/key/approval/start", {"caseInstanceId": "c"}, "$.caseInstanceId"),
        ("process-definition/key/approval/start", {"startInstructions": [{}]}, "$.startInstructions"),
        ("message", {"messageName": 7}, "$.messageName"),
        ("message", {"messageName": LONG}, "$.messageName"),
        ("message", {"messageName": "paid", "businessKey": LONG}, "$.businessKey"),
        ("message", {"messageName": "paid", "correlationKeys": {"k": {"value": LONG}}}, "$.correlationKeys"),
        ("task/{person}/assignee", {"userId": ""}, "$.userId"),
        ("task/{person}/assignee", {"userId": LONG}, "$.userId"),
        ("task/{person}/claim", {}, "$.userId"),
    ],
)
async def test_a_complaint_names_the_place_in_the_request(
    camunda: Any, path: str, body: dict[str, Any], place: str
) -> None:
    await camunda.start("shipping")
    await camunda.start("approval")
    task = await camunda.fetch_one("pack")
    (person,) = (await camunda.get("/task")).body
    reply = await camunda.post(f"/{path.format(task=task['id'], person=person['id'])}", body)
    assert reply.status in (400, 413, 501), reply
    assert reply.body["message"].endswith(f"@ {place}"), reply
    assert "_" not in reply.body["message"], "the engine's own names"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"deployment-name": "a\x00b"}, "NUL character @ deployment-name"),
        ({"deployment-source": "x" * 300}, "300 characters, at most 255 are allowed @ deployment-source"),
        ({"tenant-id": "a\x00b"}, "NUL character @ tenant-id"),
        ({"name": "a\x00.bpmn"}, "NUL character @ a file name of the form"),
        ({"name": "x" * 300 + ".bpmn"}, "305 characters, at most 255 are allowed @ a file name of the form"),
    ],
)
async def test_a_form_has_no_hostile_texts(
    camunda: Any, shipping_model: str, fields: dict[str, str], said: str
) -> None:
    before = (await camunda.get("/process-definition/count")).body
    reply = await camunda.deploy(shipping_model, **fields)
    assert reply.status in (400, 413), reply
    assert reply.body["message"].endswith(said)
    assert (await camunda.get("/process-definition/count")).body == before
