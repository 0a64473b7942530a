"""The reference page of the push protocol: every message with its fields, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import msgspec

from stellwerk.wire.described import (
    ENGINE_CLASSES,
    WORKER_CLASSES,
    FieldDescription,
    class_text,
    codes,
    describe,
    described_fields,
    parts,
)
from stellwerk.wire.messages import SUBPROTOCOL, WORKERS_PATH

__all__ = ["reference_page"]

_INTRODUCTION = f"""\
<!-- made by `python -m stellwerk.wire.schema docs`: change the message classes instead -->

# Protocol reference

Every message of the push protocol with its fields, made from the classes of `stellwerk.wire.messages`. How they play
together is said in [the worker protocol](worker-protocol.md).

A WebSocket to path `{WORKERS_PATH}`, subprotocol `{SUBPROTOCOL}`. Each text frame is one JSON object or a non-empty
array of them. The field `type` names the message. Durations (`…_ms`) are milliseconds, instants RFC 3339 text in UTC.
Integers lie between -(2⁶³-1) and 2⁶³-1 and have no decimal point; texts have no NUL character and no lone surrogate.
Fields that are not listed are ignored. Fields with a default may be left out.

For programs, the same as [JSON Schema 2020-12](_static/worker-protocol.schema.json) (`$defs/worker_frame`,
`$defs/engine_frame`, and each message by itself) and as [AsyncAPI 3.0](_static/asyncapi.json).
"""
_KINDS: dict[object, str] = {str: "text", bool: "boolean", float: "number", int: "integer", msgspec.Raw: "any JSON"}


def reference_page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield "## From the worker\n"
    for message_class in WORKER_CLASSES:
        yield from _message_lines(message_class, "worker → engine")
    yield "## From the engine\n"
    for message_class in ENGINE_CLASSES:
        yield from _message_lines(message_class, "engine → worker")
    yield "## Parts\n"
    for part in parts():
        yield f"### {part.__name__}\n"
        yield class_text(part) + "\n"
        yield from _field_lines(part)
    yield "## Codes\n"
    yield "In `nack` and `error`: " + ", ".join(f"`{code}`" for code in codes()) + "."
    yield "[What they mean](worker-protocol.md#codes)."


def _message_lines(message_class: type, direction: str) -> Iterator[str]:
    message = describe(message_class)
    yield f"### {message.type_name}\n"
    yield f"*{direction}.* {message.text}\n"
    yield from _field_lines(message_class)


def _field_lines(described_class: type) -> Iterator[str]:
    fields = described_fields(described_class)
    if not fields:
        yield "No fields.\n"
        return
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for field in fields:
        default = "*required*" if field.default is None else f"`{field.default.decode()}`"
        yield f"| `{field.name}` | {_kind(field)} | {default} | {field.text} |"
    yield ""


def _kind(field: FieldDescription) -> str:
    kind = f"list of {_named(field.item)}" if field.item is not None else _named(field.kind)
    return f"{kind} or null" if field.is_nullable else kind


def _named(kind: object) -> str:
    if isinstance(kind, type) and attrs.has(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return _KINDS[kind]
