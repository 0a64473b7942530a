"""Frames: JSON text for the messages of the push protocol, and back.

A frame is one JSON object or an array of them; the field ``type`` names the message (`Hello` is ``hello``, `Fail` is
``fail``, …). Unknown fields are ignored, an unknown type becomes an `UnknownMessage`, so that version 1 can grow.
What the caller's program put into ``variables``, ``details`` and ``headers`` passes through as raw JSON: nobody here
looks into it, and whoever does must make it canonical first.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from stellwerk.errors import InvalidInput, LimitExceeded
from stellwerk.values import frozen
from stellwerk.wire import messages as wire

__all__ = [
    "UnknownMessage",
    "class_type_name",
    "decode_engine_frame",
    "decode_worker_frame",
    "encode_frame",
    "encode_message",
    "pack_frames",
    "type_name",
]

_INTEGER_MAX = 2**63 - 1
_NUL = b"\\u0000"
_RAW = (msgspec.Raw,)

M = TypeVar("M")


@frozen
class UnknownMessage:
    """A message of a type that this version does not know. ``ref`` is set when the message had an integer there."""

    type: str
    ref: int | None = None


class _Head(msgspec.Struct):
    type: str
    ref: object = None


@frozen
class _Shape:
    """What is checked of one message class beyond the types that msgspec checks."""

    message_class: type
    decoder: msgspec.json.Decoder[object]
    integers: tuple[str, ...]
    fields: tuple[str, ...]


_NAMES: dict[type, str] = {
    wire.Hello: "hello",
    wire.Subscribe: "subscribe",
    wire.Unsubscribe: "unsubscribe",
    wire.Received: "received",
    wire.Complete: "complete",
    wire.Fail: "fail",
    wire.BpmnErrorReport: "bpmn_error",
    wire.Extend: "extend",
    wire.Release: "release",
    wire.Holding: "holding",
    wire.Authenticate: "authenticate",
    wire.Goodbye: "goodbye",
    wire.Welcome: "welcome",
    wire.Tasks: "tasks",
    wire.Renewed: "renewed",
    wire.Revoked: "revoked",
    wire.Ack: "ack",
    wire.Nack: "nack",
    wire.Reauthenticate: "reauthenticate",
    wire.Goaway: "goaway",
    wire.ProtocolErrorMessage: "error",
}
_PREFIXES: dict[type, bytes] = {
    message_class: b'{"type":"' + name.encode() + b'"' for message_class, name in _NAMES.items()
}

_Copier: TypeAlias = Callable[[object], object]

_encoder = msgspec.json.Encoder()
_batch_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_head_decoder = msgspec.json.Decoder(_Head)


def _plain_fields(message_class: type, wanted: type) -> tuple[str, ...]:
    hints = typing.get_type_hints(message_class)
    return tuple(name for name, hint in hints.items() if hint is wanted or wanted in _union_members(hint))


def _union_members(hint: object) -> tuple[object, ...]:
    if isinstance(hint, types.UnionType):
        return typing.get_args(hint)
    return ()


def _shapes(union: object) -> dict[str, _Shape]:
    return {
        _NAMES[message_class]: _Shape(
            message_class,
            msgspec.json.Decoder(message_class),
            _plain_fields(message_class, int),
            tuple(typing.get_type_hints(message_class)),
        )
        for message_class in _union_members(union)
        if isinstance(message_class, type)
    }


_WORKER_SHAPES = _shapes(wire.WorkerMessage)
_ENGINE_SHAPES = _shapes(wire.EngineMessage)


def type_name(message: object) -> str:
    """The name of a message on the wire, as ``bpmn_error`` for a `BpmnErrorReport`."""
    return class_type_name(type(message))


def class_type_name(message_class: type) -> str:
    """The same of a message's class."""
    return _NAMES[message_class]


# --- encoding ------------------------------------------------------------------------------------------------------


def encode_message(message: wire.WorkerMessage | wire.EngineMessage) -> bytes:
    """One JSON object.

    :raises InvalidInput: when a text in it has a lone surrogate, which no UTF-8 can carry.
    """
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:
        raise InvalidInput(f"lone surrogate @ {type_name(message)}") from None
    prefix = _PREFIXES[type(message)]
    return prefix + b"}" if body == b"{}" else prefix + b"," + body[1:]


def encode_frame(messages: Sequence[wire.WorkerMessage | wire.EngineMessage]) -> bytes:
    """One frame with all of them: an object for a single message, else an array. The size is not checked."""
    return _join([encode_message(message) for message in messages])


def pack_frames(messages: Iterable[wire.WorkerMessage | wire.EngineMessage], frame_bytes_max: int) -> list[bytes]:
    """As few frames as keep the order and stay within the limit.

    :raises LimitExceeded: when one message alone is larger than the limit. Nothing was packed then.
    """
    frames: list[bytes] = []
    batch: list[bytes] = []
    size = 1
    for message in messages:
        text = encode_message(message)
        if len(text) > frame_bytes_max:
            raise LimitExceeded(
                f"a message {type_name(message)!r} of {len(text)} bytes, at most {frame_bytes_max} fit a frame"
            )
        if batch and size + len(text) + 1 > frame_bytes_max:
            frames.append(_join(batch))
            batch, size = [], 1
        batch.append(text)
        size += len(text) + 1
    if batch:
        frames.append(_join(batch))
    return frames


