"""Connections within the process that behave like sockets: bounded, half-closable, resettable, and with a listener."""

from __future__ import annotations

import errno
import operator

import trio

__all__ = ["BUFFER_BYTES_MAX", "MemoryListener", "MemoryStream", "OneAtATime", "memory_stream_pair"]

BUFFER_BYTES_MAX = 64 * 1024
"""What one direction holds; who sends more waits for the reader."""
_BACKLOG = 128
"""Connections that wait to be accepted; beyond, connecting waits."""


class _Pipe:
    """One direction of a connection."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._data = bytearray()
        self._waiting = trio.lowlevel.ParkingLot()
        self.has_ended = False
        """The writer writes no more."""
        self.was_reset = False
        """The writer went away without having read all that it was sent."""
        self.is_unread = False
        """The reader is gone."""

    def __len__(self) -> int:
        return len(self._data)

    @property
    def room(self) -> int:
        return self._bytes_max - len(self._data)

    def put(self, data: memoryview) -> int:
        """→ how many bytes were taken."""
        taken = data[: self.room]
        self._data += taken
        self.changed()
        return len(taken)

    def take(self, bytes_max: int | None) -> bytes:
        size = len(self._data) if bytes_max is None else min(bytes_max, len(self._data))
        taken = bytes(self._data[:size])
        del self._data[:size]
        self.changed()
        return taken

    def discard(self) -> None:
        """Nobody will read it."""
        self.is_unread = True
        self._data.clear()
        self.changed()

    def changed(self) -> None:
        self._waiting.unpark_all()

    async def wait_changed(self) -> None:
        await self._waiting.park()


class OneAtATime:
    """What two tasks cannot do to a stream at once, as with trio's own streams."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_busy = False

    def __enter__(self) -> None:
        if self._is_busy:
            raise trio.BusyResourceError(f"another task is {self._what} on this stream")
        self._is_busy = True

    def __exit__(self, *_: object) -> None:
        self._is_busy = False


class MemoryStream(trio.abc.HalfCloseableStream):
    """One end of a `memory_stream_pair`.

    As with a TCP socket, data that was sent before the end arrives before it; closing with data unread resets the
    connection; who writes to a peer that is gone gets `trio.BrokenResourceError`.
    """

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False
        self._sending = OneAtATime("sending")
        self._receiving = OneAtATime("receiving")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<MemoryStream {state}, {len(self._incoming)} bytes unread, {len(self._outgoing)} on their way>"

    # --- sending ---------------------------------------------------------------------------------------------------

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._sending:
            self._check_can_send()
            await trio.lowlevel.checkpoint()
            rest = memoryview(data)
            self._check_can_send()
            while rest:
                await self._wait_for_room()
                rest = rest[self._outgoing.put(rest) :]

    async def wait_send_all_might_not_block(self) -> None:
        with self._sending:
            self._check_is_open()
            await trio.lowlevel.checkpoint()
            while not self._is_closed and not self._outgoing.is_unread and self._outgoing.room == 0:
                await self._outgoing.wait_changed()
            self._check_is_open()

    async def _wait_for_room(self) -> None:
        while self._outgoing.room == 0:
            await self._outgoing.wait_changed()
            self._check_can_send()

    def _check_can_send(self) -> None:
        self._check_is_open()
        if self._outgoing.has_ended:
            raise trio.ClosedResourceError("nothing can be sent after the end of the data")
        if self._outgoing.is_unread:
            raise trio.BrokenResourceError("the peer has closed the connection")

    async def send_eof(self) -> None:
        with self._sending:
            self._check_is_open()
            await trio.lowlevel.checkpoint()
            self._outgoing.has_ended = True
            self._outgoing.changed()

    # --- receiving -------------------------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if max_bytes is not None and operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        with self._receiving:
            self._check_is_open()
            await trio.lowlevel.checkpoint()
            self._check_is_open()
            while not len(self._incoming) and not self._incoming.has_ended:
                await self._incoming.wait_changed()
                self._check_is_open()
            if not len(self._incoming) and self._incoming.was_reset:
                raise trio.BrokenResourceError("the peer has reset the connection")
            return self._incoming.take(max_bytes)

    def _check_is_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this stream was closed")

    # --- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """`aclose` without a checkpoint."""
        if self._is_closed:
            return
        self._is_closed = True
        self._outgoing.was_reset = len(self._incoming) > 0
        self._outgoing.has_ended = True
        self._outgoing.changed()
        self._incoming.discard()


def memory_stream_pair(buffer_bytes_max: int = BUFFER_BYTES_MAX) -> tuple[MemoryStream, MemoryStream]:
    """Two ends of one connection; each direction holds at most so many bytes, and then its writer waits."""
    there, back = _Pipe(buffer_bytes_max), _Pipe(buffer_bytes_max)
    return MemoryStream(back, there), MemoryStream(there, back)


class MemoryListener(trio.abc.Listener[MemoryStream]):
    """Accepts connections that are made by `connect`, in the same trio run."""

    def __init__(self) -> None:
        self._to_accept, self._connections = trio.open_memory_channel[MemoryStream](_BACKLOG)

    async def connect(self) -> MemoryStream:
        """:raises ConnectionRefusedError: nobody listens any more."""
        ours, theirs = memory_stream_pair()
        try:
            await self._to_accept.send(theirs)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens in this process any more") from None
        return ours

    async def accept(self) -> MemoryStream:
        """:raises trio.ClosedResourceError: this listener was closed."""
        return await self._connections.receive()

    async def aclose(self) -> None:
        """Who waits to be accepted is disconnected."""
        while True:
            try:
                stream = self._connections.receive_nowait()
            except (trio.WouldBlock, trio.ClosedResourceError):
                break
            stream.close()
        self._connections.close()
        await trio.lowlevel.checkpoint()
