"""Between JSON and the classes that a handler names: attrs classes, dataclasses, TypedDicts, plain JSON.

Stricter than cattrs by default: a number is not made of a text, nor a text of None. Beyond JSON's own types these are
understood: date and datetime (ISO 8601), Decimal (a text or a number; written as text), UUID, Enum, bytes (base64).
"""

from __future__ import annotations

import base64
import binascii
import functools
import typing
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from uuid import UUID

import msgspec

from stellwerk.errors import InvalidInput
from stellwerk.json_values import JsonValue, canonical, dumps, loads
from stellwerk.worker.texts import described

if typing.TYPE_CHECKING:
    from cattrs import Converter

__all__ = ["PLAIN", "payload_from_json", "result_to_json"]

PLAIN: tuple[object, ...] = (None, dict, object, typing.Any)
"""Annotations (None: there is none) with which the variables come as the dict that they are."""


def payload_from_json(variables: msgspec.Raw, annotation: object) -> object:
    """The variables of a task as the handler wants them.

    :raises InvalidInput: naming what and where, as ``required field missing @ $.amount``.
    """
    value = loads(bytes(variables))
    if annotation in PLAIN:
        return value
    try:
        return _converter().structure(value, typing.cast("type[object]", annotation))
    except Exception as error:
        # Whatever a converter of the user's own class raises is about this payload.
        raise InvalidInput(f"payload: {_explain(error)}") from error


def result_to_json(result: object) -> msgspec.Raw:
    """What a handler returned, as canonical JSON.

    :raises InvalidInput: when there is something in it that JSON cannot express.
    """
    try:
        plain = _converter().unstructure(result)
    except RecursionError:
        raise InvalidInput("the result contains itself @ $") from None
    try:
        return msgspec.Raw(dumps(canonical(plain)))
    except RecursionError:
        raise InvalidInput("nested too deeply @ $") from None


def _explain(error: Exception) -> str:
    from cattrs import BaseValidationError, transform_error

    if isinstance(error, BaseValidationError):
        return "; ".join(transform_error(error, format_exception=_explain_one))
    return _explain_one(error, None)


def _explain_one(error: BaseException, _wanted: type | None) -> str:
    match error:
        case InvalidInput():
            return error.message
        case KeyError():
            return "required field missing"
        case _:
            return described(error)


@functools.cache
def _converter() -> Converter:
    from cattrs.preconf.json import make_converter

    converter = make_converter(prefer_attrib_converters=True)
    for wanted in (str, bool, int, float):
        converter.register_structure_hook(wanted, _strict(wanted))
    converter.register_structure_hook(Decimal, _to_decimal)
    converter.register_unstructure_hook(Decimal, str)
    converter.register_structure_hook(UUID, lambda value, _: UUID(value))
    converter.register_unstructure_hook(UUID, str)
    converter.register_structure_hook(bytes, _to_bytes)
    converter.register_unstructure_hook(bytes, lambda value: base64.b64encode(value).decode())
    # Not by class: TypedDicts and dict[str, Order] are dicts too, but have something to check.
    converter.register_structure_hook_func(lambda wanted: wanted in PLAIN, lambda value, _: value)
    return converter


def _strict(wanted: type) -> Callable[[JsonValue, object], JsonValue]:
    def structure(value: JsonValue, _: object) -> JsonValue:
        if type(value) is wanted:
            return value
        if wanted is float and type(value) is int:
            return float(value)
        if wanted is int and isinstance(value, float) and value.is_integer():
            return int(value)
        raise InvalidInput(f"expected {wanted.__name__}, got {type(value).__name__}")

    return structure


def _to_decimal(value: JsonValue, _: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidInput(f"expected a decimal number, got {type(value).__name__}")
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise InvalidInput(f"{value!r} is no decimal number") from None


def _to_bytes(value: JsonValue, _: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidInput(f"expected base64 text, got {type(value).__name__}")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"no base64: {error}") from None
