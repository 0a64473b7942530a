"""Why an expression gave null, in the words of its variables: for incidents, after the fact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions.compilation import compiled
from stellwerk.model.expressions.failures import EvaluationError
from stellwerk.model.expressions.frames import FUEL_MAX, Bindings, Frame
from stellwerk.model.expressions.nodes import (
    Between,
    Call,
    Comparison,
    Conjunction,
    Constant,
    Disjunction,
    If,
    Index,
    MethodCall,
    Name,
    Node,
    Not,
    Property,
    children,
    measure,
)
from stellwerk.model.expressions.numbers import parse_number
from stellwerk.model.expressions.semantics import is_number
from stellwerk.model.expressions.syntax import SEMANTICS, Expression, Language
from stellwerk.model.expressions.values import described

__all__ = ["why_null"]

_REASONS_MAX: Final = 3
_CHARACTERS_MAX: Final = 500
_TEXT_SHOWN_MAX: Final = 40


def why_null(expression: Expression, bindings: Bindings) -> str | None:
    """Which variables are not set, or of a kind that does not fit: ``total is not set``. None when that is not known.

    It evaluates the expression's parts once more, within the bounds of one evaluation.
    """
    diagnosis = _Diagnosis(expression.language, bindings)
    try:
        reasons = list(dict.fromkeys(diagnosis.reasons(expression.tree)))
    except (EvaluationError, RecursionError):
        return None
    return "; ".join(reasons[:_REASONS_MAX])[:_CHARACTERS_MAX] or None


class _Diagnosis:
    def __init__(self, language: Language, bindings: Bindings) -> None:
        self._language = language
        self._frame = Frame(bindings, FUEL_MAX)

    def _value(self, node: Node) -> JsonValue:
        self._frame.spend(measure(node)[0])
        evaluator = compiled(node, SEMANTICS[self._language], entries_are_names=self._language is Language.FEEL)
        return evaluator(self._frame)

    def reasons(self, node: Node) -> list[str]:
        """Of a node that gives null. Only nodes that give null are gone into: what lies below another is not to blame,
        and names that the expression binds itself do not occur on this way."""
        match node:
            case Constant():
                return []
            case Name() | Property() | Index():
                return self._of_access(node)
            case Conjunction(operands=operands) | Disjunction(operands=operands):
                return self._of_logic(operands)
            case Not(operand=operand):
                return self._of_logic((operand,))
            case If():
                return self._of_choice(node)
            case _:
                return self._of_nulls_in(node) or self._of_misfits(node)

    def _of_nulls_in(self, node: Node) -> list[str]:
        return [reason for child in children(node) if self._value(child) is None for reason in self.reasons(child)]

    def _of_misfits(self, node: Node) -> list[str]:
        """Nothing in it is null: the kinds do not go together."""
        match node:
            case Comparison(left=left, right=right):
                return self._of_comparison(left, right)
            case Between(operand=operand, low=low, high=high):
                return self._of_comparison(operand, low) or self._of_comparison(operand, high)
            case Call(function=name) | MethodCall(method=name):
                return [f"{name}() gives null{self._where(children(node))}"]
            case _:
                return [f"a calculation gives null{self._where(children(node))}"]

    def _of_access(self, node: Name | Property | Index) -> list[str]:
        """The first part of a path that is null."""
        text = _path(node)
        if isinstance(node, Name):
            return [f"{text} is null" if node.name in self._frame.variables else f"{text} is not set"]
        base = self._value(node.base)
        if base is None:
            return self.reasons(node.base)
        if isinstance(node, Index):
            return self._of_nulls_in(node) or ([f"{text} is not set"] if text else [])
        if text is None:
            return [f"{node.name} is not set"]
        if not isinstance(base, dict):
            return [f"{_path(node.base)} is {_shown(base)} and has no {node.name}"]
        return [f"{text} is null" if node.name in base else f"{text} is not set"]

    def _of_logic(self, operands: Sequence[Node]) -> list[str]:
        found = []
        for operand in operands:
            value = self._value(operand)
            if value is None:
                found += self.reasons(operand)
            elif not isinstance(value, bool):
                found.append(f"{_path(operand) or 'an operand'} is {_shown(value)}, not true or false")
        return found

    def _of_choice(self, node: If) -> list[str]:
        condition = self._value(node.condition)
        found = self.reasons(node.condition) if condition is None else []
        chosen = node.then if SEMANTICS[self._language].condition(condition) else node.otherwise
        return found + self.reasons(chosen)

    def _of_comparison(self, left: Node, right: Node) -> list[str]:
        if _path(left) is None and _path(right) is not None:
            left, right = right, left
        one, other = self._value(left), self._value(right)
        if type(one) is type(other) and isinstance(one, int | float | str) and not isinstance(one, bool):
            return []
        subject = _path(left) or "one side"
        object_ = f"{_path(right)}, which is {_shown(other)}" if _path(right) else _shown(other)
        return [f"{subject} is {_shown(one)}, and is compared with {object_}{self._hint(left, one, right, other)}"]

    def _hint(self, left: Node, one: JsonValue, right: Node, other: JsonValue) -> str:
        """How to compare the text of a number with a number."""
        for node, value, against in ((left, one, other), (right, other, one)):
            text = _path(node)
            if text and isinstance(value, str) and is_number(against) and parse_number(value.strip()) is not None:
                return f": write number({text})"
        return ""

    def _where(self, operands: Sequence[Node]) -> str:
        found = [f"{path} is {_shown(self._value(node))}" for node in operands if (path := _path(node))]
        return f", where {' and '.join(found)}" if found else ""


def _path(node: Node) -> str | None:
    """As it is written, like ``order.items[1]``; None for everything else."""
    match node:
        case Name(name=name):
            return name
        case Property(base=base, name=name):
            text = _path(base)
            return text and f"{text}.{name}"
        case Index(base=base, index=index):
            text = _path(base)
            place = str(index.value) if isinstance(index, Constant) else _path(index) or "…"
            return text and f"{text}[{place}]"
        case _:
            return None


def _shown(value: JsonValue) -> str:
    match value:
        case str():
            return f'a text ("{value}")' if len(value) <= _TEXT_SHOWN_MAX else "a text"
        case _:
            return described(value)
