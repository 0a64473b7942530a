"""What nodes ask the database, and what comes back in place of an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

import attrs

from simulations.kernel.clock import Alarm
from stellwerk.ports import Operation
from stellwerk.stores.postgres.clock_watch import ClockJump
from stellwerk.values import frozen

if TYPE_CHECKING:
    from simulations.world.database import Database

__all__ = [
    "DATABASE",
    "Again",
    "Batch",
    "Blocked",
    "Carrier",
    "ClockWasSet",
    "DatabaseError",
    "Exchange",
    "Lost",
    "Programs",
    "Refused",
    "Request",
    "Unreachable",
]

T = TypeVar("T")

DATABASE = "database"
"""The host's name."""


class Carrier(Protocol):
    """The part of the network that the database needs."""

    async def carry(self, source: str, target: str) -> None:
        """One message from host to host."""


class Programs(Protocol):
    """The part of the hosts that the database needs."""

    def start(self, name: str, program: Callable[[], Awaitable[None]]) -> None: ...

    def stop(self, name: str) -> None: ...


class DatabaseError(Exception):
    """In the place of an answer; as the faults of `stellwerk.stores.postgres.faults`."""


class Lost(DatabaseError):
    """No answer: what was sent may have happened."""


class Refused(DatabaseError):
    """It cannot now. Nothing was committed."""


class Unreachable(Refused):
    """There is no connection to be had. Nothing was begun."""


class Again(DatabaseError):
    """Others were in the way; nothing was committed, and doing it again helps."""


class Blocked(DatabaseError):
    """Another transaction has kept a row locked for too long; nothing was committed."""


class ClockWasSet(DatabaseError):
    """The database's clock was set since the node looked at it last. A real node looks before each transaction; this
    spares the looks that would find nothing."""


@frozen
class Batch:
    """Operations under one id: committed once, as often as they are submitted (consistency.md 3)."""

    batch_id: str
    node: str
    """The host."""
    operations: Sequence[Operation]
    jump: ClockJump | None = None
    jumps_seen: int = 0
    """How many settings of the database's clock the node has noticed."""


@attrs.define(eq=False)
class Request(Generic[T]):
    source: str
    """The host."""
    key: Hashable
    """Names the request among all of the run, for draws."""
    kind: Literal["read", "write"]
    work: Callable[[Database], Awaitable[T]]
    """Done in the database's place."""


@attrs.define(eq=False)
class Exchange(Generic[T]):
    """A request on its way, and what comes back."""

    request: Request[T]
    number: int
    has_come: bool = False
    """The answer, or an error."""
    alarm: Alarm = attrs.field(factory=Alarm)
    """Of who waits for it."""
    is_abandoned: bool = False
    """Nobody waits for the answer any more."""
    _answers: list[Any] = attrs.field(factory=list)
    error: Exception | None = None

    def answer(self, value: T) -> None:
        self._answers.append(value)
        self._come()

    def fail(self, error: Exception) -> None:
        if not self.has_come:
            self.error = error
            self._come()

    def _come(self) -> None:
        self.has_come = True
        self.alarm.wake()

    def take(self) -> T:
        if self.error is not None:
            raise self.error
        value: T = self._answers[0]
        return value
