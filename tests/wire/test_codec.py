"""Frames of the push protocol: JSON text and back."""

from __future__ import annotations

import json
from typing import Any, cast

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stellwerk.errors import InvalidInput, LimitExceeded
from stellwerk.wire import messages as wire
from stellwerk.wire.codec import (
    UnknownMessage,
    decode_engine_frame,
    decode_worker_frame,
    encode_frame,
    encode_message,
    pack_frames,
    type_name,
)

MAX = 1_000_000
RAW = msgspec.Raw(b'{"a":[1,2,{"b":null}]}')
LEASE = wire.LeaseRef("t1", 7)
OFFER = wire.TaskOffer(
    "t1", 7, "payment", "k", "i", "d:1", None, "e", 1, 3, 0, "2026-01-01T00:00:00Z", 30_000, "x", RAW, RAW
)
FROM_WORKER: list[wire.WorkerMessage] = [
    wire.Hello("w", "b", 1, "c/1", (LEASE,), "secret", (LEASE, LEASE)),
    wire.Subscribe("payment", 3, 1000, "x+", ("a", "b")),
    wire.Unsubscribe("payment"),
    wire.Received(3),
    wire.Complete(1, "t1", 7, RAW),
    wire.Fail(2, "t1", 7, "broken", RAW, 100, 2),
    wire.BpmnErrorReport(3, "t1", 7, "CODE", "text", RAW, RAW),
    wire.Extend(4, "t1", 7, 60_000),
    wire.Release(5, "t1", 7, started=False),
    wire.Holding((LEASE, LEASE)),
    wire.Authenticate("secret"),
    wire.Goodbye(),
]
FROM_ENGINE: list[wire.EngineMessage] = [
    wire.Welcome(
        "s",
        12.5,
        5000,
        wire.SessionLimits(1, 2, 3, 4, 5),
        (wire.RenewedLease("t1", 7, 1, "x"),),
        (wire.LostLeaseNotice("t2", 8, "lost"),),
    ),
    wire.Tasks(1, (OFFER, OFFER), 12.5),
    wire.Renewed((wire.RenewedLease("t1", 7, 1, "x"),), 12.5),
    wire.Revoked((wire.RevokedLeaseNotice("t1", 7, "cancelled"),)),
    wire.Ack(1),
    wire.Nack(2, "lease_lost", "text", retryable=True),
    wire.Reauthenticate(1000),
    wire.Goaway("restart", 1000),
    wire.ProtocolErrorMessage("invalid", "text"),
]


def plain(message: object) -> object:
    """Raw JSON compares by identity; here by its text."""

    def text(_owner: object, _field: object, value: object) -> object:
        return bytes(value) if isinstance(value, msgspec.Raw) else value

    return attrs.asdict(cast("attrs.AttrsInstance", message), value_serializer=text)


@pytest.mark.parametrize("message", FROM_WORKER, ids=type_name)
def test_every_message_of_the_worker_survives(message: wire.WorkerMessage) -> None:
    for frame in (encode_frame([message]), encode_frame([message]).decode()):
        [back] = decode_worker_frame(frame, MAX)
        assert type(back) is type(message)
        assert plain(back) == plain(message)


@pytest.mark.parametrize("message", FROM_ENGINE, ids=type_name)
def test_every_message_of_the_engine_survives(message: wire.EngineMessage) -> None:
    [back] = decode_engine_frame(encode_frame([message]), MAX)
    assert type(back) is type(message)
    assert plain(back) == plain(message)


def test_the_type_names_are_those_of_the_protocol() -> None:
    assert " ".join(type_name(message) for message in [*FROM_WORKER, *FROM_ENGINE]) == (
        "hello subscribe unsubscribe received complete fail bpmn_error extend release holding authenticate goodbye "
        "welcome tasks renewed revoked ack nack reauthenticate goaway error"
    )


def test_a_batch_is_an_array_and_a_single_message_an_object() -> None:
    assert encode_frame([wire.Goodbye()]) == b'{"type":"goodbye"}'
    assert json.loads(encode_frame([wire.Goodbye(), wire.Received(3)])) == [
        {"type": "goodbye"},
        {"type": "received", "delivery": 3},
    ]
    assert decode_worker_frame(b' [ {"type":"goodbye"} , {"delivery":3,"type":"received"}]', MAX) == [
        wire.Goodbye(),
        wire.Received(3),
    ]
    assert decode_worker_frame(b"[]", MAX) == []


