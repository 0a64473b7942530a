"""Bounded mailboxes and one-shot replies: how actors talk to each other.

A deque with a parking lot costs a fraction of a memory channel, and a woken actor takes all that lies in its mailbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from stellwerk.values import frozen

__all__ = ["Mailbox", "MailboxClosed", "MailboxStatistics", "Reply"]

T = TypeVar("T")


@frozen
class MailboxStatistics:
    waiting: int
    capacity: int
    senders_waiting: int


class Sleeper:
    """One task that sleeps until it is woken. A parking lot or an event, which take many, cost three times as much."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    async def sleep(self) -> None:
        assert self._task is None, "somebody sleeps here already"
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._give_up)

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def wake(self) -> None:
        """Nothing happens while nobody sleeps."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)


class MailboxClosed(Exception):
    """Its actor is gone; the item was not taken."""


class Mailbox(Generic[T]):
    """Many senders, one receiver, at most `capacity` items; a sender waits for room."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque()
        self._capacity = capacity
        self._receiver = Sleeper()
        self._senders = trio.lowlevel.ParkingLot()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Mailbox {len(self._items)}/{self._capacity}>"

    def __len__(self) -> int:
        return len(self._items)

    @property
    def idle(self) -> bool:
        """Nothing waits in it or for it."""
        return not self._items and not self._senders

    async def put(self, item: T) -> None:
        """:raises MailboxClosed: the actor ended before there was room."""
        while len(self._items) >= self._capacity and not self._closed:
            await self._senders.park()
        if self._closed:
            raise MailboxClosed
        self.put_unbounded(item)

    def close(self) -> list[T]:
        """Take what is left; senders that wait, or come later, get `MailboxClosed`."""
        self._closed = True
        left = list(self._items)
        self._items.clear()
        self._senders.unpark_all()
        return left

    def put_unbounded(self, item: T) -> None:
        """Without asking for room: for an actor's messages to itself, whose number follows from its own bounds."""
        self._items.append(item)
        self._receiver.wake()

    async def get_all(self) -> list[T]:
        """Wait for at least one item, then take what is there."""
        await self.wait()
        return self.take()

    async def wait(self) -> None:
        """Until there is an item."""
        while not self._items:
            await self._receiver.sleep()

    def take(self, items_max: int | None = None) -> list[T]:
        """What is there now, possibly nothing."""
        if items_max is None or len(self._items) <= items_max:
            taken = list(self._items)
            self._items.clear()
        else:
            taken = [self._items.popleft() for _ in range(items_max)]
        if taken and self._senders:
            self._senders.unpark(count=len(taken))
        return taken

    def statistics(self) -> MailboxStatistics:
        return MailboxStatistics(len(self._items), self._capacity, len(self._senders))


class Reply(Generic[T]):
    """An answer that comes once: a value or an error. Either somebody waits for it, or a callback takes it."""

    __slots__ = ("_callback", "_error", "_value", "_waiter", "answered")

    def __init__(self, callback: Callable[[Reply[T]], None] | None = None) -> None:
        self._callback = callback
        self._waiter: Sleeper | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self.answered = False

    def set(self, value: T) -> None:
        self._value = value
        self._finish()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._finish()

    def _finish(self) -> None:
        assert not self.answered, "a reply is answered once"
        self.answered = True
        if self._waiter is not None:
            self._waiter.wake()
        if self._callback is not None:
            self._callback(self)

    def result(self) -> T:
        """The value, or the error raised. Only after it was answered."""
        assert self.answered
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    async def wait(self) -> T:
        if not self.answered:
            if self._waiter is None:
                self._waiter = Sleeper()
            await self._waiter.sleep()
        return self.result()
