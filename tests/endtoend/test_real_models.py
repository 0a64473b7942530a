"""Real models of other people, run to their ends by worker processes over WebSocket."""

from __future__ import annotations

import json
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[3] / "shared" / "data" / "bpmn" / "setA"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the public BPMN files are not beside this checkout")


def completed_nodes(view: Any) -> list[str]:
    """Ids of the nodes that tokens entered, in order."""
    return [event["payload"]["node_id"] for event in view["history"] if event["event_type"] == "TokenEntered"]


def topics_begun(worker: Any) -> list[str]:
    return [line["topic"] for line in worker.ledger() if line["event"] == "begin"]


INTERNET_THINGS = {
    "PublishCoolTweet": [{"return": {}}],
    "AnswerQuestion": [{"when": ["known", False], "error": ["NoIdea", "no idea at all"]}, {"return": {}}],
    "CheckResponse": [{"when": ["good", True], "return": {"responseGood": True}}, {"return": {"responseGood": False}}],
    "PublishSorryTweet": [{"return": {}}],
    "StupidQuestion": [{"return": {}}],
}


@pytest.mark.parametrize(
    ("variables", "topics", "end"),
    [
        ({"action": "tweet", "good": True}, ["PublishCoolTweet", "CheckResponse"], "EndEvent_169j0z2"),
        (
            {"action": "tweet", "good": False},
            ["PublishCoolTweet", "CheckResponse", "PublishSorryTweet"],
            "EndEvent_010639x",
        ),
        ({"action": "forum", "known": False}, ["AnswerQuestion", "StupidQuestion"], "EndEvent_12knsp7"),
        ({"action": "forum", "good": True}, ["AnswerQuestion", "CheckResponse"], "EndEvent_169j0z2"),
        ({"action": "sleep"}, [], "EndEvent_1n1u41j"),
    ],
    ids=["happy", "compensated", "error path", "answered", "default flow"],
)
def test_internet_things(engine: Any, workers: Any, variables: dict[str, object], topics: list[str], end: str) -> None:
    engine.deploy(DATA / "code__InternetThings-Final.bpmn")
    worker = workers.start(INTERNET_THINGS)
    view = engine.wait(engine.start_instance("InternetThings", variables))
    assert view["status"] == "COMPLETED", view["incidents"]
    assert topics_begun(worker) == topics
    assert end in completed_nodes(view)


def test_order_fulfillment(engine: Any, workers: Any) -> None:
    engine.deploy(DATA / "operaton__order-fulfillment.bpmn")
    worker = workers.start(
        {
            "validate-order": [{"return": {"needsReview": True}}],
            "charge-payment": [{"return": {"charged": 12.5}}],
            "send-email": [{"return": None}],
            "update-inventory": [{"return": {}}],
        }
    )
    instance_id = engine.start_instance("orderFulfillment", {"order": {"id": "o-1"}})
    user_task = _wait_for_user_task(engine, instance_id)
    assert user_task["element_id"] == "UserTask_ManualReview"
    assert user_task["assignee"] == "demo"
    engine.request("POST", f"/api/v1/user-tasks/{user_task['user_task_id']}/complete", {"variables": {"ok": True}})
    view = engine.wait(instance_id)
    assert view["status"] == "COMPLETED"
    begun = topics_begun(worker)
    assert begun[:2] == ["validate-order", "charge-payment"]
    assert sorted(begun[2:]) == ["send-email", "update-inventory"]
    assert view["variables"]["charged"] == 12.5
    assert view["variables"]["ok"] is True


def _wait_for_user_task(engine: Any, instance_id: str) -> Any:
    found: list[Any] = []

    def look() -> bool:
        found[:] = [
            task
            for task in engine.request("GET", "/api/v1/user-tasks")["user_tasks"]
            if task["instance_id"] == instance_id
        ]
        return bool(found)

    engine.until(look)
    return found[0]


@pytest.mark.parametrize(
    ("case", "topics", "variables"),
    [
        ({"return": {"score": 1}}, ["VALIDATE_IMAGE", "APPROVE_IMAGE"], {"score": 1}),
        (
            {"error": ["INVALID_IMAGE", "no image"]},
            ["VALIDATE_IMAGE", "REJECT_IMAGE"],
            {"rejection_code": "INVALID_IMAGE", "rejection_reason": "no image"},
        ),
        (
            {"error": ["POOR_QUALITY_IMAGE", "blurred"]},
            ["VALIDATE_IMAGE", "ENHANCE_IMAGE_QUALITY"],
            {"quality_code": "POOR_QUALITY_IMAGE", "quality_description": "blurred"},
        ),
    ],
)
def test_bpmn_error_example(
    engine: Any, workers: Any, case: dict[str, object], topics: list[str], variables: dict[str, object]
) -> None:
    engine.deploy(DATA / "camunda-external-task-client-python3__bpmn_error_example.bpmn")
    others: dict[str, list[dict[str, object]]] = {
        name: [{"return": {}}] for name in ("APPROVE_IMAGE", "REJECT_IMAGE", "ENHANCE_IMAGE_QUALITY")
    }
    worker = workers.start({"VALIDATE_IMAGE": [case], **others})
    view = engine.wait(engine.start_instance("BPMN_ERROR_EXAMPLE"))
    assert view["status"] == "COMPLETED"
    assert topics_begun(worker) == topics
    assert variables.items() <= view["variables"].items()


