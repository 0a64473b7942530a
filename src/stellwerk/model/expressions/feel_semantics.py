"""FEEL (DMN 1.5, chapter 10.3): what does not fit gives null, and logic has three values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions import numbers
from stellwerk.model.expressions.failures import EvaluationError
from stellwerk.model.expressions.feel_functions import FEEL_FUNCTIONS
from stellwerk.model.expressions.frames import Frame
from stellwerk.model.expressions.semantics import ARITHMETIC, ORDERINGS, Comparing, Evaluator, Semantics
from stellwerk.model.expressions.values import concatenate, described, kind_of, plain_text, same

__all__ = ["FEEL_SEMANTICS"]


def _name(name: str) -> Evaluator:
    def look_up(frame: Frame) -> JsonValue:
        return frame.variables.get(name)

    return look_up


def _property(base: JsonValue, name: str) -> JsonValue:
    """Of a list: the list of the property of each item."""
    if isinstance(base, dict):
        return base.get(name)
    if isinstance(base, list):
        return [item.get(name) if isinstance(item, dict) else None for item in base]
    return None


def _index(base: JsonValue, index: JsonValue, frame: Frame) -> JsonValue:
    """From 1; from the end when negative; a single value counts as the list of it (10.3.2.5)."""
    if base is None or index is None:
        return None
    if isinstance(index, bool) or not isinstance(index, int | float):
        raise EvaluationError(f"an index must be a number, not {described(index)}; filters are not available yet")
    items = base if isinstance(base, list) else [base]
    if index != int(index) or index == 0 or abs(index) > len(items):
        return None
    return items[int(index) - 1 if index > 0 else int(index)]


def _conjunction(operands: tuple[Evaluator, ...]) -> Evaluator:
    def all_true(frame: Frame) -> JsonValue:
        result: bool | None = True
        for operand in operands:
            value = operand(frame)
            if value is False:
                return False
            if value is not True:
                result = None
        return result

    return all_true


def _disjunction(operands: tuple[Evaluator, ...]) -> Evaluator:
    def any_true(frame: Frame) -> JsonValue:
        result: bool | None = False
        for operand in operands:
            value = operand(frame)
            if value is True:
                return True
            if value is not False:
                result = None
        return result

    return any_true


def _negation(value: JsonValue) -> JsonValue:
    return not value if isinstance(value, bool) else None


def _equal(left: JsonValue, right: JsonValue, frame: Frame) -> bool | None:
    """Null equals null only; values of different kinds cannot be compared, which is null."""
    if left is None or right is None:
        return left is right
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return same(left, right, frame) if kind_of(left) == kind_of(right) else None


def _unequal(left: JsonValue, right: JsonValue, frame: Frame) -> bool | None:
    equal = _equal(left, right, frame)
    return None if equal is None else not equal


def _in(value: JsonValue, candidates: JsonValue, frame: Frame) -> bool | None:
    if isinstance(candidates, list):
        frame.spend_items(len(candidates))
        return any(_equal(value, candidate, frame) is True for candidate in candidates)
    return _equal(value, candidates, frame)


def _ordering(symbol: str) -> Comparing:
    compare = ORDERINGS[symbol]

    def ordered(left: JsonValue, right: JsonValue, frame: Frame) -> bool | None:
        match left, right:
            case (bool(), _) | (_, bool()):
                return None
            case int() | float(), int() | float():
                return compare(left, right)
            case str(), str():
                return compare(left, right)
            case _:
                return None

    return ordered


def _arithmetic(symbol: str, left: JsonValue, right: JsonValue, frame: Frame) -> JsonValue:
    match left, right:
        case (bool(), _) | (_, bool()):
            return None
        case int() | float(), int() | float():
            return None if symbol == "/" and right == 0 else ARITHMETIC[symbol](left, right)
        case str(), str() if symbol == "+":
            return concatenate((left, right), frame)
        case _:
            return None


def _negative(value: JsonValue) -> JsonValue:
    return numbers.negate(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: JsonValue, frame: Frame) -> str:
    return "" if value is None else plain_text(value, frame)


_COMPARISONS: Final[Mapping[str, Callable[[JsonValue, JsonValue, Frame], JsonValue]]] = {
    "==": _equal,
    "!=": _unequal,
    "in": _in,
    **{symbol: _ordering(symbol) for symbol in ORDERINGS},
}

FEEL_SEMANTICS: Final = Semantics(
    name=_name,
    property=_property,
    index=_index,
    conjunction=_conjunction,
    disjunction=_disjunction,
    negation=_negation,
    condition=lambda value: value is True,
    comparisons=_COMPARISONS,
    arithmetic=_arithmetic,
    negative=_negative,
    text=_text,
    functions=FEEL_FUNCTIONS,
    methods={},
    null_on_misuse=True,
)
