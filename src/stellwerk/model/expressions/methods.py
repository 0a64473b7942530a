"""Methods on plain data that JUEL and ProcessCube expressions may call, by the kind of the receiver.

JUEL has those of Java's String, List, Map, Number and Boolean, ProcessCube those of JavaScript. None changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions import numbers
from stellwerk.model.expressions.failures import EvaluationError
from stellwerk.model.expressions.frames import Frame
from stellwerk.model.expressions.routines import MANY, Routine, number_argument, text_argument, whole_argument
from stellwerk.model.expressions.values import TEXT_CHARS_MAX, concatenate, json_text, plain_text, same

__all__ = ["JAVASCRIPT_FUNCTIONS", "JAVASCRIPT_METHODS", "JUEL_METHODS", "truthy"]

Arguments = Sequence[JsonValue]
"""The receiver, then what stands in the parentheses."""


def _items(arguments: Arguments) -> list[JsonValue]:
    receiver = arguments[0]
    assert isinstance(receiver, list), "the table goes by the receiver's kind"
    return receiver


def _entries(arguments: Arguments) -> dict[str, JsonValue]:
    receiver = arguments[0]
    assert isinstance(receiver, dict), "the table goes by the receiver's kind"
    return receiver


# --- any kind ----------------------------------------------------------------------------------------------------


def _equals(frame: Frame, arguments: Arguments) -> JsonValue:
    return same(arguments[0], arguments[1], frame)


def _to_text(frame: Frame, arguments: Arguments) -> JsonValue:
    return plain_text(arguments[0], frame)


def _itself(frame: Frame, arguments: Arguments) -> JsonValue:
    return arguments[0]


# --- text --------------------------------------------------------------------------------------------------------


def _texts(frame: Frame, arguments: Arguments) -> tuple[str, str]:
    receiver, argument = text_argument(arguments, 0), text_argument(arguments, 1)
    frame.spend_characters(len(receiver))
    return receiver, argument


def _equals_ignoring_case(frame: Frame, arguments: Arguments) -> JsonValue:
    if not isinstance(arguments[1], str):
        return False
    receiver, argument = _texts(frame, arguments)
    return receiver.casefold() == argument.casefold()


def _has_text(frame: Frame, arguments: Arguments) -> JsonValue:
    receiver, argument = _texts(frame, arguments)
    return argument in receiver


def _starts_with(frame: Frame, arguments: Arguments) -> JsonValue:
    receiver, argument = _texts(frame, arguments)
    return receiver.startswith(argument)


def _ends_with(frame: Frame, arguments: Arguments) -> JsonValue:
    receiver, argument = _texts(frame, arguments)
    return receiver.endswith(argument)


def _text_index(frame: Frame, arguments: Arguments) -> JsonValue:
    receiver, argument = _texts(frame, arguments)
    return receiver.find(argument)


def _length(frame: Frame, arguments: Arguments) -> JsonValue:
    return len(text_argument(arguments, 0))


def _text_is_empty(frame: Frame, arguments: Arguments) -> JsonValue:
    return not arguments[0]


def _lower(frame: Frame, arguments: Arguments) -> JsonValue:
    return concatenate([text_argument(arguments, 0).lower()], frame)


def _upper(frame: Frame, arguments: Arguments) -> JsonValue:
    return concatenate([text_argument(arguments, 0).upper()], frame)


def _trim(frame: Frame, arguments: Arguments) -> JsonValue:
    return concatenate([text_argument(arguments, 0).strip()], frame)


def _concat_texts(frame: Frame, arguments: Arguments) -> JsonValue:
    return concatenate([text_argument(arguments, position) for position in range(len(arguments))], frame)


def _java_substring(frame: Frame, arguments: Arguments) -> JsonValue:
    text, start = text_argument(arguments, 0), whole_argument(arguments, 1)
    end = whole_argument(arguments, 2) if len(arguments) > 2 else len(text)
    if not 0 <= start <= end <= len(text):
        raise EvaluationError(f"substring({start}, {end}) is outside a string of {len(text)} characters")
    return concatenate([text[start:end]], frame)


def _javascript_substring(frame: Frame, arguments: Arguments) -> JsonValue:
    text = text_argument(arguments, 0)
    limits = [min(max(0, whole_argument(arguments, position)), len(text)) for position in range(1, len(arguments))]
    start, end = sorted((limits[0], limits[1] if len(limits) > 1 else len(text)))
    return concatenate([text[start:end]], frame)


def _replace(frame: Frame, arguments: Arguments, count: int) -> JsonValue:
    text, old = _texts(frame, arguments)
    new = text_argument(arguments, 2)
    occurrences = text.count(old) if count < 0 else min(count, text.count(old))
    if len(text) + occurrences * len(new) > TEXT_CHARS_MAX:
        raise EvaluationError(f"the text would have more than {TEXT_CHARS_MAX} characters")
    return concatenate([text.replace(old, new, count)], frame)


def _replace_all(frame: Frame, arguments: Arguments) -> JsonValue:
    return _replace(frame, arguments, -1)


def _replace_first(frame: Frame, arguments: Arguments) -> JsonValue:
    return _replace(frame, arguments, 1)


def _split(frame: Frame, arguments: Arguments) -> JsonValue:
    text, separator = _texts(frame, arguments)
    pieces = text.split(separator) if separator else list(text)
    frame.spend_items(len(pieces))
    return pieces


def _java_split(frame: Frame, arguments: Arguments) -> JsonValue:
    """Java's separator is a regular expression and its trailing empty pieces vanish."""
    separator = text_argument(arguments, 1)
    if not separator or any(character in separator for character in "\\^$.|?*+()[]{}"):
        raise EvaluationError(f"split() by the pattern {separator!r} is not available, only by plain text")
    pieces = _split(frame, arguments)
    assert isinstance(pieces, list)
    while len(pieces) > 1 and not pieces[-1]:
        pieces.pop()
    return pieces


