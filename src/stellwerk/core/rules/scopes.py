"""Subprocesses and the process itself: opening, being empty, being terminated, being cancelled."""

from __future__ import annotations

from stellwerk.core import facts as f
from stellwerk.core.commands import CancelInstance, StartInstance
from stellwerk.core.evolve import started
from stellwerk.core.instance import InstanceState, Token
from stellwerk.core.rules.activities import plan_activity, start_activity
from stellwerk.core.rules.cancellation import cancel_scope_content
from stellwerk.core.rules.values import is_processcube
from stellwerk.core.step import Context, Step, Work
from stellwerk.errors import BpmnFault, Conflict, NotFound
from stellwerk.model.process import (
    Activity,
    Event,
    EventPosition,
    FlowNode,
    LinkDefinition,
    Process,
    SubProcess,
    SubProcessKind,
)

__all__ = ["cancel_instance", "enter_subprocess", "scope_is_empty", "start_instance", "terminate_scope"]


# --- starting ------------------------------------------------------------------------------------------------------


def start_instance(command: StartInstance, context: Context) -> Step:
    """:raises NotFound: for an unknown start event; Conflict: when it is not clear where to start."""
    begin = _first_nodes(context.definition, command.start_event_id)
    start_event_id = begin[0].id if isinstance(begin[0], Event) else None
    fact = f.InstanceStarted(
        command.instance_id,
        command.definition_id,
        command.business_key,
        start_event_id,
        context.ids.next(),
        command.variables,
        command.message_id,
    )
    state: InstanceState = started(fact)
    step = Step(state, context, [fact])
    for node in begin:
        token_id = step.fresh_id()
        step.emit(f.TokenEntered(token_id, node.id, fact.root_scope_id))
        if is_processcube(step):
            step.emit(f.PayloadSet(token_id, node.id, command.variables))
        step.later(Work.MOVE, token_id)
    return step


def _first_nodes(process: Process, start_event_id: str | None) -> list[FlowNode]:
    if start_event_id is not None:
        node = process.nodes.get(start_event_id)
        if not isinstance(node, Event) or node.where is not EventPosition.START or node.parent is not None:
            raise NotFound(f'process "{process.key}" has no start event "{start_event_id}"')
        return [node]
    starts = [node for node in _nodes(process, None) if _is_start(node)]
    plain: list[FlowNode] = [node for node in starts if isinstance(node, Event) and not node.definitions]
    if len(plain) > 1:
        raise Conflict(f'process "{process.key}" has several none start events: name one', code="ambiguous_start")
    if plain:
        return plain
    if starts:
        raise Conflict(f'process "{process.key}" has no none start event: name one', code="ambiguous_start")
    begin = _without_incoming(process, None)
    if not begin:
        raise Conflict(f'process "{process.key}" has no node to begin at', code="ambiguous_start")
    return begin


def _nodes(process: Process, scope: str | None) -> list[FlowNode]:
    return [process.nodes[node_id] for node_id in process.scope_children(scope)]


def _is_start(node: FlowNode) -> bool:
    return isinstance(node, Event) and node.where is EventPosition.START


def _without_incoming(process: Process, scope: str | None) -> list[FlowNode]:
    """Where a scope begins that has no start events (BPMN 2.0, 13.2)."""
    return [node for node in _nodes(process, scope) if not node.incoming and _may_begin(node)]


def _may_begin(node: FlowNode) -> bool:
    match node:
        case Event():
            return node.where is not EventPosition.BOUNDARY and not isinstance(node.definition, LinkDefinition)
        case SubProcess(kind=SubProcessKind.EVENT):
            return False
        case Activity():
            return not node.is_for_compensation
        case _:
            return True


def enter_subprocess(step: Step, token: Token, node: SubProcess) -> None:
    """Open a scope for the body; the token waits until no token is left in it.

    :raises BpmnFault: for kinds that cannot be run, and as `plan_activity`.
    """
    if node.kind not in (SubProcessKind.EMBEDDED, SubProcessKind.TRANSACTION) or node.loop is not None:
        raise BpmnFault(f"{node.kind.value} of this kind cannot be run")
    process = step.context.definition
    begin = [inner for inner in _nodes(process, node.id) if _is_start(inner)] or _without_incoming(process, node.id)
    step.check_room(len(begin))
    activity_id = start_activity(step, token, node, plan_activity(step, token, node))
    body_id = step.state.activities[activity_id].inner_scope_id
    assert body_id is not None, activity_id
    for inner in begin:
        inner_id = step.fresh_id()
        step.emit(f.TokenEntered(inner_id, inner.id, body_id, None, token.id))
        step.later(Work.MOVE, inner_id)
    if not begin:
        step.later(Work.SCOPE, body_id)


# --- ending --------------------------------------------------------------------------------------------------------


def scope_is_empty(step: Step, scope_id: str) -> None:
    """The last token of a scope has ended: the subprocess goes on, or the instance is complete."""
    state = step.state
    scope = state.scopes.get(scope_id)
    if scope is None or scope.failure is not None or state.ended or state.token_counts[scope_id] > 0:
        return
    if scope.activity_id is None:
        step.emit(f.InstanceCompleted())
    else:
        step.later(Work.MOVE, state.activities[scope.activity_id].token_id)


def terminate_scope(step: Step, scope_id: str) -> None:
    """A terminate end event ends all tokens of its scope (13.5.6); a subprocess then goes on as usual."""
    cancel_scope_content(step, scope_id)
    if scope_id == step.state.root_scope_id:
        step.emit(f.InstanceCompleted(terminated=True))
    else:
        step.later(Work.SCOPE, scope_id)


def cancel_instance(step: Step, command: CancelInstance) -> None:
    cancel_scope_content(step, step.state.root_scope_id)
    step.emit(f.InstanceCancelled(command.reason))
