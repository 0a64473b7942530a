"""JSON values in the one canonical form that every store keeps.

Refused at the edge: NUL and lone surrogates in strings and names, NaN and the infinities, names that are not strings,
depth over `DEPTH_MAX`. Negative zero becomes zero. Integers of any size survive. The order of names is not kept.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import msgspec

from stellwerk.errors import InvalidInput, LimitExceeded

__all__ = ["DEPTH_MAX", "JsonObject", "JsonValue", "canonical", "canonical_object", "digest", "dumps", "loads"]

JsonValue: TypeAlias = object
"""None, bool, int, float, str, a list of these or a dict with string names of these."""
JsonObject: TypeAlias = dict[str, object]

DEPTH_MAX = 100
"""Nesting: deeper values are never data, and every reader on the way would have to recurse."""

_PLAIN: frozenset[type] = frozenset({bool, int, type(None)})
"""Values of these types are canonical as they are."""
_NOTHING: frozenset[type] = frozenset()

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder()


def canonical(value: JsonValue, where: str = "$", depth: int = 0) -> JsonValue:
    """A copy of `value` in canonical form.

    :raises InvalidInput: naming what and where, as ``NUL character @ $.order[3]``.
    """
    if depth > DEPTH_MAX:
        raise InvalidInput(f"nested deeper than {DEPTH_MAX} @ {where}")
    match value:
        case dict():
            return canonical_object(value, where, depth)
        case None | bool():
            return value
        case str():
            return _text(value, where)
        case int():
            return int(value)
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise InvalidInput(f"{value} is no JSON number @ {where}")
            return value + 0.0
        case list() | tuple():
            plain = _PLAIN if depth < DEPTH_MAX else _NOTHING
            return [
                item if type(item) in plain else canonical(item, f"{where}[{index}]", depth + 1)
                for index, item in enumerate(value)
            ]
        case _:
            raise InvalidInput(f"{type(value).__name__} is no JSON value @ {where}")


def canonical_object(value: JsonValue, where: str = "$", depth: int = 0) -> JsonObject:
    """Like `canonical`, and the value must be an object."""
    if not isinstance(value, dict):
        raise InvalidInput(f"an object is expected, not {type(value).__name__} @ {where}")
    result: JsonObject = {}
    may_have_values = depth < DEPTH_MAX
    for name, item in value.items():
        if not isinstance(name, str):
            raise InvalidInput(f"a name must be a string, not {type(name).__name__} @ {where}")
        checked = name if name.isascii() and "\x00" not in name else _text(name, where)
        # An object may have a hundred thousand values, of which most are numbers or short texts.
        kind = type(item)
        if may_have_values and (kind in _PLAIN or (kind is str and item.isascii() and "\x00" not in item)):
            result[checked] = item
        else:
            result[checked] = canonical(item, f"{where}.{name}", depth + 1)
    return result


def _text(text: str, where: str) -> str:
    if "\x00" in text:
        raise InvalidInput(f"NUL character @ {where}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"lone surrogate @ {where}") from None
    return text


def dumps(value: JsonValue) -> bytes:
    """Compact JSON, names sorted: equal values give equal bytes."""
    return _encoder.encode(value)


def loads(text: bytes | str, *, bytes_max: int | None = None) -> JsonValue:
    """Parse and make canonical.

    :raises InvalidInput: when it is no JSON; LimitExceeded when it is longer than ``bytes_max``.
    """
    size = len(text) if isinstance(text, bytes) else len(text.encode(errors="surrogatepass"))
    if bytes_max is not None and size > bytes_max:
        raise LimitExceeded(f"{size} bytes, at most {bytes_max} are allowed")
    try:
        value: JsonValue = _decoder.decode(text)
        return value if _is_canonical(text) else canonical(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"not JSON: {error}") from None


def _is_canonical(text: bytes | str) -> bool:
    """Whether JSON text can have nothing in it that `canonical` refuses or changes, by a glance that costs nothing.

    NUL and surrogates only occur as escapes there, and no value is deeper than there are brackets. What is not
    canonical at a glance may still be.
    """
    if isinstance(text, str):
        return False
    return b"\\u" not in text and b"-0" not in text and text.count(b"[") + text.count(b"{") <= DEPTH_MAX


def digest(value: JsonValue) -> str:
    """SHA-256 of the canonical text, in hex: tells an identical repeat from a different one."""
    return hashlib.sha256(dumps(value)).hexdigest()
