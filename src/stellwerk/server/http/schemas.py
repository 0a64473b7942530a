"""JSON Schema 2020-12 of the bodies, queries and answers of the HTTP API, made from their classes."""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum

import attrs

from stellwerk.core.trace_values import LeaseSpan, Moment, StayTrace, TaskTrace, TokenTrace, WaitSpan
from stellwerk.core.waits import OpenWait
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.server.http.structuring import INTEGER_MAX, Instant, Signed
from stellwerk.wire.described import as_markdown, class_text, texts_of_attributes

__all__ = ["Schemas"]

_ENGINE_VALUES = frozenset({LeaseSpan, Moment, OpenWait, StayTrace, TaskTrace, TokenTrace, WaitSpan})
"""Values of the engine that are shown as `views.plain_view` does it: ``…_ms`` are instants, bytes are JSON."""
_SIMPLE: Mapping[object, JsonObject] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer", "minimum": 0, "maximum": INTEGER_MAX},
    Signed: {"type": "integer", "minimum": -INTEGER_MAX, "maximum": INTEGER_MAX},
    Instant: {"type": "string", "format": "date-time"},
    JsonValue: {},
    JsonObject: {"type": "object"},
    bytes: {},
}


class Schemas:
    """Collects the classes that were referred to, each once. Requests refuse unknown fields; answers may get more."""

    def __init__(self, prefix: str) -> None:
        """:param prefix: of a reference to a class."""
        self._prefix = prefix
        self._by_class: dict[type, JsonObject] = {}

    @property
    def components(self) -> JsonObject:
        """By name of the class, sorted."""
        names = {kind.__name__: schema for kind, schema in self._by_class.items()}
        assert len(names) == len(self._by_class), "two classes have one name"
        return dict(sorted(names.items()))

    def request(self, kind: type) -> JsonObject:
        """A reference to the schema of a body."""
        return self._reference(kind, is_request=True)

    def answer(self, kind: object) -> JsonObject:
        """:param kind: a class, or ``tuple[C, ...]``."""
        return self._of(kind, is_request=False)

    def has_required(self, kind: type) -> bool:
        """Whether the class has fields that cannot be left out."""
        return any(field.default is attrs.NOTHING for field, _ in _fields_of(kind))

    def parameters(self, query: type) -> list[JsonObject]:
        """Of a query, as OpenAPI describes them."""
        return [self._parameter(query, field, hint) for field, hint in _fields_of(query)]

    def _parameter(self, query: type, field: attrs.Attribute[object], hint: object) -> JsonObject:
        kind, _ = _without_none(hint)  # a parameter cannot be null, only left out
        schema = {**self._of(kind, is_request=True), **field.metadata, **_default_of(field)}
        text = _text_of(query, field.name)
        described: JsonObject = {"description": text} if text else {}
        is_required = field.default is attrs.NOTHING
        return {"name": field.name, "in": "query", "required": is_required, **described, "schema": schema}

    def _reference(self, kind: type, *, is_request: bool) -> JsonObject:
        if kind not in self._by_class:
            self._by_class[kind] = {}  # it may refer to itself
            self._by_class[kind] = self._object(kind, is_request=is_request)
        return {"$ref": self._prefix + kind.__name__}

    def _object(self, kind: type, *, is_request: bool) -> JsonObject:
        fields = list(_fields_of(kind))
        text = "" if (kind.__doc__ or "").startswith("Method generated") else class_text(kind)
        required = [_shown_name(kind, field.name) for field, _ in fields if _is_required(field, kind)]
        return {
            "title": kind.__name__,
            **({"description": text} if text else {}),
            "type": "object",
            "properties": {
                _shown_name(kind, field.name): self._property(kind, field, hint, is_request=is_request)
                for field, hint in fields
            },
            **({"required": required} if required else {}),
            **({"additionalProperties": False} if is_request else {}),
        }

    def _property(self, owner: type, field: attrs.Attribute[object], hint: object, *, is_request: bool) -> JsonObject:
        schema = {**self._of(_shown_hint(owner, field.name, hint), is_request=is_request), **field.metadata}
        if is_request:
            schema |= _default_of(field)
        text = _text_of(owner, field.name)
        return {**schema, "description": text} if text else schema

    def _of(self, hint: object, *, is_request: bool) -> JsonObject:
        kind, is_nullable = _without_none(hint)
        schema = self._without_null(kind, is_request=is_request)
        return _or_null(schema) if is_nullable else schema

    def _without_null(self, kind: object, *, is_request: bool) -> JsonObject:
        if kind is int and not is_request:
            return {"type": "integer"}
        if kind in _SIMPLE:
            return dict(_SIMPLE[kind])
        if typing.get_origin(kind) is tuple:
            return {"type": "array", "items": self._of(typing.get_args(kind)[0], is_request=is_request)}
        if typing.get_origin(kind) is typing.Literal:
            return {"type": "string", "enum": list(typing.get_args(kind))}
        assert isinstance(kind, type), kind
        if issubclass(kind, Enum):
            return {"type": "string", "enum": [member.value for member in kind]}
        return self._reference(kind, is_request=is_request)


def _fields_of(kind: type) -> Iterator[tuple[attrs.Attribute[object], object]]:
    hints = typing.get_type_hints(kind)
    for field in attrs.fields(typing.cast("type[attrs.AttrsInstance]", kind)):
        yield field, hints[field.name]


def _is_required(field: attrs.Attribute[object], owner: type) -> bool:
    return owner in _ENGINE_VALUES or field.default is attrs.NOTHING


def _shown_name(owner: type, name: str) -> str:
    return name.removesuffix("_ms") if owner in _ENGINE_VALUES else name


def _shown_hint(owner: type, name: str, hint: object) -> object:
    if owner in _ENGINE_VALUES and name.endswith("_ms"):
        return typing.Optional[Instant] if _without_none(hint)[1] else Instant  # noqa: UP045 — a NewType at run time
    return hint


def _without_none(hint: object) -> tuple[object, bool]:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    [kind] = (member for member in typing.get_args(hint) if member is not type(None))
    return kind, True


def _or_null(schema: JsonObject) -> JsonObject:
    if "enum" in schema:
        return {"type": ["string", "null"], "enum": [*typing.cast("list[object]", schema["enum"]), None]}
    if "type" in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def _default_of(field: attrs.Attribute[object]) -> JsonObject:
    """Null stands for what is left out, which needs no words."""
    match field.default:
        case attrs.NOTHING | None:
            return {}
        case default if hasattr(default, "factory"):
            return {"default": default.factory()}
        case default:
            return {"default": default}


def _text_of(owner: type, field_name: str) -> str:
    """What the source says below the field, in the class or in one that it extends."""
    for kind in owner.__mro__[:-1]:
        texts = texts_of_attributes(sys.modules[kind.__module__]).get(kind.__name__, {})
        if field_name in texts:
            return as_markdown(re.sub(r"\bNone\b", "null", texts[field_name]))
    return ""
