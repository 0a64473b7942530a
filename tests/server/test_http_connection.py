"""HTTP/1.1 as a peer sees it, well behaved or not, over real sockets."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import pytest
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from stellwerk.server.http.limits import HttpLimits
from stellwerk.server.streams import ReplayStream

StartServer = Callable[..., Awaitable[Any]]

HELLO = b"GET /hello HTTP/1.1\r\nHost: here\r\n\r\n"


async def hello(_request: Request) -> Response:
    return PlainTextResponse("hello")


async def echo(request: Request) -> Response:
    return Response(await request.body())


async def early(_request: Request) -> Response:
    return PlainTextResponse("not read", 413)


async def broken(_request: Request) -> Response:
    raise ZeroDivisionError("the secret of the house")


async def pieces(_request: Request) -> Response:
    async def body() -> Any:
        for number in range(3):
            yield f"{number}\n"

    return StreamingResponse(body())


class Endless:
    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})


async def where(request: Request) -> Response:
    return PlainTextResponse(f"{request.method} {request.url.path} {request.url.query}")


APPLICATION = Starlette(
    routes=[
        Route("/hello", hello),
        Route("/echo", echo, methods=["POST"]),
        Route("/early", early, methods=["POST"]),
        Route("/broken", broken),
        Route("/pieces", pieces),
        Route("/endless", Endless()),
        Route("/where/{rest:path}", where),
    ]
)


# --- well-behaved peers --------------------------------------------------------------------------------------------


async def test_connection_is_kept_for_further_requests(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    for _ in range(3):
        answer = await peer.ask(HELLO)
        assert (answer.status, answer.body, answer.keeps_alive) == (200, b"hello", True)
        assert answer.headers["date"].endswith("GMT")


async def test_pipelined_requests_are_answered_in_order(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    requests = [b"GET /where/%d HTTP/1.1\r\nHost: here\r\n\r\n" % number for number in range(20)]
    await peer.send(b"".join(requests))
    answers = [await peer.answer() for _ in requests]
    assert [answer.body for answer in answers] == [b"GET /where/%d " % number for number in range(20)]


async def test_chunked_body_is_put_together(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    await peer.send(b"POST /echo HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    answer = await peer.ask(b"4\r\ndefg\r\n0\r\n\r\n")
    assert answer.body == b"abcdefg"
    assert (await peer.ask(HELLO)).body == b"hello"


async def test_answer_without_length_is_chunked(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    answer = await peer.ask(b"GET /pieces HTTP/1.1\r\nHost: here\r\n\r\n")
    assert (answer.headers["transfer-encoding"], answer.body) == ("chunked", b"0\n1\n2\n")


async def test_expect_continue_is_answered_when_the_body_is_wanted(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    head = b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    assert (await peer.ask(head, body_follows=False)).status == 100
    assert (await peer.ask(b"body")).body == b"body"


async def test_expect_continue_is_not_answered_when_the_body_is_unwanted(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    head = b"POST /early HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    answer = await peer.ask(head)
    assert (answer.status, answer.keeps_alive) == (413, False)


async def test_head_has_the_headers_of_get_and_no_body(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    answer = await peer.ask(b"HEAD /hello HTTP/1.1\r\nHost: here\r\n\r\n", body_follows=False)
    assert (answer.status, answer.headers["content-length"]) == (200, "5")
    assert (await peer.ask(HELLO)).body == b"hello"


async def test_http_1_0_is_answered_and_closed(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    await peer.send(b"GET /hello HTTP/1.0\r\n\r\n")
    assert (await peer.rest()).endswith(b"\r\n\r\nhello")


async def test_connection_close_is_obeyed(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    await peer.send(b"GET /hello HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    assert (await peer.rest()).endswith(b"hello")


async def test_peer_that_closed_its_sending_side_is_still_answered(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    await peer.send(b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\n\r\nbody")
    await peer.stream.send_eof()
    assert (await peer.rest()).endswith(b"body")


@pytest.mark.parametrize(
    "target, answer",
    [
        (b"/where/a%20b?c=d", b"GET /where/a b c=d"),
        (b"http://elsewhere/where/a?c", b"GET /where/a c"),
        (b"/where/%C3%A4", "GET /where/ä ".encode()),
    ],
)
async def test_target_is_understood(start_server: StartServer, target: bytes, answer: bytes) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    assert (await peer.ask(b"GET " + target + b" HTTP/1.1\r\nHost: here\r\n\r\n")).body == answer


# --- peers that do wrong -------------------------------------------------------------------------------------------

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(64))


@pytest.mark.parametrize(
    "sent, status",
    [
        (b"complete nonsense\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: here\r\nbad header\r\n\r\n", 400),
        (b"GET /hello HTTP/3.7\r\nHost: here\r\n\r\n", 505),
        (b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: much\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /echo HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"GET /%FF HTTP/1.1\r\nHost: here\r\n\r\n", 400),
        (b"CONNECT here:80 HTTP/1.1\r\nHost: here\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: here\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 40_000, 431),
        (b"GET /" + b"x" * 40_000, 431),
        (TLS_HELLO, 400),
        (bytes(1000), 400),
    ],
)
async def test_malformed_request_is_refused_in_words(start_server: StartServer, sent: bytes, status: int) -> None:
    server = await start_server(APPLICATION)
    peer = await server.connect()
    answer = await peer.ask(sent)
    assert (answer.status, answer.keeps_alive) == (status, False)
    assert set(json.loads(answer.body)) == {"type", "title", "status", "detail", "code", "error"}
    assert await peer.rest() == b""
    assert server.log_lines == []
    assert (await (await server.connect()).ask(HELLO)).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /hello HTTP/1.1\r\nHost: he",
        b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nonly this",
        HELLO + b"GET /hel",
    ],
)
async def test_too_slow_request_is_ended(start_server: StartServer, sent: bytes) -> None:
    limits = HttpLimits(head_seconds_max=0.1, body_seconds_max=0.1, linger_seconds_max=0.1)
    peer = await (await start_server(APPLICATION, limits=limits)).connect()
    await peer.send(sent)
    assert b"HTTP/1.1 408 " in await peer.rest()


@pytest.mark.parametrize("sent", [b"", HELLO])
async def test_silent_connection_is_closed(start_server: StartServer, sent: bytes) -> None:
    limits = HttpLimits(head_seconds_max=0.1, idle_seconds_max=0.1)
    server = await start_server(APPLICATION, limits=limits)
    peer = await server.connect()
    await peer.send(sent)
    assert b"408" not in await peer.rest()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /hel",
        b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nonly this",
        b"POST /echo HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
)
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_peer_that_leaves_in_the_middle_is_no_error_of_ours(
    start_server: StartServer, sent: bytes, how: str
) -> None:
    server = await start_server(APPLICATION)
    peer = await server.connect()
    await peer.send(sent)
    if how == "reset":
        peer.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await peer.stream.aclose()
    assert (await (await server.connect()).ask(HELLO)).status == 200
    assert server.log_lines == []


async def test_connection_that_breaks_in_the_body_is_told_as_a_disconnect(start_server: StartServer) -> None:
    heard: list[object] = []
    ended = trio.Event()

    async def application(_scope: Any, receive: Any, _send: Any) -> None:
        try:
            while heard[-1:] != ["http.disconnect"]:
                heard.append((await receive())["type"])
        finally:
            ended.set()

    peer = await (server := await start_server(application)).connect()
    await peer.send(b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nonly this")
    with trio.fail_after(5):
        while not heard:
            await trio.sleep(0.01)
        peer.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await peer.stream.aclose()
        await ended.wait()
    assert heard == ["http.request", "http.disconnect"]
    assert server.log_lines == []


async def test_body_that_was_not_wanted_does_not_destroy_the_answer(start_server: StartServer) -> None:
    peer = await (await start_server(APPLICATION)).connect()
    await peer.send(b"POST /early HTTP/1.1\r\nHost: here\r\nContent-Length: 500000\r\n\r\n" + b"x" * 500_000)
    answer = await peer.answer()
    assert (answer.status, answer.body, answer.keeps_alive) == (413, b"not read", False)
    await peer.stream.send_eof()
    assert await peer.rest() == b""


async def test_peer_that_does_not_read_is_dropped(start_server: StartServer) -> None:
    server = await start_server(APPLICATION, limits=HttpLimits(write_seconds_max=0.2))
    peer = await server.connect()
    await peer.send(b"GET /endless HTTP/1.1\r\nHost: here\r\n\r\n")
    with trio.fail_after(5):
        while server.server.connections == 0:
            await trio.lowlevel.checkpoint()
        while server.server.connections > 0:
            await trio.sleep(0.01)
    assert server.log_lines == []


async def test_more_connections_than_allowed_are_closed(start_server: StartServer) -> None:
    server = await start_server(APPLICATION, limits=HttpLimits(connections_max=2))
    kept = [await server.connect(), await server.connect()]
    for peer in kept:
        assert (await peer.ask(HELLO)).status == 200
    assert await (await server.connect()).rest() == b""
    assert (await kept[0].ask(HELLO)).status == 200


# --- faults of ours ------------------------------------------------------------------------------------------------


async def test_our_fault_is_logged_and_not_told(start_server: StartServer) -> None:
    async def application(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ZeroDivisionError("the secret of the house")

    server = await start_server(application)
    peer = await server.connect()
    answer = await peer.ask(HELLO)
    assert (answer.status, json.loads(answer.body)["code"]) == (500, "internal")
    assert b"secret" not in answer.body
    reference = json.loads(answer.body)["detail"].split()[-1]
    assert any(reference in line and "secret" in line for line in server.log_lines)
    assert (await (await server.connect()).ask(HELLO)).status == 500


async def test_fault_within_starlette_is_logged(start_server: StartServer) -> None:
    server = await start_server(APPLICATION)
    peer = await server.connect()
    answer = await peer.ask(b"GET /broken HTTP/1.1\r\nHost: here\r\n\r\n")
    assert (answer.status, answer.body) == (500, b"Internal Server Error")
    assert (await peer.ask(HELLO)).body == b"hello"
    assert "secret" in "".join(server.log_lines)


# --- waiting and stopping ------------------------------------------------------------------------------------------


class Waiting:
    """An endpoint that waits until the peer is gone."""

    def __init__(self) -> None:
        self.begun = trio.Event()
        self.ended = trio.Event()
        self.go_on = trio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        self.begun.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_gone, receive, nursery.cancel_scope)
            await self.go_on.wait()
            nursery.cancel_scope.cancel()
        if not self.ended.is_set():
            await PlainTextResponse("done")(scope, receive, send)

    async def _until_gone(self, receive: Any, scope: trio.CancelScope) -> None:
        assert (await receive())["type"] == "http.disconnect"
        self.ended.set()
        scope.cancel()


async def test_application_hears_that_the_peer_left(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting)
    peer = await server.connect()
    await peer.send(HELLO)
    with trio.fail_after(5):
        await waiting.begun.wait()
        await peer.stream.aclose()
        await waiting.ended.wait()


async def test_request_sent_while_another_is_answered_is_not_lost(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting)
    peer = await server.connect()
    await peer.send(HELLO)
    with trio.fail_after(5):
        await waiting.begun.wait()
    await peer.send(HELLO)
    waiting.go_on.set()
    assert (await peer.answer()).body == b"done"
    assert (await peer.answer()).body == b"done"


async def test_idle_connection_gets_one_more_answer_while_the_server_drains(start_server: StartServer) -> None:
    """Its peer does not know yet, and the request may be on the way: to close it now would fail that request."""
    server = await start_server(APPLICATION)
    idle, gone = await server.connect(), await server.connect()
    assert (await idle.ask(HELLO)).keeps_alive
    assert (await gone.ask(HELLO)).keeps_alive
    server.server.drain()
    await trio.testing.wait_all_tasks_blocked()
    await gone.stream.aclose()
    answer = await idle.ask(HELLO)
    assert (answer.status, answer.keeps_alive) == (200, False)
    assert await idle.rest() == b""
    with trio.fail_after(5):
        await server.server.wait_quiet()


async def test_drain_lets_the_answer_under_way_end(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting)
    busy = await server.connect()
    await busy.send(HELLO)
    with trio.fail_after(5):
        await waiting.begun.wait()
    server.server.drain()
    with trio.move_on_after(0.01) as scope:
        await server.server.wait_quiet()
    assert scope.cancelled_caught
    waiting.go_on.set()
    answer = await busy.answer()
    assert (answer.body, answer.keeps_alive) == (b"done", False)


async def test_hanging_up_closes_idle_and_new_connections(start_server: StartServer) -> None:
    server = await start_server(APPLICATION)
    idle, new = await server.connect(), await server.connect()
    assert (await idle.ask(HELLO)).keeps_alive
    server.server.drain()
    server.server.hang_up()
    assert (await idle.rest(), await new.rest()) == (b"", b"")
    with trio.fail_after(5):
        await server.ended.wait()


async def test_new_connection_gets_one_answer_while_the_server_drains(start_server: StartServer) -> None:
    server = await start_server(APPLICATION)
    server.server.drain()
    answer = await (await server.connect()).ask(HELLO)
    assert (answer.status, answer.keeps_alive) == (200, False)


async def test_port_is_free_once_the_server_accepts_no_more(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting)
    peer = await server.connect()
    await peer.send(HELLO)
    with trio.fail_after(5):
        await waiting.begun.wait()
    server.server.drain()
    server.server.stop_accepting()
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(OSError):
        await server.connect()
    waiting.go_on.set()
    assert (await peer.answer()).body == b"done"
    with trio.fail_after(5):
        await server.ended.wait()


async def test_stopping_does_not_wait_for_a_peer_that_does_not_read(start_server: StartServer) -> None:
    server = await start_server(APPLICATION)
    peer = await server.connect()
    await peer.send(b"GET /endless HTTP/1.1\r\nHost: here\r\n\r\n")
    await peer.answer(body_follows=False)
    server.scope.cancel()
    with trio.fail_after(2):
        await server.ended.wait()


# --- upgrades ------------------------------------------------------------------------------------------------------

UPGRADE = b"GET /up HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Case: Kept\r\n\r\n"


async def give_back(stream: ReplayStream) -> None:
    """Sends back, in capitals, what it gets until the word end."""
    received = await stream.receive_some()
    assert received == UPGRADE
    stream.go_on()
    while b"end" not in received:
        received += await stream.receive_some()
    await stream.send_all(received.upper())


def upgrade_of_up(request: h11.Request) -> Callable[[ReplayStream], Awaitable[None]] | None:
    return give_back if request.target == b"/up" and b"upgrade" in dict(request.headers) else None


@pytest.mark.parametrize("together", [True, False])
async def test_upgrade_gets_head_and_all_that_followed_it(start_server: StartServer, together: bool) -> None:
    server = await start_server(APPLICATION, upgrade=upgrade_of_up)
    peer = await server.connect()
    if together:
        await peer.send(UPGRADE + b"more and the end")
    else:
        await peer.send(HELLO + UPGRADE)
        assert (await peer.answer()).body == b"hello"
        await peer.send(b"more and the end")
    assert await peer.rest() == (UPGRADE + b"more and the end").upper()


async def test_upgrade_that_nobody_takes_is_an_ordinary_request(start_server: StartServer) -> None:
    server = await start_server(APPLICATION, upgrade=upgrade_of_up)
    peer = await server.connect()
    assert (await peer.ask(UPGRADE.replace(b"/up", b"/hello"))).body == b"hello"
    assert (await peer.ask(HELLO)).body == b"hello"
