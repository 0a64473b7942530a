"""Sessions of notifications (``/socket.io``): whose they are, who may open one, and what all of them hold together."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import trio

from stellwerk.ports import ANYBODY
from stellwerk.server.processcube.engine_io import Queues, SocketClient
from stellwerk.server.processcube.notification_reading import Notification
from stellwerk.system.clock import SystemClock

OPEN = "//socket.io/?EIO=4&transport=polling"
TOO_SLOW = "its client fetched too slowly, or never"
PIECE = 100 * 1024


def session_in(reply: Any) -> str:
    assert reply.status == 200, reply
    text = reply.body if isinstance(reply.body, str) else reply.body.decode()
    return f"{OPEN}&sid={json.loads(text[1:])['sid']}"


# --- whose ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"stellwerk": {"processes": ["order"]}}, 403),
        ({"scope": "client operator"}, 403),
        ({"sub": "bob"}, 403),
        ({"iat": 1}, 200),
    ],
    ids=["fewer processes", "other scopes", "somebody else", "a token that replaced it"],
)
async def test_only_who_may_do_the_same_uses_a_session(serve: Any, make_issuer: Any, claims: Any, status: int) -> None:
    """Two tokens of one subject are not the same: what the session tells is for the wider one."""
    issuer = make_issuer(int(time.time()))
    async with serve(jwt=issuer.config()) as client:
        session = session_in(await client.ask("GET", OPEN, credential=issuer.token()))
        other = issuer.token(**claims, exp=issuer.now + 700)
        pong = 3
        assert (await client.ask("POST", session, pong, credential=other)).status == status
        assert (await client.ask("POST", session, pong, credential=issuer.token())).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_another_sites_page_opens_no_session(serve: Any, origin: str) -> None:
    async with serve(origins=("https://shop.example",)) as client:
        refused = await client.ask("GET", OPEN, headers=f"Origin: {origin}\r\n")
        assert refused.status == 403
        assert "another site's page" in str(refused.body)
        assert not client.engine.node.step_watchers
        for good in ("Origin: https://shop.example\r\n", "Origin: http://here\r\n", ""):
            session_in(await client.ask("GET", OPEN, headers=good))
        assert client.engine.node.step_watchers


# --- how much -------------------------------------------------------------------------------------------------------


def sessions(count: int, queues: Queues) -> tuple[list[SocketClient], list[SocketClient]]:
    """Some that listen, and those of them that were closed."""
    closed: list[SocketClient] = []
    opened = [SocketClient(f"s-{number}", ANYBODY, SystemClock(), closed.append, queues) for number in range(count)]
    for one in opened:
        one.receive("40/api,")
    return opened, closed


def piece(number: int) -> Notification:
    return Notification("OnProcessStarted", "order", {"number": number, "currentToken": "x" * PIECE})


async def test_what_all_sessions_hold_is_bounded_and_those_that_fetch_live() -> None:
    queues = Queues(3 * 1024 * 1024)
    opened, closed = sessions(10, queues)
    reader, *idle = opened
    with trio.fail_after(5):
        for number in range(20):
            for one in opened:
                one.notify(piece(number))
            while reader.bytes_queued:
                assert await reader.packets()
            assert queues.bytes <= 3 * 1024 * 1024
            assert queues.bytes == sum(one.bytes_queued for one in opened)
    assert reader not in closed
    assert not reader.closed
    assert {one.closed_for for one in closed} == {TOO_SLOW}
    assert 0 < len(closed) < len(idle), "no more than need be"


async def test_the_session_that_holds_most_is_closed_not_the_one_that_comes_last() -> None:
    queues = Queues(1024 * 1024)
    (greedy, modest), closed = sessions(2, queues)
    for number in range(9):
        greedy.notify(piece(number))
    modest.notify(piece(9))
    modest.notify(piece(10))
    assert closed == [greedy]
    assert queues.bytes == modest.bytes_queued


async def test_one_event_is_one_text_for_all() -> None:
    queues = Queues()
    event = piece(1)
    assert queues.event(event) is queues.event(event)
    assert queues.event(piece(1)) is not queues.event(event)


async def test_bytes_are_counted_as_they_are_sent_and_leave_with_the_session() -> None:
    queues = Queues()
    (one,), _ = sessions(1, queues)
    one.notify(Notification("OnProcessStarted", "order", {"text": "ü🚲" * 100}))
    assert one.bytes_queued > 600
    one.close()
    assert (one.bytes_queued, queues.bytes) == (0, 0)


async def test_a_client_whose_session_was_too_slow_is_told_why(serve: Any, log: Any) -> None:
    async with serve() as client:
        session = session_in(await client.ask("GET", OPEN))
        opened = client.engine.node.step_watchers
        assert len(opened) == 1
        path = "/process-instances"
        await _join(client, session)
        large = {"process_def_id": "order", "variables": {"text": "x" * 1_000_000}}
        with trio.fail_after(20):
            while client.engine.node.step_watchers:
                assert (await client.ask("POST", path, large)).status == 201
        gone = await client.ask("GET", session)
        assert gone.status == 400
        assert gone.body == {"code": 1, "message": f"Session ID unknown: it was closed, because {TOO_SLOW}"}
    assert "a client of notifications is disconnected" in log.read()


async def _join(client: Any, session: str) -> None:
    port = int(client.engine.url.rpartition(":")[2])
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        head = f"POST {session[1:]} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: 7\r\n\r\n40/api,"
        await stream.send_all(head.encode())
        answer = b""
        while more := await stream.receive_some(65536):
            answer += bytes(more)
    assert answer.startswith(b"HTTP/1.1 200")
