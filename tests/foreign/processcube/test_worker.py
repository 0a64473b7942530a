"""External tasks with ProcessCube's genuine JavaScript worker, and its ExternalTaskApiClient."""

from __future__ import annotations

import time
from typing import Any

import pytest


@pytest.fixture
def deployed(engine: Any, model: Any, service: Any, unique: str) -> str:
    """A process of one task, whose topic has the same name."""
    engine.deploy(model(unique, service(unique)))
    return unique


def test_a_worker_takes_a_task_and_its_result_is_the_next_token(genuine: Any, engine: Any, deployed: str) -> None:
    genuine.start_worker("worker-1", deployed)
    started = genuine.call(
        "processModels.startProcessInstanceAndAwaitEndEvent",
        {"processModelId": deployed, "initialToken": {"amount": 5}, "correlationId": f"c-{deployed}"},
    )

    task = genuine.event("task")["task"]
    assert task["workerId"] == "worker-1"
    assert task["topic"] == deployed
    assert task["payload"] == {"amount": 5}
    assert task["correlationId"] == f"c-{deployed}"
    assert task["processInstanceId"] == started["processInstanceId"]
    assert task["processModelId"] == deployed
    assert task["processDefinitionId"] == f"{deployed}:1"
    assert task["state"] == "pending"
    assert task["isSingleTry"] is False
    assert started["endEventId"] == "end"
    assert started["tokenPayload"] == {"seen": {"amount": 5}}
    assert engine.instance(started["processInstanceId"])["status"] == "COMPLETED"


def test_an_exception_of_a_handler_goes_to_the_boundary_event_of_its_name(
    genuine: Any, engine: Any, model: Any, service: Any, unique: str
) -> None:
    caught = (
        '<bpmn:boundaryEvent id="caught" attachedToRef="work"><bpmn:errorEventDefinition errorRef="declined"/>'
        '</bpmn:boundaryEvent><bpmn:endEvent id="refunded"/>'
        '<bpmn:sequenceFlow id="out" sourceRef="caught" targetRef="refunded"/>'
    )
    root = '<bpmn:error id="declined" name="Declined" errorCode="Declined"/>'
    engine.deploy(model(unique, service(unique), more=caught, root=root))
    genuine.start_worker("worker", unique, "fail")

    started = genuine.call("processModels.startProcessInstanceAndAwaitEndEvent", {"processModelId": unique})

    assert started["endEventId"] == "refunded"


def test_an_exception_that_nobody_catches_puts_the_instance_in_error_and_it_can_be_retried(
    genuine: Any, engine: Any, refused: Any, deployed: str
) -> None:
    genuine.start_worker("bad", deployed, "fail")
    with pytest.raises(refused, match="the card was declined") as failure:
        genuine.call("processModels.startProcessInstanceAndAwaitEndEvent", {"processModelId": deployed})
    assert failure.value.code == 500
    genuine.stop_worker("bad")

    (shown,) = genuine.call("processInstances.query", {"processModelId": deployed})["processInstances"]
    assert shown["state"] == "error"
    assert "the card was declined" in shown["error"]["message"]
    assert genuine.call("processInstances.query", {"processModelId": deployed, "state": "running"})["totalCount"] == 0
    (node,) = genuine.call(
        "flowNodeInstances.query", {"processInstanceId": shown["processInstanceId"], "state": "error"}
    )["flowNodeInstances"]
    assert node["flowNodeId"] == "work"

    genuine.call("processInstances.retryProcessInstance", shown["processInstanceId"])
    genuine.start_worker("good", deployed)
    assert engine.end_of(shown["processInstanceId"])["status"] == "COMPLETED"
    with pytest.raises(refused) as nothing:
        genuine.call("processInstances.retryProcessInstance", shown["processInstanceId"])
    assert nothing.value.code == 409


