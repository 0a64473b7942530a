"""How JSON and query texts become the attrs classes of `requests`.

A wrong one is answered with everything that is wrong, as ``expected a string, not int @ $.files[0].name``.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, override

from stellwerk.errors import InvalidInput
from stellwerk.instants import EPOCH, InstantMs
from stellwerk.json_values import JsonObject, JsonValue

__all__ = ["INTEGER_MAX", "Instant", "Signed", "structure_body", "structure_query", "wire_name"]

T = TypeVar("T")

Instant = NewType("Instant", InstantMs)
"""RFC 3339 text in a request."""

Signed = NewType("Signed", int)
"""A whole number that may be negative; others are refused."""

INTEGER_MAX = 2**53 - 1
"""What JavaScript can count to; every store can keep it. Numbers within variables are not bounded."""
_PLACE = re.compile(r" @ (?:\$|query)\S*")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def structure_body(value: JsonValue, kind: type[T], *, tolerant: bool = False) -> T:
    """Make an object of `kind`, an attrs class.

    :param tolerant: for APIs of other engines: names are in camelCase (or what the field's metadata has as ``name``),
        and unknown ones are ignored.
    :raises InvalidInput: naming everything that is wrong and where.
    """
    if tolerant:
        return _structure(_tolerant_body_converter, value, kind, "$", _wire_place)
    return _structure(_body_converter, value, kind, "$")


def structure_query(pairs: Iterable[tuple[str, str]], kind: type[T], *, tolerant: bool = False) -> T:
    """Like `structure_body`; numbers and truth values are read from their text, lists from one with commas.

    :raises InvalidInput: naming everything that is wrong.
    """
    query: dict[str, JsonValue] = {}
    for name, text in pairs:
        if name in query:
            raise InvalidInput(f"given twice: {name} @ query")
        query[name] = text
    if tolerant:
        return _structure(
            _tolerant_query_converter, query, kind, "query", partial(_wire_place, names=_given_names(kind))
        )
    return _structure(_query_converter, query, kind, "query")


def wire_name(field: attrs.Attribute[Any]) -> str:
    """Of a field in the APIs of other engines."""
    return str(field.metadata.get("name", _camel_case(field.name)))


def _given_names(kind: type[Any]) -> Mapping[str, str]:
    """Of the fields that have one which does not follow from theirs."""
    return {field.name: wire_name(field) for field in attrs.fields(kind) if "name" in field.metadata}


def _wire_place(place: str, names: Mapping[str, str] = {}) -> str:
    """:param place: with names of attributes, as ``query.lock_duration``."""
    return re.sub(r"[a-z_]+", lambda name: names.get(name[0]) or _camel_case(name[0]), place)


def _camel_case(text: str) -> str:
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), text)


def _structure(
    converter: cattrs.Converter, value: JsonValue, kind: type[T], where: str, named: Callable[[str], str] = str
) -> T:
    """:param named: how the API writes names of fields."""
    try:
        return converter.structure(value, kind)
    except cattrs.BaseValidationError as error:
        complaints = cattrs.transform_error(error, path=where, format_exception=_complaint)
        _forget_frames(error)
        raise InvalidInput(_PLACE.sub(lambda place: named(place[0]), "; ".join(complaints))) from None
    except TypeError as error:
        raise InvalidInput(f"{error} @ {where}") from None


def _forget_frames(error: BaseException) -> None:
    """Frames of its traceback know it: with what they hold, the whole value, they would stay until somebody looks for
    cycles. Callers could fill the memory with them."""
    error.__traceback__ = error.__context__ = None
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            _forget_frames(each)


def _complaint(error: BaseException, _kind: type | None) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f"unknown: {', '.join(sorted(error.extra_fields))}"
    return str(error)


def _name_of(value: JsonValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def _exactly(kind: type, name: str) -> Any:
    def structure(value: JsonValue, _kind: object) -> JsonValue:
        if type(value) is not kind:
            raise TypeError(f"expected {name}, not {_name_of(value)}")
        return value

    return structure


def _signed_number(value: JsonValue, _kind: object) -> Signed:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, not {_name_of(value)}")
    if not -INTEGER_MAX <= value <= INTEGER_MAX:
        raise ValueError(f"expected a number from -{INTEGER_MAX} to {INTEGER_MAX}")
    return Signed(value)


def _whole_number(value: JsonValue, _kind: object) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, not {_name_of(value)}")
    if not 0 <= value <= INTEGER_MAX:
        raise ValueError(f"expected a number from 0 to {INTEGER_MAX}")
    return value


def _optional(converter: cattrs.Converter, kind: Any) -> Any:
    (inner,) = (choice for choice in get_args(kind) if choice is not type(None))

    def structure(value: JsonValue, _kind: object) -> Any:
        return None if value is None else converter.structure(value, inner)

    return structure


def _origin(kind: Any) -> Any:
    return get_origin(kind)


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType) and len(get_args(kind)) == 2 and type(None) in get_args(kind)


def _choice(value: JsonValue, kind: Any) -> JsonValue:
    choices = get_args(kind)
    if value not in choices:
        raise ValueError(f"expected one of {', '.join(choices)}")
    return value


def _choice_in_any_case(value: JsonValue, kind: Any) -> JsonValue:
    alike = [choice for choice in get_args(kind) if isinstance(value, str) and choice.lower() == value.lower()]
    return alike[0] if alike else _choice(value, kind)


def _tuple_of(converter: cattrs.Converter, kind: Any) -> Any:
    list_kind = types.GenericAlias(list, get_args(kind)[:1])
    as_list = converter.get_structure_hook(list_kind)

    def structure(value: JsonValue, _kind: object) -> Any:
        if not isinstance(value, list):
            raise TypeError(f"expected an array, not {_name_of(value)}")
        return tuple(as_list(value, list_kind))

    return structure


def _object_of(converter: cattrs.Converter, kind: Any, *, tolerant: bool) -> Any:
    renamed: dict[str, Any] = {
        field.name: override(rename=wire_name(field)) for field in attrs.fields(kind) if tolerant
    }
    fields = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=not tolerant, **renamed)

    def structure(value: JsonValue, _kind: object) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"expected an object, not {_name_of(value)}")
        return fields(value, kind)

    return structure


def _number_in_text(value: JsonValue, _kind: object) -> int:
    if not isinstance(value, str) or not value.isascii() or not value.isdigit() or len(value) > len(str(INTEGER_MAX)):
        raise ValueError("expected a number")
    return _whole_number(int(value), int)


def _signed_in_text(value: JsonValue, _kind: object) -> Signed:
    if isinstance(value, str) and value.startswith("-"):
        return Signed(-_number_in_text(value[1:], int))
    return Signed(_number_in_text(value, int))


def _truth_in_text(value: JsonValue, _kind: object) -> bool:
    if value not in ("true", "false"):
        raise ValueError("expected true or false")
    return value == "true"


def _instant(value: JsonValue, _kind: object) -> Instant:
    """A fraction of a millisecond counts as a whole one: what began before the instant stays before it."""
    try:
        if isinstance(value, str) and _RFC3339.fullmatch(value):
            fraction = re.search(r"\.(\d+)", value)
            whole = datetime.fromisoformat(re.sub(r"\.\d+", "", value.upper()))
            seconds = (whole - EPOCH).days * 86_400 + (whole - EPOCH).seconds
            return Instant(seconds * 1000 - (-_nanoseconds(fraction) // 1_000_000))
    except (ValueError, OverflowError):
        pass
    raise ValueError("expected a time such as 2026-01-31T12:00:00Z")


def _nanoseconds(fraction: re.Match[str] | None) -> int:
    return 0 if fraction is None else int(fraction[1].ljust(9, "0"))


def _make_converter(*, tolerant: bool) -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=not tolerant, detailed_validation=True)
    converter.register_structure_hook(str, _exactly(str, "a string"))
    converter.register_structure_hook(int, _whole_number)
    converter.register_structure_hook(bool, _exactly(bool, "true or false"))
    converter.register_structure_hook_func(lambda kind: kind is Instant, _instant)
    converter.register_structure_hook_func(lambda kind: kind is Signed, _signed_number)
    converter.register_structure_hook_func(lambda kind: kind is JsonValue, lambda value, _kind: value)
    converter.register_structure_hook_func(lambda kind: kind == JsonObject, _exactly(dict, "an object"))
    converter.register_structure_hook_factory(attrs.has, lambda kind: _object_of(converter, kind, tolerant=tolerant))
    converter.register_structure_hook_factory(_is_optional, lambda kind: _optional(converter, kind))
    converter.register_structure_hook_func(lambda kind: _origin(kind) is Literal, _choice)
    converter.register_structure_hook_factory(
        lambda kind: _origin(kind) is tuple, lambda kind: _tuple_of(converter, kind)
    )
    return converter


def _list_in_text(converter: cattrs.Converter, kind: Any) -> Any:
    list_kind: Any = types.GenericAlias(list, get_args(kind)[:1])

    def structure(value: JsonValue, _kind: object) -> Any:
        return tuple(converter.structure(str(value).split(","), list_kind))

    return structure


def _for_texts(converter: cattrs.Converter) -> cattrs.Converter:
    converter.register_structure_hook(int, _number_in_text)
    converter.register_structure_hook(bool, _truth_in_text)
    converter.register_structure_hook_func(lambda kind: kind is Signed, _signed_in_text)
    converter.register_structure_hook_factory(
        lambda kind: _origin(kind) is tuple, lambda kind: _list_in_text(converter, kind)
    )
    return converter


_body_converter = _make_converter(tolerant=False)
_query_converter = _for_texts(_make_converter(tolerant=False))
_query_converter.register_structure_hook_func(lambda kind: _origin(kind) is Literal, _choice_in_any_case)
_tolerant_body_converter = _make_converter(tolerant=True)
_tolerant_query_converter = _for_texts(_make_converter(tolerant=True))