def _join(texts: list[bytes]) -> bytes:
    return texts[0] if len(texts) == 1 else b"[" + b",".join(texts) + b"]"


# --- decoding ------------------------------------------------------------------------------------------------------


def decode_worker_frame(frame: bytes | str, bytes_max: int) -> list[wire.WorkerMessage | UnknownMessage]:
    """What a worker sent, in order.

    :raises InvalidInput: naming what and where, as ``hello: Expected `int`, got `str` @ $.session_no``.
    :raises LimitExceeded: when the frame is longer than ``bytes_max``.
    """
    return typing.cast("list[wire.WorkerMessage | UnknownMessage]", _decode_frame(frame, bytes_max, _WORKER_SHAPES))


def decode_engine_frame(frame: bytes | str, bytes_max: int) -> list[wire.EngineMessage | UnknownMessage]:
    """What an engine sent, in order. Raises as `decode_worker_frame` does."""
    return typing.cast("list[wire.EngineMessage | UnknownMessage]", _decode_frame(frame, bytes_max, _ENGINE_SHAPES))


def _decode_frame(frame: bytes | str, bytes_max: int, shapes: Mapping[str, _Shape]) -> list[object]:
    content = _as_bytes(frame)
    if len(content) > bytes_max:
        raise LimitExceeded(f"a frame of {len(content)} bytes, at most {bytes_max} are allowed")
    if content.lstrip(b" \t\r\n")[:1] != b"[":
        return [_decode_message(content, shapes, "$")]
    try:
        batch = _batch_decoder.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid("frame", error, "$") from None
    return [_decode_message(item, shapes, f"$[{index}]") for index, item in enumerate(batch)]


def _as_bytes(frame: bytes | str) -> bytes:
    if isinstance(frame, bytes):
        return frame
    try:
        return frame.encode()
    except UnicodeEncodeError:
        raise InvalidInput("frame: lone surrogate @ $") from None


def _decode_message(content: bytes | msgspec.Raw, shapes: Mapping[str, _Shape], where: str) -> object:
    try:
        head = _head_decoder.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid("message", error, where) from None
    shape = shapes.get(head.type)
    if shape is None:
        is_integer = isinstance(head.ref, int) and not isinstance(head.ref, bool)
        return UnknownMessage(head.type, typing.cast("int", head.ref) if is_integer else None)
    try:
        message = shape.decoder.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(head.type, error, where) from None
    _check(message, head.type, shape, where, may_hold_nul=_NUL in bytes(content))
    return _own_raws(message)


def _check(message: object, name: str, shape: _Shape, where: str, *, may_hold_nul: bool) -> None:
    for field in shape.integers:
        value = getattr(message, field)
        if value is not None and not -_INTEGER_MAX <= value <= _INTEGER_MAX:
            raise InvalidInput(f"{name}: integer out of range @ {where}.{field}")
    if may_hold_nul:
        for field in shape.fields:
            place = _place_of_nul(getattr(message, field), f"{where}.{field}")
            if place is not None:
                raise InvalidInput(f"{name}: NUL character @ {place}")


def _place_of_nul(value: object, where: str) -> str | None:
    """None: there is no NUL character. Raw JSON is not looked into."""
    match value:
        case str():
            return where if "\x00" in value else None
        case wire.LeaseRef():
            return _place_of_nul(value.task_id, f"{where}.task_id")
        case tuple():
            places = (_place_of_nul(item, f"{where}[{index}]") for index, item in enumerate(value))
            return next((place for place in places if place is not None), None)
        case _:
            return None


def _invalid(name: str, error: Exception, where: str) -> InvalidInput:
    """msgspec says ``Expected `int`, got `str` - at `$.a[0]` ``; here that is ``… @ $.a[0]``."""
    if isinstance(error, RecursionError):
        return InvalidInput(f"{name}: nested too deeply @ {where}")
    what, _, path = str(error).partition(" - at `")
    return InvalidInput(f"{name}: {what} @ {where}{path.rstrip('`').removeprefix('$')}")


def _own_raws(message: object) -> object:
    """Raw JSON is a view of the whole frame until it is copied: a kept task would keep the frame."""
    match message:
        case wire.Complete() | wire.Fail() | wire.BpmnErrorReport():
            _copy_raws(message, _RAW_FIELDS[type(message)])
        case wire.Tasks():
            for task in message.tasks:
                _copy_raws(task, _RAW_FIELDS[wire.TaskOffer])
        case _:
            pass
    return message


def _copy_raws(owner: object, fields: tuple[str, ...]) -> None:
    for field in fields:
        # The message is frozen for its readers; it is not in their hands yet.
        object.__setattr__(owner, field, getattr(owner, field).copy())


_RAW_FIELDS: dict[type, tuple[str, ...]] = {
    message_class: _plain_fields(message_class, msgspec.Raw)
    for message_class in (wire.Complete, wire.Fail, wire.BpmnErrorReport, wire.TaskOffer)
}