def test_a_handler_is_aborted_when_its_instance_is_terminated(genuine: Any, engine: Any, deployed: str) -> None:
    instance_id = engine.start_instance(deployed)
    genuine.start_worker("worker", deployed, "hold", lockDuration=6_000)  # extended after a second
    task = genuine.event("task")["task"]

    genuine.call("processInstances.terminateProcessInstance", instance_id)

    assert genuine.event("aborted")["task"] == task["id"]
    told = genuine.event("worker_error")
    assert (told["type"], told["code"]) == ("extendLock", 409)
    (shown,) = genuine.call("processInstances.query", {"processInstanceId": instance_id})["processInstances"]
    assert shown["state"] == "terminated"


def test_a_worker_keeps_its_lock_while_its_handler_runs(genuine: Any, engine: Any, deployed: str) -> None:
    instance_id = engine.start_instance(deployed)
    genuine.start_worker("worker", deployed, "hold", lockDuration=6_000)
    task = genuine.event("task")["task"]

    def lock_expires() -> str:
        return str(engine.instance(instance_id)["tasks"][0]["lease"]["until"])

    engine.until(lambda: lock_expires() > task["lockExpirationTime"], "a longer lock")
    genuine.release(task["id"], {"done": True})
    assert engine.end_of(instance_id)["variables"] == {"done": True}


def test_a_falsy_result_is_never_reported_and_the_task_comes_back(genuine: Any, engine: Any, deployed: str) -> None:
    engine.start_instance(deployed)
    genuine.start_worker("worker", deployed, "nothing", lockDuration=1_000, idleTimeout=10)

    first = genuine.event("task")["task"]
    assert genuine.event("task")["task"]["id"] == first["id"]


def test_a_filter_decides_on_the_payload_and_one_poll_takes_several_topics(
    genuine: Any, engine: Any, model: Any, service: Any, unique: str
) -> None:
    topics = [f"{unique}-a", f"{unique}-b"]
    for topic in topics:
        engine.deploy(model(topic, service(topic)))
        for region in ("North", "South"):
            engine.start_instance(topic, {"region": region})

    def fetch(wanted: object, pattern: object) -> list[Any]:
        found: list[Any] = genuine.call("api.fetchAndLockExternalTasks", "worker", wanted, 10, 0, 30_000, pattern)
        return found

    found = fetch(topics, {"$regexp": ['"REGION":"south"', "i"]})
    assert sorted((task["topic"], task["payload"]["region"]) for task in found) == [
        (topics[0], "South"),
        (topics[1], "South"),
    ]
    assert [task["payload"]["region"] for task in fetch(topics[0], None)] == ["North"]
    assert fetch(topics[0], None) == []


def test_the_answers_of_the_external_task_api(genuine: Any, engine: Any, refused: Any, deployed: str) -> None:
    instance_id = engine.start_instance(deployed, {"n": 1})
    assert deployed in genuine.call("api.getAllDeployedTopics")
    (task,) = genuine.call("api.fetchAndLockExternalTasks", "one", deployed, 10, 1_000, 30_000)

    genuine.call("api.extendLock", "one", task["id"], 60_000)
    for method, args in (
        ("api.extendLock", ("another", task["id"], 60_000)),
        ("api.finishExternalTask", ("another", task["id"], {})),
        ("api.handleError", ("another", task["id"], {"errorCode": "X", "errorMessage": "", "errorDetails": ""})),
    ):
        with pytest.raises(refused) as lost:
            genuine.call(method, *args)
        assert (lost.value.name, lost.value.code) == ("ConflictError", 409), method
    genuine.call("api.finishExternalTask", "one", task["id"], {"done": 1})
    genuine.call("api.finishExternalTask", "one", task["id"], {"done": 1})  # repeated: it has its answer
    with pytest.raises(refused) as again:
        genuine.call("api.finishExternalTask", "one", task["id"], {"done": 2})
    assert again.value.code == 409
    with pytest.raises(refused) as unknown:
        genuine.call("api.finishExternalTask", "one", "no-such-task", {})
    assert (unknown.value.name, unknown.value.code) == ("NotFoundError", 404)
    assert engine.end_of(instance_id)["variables"] == {"n": 1, "done": 1}


