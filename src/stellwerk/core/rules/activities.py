"""The start and the end that all activities have in common: local variables, boundary events, mappings, snapshots."""

from __future__ import annotations

from typing import cast

from stellwerk.core import facts as f
from stellwerk.core.instance import ActivityInstance, Token
from stellwerk.core.rules.cancellation import release_inner_scope
from stellwerk.core.rules.compensation import handles, settle_around, snapshot_needed
from stellwerk.core.rules.flows import leave
from stellwerk.core.rules.values import evaluate_mappings, inner_scope, is_processcube, propagate
from stellwerk.core.rules.waiting import Wait, disarm, open_wait, planned_boundary_waits
from stellwerk.core.step import Step
from stellwerk.errors import BpmnFault
from stellwerk.json_values import JsonObject, JsonValue, canonical_object
from stellwerk.model.process import Activity, FlowNode, SubProcess
from stellwerk.values import frozen

__all__ = ["Plan", "drained", "finish_activity", "keep_result", "plan_activity", "start_activity"]


@frozen
class Plan:
    """All that has to be evaluated before an activity starts, so that a fault leaves nothing half done."""

    local: JsonObject | None
    """Its own variables, None if it needs no scope for them."""
    variables: JsonObject
    """All that it sees."""
    waits: list[Wait]
    compensates: str | None


def plan_activity(step: Step, token: Token, node: FlowNode) -> Plan:
    """:raises BpmnFault: when an input mapping or a boundary event's expression fails."""
    visible = step.state.visible_variables(token.scope_id)
    compensation = step.state.compensations.get(token.compensation_id) if token.compensation_id else None
    compensated = compensation.pending[0] if compensation is not None and compensation.pending else None
    local = compensated.variables if compensated is not None else None
    if node.inputs:
        local = evaluate_mappings(step, token, node.inputs, visible, local or {})
    variables = {**visible, **local} if local else visible
    waits: list[Wait] = []
    if isinstance(node, Activity) and node.boundary_events:
        waits = planned_boundary_waits(step, token, node, variables)
    return Plan(local, variables, waits, compensated.id if compensated is not None else None)


def start_activity(step: Step, token: Token, node: FlowNode, plan: Plan) -> str:
    """→ the activity's id."""
    activity_id = step.fresh_id()
    step.emit(f.ActivityStarted(activity_id, node.id, token.id, token.scope_id, plan.compensates))
    body = isinstance(node, SubProcess)
    if body or plan.local is not None:
        step.emit(
            f.ScopeOpened(step.fresh_id(), node.id, token.scope_id, activity_id, plan.local or {}, local=not body)
        )
    for wait in plan.waits:
        open_wait(step, wait, activity_id=activity_id)
    return activity_id


def keep_result(step: Step, activity: ActivityInstance, result: JsonValue) -> None:
    """Take what a worker, a person or a message brought, before any mapping is evaluated: nothing of the model can
    keep it from being taken.

    :raises InvalidInput: for a list that is nested too deeply to become a variable.
    """
    node = step.node(activity.node_id)
    if is_processcube(step):
        step.emit(f.PayloadSet(activity.token_id, activity.node_id, result))
    variables = _as_variables(step, result)
    if node.outputs:
        if activity.inner_scope_id is not None:
            step.emit(f.VariablesSet(activity.inner_scope_id, variables))
        else:
            step.emit(f.ScopeOpened(step.fresh_id(), node.id, activity.scope_id, activity.id, variables, local=True))
    elif activity.compensates is not None:
        # Its local variables are those of a time long gone: what a handler returns belongs to the present.
        propagate(step, activity.scope_id, variables)
    else:
        propagate(step, inner_scope(activity), variables)


def _as_variables(step: Step, result: JsonValue) -> JsonObject:
    if isinstance(result, dict):
        return cast("JsonObject", result)  # never changed by anybody, as all variables
    if result is None or is_processcube(step):
        return {}
    return canonical_object({"result": result}) if isinstance(result, list) else {"result": result}


def finish_activity(step: Step, token: Token, activity: ActivityInstance, node: FlowNode) -> None:
    """The work is done: map the results, note what can be compensated, give up the boundary events and go on.

    :raises BpmnFault: when an output mapping fails (then nothing has changed) or no flow can be taken (then the
        activity is completed and the token stands at it).
    """
    if node.outputs:
        map_outputs(step, token, activity, node)
    _complete(step, token, activity, node)
    leave(step, step.state.tokens[token.id], node)


def map_outputs(step: Step, token: Token, activity: ActivityInstance, node: FlowNode) -> None:
    if node.outputs:
        visible = step.state.visible_variables(inner_scope(activity))
        propagate(step, activity.scope_id, evaluate_mappings(step, token, node.outputs, visible, {}))


def _complete(step: Step, token: Token, activity: ActivityInstance, node: FlowNode) -> None:
    snapshot: JsonObject | None = None
    if isinstance(node, Activity):
        if snapshot_needed(step, activity):
            snapshot = step.state.visible_variables(inner_scope(activity))
        elif handles(step, activity) and activity.compensates is None:
            snapshot = {}
        if node.boundary_events:
            disarm(step, activity.id)
    if activity.inner_scope_id is not None:
        release_inner_scope(step, activity)
    step.emit(f.ActivityCompleted(activity.id, snapshot))


def drained(step: Step, token: Token, activity: ActivityInstance, *, completed: bool) -> None:
    """A draining task has ended. If it was completed, it is compensated with the rest of its failing scope.

    A mapping that fails does not matter any more: the handler sees the result without it.
    """
    if completed:
        node = step.node(activity.node_id)
        try:
            map_outputs(step, token, activity, node)
        except BpmnFault as fault:
            step.emit(f.ErrorRaised(node.id, fault.code, fault.message, None))
        _complete(step, token, activity, node)
    else:
        release_inner_scope(step, activity)
        step.emit(f.ActivityCancelled(activity.id))
    step.emit(f.TokenEnded(token.id))
    settle_around(step, activity.scope_id)
