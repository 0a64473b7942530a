"""JUEL as Camunda 7 evaluates it (JSR-245, chapters 1.7 to 1.18): values are coerced, unknown variables fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions import numbers
from stellwerk.model.expressions.failures import EvaluationError
from stellwerk.model.expressions.frames import Frame
from stellwerk.model.expressions.methods import JUEL_METHODS
from stellwerk.model.expressions.numbers import Number
from stellwerk.model.expressions.semantics import ARITHMETIC, ORDERINGS, Comparing, Evaluator, Semantics, is_number
from stellwerk.model.expressions.values import described, plain_text, same

__all__ = ["JUEL_SEMANTICS", "coerce_to_boolean"]

_MISSING: Final = object()


def _name(name: str) -> Evaluator:
    def look_up(frame: Frame) -> JsonValue:
        value = frame.variables.get(name, _MISSING)
        if value is _MISSING:
            raise EvaluationError(f"unknown variable {name}")
        return value

    return look_up


def _property(base: JsonValue, name: str) -> JsonValue:
    if base is None:
        return None
    if isinstance(base, dict):
        return base.get(name)
    raise EvaluationError(f"{described(base)} has no property {name}")


def _index(base: JsonValue, index: JsonValue, frame: Frame) -> JsonValue:
    """From 0; null outside the list."""
    if base is None or index is None:
        return None
    if isinstance(base, dict):
        return base.get(plain_text(index, frame))
    if isinstance(base, list):
        position = coerce_to_number(index)
        return base[int(position)] if 0 <= position < len(base) else None
    raise EvaluationError(f"{described(base)} has no index {described(index)}")


def coerce_to_boolean(value: JsonValue) -> bool:
    """JSR-245, 1.18.5: null and the empty string are false, a string is true when it reads ``true``."""
    match value:
        case None:
            return False
        case bool():
            return value
        case str():
            return value.lower() == "true"
        case _:
            raise EvaluationError(f"{described(value)} is not a boolean")


def coerce_to_number(value: JsonValue) -> Number:
    """JSR-245, 1.18.3: null and the empty string are 0, other strings are read."""
    match value:
        case None | "":
            return 0
        case bool():
            pass
        case int() | float():
            return value
        case str():
            number = numbers.parse_number(value.strip())
            if number is not None:
                return number
        case _:
            pass
    raise EvaluationError(f"{described(value)} is not a number")


def _conjunction(operands: tuple[Evaluator, ...]) -> Evaluator:
    def all_true(frame: Frame) -> JsonValue:
        return all(coerce_to_boolean(operand(frame)) for operand in operands)

    return all_true


def _disjunction(operands: tuple[Evaluator, ...]) -> Evaluator:
    def any_true(frame: Frame) -> JsonValue:
        return any(coerce_to_boolean(operand(frame)) for operand in operands)

    return any_true


def _equal(left: JsonValue, right: JsonValue, frame: Frame) -> bool:
    """JSR-245, 1.8.2: the first of these kinds that one side has is what both are coerced to."""
    if left is None or right is None:
        return left is right
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if is_number(left) or is_number(right):
        return coerce_to_number(left) == coerce_to_number(right)
    if isinstance(left, bool) or isinstance(right, bool):
        return coerce_to_boolean(left) == coerce_to_boolean(right)
    if isinstance(left, str) or isinstance(right, str):
        return plain_text(left, frame) == plain_text(right, frame)
    return same(left, right, frame)


def _unequal(left: JsonValue, right: JsonValue, frame: Frame) -> bool:
    return not _equal(left, right, frame)


def _ordering(symbol: str) -> Comparing:
    compare = ORDERINGS[symbol]
    of_equals = "=" in symbol

    def ordered(left: JsonValue, right: JsonValue, frame: Frame) -> bool:
        """JSR-245, 1.8.1: false when one side is null."""
        if left is None or right is None:
            return of_equals and left is right
        if is_number(left) or is_number(right):
            return compare(coerce_to_number(left), coerce_to_number(right))
        if isinstance(left, str) and isinstance(right, str):
            return compare(left, right)
        raise EvaluationError(f"{described(left)} and {described(right)} have no order")

    return ordered


def _arithmetic(symbol: str, left: JsonValue, right: JsonValue, frame: Frame) -> JsonValue:
    try:
        return ARITHMETIC[symbol](coerce_to_number(left), coerce_to_number(right))
    except EvaluationError as error:
        if symbol != "+" or not (isinstance(left, str) or isinstance(right, str)):
            raise
        raise EvaluationError(f"{error.reason} (+ adds numbers; texts are joined by += or concat())") from None


def _text(value: JsonValue, frame: Frame) -> str:
    return "" if value is None else plain_text(value, frame)


_COMPARISONS: Final[Mapping[str, Comparing]] = {
    "==": _equal,
    "!=": _unequal,
    **{symbol: _ordering(symbol) for symbol in ORDERINGS},
}

JUEL_SEMANTICS: Final = Semantics(
    name=_name,
    property=_property,
    index=_index,
    conjunction=_conjunction,
    disjunction=_disjunction,
    negation=lambda value: not coerce_to_boolean(value),
    condition=coerce_to_boolean,
    comparisons=_COMPARISONS,
    arithmetic=_arithmetic,
    negative=lambda value: numbers.negate(coerce_to_number(value)),
    text=_text,
    functions={},
    methods=JUEL_METHODS,
    null_on_misuse=False,
)
