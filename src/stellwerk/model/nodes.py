"""Flow nodes, each read by itself: tasks, call activities, subprocesses, gateways, events. Flows come later."""

from __future__ import annotations

from typing import TypeVar

import attrs

from stellwerk.model.dialects import read_extensions
from stellwerk.model.events import message_definition, read_event
from stellwerk.model.expressions import Expression, literal
from stellwerk.model.extensions import Extensions, Reading, check_topic
from stellwerk.model.java import adopted_topic
from stellwerk.model.loops import read_loop
from stellwerk.model.notation import shown
from stellwerk.model.process import (
    Activity,
    CallActivity,
    Dialect,
    EventPosition,
    ExternalWork,
    FlowNode,
    Gateway,
    GatewayKind,
    MessageDefinition,
    Script,
    SubProcess,
    SubProcessKind,
    Task,
    TaskKind,
    UserWork,
)
from stellwerk.model.vocabulary import bpmn_child, bpmn_children, is_true, text_of
from stellwerk.model.xml import Element

__all__ = ["is_flow_node", "is_subprocess", "read_node"]

_TASKS = {kind.value: kind for kind in TaskKind}
_GATEWAYS = {kind.value: kind for kind in GatewayKind}
_EVENTS = {where.value for where in EventPosition}
_SUBPROCESSES = ("subProcess", "transaction", "adHocSubProcess")

_FOR_WORKERS = (TaskKind.SERVICE, TaskKind.SEND, TaskKind.BUSINESS_RULE, TaskKind.SCRIPT)
_TOPIC_IS_ID = (Dialect.PLAIN, Dialect.STELLWERK)

Node = TypeVar("Node", bound=FlowNode)
SomeActivity = TypeVar("SomeActivity", bound=Activity)


def is_subprocess(element: Element) -> bool:
    return element.name in _SUBPROCESSES


def is_flow_node(element: Element) -> bool:
    """Whether a BPMN element is one of those that `read_node` reads."""
    name = element.name
    return name in _TASKS or name in _GATEWAYS or name in _EVENTS or name in _SUBPROCESSES or name == "callActivity"


def read_node(element: Element, node_id: str, parent: str | None, reading: Reading) -> FlowNode:
    """One flow node. References (default flow, attached to) are as they stand in the file."""
    found = read_extensions(element, reading)
    if element.name in _EVENTS:
        return _with_common(read_event(element, node_id, parent, found, reading), element, found)
    if element.name in _GATEWAYS:
        return _with_common(_gateway(element, node_id, parent, reading), element, found)
    return _with_common(_activity(element, node_id, parent, found, reading), element, found)


def _with_common(node: Node, element: Element, found: Extensions) -> Node:
    return attrs.evolve(
        node,
        name=element.get("name") or None,
        default_flow=element.get("default") or None,
        inputs=tuple(found.inputs),
        outputs=tuple(found.outputs),
        headers=found.headers,
    )


def _gateway(element: Element, node_id: str, parent: str | None, reading: Reading) -> Gateway:
    activation = bpmn_child(element, "activationCondition")
    text = text_of(activation)
    condition = reading.texts.condition(activation, text) if activation is not None and text else None
    return Gateway(
        id=node_id,
        position=element.position,
        parent=parent,
        kind=_GATEWAYS[element.name],
        instantiate=is_true(element.get("instantiate")),
        activation_condition=condition,
    )


def _activity(element: Element, node_id: str, parent: str | None, found: Extensions, reading: Reading) -> Activity:
    activity: Activity
    if element.name in _TASKS:
        activity = _task(element, node_id, parent, found, reading)
    elif element.name == "callActivity":
        activity = _call_activity(element, node_id, parent, found, reading)
    else:
        kind = _subprocess_kind(element)
        activity = SubProcess(id=node_id, position=element.position, parent=parent, kind=kind)
    return _with_activity_parts(activity, element, reading)


