"""Notifications to ProcessCube's genuine clients: Socket.IO for JavaScript, long polling for everybody."""

from __future__ import annotations

import threading
from typing import Any

import pytest

_LONG_POLLING = "/atlas_engine/api/v1/notifications/long_polling/"


@pytest.fixture
def listening(genuine: Any) -> Any:
    """To everything that the tests look for."""
    for name in (
        "onProcessStarted",
        "onProcessEnded",
        "onProcessError",
        "onProcessTerminated",
        "onActivityReached",
        "onActivityFinished",
        "onActivityError",
        "onExternalTaskCreated",
        "onUserTaskWaiting",
        "onUserTaskReserved",
        "onUserTaskFinished",
        "onStartEventFinished",
        "onEndEventFinished",
    ):
        genuine.listen(f"notification.{name}")
    genuine.connect()
    return genuine


def test_the_life_of_an_instance_is_told(listening: Any, engine: Any, model: Any, service: Any, unique: str) -> None:
    engine.deploy(model(unique, service(unique), '<bpmn:userTask id="approve"/>'))
    instance_id = engine.start_instance(unique, {"n": 1}, business_key=f"key-{unique}")

    def told(name: str, **expected: object) -> Any:
        message = listening.event("notified", method=name)["message"]
        assert message["processInstanceId"] == instance_id
        assert message["correlationId"] == f"key-{unique}"
        assert {key: message[key] for key in expected} == expected
        return message

    told("onProcessStarted", processModelId=unique, currentToken={"n": 1})
    told("onStartEventFinished", flowNodeId="start", flowNodeType="bpmn:StartEvent")
    told("onActivityReached", flowNodeId="work", flowNodeType="bpmn:ServiceTask")
    created = told("onExternalTaskCreated", topic=unique, isSingleTry=False)
    listening.start_worker(f"worker-{unique}", unique)
    assert listening.event("task")["task"]["id"] == created["externalTaskId"]
    told("onActivityFinished", flowNodeId="work", flowNodeInstanceId=created["flowNodeInstanceId"])
    told("onActivityReached", flowNodeId="approve", currentToken={"seen": {"n": 1}})
    waiting = told("onUserTaskWaiting", flowNodeId="approve")
    listening.call("userTasks.reserveUserTaskInstance", None, waiting["flowNodeInstanceId"], "ada")
    told("onUserTaskReserved", actualOwnerId="ada")
    listening.call("userTasks.finishUserTask", waiting["flowNodeInstanceId"], {"ok": True})
    told("onUserTaskFinished", userTaskResult={"ok": True})
    told("onEndEventFinished", flowNodeId="end", currentToken={"ok": True})
    told("onProcessEnded")


def test_errors_and_terminations_are_told(listening: Any, engine: Any, model: Any, service: Any, unique: str) -> None:
    engine.deploy(model(unique, service(unique)))
    instance_id = engine.start_instance(unique)
    listening.start_worker(f"worker-{unique}", unique, "fail")

    assert listening.event("notified", method="onActivityError")["message"]["flowNodeId"] == "work"
    failed = listening.event("notified", method="onProcessError")["message"]
    assert failed["processInstanceId"] == instance_id
    assert "the card was declined" in failed["error"]["message"]
    listening.call("processInstances.terminateProcessInstance", instance_id)
    assert listening.event("notified", method="onProcessTerminated")["message"]["processInstanceId"] == instance_id


def test_an_instance_that_ran_before_anybody_listened_is_told_of_from_there(
    listening: Any, engine: Any, model: Any, service: Any, unique: str
) -> None:
    engine.deploy(model(unique, service(unique), '<bpmn:userTask id="approve"/>'))
    listening.call("notification.disconnectSocket")
    instance_id = engine.start_instance(unique)
    listening.listen("notification.onUserTaskWaiting")
    listening.connect()
    listening.start_worker(f"worker-{unique}", unique)

    message = listening.event("notified", method="onUserTaskWaiting")["message"]
    assert (message["processInstanceId"], message["flowNodeId"]) == (instance_id, "approve")


def test_long_polling_waits_for_the_next_one(engine: Any, model: Any, service: Any, unique: str) -> None:
    engine.deploy(model(unique, service(unique)))
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(engine.ask("GET", _LONG_POLLING + "process_started")))
    waiting.start()
    started: list[str] = []

    def came() -> bool:
        # Nobody can see from outside that the request is there already.
        started.append(engine.start_instance(unique))
        waiting.join(0.1)
        return not waiting.is_alive()

    engine.until(came, "a notification")
    status, message = answers[0]
    assert status == 200
    assert message["processInstanceId"] in started


def test_what_is_never_told_is_refused(engine: Any) -> None:
    status, error = engine.ask("GET", _LONG_POLLING + "cronjob_created")
    assert (status, error["errorClassName"]) == (501, "NotImplementedError")


# --- the protocol


def _socket(engine: Any, query: str, body: str | None = None) -> tuple[int, Any]:
    status, answer = engine.ask("GET" if body is None else "POST", f"/socket.io/?{query}", body)
    return status, answer


def test_the_socket_speaks_engine_io_4_by_polling_only(engine: Any) -> None:
    assert _socket(engine, "EIO=3&transport=polling")[1] == {"code": 5, "message": "Unsupported protocol version"}
    assert _socket(engine, "EIO=4&transport=websocket")[1] == {"code": 0, "message": "Transport unknown"}
    assert _socket(engine, "EIO=4&transport=polling&sid=unknown") == (
        400,
        {"code": 1, "message": "Session ID unknown"},
    )
    status, opening = _socket(engine, "EIO=4&transport=polling")
    assert status == 200
    assert opening.startswith('0{"sid":')
    assert '"upgrades":[]' in opening
