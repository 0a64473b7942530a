"""The worker's side of one session: hello, welcome, and then frames both ways until the connection ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Protocol, assert_never

import attrs
import trio

from stellwerk.wire.codec import UnknownMessage, decode_engine_frame, encode_message, pack_frames
from stellwerk.wire.messages import (
    Ack,
    EngineMessage,
    Goaway,
    Goodbye,
    Hello,
    Holding,
    LeaseRef,
    Nack,
    ProtocolErrorMessage,
    Reauthenticate,
    Received,
    Renewed,
    Revoked,
    SessionLimits,
    Subscribe,
    TaskOffer,
    Tasks,
    Welcome,
    WorkerMessage,
)
from stellwerk.wire.session import heartbeat_ms, lease_deadline_ms
from stellwerk.worker.connection import CONNECT_TIMEOUT_S, FRAME_BYTES_MAX, Link
from stellwerk.worker.errors import ConnectionLost, Refused
from stellwerk.worker.handler import Handler
from stellwerk.worker.leases import LeaseKey
from stellwerk.worker.reports import Logger
from stellwerk.worker.system import Clock

__all__ = ["Session", "SessionOwner"]

_PATIENCE_S_MIN = 1.0
"""A pause of the engine of less than this is no lost connection, however short the locks."""


class SessionOwner(Protocol):
    """What a session needs from the worker that it serves. Deadlines are on the worker's clock, in ms."""

    def holding(self) -> tuple[LeaseRef, ...]: ...

    def room_of(self, topic: str) -> int:
        """For how many leases of the topic there is room at once."""

    def welcomed(self, session: Session, kept: Mapping[LeaseKey, float], lost: Mapping[LeaseKey, str]) -> None:
        """What became of the leases that hello named: deadlines of those kept, reasons of those lost."""

    def task_arrived(self, offer: TaskOffer, deadline_ms: float) -> None: ...
    def renewed(self, key: LeaseKey, deadline_ms: float) -> None: ...
    def revoked(self, key: LeaseKey, reason: str) -> None: ...
    def acked(self, ref: int) -> None: ...
    def nacked(self, nack: Nack) -> None: ...
    def token_wanted(self, session: Session) -> None: ...

    def sent_away(self, session: Session, reason: str, within_s: float) -> None:
        """The engine drains: no new work comes in this session."""

    def alive(self, pongs: int) -> None:
        """Tasks arrived, or the engine answered a ping; in this session so many were answered."""


