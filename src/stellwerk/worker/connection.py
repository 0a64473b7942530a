"""One WebSocket connection to an engine, from dialling to the closed TCP stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import trio
import trio_websocket
import wsproto.utilities

from stellwerk.wire.messages import SUBPROTOCOL, NackCode
from stellwerk.worker.errors import ConnectionLost, Refused, leaves_of
from stellwerk.worker.system import Dial, Endpoint, NetworkDial
from stellwerk.worker.tls_troubles import SPEAKS_TLS, tls_trouble

__all__ = ["CONNECT_TIMEOUT_S", "FRAME_BYTES_MAX", "Link", "finds_tls", "shake_hands", "with_link"]

CONNECT_TIMEOUT_S = 10.0
"""For dialling, for the WebSocket handshake, and once more for the engine's welcome."""
CLOSE_TIMEOUT_S = 2.0
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""What is read at most; the engine's own limit, which comes with its welcome, is far smaller."""
_RECEIVE_BUFFER_BYTES = 65_536

_BROKEN = (
    trio_websocket.ConnectionClosed,
    trio_websocket.HandshakeError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    wsproto.utilities.ProtocolError,
    OSError,
    ConnectionLost,
    Refused,
)


class Link:
    """An open WebSocket."""

    def __init__(self, websocket: trio_websocket.WebSocketConnection) -> None:
        self._websocket = websocket

    async def send(self, frame: bytes) -> None:
        await self._websocket.send_message(frame.decode())

    async def receive(self) -> str | bytes:
        frame: str | bytes = await self._websocket.get_message()
        return frame

    async def ping(self) -> None:
        """Returns when the engine has answered."""
        await self._websocket.ping()

    async def close(self) -> None:
        """Say goodbye properly, but do not wait for ever for the other side's."""
        with trio.move_on_after(CLOSE_TIMEOUT_S):
            await self._websocket.aclose()


async def with_link(dial: Dial, endpoint: Endpoint, body: Callable[[Link], Awaitable[None]]) -> None:
    """Connect and run `body`. The stream is closed afterwards, whatever happened.

    :raises ConnectionLost: when no connection came about, or it broke, or the engine closed it.
    :raises Refused: when the engine said why (HTTP status 401 or 403, or what `body` raises).
    """
    stream = await _dial(dial, endpoint)
    opened = done = False
    try:
        async with trio.open_nursery() as nursery:
            link = Link(await _handshake(nursery, stream, endpoint))
            opened = True
            await body(link)
            done = True
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        broken, rest = group.split(_BROKEN)
        if rest is not None:
            raise rest from None
        assert broken is not None
        if not done:  # else it broke while it was closed (trio-websocket cannot answer a ping then)
            leaf = _first_leaf(broken)
            if (
                not opened
                and not isinstance(leaf, trio_websocket.ConnectionRejected)
                and await finds_tls(dial, endpoint)
            ):
                raise ConnectionLost(f"no connection to {endpoint}: {SPEAKS_TLS}") from None
            raise _translated(leaf, endpoint) from None
    finally:
        # trio-websocket's client leaves it open when the peer closed first.
        await trio.aclose_forcefully(stream)


async def _dial(dial: Dial, endpoint: Endpoint) -> trio.abc.Stream:
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            stream = await dial(endpoint)
            if isinstance(stream, trio.SSLStream):
                await shake_hands(stream)
            return stream
    except trio.TooSlowError:
        raise ConnectionLost(f"no connection to {endpoint} within {CONNECT_TIMEOUT_S:g} s") from None
    except (OSError, trio.BrokenResourceError) as error:
        raise ConnectionLost(f"no connection to {endpoint}: {tls_trouble(error) or error}") from error


async def shake_hands(stream: trio.SSLStream[trio.abc.Stream]) -> None:
    """At once, so that what is wrong with a certificate is known as such."""
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


async def finds_tls(dial: Dial, endpoint: Endpoint) -> bool:
    """Whether that is why a plain connection got no answer. Only the network can be asked."""
    return not endpoint.tls and isinstance(dial, NetworkDial) and await dial.finds_tls(endpoint)


async def _handshake(
    nursery: trio.Nursery, stream: trio.abc.Stream, endpoint: Endpoint
) -> trio_websocket.WebSocketConnection:
    with trio.move_on_after(CONNECT_TIMEOUT_S):
        return await trio_websocket.wrap_client_stream(
            nursery,
            cast("trio.SocketStream", stream),  # any stream will do
            endpoint.host_header,
            endpoint.path,
            subprotocols=[SUBPROTOCOL],
            max_message_size=FRAME_BYTES_MAX,
            receive_buffer_size=_RECEIVE_BUFFER_BYTES,
        )
    raise ConnectionLost(f"{endpoint} did not answer the WebSocket handshake within {CONNECT_TIMEOUT_S:g} s")


def _first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What says most: a reason that somebody gave, else the first."""
    leaves = leaves_of(group)
    return next((leaf for leaf in leaves if isinstance(leaf, Refused | ConnectionLost)), leaves[0])


def _translated(error: BaseException, endpoint: Endpoint) -> ConnectionLost | Refused:
    match error:
        case ConnectionLost() | Refused():
            return error
        case trio_websocket.ConnectionRejected():
            status: int = error.status_code
            code = {401: NackCode.UNAUTHENTICATED, 403: NackCode.FORBIDDEN}.get(status)
            text = f"{endpoint} answered the WebSocket handshake with HTTP status {status}"
            return ConnectionLost(text) if code is None else Refused(text, code=code)
        case trio_websocket.ConnectionClosed() if error.reason is not None:
            said = f"{error.reason.code} {error.reason.reason or ''}".rstrip()
            return ConnectionLost(f"{endpoint} closed the connection: {said}")
        case _:
            return ConnectionLost(f"the connection to {endpoint} broke: {error!r}")
