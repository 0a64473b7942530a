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

__all__ = ["NAMESPACE", "PING_SECONDS", "PONG_SECONDS", "MalformedPackets", "SocketClient"]

NAMESPACE = "/api"
PING_SECONDS = 25.0
PONG_SECONDS = 20.0
_SEPARATOR = "\x1e"
_QUEUE_BYTES_MAX = 4 * 1024 * 1024
_ANSWER_BYTES_MAX = 512 * 1024
_PACKETS_MAX = 1_000
"""In one request."""


class MalformedPackets(Exception):
    """What the peer sent is no Engine.IO."""


class SocketClient:
    """One Engine.IO session: what waits to be fetched by its client."""

    def __init__(self, session_id: str, identity: Identity, clock: Clock, on_close: Callable[[SocketClient], None]):
        self.session_id = session_id
        self.identity = identity
        self.is_polled = False
        """A request waits for packets: there is never a second one."""
        self.closed = False
        self._clock = clock
        self._on_close = on_close
        self._packets: deque[str] = deque()
        self._bytes = 0
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
            event = encoded([notification.name, notification.message]).decode()
            self._queue(f"42{NAMESPACE},{event}")

    def _queue(self, packet: str) -> None:
        if self.closed:
            return
        self._packets.append(packet)
        self._bytes += len(packet)
        if self._bytes > _QUEUE_BYTES_MAX:
            self.close()  # it fetches too slowly, or never; its client connects anew
        self._woken.set()

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
        return _SEPARATOR.join(self._taken()) or self._ping()

    def _ping(self) -> str:
        self._pinged = self._clock.monotonic()
        return "2"

    def _taken(self) -> Iterator[str]:
        left = _ANSWER_BYTES_MAX
        while self._packets and left > 0:
            packet = self._packets.popleft()
            self._bytes -= len(packet)
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
            self._queue(f"40{NAMESPACE}," + encoded({"sid": self.session_id}).decode())
        elif kind == "0":
            self._queue(f"44{namespace}," + encoded({"message": "Invalid namespace"}).decode())
        elif kind == "1" and namespace == NAMESPACE:
            self._is_in_namespace = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._packets.clear()
            self._woken.set()
            self._on_close(self)


def _namespace_of(text: str) -> str:
    return text.partition(",")[0].partition("?")[0] if text.startswith("/") else "/"
