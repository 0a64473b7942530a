"""The genuine camunda-external-task-client-js 3.1 works unmodified, against a real server process."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

MODEL = """<?xml version="1.0" encoding="UTF-8"?>
<bpmn:definitions xmlns:bpmn="http://www.omg.org/spec/BPMN/20100524/MODEL"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn" id="d" targetNamespace="t">
  <bpmn:error id="lost" errorCode="LOST"/>
  <bpmn:process id="{name}" isExecutable="true">
    <bpmn:startEvent id="start"/>
    <bpmn:sequenceFlow id="f1" sourceRef="start" targetRef="work"/>
    <bpmn:serviceTask id="work" camunda:type="external" camunda:topic="{name}" camunda:taskPriority="${{priority}}">
      <bpmn:extensionElements>
        <camunda:properties><camunda:property name="color" value="blue"/></camunda:properties>
      </bpmn:extensionElements>
    </bpmn:serviceTask>
    <bpmn:boundaryEvent id="caught" attachedToRef="work">
      <bpmn:errorEventDefinition errorRef="lost"/>
    </bpmn:boundaryEvent>
    <bpmn:sequenceFlow id="f2" sourceRef="work" targetRef="done"/>
    <bpmn:endEvent id="done"/>
    <bpmn:sequenceFlow id="f3" sourceRef="caught" targetRef="gone"/>
    <bpmn:endEvent id="gone"/>
  </bpmn:process>
