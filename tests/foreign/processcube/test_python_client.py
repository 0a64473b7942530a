"""ProcessCube's genuine Python clients: the worker, notifications, the synchronous Client and the older ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_USER_TASK = '<bpmn:userTask id="approve" name="Approve"/>'


def test_a_python_worker_takes_finishes_and_declines(
    start_genuine_python: Any, engine: Any, model: Any, service: Any, unique: str
) -> None:
    caught = (
        '<bpmn:boundaryEvent id="caught" attachedToRef="work"><bpmn:errorEventDefinition errorRef="declined"/>'
        '</bpmn:boundaryEvent><bpmn:endEvent id="refunded"/>'
        '<bpmn:sequenceFlow id="out" sourceRef="caught" targetRef="refunded"/>'
    )
    root = '<bpmn:error id="declined" name="Declined" errorCode="Declined"/>'
    engine.deploy(model(unique, service(unique), more=caught, root=root))
    worker = start_genuine_python("worker", unique)
    instance_id = engine.start_instance(unique, {"n": 1})

    task = worker.expect("task")["task"]
    assert (task["workerId"], task["processInstanceId"]) == ("python-worker", instance_id)
    assert engine.end_of(instance_id)["variables"] == {"n": 1, "seen": {"n": 1}}

    declined = engine.start_instance(unique, {"declined": True})
    worker.expect("task")
    engine.end_of(declined)
    (shown,) = engine.request(
        "GET", f"/atlas_engine/api/v1/process_instances/query?processInstanceId={declined}&limit=-1"
    )["processInstances"]
    assert (shown["state"], shown["endEventId"]) == ("finished", "refunded")


def test_python_notifications_come_by_long_polling(
    start_genuine_python: Any, engine: Any, model: Any, service: Any, unique: str
) -> None:
    engine.deploy(model(unique, service(unique)))
    client = start_genuine_python("notifications")
    started: list[str] = []

    def came() -> Any:
        # Nobody can see from outside that its request is there already.
        started.append(engine.start_instance(unique))
        return client.poll(0.2)

    message = engine.until(came, "a notification")["message"]
    assert message["processInstanceId"] in started


def test_the_synchronous_client_from_deploying_to_the_end(
    start_genuine_python: Any, model: Any, service: Any, unique: str, tmp_path: Path
) -> None:
    file = tmp_path / "tour.bpmn"
    file.write_text(model(unique, service(unique), _USER_TASK))
    client = start_genuine_python("tour", unique, str(file))

    assert client.expect("info") == {"event": "info", "name": "stellwerk", "authority": ""}
    assert client.expect("deployed")["files"] == [True]
    client.expect("started")
    assert client.expect("fetched")["payload"] == {"n": 1}
    waiting = client.expect("waiting")
    assert (waiting["flow_node_name"], waiting["fields"]) == ("Approve", 0)
    ended = client.expect("ended")
    assert (ended["state"], ended["end_token"]) == ("finished", {"approved": True})
    assert client.expect("nodes")["nodes"] == ["start", "work", "approve", "end"]


def test_the_older_clients_start_find_finish_and_send(
    start_genuine_python: Any, engine: Any, model: Any, unique: str
) -> None:
    catch = (
        '<bpmn:intermediateCatchEvent id="paid"><bpmn:messageEventDefinition messageRef="m"/>'
        "</bpmn:intermediateCatchEvent>"
    )
    engine.deploy(model(unique, _USER_TASK, catch, root=f'<bpmn:message id="m" name="{unique}"/>'))
    client = start_genuine_python("people", unique)

    instance_id = client.expect("started")["instance"]
    (task,) = client.expect("waiting")["tasks"]
    assert (task["flowNodeId"], task["flowNodeName"], task["formFields"]) == ("approve", "Approve", [])
    assert client.expect("definition")["id"] == f"{unique}:1"
    assert engine.end_of(instance_id)["variables"] == {"approved": True, "paid": 1}
