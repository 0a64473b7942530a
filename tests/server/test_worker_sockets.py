"""The workers' WebSocket as a peer sees it, well behaved or not.

The peer is another implementation than the server's: `websockets`, or bytes.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.trio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from stellwerk.actors.node import NodeConfig
from stellwerk.app import MEMORY, AppConfig, ServedEngine, serve_engine
from stellwerk.limits import Limits
from stellwerk.system.logging import LogLevel

PROTOCOL = Subprotocol("stellwerk.v1")
HELLO = {"type": "hello", "worker_id": "w", "boot_id": "b", "session_no": 1, "client": "test"}
FRAME_BYTES_MAX = 100_000
MODEL = b"""<?xml version="1.0"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="order" isExecutable="true">
    <startEvent id="s"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="charge"/>
    <serviceTask id="charge" stellwerk:topic="charge"/>
    <sequenceFlow id="f2" sourceRef="charge" targetRef="e"/>
    <endEvent id="e"/>
  </process>
</definitions>
"""


@pytest.fixture
async def engine(capsys: pytest.CaptureFixture[str]) -> AsyncIterator[ServedEngine]:
    """Nothing that a peer does may leave a line in the log, beside what became of instances."""
    limits = Limits(frame_bytes_max=FRAME_BYTES_MAX, payload_bytes_max=10_000, session_write_ms_max=300)
    config = AppConfig(db=MEMORY, port=0, node=NodeConfig(limits=limits), log_level=LogLevel.WARNING)
    async with serve_engine(config) as running:
        await running.node.deploy([("order.bpmn", MODEL)])
        yield running
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if 'event="incident opened"' not in line] == []


def port_of(engine: ServedEngine) -> int:
    return int(engine.url.rpartition(":")[2])


def dial(engine: ServedEngine, **options: Any) -> Any:
    return connect(f"ws://127.0.0.1:{port_of(engine)}/workers", subprotocols=[PROTOCOL], **options)


async def receive(connection: ClientConnection) -> list[dict[str, Any]]:
    with trio.fail_after(10):
        frame = json.loads(await connection.recv())
    return frame if isinstance(frame, list) else [frame]


async def receive_type(connection: ClientConnection, name: str) -> dict[str, Any]:
    while True:
        for message in await receive(connection):
            if message["type"] == name:
                return message


async def refusal(connection: ClientConnection) -> str:
    """The code of the `error` that ends the connection."""
    error = await receive_type(connection, "error")
    with trio.fail_after(10), pytest.raises(ConnectionClosed):
        await connection.recv()
    return str(error["code"])


async def send_and_receive(connection: ClientConnection, frame: str) -> None:
    await connection.send(frame)
    await connection.recv()


async def send_for_ever(stream: trio.SocketStream, data: bytes) -> None:
    while True:
        await stream.send_all(data)


@pytest.mark.parametrize("binary", [True, False])
async def test_worker_gets_a_task_and_completes_it(engine: ServedEngine, binary: bool) -> None:
    async with dial(engine) as connection:
        assert connection.subprotocol == PROTOCOL

        async def say(*messages: dict[str, Any]) -> None:
            text = json.dumps(messages)
            await connection.send(text.encode() if binary else text)

        await say(HELLO, {"type": "subscribe", "topic": "charge", "max_tasks": 1})
        assert (await receive_type(connection, "welcome"))["limits"]["frame_bytes_max"] == FRAME_BYTES_MAX
        instance_id = await engine.node.start_instance("order", {"amount": 1})
        tasks = await receive_type(connection, "tasks")
        (task,) = tasks["tasks"]
        assert (task["process_instance_id"], task["variables"]) == (instance_id, {"amount": 1})
        await say(
            {"type": "received", "delivery": tasks["delivery"]},
            {
                "type": "complete",
                "ref": 7,
                "task_id": task["task_id"],
                "fence": task["fence"],
                "variables": {"paid": True},
            },
        )
        assert (await receive_type(connection, "ack"))["ref"] == 7
    assert (await engine.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    assert (await engine.node.view(instance_id)).variables == {"amount": 1, "paid": True}


async def test_completion_sent_right_before_the_close_counts(engine: ServedEngine) -> None:
    async with dial(engine) as connection:
        await connection.send(json.dumps([HELLO, {"type": "subscribe", "topic": "charge", "max_tasks": 1}]))
        instance_id = await engine.node.start_instance("order", {})
        (task,) = (await receive_type(connection, "tasks"))["tasks"]
        done = {"type": "complete", "ref": 1, "task_id": task["task_id"], "fence": task["fence"], "variables": {}}
        await connection.send(json.dumps(done))
    assert (await engine.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, status",
    [
        ({"subprotocols": None}, 400),
        ({"subprotocols": [Subprotocol("stellwerk.v0")]}, 400),
        ({"origin": "http://evil.example"}, 400),
        ({"origin": "http://["}, 400),
    ],
)
async def test_unfit_upgrade_gets_an_http_answer(engine: ServedEngine, options: Any, status: int) -> None:
    arguments = {"subprotocols": [PROTOCOL], **options}
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"ws://127.0.0.1:{port_of(engine)}/workers", **arguments):
            pass
    assert refused.value.response.status_code == status
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"ws://127.0.0.1:{port_of(engine)}/elsewhere", subprotocols=[PROTOCOL]):
            pass
    assert refused.value.response.status_code == 404


@pytest.mark.parametrize(
    "frame, code",
    [
        ("", "invalid"),
        ("[]", "invalid"),
        ("{", "invalid"),
        ("17", "invalid"),
        (b"\xff\x00", "invalid"),
        ('{"type": "holding", "leases": []}', "invalid"),
        ('{"type": "hello"}', "invalid"),
        (json.dumps(HELLO | {"session_no": "one"}), "invalid"),
        (json.dumps(HELLO | {"session_no": 0}), "invalid"),
        (json.dumps(HELLO | {"worker_id": ""}), "invalid"),
        ("[" * 50_000, "invalid"),
        ('"' + "x" * FRAME_BYTES_MAX + '"', "too_large"),
    ],
)
async def test_bad_first_frame_is_refused_in_words(engine: ServedEngine, frame: str | bytes, code: str) -> None:
    async with dial(engine) as connection:
        await connection.send(frame)
        assert await refusal(connection) == code


@pytest.mark.parametrize(
    "frame, code",
    [
        ("nonsense", "invalid"),
        (json.dumps(HELLO), "invalid"),
        ('{"type": "subscribe", "topic": ""}', "invalid"),
        ('{"type": "dance"}', "unknown_type"),
        (json.dumps({"type": "holding", "more": "x" * FRAME_BYTES_MAX, "leases": []}), "too_large"),
    ],
)
async def test_bad_later_frame_is_refused_in_words(engine: ServedEngine, frame: str, code: str) -> None:
    async with dial(engine) as connection:
        await connection.send(json.dumps(HELLO))
        await receive_type(connection, "welcome")
        await connection.send(frame)
        assert await refusal(connection) == code


async def test_a_hello_that_does_not_arrive_in_time_is_slow_and_not_invalid(
    engine: ServedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker ends by itself when it is refused for what it says, but not when the network holds it up."""
    monkeypatch.setattr("stellwerk.server.websocket._HELLO_SECONDS_MAX", 0.2)
    async with dial(engine) as connection:
        assert await refusal(connection) == "too_slow"


