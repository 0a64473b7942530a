"""A worker's session: the engine's side of the push protocol, over whatever transport.

The transport hands in decoded messages (`handle`) and writes out what `outgoing` gives. The session reconciles what the
worker says it holds with what the engine knows, sees to it that deliveries are confirmed, and answers each request once
it is durable. State, not counters: see the rules in docs/worker-protocol.md and consistency.md 10, 14, 16 to 18.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import attrs
import msgspec
import trio

from stellwerk.actors.leases import HeldLease, Subscription
from stellwerk.actors.payloads import PayloadFilter, make_filter, selected_variables
from stellwerk.actors.requests import RequestServices, WorkerRequests
from stellwerk.core.external_task import ExternalTask, Holder
from stellwerk.errors import CallerError, InvalidInput, LimitExceeded, StellwerkError
from stellwerk.instants import to_rfc3339
from stellwerk.ports import LeaseAnswerKind, ReleaseLease, ReleaseLeases, Resumed
from stellwerk.wire.messages import (
    Ack,
    Authenticate,
    BpmnErrorReport,
    Complete,
    EngineMessage,
    Extend,
    Fail,
    Goaway,
    Goodbye,
    Hello,
    Holding,
    LeaseRef,
    LostLeaseNotice,
    Nack,
    NackCode,
    ProtocolErrorMessage,
    Received,
    Release,
    Renewed,
    RenewedLease,
    Revoked,
    RevokedLeaseNotice,
    SessionLimits,
    Subscribe,
    TaskOffer,
    Tasks,
    Unsubscribe,
    Welcome,
    WorkerMessage,
)
from stellwerk.wire.session import heartbeat_ms

__all__ = ["WorkerSession"]

_SILENT_HEARTBEATS = 4
"""A connection without a word for so long is closed; its leases live until their deadlines."""
_LIVE_HEARTBEATS = 2
"""A report older than this justifies neither a renewal nor new work."""
_OFFER_BYTES = 600
"""What a task's envelope takes in a frame, at most, beside its variables, headers and texts of free length."""
_MESSAGE_BYTES = 200


@attrs.define
class _Delivery:
    number: int
    deadline: float
    leases: list[HeldLease]
    size: int
    """Bytes, about."""
    taken: bool = False
    """Handed to the transport: from then on a byte of it may have been written."""