# --- lists -------------------------------------------------------------------------------------------------------


def _size(frame: Frame, arguments: Arguments) -> JsonValue:
    receiver = arguments[0]
    assert isinstance(receiver, list | dict), "the table goes by the receiver's kind"
    return len(receiver)


def _list_index(frame: Frame, arguments: Arguments) -> int:
    items = _items(arguments)
    frame.spend_items(len(items))
    return next((position for position, item in enumerate(items) if same(item, arguments[1], frame)), -1)


def _list_has(frame: Frame, arguments: Arguments) -> JsonValue:
    return _list_index(frame, arguments) >= 0


def _get_item(frame: Frame, arguments: Arguments) -> JsonValue:
    items, position = _items(arguments), whole_argument(arguments, 1)
    if not 0 <= position < len(items):
        raise EvaluationError(f"get({position}) is outside a list of {len(items)} items")
    return items[position]


def _join(frame: Frame, arguments: Arguments) -> JsonValue:
    items = _items(arguments)
    frame.spend_items(len(items))
    separator = text_argument(arguments, 1) if len(arguments) > 1 else ","
    return concatenate(("" if item is None else plain_text(item, frame) for item in items), frame, separator)


def _slice(frame: Frame, arguments: Arguments) -> JsonValue:
    receiver = arguments[0]
    assert isinstance(receiver, list | str), "the table goes by the receiver's kind"
    start = whole_argument(arguments, 1) if len(arguments) > 1 else 0
    end = whole_argument(arguments, 2) if len(arguments) > 2 else None
    frame.spend_items(len(receiver))
    return receiver[start:end]


def _concat_lists(frame: Frame, arguments: Arguments) -> JsonValue:
    result: list[JsonValue] = []
    for argument in arguments:
        result.extend(argument if isinstance(argument, list) else [argument])
        frame.spend_items(len(result))
    return result


# --- contexts ----------------------------------------------------------------------------------------------------


def _get_entry(frame: Frame, arguments: Arguments) -> JsonValue:
    entry = _entries(arguments).get(plain_text(arguments[1], frame))
    return entry if entry is not None or len(arguments) < 3 else arguments[2]


def _has_entry(frame: Frame, arguments: Arguments) -> JsonValue:
    return plain_text(arguments[1], frame) in _entries(arguments)


def _has_value(frame: Frame, arguments: Arguments) -> JsonValue:
    values = _entries(arguments).values()
    frame.spend_items(len(values))
    return any(same(value, arguments[1], frame) for value in values)


def _names(frame: Frame, arguments: Arguments) -> JsonValue:
    frame.spend_items(len(_entries(arguments)))
    return list(_entries(arguments))


def _values(frame: Frame, arguments: Arguments) -> JsonValue:
    frame.spend_items(len(_entries(arguments)))
    return list(_entries(arguments).values())


# --- numbers -----------------------------------------------------------------------------------------------------


def _whole(frame: Frame, arguments: Arguments) -> JsonValue:
    """Towards zero, as Java's conversion."""
    value = number_argument(arguments, 0)
    return numbers.ceiling(value) if value < 0 else numbers.floor(value)


# --- JavaScript's functions --------------------------------------------------------------------------------------


def truthy(value: JsonValue) -> bool:
    """JavaScript: null, false, 0 and the empty text are false, all else is true, empty lists and objects too."""
    return isinstance(value, list | dict) or bool(value)


