"""``/engine-rest/message``: a message reaches somebody before it is answered, or is refused."""

from __future__ import annotations

from typing import Any

import pytest


async def test_a_message_goes_on_with_the_instance_of_its_business_key(camunda: Any) -> None:
    other = await camunda.start("payment", businessKey="B-2")
    instance_id = await camunda.start("payment", businessKey="B-1")
    body = {"messageName": "paid", "businessKey": "B-1", "processVariables": {"amount": {"value": 5}}}
    reply = await camunda.post("/message", body)
    assert (reply.status, reply.body) == (204, "")
    assert await camunda.status(instance_id) == "COMPLETED"
    assert await camunda.variables(instance_id) == {"amount": 5}
    assert (await camunda.get(f"/process-instance/{other}")).status == 200


async def test_the_result_names_the_instance_that_it_has_reached(camunda: Any) -> None:
    await camunda.start("payment", businessKey="B-2")
    instance_id = await camunda.start("payment", businessKey="B-1")
    body = {"messageName": "paid", "businessKey": "B-1", "resultEnabled": True, "variablesInResultEnabled": True}
    reply = await camunda.post("/message", body)
    assert reply.status == 200
    (result,) = reply.body
    assert result["resultType"] == "Execution"
    assert result["execution"]["processInstanceId"] == instance_id
    assert result["variables"] == {}


async def test_a_message_starts_an_instance(camunda: Any) -> None:
    body = {"messageName": "begin shipping", "businessKey": "B-9", "resultEnabled": True}
    (result,) = (await camunda.post("/message", body)).body
    assert result["resultType"] == "ProcessDefinition"
    started = result["processInstance"]
    assert (started["definitionKey"], started["businessKey"], started["ended"]) == ("started", "B-9", False)
    assert (await camunda.get(f"/process-instance/{started['id']}")).status == 200


async def test_a_message_for_one_instance_reaches_only_that(camunda: Any) -> None:
    other = await camunda.start("payment", businessKey="B-1")
    instance_id = await camunda.start("payment", businessKey="B-1")
    reply = await camunda.post("/message", {"messageName": "paid", "processInstanceId": instance_id})
    assert reply.status == 204, reply
    assert await camunda.status(instance_id) == "COMPLETED"
    assert (await camunda.get(f"/process-instance/{other}")).status == 200


async def test_a_message_that_nobody_waits_for_is_refused_and_reaches_nobody_later(camunda: Any) -> None:
    body = {"messageName": "paid", "businessKey": "B-1"}
    reply = await camunda.post("/message", body)
    assert (reply.status, reply.body["type"]) == (400, "RestException")
    assert "Cannot correlate message 'paid'" in reply.body["message"]
    instance_id = await camunda.start("payment", businessKey="B-1")
    assert (await camunda.get(f"/process-instance/{instance_id}")).status == 200
    assert (await camunda.post("/message", body)).status == 204


async def test_one_correlation_key_is_the_key(camunda: Any) -> None:
    instance_id = await camunda.start("payment", businessKey="17")
    keys = {"order": {"value": 17, "type": "Integer"}}
    assert (await camunda.post("/message", {"messageName": "paid", "correlationKeys": keys})).status == 204
    assert await camunda.status(instance_id) == "COMPLETED"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"messageName": "paid", "all": True}, 501),
        ({"messageName": "paid", "tenantId": "one"}, 501),
        ({"messageName": "paid", "localCorrelationKeys": {"a": {"value": 1}}}, 501),
        ({"messageName": "paid", "processVariablesLocal": {"a": {"value": 1}}}, 501),
        ({"messageName": "paid", "correlationKeys": {"a": {"value": 1}, "b": {"value": 2}}}, 501),
        ({"messageName": "paid", "correlationKeys": {"a": {"value": 1}}, "businessKey": "B"}, 501),
        ({"messageName": "paid", "correlationKeys": {"a": {"value": True}}}, 400),
        ({"messageName": "paid", "processVariables": {"a": 1}}, 400),
        ({"messageName": "paid", "processInstanceId": "unknown"}, 404),
    ],
)
async def test_what_cannot_be_correlated_is_refused(camunda: Any, body: dict[str, Any], status: int) -> None:
    reply = await camunda.post("/message", body)
    assert reply.status == status
    assert set(reply.body) == {"type", "message", "code"}
