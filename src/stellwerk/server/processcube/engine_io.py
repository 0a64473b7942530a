"""Engine.IO 4 with Socket.IO 5 on top, as far as it only tells things: packets, and the queue of one client.

(https://socket.io/docs/v4/engine-io-protocol and /socket-io-protocol)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import trio

from stellwerk.ports import Clock, Identity
from stellwerk.server.http.answers import encoded
from stellwerk.server.processcube.notification_reading import Notification

__all__ = ["NAMESPACE", "PING_SECONDS", "PONG_SECONDS", "MalformedPackets", "Queues", "SocketClient"]

NAMESPACE = "/api"
PING_SECONDS = 25.0
PONG_SECONDS = 20.0
_SEPARATOR = "\x1e"
_QUEUE_BYTES_MAX = 4 * 1024 * 1024
_QUEUES_BYTES_MAX = 64 * 1024 * 1024
_TOO_SLOW = "its client fetched too slowly, or never"
_ANSWER_BYTES_MAX = 512 * 1024
_PACKETS_MAX = 1_000
"""In one request."""


class MalformedPackets(Exception):
    """What the peer sent is no Engine.IO."""


class Queues:
    """What waits in all sessions together. Where it is too much, the session with the most goes."""

    def __init__(self, bytes_max: int = _QUEUES_BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._sessions: dict[SocketClient, None] = {}
        self._last: tuple[Notification, bytes] | None = None

    def event(self, notification: Notification) -> bytes:
        """The packet that tells of it: one for all who get it."""
        if self._last is None or self._last[0] is not notification:
            event = encoded([notification.name, notification.message])
            self._last = notification, f"42{NAMESPACE},".encode() + event
        return self._last[1]

    def changed(self, session: SocketClient, more: int) -> None:
        self.bytes += more
        if session.bytes_queued:
            self._sessions[session] = None
        else:
            self._sessions.pop(session, None)
        if self.bytes > self._bytes_max:
            max(self._sessions, key=lambda one: one.bytes_queued).close(_TOO_SLOW)


class SocketClient:
    """One Engine.IO session: what waits to be fetched by its client."""

    def __init__(
        self,
        session_id: str,
        identity: Identity,
        clock: Clock,
        on_close: Callable[[SocketClient], None],
        queues: Queues,
    ) -> None:
        self.session_id = session_id
        self.identity = identity
        self.is_polled = False
        """A request waits for packets: there is never a second one."""
        self.closed = False
        self.closed_for: str | None = None
        """What its client did not do. None: nothing that it has to be told."""
        self.bytes_queued = 0
        self._queues = queues
        self._clock = clock
        self._on_close = on_close
        self._packets: deque[bytes] = deque()
        self._woken = trio.Event()
        self._is_in_namespace = False
        self._heard = clock.monotonic()
        self._pinged = clock.monotonic()

    @property
    def is_lost(self) -> bool:
        """Nothing was heard of it for longer than its heartbeat takes."""
        return not self.is_polled and self._clock.monotonic() - self._heard > PING_SECONDS + PONG_SECONDS

    def opening(self) -> str:
        """The first packet of a session."""
        told = {
            "sid": self.session_id,
            "upgrades": [],
            "pingInterval": int(PING_SECONDS * 1000),
            "pingTimeout": int(PONG_SECONDS * 1000),
            "maxPayload": 1_000_000,
        }
        return "0" + encoded(told).decode()

    # --- to the client

    def notify(self, notification: Notification) -> None:
        if self.is_lost:
            self.close()
        elif self._is_in_namespace and self.identity.may_see(notification.process_key):
            self._queue(self._queues.event(notification))

    def _queue(self, packet: bytes) -> None:
        if self.closed:
            return
        self._packets.append(packet)
        self._woken.set()
        self._weigh(len(packet))
        if self.bytes_queued > _QUEUE_BYTES_MAX:
            self.close(_TOO_SLOW)

    def _weigh(self, more: int) -> None:
        self.bytes_queued += more
        self._queues.changed(self, more)

    async def packets(self) -> str:
        """Wait for some, and give as many as fit; a ping when there are none for long."""
        self.is_polled = True
        self._heard = self._clock.monotonic()
        try:
            with trio.move_on_after(max(0.0, self._pinged + PING_SECONDS - self._clock.monotonic())):
                while not self._packets and not self.closed:
                    self._woken = trio.Event()
                    await self._woken.wait()
        finally:
            self.is_polled = False
            self._heard = self._clock.monotonic()
        if self.closed:
            return "1"
        return _SEPARATOR.join(packet.decode() for packet in self._taken()) or self._ping()

    def _ping(self) -> str:
        self._pinged = self._clock.monotonic()
        return "2"

    def _taken(self) -> Iterator[bytes]:
        left = _ANSWER_BYTES_MAX
        while self._packets and left > 0:
            packet = self._packets.popleft()
            self._weigh(-len(packet))
            left -= len(packet)
            yield packet

    # --- from the client

    def receive(self, text: str) -> None:
        """:raises MalformedPackets: nothing of it was taken."""
        packets = text.split(_SEPARATOR)
        if len(packets) > _PACKETS_MAX or not all(packet[:1] in set("0123456") for packet in packets):
            raise MalformedPackets
        self._heard = self._clock.monotonic()
        for packet in packets:
            match packet[:1]:
                case "1":
                    self.close()
                case "4":
                    self._receive_message(packet[1:])
                case _:
                    pass  # a pong, or nothing of ours

    def _receive_message(self, message: str) -> None:
        """A Socket.IO packet. Events of the client are for nobody here."""
        kind, namespace = message[:1], _namespace_of(message[1:])
        if kind == "0" and namespace == NAMESPACE:
            self._is_in_namespace = True
            self._queue(f"40{NAMESPACE},".encode() + encoded({"sid": self.session_id}))
        elif kind == "0":
            self._queue(f"44{namespace},".encode() + encoded({"message": "Invalid namespace"}))
        elif kind == "1" and namespace == NAMESPACE:
            self._is_in_namespace = False

    def close(self, reason: str | None = None) -> None:
        """:param reason: what its client did not do; it connects anew."""
        if not self.closed:
            self.closed = True
            self.closed_for = reason
            self._packets.clear()
            self._weigh(-self.bytes_queued)
            self._woken.set()
            self._on_close(self)


def _namespace_of(text: str) -> str:
    return text.partition(",")[0].partition("?")[0] if text.startswith("/") else "/"
