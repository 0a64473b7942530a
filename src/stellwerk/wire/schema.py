"""The push protocol for other languages, made from the message classes: JSON Schema, AsyncAPI, and a page for people.

``python -m stellwerk.wire.schema docs`` writes ``_static/worker-protocol.schema.json`` (JSON Schema 2020-12),
``_static/asyncapi.json`` (AsyncAPI 3.0) and ``protocol-reference.md`` into the folder ``docs``.

A schema says what `codec` checks: types, what may be left out, the range of integers. Limits that an engine sets
(lengths, durations) stand in the descriptions, for they can be configured. Unknown fields are allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.wire.described import (
    ENGINE_CLASSES,
    WORKER_CLASSES,
    FieldDescription,
    MessageDescription,
    class_text,
    codes,
    describe,
    described_fields,
    parts,
)
from stellwerk.wire.messages import SUBPROTOCOL, WORKERS_PATH
from stellwerk.wire.reference import reference_page

__all__ = ["asyncapi_document", "documents", "json_schema", "write_documents"]

_SCHEMA_ID = "https://stellwerk.dev/schema/1.0/worker-protocol"
_INTEGER_MAX = 2**63 - 1
_SIMPLE: Mapping[object, JsonObject] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer", "minimum": -_INTEGER_MAX, "maximum": _INTEGER_MAX},
    msgspec.Raw: {},
}
"""`msgspec.Raw` is any JSON."""
_BATCHES = (
    "A text frame is one message or a non-empty array of them, which are handled in order. "
    "Unknown fields are ignored; an unknown `type` is answered with `nack` (if it has a `ref`) or `error`."
)
_REQUESTS = "Answered one by one with `ack` or `nack`, which name the request by its `ref`."
_HELLO, *_OTHERS = (describe(message_class) for message_class in WORKER_CLASSES)


# --- JSON Schema ----------------------------------------------------------------------------------------------------


def json_schema() -> JsonObject:
    """JSON Schema 2020-12 of every frame.

    ``$defs`` has ``worker_frame`` and ``engine_frame`` (also as anchors ``#worker-frame``, ``#engine-frame``), each
    message and each part of one by the name of its class.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _SCHEMA_ID,
        "title": f"Frames of the stellwerk worker protocol, {SUBPROTOCOL}",
        "description": _BATCHES,
        "anyOf": [{"$ref": "#/$defs/worker_frame"}, {"$ref": "#/$defs/engine_frame"}],
        "$defs": {
            "worker_frame": _frame_schema("worker", "A frame that a worker sends."),
            "engine_frame": _frame_schema("engine", "A frame that an engine sends."),
            "worker_message": _union_schema(WORKER_CLASSES),
            "engine_message": _union_schema(ENGINE_CLASSES),
            **_class_schemas("#/$defs/"),
        },
    }


def _frame_schema(side: str, text: str) -> JsonObject:
    message: JsonObject = {"$ref": f"#/$defs/{side}_message"}
    return {
        "$anchor": f"{side}-frame",
        "description": text,
        "anyOf": [message, {"type": "array", "items": message, "minItems": 1}],
    }


def _union_schema(message_classes: Iterable[type]) -> JsonObject:
    return {"oneOf": [{"$ref": f"#/$defs/{message_class.__name__}"} for message_class in message_classes]}


def _class_schemas(prefix: str) -> JsonObject:
    """All messages and their parts. ``prefix``: of a reference to one of them."""
    schemas: JsonObject = {}
    for message_class in (*WORKER_CLASSES, *ENGINE_CLASSES):
        message = describe(message_class)
        discriminator: JsonObject = {"type": {"const": message.type_name}}
        schemas[message_class.__name__] = _object_schema(message_class, message.text, prefix, discriminator)
    for part in parts():
        schemas[part.__name__] = _object_schema(part, class_text(part), prefix, {})
    return schemas


def _object_schema(described_class: type, text: str, prefix: str, discriminator: JsonObject) -> JsonObject:
    fields = described_fields(described_class)
    required: list[JsonValue] = [*discriminator, *(field.name for field in fields if field.is_required)]
    return {
        "title": described_class.__name__,
        "description": text,
        "type": "object",
        "properties": {**discriminator, **{field.name: _field_schema(field, prefix) for field in fields}},
        "required": required,
    }


def _field_schema(field: FieldDescription, prefix: str) -> JsonObject:
    schema = _kind_schema(field, prefix)
    if field.is_nullable:
        schema = {**schema, "type": [str(schema["type"]), "null"]}
    if field.is_code:
        schema["enum"] = list(codes())
    if field.text:
        schema["description"] = field.text
    if field.default is not None:
        schema["default"] = msgspec.json.decode(field.default)
    return schema


