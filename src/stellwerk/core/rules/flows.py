"""Leaving a node over its sequence flows (BPMN 2.0, 13.3.1 and 13.4)."""

from __future__ import annotations

from collections.abc import Sequence

from stellwerk.core import facts as f
from stellwerk.core.instance import Token
from stellwerk.core.rules.values import bindings
from stellwerk.core.step import Step, Work
from stellwerk.errors import BpmnFault
from stellwerk.model.expressions import Bindings
from stellwerk.model.expressions.evaluation import evaluate_condition
from stellwerk.model.process import FlowNode, SequenceFlow

__all__ = ["holds", "leave", "take", "visible_bindings"]


def leave(step: Step, token: Token, node: FlowNode) -> None:
    """Take every flow without a condition or with one that is true, else the default flow; without flows, end.

    :raises BpmnFault: when there are flows and none can be taken.
    """
    flows = step.context.definition.flows
    outgoing = [flows[flow_id] for flow_id in node.outgoing]
    if node.default_flow is None and all(flow.condition is None for flow in outgoing):
        take(step, token, outgoing)
        return
    seen = visible_bindings(step, token)
    chosen = [flow for flow in outgoing if flow.id != node.default_flow and holds(flow, seen)]
    if not chosen and node.default_flow is not None:
        chosen = [flows[node.default_flow]]
    if not chosen:
        raise BpmnFault(f'no flow out of "{node.id}" can be taken: no condition is true and there is no default flow')
    take(step, token, chosen)


def visible_bindings(step: Step, token: Token) -> Bindings:
    return bindings(step, token, step.state.visible_variables(token.scope_id))


def holds(flow: SequenceFlow, seen: Bindings) -> bool:
    return flow.condition is None or evaluate_condition(flow.condition, seen)


def take(step: Step, token: Token, flows: Sequence[SequenceFlow]) -> None:
    """The token takes the first flow, new tokens take the others; without flows it ends.

    :raises BpmnFault: when the instance would have too many tokens.
    """
    if not flows:
        step.end_token(token)
        return
    others = _split(step, token, flows[1:]) if len(flows) > 1 else ()
    step.emit(f.TokenEntered(token.id, flows[0].target, token.scope_id, flows[0].id))
    step.later(Work.MOVE, token.id)
    for other_id in others:
        step.later(Work.MOVE, other_id)


def _split(step: Step, token: Token, flows: Sequence[SequenceFlow]) -> list[str]:
    """→ the ids of the new tokens."""
    step.check_room(len(flows))
    others = [(step.fresh_id(), flow) for flow in flows]
    for other_id, flow in others:
        step.emit(f.TokenEntered(other_id, flow.target, token.scope_id, flow.id, token.id))
    return [other_id for other_id, _ in others]
