"""Small mistakes in a request are told as such: a method that a path does not take, a state in other letters."""

from __future__ import annotations

from typing import Any

import pytest

from stellwerk.app import ServedEngine


@pytest.mark.parametrize("path", ["/external-tasks/fetch-and-lock", "/messages/correlate"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_word_of_a_path_is_not_taken_for_an_id(client: Any, path: str, method: str) -> None:
    answer = await client.send(method, path, {})
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.body["code"] == "method_not_allowed"


async def test_states_may_be_written_in_any_case(deployed: Any) -> None:
    instance_id = await deployed.start()
    for state in ("READY", "Ready", "ready"):
        (task,) = (await deployed.get(f"/external-tasks?state={state}")).body["tasks"]
        assert task["instance_id"] == instance_id
    for status in ("running", "Running"):
        assert len((await deployed.get(f"/process-instances?status={status}")).body["instances"]) == 1
    refused = await deployed.get("/external-tasks?state=waiting")
    assert refused.status == 400
    assert "expected one of READY, LOCKED, COMPLETED, FAILED, EXPIRED, CANCELLED" in refused.body["detail"]


@pytest.mark.parametrize(
    "message, shown", [("the card is empty", "NO_MONEY: the card is empty"), (None, "NO_MONEY"), ("", "NO_MONEY")]
)
async def test_an_error_that_nobody_catches_keeps_its_code_in_the_incident(
    deployed: Any, engine: ServedEngine, message: str | None, shown: str
) -> None:
    instance_id = await deployed.start()
    body = {"worker_id": "w", "task_types": ["charge"], "max_tasks": 1, "lock_duration_ms": 20_000}
    (task,) = (await deployed.post("/external-tasks/fetch-and-lock", body)).body
    report = {"worker_id": "w", "fence": task["fence"], "code": "NO_MONEY", "message": message}
    answer = await deployed.post(f"/external-tasks/{task['task_id']}/bpmn-error", report)
    assert answer.status == 200, answer
    (incident,) = (await deployed.get("/incidents")).body["incidents"]
    assert (incident["instance_id"], incident["kind"], incident["message"]) == (instance_id, "bpmn_error", shown)