def _with_activity_parts(activity: SomeActivity, element: Element, reading: Reading) -> SomeActivity:
    is_for_compensation = is_true(element.get("isForCompensation"))
    loop = read_loop(element, reading)
    if loop is None and not is_for_compensation:
        return activity
    return attrs.evolve(activity, loop=loop, is_for_compensation=is_for_compensation)


def _subprocess_kind(element: Element) -> SubProcessKind:
    if element.name == "transaction":
        return SubProcessKind.TRANSACTION
    if element.name == "adHocSubProcess":
        return SubProcessKind.AD_HOC
    return SubProcessKind.EVENT if is_true(element.get("triggeredByEvent")) else SubProcessKind.EMBEDDED


# --- tasks ---


def _task(element: Element, node_id: str, parent: str | None, found: Extensions, reading: Reading) -> Task:
    kind = _TASKS[element.name]
    script = _script(element, found) if kind is TaskKind.SCRIPT else None
    waits = reading.dialect is Dialect.PROCESSCUBE and kind in (TaskKind.MANUAL, TaskKind.UNDEFINED)
    return Task(
        id=node_id,
        position=element.position,
        parent=parent,
        kind=kind,
        work=_work(element, node_id, script, found, reading) if kind in _FOR_WORKERS else None,
        user=_user(element, found, reading) if kind is TaskKind.USER else None,
        message=_task_message(element, kind, found, reading),
        script=script,
        decision=found.decision,
        result_variable=found.result_variable,
        waits=waits,
    )


def _script(element: Element, found: Extensions) -> Script | None:
    text = text_of(bpmn_child(element, "script"))
    if text is None:
        return found.script
    return Script(element.get("scriptFormat"), text, found.result_variable)


def _work(
    element: Element, node_id: str, script: Script | None, found: Extensions, reading: Reading
) -> ExternalWork | None:
    work = found.work(adopted_topic(node_id, found.headers, reading))
    inside = script is not None or found.decision is not None
    if work is None and inside and reading.adopt_java:
        work = found.work(literal(node_id))
    elif work is None and reading.dialect in _TOPIC_IS_ID:
        work = found.work(literal(node_id))
        script_too = "" if script is None else "; the engine does not run the script"
        reading.findings.warning(
            element, f"no topic is given: workers get this under its id {shown(node_id)}{script_too}"
        )
    check_topic(work, element, reading)
    return work


def _task_message(element: Element, kind: TaskKind, found: Extensions, reading: Reading) -> MessageDefinition | None:
    if kind not in (TaskKind.RECEIVE, TaskKind.SEND):
        return None
    return message_definition(element, found, reading)


def _user(element: Element, found: Extensions, reading: Reading) -> UserWork | None:
    """The dialect's assignment, else BPMN's own performers and potential owners."""
    user = found.user
    if user.assignee is None:
        user = attrs.evolve(user, assignee=_resource(element, reading, "humanPerformer", "performer"))
    if user.candidate_groups is None:
        user = attrs.evolve(user, candidate_groups=_resource(element, reading, "potentialOwner"))
    return user if user != UserWork() else None


def _resource(element: Element, reading: Reading, *roles: str) -> Expression | None:
    for role in bpmn_children(element, *roles):
        assignment = bpmn_child(role, "resourceAssignmentExpression")
        formal = bpmn_child(assignment, "formalExpression") if assignment is not None else None
        text = text_of(formal)
        if formal is not None and text:
            return reading.texts.template(formal, text)
    return None


def _call_activity(
    element: Element, node_id: str, parent: str | None, found: Extensions, reading: Reading
) -> CallActivity:
    called = found.called
    name = element.get("calledElement")
    if called is None and name and name.strip():
        # An expression may hold a colon, a QName is never one.
        text = name if reading.texts.is_expression(name) else reading.roots.resolved(name)
        called = reading.texts.template(element, text)
    if called is None:
        reading.findings.error(element, "the call activity names no process")
    passes_all = found.pass_all_variables
    return CallActivity(
        id=node_id,
        position=element.position,
        parent=parent,
        called=called,
        called_version=found.called_version,
        pass_all_variables=reading.dialect is not Dialect.CAMUNDA if passes_all is None else passes_all,
    )
