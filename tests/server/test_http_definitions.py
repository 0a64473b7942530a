"""Deploying, and what is deployed, over the HTTP API."""

from __future__ import annotations

import base64
from typing import Any

import pytest


async def test_deploy_gives_versions_and_knows_the_same_text_again(client: Any, order_model: str) -> None:
    body = {"files": [{"name": "order.bpmn", "xml": order_model}]}
    first = await client.post("/process-definitions", body)
    assert [row["definition_id"] for row in first.body["definitions"]] == ["order:1", "approval:1", "paid:1"]
    assert first.body["unchanged"] == []
    again = await client.post("/process-definitions", body)
    assert sorted(again.body["unchanged"]) == ["approval", "order", "paid"]
    changed = {"files": [{"name": "order.bpmn", "xml": order_model + "<!-- changed -->"}]}
    assert [row["version"] for row in (await client.post("/process-definitions", changed)).body["definitions"]] == [
        2
    ] * 3
    listed = (await client.get("/process-definitions")).body["definitions"]
    assert [row["definition_id"] for row in listed if row["key"] == "order"] == ["order:1", "order:2"]
    assert "xml" not in listed[0]


async def test_refused_deployment_names_every_finding_with_its_place(client: Any, order_model: str) -> None:
    broken = order_model.replace('targetRef="charge"', 'targetRef="nowhere"')
    broken = broken.replace('targetRef="approve"', 'targetRef="none"')
    body = {"files": [{"name": "good.bpmn", "xml": order_model}, {"name": "bad.bpmn", "xml": broken}]}
    reply = await client.post("/process-definitions", body)
    assert (reply.status, reply.body["code"]) == (400, "deploy_refused")
    errors = [found for found in reply.body["findings"] if found["severity"] == "error"]
    assert {(found["file"], found["line"], found["element_id"]) for found in errors} >= {
        ("bad.bpmn", 7, "f1"),
        ("bad.bpmn", 14, "g1"),
    }
    assert set(errors[0]) == {"file", "line", "column", "element_id", "element", "what", "severity"}
    assert (await client.get("/process-definitions")).body["definitions"] == []


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
async def test_file_is_read_in_the_encoding_that_it_declares(client: Any, order_model: str, encoding: str) -> None:
    text = order_model.replace("UTF-8", encoding).replace('name="Approve"', 'name="Größe prüfen"')
    as_text = {"name": "a.bpmn", "xml": text}
    as_bytes = {"name": "a.bpmn", "xml_base64": base64.b64encode(text.encode(encoding)).decode()}
    for file in (as_text, as_bytes):
        assert (await client.post("/process-definitions", {"files": [file]})).status == 201
    await client.start("approval")
    assert (await client.get("/user-tasks")).body["user_tasks"][0]["name"] == "Größe prüfen"


@pytest.mark.parametrize(
    "body, what",
    [
        ({}, "files is missing @ $.files"),
        ({"files": [{"name": "a"}]}, "either xml or xml_base64 @ $.files[0]"),
        ({"files": [{"name": "a", "xml_base64": "?"}]}, "not base64 @ $.files[0].xml_base64"),
        (
            {"files": [{"name": 1, "xml": "x"}, 2], "more": 3},
            "expected a string, not a number @ $.files[0].name; expected an object, not a number @ $.files[1]; "
            "unknown: more @ $",
        ),
        ({"files": "a"}, "expected an array, not a string @ $.files"),
        ({"files": [], "failure_policy": "hope"}, "expected one of incident, compensate @ $.failure_policy"),
        ([], "expected an object, not an array @ $"),
        (b'{"files": [}', "not JSON"),
        (b'{"files": "\\u0000"}', "NUL character @ $.files"),
        (b'{"files": "\\ud800"}', "not JSON"),
        (b'{"files": NaN}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 2000, "not JSON"),
    ],
)
async def test_malformed_body_is_refused_in_words(client: Any, body: object, what: str) -> None:
    reply = await client.post("/process-definitions", body)
    assert (reply.status, reply.body["code"]) == (400, "invalid")
    assert what in reply.body["detail"]


async def test_file_comes_back_byte_for_byte(client: Any, order_model: str) -> None:
    as_it_is = order_model.replace("UTF-8", "iso-8859-1").replace('name="Approve"', 'name="Größe"').encode("latin-1")
    for content in (as_it_is, order_model.encode()):
        file = {"name": "a.bpmn", "xml_base64": base64.b64encode(content).decode()}
        assert (await client.post("/process-definitions", {"files": [file]})).status == 201
    for definition_id, content in (
        ("order", order_model.encode()),
        ("order:1", as_it_is),
        ("paid:2", order_model.encode()),
    ):
        reply = await client.get(f"/process-definitions/{definition_id}/xml")
        assert (reply.status, reply.headers["content-type"], reply.body) == (200, "application/xml", content)
        assert reply.headers["content-disposition"] == "attachment", "it never becomes a page of this site"


@pytest.mark.parametrize(
    "definition_id", ["nothing", "order:2", "order:0", "order:x", "order:", ":1", "order:" + "9" * 30]
)
async def test_xml_of_what_is_not_deployed_is_not_found(deployed: Any, definition_id: str) -> None:
    reply = await deployed.get(f"/process-definitions/{definition_id}/xml")
    assert (reply.status, reply.body["code"]) == (404, "not_found")
    assert definition_id in reply.body["detail"]


async def test_a_version_is_deleted(deployed: Any) -> None:
    reply = await deployed.send("DELETE", "/process-definitions/order:1", b"")
    assert (reply.status, reply.body) == (200, {})
    listed = (await deployed.get("/process-definitions")).body["definitions"]
    assert [row["definition_id"] for row in listed] == ["approval:1", "paid:1", "stuck:1"]
    again = await deployed.send("DELETE", "/process-definitions/order:1", b"")
    assert (again.status, again.body["code"]) == (404, "not_found")
    assert (await deployed.post("/process-instances", {"process_def_id": "order"})).status == 404


async def test_one_with_instances_is_not_deleted(deployed: Any) -> None:
    await deployed.start("order")
    reply = await deployed.send("DELETE", "/process-definitions/order:1", b"")
    assert (reply.status, reply.body["code"]) == (409, "in_use")
    without_version = await deployed.send("DELETE", "/process-definitions/approval", b"")
    assert (without_version.status, without_version.body["code"]) == (400, "invalid")
    listed = (await deployed.get("/process-definitions")).body["definitions"]
    assert len(listed) == 4


async def test_a_process_is_disabled_and_enabled(deployed: Any) -> None:
    for _ in range(2):
        reply = await deployed.post("/process-definitions/order/disable", {})
        assert (reply.status, reply.body) == (200, {"process": "order", "is_enabled": False})
    listed = (await deployed.get("/process-definitions")).body["definitions"]
    assert {row["key"]: row["is_enabled"] for row in listed} == {
        "approval": True,
        "order": False,
        "paid": True,
        "stuck": True,
    }
    refused = await deployed.post("/process-instances", {"process_def_id": "order:1"})
    assert (refused.status, refused.body["code"]) == (409, "disabled")
    await deployed.start("approval")
    assert (await deployed.post("/process-definitions/order/enable", {})).body["is_enabled"] is True
    await deployed.start("order")
    assert (await deployed.post("/process-definitions/nothing/disable", {})).status == 404
