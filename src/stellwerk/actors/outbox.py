"""What waits to be written to one worker, and what the worker has not confirmed yet (protocol rules 3 and 7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

import attrs
import msgspec
import trio

from stellwerk.actors.leases import HeldLease
from stellwerk.actors.payloads import selected_variables
from stellwerk.core.external_task import ExternalTask
from stellwerk.instants import to_rfc3339
from stellwerk.wire.codec import encode_message
from stellwerk.wire.messages import EngineMessage, LostLeaseNotice, RenewedLease, RevokedLeaseNotice, TaskOffer

__all__ = ["Deliveries", "Outbox", "in_portions", "offer_bytes", "renewed_lease", "selected", "task_offer"]

_OFFER_BYTES = 600
"""What a task's envelope takes in a frame, at most, beside its variables, headers and texts of free length."""
_ENVELOPE_BYTES = 100
"""Of a message with a list of leases, at most, beside the leases."""

Notice = TypeVar("Notice", RenewedLease, RevokedLeaseNotice, LostLeaseNotice)

_encoder = msgspec.json.Encoder()


class Outbox:
    """Messages for the worker, in order. Its owner looks after the bound on `bytes`."""

    def __init__(self) -> None:
        self._messages: deque[EngineMessage] = deque()
        self._changed = trio.Event()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def put(self, message: EngineMessage, size: int | None = None) -> None:
        """``size`` in bytes, about; as it will be written when nobody knows it yet."""
        self._messages.append(message)
        self.bytes += len(encode_message(message)) if size is None else size
        self.wake()

    def take(self) -> list[EngineMessage]:
        messages = list(self._messages)
        self.clear()
        return messages

    def clear(self) -> None:
        self._messages.clear()
        self.bytes = 0

    def wake(self) -> None:
        self._changed.set()

    async def wait(self) -> None:
        """Until something is put in or `wake` is called."""
        self._changed = trio.Event()
        await self._changed.wait()


@attrs.define
class Delivery:
    """A `tasks` message."""

    number: int
    deadline: float
    leases: list[HeldLease]
    size: int
    """Bytes, about."""
    taken: bool = False
    """Handed to the transport: from then on a byte of it may have been written."""


class Deliveries:
    """Those of one session that are neither confirmed nor taken back, in order."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_seconds = timeout_ms / 1000
        self._waiting: deque[Delivery] = deque()
        self.count = 0
        """Of all that there ever were: the number of the last."""
        self.bytes = 0
        """Of those that wait."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, leases: Sequence[HeldLease], size: int, now: float) -> int:
        """Gives its number."""
        self.count += 1
        self.bytes += size
        self._waiting.append(Delivery(self.count, now + self._timeout_seconds, list(leases), size))
        return self.count

    def take_confirmed(self, number: int) -> Iterator[Delivery]:
        while self._waiting and self._waiting[0].number <= number:
            yield self._next()

    def take_overdue(self, now: float) -> Iterator[Delivery]:
        while self.are_overdue(now):
            yield self._next()

    def take_unsent(self) -> list[HeldLease]:
        """The leases of those that will never be written."""
        unsent = [delivery for delivery in self._waiting if not delivery.taken]
        self._waiting = deque(delivery for delivery in self._waiting if delivery.taken)
        self.bytes -= sum(delivery.size for delivery in unsent)
        return [held for delivery in unsent for held in delivery.leases]

    def are_overdue(self, now: float) -> bool:
        return bool(self._waiting) and self._waiting[0].deadline <= now

    def mark_taken(self) -> None:
        for delivery in self._waiting:
            delivery.taken = True

    def leases(self) -> Iterator[HeldLease]:
        for delivery in self._waiting:
            yield from delivery.leases

    def _next(self) -> Delivery:
        delivery = self._waiting.popleft()
        self.bytes -= delivery.size
        return delivery


def in_portions(notices: Sequence[Notice], bytes_max: int) -> Iterator[tuple[Notice, ...]]:
    """As many in each as fit into a frame."""
    portion: list[Notice] = []
    size = _ENVELOPE_BYTES
    for notice in notices:
        bytes_needed = len(_encoder.encode(notice)) + 1
        if portion and size + bytes_needed > bytes_max:
            yield tuple(portion)
            portion, size = [], _ENVELOPE_BYTES
        portion.append(notice)
        size += bytes_needed
    if portion:
        yield tuple(portion)


def offer_bytes(task: ExternalTask) -> int:
    """What a task takes in a frame, at most."""
    texts = len(task.topic) + len(task.element_id) + len(task.definition_id) + len(task.business_key or "")
    return _OFFER_BYTES + len(task.variables) + len(task.headers) + 6 * texts


def selected(task: ExternalTask, names: Sequence[str] | None) -> ExternalTask:
    """The task with these variables only; None: all."""
    return task if names is None else attrs.evolve(task, variables=selected_variables(task.variables, names))


def renewed_lease(held: HeldLease, task: ExternalTask, now: float) -> RenewedLease:
    return RenewedLease(task.task_id, task.fence, _remaining_ms(held, now), _expires_at(task))


def task_offer(held: HeldLease, task: ExternalTask, now: float) -> TaskOffer:
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


def _remaining_ms(held: HeldLease, now: float) -> int:
    return max(0, int((held.deadline - now) * 1000))


def _expires_at(task: ExternalTask) -> str:
    assert task.lease is not None
    return to_rfc3339(task.lease.until_ms)
