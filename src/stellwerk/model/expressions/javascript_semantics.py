"""ProcessCube's expressions: JavaScript on JSON values, ``undefined`` being null.

Where JavaScript would go on with NaN, Infinity or ``[object Object]``, the expression fails or text is JSON: what
follows such a value in a process is never meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions import numbers
from stellwerk.model.expressions.failures import EvaluationError
from stellwerk.model.expressions.frames import Frame
from stellwerk.model.expressions.methods import JAVASCRIPT_FUNCTIONS, JAVASCRIPT_METHODS, truthy
from stellwerk.model.expressions.numbers import Number
from stellwerk.model.expressions.semantics import ARITHMETIC, ORDERINGS, Comparing, Evaluator, Semantics
from stellwerk.model.expressions.values import concatenate, described, kind_of, plain_text, same

__all__ = ["JAVASCRIPT_SEMANTICS"]


def _token(frame: Frame) -> JsonValue:
    return {"current": frame.bindings.token_payload, "history": dict(frame.bindings.token_history)}


def _identity(frame: Frame) -> JsonValue:
    return frame.bindings.identity


_ROOTS: Final[Mapping[str, Evaluator]] = {"token": _token, "identity": _identity}


def _name(name: str) -> Evaluator:
    """The token and the identity first, then variables; null when there is none."""

    def look_up(frame: Frame) -> JsonValue:
        return frame.variables.get(name)

    return _ROOTS.get(name, look_up)


def _property(base: JsonValue, name: str) -> JsonValue:
    if isinstance(base, dict):
        return base.get(name)
    if base is None:
        raise EvaluationError(f"cannot read property {name} of null")
    if name == "length" and isinstance(base, str | list):
        return len(base)
    return None


def _index(base: JsonValue, index: JsonValue, frame: Frame) -> JsonValue:
    if base is None:
        raise EvaluationError(f"cannot read property {plain_text(index, frame)} of null")
    if isinstance(base, list | str) and isinstance(index, int | float) and not isinstance(index, bool):
        return base[int(index)] if index == int(index) and 0 <= index < len(base) else None
    return _property(base, plain_text(index, frame))


def _conjunction(operands: tuple[Evaluator, ...]) -> Evaluator:
    def first_false(frame: Frame) -> JsonValue:
        value: JsonValue = None
        for operand in operands:
            value = operand(frame)
            if not truthy(value):
                return value
        return value

    return first_false


def _disjunction(operands: tuple[Evaluator, ...]) -> Evaluator:
    def first_true(frame: Frame) -> JsonValue:
        value: JsonValue = None
        for operand in operands:
            value = operand(frame)
            if truthy(value):
                return value
        return value

    return first_true


def _number_or_none(value: JsonValue) -> Number | None:
    """None where JavaScript has NaN; null is no number either, since ``undefined`` is none."""
    match value:
        case bool():
            return int(value)
        case int() | float():
            return value
        case str():
            return numbers.parse_number(value.strip() or "0")
        case _:
            return None


def _number(value: JsonValue) -> Number:
    number = _number_or_none(value)
    if number is None:
        raise EvaluationError(f"{described(value)} is not a number")
    return number


def _strictly_equal(left: JsonValue, right: JsonValue, frame: Frame) -> bool:
    """Lists and objects are equal by content: after a restart there is no identity to compare."""
    return same(left, right, frame)


def _equal(left: JsonValue, right: JsonValue, frame: Frame) -> bool:
    if left is None or right is None:
        return left is right
    if kind_of(left) == kind_of(right):
        return same(left, right, frame)
    if isinstance(left, list | dict) or isinstance(right, list | dict):
        return False
    one, other = _number_or_none(left), _number_or_none(right)
    return one is not None and one == other


def _ordering(symbol: str) -> Comparing:
    compare = ORDERINGS[symbol]

    def ordered(left: JsonValue, right: JsonValue, frame: Frame) -> bool:
        """False when one side is null or no number, as with undefined and NaN."""
        if isinstance(left, str) and isinstance(right, str):
            return compare(left, right)
        one, other = _number_or_none(left), _number_or_none(right)
        return one is not None and other is not None and compare(one, other)

    return ordered


def _arithmetic(symbol: str, left: JsonValue, right: JsonValue, frame: Frame) -> JsonValue:
    if symbol == "+" and (isinstance(left, str | list | dict) or isinstance(right, str | list | dict)):
        return concatenate((plain_text(left, frame), plain_text(right, frame)), frame)
    return ARITHMETIC[symbol](_number(left), _number(right))


def _text(value: JsonValue, frame: Frame) -> str:
    return "" if value is None else plain_text(value, frame)


_COMPARISONS: Final[Mapping[str, Comparing]] = {
    "==": _equal,
    "===": _strictly_equal,
    "!=": lambda left, right, frame: not _equal(left, right, frame),
    "!==": lambda left, right, frame: not _strictly_equal(left, right, frame),
    **{symbol: _ordering(symbol) for symbol in ORDERINGS},
}

JAVASCRIPT_SEMANTICS: Final = Semantics(
    name=_name,
    property=_property,
    index=_index,
    conjunction=_conjunction,
    disjunction=_disjunction,
    negation=lambda value: not truthy(value),
    condition=truthy,
    comparisons=_COMPARISONS,
    arithmetic=_arithmetic,
    negative=lambda value: numbers.negate(_number(value)),
    text=_text,
    functions=JAVASCRIPT_FUNCTIONS,
    methods=JAVASCRIPT_METHODS,
    null_on_misuse=False,
)
