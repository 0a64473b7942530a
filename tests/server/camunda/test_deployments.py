"""Deploying and starting as Camunda's clients and modeler do."""

from __future__ import annotations

from typing import Any

import pytest

from stellwerk.app import ServedEngine

WITHOUT_FLOW = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t">
  <process id="broken" isExecutable="true"><startEvent id="s"/>
    <sequenceFlow id="f" sourceRef="s" targetRef="nowhere"/></process>
</definitions>
"""


def plain(name: str = "plain", label: str = "") -> str:
    return f"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t">
  <process id="{name}" name="{label}" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f" sourceRef="s" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>
"""


async def test_a_form_with_a_file_is_deployed(camunda: Any) -> None:
    reply = await camunda.deploy(plain(), **{"deployment-name": "first", "deployment-source": "a test"})
    assert reply.status == 200, reply
    assert (reply.body["name"], reply.body["source"], reply.body["tenantId"]) == ("first", "a test", None)
    assert reply.body["deploymentTime"].endswith("+0000")
    deployed = reply.body["deployedProcessDefinitions"]
    assert list(deployed) == ["plain:1"]
    assert (deployed["plain:1"]["key"], deployed["plain:1"]["version"]) == ("plain", 1)
    assert deployed["plain:1"]["deploymentId"] == reply.body["id"]
    assert (await camunda.get("/process-definition/key/plain")).body["id"] == "plain:1"


async def test_what_has_not_changed_gets_no_new_version(camunda: Any) -> None:
    await camunda.deploy(plain())
    again = await camunda.deploy(plain())
    assert list(again.body["deployedProcessDefinitions"]) == ["plain:1"]
    filtered = await camunda.deploy(plain(), **{"enable-duplicate-filtering": "true"})
    assert filtered.body["deployedProcessDefinitions"] is None
    changed = await camunda.deploy(plain(label="new"))
    assert list(changed.body["deployedProcessDefinitions"]) == ["plain:2"]


async def test_a_model_that_cannot_run_is_refused_with_place_and_element(camunda: Any) -> None:
    reply = await camunda.deploy(WITHOUT_FLOW, "broken.bpmn")
    assert (reply.status, reply.body["type"]) == (400, "ParseException")
    (error, *_) = reply.body["details"]["broken.bpmn"]["errors"]
    assert error["line"] == 3
    assert error["mainElementId"] == "f"
    assert (await camunda.get("/process-definition/key/broken")).status == 404


@pytest.mark.parametrize(
    ("name", "fields", "status"),
    [("rules.dmn", {}, 501), ("form.html", {}, 501), ("a.bpmn", {"tenant-id": "one"}, 501)],
)
async def test_what_cannot_be_deployed_here_is_not_served(
    camunda: Any, name: str, fields: dict[str, str], status: int
) -> None:
    assert (await camunda.deploy(plain(), name, **fields)).status == status


async def test_a_form_without_a_file_and_a_body_that_is_no_form_are_refused(camunda: Any) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="deployment-name"\r\n\r\na\r\n--x--\r\n'
    reply = await camunda.send("POST", "/deployment/create", body, "multipart/form-data; boundary=x")
    assert (reply.status, "No deployment resources" in reply.body["message"]) == (400, True)
    reply = await camunda.post("/deployment/create", {"files": []})
    assert (reply.status, reply.body["type"]) == (400, "InvalidRequestException")


async def test_definitions_are_listed_counted_and_sorted(camunda: Any) -> None:
    await camunda.deploy(plain())
    await camunda.deploy(plain(label="new"))
    listed = (await camunda.get("/process-definition?key=plain&sortBy=version&sortOrder=desc")).body
    assert [row["id"] for row in listed] == ["plain:2", "plain:1"]
    assert [row["id"] for row in (await camunda.get("/process-definition?key=plain&maxResults=1")).body] == ["plain:1"]
    assert (await camunda.get("/process-definition/count?key=plain&latestVersion=true")).body == {"count": 1}
    assert (await camunda.get("/process-definition/count?keysIn=plain,shipping")).body == {"count": 3}
    assert (await camunda.get("/process-definition?versionTagLike=v")).status == 501


async def test_the_xml_comes_back(camunda: Any) -> None:
    await camunda.deploy(plain())
    assert (await camunda.get("/process-definition/plain:1/xml")).body == {"id": "plain:1", "bpmn20Xml": plain()}
    assert (await camunda.get("/process-definition/key/plain/xml")).body["id"] == "plain:1"
    assert (await camunda.get("/process-definition/plain:7/xml")).status == 404


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1", "utf-8"])
async def test_the_xml_is_text_whatever_it_was_encoded_in(camunda: Any, engine: ServedEngine, encoding: str) -> None:
    xml = f'<?xml version="1.0" encoding="{encoding}"?>\n{plain(label="Prüfung")}'
    await engine.node.deploy([("a.bpmn", xml.encode(encoding))])
    assert (await camunda.get("/process-definition/key/plain/xml")).body["bpmn20Xml"] == xml


async def test_an_instance_is_started_by_key_or_by_version(camunda: Any) -> None:
    body = {"businessKey": "B-1", "variables": {"a": {"value": "x", "type": "String"}}, "withVariablesInReturn": True}
    reply = await camunda.post("/process-definition/key/approval/start", body)
    assert reply.status == 200
    instance_id = reply.body["id"]
    assert reply.body == {
        "links": [{"method": "GET", "href": f"/engine-rest/process-instance/{instance_id}", "rel": "self"}],
        "id": instance_id,
        "definitionId": "approval:1",
        "definitionKey": "approval",
        "businessKey": "B-1",
        "caseInstanceId": None,
        "ended": False,
        "suspended": False,
        "tenantId": None,
        "variables": {"a": {"type": "String", "value": "x", "valueInfo": {}}},
    }
    reply = await camunda.post("/process-definition/approval:1/start", {})
    assert (reply.status, reply.body["definitionId"]) == (200, "approval:1")


async def test_an_instance_that_ends_at_once_is_said_to_have_ended(camunda: Any) -> None:
    await camunda.deploy(plain())
    assert (await camunda.post("/process-definition/key/plain/start", {})).body["ended"] is True


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/process-definition/key/unknown/start", {}, 404),
        ("/process-definition/approval:9/start", {}, 404),
        ("/process-definition/key/approval/start", {"startInstructions": [{"type": "startBeforeActivity"}]}, 501),
        ("/process-definition/key/approval/start", {"variables": {"a": 1}}, 400),
        ("/process-definition/key/approval/start", {"variables": {"a": {"value": 1, "type": "File"}}}, 501),
        ("/process-definition/key/approval/tenant-id/one/start", {}, 501),
    ],
)
async def test_a_start_that_is_not_possible_says_why(
    camunda: Any, path: str, body: dict[str, Any], status: int
) -> None:
    reply = await camunda.post(path, body)
    assert reply.status == status
    assert set(reply.body) == {"type", "message", "code"}


async def test_a_version_without_instances_can_be_deleted_and_one_with_instances_cannot(camunda: Any) -> None:
    await camunda.deploy(plain())
    assert (await camunda.delete("/process-definition/plain:1")).status == 204
    assert (await camunda.get("/process-definition/plain:1")).status == 404
    await camunda.start("approval")
    reply = await camunda.delete("/process-definition/approval:1")
    assert (reply.status, reply.body["type"]) == (400, "RestException")
