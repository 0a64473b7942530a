"""Camunda's typed variables, and the JSON values that the engine keeps of them, both ways.

Types are not kept, they follow from the values: numbers without a fraction are ``Integer`` or ``Long``, objects and
arrays ``Json``, texts in Camunda's own date format ``Date``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial

from stellwerk.errors import InvalidInput, NotServed
from stellwerk.instants import InstantMs, to_rfc3339
from stellwerk.json_values import JsonObject, JsonValue, dumps, loads

__all__ = ["date_text", "kept_value", "kept_variables", "typed_value", "typed_variables"]

_INTEGER = range(-(2**31), 2**31)
_LONG = range(-(2**63), 2**63)
_SHORT = range(-(2**15), 2**15)
_JSON_FORMAT = "application/json"
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4}", re.ASCII)
"""``2026-01-31T12:00:00.000+0200``: what no other notation of dates looks like."""
_WHOLE_NUMBER = re.compile(r"[+-]?\d{1,25}", re.ASCII)
_TRUTH = {"true": True, "false": False}


def date_text(instant_ms: InstantMs | None) -> str | None:
    """Instants in Camunda's date format; the offset is always ``+0000``."""
    return None if instant_ms is None else to_rfc3339(instant_ms).replace("Z", "+0000")


# --- what clients send -----------------------------------------------------------------------------------------------


def kept_variables(variables: JsonObject | None, where: str) -> JsonObject:
    """``{"a": {"value": 1, "type": "Integer"}}`` → ``{"a": 1}``.

    :param where: the field of the request, as ``$.variables``.
    :raises InvalidInput: a value does not fit its type; NotServed: a type that is not kept.
    """
    return {name: kept_value(value, f"{where}.{name}") for name, value in (variables or {}).items()}


def kept_value(typed: JsonValue, where: str) -> JsonValue:
    """One of `kept_variables`. Without a type the value is taken as it is."""
    if not isinstance(typed, dict):
        raise InvalidInput(f'an object like {{"value": 1, "type": "Integer"}} is expected @ {where}')
    kind, value = typed.get("type"), typed.get("value")
    if kind is not None and not isinstance(kind, str):
        raise InvalidInput(f"a type is a text @ {where}.type")
    if kind is None or value is None:
        return value
    read = _READERS.get(kind.lower())
    if read is None:
        raise InvalidInput(f"Unsupported value type '{kind[:100]}' @ {where}")
    if kind.lower() == "object":
        _check_serialization(typed.get("valueInfo"), where)
    return read(value, f"{where}.value")


def _check_serialization(info: JsonValue, where: str) -> None:
    kind = info.get("serializationDataFormat") if isinstance(info, dict) else None
    if kind != _JSON_FORMAT:
        raise NotServed(f"objects are kept as JSON: serializationDataFormat must be {_JSON_FORMAT} @ {where}.valueInfo")


def _mismatch(value: JsonValue, kind: str, where: str) -> InvalidInput:
    return InvalidInput(f"Cannot convert value '{str(value)[:100]}' to type {kind} @ {where}")


def _text(value: JsonValue, where: str) -> JsonValue:
    if isinstance(value, dict | list):
        raise _mismatch(value, "String", where)
    return value if isinstance(value, str) else dumps(value).decode()


def _truth(value: JsonValue, where: str) -> JsonValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in _TRUTH:
        return _TRUTH[value]
    raise _mismatch(value, "Boolean", where)


def _whole(allowed: range, kind: str, value: JsonValue, where: str) -> JsonValue:
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
        value = int(value)
    if type(value) is not int or value not in allowed:
        raise _mismatch(value, kind, where)
    return value


def _floating(value: JsonValue, where: str) -> JsonValue:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise _mismatch(value, "Double", where)


def _number(value: JsonValue, where: str) -> JsonValue:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise _mismatch(value, "Number", where)


def _date(value: JsonValue, where: str) -> JsonValue:
    """In Camunda's format with the offset that the client gave; other notations of ISO 8601 become that."""
    try:
        if isinstance(value, str) and len(value) > len("2026-01-31"):
            moment = datetime.fromisoformat(value)
            if _DATE.fullmatch(value):
                return value
            aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return re.sub(r":(\d\d)$", r"\1", aware.isoformat(timespec="milliseconds"))
    except ValueError:
        pass
    raise _mismatch(value, "Date (2026-01-31T12:00:00.000+0000)", where)


def _bytes(value: JsonValue, where: str) -> JsonValue:
    """They stay in base64."""
    try:
        if isinstance(value, str):
            base64.b64decode(value, validate=True)
            return value
    except (binascii.Error, ValueError):
        pass
    raise _mismatch(value, "Bytes (base64)", where)


def _serialized(value: JsonValue, where: str) -> JsonValue:
    if not isinstance(value, str):
        raise InvalidInput(f"Must provide 'null' or String value for value of a serializable type @ {where}")
    try:
        return loads(value)
    except InvalidInput as error:
        raise InvalidInput(f"{error.message} in {where}") from None


def _file(_value: JsonValue, where: str) -> JsonValue:
    raise NotServed(f"files are not kept in variables: keep them elsewhere, and where they are @ {where}")


_READERS: Mapping[str, Callable[[JsonValue, str], JsonValue]] = {
    "null": lambda _value, _where: None,
    "string": _text,
    "xml": _text,
    "boolean": _truth,
    "short": partial(_whole, _SHORT, "Short"),
    "integer": partial(_whole, _INTEGER, "Integer"),
    "long": partial(_whole, _LONG, "Long"),
    "double": _floating,
    "float": _floating,
    "number": _number,
    "date": _date,
    "bytes": _bytes,
    "json": _serialized,
    "object": _serialized,
    "file": _file,
}
"""By type, in lower case: some clients write them so."""


# --- what clients get ------------------------------------------------------------------------------------------------


def typed_variables(variables: Mapping[str, JsonValue], *, deserialized: bool) -> dict[str, object]:
    """``{"a": 1}`` → ``{"a": {"type": "Integer", "value": 1, "valueInfo": {}}}``.

    :param deserialized: objects and arrays as they are, instead of as JSON text.
    """
    return {name: typed_value(value, deserialized=deserialized) for name, value in variables.items()}


def typed_value(value: JsonValue, *, deserialized: bool) -> dict[str, object]:
    kind = _kind_of(value)
    shown = dumps(value).decode() if kind == "Json" and not deserialized else value
    return {"type": kind, "value": shown, "valueInfo": {}}


def _kind_of(value: JsonValue) -> str:
    match value:
        case None:
            return "Null"
        case bool():
            return "Boolean"
        case int() if value in _INTEGER:
            return "Integer"
        case int() if value in _LONG:
            return "Long"
        case float():
            return "Double"
        case str():
            return "Date" if _is_date(value) else "String"
        case _:
            return "Json"


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
