"""The messages as data: what a schema or a reference page says about them, out of the classes in `messages`.

Docstrings of attributes exist only in the source, so this reads it. An engine needs this module only when it is
asked for its documents.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping

import attrs
import msgspec

from stellwerk.values import frozen
from stellwerk.wire import messages as wire
from stellwerk.wire.codec import class_type_name

__all__ = [
    "ENGINE_CLASSES",
    "WORKER_CLASSES",
    "FieldDescription",
    "MessageDescription",
    "as_markdown",
    "codes",
    "describe",
    "described_fields",
    "parts",
    "texts_of_attributes",
]

WORKER_CLASSES: tuple[type, ...] = typing.get_args(wire.WorkerMessage)
"""What a worker sends, in the order of the protocol's page."""
ENGINE_CLASSES: tuple[type, ...] = typing.get_args(wire.EngineMessage)

_CODE_FIELDS = frozenset({(wire.Nack, "code"), (wire.ProtocolErrorMessage, "code")})
_SAME_EVERYWHERE = {
    "ref": "Chosen by the worker; the answer names it.",
    "task_id": "The task.",
    "fence": "The number of the lease: it grows with each lease of the task.",
}
"""Fields of many messages: what they mean where the class itself does not say."""


@frozen
class FieldDescription:
    name: str
    kind: object
    """What it holds beside null: a class, or ``tuple`` of `item`."""
    item: type | None
    is_nullable: bool
    is_required: bool
    default: bytes | None
    """JSON; None where it is required."""
    is_code: bool
    """It holds one of `codes`."""
    text: str
    """What it means, as Markdown."""


@frozen
class MessageDescription:
    message_class: type
    type_name: str
    text: str
    fields: tuple[FieldDescription, ...]

    @property
    def has_ref(self) -> bool:
        return any(field.name == "ref" for field in self.fields)


def describe(message_class: type) -> MessageDescription:
    """One message of the protocol."""
    return MessageDescription(
        message_class, class_type_name(message_class), class_text(message_class), described_fields(message_class)
    )


def class_text(described_class: type) -> str:
    """The docstring, as Markdown."""
    return as_markdown(inspect.cleandoc(described_class.__doc__ or ""))


def described_fields(described_class: type) -> tuple[FieldDescription, ...]:
    """The fields of a message, or of a part of one, in their order."""
    hints = typing.get_type_hints(described_class)
    texts = texts_of_attributes(wire).get(described_class.__name__, {})
    return tuple(
        _described_field(described_class, field, hints[field.name], texts.get(field.name, ""))
        for field in attrs.fields(typing.cast("type[attrs.AttrsInstance]", described_class))
    )


def parts() -> tuple[type, ...]:
    """The classes of which messages are made (`LeaseRef`, `TaskOffer`, …), each once, in order of first use."""
    found: dict[type, None] = {}
    for message_class in (*WORKER_CLASSES, *ENGINE_CLASSES):
        found.update(dict.fromkeys(_parts_of(message_class)))
    return tuple(found)


def codes() -> tuple[str, ...]:
    """The closed list of `NackCode`."""
    return tuple(value for name, value in vars(wire.NackCode).items() if name.isupper())


def _parts_of(described_class: type) -> Iterator[type]:
    for field in described_fields(described_class):
        part = field.item or field.kind
        if isinstance(part, type) and attrs.has(part):
            yield part
            yield from _parts_of(part)


def _described_field(owner: type, field: attrs.Attribute[object], hint: object, text: str) -> FieldDescription:
    kind, is_nullable = _without_none(hint)
    item = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None
    is_required = field.default is attrs.NOTHING
    return FieldDescription(
        name=field.name,
        kind=tuple if item is not None else kind,
        item=item,
        is_nullable=is_nullable,
        is_required=is_required,
        default=None if is_required else _default(field.default),
        is_code=(owner, field.name) in _CODE_FIELDS,
        text=as_markdown(text or _SAME_EVERYWHERE.get(field.name, "")),
    )


def _without_none(hint: object) -> tuple[object, bool]:
    if not isinstance(hint, types.UnionType):
        return hint, False
    [kind] = (member for member in typing.get_args(hint) if member is not type(None))
    return kind, True


def _default(value: object) -> bytes:
    return bytes(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)


@functools.cache
def texts_of_attributes(module: types.ModuleType) -> Mapping[str, Mapping[str, str]]:
    """By class and attribute: the string that follows the attribute in the source."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except OSError:  # installed without sources: an engine serves its documents without these texts then
        return {}
    return {node.name: dict(_texts_of(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _texts_of(class_node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, following in zip(class_node.body, class_node.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
            case _:
                pass


def as_markdown(text: str) -> str:
    """Docstrings mark code with one or two backticks, Markdown with one. Lines are joined."""
    return re.sub(r"\s*\n\s*", " ", text.replace("``", "`"))
