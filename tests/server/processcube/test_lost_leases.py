"""ProcessCube's workers stop a handler at 409 only: no other answer may tell them that their lease is over."""

from __future__ import annotations

from typing import Any

import pytest
import trio

TASKS = "//atlas_engine/api/v1/external_tasks"
REPORTS: dict[str, dict[str, object]] = {
    "extend_lock": {"additionalDuration": 30_000},
    "finish": {"result": {"late": True}},
    "error": {"error": {"errorCode": "X", "errorMessage": "late"}},
}


async def finished(client: Any, task: Any) -> None:
    path = f"/external-tasks/{task['task_id']}/complete"
    assert (await client.post(path, {"worker_id": "w", "variables": {"in": "time"}})).status == 200


async def cancelled(client: Any, task: Any) -> None:
    assert (await client.post(f"/process-instances/{task['process_instance_id']}/cancel", {})).status == 200


async def lost(client: Any, task: Any) -> None:
    """It ran out, and somebody else has the task."""
    await trio.sleep(1.1)
    fetch = {"worker_id": "next", "task_types": ["charge"], "wait_ms": 5_000}
    (again,) = (await client.post("/external-tasks/fetch-and-lock", fetch)).body
    assert again["task_id"] == task["task_id"]


async def ran_out(client: Any, task: Any) -> None:
    """And nobody else has it."""
    await trio.sleep(1.2)


@pytest.mark.parametrize("ending", [finished, cancelled, lost, ran_out])
async def test_fault_151_a_lease_that_is_over_is_a_409_and_only_an_unknown_task_a_404(
    deployed: Any, ending: Any
) -> None:
    await deployed.start()
    fetch = {
        "worker_id": "w",
        "task_types": ["charge"],
        "lock_duration_ms": 1_000 if ending in (lost, ran_out) else 30_000,
    }
    (task,) = (await deployed.post("/external-tasks/fetch-and-lock", fetch)).body
    await ending(deployed, task)
    for report, body in REPORTS.items():
        reply = await deployed.send("PUT", f"{TASKS}/{task['task_id']}/{report}", {"workerId": "w", **body})
        assert (reply.status, reply.body["code"]) == (409, 409), (report, reply)
        assert "expired" not in reply.body["message"].lower(), "its client would renew its token and try again"
        unknown = await deployed.send("PUT", f"{TASKS}/unknown/{report}", {"workerId": "w", **body})
        assert unknown.status == 404, (report, unknown)
