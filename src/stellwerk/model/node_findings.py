"""Findings about flow nodes: named by their element, at their place in the file."""

from __future__ import annotations

from stellwerk.model.process import (
    CallActivity,
    Event,
    Finding,
    FlowNode,
    Gateway,
    Severity,
    SubProcess,
    SubProcessKind,
    Task,
)

__all__ = ["element_name", "node_error", "node_warning"]


def node_error(node: FlowNode, what: str) -> Finding:
    return Finding(Severity.ERROR, node.position, node.id, element_name(node), what)


def node_warning(node: FlowNode, what: str) -> Finding:
    return Finding(Severity.WARNING, node.position, node.id, element_name(node), what)


def element_name(node: FlowNode) -> str:
    """The local name of the node's element."""
    match node:
        case Task():
            return node.kind.value
        case Gateway():
            return node.kind.value
        case Event():
            return node.where.value
        case SubProcess():
            return "subProcess" if node.kind is SubProcessKind.EVENT else node.kind.value
        case CallActivity():
            return "callActivity"
        case _:
            raise AssertionError(f"{node} is no flow node that the reader makes")
