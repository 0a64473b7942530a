"""One request and its answer, as the ASGI application sees them (ASGI 3.0, HTTP connection scope)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias
from urllib.parse import unquote_to_bytes, urlsplit

import h11
import trio

__all__ = ["Application", "Exchange", "MalformedTarget", "RequestStream", "http_scope"]

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Application: TypeAlias = Callable[
    [Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


class MalformedTarget(Exception):
    """The request target cannot be a path of ours."""


class RequestStream(Protocol):
    """What an exchange needs from its connection."""

    async def next_event(self) -> object:
        """The next h11 event; reads as needed."""

    async def send(self, *events: h11.Event) -> None: ...

    async def gone(self) -> None:
        """Return when the peer has closed its side. What it sends until then is kept for the next request."""


def http_scope(
    request: h11.Request,
    client: tuple[str, int] | None,
    server: tuple[str, int] | None,
    *,
    is_secure: bool = False,
    is_trusted: bool = False,
) -> Scope:
    """:param is_trusted: see `streams.is_trusted`.

    :raises MalformedTarget: when the path is not UTF-8 or has no path.
    """
    raw_path, query = _split_target(request.target)
    try:
        path = unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError:
        raise MalformedTarget("the path is not UTF-8") from None
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": request.http_version.decode(),
        "method": request.method.decode(),
        "scheme": "https" if is_secure else "http",
        "path": path,
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": list(request.headers),
        "client": client,
        "server": server,
        "state": {},
        "stellwerk.trusted": is_trusted,
    }


def _split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of an origin-form or absolute-form target (RFC 9112, 3.2)."""
    if not target.startswith(b"/"):
        try:
            parts = urlsplit(target)
        except ValueError:
            raise MalformedTarget("the target is no URL") from None
        if parts.scheme not in (b"http", b"https"):
            raise MalformedTarget("the target has no path")
        return parts.path or b"/", parts.query
    path, _, query = target.partition(b"?")
    return path, query


class Exchange:
    """The `receive` and `send` of one request."""

    def __init__(
        self,
        stream: RequestStream,
        request: h11.Request,
        *,
        first: h11.Data | None,
        body_ended: bool,
        body_deadline: float,
        answer_headers: Callable[[], list[tuple[bytes, bytes]]],
    ) -> None:
        """`first`: a piece of the body that came with the head. `body_deadline`: on trio's clock."""
        self._stream = stream
        self._without_body = request.method == b"HEAD"
        self._first = first
        self._body_deadline = body_deadline
        self._answer_headers = answer_headers
        self._head: h11.Response | None = None
        self._body_delivered = False
        self.body_ended = body_ended
        """The whole request was read."""
        self.started = False
        """Something of the answer was sent."""
        self.finished = False
        self.fault: h11.RemoteProtocolError | trio.TooSlowError | None = None
        """What the peer did wrong within the body; the application only hears that it disconnected."""

    async def receive(self) -> Message:
        if self.fault is not None:
            return {"type": "http.disconnect"}
        if self._body_delivered:
            await self._stream.gone()
            return {"type": "http.disconnect"}
        if self.body_ended:
            self._body_delivered = True
            return {"type": "http.request", "body": b"", "more_body": False}
        try:
            event = await self._next_piece()
        except (h11.RemoteProtocolError, trio.TooSlowError) as fault:
            self.fault = fault
            return {"type": "http.disconnect"}
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # A client that went away in the middle of its body: nobody's fault, and nothing to be logged.
            return {"type": "http.disconnect"}
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        self.body_ended = self._body_delivered = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _next_piece(self) -> object:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        with trio.fail_at(self._body_deadline):
            return await self._stream.next_event()

    async def send(self, message: Message) -> None:
        if self.fault is not None:
            # What the application makes of a disconnect is no answer to what the peer did wrong.
            return
        match message["type"]:
            case "http.response.start":
                headers = [*message.get("headers", ()), *self._answer_headers()]
                if not self.body_ended:
                    headers.append((b"connection", b"close"))
                self._head = h11.Response(status_code=message["status"], headers=headers)
            case "http.response.body":
                await self._send_body(bytes(message.get("body", b"")), more=message.get("more_body", False))
            case other:
                raise RuntimeError(f"no such ASGI message: {other}")

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        events: list[h11.Event] = []
        if self._head is not None:
            events.append(self._head)
            self._head = None
        if body and not self._without_body:
            events.append(h11.Data(data=body))
        if not more:
            events.append(h11.EndOfMessage())
        self.started = True
        await self._stream.send(*events)
        self.finished = not more
