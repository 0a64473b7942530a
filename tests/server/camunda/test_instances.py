"""``/engine-rest/process-instance``: what runs, and its variables."""

from __future__ import annotations

from typing import Any

import pytest


async def test_an_instance_is_shown_while_it_runs(camunda: Any) -> None:
    instance_id = await camunda.start("approval", businessKey="B-1")
    reply = await camunda.get(f"/process-instance/{instance_id}")
    assert reply.status == 200
    assert (reply.body["businessKey"], reply.body["definitionKey"], reply.body["ended"]) == ("B-1", "approval", False)
    assert (await camunda.delete(f"/process-instance/{instance_id}")).status == 204
    for request in (
        camunda.get(f"/process-instance/{instance_id}"),
        camunda.delete(f"/process-instance/{instance_id}"),
        camunda.get(f"/process-instance/{instance_id}/variables"),
        camunda.get("/process-instance/unknown"),
    ):
        reply = await request
        assert (reply.status, reply.body["type"]) == (404, "RestException")


async def test_instances_are_listed_and_counted_while_they_run(camunda: Any) -> None:
    first = await camunda.start("approval", businessKey="B-1")
    second = await camunda.start("shipping", businessKey="B-2")
    ended = await camunda.start("approval")
    await camunda.delete(f"/process-instance/{ended}")

    async def ids(query: str) -> set[str]:
        rows = (await camunda.get(f"/process-instance{query}")).body
        assert (await camunda.get(f"/process-instance/count{query}")).body == {"count": len(rows)}
        return {row["id"] for row in rows}

    assert await ids("") == {first, second}
    assert await ids("?businessKey=B-1") == {first}
    assert await ids("?processDefinitionKey=shipping") == {second}
    assert await ids("?processDefinitionId=approval:1&active=true") == {first}
    assert await ids(f"?processInstanceIds={second},x") == {second}
    assert await ids("?withIncident=true") == set()
    assert await ids("?suspended=true") == set()
    body = {"processInstanceIds": [first, ended]}
    assert [row["id"] for row in (await camunda.post("/process-instance", body)).body] == [first]
    assert (await camunda.post("/process-instance/count", body)).body == {"count": 1}
    assert (await camunda.get("/process-instance?variables=a_eq_1")).status == 501


async def test_variables_are_read_with_their_types(camunda: Any) -> None:
    variables = {"a": {"value": 1}, "b": {"value": '{"c":[true]}', "type": "Json"}}
    instance_id = await camunda.start("approval", variables=variables)
    path = f"/process-instance/{instance_id}/variables"
    assert (await camunda.get(path)).body == {
        "a": {"type": "Integer", "value": 1, "valueInfo": {}},
        "b": {"type": "Json", "value": {"c": [True]}, "valueInfo": {}},
    }
    assert (await camunda.get(f"{path}?deserializeValues=false")).body["b"]["value"] == '{"c":[true]}'
    assert (await camunda.get(f"{path}/b")).body["value"] == {"c": [True]}
    assert (await camunda.get(f"{path}/b?deserializeValue=false")).body["value"] == '{"c":[true]}'
    assert (await camunda.get(f"{path}/none")).status == 404


async def test_variables_are_set_one_or_several_at_once(camunda: Any) -> None:
    instance_id = await camunda.start("approval", variables={"a": {"value": 1}})
    path = f"/process-instance/{instance_id}/variables"
    assert (await camunda.put(f"{path}/b", {"value": "2026-01-31T12:00:00.000+0000", "type": "Date"})).status == 204
    body = {"modifications": {"a": {"value": 2, "type": "Long"}, "c": {"value": None}}}
    assert (await camunda.post(path, body)).status == 204
    shown = (await camunda.get(path)).body
    assert {name: (value["type"], value["value"]) for name, value in shown.items()} == {
        "a": ("Integer", 2),
        "b": ("Date", "2026-01-31T12:00:00.000+0000"),
        "c": ("Null", None),
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/variables/a", {"value": "x", "type": "Integer"}, 400),
        ("PUT", "/variables/a", [1], 400),
        ("POST", "/variables", {"modifications": {"a": 1}}, 400),
        ("POST", "/variables", {"deletions": ["a"]}, 501),
        ("DELETE", "/variables/a", None, 501),
        ("GET", "/variables/a/data", None, 501),
        ("PUT", "/suspended", None, 501),
        ("GET", "/activity-instances", None, 501),
    ],
)
async def test_what_is_wrong_or_not_served_is_told_apart(
    camunda: Any, method: str, path: str, body: object, status: int
) -> None:
    instance_id = await camunda.start("approval", variables={"a": {"value": 1}})
    reply = await camunda.send(method, f"/process-instance/{instance_id}{path}", body)
    assert reply.status == status, reply
    assert set(reply.body) == {"type", "message", "code"}
    assert (await camunda.get(f"/process-instance/{instance_id}/variables/a")).body["value"] == 1
