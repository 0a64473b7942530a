"""What a handler sees of its task."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import trio

from stellwerk.errors import InvalidInput
from stellwerk.json_values import JsonObject, canonical_object, loads
from stellwerk.wire.messages import TaskOffer
from stellwerk.worker.system import ThreadEvent

__all__ = ["CancelSignal", "Task"]


_EXTENSION_S_MAX = 365 * 24 * 3_600
"""Whatever the engine allows, it is less."""


class CancelSignal:
    """Tells a handler to give up: its lease is lost, or the worker stops. Once set it stays set.

    Coroutine handlers are cancelled anyway; functions in threads look here.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        """``cancelled``, ``expired``, ``suspended``, ``lost`` or ``worker_stops``."""
        # Made by whoever waits first: most tasks end without anybody having waited.
        self._waited_for: dict[str, ThreadEvent] = {}
        self._in_trio: trio.Event | None = None

    def __bool__(self) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        """From any thread."""
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set, for at most so many seconds. True: it is set. Not for coroutines."""
        # `setdefault` is atomic; and the event is there before we look, as `set` looks for it after it has set.
        event = self._waited_for.setdefault("event", ThreadEvent())
        return self.is_set() or event.wait(timeout)

    async def wait_cancelled(self) -> None:
        """For trio coroutines."""
        if self._in_trio is None:
            self._in_trio = trio.Event()
            if self.is_set():
                self._in_trio.set()
        await self._in_trio.wait()

    def set(self, reason: str) -> None:
        """For the worker, in its trio thread."""
        if self.reason is None:
            self.reason = reason
        for event in list(self._waited_for.values()):
            event.set()
        if self._in_trio is not None:
            self._in_trio.set()


class Task:
    """One attempt at an external task: its metadata, its lease and the signal to give up."""

    def __init__(
        self,
        offer: TaskOffer,
        worker_id: str,
        signal: CancelSignal,
        remaining: Callable[[], float],
        extend: Callable[[float], None],
    ) -> None:
        self._offer = offer
        self._remaining = remaining
        self._extend = extend
        self.worker_id = worker_id
        self.signal = signal

    @property
    def id(self) -> str:
        return self._offer.task_id

    @property
    def fence(self) -> int:
        """Grows with each lease of the task. Systems that the handler calls can refuse a smaller one than they saw."""
        return self._offer.fence

    @property
    def topic(self) -> str:
        return self._offer.topic

    @property
    def token_id(self) -> str:
        return self._offer.token_id

    @property
    def process_instance_id(self) -> str:
        return self._offer.process_instance_id

    @property
    def process_definition_id(self) -> str:
        """``key:version``."""
        return self._offer.process_definition_id

    @property
    def business_key(self) -> str | None:
        return self._offer.business_key

    @property
    def element_id(self) -> str:
        """Of the BPMN element."""
        return self._offer.element_id

    @property
    def attempt(self) -> int:
        """Counts from 1."""
        return self._offer.attempt

    @property
    def retries_left(self) -> int:
        return self._offer.retries_left

    @property
    def priority(self) -> int:
        return self._offer.priority

    @property
    def created_at(self) -> str:
        """RFC 3339, UTC, on the engine's clock."""
        return self._offer.created_at

    @property
    def single_try(self) -> bool:
        """An expired lock ends the task: only what surely was not begun, or failed, is offered again."""
        return self._offer.single_try

    @functools.cached_property
    def variables(self) -> JsonObject:
        """The payload as plain JSON, whatever class the handler gets."""
        return canonical_object(loads(bytes(self._offer.variables)))

    @functools.cached_property
    def headers(self) -> JsonObject:
        """Constants of the model."""
        return cast("JsonObject", loads(bytes(self._offer.headers)) or {})

    @property
    def cancelled(self) -> bool:
        """Give up: the lease is lost or the worker stops. From any thread."""
        return self.signal.is_set()

    async def wait_cancelled(self) -> None:
        """For trio coroutines."""
        await self.signal.wait_cancelled()

    @property
    def lock_remaining(self) -> float:
        """For how many seconds the lease can still be trusted without a renewal; 0.0 when it is lost.

        The engine renews it for as long as the handler runs.
        """
        return 0.0 if self.cancelled and self.signal.reason != "worker_stops" else self._remaining()

    def extend(self, seconds: float) -> None:
        """Ask for a lease of at least so many seconds from now. From any thread; does not wait for the answer.

        Needed only by who must outlive a lost connection: the engine renews leases by itself.

        :raises InvalidInput: when it is no positive number, or longer than the engine allows (24 hours).
        """
        given: object = seconds
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not 0 < seconds <= _EXTENSION_S_MAX:  # neither infinite nor NaN, which compares as false
            raise InvalidInput(f"a lease can be extended by a positive number of seconds, not by {seconds!r}")
        self._extend(float(seconds))

    def __repr__(self) -> str:
        return f"<Task {self.id} of topic {self.topic!r}, fence {self.fence}, attempt {self.attempt}>"