async def test_unknown_request_is_refused_and_the_session_goes_on(engine: ServedEngine) -> None:
    async with dial(engine) as connection:
        await connection.send(json.dumps([HELLO, {"type": "dance", "ref": 3}]))
        nack = await receive_type(connection, "nack")
        assert (nack["ref"], nack["code"]) == (3, "unknown_type")
        await connection.send(json.dumps({"type": "release", "ref": 4, "task_id": "t", "fence": 1, "started": False}))
        assert (await receive_type(connection, "nack"))["ref"] == 4


async def test_much_too_large_frame_closes_with_1009(engine: ServedEngine) -> None:
    async with dial(engine) as connection:
        with trio.fail_after(10), pytest.raises(ConnectionClosed) as closed:
            await send_and_receive(connection, "x" * 5 * FRAME_BYTES_MAX)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_fault_69_newer_session_of_the_same_process_supersedes_the_older(engine: ServedEngine) -> None:
    async with dial(engine) as older, dial(engine) as newer:
        await older.send(json.dumps(HELLO))
        await receive_type(older, "welcome")
        await newer.send(json.dumps(HELLO | {"session_no": 2}))
        await receive_type(newer, "welcome")
        assert await refusal(older) == "superseded"


def anything(choose: random.Random) -> object:
    return choose.choice(
        [None, True, 0, 1, -1, 2**63, 10**30, 1.5, "", "charge", "x" * 300, "\x00", "\ud800", [], {}, [{}], {"a": [1]}]
    )