def _to_number(frame: Frame, arguments: Arguments) -> JsonValue:
    value = arguments[0]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        number = numbers.parse_number(value.strip() or "0")
        if number is None:
            raise EvaluationError(f"{value[:40]!r} is not a number")
        return number
    return number_argument(arguments, 0)


_EQUALS: Final = Routine(1, 1, _equals)
_TO_TEXT: Final = Routine(0, 0, _to_text)
_VALUE_OF_SAME_KIND: Final = Routine(0, 0, _itself)

JUEL_METHODS: Final[Mapping[str, Mapping[str, Routine]]] = {
    "string": {
        "concat": Routine(1, 1, _concat_texts),
        "contains": Routine(1, 1, _has_text),
        "endsWith": Routine(1, 1, _ends_with),
        "equals": _EQUALS,
        "equalsIgnoreCase": Routine(1, 1, _equals_ignoring_case),
        "indexOf": Routine(1, 1, _text_index),
        "isEmpty": Routine(0, 0, _text_is_empty),
        "length": Routine(0, 0, _length),
        "replace": Routine(2, 2, _replace_all),
        "split": Routine(1, 1, _java_split),
        "startsWith": Routine(1, 1, _starts_with),
        "substring": Routine(1, 2, _java_substring),
        "toLowerCase": Routine(0, 0, _lower),
        "toString": _TO_TEXT,
        "toUpperCase": Routine(0, 0, _upper),
        "trim": Routine(0, 0, _trim),
    },
    "list": {
        "contains": Routine(1, 1, _list_has),
        "equals": _EQUALS,
        "get": Routine(1, 1, _get_item),
        "indexOf": Routine(1, 1, _list_index),
        "isEmpty": Routine(0, 0, _text_is_empty),
        "size": Routine(0, 0, _size),
        "toString": _TO_TEXT,
    },
    "context": {
        "containsKey": Routine(1, 1, _has_entry),
        "containsValue": Routine(1, 1, _has_value),
        "equals": _EQUALS,
        "get": Routine(1, 1, _get_entry),
        "getOrDefault": Routine(2, 2, _get_entry),
        "isEmpty": Routine(0, 0, _text_is_empty),
        "keySet": Routine(0, 0, _names),
        "size": Routine(0, 0, _size),
        "toString": _TO_TEXT,
        "values": Routine(0, 0, _values),
    },
    "number": {
        "doubleValue": _VALUE_OF_SAME_KIND,
        "equals": _EQUALS,
        "intValue": Routine(0, 0, _whole),
        "longValue": Routine(0, 0, _whole),
        "toString": _TO_TEXT,
    },
    "boolean": {"booleanValue": _VALUE_OF_SAME_KIND, "equals": _EQUALS, "toString": _TO_TEXT},
    "null": {},
}

JAVASCRIPT_METHODS: Final[Mapping[str, Mapping[str, Routine]]] = {
    "string": {
        "concat": Routine(0, MANY, _concat_texts),
        "endsWith": Routine(1, 1, _ends_with),
        "includes": Routine(1, 1, _has_text),
        "indexOf": Routine(1, 1, _text_index),
        "replace": Routine(2, 2, _replace_first),
        "replaceAll": Routine(2, 2, _replace_all),
        "slice": Routine(0, 2, _slice),
        "split": Routine(1, 1, _split),
        "startsWith": Routine(1, 1, _starts_with),
        "substring": Routine(1, 2, _javascript_substring),
        "toLowerCase": Routine(0, 0, _lower),
        "toString": _TO_TEXT,
        "toUpperCase": Routine(0, 0, _upper),
        "trim": Routine(0, 0, _trim),
    },
    "list": {
        "concat": Routine(0, MANY, _concat_lists),
        "includes": Routine(1, 1, _list_has),
        "indexOf": Routine(1, 1, _list_index),
        "join": Routine(0, 1, _join),
        "slice": Routine(0, 2, _slice),
        "toString": Routine(0, 0, _join),
    },
    "context": {"hasOwnProperty": Routine(1, 1, _has_entry)},
    "number": {"toString": _TO_TEXT},
    "boolean": {"toString": _TO_TEXT},
    "null": {},
}

JAVASCRIPT_FUNCTIONS: Final[Mapping[str, Routine]] = {
    "Boolean": Routine(1, 1, lambda frame, arguments: truthy(arguments[0])),
    "JSON.stringify": Routine(1, 1, lambda frame, arguments: json_text(arguments[0], frame)),
    "Number": Routine(1, 1, _to_number),
    "String": Routine(1, 1, _to_text),
}
