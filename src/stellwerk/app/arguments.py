"""What programs hand to an engine, checked against what its methods declare.

A text that no store can keep, or something of another type, is named here and does not get as far as an actor.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from stellwerk.errors import InvalidInput
from stellwerk.json_values import canonical

__all__ = ["argument_check", "path_of", "seconds_of", "text_of"]

_Check: TypeAlias = Callable[[str, Any], object]

_INTEGER_MAX = 2**53 - 1
"""As in the HTTP API: every store can keep it."""


def argument_check(method: Callable[..., object]) -> Callable[..., None]:
    """Takes the arguments of a call of `method`.

    :raises InvalidInput: naming one that is not what its annotation says. TypeError: it is no parameter at all.
    """
    signature = inspect.signature(method)
    # Not before the first call: the module of the method is still being made when it is decorated.
    checks = functools.cache(lambda: _checks_of(method))

    def check(*arguments: object, **named: object) -> None:
        for name, value in signature.bind(*arguments, **named).arguments.items():
            if name in checks():
                checks()[name](name, value)

    return check


def _checks_of(method: Callable[..., object]) -> Mapping[str, _Check]:
    found = {name: _check_of(hint) for name, hint in get_type_hints(method).items()}
    if "limit" in found:
        found["limit"] = _limit_of
    return {name: check for name, check in found.items() if check is not None}


def _check_of(hint: Any) -> _Check | None:
    """None: what is not simple is checked where it is used."""
    if isinstance(hint, types.UnionType) and types.NoneType in (choices := get_args(hint)) and len(choices) == 2:
        inner = _check_of(choices[0])
        return None if inner is None else lambda name, value: value is None or inner(name, value)
    if hint == Sequence[str]:
        return _texts_of
    return _CHECKS.get(get_origin(hint) or hint)


def _refusal(name: str, expected: str, value: object) -> InvalidInput:
    return InvalidInput(f"expected {expected}, not {type(value).__name__} @ $.{name}")


def text_of(name: str, value: object) -> str:
    """:raises InvalidInput: it is no text that every store can keep."""
    if not isinstance(value, str):
        raise _refusal(name, "a string", value)
    canonical(value, f"$.{name}")
    return value


def path_of(name: str, value: object) -> Path:
    """:raises InvalidInput: no file can have this name."""
    if not isinstance(value, str | os.PathLike):
        raise _refusal(name, "a path", value)
    path = Path(value)
    if "\0" in str(path):
        raise InvalidInput(f"NUL character @ $.{name}")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidInput(f"lone surrogate @ $.{name}") from None
    return path


def seconds_of(name: str, value: object) -> float:
    """:raises InvalidInput: it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal(name, "a number", value)
    if math.isnan(value):
        raise InvalidInput(f"expected a number, not NaN @ $.{name}")
    return value


def _texts_of(name: str, value: object) -> None:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _refusal(name, "a list of strings", value)
    for index, text in enumerate(value):
        text_of(f"{name}[{index}]", text)


def _whole_number(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refusal(name, "a whole number", value)
    if abs(value) > _INTEGER_MAX:
        raise InvalidInput(f"expected a number up to {_INTEGER_MAX} @ $.{name}")
    return value


def _limit_of(name: str, value: object) -> None:
    if _whole_number(name, value) < 1:
        raise InvalidInput(f"at least 1 @ $.{name}")


def _an(kind: type, expected: str) -> _Check:
    def check(name: str, value: object) -> None:
        if not isinstance(value, kind):
            raise _refusal(name, expected, value)

    return check


_CHECKS: Mapping[Any, _Check] = {
    str: text_of,
    int: _whole_number,
    float: seconds_of,
    bool: _an(bool, "True or False"),
    dict: _an(dict, "a dict"),
    datetime: _an(datetime, "a datetime"),
    timedelta: _an(timedelta, "a timedelta"),
}
