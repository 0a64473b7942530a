"""Gateways (BPMN 2.0, 13.4)."""

from __future__ import annotations

from stellwerk.core import facts as f
from stellwerk.core.instance import Token, TokenStatus
from stellwerk.core.rules.flows import holds, leave, take, visible_bindings
from stellwerk.core.rules.values import is_processcube
from stellwerk.core.rules.waiting import open_wait, planned_wait
from stellwerk.core.step import Step
from stellwerk.errors import BpmnFault
from stellwerk.model.process import Event, Gateway, GatewayKind, SequenceFlow, Task, TaskKind

__all__ = ["enter_gateway"]


def enter_gateway(step: Step, token: Token, node: Gateway) -> None:
    match node.kind:
        case GatewayKind.EXCLUSIVE:
            _exclusive(step, token, node)
        case GatewayKind.PARALLEL:
            _parallel(step, token, node)
        case GatewayKind.EVENT_BASED:
            _event_based(step, token, node)
        case GatewayKind.INCLUSIVE | GatewayKind.COMPLEX:
            raise BpmnFault(f"{node.kind.value} cannot be run")


def _outgoing(step: Step, node: Gateway) -> list[SequenceFlow]:
    return [step.context.definition.flows[flow_id] for flow_id in node.outgoing]


def _exclusive(step: Step, token: Token, node: Gateway) -> None:
    """The first true condition in document order; ProcessCube's engine takes two true ones for a mistake."""
    outgoing = _outgoing(step, node)
    if len(outgoing) <= 1 and all(flow.condition is None for flow in outgoing):
        take(step, token, outgoing)
        return
    seen = visible_bindings(step, token)
    candidates = (flow for flow in outgoing if flow.id != node.default_flow and holds(flow, seen))
    chosen = next(candidates, None)
    if chosen is None and node.default_flow is not None:
        chosen = step.context.definition.flows[node.default_flow]
    elif chosen is not None and is_processcube(step) and next(candidates, None) is not None:
        raise BpmnFault(f'more than one condition of exclusive gateway "{node.id}" is true')
    if chosen is None:
        raise BpmnFault(f'no condition of exclusive gateway "{node.id}" is true and it has no default flow')
    take(step, token, [chosen])


def _parallel(step: Step, token: Token, node: Gateway) -> None:
    """Wait for one token from each incoming flow; they become one, which takes all outgoing flows.

    What has arrived is what stands at the gateway in this scope: a second token from the same flow waits for the
    next pass.
    """
    if len(node.incoming) > 1:
        if step.state.node_counts[node.id] < len(node.incoming):
            return
        arrived = _arrived(step, token)
        if any(flow_id not in arrived for flow_id in node.incoming):
            return
        step.check_room(len(node.outgoing) - len(node.incoming))
        for flow_id in node.incoming:
            if arrived[flow_id] != token.id:
                step.emit(f.TokenEnded(arrived[flow_id]))
    take(step, token, _outgoing(step, node))


def _arrived(step: Step, token: Token) -> dict[str, str]:
    """The token that came first over each flow, the given one for its own."""
    arrived: dict[str, str] = {}
    for other in step.state.tokens.values():
        if (
            other.node_id == token.node_id
            and other.scope_id == token.scope_id
            and other.status is TokenStatus.ACTIVE
            and other.via is not None
        ):
            arrived.setdefault(other.via, other.id)
    if token.via is not None:
        arrived[token.via] = token.id
    return arrived


def _event_based(step: Step, token: Token, node: Gateway) -> None:
    """Wait for the first of the events behind it (13.4.4); the token moves to the one that happens."""
    variables = step.state.visible_variables(token.scope_id)
    waits = []
    for flow in _outgoing(step, node):
        target = step.node(flow.target)
        match target:
            case Event():
                waits.append(planned_wait(step, token, target.id, target.definition, variables))
            case Task(kind=TaskKind.RECEIVE):
                waits.append(planned_wait(step, token, target.id, target.message, variables))
            case _:
                raise BpmnFault(f'"{target.id}" cannot stand behind an event-based gateway')
    if not waits:
        leave(step, token, node)
    for wait in waits:
        open_wait(step, wait, token_id=token.id)
