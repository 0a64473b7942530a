"""What all three languages need to know about JSON values: their kinds, equality, text, and how large they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stellwerk.json_values import DEPTH_MAX, JsonValue, dumps
from stellwerk.model.expressions.failures import EvaluationError
from stellwerk.model.expressions.frames import Frame
from stellwerk.model.expressions.numbers import INTEGER_BITS_MAX, number_text

__all__ = ["TEXT_CHARS_MAX", "check_size", "concatenate", "described", "json_text", "kind_of", "plain_text", "same"]

TEXT_CHARS_MAX: Final = 1024 * 1024
"""Of a text that an expression makes, and of a list or context with all that is in it."""

_KINDS: Final[dict[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "list",
    dict: "context",
}


def kind_of(value: JsonValue) -> str:
    """One of null, boolean, number, string, list, context."""
    try:
        return _KINDS[type(value)]
    except KeyError:
        raise EvaluationError(f"{type(value).__name__} is no JSON value") from None


def described(value: JsonValue) -> str:
    """For messages: the kind, with the value when it is short."""
    match value:
        case None:
            return "null"
        case bool():
            return "the boolean true" if value else "the boolean false"
        case int() | float() if abs(value) < 10**15:
            return f"the number {number_text(value)}"
        case str() if len(value) <= 40:
            return f"the string {value!r}"
        case _:
            return f"a {kind_of(value)}"


def same(left: JsonValue, right: JsonValue, frame: Frame) -> bool:
    """Equal kinds and contents; whole numbers equal decimals of the same value; true is not 1."""
    pairs = [(left, right)]
    while pairs:
        one, other = pairs.pop()
        kind = kind_of(one)
        if kind != kind_of(other):
            return False
        if isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            frame.spend_items(len(one))
            pairs.extend(zip(one, other, strict=True))
        elif isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            frame.spend_items(len(one))
            pairs.extend((item, other[name]) for name, item in one.items())
        elif one != other:
            return False
    return True


def check_size(value: JsonValue, size_max: int = TEXT_CHARS_MAX, *, depth_max: int = DEPTH_MAX) -> int:
    """That a list or context is shallow and small enough to be kept; gives the number of values in it.

    Literals can hold the same large variable many times, which takes no memory here and much of it as JSON.
    """
    size = count = 0
    pending = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        size += 1
        count += 1
        if depth > depth_max:
            raise EvaluationError(f"the value is nested deeper than {depth_max}")
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, list):
            size += len(item)
            pending.extend((element, depth + 1) for element in item)
        elif isinstance(item, dict):
            size += sum(map(len, item))
            pending.extend((element, depth + 1) for element in item.values())
        elif isinstance(item, int) and item.bit_length() > INTEGER_BITS_MAX:
            size += item.bit_length() // 3
        if size > size_max:
            raise EvaluationError(f"the value is larger than {size_max} characters")
    return count


def plain_text(value: JsonValue, frame: Frame) -> str:
    """As people write it: ``true``, ``3``, the string itself; null, lists and contexts as JSON."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return number_text(value)
        case _:
            return json_text(value, frame)


def json_text(value: JsonValue, frame: Frame) -> str:
    frame.spend_items(check_size(value))
    try:
        text = dumps(value).decode()
    except (OverflowError, ValueError) as error:
        raise EvaluationError(f"no text for this value: {error}") from None
    frame.spend_characters(len(text))
    return text


def concatenate(pieces: Iterable[str], frame: Frame, separator: str = "") -> str:
    """The joined text, refused when it would be too long."""
    texts = list(pieces)
    length = sum(map(len, texts)) + len(separator) * max(0, len(texts) - 1)
    if length > TEXT_CHARS_MAX:
        raise EvaluationError(f"the text would have {length} characters, at most {TEXT_CHARS_MAX} are allowed")
    frame.spend_characters(length)
    return separator.join(texts)
