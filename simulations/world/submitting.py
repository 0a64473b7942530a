"""A node's talk with the database: what is asked again, and until when (as `stellwerk.stores.postgres` does it)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import attrs
import trio

from simulations.kernel.draws import fraction
from simulations.kernel.simulation import Simulation
from simulations.world.exchanges import Again, Blocked, ClockWasSet, DatabaseError, Lost, Refused, Request, Unreachable
from stellwerk.errors import StoreUnavailable
from stellwerk.ports import Clock

if TYPE_CHECKING:
    from simulations.world.database import Database

__all__ = ["WHERE", "Doubt", "Line", "Submitter", "WiredLine", "unavailable"]

T = TypeVar("T")

WHERE = "simulated database"

_COMMAND_SECONDS_MAX = 10.0
_CONNECT_SECONDS_MAX = 5.0
_CONNECT_PAUSE_SECONDS_FIRST = 0.1
_TRYING_SECONDS_MAX = 10.0
_IN_DOUBT_SECONDS_MAX = 60.0
_PAUSE_SECONDS_FIRST = 0.005
_PAUSE_SECONDS_MAX = 0.5
_READ_PAUSE_SECONDS_FIRST = 0.05
_READ_PAUSE_SECONDS_MAX = 1.0


class Line(Protocol):
    """The way of requests to the database."""

    async def ask(self, request: Request[T]) -> T:
        """:raises DatabaseError: there is no answer."""

    def post(self, request: Request[object]) -> None:
        """Nobody waits for an answer."""


class WiredLine:
    """Over the network."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ask(self, request: Request[T]) -> T:
        exchange = self._database.begin(request)
        try:
            if not exchange.has_come:
                await exchange.alarm.sleep_until(trio.current_time() + _COMMAND_SECONDS_MAX)
        finally:
            exchange.is_abandoned = not exchange.has_come
        if exchange.is_abandoned:
            raise Lost("does not answer in time")
        return exchange.take()

    def post(self, request: Request[object]) -> None:
        self._database.begin(request).is_abandoned = True


@attrs.define
class Doubt:
    is_in_doubt: bool = False
    """A commit was asked for, and nobody knows what became of it."""


class Submitter:
    """Requests of one node, under names of their own."""

    def __init__(self, line: Line, simulation: Simulation, host: str, name: str, clock: Clock) -> None:
        """:param name: no other node of the run has it."""
        self._line = line
        self._seed = simulation.seed
        self.sometimes = simulation.properties.sometimes
        self._host = host
        self._name = name
        self._clock = clock
        self._numbers = count(1)
        self._batches = count(1)
        self._is_busy = False
        self._is_free = trio.Event()

    def batch_id(self) -> str:
        return f"{self._name}/batch-{next(self._batches)}"

    async def ask(self, kind: Literal["read", "write"], work: Callable[[Database], Awaitable[T]]) -> T:
        """Where there is no connection, one is tried for, for some seconds.

        :raises DatabaseError: there is no answer.
        """
        give_up = self._clock.monotonic() + _CONNECT_SECONDS_MAX
        pause = _CONNECT_PAUSE_SECONDS_FIRST
        while True:
            try:
                return await self._line.ask(self._request(kind, work))
            except Unreachable:
                if self._clock.monotonic() + pause > give_up:
                    raise
            await self._clock.sleep(pause)
            pause *= 2

    def post(self, work: Callable[[Database], Awaitable[object]]) -> None:
        self._line.post(self._request("write", work))

    def _request(self, kind: Literal["read", "write"], work: Callable[[Database], Awaitable[T]]) -> Request[T]:
        return Request(self._host, f"{self._name}/{next(self._numbers)}", kind, work)

    # --- reading ---------------------------------------------------------------------------------------------------

    async def read(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """:raises StoreUnavailable: the database cannot answer."""
        give_up = self._clock.monotonic() + _CONNECT_SECONDS_MAX
        pause = 0.0
        while True:
            try:
                return await self.ask("read", work)
            except DatabaseError as error:
                is_over = pause > 0 and self._clock.monotonic() + pause > give_up
                if is_over or not isinstance(error, Lost | Again):
                    raise unavailable(error) from error
            if pause:
                await self._clock.sleep(pause)
            pause = min(max(2 * pause, _READ_PAUSE_SECONDS_FIRST), _READ_PAUSE_SECONDS_MAX)

    # --- writing ---------------------------------------------------------------------------------------------------

    async def write(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """One statement, which may be done twice."""
        try:
            async with self._turn():
                return await self.ask("write", work)
        except DatabaseError as error:
            raise unavailable(error) from error

    async def until_known(self, attempt: Callable[[Doubt], Awaitable[T]], batch_id: str) -> T:
        """Submit again while that may help, and in any case until it is known whether it was committed.

        :raises StoreUnavailable: nothing was committed, or the message says that this is not known.
            Blocked, ClockWasSet: nothing was committed.
        """
        began = self._clock.monotonic()
        doubt = Doubt()
        for attempts in count():
            try:
                async with self._turn():
                    return await attempt(doubt)
            except DatabaseError as error:
                spent = self._clock.monotonic() - began
                if not _is_worth_repeating(error, doubt, spent):
                    self.sometimes("database: not known whether a batch was committed", doubt.is_in_doubt)
                    raise _told(error, doubt) from error
            await self._clock.sleep(self._pause(attempts, batch_id))
        raise AssertionError("it is tried until it is known")

    def _pause(self, attempts: int, batch_id: str) -> float:
        """Two nodes that were in each other's way draw differently."""
        pause: float = min(_PAUSE_SECONDS_FIRST * (1 << min(attempts, 16)), _PAUSE_SECONDS_MAX)
        return round(pause * (0.5 + fraction(self._seed, "pause", batch_id, attempts) / 2), 6)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """A node writes over one connection."""
        if self._is_busy:
            await self._wait_for_turn()
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False
            self._is_free.set()
            self._is_free = trio.Event()

    async def _wait_for_turn(self) -> None:
        with trio.move_on_after(_COMMAND_SECONDS_MAX):
            while self._is_busy:
                await self._is_free.wait()
        if self._is_busy:
            raise Refused("has not answered an earlier request yet")


def _is_worth_repeating(error: DatabaseError, doubt: Doubt, spent_seconds: float) -> bool:
    if isinstance(error, ClockWasSet):
        return False  # it is not there: that was looked at first
    if doubt.is_in_doubt:
        return spent_seconds < _IN_DOUBT_SECONDS_MAX
    return isinstance(error, Again | Lost) and spent_seconds < _TRYING_SECONDS_MAX


def _told(error: DatabaseError, doubt: Doubt) -> Exception:
    if isinstance(error, ClockWasSet):
        return error
    if doubt.is_in_doubt:
        return StoreUnavailable(
            f"{WHERE}: the connection was lost while committing, and whether it happened is not known"
        )
    return error if isinstance(error, Blocked) else unavailable(error)


def unavailable(error: DatabaseError) -> StoreUnavailable:
    return StoreUnavailable(f"{WHERE}: {error}")
