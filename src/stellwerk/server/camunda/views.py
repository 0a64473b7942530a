"""What Camunda's API shows of the engine's values. A field that stellwerk has nothing for is there, as null."""

from __future__ import annotations

from collections.abc import Mapping

from stellwerk.core.external_task import ExternalTask, TaskAttempt, TaskState
from stellwerk.ids import process_key_of
from stellwerk.instants import InstantMs
from stellwerk.json_values import JsonObject, JsonValue, loads
from stellwerk.ports import DefinitionRow, InstanceSummary
from stellwerk.server.camunda.typed_values import date_text, typed_variables

__all__ = [
    "definition_view",
    "error_details",
    "execution_view",
    "instance_view",
    "locked_task_view",
    "retries_of",
    "self_link",
    "task_view",
    "user_task_view",
    "variables_of",
]


def task_view(task: ExternalTask) -> dict[str, object]:
    lease = task.lease if task.state is TaskState.LOCKED else None
    return {
        "id": task.task_id,
        "topicName": task.topic,
        "workerId": None if lease is None else lease.holder.worker_id,
        "lockExpirationTime": None if lease is None else date_text(lease.until_ms),
        "createTime": date_text(task.created_at_ms),
        "processInstanceId": task.instance_id,
        "executionId": task.token_id,
        "activityId": task.element_id,
        "activityInstanceId": task.activity_id,
        "processDefinitionId": task.definition_id,
        "processDefinitionKey": process_key_of(task.definition_id),
        "processDefinitionVersionTag": None,
        "tenantId": None,
        "retries": retries_of(task),
        "errorMessage": task.error_message,
        "suspended": False,
        "priority": task.priority,
        "businessKey": task.business_key,
    }


def retries_of(task: ExternalTask) -> int | None:
    """Null until a failure was reported or somebody set them: clients take that for the first attempt."""
    if task.state in (TaskState.FAILED, TaskState.EXPIRED):
        return 0
    untouched = task.error_message is None and task.retries_left == task.retries
    return None if untouched else task.retries_left


def locked_task_view(
    task: ExternalTask, details: str | None, *, deserialized: bool, with_properties: bool
) -> dict[str, object]:
    """As ``fetchAndLock`` answers.

    :param details: of the failure before.
    """
    variables = loads(task.variables)
    assert isinstance(variables, dict)
    properties = {"extensionProperties": loads(task.headers)} if with_properties else {}
    return {
        **task_view(task),
        "errorDetails": details,
        "variables": typed_variables(variables, deserialized=deserialized),
        **properties,
    }


def error_details(attempts: tuple[TaskAttempt, ...]) -> str | None:
    """Of the newest failure that was reported with any: a text as it is, anything else as JSON."""
    for attempt in reversed(attempts):
        if attempt.details is not None:
            value = loads(attempt.details)
            return value if isinstance(value, str) else attempt.details.decode()
    return None


def definition_view(row: DefinitionRow) -> dict[str, object]:
    return {
        "id": row.definition_id,
        "key": row.key,
        "category": None,
        "description": None,
        "name": row.name,
        "version": row.version,
        "resource": f"{row.key}.bpmn",
        "deploymentId": None,
        "diagram": None,
        "suspended": False,
        "tenantId": None,
        "versionTag": None,
        "historyTimeToLive": None,
        "startableInTasklist": True,
    }


def instance_view(summary: InstanceSummary) -> dict[str, object]:
    return {
        "id": summary.instance_id,
        "definitionId": summary.definition_id,
        "definitionKey": summary.process_key,
        "businessKey": summary.business_key,
        "caseInstanceId": None,
        "ended": summary.status != "RUNNING",
        "suspended": False,
        "tenantId": None,
    }


def execution_view(instance_id: str | None) -> dict[str, object]:
    return {"id": instance_id, "processInstanceId": instance_id, "ended": False, "tenantId": None}


def self_link(method: str, path: str) -> dict[str, object]:
    """:param path: behind the API's prefix."""
    return {"method": method, "href": f"/engine-rest{path}", "rel": "self"}


def user_task_view(row: Mapping[str, JsonValue], definition_id: str) -> dict[str, object]:
    return {
        "id": row["user_task_id"],
        "name": row["name"],
        "assignee": row["assignee"],
        "created": _created(row["created_at_ms"]),
        "due": row["due_at"],
        "followUp": None,
        "lastUpdated": None,
        "delegationState": None,
        "description": None,
        "executionId": row["user_task_id"],
        "owner": None,
        "parentTaskId": None,
        "priority": 50,
        "processDefinitionId": definition_id,
        "processInstanceId": row["instance_id"],
        "taskDefinitionKey": row["element_id"],
        "caseExecutionId": None,
        "caseInstanceId": None,
        "caseDefinitionId": None,
        "suspended": False,
        "formKey": row["form"],
        "camundaFormRef": None,
        "tenantId": None,
    }


def _created(instant_ms: JsonValue) -> str | None:
    assert isinstance(instant_ms, InstantMs)
    return date_text(instant_ms)


def variables_of(row: Mapping[str, JsonValue]) -> JsonObject:
    """Of a user task: what the person gets to see."""
    text = row["variables"]
    value = loads(text) if isinstance(text, bytes | str) else text
    return value if isinstance(value, dict) else {}