def test_no_message_about_a_lost_lock_says_expired(genuine: Any, engine: Any, refused: Any, deployed: str) -> None:
    """The client takes the word for a token that is to be renewed, and repeats the call without end."""
    engine.start_instance(deployed)
    (task,) = genuine.call("api.fetchAndLockExternalTasks", "slow", deployed, 1, 0, 1_000)
    (same,) = genuine.call("api.fetchAndLockExternalTasks", "quick", deployed, 1, 10_000, 30_000)
    assert same["id"] == task["id"]

    for method, args in (("api.extendLock", (60_000,)), ("api.finishExternalTask", ({},))):
        with pytest.raises(refused) as lost:
            genuine.call(method, "slow", task["id"], *args)
        assert lost.value.code == 409
        assert "expired" not in lost.value.message.lower()


def test_a_worker_that_stops_polling_locks_nothing(genuine: Any, engine: Any, deployed: str) -> None:
    genuine.start_worker("leaver", deployed, longpollingTimeout=20_000)
    engine.until(lambda: _polls(engine, "leaver"), "a poll that waits")
    genuine.stop_worker("leaver")
    instance_id = engine.start_instance(deployed)

    (task,) = genuine.call("api.fetchAndLockExternalTasks", "stayer", deployed, 1, 10_000, 30_000)
    assert task["processInstanceId"] == instance_id


def _polls(engine: Any, worker_id: str) -> bool:
    workers = engine.request("GET", "/api/v1/workers")["workers"]
    return any(worker["worker_id"] == worker_id for worker in workers)


def test_a_worker_survives_that_the_engine_is_killed(
    start_engine: Any, start_node: Any, drive: Any, model: Any, service: Any, unique: str
) -> None:
    """The genuine one never repeats a finish that failed: the task comes back when its lock has run out."""
    engine = start_engine()
    engine.deploy(model(unique, service(unique)))
    instance_id = engine.start_instance(unique, {"n": 1})
    genuine = drive(start_node("processcube.mjs", engine.url))
    genuine.start_worker("first", unique, "hold", lockDuration=2_000)
    task = genuine.event("task")["task"]

    engine.kill()
    genuine.release(task["id"], {"attempt": 1})
    assert genuine.event("worker_error", type="finishExternalTask")
    genuine.stop_worker("first")  # it would only be a few seconds late: it waits longer after each failure
    engine.start()

    genuine.start_worker("second", unique)
    assert genuine.event("task", worker="second")["task"]["id"] == task["id"]
    ended = engine.end_of(instance_id)
    assert ended["variables"] == {"n": 1, "seen": {"n": 1}}
    assert ended["tasks"][0]["attempt"] == 2


def test_a_poll_answers_in_time_with_an_empty_array(engine: Any, unique: str) -> None:
    body = {"workerId": "w", "topicName": unique, "maxTasks": 1, "longPollingTimeout": 150, "lockDuration": 10_000}
    began = time.monotonic()
    status, found = engine.ask("POST", "/atlas_engine/api/v1/external_tasks/fetch_and_lock", body)
    assert (status, found) == (200, [])
    assert time.monotonic() - began >= 0.15


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"topicName": "t"}, "workerId is missing"),
        ({"workerId": "w"}, "topicName is missing"),
        ({"workerId": "w", "topicName": []}, "$.topicName"),
        ({"workerId": "w", "topicName": ["t", 1]}, "$.topicName"),
        ({"workerId": "w", "topicName": "t", "maxTasks": "1"}, "$.maxTasks"),
        ({"workerId": "w", "topicName": "t", "payloadFilter": "/(/"}, "regular expression"),
        ({"workerId": "w", "topicName": "t", "payloadFilter": "/a/x"}, "flag x"),
    ],
)
def test_a_poll_that_makes_no_sense_is_told_what_and_where(engine: Any, body: object, complaint: str) -> None:
    status, error = engine.ask("POST", "/atlas_engine/api/v1/external_tasks/fetch_and_lock", body)
    assert (status, error["code"], error["errorClassName"]) == (400, 400, "BadRequestError")
    assert complaint in error["message"]


def test_the_path_may_have_a_second_slash(engine: Any) -> None:
    status, topics = engine.ask("GET", "//atlas_engine/api/v1/external_tasks/deployed_topics")
    assert status == 200
    assert isinstance(topics, list)