FIELDS = {
    "hello": ["worker_id", "boot_id", "session_no", "client", "holding"],
    "subscribe": ["topic", "max_tasks", "lock_duration_ms", "filter", "variables"],
    "unsubscribe": ["topic"],
    "received": ["delivery"],
    "complete": ["ref", "task_id", "fence", "variables"],
    "fail": ["ref", "task_id", "fence", "message", "details", "retry_after_ms", "retries"],
    "bpmn_error": ["ref", "task_id", "fence", "code", "message", "details", "variables"],
    "extend": ["ref", "task_id", "fence", "lock_duration_ms"],
    "release": ["ref", "task_id", "fence", "started"],
    "holding": ["leases"],
    "authenticate": ["token"],
}
FITTING: dict[str, list[object]] = {
    "ref": [1, 2],
    "task_id": ["t", "", "TASK"],
    "fence": [1, "FENCE"],
    "topic": ["charge", "other"],
    "max_tasks": [0, 1, 5],
    "lock_duration_ms": [1000, 30000],
    "delivery": [0, 1],
    "message": ["m"],
    "code": ["C"],
    "started": [True, False],
    "leases": [[], [{"task_id": "t", "fence": 1}]],
    "token": ["t"],
}


def some_message(choose: random.Random, task: dict[str, Any]) -> dict[str, object]:
    """Mostly well formed, about the task that the session holds or about none."""
    name = choose.choice(list(FIELDS))
    message: dict[str, object] = {"type": name}
    for field in FIELDS[name]:
        if choose.random() < 0.05:
            message[field] = anything(choose)
        elif field in FITTING:
            value = choose.choice(FITTING[field])
            message[field] = {"TASK": task["task_id"], "FENCE": task["fence"]}.get(str(value), value)
    return message


@pytest.mark.parametrize("seed", range(40))
async def test_no_message_whatever_is_a_fault_of_ours(engine: ServedEngine, seed: int) -> None:
    choose = random.Random(seed)
    await engine.node.start_instance("order", {})
    async with dial(engine) as connection:
        await connection.send(json.dumps([HELLO, {"type": "subscribe", "topic": "charge", "max_tasks": 1}]))
        (task,) = (await receive_type(connection, "tasks"))["tasks"]
        with suppress(ConnectionClosed):
            for _ in range(8):
                await connection.send(json.dumps([some_message(choose, task) for _ in range(choose.randint(1, 3))]))
            await connection.send(json.dumps({"type": "goodbye"}))
            while True:
                for answer in await receive(connection):
                    assert answer.get("code") != "internal", answer


# --- peers that misbehave ------------------------------------------------------------------------------------------