class WorkerSession:
    """One connection of one worker process."""

    def __init__(self, hello: Hello, session_id: str, services: RequestServices) -> None:
        self.hello = hello
        self.session_id = session_id
        self.holder = Holder(hello.worker_id, hello.boot_id, hello.session_no, session_id)
        self.closed = False
        self.draining = False
        self._services = services
        self._clock = services.ports.clock
        self._limits = services.limits
        self._requests = WorkerRequests(self, services)
        self._subscriptions: dict[str, Subscription] = {}
        self._outbox: deque[EngineMessage] = deque()
        self._outbox_bytes = 0
        self._outbox_changed = trio.Event()
        self._deliveries: deque[_Delivery] = deque()
        self._delivery_count = 0
        self._bytes_in_flight = 0
        """Of all deliveries that are not confirmed."""
        self._bytes_reserved = 0
        """Of tasks that are about to be delivered."""
        self._unconfirmed: int | None = None
        """A delivery that was taken back: no more work until the worker shows that it reads again."""
        self._last_heard = self._clock.monotonic()
        self._report: frozenset[tuple[str, int]] = frozenset((ref.task_id, ref.fence) for ref in hello.holding)
        self._reported_at = self._last_heard
        self._over = trio.Event()
        self.pending: Counter[tuple[str, int]] = Counter()
        """Requests under way, by lease: such leases are never reconciled (consistency.md 16)."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return (
            f"<WorkerSession {self.hello.worker_id!r} no {self.hello.session_no} {state} {list(self._subscriptions)}>"
        )

    # --- WorkerLink ------------------------------------------------------------------------------------------------

    @property
    def heartbeat_ms(self) -> int:
        return heartbeat_ms(min((held.lock_duration_ms for held in self._subscriptions.values()), default=None))

    @property
    def accepts_work(self) -> bool:
        if self.closed or self.draining or self._silent_for() > _LIVE_HEARTBEATS * self.heartbeat_ms / 1000:
            return False
        if self._unconfirmed is not None or self._is_full:
            return False
        return not self._deliveries or self._deliveries[0].deadline > self._clock.monotonic()

    @property
    def _is_full(self) -> bool:
        """A frame's worth of tasks is under way: large tasks go in turns, so that none is leased but not sent."""
        return self._bytes_in_flight + self._bytes_reserved >= self._limits.frame_bytes_max

    def reserve(self, payload_bytes: int) -> None:
        self._bytes_reserved += payload_bytes

    def end_reservation(self, payload_bytes: int) -> None:
        was_full = self._is_full
        self._bytes_reserved -= payload_bytes
        if was_full and not self._is_full:
            self._services.wake_dispatchers(self._subscriptions)

    @property
    def is_busy(self) -> bool:
        """It holds leases, is about to get some, or waits for an answer."""
        holds = any(held.leases or held.reserved for held in self._subscriptions.values())
        return holds or any(self.pending.values())

    def vouches_for(self, task_id: str, fence: int) -> bool:
        age = self._clock.monotonic() - self._reported_at
        return (
            not self.closed and age <= _LIVE_HEARTBEATS * self.heartbeat_ms / 1000 and (task_id, fence) in self._report
        )

    def deliver(self, leases: Sequence[tuple[HeldLease, ExternalTask]]) -> None:
        """Queue `tasks` frames for leases that are durable. What cannot be sent any more is given back at once."""
        if self.closed:
            self._services.spawn(self._give_back, [held for held, _ in leases], False)
            return
        frame: list[tuple[HeldLease, ExternalTask]] = []
        size = 0
        for held, whole in leases:
            task = _with_selected_variables(whole, held.subscription)
            bytes_needed = _offer_bytes(task)
            if bytes_needed > self._limits.frame_bytes_max:
                self._services.undeliverable(task, bytes_needed)
                continue
            if size + bytes_needed > self._limits.frame_bytes_max:
                self._send_tasks(frame, size)
                frame, size = [], 0
            frame.append((held, task))
            size += bytes_needed
        if frame:
            self._send_tasks(frame, size)

    def renewed(self, leases: Sequence[tuple[HeldLease, ExternalTask]]) -> None:
        notices = tuple(_renewed_lease(held, task, self._clock.monotonic()) for held, task in leases)
        self.send(Renewed(notices, server_time_ms=self._server_time_ms()), _MESSAGE_BYTES * len(notices))

    def revoked(self, leases: Sequence[tuple[str, int]], reason: str) -> None:
        notices = tuple(RevokedLeaseNotice(task_id, fence, reason) for task_id, fence in leases)
        self._services.session_statistics.revoked += len(notices)
        self.send(Revoked(notices), _MESSAGE_BYTES * len(notices))

    # --- the transport ---------------------------------------------------------------------------------------------

    async def handle(self, messages: Sequence[WorkerMessage]) -> None:
        """Take one frame's messages. Waits only for room in mailboxes: that is the back-pressure on the worker."""
        accepted_work = self.accepts_work
        self._last_heard = self._clock.monotonic()
        for message in messages:
            if self.closed:
                return
            try:
                await self._handle(message)
            except CallerError as error:
                self.close(error.code, error.message)
        if self.accepts_work and not accepted_work:
            self._services.wake_dispatchers(self._subscriptions)

    async def outgoing(self) -> Sequence[EngineMessage] | None:
        """Wait for messages and take all that piled up. None: the session is over, close the connection."""
        while not self._outbox:
            if self.closed:
                return None
            self._outbox_changed = trio.Event()
            await self._outbox_changed.wait()
        messages = list(self._outbox)
        self._outbox.clear()
        self._outbox_bytes = 0
        for delivery in self._deliveries:
            delivery.taken = True
        return messages

    def disconnected(self) -> None:
        """The connection is gone. Leases stay until their deadlines, but what was never sent goes back at once."""
        self._end()
        unsent = [held for delivery in self._deliveries if not delivery.taken for held in delivery.leases]
        self._deliveries = deque(delivery for delivery in self._deliveries if delivery.taken)
        if unsent:
            self._services.spawn(self._give_back, unsent, False)

    def close(self, code: str, message: str) -> None:
        """Say why, then end the session."""
        if not self.closed:
            self.send(ProtocolErrorMessage(code, message))
            self._end()

    def _end(self) -> None:
        if not self.closed:
            self.closed = True
            self._services.session_ended(self)
        self._outbox_changed.set()

    def send(self, message: EngineMessage, size: int = _MESSAGE_BYTES) -> None:
        if self.closed:
            return
        self._outbox.append(message)
        self._outbox_bytes += size
        self._outbox_changed.set()
        if self._outbox_bytes > self._limits.session_outbox_bytes_max:
            self._outbox.clear()
            self.close(NackCode.TOO_SLOW, f"{self._outbox_bytes} bytes wait to be read")

    def go_away(self, reason: str, within_ms: int) -> None:
        self.draining = True
        self.send(Goaway(reason, within_ms))

    # --- welcome ---------------------------------------------------------------------------------------------------

    def welcome(self, resumed: Resumed, kept: Sequence[HeldLease]) -> None:
        """The first message: what became of what the worker holds. ``kept`` stands for ``resumed.kept``."""
        now = self._clock.monotonic()
        self.send(
            Welcome(
                session=self.session_id,
                server_time_ms=self._server_time_ms(),
                heartbeat_ms=self.heartbeat_ms,
                limits=SessionLimits(
                    frame_bytes_max=self._limits.frame_bytes_max,
                    payload_bytes_max=self._limits.payload_bytes_max,
                    max_tasks_max=self._limits.worker_max_tasks_max,
                    lock_duration_ms_min=self._limits.lock_duration_ms_min,
                    lock_duration_ms_max=self._limits.lock_duration_ms_max,
                ),
                kept=tuple(_renewed_lease(held, task, now) for held, task in zip(kept, resumed.kept, strict=True)),
                lost=tuple(LostLeaseNotice(lost.task_id, lost.fence, lost.reason) for lost in resumed.lost),
            )
        )

    # --- messages of the worker ------------------------------------------------------------------------------------

    async def _handle(self, message: WorkerMessage) -> None:
        match message:
            case Complete() | Fail() | BpmnErrorReport() | Extend() | Release():
                await self._requests.handle(message)
            case Received():
                self._confirm(message.delivery)
            case Holding():
                self._reconcile(message.leases)
            case Subscribe():
                self._subscribe(message)
            case Unsubscribe():
                self.subscription(message.topic).max_tasks = 0
            case Hello():
                raise InvalidInput("hello was said before")
            case Authenticate():
                self.hello = attrs.evolve(self.hello, token=message.token)
            case Goodbye():
                self._end()

    def _subscribe(self, message: Subscribe) -> None:
        limits = self._limits
        if not message.topic or len(message.topic) > limits.topic_chars_max:
            raise InvalidInput(f"a topic has 1 to {limits.topic_chars_max} characters @ $.topic")
        if not 0 <= message.max_tasks <= limits.worker_max_tasks_max:
            raise InvalidInput(f"max_tasks is 0 to {limits.worker_max_tasks_max} @ $.max_tasks")
        self.check_lock_duration(message.lock_duration_ms)
        if message.variables is not None and len(message.variables) > limits.variable_names_max:
            raise InvalidInput(f"at most {limits.variable_names_max} variables can be named @ $.variables")
        payload_filter = self._payload_filter(message)
        subscription = self.subscription(message.topic)
        subscription.max_tasks = message.max_tasks
        subscription.lock_duration_ms = message.lock_duration_ms
        subscription.variables = message.variables
        if payload_filter is not subscription.filter:
            subscription.filter = payload_filter
            self._services.dispatcher(message.topic).filters_changed()
        self._services.wake_dispatchers([message.topic])

    def _payload_filter(self, message: Subscribe) -> PayloadFilter | None:
        """The one that the subscription has, if it stays the same: workers subscribe again for every change of room."""
        if message.filter is None:
            return None
        known = self._subscriptions.get(message.topic)
        if known is not None and known.filter is not None and known.filter.text == message.filter:
            return known.filter
        return make_filter(message.filter, self._limits)

    def subscription(self, topic: str) -> Subscription:
        """The session's part in a topic; without room until the worker subscribes."""
        found = self._subscriptions.get(topic)
        if found is None:
            if len(self._subscriptions) >= self._limits.session_topics_max:
                raise LimitExceeded(f"a session has at most {self._limits.session_topics_max} topics")
            found = self._services.dispatcher(topic).add_worker(self)
            self._subscriptions[topic] = found
        return found

    @property
    def topics(self) -> Sequence[str]:
        return tuple(self._subscriptions)

    def check_lock_duration(self, duration_ms: int) -> None:
        """:raises InvalidInput: outside the documented limits."""
        low, high = self._limits.lock_duration_ms_min, self._limits.lock_duration_ms_max
        if not low <= duration_ms <= high:
            raise InvalidInput(f"a lock lasts {low} to {high} ms, not {duration_ms} @ $.lock_duration_ms")

    # --- delivery --------------------------------------------------------------------------------------------------

    def _send_tasks(self, leases: Sequence[tuple[HeldLease, ExternalTask]], size: int) -> None:
        self._delivery_count += 1
        now = self._clock.monotonic()
        deadline = now + self._limits.delivery_timeout_ms / 1000
        self._deliveries.append(_Delivery(self._delivery_count, deadline, [held for held, _ in leases], size))
        self._bytes_in_flight += size
        offers = tuple(_offer(held, task, now) for held, task in leases)
        self.send(Tasks(self._delivery_count, offers, server_time_ms=self._server_time_ms()), size)

    def _confirm(self, delivery: int) -> None:
        if delivery > self._delivery_count:
            raise InvalidInput(f"delivery {delivery} was never sent @ $.delivery")
        if self._unconfirmed is not None and delivery >= self._unconfirmed:
            self._unconfirmed = None
        while self._deliveries and self._deliveries[0].number <= delivery:
            confirmed = self._next_delivery()
            # Vouched for until the next report comes: it arrived, and reports follow every heartbeat.
            self._report |= {(held.task_id, held.fence) for held in confirmed.leases}

    def _next_delivery(self) -> _Delivery:
        """It is confirmed or taken back."""
        delivery = self._deliveries.popleft()
        self._bytes_in_flight -= delivery.size
        return delivery

    def _reconcile(self, leases: Sequence[LeaseRef]) -> None:
        self._report = frozenset((lease.task_id, lease.fence) for lease in leases)
        self._reported_at = self._clock.monotonic()
        unconfirmed = {id(held) for delivery in self._deliveries for held in delivery.leases}
        missing = [
            held
            for subscription in self._subscriptions.values()
            for held in subscription.leases.values()
            if (held.task_id, held.fence) not in self._report
            and id(held) not in unconfirmed
            and not self.pending[held.task_id, held.fence]
        ]
        if missing:
            self._services.spawn(self._give_back, missing, True)
        lost = [key for key in self._report if self._is_lost(key)]
        if lost:
            self.revoked(sorted(lost), "lost")

    def _is_lost(self, key: tuple[str, int]) -> bool:
        if self.pending[key] or self._services.leases.is_finished(*key):
            return False
        held = self._services.leases.get(*key)
        return held is None or held.link is not self

    def finished(self, task_id: str, fence: int) -> None:
        """A request that ends the lease was answered."""
        held = self._services.leases.finish(task_id, fence)
        if held is not None:
            self._services.wake_dispatchers([held.subscription.topic])

    async def _give_back(self, leases: Sequence[HeldLease], started: bool) -> None:
        """Release leases that the worker never got (``started`` False) or does not report any more."""
        wishes = tuple(ReleaseLease(held.task_id, held.fence, self.session_id, started) for held in leases)
        answers = await self._services.committer.submit(ReleaseLeases(wishes))
        assert isinstance(answers, tuple)
        for held, answer in zip(leases, answers, strict=True):
            self._services.leases.remove(held.task_id, held.fence)
            if answer.kind is LeaseAnswerKind.DONE and answer.task is not None:
                self._services.returned(answer.task)

    # --- watching --------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Take back what is not confirmed in time, close a connection that fell silent. Ends with the session."""
        while not self.closed or self._deliveries:
            try:
                await self._take_back_overdue()
            except StellwerkError as error:
                self._services.ports.log.warning("cannot take back a delivery now", reason=error.message)
            if self._silent_for() > _SILENT_HEARTBEATS * self.heartbeat_ms / 1000:
                self.close(NackCode.TOO_SLOW, "nothing was heard for several heartbeats")
            await self._clock.sleep(min(self.heartbeat_ms, self._limits.delivery_timeout_ms) / 2000)

    async def _take_back_overdue(self) -> None:
        now = self._clock.monotonic()
        overdue: list[HeldLease] = []
        while self._deliveries and self._deliveries[0].deadline <= now:
            delivery = self._next_delivery()
            self._unconfirmed = delivery.number
            overdue += delivery.leases
        if overdue:
            self._services.session_statistics.taken_back += len(overdue)
            await self._give_back(overdue, True)
            self.revoked([(held.task_id, held.fence) for held in overdue], "lost")

    def _silent_for(self) -> float:
        return self._clock.monotonic() - self._last_heard

    def _server_time_ms(self) -> float:
        return self._clock.monotonic() * 1000

    # --- answers ---------------------------------------------------------------------------------------------------

    def acknowledge(self, ref: int) -> None:
        self.send(Ack(ref))

    def refuse(self, ref: int, error: StellwerkError) -> None:
        self.send(Nack(ref, error.code, error.message, retryable=error.retryable))


