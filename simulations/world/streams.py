"""Both ends of a connection, and the listener that accepts them."""

from __future__ import annotations

import operator
from collections import deque
from typing import Protocol

import trio

from simulations.world.pipes import WINDOW_BYTES, Link, Pipe
from stellwerk.system.memory_streams import OneAtATime

__all__ = ["Connection", "SimulatedListener", "SimulatedStream"]

_BACKLOG = 128
"""Connections that wait to be accepted; beyond, connecting waits."""


class Carrier(Protocol):
    """The network, as a connection knows it."""

    is_over: bool

    def carried(self, data: bytes) -> None: ...

    def found_reset(self, connection: Connection, stream: SimulatedStream) -> None: ...

    def forget(self, connection: Connection) -> None:
        """Neither end is in use any more."""


class SimulatedStream(trio.abc.HalfCloseableStream):
    """One end of a connection between two hosts. It behaves like a TCP socket under `trio.SocketStream`.

    What was sent before the end arrives before it. Closing with something unread resets the connection. Who sends to
    a peer that is gone learns of it a round trip later, or never, when that has no power.
    """

    def __init__(self, connection: Connection, incoming: Pipe, outgoing: Pipe) -> None:
        self._connection = connection
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False
        self._has_ended = False
        self._was_reset = False
        self.is_gone = False
        """Its host lost power."""
        self._sending = OneAtATime("sending")
        self._receiving = OneAtATime("receiving")

    def __repr__(self) -> str:
        return f"<SimulatedStream {self.host} to {self.peer}, connection {self._connection.number}>"

    @property
    def host(self) -> str:
        return self._outgoing.link.source.name

    @property
    def peer(self) -> str:
        return self._outgoing.link.target.name

    @property
    def is_over(self) -> bool:
        return self._is_closed or self.is_gone

    # --- sending ---------------------------------------------------------------------------------------------------

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._sending:
            self._check_can_send()
            await trio.lowlevel.checkpoint()
            self._check_can_send()
            rest = bytes(data)
            while rest:
                await self._wait_for_room()
                now, rest = rest[: self._outgoing.room], rest[self._outgoing.room :]
                self._connection.carrier.carried(now)
                self._outgoing.put(now)

    async def wait_send_all_might_not_block(self) -> None:
        with self._sending:
            self._check_can_send()
            await trio.lowlevel.checkpoint()
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        self._check_can_send()
        while self._outgoing.room <= 0:
            self._outgoing.link.note("network: a sender waited for its reader")
            self._connection.check_goes_on()
            await self._outgoing.writer.sleep_until(self._incoming.reset_at())
            self._check_can_send()

    def _check_can_send(self) -> None:
        self._check_is_open()
        if self._has_ended:
            raise trio.ClosedResourceError("nothing can be sent after the end of the data")
        if self._incoming.reset_at() <= trio.current_time():
            self._note_reset()
            raise trio.BrokenResourceError("the connection was reset by the peer")

    async def send_eof(self) -> None:
        with self._sending:
            self._check_is_open()
            await trio.lowlevel.checkpoint()
            self._check_is_open()
            self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._outgoing.end()

    # --- receiving -------------------------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        bytes_max = WINDOW_BYTES if max_bytes is None else operator.index(max_bytes)
        if bytes_max < 1:
            raise ValueError("max_bytes must be at least 1")
        with self._receiving:
            self._check_is_open()
            if self._incoming.ready_at() <= trio.current_time():
                await trio.lowlevel.checkpoint()
                self._check_is_open()
            while (ready_at := self._incoming.ready_at()) > trio.current_time():
                self._connection.check_goes_on()
                await self._incoming.reader.sleep_until(ready_at)
                self._check_is_open()
            return self._take(bytes_max)

    def _take(self, bytes_max: int) -> bytes:
        try:
            return self._incoming.take(bytes_max)
        except trio.BrokenResourceError:
            self._note_reset()
            raise

    def _check_is_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this stream was closed")

    def _note_reset(self) -> None:
        if not self._was_reset:
            self._was_reset = True
            self._connection.carrier.found_reset(self._connection, self)

    # --- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """`aclose` without a checkpoint; also what the kernel does when the process is gone."""
        if self.is_over:
            return
        self._is_closed = True
        if self._incoming.refuse():
            self._outgoing.put_reset()
        else:
            self._end()
        self._incoming.reader.wake()
        self._outgoing.writer.wake()
        self._connection.ended()

    def abort(self) -> None:
        """Close with RST."""
        self._outgoing.put_reset()
        self.close()

    def lose_power(self) -> None:
        """No FIN, no RST: the peer hears nothing."""
        self.is_gone = True
        self._incoming.lose_reader()
        self._outgoing.lose_writer()
        self._connection.ended()


class Connection:
    """Two ends and what is between them."""

    def __init__(self, number: int, there: Link, back: Link, carrier: Carrier) -> None:
        """:param there: from the host that dialled. back: to it."""
        self.number = number
        self.carrier = carrier
        self.pipes = (Pipe(there), Pipe(back))
        self.pipes[0].opposite, self.pipes[1].opposite = self.pipes[1], self.pipes[0]
        self.client = SimulatedStream(self, incoming=self.pipes[1], outgoing=self.pipes[0])
        self.server = SimulatedStream(self, incoming=self.pipes[0], outgoing=self.pipes[1])

    def ends_on(self, host: str) -> list[SimulatedStream]:
        return [end for end in (self.client, self.server) if end.host == host]

    def is_between(self, a: str, b: str) -> bool:
        return (self.client.host, self.server.host) in ((a, b), (b, a))

    def pipes_to(self, host: str) -> list[Pipe]:
        return [pipe for pipe in self.pipes if pipe.link.target.name == host]

    def ended(self) -> None:
        """One of the ends is no longer in use."""
        if self.client.is_over and self.server.is_over:
            self.carrier.forget(self)

    def check_goes_on(self) -> None:
        """:raises trio.BrokenResourceError: the simulation is over, and nobody may wait any more."""
        if self.carrier.is_over:
            raise trio.BrokenResourceError("the simulation is over")

    def wake_all(self) -> None:
        for pipe in self.pipes:
            pipe.reader.wake()
            pipe.writer.wake()


class SimulatedListener(trio.abc.Listener[SimulatedStream]):
    """Accepts what dials one port of a host."""

    def __init__(self, host: str, port: int, carrier: Carrier) -> None:
        self.host = host
        self.port = port
        self.is_closed = False
        self._carrier = carrier
        self._backlog: deque[SimulatedStream] = deque()
        self._changed = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<SimulatedListener {self.host}:{self.port}>"

    async def accept(self) -> SimulatedStream:
        """:raises trio.ClosedResourceError: this listener was closed."""
        if self._backlog:
            await trio.lowlevel.checkpoint()
        while not self._backlog:
            if self.is_closed or self._carrier.is_over:
                raise trio.ClosedResourceError("this listener was closed")
            await self._changed.park()
        stream = self._backlog.popleft()
        self._changed.unpark_all()
        return stream

    def offer(self, stream: SimulatedStream) -> None:
        self._backlog.append(stream)
        self._changed.unpark_all()

    async def wait_for_room(self) -> None:
        while len(self._backlog) >= _BACKLOG and not self.is_closed and not self._carrier.is_over:
            await self._changed.park()

    def wake_all(self) -> None:
        self._changed.unpark_all()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Who waits to be accepted is refused."""
        self.is_closed = True
        while self._backlog:
            self._backlog.popleft().abort()
        self._changed.unpark_all()

    def lose_power(self) -> None:
        self.is_closed = True
        self._backlog.clear()