UPGRADE = (
    b"GET /workers HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: stellwerk.v1\r\n\r\n"
)


@asynccontextmanager
async def open_raw(engine: ServedEngine, hello: bool = True) -> AsyncIterator[trio.SocketStream]:
    """A peer below WebSocket, after the upgrade."""
    async with await trio.open_tcp_stream("127.0.0.1", port_of(engine)) as stream:
        await stream.send_all(UPGRADE + (text_frame(json.dumps(HELLO).encode()) if hello else b""))
        with trio.fail_after(10):
            answer = b""
            while b"\r\n\r\n" not in answer or (hello and b"welcome" not in answer):
                answer += bytes(await stream.receive_some(1000))
        assert answer.startswith(b"HTTP/1.1 101")
        yield stream


def text_frame(content: bytes) -> bytes:
    """A masked text frame (RFC 6455, 5.2) with an all-zero mask."""
    assert len(content) < 65536
    head = bytes([0x81, 0x80 | len(content)]) if len(content) < 126 else struct.pack("!BBH", 0x81, 0xFE, len(content))
    return head + bytes(4) + content


async def closed_by_engine(stream: trio.SocketStream) -> None:
    with trio.fail_after(10):
        try:
            while await stream.receive_some(65536):
                pass
        except trio.BrokenResourceError:
            pass


async def no_session_left(engine: ServedEngine) -> None:
    with trio.fail_after(20):
        while engine.node.statistics()["sessions"]:
            await trio.sleep(0.01)


async def test_frame_that_comes_with_the_upgrade_is_heard(engine: ServedEngine) -> None:
    async with open_raw(engine):
        assert engine.node.statistics()["sessions"] == 1


async def test_bad_upgrade_is_closed(engine: ServedEngine) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port_of(engine)) as stream:
        await stream.send_all(UPGRADE.replace(b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", b""))
        await closed_by_engine(stream)


@pytest.mark.parametrize(
    "sent",
    [
        bytes([0x81, 0x05]) + b"plain",
        bytes([0xFF] * 100),
        bytes([0x81, 0xFF]) + b"\xff" * 8,
        b"GET / HTTP/1.1\r\n\r\n",
        text_frame(b"\xff\xfe"),
    ],
)
async def test_broken_frame_closes_the_connection(engine: ServedEngine, sent: bytes) -> None:
    async with open_raw(engine) as stream:
        await stream.send_all(sent)
        await closed_by_engine(stream)
    await no_session_left(engine)


@pytest.mark.parametrize("hello", [True, False])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_peer_that_vanishes_leaves_no_trace(engine: ServedEngine, hello: bool, how: str) -> None:
    async with open_raw(engine, hello) as stream:
        if how == "reset":
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half":
            await stream.send_eof()
            await closed_by_engine(stream)
    await no_session_left(engine)


async def test_worker_that_does_not_read_is_dropped(engine: ServedEngine) -> None:
    ping = bytes([0x89, 0x80 | 125]) + bytes(4) + b"p" * 125
    async with open_raw(engine) as stream:
        # Each ping is answered by a pong that nobody reads, until no more fits into the sockets' buffers.
        with trio.fail_after(20), pytest.raises(trio.BrokenResourceError):
            await send_for_ever(stream, ping * 1000)
        await no_session_left(engine)


async def test_engine_stops_although_a_worker_does_not_read(engine: ServedEngine) -> None:
    async with open_raw(engine):
        with trio.fail_after(5):
            await engine.drain(0.2)


async def test_worker_hears_that_the_engine_goes_away(engine: ServedEngine) -> None:
    async with dial(engine) as connection:
        await connection.send(json.dumps(HELLO))
        await receive_type(connection, "welcome")
        with trio.fail_after(5):
            await engine.drain(0.1)
        assert (await receive_type(connection, "goaway"))["within_ms"] == 100
        with pytest.raises(ConnectionClosed) as closed:
            await connection.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
