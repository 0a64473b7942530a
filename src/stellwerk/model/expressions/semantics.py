"""What the operators of one language do: a record of functions that the compiler puts into closures."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import attrs

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions import numbers
from stellwerk.model.expressions.frames import Frame
from stellwerk.model.expressions.numbers import Number
from stellwerk.model.expressions.routines import Routine

__all__ = ["ARITHMETIC", "ORDERINGS", "Combined", "Comparing", "Evaluator", "Semantics", "is_number"]

Evaluator: TypeAlias = Callable[[Frame], JsonValue]
"""A compiled node."""
Comparing: TypeAlias = Callable[[JsonValue, JsonValue, Frame], JsonValue]
Combined: TypeAlias = Callable[[tuple[Evaluator, ...]], Evaluator]
"""Makes one evaluator of many: and, or."""


@attrs.frozen(kw_only=True)
class Semantics:
    name: Callable[[str], Evaluator]
    """A bare name that the expression does not bind itself."""
    property: Callable[[JsonValue, str], JsonValue]
    index: Callable[[JsonValue, JsonValue, Frame], JsonValue]
    conjunction: Combined
    disjunction: Combined
    negation: Callable[[JsonValue], JsonValue]
    condition: Callable[[JsonValue], bool]
    """Of if and ``?:``."""
    comparisons: Mapping[str, Comparing]
    arithmetic: Callable[[str, JsonValue, JsonValue, Frame], JsonValue]
    negative: Callable[[JsonValue], JsonValue]
    text: Callable[[JsonValue, Frame], str]
    """Of a part of a template or concatenation."""
    functions: Mapping[str, Routine]
    methods: Mapping[str, Mapping[str, Routine]]
    null_on_misuse: bool
    """FEEL: a function that cannot take its arguments gives null. Otherwise it fails."""


ARITHMETIC: Final[Mapping[str, Callable[[Number, Number], Number]]] = {
    "+": numbers.add,
    "-": numbers.subtract,
    "*": numbers.multiply,
    "/": numbers.divide,
    "%": numbers.remainder,
    "**": numbers.power,
}

ORDERINGS: Final[Mapping[str, Callable[[Number | str, Number | str], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
