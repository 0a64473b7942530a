"""The syntax tree that all three notations share. What an operator does is up to the language's semantics.

Chains (``a + b - c``, ``a and b and c``) are one node with many operands, so that a long sum is not a deep tree.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

__all__ = [
    "Arithmetic",
    "Between",
    "Call",
    "Coalesce",
    "Comparison",
    "Concatenation",
    "Conjunction",
    "Constant",
    "Disjunction",
    "Emptiness",
    "If",
    "Index",
    "ListLiteral",
    "MapLiteral",
    "MethodCall",
    "Name",
    "Negative",
    "Node",
    "Not",
    "Property",
    "Scalar",
    "children",
    "is_constant",
    "measure",
]

Scalar: TypeAlias = bool | int | float | str | None


@attrs.frozen
class Constant:
    value: Scalar


@attrs.frozen
class Name:
    name: str


@attrs.frozen
class Property:
    base: Node
    name: str
    optional: bool = False
    """JavaScript's ``?.``: null on null."""


@attrs.frozen
class Index:
    base: Node
    index: Node


@attrs.frozen
class ListLiteral:
    items: tuple[Node, ...]


@attrs.frozen
class MapLiteral:
    entries: tuple[tuple[str, Node], ...]


@attrs.frozen
class Negative:
    operand: Node


@attrs.frozen
class Not:
    operand: Node


@attrs.frozen
class Emptiness:
    """JUEL's ``empty``."""

    operand: Node


@attrs.frozen
class Conjunction:
    operands: tuple[Node, ...]


@attrs.frozen
class Disjunction:
    operands: tuple[Node, ...]


@attrs.frozen
class Coalesce:
    """JavaScript's ``??``: the first operand that is not null."""

    operands: tuple[Node, ...]


@attrs.frozen
class Comparison:
    operator: str
    """``==``, ``!=``, ``===``, ``!==``, ``<``, ``<=``, ``>``, ``>=`` or ``in``."""
    left: Node
    right: Node


@attrs.frozen
class Between:
    operand: Node
    low: Node
    high: Node


@attrs.frozen
class Arithmetic:
    """``first op operand op operand …``, from left to right."""

    first: Node
    steps: tuple[tuple[str, Node], ...]


@attrs.frozen
class Concatenation:
    """The texts of all parts in one string; null is the empty text (a template, or a sum that is text for sure)."""

    parts: tuple[Node, ...]


@attrs.frozen
class If:
    condition: Node
    then: Node
    otherwise: Node


@attrs.frozen
class Call:
    """A function of the language's closed list."""

    function: str
    arguments: tuple[Node, ...]


@attrs.frozen
class MethodCall:
    """A pure method on plain data, of the language's closed list."""

    base: Node
    method: str
    arguments: tuple[Node, ...]
    optional: bool = False


Node: TypeAlias = (
    Constant
    | Name
    | Property
    | Index
    | ListLiteral
    | MapLiteral
    | Negative
    | Not
    | Emptiness
    | Conjunction
    | Disjunction
    | Coalesce
    | Comparison
    | Between
    | Arithmetic
    | Concatenation
    | If
    | Call
    | MethodCall
)


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Constant() | Name():
            return ()
        case Property(base=only) | Negative(operand=only) | Not(operand=only) | Emptiness(operand=only):
            return (only,)
        case ListLiteral(items=all_of) | Concatenation(parts=all_of) | Call(arguments=all_of):
            return all_of
        case Conjunction(operands=all_of) | Disjunction(operands=all_of) | Coalesce(operands=all_of):
            return all_of
        case Index(base=first, index=second) | Comparison(left=first, right=second):
            return (first, second)
        case Between(operand=first, low=second, high=third) | If(condition=first, then=second, otherwise=third):
            return (first, second, third)
        case MapLiteral(entries=pairs):
            return tuple(value for _, value in pairs)
        case Arithmetic(first=first, steps=pairs):
            return (first, *(operand for _, operand in pairs))
        case MethodCall(base=first, arguments=all_of):
            return (first, *all_of)


def measure(tree: Node) -> tuple[int, int]:
    """Number of nodes, and depth (1 for a single node). Without recursion: the tree may still be too deep for that."""
    count = depth_max = 0
    pending = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        count += 1
        depth_max = max(depth_max, depth)
        pending.extend((child, depth + 1) for child in children(node))
    return count, depth_max


def is_constant(tree: Node) -> bool:
    """Whether no variable occurs in it. All functions are pure, so that its value is then always the same."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, Name):
            return False
        pending.extend(children(node))
    return True
