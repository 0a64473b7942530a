"""The genuine Python clients of Camunda 7 and of Operaton work unmodified, against a real server process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

MODEL = """<?xml version="1.0" encoding="UTF-8"?>
<bpmn:definitions xmlns:bpmn="http://www.omg.org/spec/BPMN/20100524/MODEL"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn" id="d" targetNamespace="t">
  <bpmn:error id="lost" errorCode="LOST"/>
  <bpmn:message id="paid" name="paid {name}"/>
  <bpmn:process id="{name}" isExecutable="true">
    <bpmn:startEvent id="start"/>
    <bpmn:sequenceFlow id="f1" sourceRef="start" targetRef="work"/>
    <bpmn:serviceTask id="work" camunda:type="external" camunda:topic="{name}">
      <bpmn:extensionElements>
        <camunda:properties><camunda:property name="color" value="blue"/></camunda:properties>
      </bpmn:extensionElements>
    </bpmn:serviceTask>
    <bpmn:boundaryEvent id="caught" attachedToRef="work">
      <bpmn:errorEventDefinition errorRef="lost"/>
    </bpmn:boundaryEvent>
    <bpmn:sequenceFlow id="f2" sourceRef="work" targetRef="done"/>
    <bpmn:endEvent id="done"/>
    <bpmn:sequenceFlow id="f3" sourceRef="caught" targetRef="wait"/>
    <bpmn:receiveTask id="wait" messageRef="paid"/>
    <bpmn:sequenceFlow id="f4" sourceRef="wait" targetRef="gone"/>
    <bpmn:endEvent id="gone"/>
  </bpmn:process>
</bpmn:definitions>
"""
REQUIREMENTS = (
    "camunda-external-task-client-python3==4.5.0",
    "operaton-external-task-client-python3==1.0.4",
    "pydantic==2.12.*",  # both need it and do not say so
)
CONFIG = {"asyncResponseTimeout": 5_000, "lockDuration": 20_000, "maxTasks": 1}

pytestmark = pytest.mark.parametrize("package", ["camunda", "operaton"])


@pytest.fixture
def client(engine: Any, start_python: Callable[..., Any], package: str) -> Callable[..., Any]:
    """``client("start_process", process_key=…)`` gives what the client's method gives."""
    running = start_python(REQUIREMENTS, "camunda_client.py", package, f"{engine.url}/engine-rest")

    def call(method: str, **arguments: object) -> Any:
        running.tell(call=method, arguments=arguments)
        answer = running.next()
        assert answer["event"] == "result", answer
        return answer["result"]

    return call


@pytest.fixture
def work(engine: Any, start_python: Callable[..., Any], package: str, unique: str) -> Callable[..., Any]:
    """``work("complete", result=…)``: a worker for the topic of the test."""

    def start_worker(handler: str, worker_id: str = "py-1", **settings: Any) -> Any:
        config = {**CONFIG, **settings.pop("config", {})}
        text = json.dumps({"topics": [unique], "handler": handler, "config": config, **settings})
        url = f"{engine.url}/engine-rest"
        worker = start_python(REQUIREMENTS, "camunda_worker.py", package, url, worker_id, text)
        worker.expect("ready")
        return worker

    return start_worker


@pytest.fixture
def instance_id(engine: Any, client: Callable[..., Any], unique: str) -> str:
    """Started by the client, with business key B-1."""
    engine.deploy(MODEL.format(name=unique))
    variables = {
        "text": "hello",
        "number": 7,
        "list": {"value": "[1,2]", "type": "Json"},
        "since": {"value": "2026-01-31T12:00:00.000+0100", "type": "Date"},
    }
    started = client("start_process", process_key=unique, variables=variables, business_key="B-1")
    assert (started["definitionKey"], started["businessKey"], started["ended"]) == (unique, "B-1", False)
    return str(started["id"])


def test_a_task_is_completed_with_variables(engine: Any, instance_id: str, work: Any, unique: str) -> None:
    result = {"answer": 42, "half": 0.5, "nested": {"value": '{"a":[null]}', "type": "Json"}, "plain": {"b": 1}}
    worker = work("complete", result=result, local={"aside": True}, process_variables={"number": 7})
    task = worker.expect("task")
    assert task["values"] == {"text": "hello", "number": 7, "list": [1, 2], "since": "2026-01-31T12:00:00.000+0100"}
    assert (task["topic"], task["business_key"], task["retries"]) == (unique, "B-1", None)
    assert task["properties"] == {"color": "blue"}
    worker.expect("done")
    ended = engine.end_of(instance_id)
    assert ended["status"] == "COMPLETED"
    variables = ended["variables"]
    assert (variables["answer"], variables["half"], variables["nested"]) == (42, 0.5, {"a": [None]})
    assert (variables["plain"], variables["aside"]) == ({"b": 1}, True)


def test_values_stay_serialised_where_the_client_wants_that(instance_id: str, work: Any) -> None:
    worker = work("complete", config={"deserializeValues": False})
    assert worker.expect("task")["values"]["list"] == "[1,2]"
    worker.expect("done")


def test_a_failing_task_comes_again_until_the_client_has_counted_to_none(
    engine: Any, instance_id: str, work: Any
) -> None:
    worker = work("fail", retries=1)
    told = [worker.await_event("task") for _ in range(2)]
    assert [task["retries"] for task in told] == [None, 1]
    worker.await_event("done")
    (incident,) = engine.end_of(instance_id)["incidents"]
    assert "it broke" in incident["message"]
    status, details = engine.ask("GET", f"/engine-rest/external-task/{told[0]['id']}/errorDetails")
    assert (status, details) == (200, "line 1\nline 2")


def test_a_bpmn_error_is_caught_and_a_message_goes_on(
    engine: Any, instance_id: str, work: Any, client: Any, unique: str
) -> None:
    worker = work("bpmn_error", code="LOST", result={"where": "sea"})
    worker.expect("task")
    worker.expect("done")
    found = client("get_process_instance", process_key=unique)
    assert [row["id"] for row in found] == [instance_id]
    name = f"paid {unique}"
    (result,) = client("correlate_message", message_name=name, business_key="B-1", process_variables={"amount": 5})
    assert result["execution"]["processInstanceId"] == instance_id
    ended = engine.end_of(instance_id)
    assert (ended["status"], ended["variables"]["where"], ended["variables"]["amount"]) == ("COMPLETED", "sea", 5)


def test_a_lock_that_is_lost_is_an_error_of_the_client_with_the_reason(
    engine: Any, instance_id: str, work: Any
) -> None:
    worker = work("hold_until_unlocked")
    task_id = worker.expect("task")["id"]
    status, _ = engine.ask("POST", f"/engine-rest/external-task/{task_id}/unlock")
    assert status == 204
    worker.tell(go="on")
    assert worker.expect("error")["message"].startswith("received 400 : RestException : ")


def test_a_poll_without_tasks_ends_with_nothing(work: Any, client: Any) -> None:
    worker = work("complete", config={"asyncResponseTimeout": 100})
    worker.expect("none")
    worker.expect("none")


def test_the_newest_version_is_found_and_started(engine: Any, instance_id: str, client: Any, unique: str) -> None:
    engine.deploy(MODEL.format(name=unique).replace("blue", "red"))
    (newest,) = client("get_process_definitions", process_key=unique, version_tag=None, tenant_ids=[])
    assert (newest["id"], newest["version"]) == (f"{unique}:2", 2)
    started = client(
        "start_process_by_version", process_key=unique, version_tag=None, variables={"a": 1}, business_key="B-2"
    )
    assert (started["definitionId"], started["businessKey"]) == (f"{unique}:2", "B-2")
