"""What ProcessCube's API shows of external tasks. Fields without a value are left out: its clients want no null."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.ids import process_key_of
from stellwerk.instants import to_rfc3339

__all__ = ["OWNER", "correlation_of", "external_task", "external_task_data", "given"]

OWNER = "stellwerk"
"""Instances have no owners here; the clients expect a text."""

_STATES = {
    TaskState.READY: "pending",
    TaskState.LOCKED: "pending",
    TaskState.EXPIRED: "expired",
}
"""All others are finished."""


def given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def correlation_of(business_key: str | None, instance_id: str) -> str:
    return business_key if business_key is not None else instance_id


def external_task(task: ExternalTask) -> dict[str, object]:
    """To the worker that has just leased it."""
    assert task.lease is not None
    return {
        "id": task.task_id,
        "workerId": task.lease.holder.worker_id,
        "topic": task.topic,
        "isSingleTry": task.single_try,
        "flowNodeInstanceId": task.activity_id,
        "correlationId": correlation_of(task.business_key, task.instance_id),
        "processDefinitionId": task.definition_id,
        "processModelId": process_key_of(task.definition_id),
        "processInstanceId": task.instance_id,
        "ownerId": OWNER,
        "payload": msgspec.Raw(task.variables),
        "lockExpirationTime": to_rfc3339(task.lease.until_ms),
        "state": "pending",
        "createdAt": to_rfc3339(task.created_at_ms),
    }


def external_task_data(task: ExternalTask) -> Mapping[str, object]:
    """What a service task's flow node instance says about its external task."""
    is_ended = task.state not in (TaskState.READY, TaskState.LOCKED)
    lease = task.lease if task.state is TaskState.LOCKED else None
    return given(
        externalTaskId=task.task_id,
        topic=task.topic,
        state=_STATES.get(task.state, "finished"),
        isSingleTry=task.single_try,
        payload=msgspec.Raw(task.variables),
        workerId=None if lease is None else lease.holder.worker_id,
        lockExpirationTime=None if lease is None else to_rfc3339(lease.until_ms),
        finishedAt=to_rfc3339(task.updated_at_ms) if is_ended else None,
    )
