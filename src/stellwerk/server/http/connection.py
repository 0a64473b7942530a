"""One HTTP/1.1 connection over any trio stream: requests to an ASGI application, upgrades to whoever takes them.

Nothing that a peer does raises out of `HttpConnection.serve`, and no wait is without a deadline.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any, TypeAlias

import attrs
import h11
import trio
from starlette.requests import ClientDisconnect

from stellwerk.ports import Clock, Entropy, Log
from stellwerk.server.http.answers import PROBLEM_TYPE, problem
from stellwerk.server.http.exchange import Application, Exchange, MalformedTarget, http_scope
from stellwerk.server.http.limits import HttpLimits
from stellwerk.server.streams import ReplayStream, endpoint_of, is_trusted

__all__ = ["Draining", "HttpConnection", "HttpHost", "UpgradeHandler"]

UpgradeHandler: TypeAlias = Callable[[ReplayStream], Awaitable[None]]
"""Takes over a connection, see `ReplayStream`; returns when the connection is over."""

_RECEIVE_BYTES = 64 * 1024


class Draining:
    """How a server comes to its end without a request that gets no answer.

    From `begin` on every answer says that it is the last of its connection. A connection between two requests is not
    closed: its peer does not know yet, and its next request may be on the way (RFC 9112, 9.5). It gets one more answer,
    or is closed by its peer, or in the end by `hang_up`. A new connection gets its one answer too: a load balancer has
    to hear from ``/readyz`` that we are about to stop.
    """

    def __init__(self) -> None:
        self._begun = trio.Event()
        self._quiet = trio.Event()
        self._quiet.set()
        self._hung_up = False
        self._open = 0
        self._idle: set[trio.CancelScope] = set()

    def begin(self) -> None:
        self._begun.set()

    def hang_up(self) -> None:
        """Close the connections that are between two requests, or on which none has come yet."""
        self._begun.set()
        self._hung_up = True
        for scope in list(self._idle):
            scope.cancel()

    @property
    def begun(self) -> bool:
        return self._begun.is_set()

    async def wait_begun(self) -> None:
        await self._begun.wait()

    async def wait_quiet(self) -> None:
        """Until no connection is open, those apart that were handed over."""
        await self._quiet.wait()

    def opened(self) -> None:
        self._open += 1
        if self._quiet.is_set():
            self._quiet = trio.Event()

    def ended(self) -> None:
        """Closed, or handed over."""
        self._open -= 1
        if self._open == 0:
            self._quiet.set()

    async def idle(self, stream: trio.abc.ReceiveStream, seconds_max: float) -> bytes:
        """Wait for the first bytes of one more request; ``b""`` when there will be none."""
        with trio.move_on_after(seconds_max) as scope:
            if self._hung_up:
                return b""
            self._idle.add(scope)
            try:
                return bytes(await stream.receive_some(_RECEIVE_BYTES))
            finally:
                self._idle.discard(scope)
        return b""


@attrs.frozen(kw_only=True)
class HttpHost:
    """What all connections of a server share."""

    application: Application
    upgrade: Callable[[h11.Request], UpgradeHandler | None]
    """Who takes this upgrade request; None: it is answered by the application like any other."""
    limits: HttpLimits
    clock: Clock
    entropy: Entropy
    log: Log
    draining: Draining = attrs.field(factory=Draining)


class HttpConnection:
    def __init__(self, stream: trio.abc.Stream, host: HttpHost) -> None:
        self._stream = stream
        self._host = host
        self._limits = host.limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=host.limits.head_bytes_max)
        self._requests = 0
        self._peer_closed = False
        self._is_counted = False

    async def serve(self) -> None:
        """Until the peer, a fault or the drain ends the connection; the stream is closed then."""
        self._is_counted = True
        self._host.draining.opened()
        try:
            while await self._serve_request():
                self._http.start_next_cycle()
        except (h11.RemoteProtocolError, trio.TooSlowError, MalformedTarget) as fault:
            # Frames of its traceback know it: with all that they hold, a connection's buffers, they would stay until
            # somebody looks for cycles. Peers could fill the memory with them.
            fault.__traceback__ = fault.__context__ = None
            await self._settle(self._refuse(*_answer_to(fault)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(self._stream)
            self._count_off()

    def _count_off(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._host.draining.ended()

    # --- one request

    async def _serve_request(self) -> bool:
        """True when another request may follow."""
        request = await self._next_request()
        if request is None:
            return False
        self._requests += 1
        handler = self._host.upgrade(request)
        if handler is not None:
            await self._hand_over(request, handler)
            return False
        return await self._answer(request)

    async def _next_request(self) -> h11.Request | None:
        if not self._http.trailing_data[0]:
            data = await self._first_bytes()
            if not data:
                return None
            self._http.receive_data(data)
        with trio.fail_after(self._limits.head_seconds_max):
            event = await self.next_event()
        if not isinstance(event, h11.Request):
            return None
        if event.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("HTTP 1.0 and 1.1 are served here", error_status_hint=505)
        return event

    async def _first_bytes(self) -> bytes:
        limits = self._limits
        seconds_max = limits.idle_seconds_max if self._requests > 0 else limits.head_seconds_max
        return await self._host.draining.idle(self._stream, seconds_max)

    async def _answer(self, request: h11.Request) -> bool:
        exchange = self._open_exchange(request)
        try:
            await self._host.application(self._scope(request), exchange.receive, exchange.send)
        except ClientDisconnect:
            if exchange.fault is None:
                return False
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, MalformedTarget):
            raise
        except Exception:
            reference = self._host.entropy.uuid()
            self._host.log.exception("request_failed", reference=reference)
            await self._answer_our_fault(exchange, reference)
        if exchange.fault is not None and not exchange.started:
            raise exchange.fault
        return await self._after_answer(exchange)

    async def _after_answer(self, exchange: Exchange) -> bool:
        if not exchange.finished:
            return False
        if not exchange.body_ended:
            await self._settle(self._linger())
            return False
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def _open_exchange(self, request: h11.Request) -> Exchange:
        """Looks at what came with the head, so that a request without a body is known as such."""
        event = self._http.next_event()
        return Exchange(
            self,
            request,
            first=event if isinstance(event, h11.Data) else None,
            body_ended=isinstance(event, h11.EndOfMessage),
            body_deadline=trio.current_time() + self._limits.body_seconds_max,
            answer_headers=self._answer_headers,
        )

    def _scope(self, request: h11.Request) -> Any:
        peer, own = endpoint_of(self._stream, "getpeername"), endpoint_of(self._stream, "getsockname")
        is_secure = isinstance(self._stream, trio.SSLStream)
        return http_scope(request, peer, own, is_secure=is_secure, is_trusted=is_trusted(self._stream))

    def _answer_headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"date", formatdate(self._host.clock.wall_ms() / 1000, usegmt=True).encode())]
        if self._host.draining.begun:
            headers.append((b"connection", b"close"))
        return headers

    async def _hand_over(self, request: h11.Request, handler: UpgradeHandler) -> None:
        with trio.fail_after(self._limits.head_seconds_max):
            while isinstance(await self.next_event(), h11.Data):
                pass
        self._count_off()
        await handler(ReplayStream(self._stream, _head_of(request), self._http.trailing_data[0]))

    # --- what goes wrong

    async def _answer_our_fault(self, exchange: Exchange, reference: str) -> None:
        if not exchange.started:
            message = f"an internal error; the log has it under {reference}"
            await self._send_fault(500, "internal", message)
            exchange.started = exchange.finished = True

    async def _refuse(self, status: int, message: str) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        code = "too_large" if status in (413, 431) else "invalid"
        await self._send_fault(status, code, message)
        await self._linger()

    async def _send_fault(self, status: int, code: str, message: str) -> None:
        body = json.dumps(problem(status, code, message)).encode()
        headers = [
            (b"content-type", PROBLEM_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        head = h11.Response(status_code=status, headers=[*headers, *self._answer_headers()[:1]])
        await self.send(head, h11.Data(data=body), h11.EndOfMessage())

    async def _linger(self) -> None:
        """Closing a socket with unread bytes resets it, and the peer could lose our answer (RFC 9112, 9.6)."""
        if self._peer_closed:
            return
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        elif not isinstance(self._stream, trio.SSLStream):  # which has no such end, but its socket can be reset too
            return
        remaining = self._limits.linger_bytes_max
        with trio.move_on_after(self._limits.linger_seconds_max):
            while remaining > 0 and (data := await self._stream.receive_some(_RECEIVE_BYTES)):
                remaining -= len(data)

    async def _settle(self, farewell: Awaitable[None]) -> None:
        """The peer may be gone when it is told what it did wrong."""
        try:
            await farewell
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, h11.LocalProtocolError):
            return

    # --- the stream that an exchange sees

    async def next_event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            await self._receive()

    async def send(self, *events: h11.Event) -> None:
        data = b"".join(self._http.send(event) or b"" for event in events)
        size = self._limits.write_bytes_max
        for start in range(0, len(data), size):
            try:
                with trio.fail_after(self._limits.write_seconds_max):
                    await self._stream.send_all(data[start : start + size])
            except trio.TooSlowError:
                raise trio.BrokenResourceError("the peer does not read") from None

    async def gone(self) -> None:
        try:
            while not self._peer_closed:
                if len(self._http.trailing_data[0]) >= self._limits.ahead_bytes_max:
                    await trio.sleep_forever()
                await self._receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def _receive(self) -> None:
        data = bytes(await self._stream.receive_some(_RECEIVE_BYTES))
        self._peer_closed = not data
        self._http.receive_data(data)


def _answer_to(fault: Exception) -> tuple[int, str]:
    """Status and words for what the peer did wrong."""
    match fault:
        case h11.RemoteProtocolError():
            return fault.error_status_hint, str(fault)
        case trio.TooSlowError():
            return 408, "the request took too long"
        case _:
            return 400, str(fault)


def _head_of(request: h11.Request) -> bytes:
    lines = [b"%b %b HTTP/%b" % (request.method, request.target, request.http_version)]
    lines += [b"%b: %b" % (name, value) for name, value in request.headers.raw_items()]
    return b"\r\n".join(lines) + b"\r\n\r\n"