</bpmn:definitions>
"""
WAIT_MS = 5_000


@pytest.fixture
def deploy(engine: Any) -> Callable[[str], None]:
    """As Camunda's modeler does."""

    def deploy_form(name: str) -> None:
        body = (
            '--frontier\r\nContent-Disposition: form-data; name="deployment-name"\r\n\r\na test\r\n'
            f'--frontier\r\nContent-Disposition: form-data; name="data"; filename="{name}.bpmn"\r\n\r\n'
            f"{MODEL.format(name=name)}\r\n--frontier--\r\n"
        )
        connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=30)
        headers = {"Content-Type": "multipart/form-data; boundary=frontier"}
        connection.request("POST", "/engine-rest/deployment/create", body.encode(), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        connection.close()

    return deploy_form


@pytest.fixture
def start(engine: Any, deploy: Callable[[str], None]) -> Callable[..., str]:
    """``start(process, business_key, a=1)``: deployed where it is not yet; values are given their types."""
    deployed: set[str] = set()

    def start_instance(name: str, business_key: str | None = None, priority: int = 0, **typed: Any) -> str:
        if name not in deployed:
            deploy(name)
            deployed.add(name)
        variables = {"priority": {"value": priority, "type": "Integer"}, **typed}
        body = {"businessKey": business_key, "variables": variables}
        answer = engine.request("POST", f"/engine-rest/process-definition/key/{name}/start", body)
        return str(answer["id"])

    return start_instance


@pytest.fixture
def until_parked(engine: Any) -> Callable[[str], None]:
    """Until a worker of this name waits for tasks."""

    def is_there(worker_id: str) -> bool:
        workers = engine.request("GET", "/api/v1/workers")["workers"]
        return any(worker["worker_id"] == worker_id for worker in workers)

    def wait(worker_id: str) -> None:
        engine.until(lambda: is_there(worker_id), "a parked poll")

    return wait


@pytest.fixture
def work(engine: Any, start_node: Callable[..., Any]) -> Callable[..., Any]:
    """``work({topic: {"handler": …}}, workerId=…)``: a worker that is subscribed."""

    def start_worker(topics: dict[str, Any], **options: object) -> Any:
        settings = {
            "baseUrl": f"{engine.url}/engine-rest",
            "options": {"asyncResponseTimeout": WAIT_MS, "interval": 10, **options},
            "topics": topics,
        }
        worker = start_node("camunda_worker.mjs", json.dumps(settings))
        worker.expect("ready")
        return worker

    return start_worker


def test_a_task_is_completed_with_variables_of_every_type(engine: Any, start: Any, work: Any, unique: str) -> None:
    instance_id = start(
        unique,
        "B-1",
        text={"value": "hello", "type": "String"},
        big={"value": 2**40, "type": "Long"},
        half={"value": 0.5, "type": "Double"},
        yes={"value": True, "type": "Boolean"},
        nothing={"value": None, "type": "Null"},
        since={"value": "2026-01-31T12:00:00.000+0100", "type": "Date"},
        data={"value": '{"list":[1,"two"]}', "type": "Json"},
    )
    handler: dict[str, Any] = {
        "handler": "complete",
        "options": {"includeExtensionProperties": True},
        "result": {"whole": 7, "fraction": 1.25, "truth": False, "object": {"a": [1, None]}, "none": None, "text": "ü"},
        "typed": {"huge": {"type": "Long", "value": 2**53}, "short": {"type": "Short", "value": 3}},
        "date": "2026-02-01T00:00:00.000Z",
    }
    worker = work({unique: handler}, workerId="js-1")
    told = worker.expect("task")
    assert told["values"] == {
        "priority": 0,
        "text": "hello",
        "big": 2**40,
        "half": 0.5,
        "yes": True,
        "nothing": None,
        "since": "2026-01-31T11:00:00.000Z",
        "data": {"list": [1, "two"]},
    }
    assert told["kinds"]["since"] == "Date"
    assert told["types"]["big"] == "long"
    task = told["task"]
    assert (task["topicName"], task["workerId"], task["businessKey"]) == (unique, "js-1", "B-1")
    assert (task["processInstanceId"], task["retries"]) == (instance_id, None)
    assert task["extensionProperties"] == {"color": "blue"}
    worker.expect("complete:success")
    ended = engine.end_of(instance_id)
    assert ended["status"] == "COMPLETED"
    assert {name: ended["variables"][name] for name in (*handler["result"], "huge", "short", "date")} == {
        **handler["result"],
        "huge": 2**53,
        "short": 3,
        "date": "2026-02-01T00:00:00.000+0000",
    }


def test_a_parked_poll_gets_a_task_that_is_created_later(
    engine: Any, start: Any, work: Any, until_parked: Any, unique: str
) -> None:
    worker = work({unique: {"handler": "complete"}}, workerId=f"js-{unique}", asyncResponseTimeout=30_000)
    until_parked(f"js-{unique}")
    instance_id = start(unique)
    worker.expect("task", seconds=10)
    worker.expect("complete:success")
    assert engine.end_of(instance_id)["status"] == "COMPLETED"


def test_polling_at_intervals_without_waiting_finds_tasks_as_well(
    engine: Any, start: Any, work: Any, unique: str
) -> None:
    worker = work({unique: {"handler": "complete"}}, asyncResponseTimeout=None, interval=20)
    instance_id = start(unique)
    worker.expect("task")
    worker.expect("complete:success")
    assert engine.end_of(instance_id)["status"] == "COMPLETED"


def test_a_failure_with_retries_and_a_timeout_comes_again_and_in_the_end_is_an_incident(
    engine: Any, start: Any, work: Any, unique: str
) -> None:
    instance_id = start(unique)
    failure = {"errorMessage": "busy", "errorDetails": "line 1\nline 2", "retries": 1, "retryTimeout": 50}
    worker = work({unique: {"handler": "fail", "failure": failure}}, workerId="js-1")
    first = worker.expect("task")["task"]
    worker.expect("handleFailure:success")
    second = worker.expect("task")["task"]
    assert (first["retries"], second["retries"], second["id"]) == (None, 1, first["id"])
    assert (second["errorMessage"], second["errorDetails"]) == ("busy", "line 1\nline 2")
    worker.expect("handleFailure:success")
    worker.kill()
    given_up = work({unique: {"handler": "fail", "failure": {**failure, "retries": 0}}}, workerId="js-2")
    given_up.expect("task")
    given_up.expect("handleFailure:success")
    (incident,) = engine.end_of(instance_id)["incidents"]
    assert incident["task_id"] == first["id"]
    assert "busy" in incident["message"]


def test_a_bpmn_error_takes_the_way_that_is_drawn_for_it(engine: Any, start: Any, work: Any, unique: str) -> None:
    instance_id = start(unique)
    worker = work({unique: {"handler": "bpmnError", "code": "LOST", "message": "gone", "result": {"where": "sea"}}})
    worker.expect("task")
    worker.expect("handleBpmnError:success")
    ended = engine.end_of(instance_id)
    assert (ended["status"], ended["variables"]["where"]) == ("COMPLETED", "sea")


def test_a_lock_is_extended_before_the_task_is_completed(engine: Any, start: Any, work: Any, unique: str) -> None:
    instance_id = start(unique)
    worker = work({unique: {"handler": "extend", "duration": 60_000}}, lockDuration=20_000)
    worker.expect("task")
    worker.expect("extendLock:success")
    worker.expect("complete:success")
    assert engine.end_of(instance_id)["status"] == "COMPLETED"


def test_what_one_worker_unlocks_another_completes(engine: Any, start: Any, work: Any, unique: str) -> None:
    instance_id = start(unique)
    first = work({unique: {"handler": "unlock"}}, workerId="js-1")
    task_id = first.expect("task")["task"]["id"]
    first.expect("unlock:success")
    second = work({unique: {"handler": "complete"}}, workerId="js-2")
    assert second.expect("task")["task"]["id"] == task_id
    second.expect("complete:success")
    assert engine.end_of(instance_id)["status"] == "COMPLETED"


def test_a_worker_that_does_not_hold_the_lock_is_refused_with_400_and_the_holder_is_not_disturbed(
    engine: Any, start: Any, work: Any, unique: str
) -> None:
    instance_id = start(unique)
    holder = work({unique: {"handler": "hold"}}, workerId="js-1")
    task_id = holder.expect("task")["task"]["id"]
    other = work({"nothing": {"handler": "hold"}}, workerId="js-2")
    for call, arguments in (
        ("complete", []),
        ("handleFailure", [{"errorMessage": "x", "retries": 1}]),
        ("handleBpmnError", ["LOST", "x"]),
        ("extendLock", [20_000]),
        ("lock", [20_000]),
    ):
        other.tell(call=call, task=task_id, args=arguments)
        refused = other.expect(f"{call}:error")
        assert (refused["status"], refused["type"]) == (400, "RestException"), call
        assert refused["message"]
    holder.tell(call="lock", task=task_id, args=[30_000])
    holder.expect("lock:success")
    holder.tell(call="complete", task=task_id)
    holder.expect("complete:success")
    assert engine.end_of(instance_id)["status"] == "COMPLETED"


def test_a_task_that_is_gone_is_404(engine: Any, start: Any, work: Any, unique: str) -> None:
    instance_id = start(unique)
    worker = work({unique: {"handler": "hold"}})
    task_id = worker.expect("task")["task"]["id"]
    status, _ = engine.ask("DELETE", f"/engine-rest/process-instance/{instance_id}")
    assert status == 204
    worker.tell(call="complete", task=task_id)
    assert worker.expect("complete:error")["status"] == 404
    worker.tell(call="complete", task="never-was")
    assert worker.expect("complete:error")["status"] == 404


def test_higher_priorities_come_first(start: Any, work: Any, unique: str) -> None:
    instances = {start(unique, priority=priority): priority for priority in (1, 9, -3, 5)}
    worker = work({unique: {"handler": "complete"}}, maxTasks=4)
    order: list[int] = []
    while len(order) < 4:
        found = worker.next()
        if found["event"] == "task":
            order.append(instances[found["task"]["processInstanceId"]])
    assert order == [9, 5, 1, -3]


def test_one_worker_serves_several_topics(engine: Any, start: Any, work: Any, unique: str) -> None:
    names = [f"{unique}_{n}" for n in range(3)]
    instances = [start(name) for name in names]
    work({name: {"handler": "complete"} for name in names}, maxTasks=1)
    assert {engine.end_of(instance_id)["status"] for instance_id in instances} == {"COMPLETED"}


def test_a_topics_conditions_leave_the_others_alone(engine: Any, start: Any, work: Any, unique: str) -> None:
    other = start(unique, "B-2", region={"value": "south", "type": "String"})
    wanted = start(unique, "B-1", region={"value": "north", "type": "String"})
    options = {"businessKey": "B-1", "processVariables": {"region": "north"}, "variables": ["region"]}
    worker = work({unique: {"handler": "complete", "options": options}})
    told = worker.expect("task")
    assert (told["task"]["processInstanceId"], told["values"]) == (wanted, {"region": "north"})
    assert engine.end_of(wanted)["status"] == "COMPLETED"
    assert engine.instance(other)["status"] == "RUNNING"


def test_fault_1_a_killed_worker_gets_nothing_and_the_next_one_gets_it_at_once(
    engine: Any, start: Any, work: Any, until_parked: Any, unique: str
) -> None:
    dead = work({unique: {"handler": "hold"}}, workerId=f"dead-{unique}", asyncResponseTimeout=60_000)
    until_parked(f"dead-{unique}")
    dead.kill()
    instance_id = start(unique)
    worker = work({unique: {"handler": "complete"}}, workerId="js-2")
    worker.expect("task", seconds=10)
    worker.expect("complete:success")
    assert engine.end_of(instance_id)["status"] == "COMPLETED"


def test_what_is_not_served_reaches_the_client_as_501(work: Any, unique: str) -> None:
    worker = work({unique: {"handler": "hold", "options": {"tenantIdIn": ["one"]}}})
    refused = worker.expect("poll:error")
    assert (refused["status"], refused["type"]) == (501, "InvalidRequestException")


def test_a_client_goes_on_by_itself_when_the_engine_was_killed_and_comes_back(
    engine: Any, start: Any, work: Any, until_parked: Any, unique: str
) -> None:
    held = start(f"{unique}_held")
    holder = work({f"{unique}_held": {"handler": "hold"}}, workerId="js-1")
    task_id = holder.expect("task")["task"]["id"]
    worker = work({unique: {"handler": "complete"}}, workerId=f"js-{unique}", asyncResponseTimeout=60_000)
    until_parked(f"js-{unique}")
    engine.kill()
    worker.await_event("poll:error")
    engine.start()
    instance_id = start(unique)
    worker.await_event("complete:success")
    assert engine.end_of(instance_id)["status"] == "COMPLETED"
    # A lease outlives the engine: who holds it completes its task.
    holder.tell(call="complete", task=task_id)
    holder.await_event("complete:success")
    assert engine.end_of(held)["status"] == "COMPLETED"
