"""Functions of FEEL (DMN 1.5, chapter 10.3.4), as far as they need no dates, patterns or iteration.

A function that gets what it does not take gives null, as FEEL has it; only the bounds on work and size fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Final

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions import numbers
from stellwerk.model.expressions.frames import Frame
from stellwerk.model.expressions.numbers import Number
from stellwerk.model.expressions.routines import MANY, Routine, number_argument, text_argument, whole_argument
from stellwerk.model.expressions.values import concatenate, plain_text, same

__all__ = ["FEEL_FUNCTIONS", "OTHER_FEEL_FUNCTIONS"]


def _items(arguments: Sequence[JsonValue]) -> Sequence[JsonValue]:
    """``f(list)`` and ``f(a, b, c)`` mean the same for aggregating functions."""
    first = arguments[0]
    return first if isinstance(first, list) and len(arguments) == 1 else arguments


def _list(arguments: Sequence[JsonValue], frame: Frame) -> list[JsonValue]:
    """FEEL takes a single value for the list of it."""
    first = arguments[0]
    items = first if isinstance(first, list) else [] if first is None else [first]
    frame.spend_items(len(items))
    return items


def _count(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    return len(_list(arguments, frame)) if arguments[0] is not None else None


def _append(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    return [*_list(arguments, frame), *arguments[1:]]


def _concatenate(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    result: list[JsonValue] = []
    for argument in arguments:
        result.extend(_list([argument], frame))
    return result


def _reverse(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    return _list(arguments, frame)[::-1]


def _list_contains(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    return any(same(item, arguments[1], frame) for item in _list(arguments, frame))


def _index_of(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    items = _list(arguments, frame)
    return [position for position, item in enumerate(items, 1) if same(item, arguments[1], frame)]


def _numbers(frame: Frame, arguments: Sequence[JsonValue]) -> list[Number]:
    items = _items(arguments)
    frame.spend_items(len(items))
    return [number_argument(items, position) for position in range(len(items))]


def _sum(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    values = _numbers(frame, arguments)
    frame.spend(len(values))
    return reduce(numbers.add, values) if values else None


def _mean(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    values = _numbers(frame, arguments)
    frame.spend(len(values))
    return numbers.divide(reduce(numbers.add, values), len(values)) if values else None


def _smallest(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    return min(_numbers(frame, arguments), default=None)


def _largest(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    return max(_numbers(frame, arguments), default=None)


def _string(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    return None if arguments[0] is None else plain_text(arguments[0], frame)


def _number(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    value = arguments[0]
    return numbers.parse_number(value.strip()) if isinstance(value, str) else number_argument(arguments, 0)


def _string_length(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    return len(text_argument(arguments, 0))


def _substring(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    text, position = text_argument(arguments, 0), whole_argument(arguments, 1)
    if position == 0 or abs(position) > len(text):
        return "" if position else None
    start = position - 1 if position > 0 else len(text) + position
    end = len(text) if len(arguments) < 3 else start + max(0, whole_argument(arguments, 2))
    frame.spend_characters(len(text))
    return text[start:end]


def _string_join(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    items = _list(arguments, frame)
    texts = [text_argument(items, position) for position in range(len(items)) if items[position] is not None]
    separator = text_argument(arguments, 1) if len(arguments) > 1 and arguments[1] is not None else ""
    return concatenate(texts, frame, separator)


def _is_defined(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    return arguments[0] is not None


def _get_value(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    context = arguments[0]
    return context.get(text_argument(arguments, 1)) if isinstance(context, dict) else None


def _of_text(body: Callable[[str], str]) -> Routine:
    def changed(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
        return concatenate([body(text_argument(arguments, 0))], frame)

    return Routine(1, 1, changed)


def _of_texts(body: Callable[[str, str], JsonValue]) -> Routine:
    def tested(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
        first, second = text_argument(arguments, 0), text_argument(arguments, 1)
        frame.spend_characters(len(first))
        return body(first, second)

    return Routine(2, 2, tested)


def _of_number(body: Callable[[Number], Number]) -> Routine:
    return Routine(1, 1, lambda frame, arguments: body(number_argument(arguments, 0)))


def _modulo(frame: Frame, arguments: Sequence[JsonValue]) -> JsonValue:
    return numbers.modulo(number_argument(arguments, 0), number_argument(arguments, 1))


def _after(text: str, part: str) -> str:
    return text.partition(part)[2] if part else text


def _before(text: str, part: str) -> str:
    before, found, _ = text.partition(part) if part else ("", "", "")
    return before if found else ""


FEEL_FUNCTIONS: Final[Mapping[str, Routine]] = {
    "abs": _of_number(abs),
    "append": Routine(2, MANY, _append),
    "ceiling": _of_number(numbers.ceiling),
    "concatenate": Routine(1, MANY, _concatenate),
    "contains": _of_texts(lambda text, part: part in text),
    "count": Routine(1, 1, _count),
    "ends with": _of_texts(lambda text, part: text.endswith(part)),
    "floor": _of_number(numbers.floor),
    "get value": Routine(2, 2, _get_value),
    "index of": Routine(2, 2, _index_of),
    "is defined": Routine(1, 1, _is_defined),
    "list contains": Routine(2, 2, _list_contains),
    "lower case": _of_text(str.lower),
    "max": Routine(1, MANY, _largest),
    "mean": Routine(1, MANY, _mean),
    "min": Routine(1, MANY, _smallest),
    "modulo": Routine(2, 2, _modulo),
    "number": Routine(1, 1, _number),
    "reverse": Routine(1, 1, _reverse),
    "starts with": _of_texts(lambda text, part: text.startswith(part)),
    "string": Routine(1, 1, _string),
    "string join": Routine(1, 2, _string_join),
    "string length": Routine(1, 1, _string_length),
    "substring": Routine(2, 3, _substring),
    "substring after": _of_texts(_after),
    "substring before": _of_texts(_before),
    "sum": Routine(1, MANY, _sum),
    "trim": _of_text(str.strip),
    "upper case": _of_text(str.upper),
}

OTHER_FEEL_FUNCTIONS: Final = frozenset(
    {
        *("after", "all", "any", "before", "coincides", "context", "context merge", "context put", "date"),
        *("date and time", "day of week", "day of year", "decimal", "distinct values", "duplicate values", "duration"),
        *("during", "even", "exp", "extract", "finished by", "finishes", "flatten", "from unix timestamp"),
        *("get entries", "get or else", "includes", "insert before", "is empty", "last day of month", "list replace"),
        *("log", "matches", "median", "meets", "met by", "mode", "month of year", "now", "odd", "overlaps"),
        *("partition", "product", "random number", "remove", "replace", "round down", "round half down"),
        *("round half up", "round up", "sort", "split", "sqrt", "started by", "starts", "stddev", "sublist", "time"),
        *("today", "unix timestamp", "union", "week of year", "years and months duration"),
    }
)
"""Known to FEEL or Zeebe and not evaluated here: named in the syntax error."""