def _offer_bytes(task: ExternalTask) -> int:
    texts = len(task.topic) + len(task.element_id) + len(task.definition_id) + len(task.business_key or "")
    return _OFFER_BYTES + len(task.variables) + len(task.headers) + 6 * texts


def _with_selected_variables(task: ExternalTask, subscription: Subscription) -> ExternalTask:
    if subscription.variables is None:
        return task
    return attrs.evolve(task, variables=selected_variables(task.variables, subscription.variables))


def _remaining_ms(held: HeldLease, now: float) -> int:
    return max(0, int((held.deadline - now) * 1000))


def _expires_at(task: ExternalTask) -> str:
    assert task.lease is not None
    return to_rfc3339(task.lease.until_ms)


def _renewed_lease(held: HeldLease, task: ExternalTask, now: float) -> RenewedLease:
    return RenewedLease(task.task_id, task.fence, _remaining_ms(held, now), _expires_at(task))


def _offer(held: HeldLease, task: ExternalTask, now: float) -> TaskOffer:
    return TaskOffer(
        task_id=task.task_id,
        fence=task.fence,
        topic=task.topic,
        token_id=task.token_id,
        process_instance_id=task.instance_id,
        process_definition_id=task.definition_id,
        business_key=task.business_key,
        element_id=task.element_id,
        attempt=task.attempt,
        retries_left=task.retries_left,
        priority=task.priority,
        created_at=to_rfc3339(task.created_at_ms),
        lock_remaining_ms=_remaining_ms(held, now),
        lock_expires_at=_expires_at(task),
        variables=msgspec.Raw(task.variables),
        headers=msgspec.Raw(task.headers),
        single_try=task.single_try,
    )
