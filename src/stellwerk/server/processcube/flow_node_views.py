"""Flow node instances as ProcessCube's API shows them, user tasks among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stellwerk.instants import to_rfc3339
from stellwerk.model.process import Process, Task
from stellwerk.ports import InstanceSummary
from stellwerk.server.processcube.flow_node_reading import FlowNodeInstance
from stellwerk.server.processcube.node_types import event_type_of, flow_node_type_of
from stellwerk.server.processcube.views import OWNER, correlation_of, external_task_data, given

__all__ = ["error_view", "flow_node_view", "waiting_task_view"]


def error_view(message: str, name: str = "Error") -> dict[str, object]:
    return {"name": name, "code": 500, "message": message}


def flow_node_view(found: FlowNodeInstance, summary: InstanceSummary, process: Process) -> dict[str, object]:
    task = None if found.task is None else external_task_data(found.task)
    return {
        **_common(found.id, found.node.id, summary, process),
        **given(
            previousFlowNodeInstanceId=found.previous_id,
            state=found.state,
            startToken=found.start_token,
            endToken=found.end_token,
            error=None if found.error is None else error_view(found.error),
            startedAt=to_rfc3339(found.started_at_ms),
            finishedAt=None if found.finished_at_ms is None else to_rfc3339(found.finished_at_ms),
            externalTaskData=task,
            tokens=_tokens(found.start_token, found.end_token),
            metaInfo=[],
        ),
        **(_user_task({}) if _is_for_people(process, found.node.id) else {}),
    }


def waiting_task_view(row: Mapping[str, object], summary: InstanceSummary, process: Process) -> dict[str, object]:
    """:param row: an open user task of the store."""
    text = row["variables"]
    assert isinstance(text, bytes | str)
    token = msgspec.Raw(text.encode() if isinstance(text, str) else text)
    created = row["created_at_ms"]
    assert isinstance(created, int)
    return {
        **_common(str(row["user_task_id"]), str(row["element_id"]), summary, process),
        "state": "suspended",
        "startToken": token,
        "startedAt": to_rfc3339(created),
        "tokens": _tokens(token, None),
        "metaInfo": [],
        **_user_task(row),
    }


def _common(instance_id: str, node_id: str, summary: InstanceSummary, process: Process) -> dict[str, object]:
    node = process.nodes[node_id]
    return given(
        flowNodeInstanceId=instance_id,
        flowNodeId=node.id,
        flowNodeName=node.name or "",
        flowNodeType=flow_node_type_of(node),
        eventType=event_type_of(node),
        processDefinitionId=summary.definition_id,
        processModelId=summary.process_key,
        processModelName=process.name,
        processInstanceId=summary.instance_id,
        correlationId=correlation_of(summary.business_key, summary.instance_id),
        ownerId=OWNER,
    )


def _user_task(row: Mapping[str, object]) -> dict[str, object]:
    users = row.get("candidate_users")
    assigned = list(users) if isinstance(users, Sequence) and not isinstance(users, str) else []
    form = row.get("form")
    config = given(
        formFields=[], customForm=form if isinstance(form, str) else "DynamicForm", assignedUserIds=assigned or None
    )
    return given(
        actualOwnerId=row.get("assignee"),
        userTaskConfig=config,
        userTaskConfigModel=config,
        assignedUserIds=assigned or None,
    )


def _is_for_people(process: Process, node_id: str) -> bool:
    node = process.nodes[node_id]
    return isinstance(node, Task) and flow_node_type_of(node) == "bpmn:UserTask"


def _tokens(start: object, end: object) -> list[dict[str, object]]:
    """Older clients find the tokens of a flow node instance here: the first one, and the newest."""
    return [{"type": "onEnter", "payload": start}, {"type": "onExit", "payload": start if end is None else end}]