def test_parameters(engine: Any, workers: Any) -> None:
    engine.deploy(DATA / "quarkus-zeebe__parameters.bpmn")
    topics = [
        "test-default",
        "test-variable-headers",
        "test-variable-header",
        "test-variable-header-name",
        "test-variable",
        "test-variable-name",
        "test-variable-as",
        "test-variable-return-object",
        "test-variable-return-map",
        "test-variable-return-string",
        "test-variable-return-input-stream",
    ]
    results: dict[str, list[dict[str, object]]] = {topic: [{"return": None}] for topic in topics}
    results["test-variable-return-object"] = [{"return": {"object": {"a": 1}}}]
    results["test-variable-return-map"] = [{"return": {"map": [1, 2]}}]
    results["test-variable-return-string"] = [{"return": "text"}]
    worker = workers.start(results)
    view = engine.wait(engine.start_instance("ParametersProcessTest", {"p1": "v1"}))
    assert view["status"] == "COMPLETED"
    assert topics_begun(worker) == topics
    by_topic = {line["topic"]: line for line in worker.ledger()}
    assert by_topic["test-variable-headers"]["headers"] == {"header1": "value1", "header2": "value2"}
    assert by_topic["test-variable-return-input-stream"]["variables"] == {
        "p1": "v1",
        "object": {"a": 1},
        "map": [1, 2],
        "result": "text",
    }


def test_looping_service_task(engine: Any, workers: Any) -> None:
    engine.deploy(DATA / "zeebe-process-test__looping-servicetask.bpmn")
    worker = workers.start({"test": [{"return": None}]})
    view = engine.wait(engine.start_instance("looping-servicetask", {"totalLoops": 5}))
    assert view["status"] == "COMPLETED"
    assert [line["variables"]["loopAmount"] for line in worker.ledger() if line["event"] == "begin"] == [0, 1, 2, 3, 4]
    assert view["variables"]["loopAmount"] == 5


def test_processcube_external_task(engine: Any, workers: Any) -> None:
    engine.deploy(DATA / "ProcessCube.App.SDK__ExternalTaskTest.bpmn")
    worker = workers.start({"test-task": [{"return": {"answer": 42}}]})
    view = engine.wait(engine.start_instance("ExternalTaskTest_Process", {"question": "?"}))
    assert view["status"] == "COMPLETED"
    assert worker.ledger()[0]["variables"] == {"question": "?"}


@pytest.mark.parametrize(
    ("case", "end"),
    [({"return": {}}, "Event_1nqg7v5"), ({"error": ["code_4711", "as agreed"]}, "Event_1v7fe13")],
)
def test_processcube_error_code(engine: Any, workers: Any, case: dict[str, object], end: str) -> None:
    engine.deploy(DATA / "node-red-contrib-processcube__External-Task-HandleErrorCode.bpmn")
    workers.start({"handleErrorCode": [case]})
    view = engine.wait(engine.start_instance("ETW-HandleError_Process"))
    assert view["status"] == "COMPLETED"
    assert end in completed_nodes(view)


def test_L3_a_task_of_a_running_engine_is_a_row_with_uuids_and_json(engine: Any, workers: Any) -> None:
    engine.deploy(DATA / "ProcessCube.App.SDK__ExternalTaskTest.bpmn")
    instance_id = engine.start_instance("ExternalTaskTest_Process", {"question": "?"})
    engine.stop()
    with closing(sqlite3.connect(engine.database)) as database:
        database.row_factory = sqlite3.Row
        (row,) = database.execute("SELECT * FROM external_tasks").fetchall()
    assert (row["process_instance"], row["task_type"], row["state"]) == (instance_id, "test-task", "READY")
    for name in ("task_id", "token_id", "process_instance"):
        assert str(uuid.UUID(row[name])) == row[name]
    assert json.loads(row["variables"]) == {"question": "?"}
    assert (row["lock_owner"], row["lock_expire_at"], row["retries"]) == (None, None, 3)
