"""Functions and methods that expressions may call: closed lists of pure routines, each with its number of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions.failures import Misuse
from stellwerk.model.expressions.frames import Frame
from stellwerk.model.expressions.numbers import Number
from stellwerk.model.expressions.values import described

__all__ = ["MANY", "Body", "Routine", "number_argument", "text_argument", "whole_argument"]

Body: TypeAlias = Callable[[Frame, Sequence[JsonValue]], JsonValue]
"""A method gets its receiver as first argument."""

MANY: Final = 1_000_000


@attrs.frozen
class Routine:
    arguments_min: int
    """Without the receiver."""
    arguments_max: int
    body: Body


def text_argument(arguments: Sequence[JsonValue], position: int) -> str:
    value = arguments[position]
    if not isinstance(value, str):
        raise Misuse(f"a string is expected, not {described(value)}")
    return value


def number_argument(arguments: Sequence[JsonValue], position: int) -> Number:
    value = arguments[position]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misuse(f"a number is expected, not {described(value)}")
    return value


def whole_argument(arguments: Sequence[JsonValue], position: int) -> int:
    value = number_argument(arguments, position)
    if isinstance(value, float) and not value.is_integer():
        raise Misuse(f"a whole number is expected, not {described(value)}")
    return int(value)
