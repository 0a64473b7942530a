"""What of a process was visited, as numbers to draw."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field

from stellwerk.model.process import CompensationDefinition, Event, EventPosition, FlowNode
from stellwerk.values import frozen

__all__ = ["Visits", "is_compensation_boundary"]


@frozen(hash=False)
class Visits:
    """How often tokens came to flow nodes, and took sequence flows, by their ids. What is missing was never visited.

    A compensation boundary event counts as visited as often as its handler started.
    """

    nodes: Mapping[str, int] = field(factory=dict)
    flows: Mapping[str, int] = field(factory=dict)


def is_compensation_boundary(node: FlowNode) -> bool:
    return (
        isinstance(node, Event)
        and node.where is EventPosition.BOUNDARY
        and any(isinstance(definition, CompensationDefinition) for definition in node.definitions)
    )