def test_unknown_fields_are_ignored_and_unknown_types_handed_on() -> None:
    frame = (
        b'[{"type":"goodbye","reason":{"x":[]}},{"type":"new","ref":4},'
        b'{"type":"newer","ref":"x"},{"type":"ack","ref":1}]'
    )
    assert decode_worker_frame(frame, MAX) == [
        wire.Goodbye(),
        UnknownMessage("new", 4),
        UnknownMessage("newer"),
        UnknownMessage("ack", 1),  # only an engine says that
    ]


def test_fields_that_may_be_left_out_get_their_defaults() -> None:
    [fail] = decode_worker_frame(b'{"type":"fail","ref":1,"task_id":"t","fence":2,"message":"m"}', MAX)
    assert isinstance(fail, wire.Fail)
    assert (bytes(fail.details), fail.retry_after_ms, fail.retries) == (b"null", None, None)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"", "message: Input data was truncated @ $"),
        (b"nonsense", "message: JSON is malformed: invalid character (byte 4) @ $"),
        (b"[1]", "message: Expected `object`, got `int` @ $[0]"),
        (b"{}", "message: Object missing required field `type` @ $"),
        (b'{"type":3}', "message: Expected `str`, got `int` @ $.type"),
        (b'[{"type":"goodbye"},{"type":"received"}]', "received: Object missing required field `delivery` @ $[1]"),
        (
            b'[{"type":"holding","leases":[{"task_id":"a","fence":"x"}]}]',
            "holding: Expected `int`, got `str` @ $[0].leases[0].fence",
        ),
        (b'{"type":"received","delivery":9223372036854775808}', "received: integer out of range @ $.delivery"),
        (b'{"type":"unsubscribe","topic":"a\\u0000"}', "unsubscribe: NUL character @ $.topic"),
        ('{"type":"unsubscribe","topic":"\ud800"}', "frame: lone surrogate @ $"),
        (b'{"type":"goodbye","x":' + b"[" * 50_000, "message: nested too deeply @ $"),
    ],
)
def test_bad_frames_say_what_and_where(frame: bytes | str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode_worker_frame(frame, MAX)
    assert caught.value.message == text


def test_a_frame_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(LimitExceeded, match="11 bytes, at most 10"):
        decode_worker_frame(b"x" * 11, 10)
    with pytest.raises(LimitExceeded, match="12 bytes, at most 10"):
        decode_worker_frame("é" * 6, 10)


def test_a_text_that_utf_8_cannot_carry_is_refused() -> None:
    with pytest.raises(InvalidInput, match="lone surrogate @ nack"):
        encode_frame([wire.Nack(1, "invalid", "\ud800")])


def test_raw_json_does_not_keep_its_frame_alive() -> None:
    padding = b" " * 100_000
    frame = b'{"type":"complete","ref":1,"task_id":"t","fence":2,' + padding + b'"variables":{"a":1}}'
    [complete] = decode_worker_frame(frame, MAX)
    assert isinstance(complete, wire.Complete)
    assert complete.variables is not None
    assert msgspec.Raw(complete.variables).copy() is not None
    assert bytes(complete.variables) == b'{"a":1}'
    assert memoryview(complete.variables).nbytes == 7


@given(st.lists(st.integers(0, 400), max_size=30), st.integers(460, 1000))
def test_packed_frames_keep_the_order_and_the_limit(sizes: list[int], limit: int) -> None:
    sent = [wire.ProtocolErrorMessage(str(number), "x" * size) for number, size in enumerate(sizes)]
    frames = pack_frames(sent, limit)
    assert all(len(frame) <= limit for frame in frames)
    assert [message for frame in frames for message in decode_engine_frame(frame, limit)] == sent
    total = sum(len(encode_message(message)) for message in sent)
    assert len(frames) <= 2 * total // limit + 1, "no frame is left half empty for nothing"


def test_a_message_that_fits_no_frame_is_named() -> None:
    with pytest.raises(LimitExceeded, match="a message 'error' of 141 bytes, at most 100 fit a frame"):
        pack_frames([wire.Ack(1), wire.ProtocolErrorMessage("invalid", "x" * 95)], 100)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=5
)


@given(st.binary() | st.dictionaries(st.sampled_from(["type", "ref", "task_id", "fence", "leases"]), json_values))
def test_no_frame_whatever_leads_to_an_error_of_ours(content: Any) -> None:
    frame = content if isinstance(content, bytes) else json.dumps(content).encode()
    for decode in (decode_worker_frame, decode_engine_frame):
        try:
            decode(frame, MAX)
        except (InvalidInput, LimitExceeded):
            continue