class Session:
    def __init__(
        self, link: Link, owner: SessionOwner, clock: Clock, handlers: Mapping[str, Handler], log: Logger
    ) -> None:
        self._link = link
        self._owner = owner
        self._clock = clock
        self._handlers = handlers
        self._log = log
        self._queue: deque[WorkerMessage] = deque()
        self._wake = trio.Event()
        self._subscribed: dict[str, int] = {}
        self._received = 0
        self._received_sent = 0
        self._report_due = False
        self._goodbye = False
        self._leaving = False
        self._pongs = 0
        self._hello_ms = 0.0
        self.limits = SessionLimits(FRAME_BYTES_MAX, FRAME_BYTES_MAX, 10_000, 1, 2**53)

    # --- for the worker ------------------------------------------------------------------------------------------

    def send(self, message: WorkerMessage) -> None:
        """Leaves with whatever else has piled up by the time the writer comes to it."""
        self._queue.append(message)
        self._wake.set()

    def room_changed(self) -> None:
        """The worker has room for more or fewer tasks of some topic than it said."""
        self._wake.set()

    def say_goodbye(self) -> None:
        """Send what is queued, then a goodbye, then close; `run` returns."""
        self._goodbye = True
        self._wake.set()

    def leave(self) -> None:
        """Send what is queued, then close; `run` returns. What is held goes on in the next session."""
        self._leaving = True
        self._wake.set()

    # --- life ----------------------------------------------------------------------------------------------------

    async def run(self, hello: Hello) -> None:
        """Until goodbye was said, or `leave`.

        :raises ConnectionLost: when the engine is silent; the link's own errors when it breaks.
        :raises Refused: when the engine sent an ``error``.
        """
        with trio.move_on_after(CONNECT_TIMEOUT_S) as patience:
            await self._be_welcomed(hello)
        if patience.cancelled_caught:
            raise ConnectionLost(f"the engine sent no welcome within {CONNECT_TIMEOUT_S:g} s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            nursery.start_soon(self._report)
            nursery.start_soon(self._ping)
            await self._write()
            nursery.cancel_scope.cancel()
        await self._link.close()

    async def _be_welcomed(self, hello: Hello) -> None:
        self._hello_ms = self._now_ms()
        await self._link.send(encode_message(attrs.evolve(hello, worker_time_ms=self._hello_ms)))
        first, *rest = await self._receive()
        match first:
            case Welcome() as welcome:
                self._welcome(welcome, hello.holding)
            case ProtocolErrorMessage(code, text):
                raise Refused(text, code=code)
            case _:
                raise Refused(f"the engine sent {type(first).__name__} before its welcome", code="invalid")
        for message in rest:
            self._handle(message)

    def _welcome(self, welcome: Welcome, held: tuple[LeaseRef, ...]) -> None:
        self.limits = welcome.limits
        kept = {
            (lease.task_id, lease.fence): self._deadline_ms(welcome.worker_time_ms, lease.lock_remaining_ms)
            for lease in welcome.kept
        }
        lost = {(lease.task_id, lease.fence): lease.reason for lease in welcome.lost}
        for lease in held:
            if (lease.task_id, lease.fence) not in kept:
                lost.setdefault((lease.task_id, lease.fence), "lost")
        self._owner.welcomed(self, kept, lost)
        self._wake.set()

    async def _receive(self) -> list[EngineMessage | UnknownMessage]:
        return decode_engine_frame(await self._link.receive(), FRAME_BYTES_MAX)

    async def _read(self) -> None:
        while True:
            for message in await self._receive():
                self._handle(message)

    def _handle(self, message: EngineMessage | UnknownMessage) -> None:
        match message:
            case Tasks() | Renewed() | Revoked():
                self._handle_leases(message)
            case Ack(ref):
                self._owner.acked(ref)
            case Nack():
                self._owner.nacked(message)
            case Reauthenticate():
                self._owner.token_wanted(self)
            case Goaway(reason, within_ms):
                self._owner.sent_away(self, reason, within_ms / 1000)
            case UnknownMessage():
                self._log.info("the engine sent %s", message)
            case ProtocolErrorMessage(code, text):
                raise Refused(text, code=code)
            case Welcome():
                raise Refused("the engine sent a second welcome", code="invalid")
            case _:
                assert_never(message)

    def _handle_leases(self, message: Tasks | Renewed | Revoked) -> None:
        match message:
            case Tasks():
                self._handle_tasks(message)
            case Renewed(leases):
                for lease in leases:
                    deadline_ms = self._deadline_ms(message.worker_time_ms, lease.lock_remaining_ms)
                    self._owner.renewed((lease.task_id, lease.fence), deadline_ms)
            case Revoked(leases):
                for notice in leases:
                    self._owner.revoked((notice.task_id, notice.fence), notice.reason)
            case _:
                assert_never(message)

    def _handle_tasks(self, frame: Tasks) -> None:
        self._received = max(self._received, frame.delivery)
        for offer in frame.tasks:
            deadline_ms = self._deadline_ms(frame.worker_time_ms, offer.lock_remaining_ms)
            self._owner.task_arrived(offer, deadline_ms)
        self._owner.alive(self._pongs)
        self._wake.set()

    def _deadline_ms(self, made_ms: float | None, lock_remaining_ms: int) -> float:
        """``made_ms``: what our clock showed at least when the frame was made; the engine need not know."""
        if made_ms is None:
            made_ms = self._hello_ms  # nothing was made in this session before
        return lease_deadline_ms(made_ms, lock_remaining_ms)

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    # --- writing -------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Sends what has piled up, in as few frames as possible, until goodbye was said or the session is left."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            for frame in pack_frames(self._outgoing(), self.limits.frame_bytes_max):
                await self._link.send(frame)
            if self._goodbye and not self._wake.is_set():
                await self._link.send(encode_message(Goodbye()))
                return
            if self._leaving and not self._wake.is_set():
                return

    def _outgoing(self) -> list[WorkerMessage]:
        outgoing: list[WorkerMessage] = []
        if self._received > self._received_sent:
            self._received_sent = self._received
            outgoing.append(Received(self._received))
        outgoing.extend(self._changed_subscriptions())
        outgoing.extend(self._queue)
        self._queue.clear()
        if self._report_due:
            # Made when it leaves: after a `received` it names all tasks of these deliveries (protocol rule 2).
            self._report_due = False
            outgoing.append(Holding(self._owner.holding(), self._now_ms()))
        return outgoing

    def _changed_subscriptions(self) -> Iterator[Subscribe]:
        for topic, handler in self._handlers.items():
            room = min(self._owner.room_of(topic), self.limits.max_tasks_max)
            if self._subscribed.get(topic) != room:
                self._subscribed[topic] = room
                lock_ms = self._lock_duration_ms(handler)
                yield Subscribe(topic, room, lock_ms, handler.filter, handler.variables)

    def _lock_duration_ms(self, handler: Handler) -> int:
        limits = self.limits
        return max(limits.lock_duration_ms_min, min(handler.lock_duration_ms, limits.lock_duration_ms_max))

    # --- heartbeats ----------------------------------------------------------------------------------------------

    def _heartbeat_s(self) -> float:
        shortest = min((self._lock_duration_ms(handler) for handler in self._handlers.values()), default=None)
        return heartbeat_ms(shortest) / 1000

    async def _report(self) -> None:
        while True:
            await self._clock.sleep(self._heartbeat_s())
            self._report_due = True
            self._wake.set()

    async def _ping(self) -> None:
        """The protocol has no heartbeat of the engine: that it answers pings shows that it reads and writes."""
        while True:
            patience_s = max(2 * self._heartbeat_s(), _PATIENCE_S_MIN)
            with trio.move_on_after(patience_s) as patience:
                await self._link.ping()
            if patience.cancelled_caught:
                raise ConnectionLost(f"the engine answered no ping within {patience_s:g} s")
            self._pongs += 1
            self._owner.alive(self._pongs)
            await self._clock.sleep(self._heartbeat_s())
