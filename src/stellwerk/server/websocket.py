"""The transport of a worker's session: WebSocket frames in, WebSocket frames out (docs/worker-protocol).

Nothing that a peer does raises out of `WorkerSockets.serve`. Nothing waits for a peer without a deadline, so that one
that stopped reading cannot hold up a shutdown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import attrs
import h11
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, wrap_server_stream
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from stellwerk.actors.node import Node
from stellwerk.actors.session import WorkerSession
from stellwerk.errors import CallerError, Forbidden, InvalidInput, StellwerkError, Unauthenticated
from stellwerk.ports import ANYBODY, Identity, Log
from stellwerk.server.auth.audit import Audit
from stellwerk.server.auth.gate import Gate
from stellwerk.server.http.sites import is_foreign, is_public_name
from stellwerk.server.streams import ReplayStream
from stellwerk.wire.codec import UnknownMessage, decode_worker_frame, encode_frame, pack_frames
from stellwerk.wire.messages import SUBPROTOCOL, WORKERS_PATH, Hello, NackCode, ProtocolErrorMessage, WorkerMessage

__all__ = ["WorkerSockets", "asks_for_workers"]

_HELLO_SECONDS_MAX = 10.0
"""From the upgrade request to the first frame."""
_CLOSE_SECONDS_MAX = 2.0
"""For the closing handshake."""
_CLOSE_CODE = 1001
"""Going away: whatever the reason, it stands in an `error` or `goaway` before."""
_OVERSIZE_FACTOR = 2
"""Up to so many times the largest frame is read, to be refused by an `error` that says why; beyond, by code 1009."""
_RECEIVE_BYTES = 64 * 1024

_ACTION = "worker session"
"""In the audit log."""

_OUR_FAULT = StellwerkError("an internal error", code=NackCode.INTERNAL)

_PEER_FAULTS = (
    ConnectionClosed,
    LocalProtocolError,
    RemoteProtocolError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
)


def asks_for_workers(request: h11.Request) -> bool:
    """Whether this is an upgrade that `WorkerSockets` serves. Others get an HTTP answer."""
    headers: dict[bytes, list[bytes]] = {}
    for name, value in request.headers:
        headers.setdefault(name, []).append(value)
    return (
        request.method == b"GET"
        and request.target.partition(b"?")[0] == WORKERS_PATH.encode()
        and b"websocket" in _tokens(headers.get(b"upgrade", []))
        and SUBPROTOCOL.encode() in _tokens(headers.get(b"sec-websocket-protocol", []))
        and not _is_of_another_site(_text(headers.get(b"origin")), _text(headers.get(b"host")))
    )


def _is_of_another_site(origin: str | None, host: str | None) -> bool:
    """A browser sends an origin with every WebSocket, and no worker lives on a page of the web."""
    return origin is not None and (is_foreign(origin, host) or is_public_name(host))


def _tokens(values: list[bytes]) -> list[bytes]:
    return [token.strip().lower() for value in values for token in value.split(b",")]


def _text(values: list[bytes] | None) -> str | None:
    return None if values is None else values[0].decode("latin-1")


class WorkerSockets:
    def __init__(self, node: Node, log: Log, gate: Gate | None = None) -> None:
        """:param gate: None: nobody needs a credential."""
        self._gate = gate
        self._audit = Audit(log, node.ports.clock)
        self._node = node
        self._log = log
        self._limits = node.limits
        self._sessions: set[WorkerSession] = set()

    def end_sessions(self) -> None:
        """Send what is queued and say goodbye to every worker; their leases live on."""
        for session in self._sessions:
            session.disconnected()

    async def serve(self, stream: ReplayStream) -> None:
        """Take over a connection whose upgrade request `asks_for_workers`; closes it in the end."""
        stream.write_seconds_max = self._limits.session_write_ms_max / 1000
        entrance = _Entrance(None if stream.is_trusted else self._gate, self._audit, stream.peer)
        try:
            async with trio.open_nursery() as nursery:
                connection = await self._accept(nursery, stream, entrance)
                if connection is not None:
                    await _Conversation(self._node, connection, self._sessions, self._log, entrance).run()
                nursery.cancel_scope.cancel()
        except* _PEER_FAULTS as group:
            self._log.debug("worker connection broke", reason=repr(group.exceptions[0]))

    async def _accept(
        self, nursery: trio.Nursery, stream: ReplayStream, entrance: _Entrance
    ) -> WebSocketConnection | None:
        """None: the upgrade request was no good (trio-websocket then just closes the stream) or the peer is gone."""
        with trio.move_on_after(_HELLO_SECONDS_MAX):
            request = await _unless_closed(stream, self._wrap(nursery, stream))
            if request is not None:
                entrance.headers = tuple(request.headers)
                connection = await request.accept(subprotocol=SUBPROTOCOL)
                stream.go_on()
                return connection
        return None

    def _wrap(self, nursery: trio.Nursery, stream: ReplayStream) -> Awaitable[WebSocketRequest]:
        return wrap_server_stream(
            nursery,
            stream,
            max_message_size=_OVERSIZE_FACTOR * self._limits.frame_bytes_max,
            receive_buffer_size=_RECEIVE_BYTES,
        )


async def _unless_closed(stream: ReplayStream, awaitable: Awaitable[WebSocketRequest]) -> WebSocketRequest | None:
    requests: list[WebSocketRequest] = []

    async def watch() -> None:
        await stream.closed.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        requests.append(await awaitable)
        nursery.cancel_scope.cancel()
    return requests[0] if requests else None


@attrs.define
class _Entrance:
    """Who the peer is: by the token in its `hello`, or by what came with the upgrade request."""

    gate: Gate | None
    """None: it needs no credential."""
    _audit: Audit
    _peer: tuple[str, int] | None
    headers: Sequence[tuple[bytes, bytes]] = ()
    _identity: Identity | None = None

    async def identify(self, hello: Hello) -> Identity:
        """:raises Unauthenticated: it says nothing that is good. StoreUnavailable: that cannot be told now."""
        if self.gate is None:
            return ANYBODY
        if hello.token:
            self._identity = await self.gate.identify(hello.token)
        else:
            self._identity = await self.gate.caller(self.headers)
        return self._identity

    def tell_refused(self, code: str, reason: str, worker_id: str | None) -> None:
        """If it was refused for what it is or may not do."""
        if code in (Unauthenticated.code, Forbidden.code):
            self._audit.refused(
                code, reason, who=self._identity, action=_ACTION, target={"worker": worker_id}, peer=self._peer
            )


@attrs.define
class _Conversation:
    """One accepted connection, from `hello` to the close."""

    _node: Node
    _connection: WebSocketConnection
    _sessions: set[WorkerSession]
    """Of all conversations."""
    log: Log
    _entrance: _Entrance

    async def run(self) -> None:
        worker_id: str | None = None
        try:
            hello, others = await self._hello()
            worker_id = hello.worker_id
            session = await self._open_session(hello)
        except StellwerkError as error:
            self._entrance.tell_refused(error.code, error.message, worker_id)
            await self._say_error(error)
        except _PEER_FAULTS:
            raise
        except Exception:
            self.log.exception("session_not_opened")
            await self._say_error(_OUR_FAULT)
        else:
            await self._talk(session, others)
        await self._close()

    async def _open_session(self, hello: Hello) -> WorkerSession:
        identity = await self._entrance.identify(hello)
        return await self._node.open_session(hello, identity, self._entrance.gate)

    async def _hello(self) -> tuple[Hello, list[WorkerMessage | UnknownMessage]]:
        with trio.move_on_after(_HELLO_SECONDS_MAX):
            first, *others = await self._receive()
            if not isinstance(first, Hello):
                raise InvalidInput("the first message must be hello")
            return first, others
        # The network's fault, not the worker's: it comes again, and counts that among no errors of its own.
        raise StellwerkError(f"no hello within {_HELLO_SECONDS_MAX:g} s", code=NackCode.TOO_SLOW)

    async def _talk(self, session: WorkerSession, first: list[WorkerMessage | UnknownMessage]) -> None:
        self._sessions.add(session)
        about = {"worker": session.hello.worker_id, "session": session.session_id}
        self.log.info("worker connected", **about, holding=len(session.hello.holding))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, session)
            try:
                await self._read(session, first)
            except ConnectionClosed:
                pass
            except StellwerkError as error:
                # In its turn behind what the session has to say; the writer then closes the connection.
                session.close(error.code, error.message)
            except Exception:
                self.log.exception("session_failed")
                session.close(_OUR_FAULT.code, _OUR_FAULT.message)
            finally:
                # The writer is not cancelled: it may be saying goodbye, and has deadlines of its own.
                self._sessions.discard(session)
                session.disconnected()
                if session.closed_for is not None:
                    self._entrance.tell_refused(*session.closed_for, session.hello.worker_id)
                self.log.info("worker gone", **about, topics=" ".join(session.topics))

    async def _read(self, session: WorkerSession, messages: list[WorkerMessage | UnknownMessage]) -> None:
        """:raises ConnectionClosed: in the end. StellwerkError: for what the peer may not send."""
        while True:
            if messages:
                await self._handle(session, messages)
            messages = await self._receive()

    async def _receive(self) -> list[WorkerMessage | UnknownMessage]:
        frame = await self._connection.get_message()
        messages = decode_worker_frame(frame, self._node.limits.frame_bytes_max)
        if not messages:
            raise InvalidInput("an empty batch")
        return messages

    async def _handle(self, session: WorkerSession, messages: list[WorkerMessage | UnknownMessage]) -> None:
        topics = session.topics
        await session.handle([message for message in messages if not isinstance(message, UnknownMessage)])
        if session.topics != topics:
            self.log.info("worker subscribed", worker=session.hello.worker_id, topics=" ".join(session.topics))
        for message in messages:
            if isinstance(message, UnknownMessage):
                _answer_unknown(session, message)

    async def _write(self, session: WorkerSession) -> None:
        """Until the session is over or the peer is gone; the reader then hears of it from the closed connection."""
        frame_bytes_max = self._node.limits.frame_bytes_max
        try:
            while (messages := await session.outgoing()) is not None:
                for frame in pack_frames(messages, frame_bytes_max):
                    await self._connection.send_message(frame.decode())
        except _PEER_FAULTS:
            pass
        except StellwerkError as error:
            self.log.error("message_not_sent", session=session.session_id, reason=error.message)
        await self._close()

    async def _say_error(self, error: StellwerkError) -> None:
        frame = encode_frame([ProtocolErrorMessage(error.code, error.message)])
        await self._connection.send_message(frame.decode())

    async def _close(self) -> None:
        with trio.move_on_after(_CLOSE_SECONDS_MAX):
            await self._connection.aclose(_CLOSE_CODE)


def _answer_unknown(session: WorkerSession, message: UnknownMessage) -> None:
    error = CallerError(f"unknown type {message.type!r}", code=NackCode.UNKNOWN_TYPE)
    if message.ref is None:
        session.close(error.code, error.message)
    else:
        session.refuse(message.ref, error)
