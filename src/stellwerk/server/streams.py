"""The stream below a WebSocket: starts with bytes that were read already, and bounds every write."""

from __future__ import annotations

import trio

from stellwerk.system.memory_streams import MemoryStream

__all__ = ["ReplayStream", "endpoint_of", "is_trusted"]


def is_trusted(stream: trio.abc.Stream) -> bool:
    """Whether only this process, or one that it has started, can be at the other end: such a peer needs no credential.
    For what cannot be told it is not."""
    if isinstance(stream, trio.SocketStream):
        return stream.socket.family == trio.socket.AF_UNIX
    return isinstance(stream, MemoryStream)


def endpoint_of(stream: trio.abc.Stream, which: str) -> tuple[str, int] | None:
    """Address and port.

    :param which: ``getpeername`` or ``getsockname``.
    """
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    if not isinstance(stream, trio.SocketStream):
        return None
    try:
        address = getattr(stream.socket, which)()
    except OSError:
        return None
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None


class ReplayStream(trio.abc.Stream):
    """Wraps a stream of which somebody else has read the head of an upgrade request, and maybe more.

    The head is replayed at once. What follows it, here or on the wire, waits for `go_on`: a reader that has not
    accepted the upgrade yet would drop it.
    """

    def __init__(self, stream: trio.abc.Stream, head: bytes, rest: bytes, *, write_seconds_max: float = 10.0) -> None:
        self._stream = stream
        self._head = head
        self._rest = rest
        self._may_go_on = trio.Event()
        self.write_seconds_max = write_seconds_max
        self.is_trusted = is_trusted(stream)
        self.peer = endpoint_of(stream, "getpeername")
        self.closed = trio.Event()
        """Set when this end was closed, whoever did it."""

    def go_on(self) -> None:
        """The upgrade was accepted."""
        self._may_go_on.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._head:
            await trio.lowlevel.checkpoint()
            data, self._head = _split(self._head, max_bytes)
            return data
        if not self._may_go_on.is_set():
            await self._may_go_on.wait()
        if self._rest:
            await trio.lowlevel.checkpoint()
            data, self._rest = _split(self._rest, max_bytes)
            return data
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """:raises trio.BrokenResourceError: also when the peer does not read; the stream is closed then."""
        with trio.move_on_after(self.write_seconds_max) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            await trio.aclose_forcefully(self)
            raise trio.BrokenResourceError("the peer does not read")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self.closed.set()
        self._may_go_on.set()
        await self._stream.aclose()


def _split(data: bytes, max_bytes: int | None) -> tuple[bytes, bytes]:
    size = len(data) if max_bytes is None else max_bytes
    return data[:size], data[size:]