def _kind_schema(field: FieldDescription, prefix: str) -> JsonObject:
    if field.item is not None:
        return {"type": "array", "items": _reference_to(field.item, prefix)}
    reference = _reference_to(field.kind, prefix)
    # Older drafts, which tools for AsyncAPI know, overlook what stands beside a `$ref`.
    return {"allOf": [reference]} if "$ref" in reference else reference


def _reference_to(kind: object, prefix: str) -> JsonObject:
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    assert isinstance(kind, type), kind
    return {"$ref": prefix + kind.__name__}


# --- AsyncAPI -------------------------------------------------------------------------------------------------------


def asyncapi_document() -> JsonObject:
    """AsyncAPI 3.0, from the engine's point of view: it receives what workers send."""
    messages = [describe(message_class) for message_class in (*WORKER_CLASSES, *ENGINE_CLASSES)]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "stellwerk worker protocol",
            "version": "1.0.0",
            "description": f"How workers get external tasks pushed and hand in results. {_BATCHES}",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {"engine": {"host": "127.0.0.1:10560", "protocol": "ws", "description": "An engine's default."}},
        "channels": {"workers": _channel(messages)},
        "operations": _operations(),
        "components": {
            "messages": {message.type_name: _message(message) for message in messages},
            "schemas": _class_schemas("#/components/schemas/"),
        },
    }


def _channel(messages: Iterable[MessageDescription]) -> JsonObject:
    return {
        "address": WORKERS_PATH,
        "title": "One session of one worker process",
        "description": f"A WebSocket with the subprotocol `{SUBPROTOCOL}`. {_BATCHES}",
        "messages": {message.type_name: {"$ref": f"#/components/messages/{message.type_name}"} for message in messages},
        "bindings": {
            "ws": {
                "method": "GET",
                "headers": {
                    "type": "object",
                    "properties": {"Sec-WebSocket-Protocol": {"type": "string", "const": SUBPROTOCOL}},
                    "required": ["Sec-WebSocket-Protocol"],
                },
                "bindingVersion": "0.1.0",
            }
        },
    }


def _operations() -> JsonObject:
    requests = [message for message in _OTHERS if message.has_ref]
    reports = [message for message in _OTHERS if not message.has_ref]
    answers = [message for message in map(describe, ENGINE_CLASSES) if message.has_ref]
    pushed = [message for message in map(describe, ENGINE_CLASSES) if not message.has_ref]
    [welcome] = (message for message in pushed if message.type_name == "welcome")
    pushed.remove(welcome)
    [error] = (message for message in pushed if message.type_name == "error")
    return {
        "greet": _operation("receive", "The first message of a session.", [_HELLO], [welcome, error]),
        "request": _operation("receive", _REQUESTS, requests, answers),
        "report": _operation("receive", "Not answered; a mistake ends the session.", reports),
        "push": _operation("send", "Whenever there is something to say.", pushed),
    }


def _operation(
    action: str, summary: str, messages: Iterable[MessageDescription], reply: Iterable[MessageDescription] = ()
) -> JsonObject:
    channel: JsonObject = {"$ref": "#/channels/workers"}
    operation: JsonObject = {"action": action, "channel": channel, "summary": summary, "messages": _listed(messages)}
    answers = _listed(reply)
    return {**operation, "reply": {"channel": channel, "messages": answers}} if answers else operation


def _listed(messages: Iterable[MessageDescription]) -> list[JsonValue]:
    return [{"$ref": f"#/channels/workers/messages/{message.type_name}"} for message in messages]


def _message(message: MessageDescription) -> JsonObject:
    schema: JsonObject = {
        "name": message.type_name,
        "title": message.message_class.__name__,
        "summary": message.text,
        "payload": {"$ref": f"#/components/schemas/{message.message_class.__name__}"},
    }
    if message.has_ref:
        schema["correlationId"] = {"location": "$message.payload#/ref", "description": "Pairs request and answer."}
    return schema


# --- files ----------------------------------------------------------------------------------------------------------


def documents() -> dict[str, str]:
    """What `write_documents` writes: text by path."""
    return {
        "_static/worker-protocol.schema.json": _json_text(json_schema()),
        "_static/asyncapi.json": _json_text(asyncapi_document()),
        "protocol-reference.md": reference_page(),
    }


def write_documents(folder: Path) -> list[Path]:
    """Write them into a folder of documentation. → the files"""
    written = []
    for name, text in documents().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _json_text(value: JsonObject) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m stellwerk.wire.schema FOLDER")
    for path in write_documents(Path(sys.argv[1])):
        print(path)
