"""What a subscription asks of its tasks: which of them it takes, and what of their variables it gets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

import attrs
import msgspec
import regex

from stellwerk.actors.polls import TaskConditions
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import InvalidInput, StellwerkError
from stellwerk.ids import is_among, process_key_of
from stellwerk.json_values import JsonValue, canonical, loads
from stellwerk.limits import Limits

__all__ = ["TaskFilter", "make_task_filter", "selected_variables"]

_NODES_MAX = 50_000
"""Of a compiled pattern: some 14 MB, and a few milliseconds to compile."""
_COUNT = re.compile(r"\{([^{},]*)")
_VERBOSE_FLAG = re.compile(r"\(\?[A-Za-z0-9-]*x")
_TRIES = 2
"""The library counts the processor time of the whole process: one time-out may be the fault of other threads."""

_QUICK_BYTES_MAX = 64 * 1024
_PICKERS_KEPT_MAX = 200

_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()


@attrs.define(eq=False)
class TaskFilter:
    """Conditions that a task meets or not, decided in a thread: variables may be large, and a pattern slow."""

    key: str
    """Of equal filters equal."""
    conditions: TaskConditions
    _pattern: regex.Pattern[str] | None

    @property
    def has_pattern(self) -> bool:
        """It may take long. Other conditions do not."""
        return self._pattern is not None

    @property
    def text(self) -> str:
        """For people."""
        return self.conditions.payload if self.conditions.payload is not None else self.key

    def matches(self, task: ExternalTask, seconds: float) -> bool | None:
        """For a thread of its own: it lets the others run meanwhile. None: undecided when the time was up."""
        if not _fits(task, self.conditions) or not _has_variables(task.variables, self.conditions.variables):
            return False
        return self._pattern is None or _is_found(self._pattern, task.variables.decode(), seconds)


def _fits(task: ExternalTask, wanted: TaskConditions) -> bool:
    if wanted.business_key is not None and task.business_key != wanted.business_key:
        return False
    if wanted.definition_ids is not None and task.definition_id not in wanted.definition_ids:
        return False
    return wanted.process_keys is None or is_among(process_key_of(task.definition_id), wanted.process_keys)


def _has_variables(text: bytes, wanted: Sequence[tuple[str, JsonValue]]) -> bool:
    if not wanted:
        return True
    try:
        values = loads(text)
    except StellwerkError:
        return False
    if not isinstance(values, Mapping):
        return False
    return all(name in values and _are_equal(values[name], value) for name, value in wanted)


def _are_equal(one: JsonValue, other: JsonValue) -> bool:
    """As JSON has it: 1 and 1.0 are the same number, and neither is ``true``."""
    match one, other:
        case bool(), _:
            return one is other
        case _, bool():
            return False
        case list(), list():
            return len(one) == len(other) and all(map(_are_equal, one, other))
        case dict(), dict():
            return one.keys() == other.keys() and all(_are_equal(one[name], other[name]) for name in one)
        case _:
            return one == other


def _is_found(pattern: regex.Pattern[str], text: str, seconds: float) -> bool | None:
    for _ in range(_TRIES):
        try:
            return pattern.search(text, timeout=seconds, concurrent=True) is not None
        except TimeoutError:
            continue
        except (MemoryError, RuntimeError):
            return None
    return None


def make_task_filter(conditions: TaskConditions, limits: Limits) -> TaskFilter | None:
    """None: every task meets them.

    :raises InvalidInput: the pattern is too long, no regular expression, or one that would not fit in memory; a value
        is no JSON.
    """
    if conditions == TaskConditions():
        return None
    values = tuple((name, canonical(value, f"$.variables.{name}")) for name, value in conditions.variables)
    conditions = attrs.evolve(conditions, variables=values)
    pattern = None if conditions.payload is None else _compiled(conditions.payload, limits)
    return TaskFilter(_key_of(conditions), conditions, pattern)


def _key_of(conditions: TaskConditions) -> str:
    named = {
        field.name: value
        for field in attrs.fields(TaskConditions)
        if (value := getattr(conditions, field.name)) not in (None, ())
    }
    return json.dumps(named, sort_keys=True)


def _compiled(text: str, limits: Limits) -> regex.Pattern[str]:
    if len(text) > limits.filter_chars_max:
        raise InvalidInput(f"a filter has at most {limits.filter_chars_max} characters, not {len(text)} @ $.filter")
    if _VERBOSE_FLAG.search(text):
        raise InvalidInput("a filter cannot have the flag x @ $.filter")
    if _nodes_of(text) > _NODES_MAX:
        raise InvalidInput("the counts {n} in the filter are too large together @ $.filter")
    try:
        return regex.compile(text, cache_pattern=False)
    except (regex.error, ValueError, OverflowError) as error:
        raise InvalidInput(f"the filter is no regular expression: {error} @ $.filter") from None
    except (RecursionError, MemoryError):
        raise InvalidInput("the filter is nested too deeply @ $.filter") from None


def _nodes_of(text: str) -> int:
    """At most so many nodes has the compiled pattern, because ``x{n}`` is compiled to n copies.

    Counts after a group may enclose others and multiply; those after anything else add up.
    """
    single, enclosing = [len(text)], [1]
    for match in _COUNT.finditer(text):
        count = int("".join(filter(str.isdecimal, match[1])) or "0")
        is_after_group = text[: match.start()].endswith((")", "}"))
        (enclosing if is_after_group else single).append(max(1, count) if is_after_group else count)
    return sum(single) * prod(enclosing)


def selected_variables(variables: bytes, names: Sequence[str]) -> bytes:
    """Only these of the top-level variables; the text as it is when it is no object."""
    wanted = frozenset(names)
    picker = _picker_of(wanted) if len(variables) > _QUICK_BYTES_MAX else None
    try:
        if picker is not None:
            return _encoder.encode(picker.decode(variables))
        values = _top_level.decode(variables)
    except msgspec.ValidationError:
        return variables
    return _encoder.encode({name: value for name, value in values.items() if name in wanted})


@lru_cache(_PICKERS_KEPT_MAX)
def _picker_of(names: frozenset[str]) -> msgspec.json.Decoder[msgspec.Struct] | None:
    """Makes objects of these members only, and skips a hundred thousand others within a millisecond. None: such names
    (with quotes or control characters in them) no member can have."""
    fields = [
        (f"_{number}", msgspec.Raw | msgspec.UnsetType, msgspec.field(default=msgspec.UNSET, name=name))
        for number, name in enumerate(sorted(names))
    ]
    try:
        return msgspec.json.Decoder(msgspec.defstruct("Picked", fields, omit_defaults=True))
    except ValueError:
        return None
