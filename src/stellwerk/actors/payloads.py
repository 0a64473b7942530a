"""What a subscription asks of the variables of its tasks: which tasks it takes, and what of them it gets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import attrs
import msgspec
import regex

from stellwerk.errors import InvalidInput
from stellwerk.limits import Limits

__all__ = ["PayloadFilter", "make_filter", "selected_variables"]

_NODES_MAX = 50_000
"""Of a compiled pattern: some 14 MB, and a few milliseconds to compile."""
_COUNT = re.compile(r"\{([^{},]*)")
_VERBOSE_FLAG = re.compile(r"\(\?[A-Za-z0-9-]*x")
_TRIES = 2
"""The library counts the processor time of the whole process: one time-out may be the fault of other threads."""

_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()


@attrs.define(eq=False)
class PayloadFilter:
    """A regular expression, searched in the compact JSON text of a task's variables."""

    text: str
    _pattern: regex.Pattern[str]
    slowness_is_logged: bool = False

    def matches(self, variables: bytes, seconds: float) -> bool | None:
        """For a thread of its own: it lets the others run meanwhile. None: undecided when the time was up."""
        text = variables.decode()
        for _ in range(_TRIES):
            try:
                return self._pattern.search(text, timeout=seconds, concurrent=True) is not None
            except TimeoutError:
                continue
            except (MemoryError, RuntimeError):
                return None
        return None


def make_filter(text: str, limits: Limits) -> PayloadFilter:
    """:raises InvalidInput: too long, no regular expression, or one that would not fit in memory."""
    if len(text) > limits.filter_chars_max:
        raise InvalidInput(f"a filter has at most {limits.filter_chars_max} characters, not {len(text)} @ $.filter")
    if _VERBOSE_FLAG.search(text):
        raise InvalidInput("a filter cannot have the flag x @ $.filter")
    if _nodes_of(text) > _NODES_MAX:
        raise InvalidInput("the counts {n} in the filter are too large together @ $.filter")
    try:
        pattern = regex.compile(text, cache_pattern=False)
    except (regex.error, ValueError, OverflowError) as error:
        raise InvalidInput(f"the filter is no regular expression: {error} @ $.filter") from None
    except (RecursionError, MemoryError):
        raise InvalidInput("the filter is nested too deeply @ $.filter") from None
    return PayloadFilter(text, pattern)


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
    try:
        values = _top_level.decode(variables)
    except msgspec.ValidationError:
        return variables
    wanted = frozenset(names)
    return _encoder.encode({name: value for name, value in values.items() if name in wanted})
