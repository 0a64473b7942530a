"""One transaction, done once, whatever happens to the connection on the way (consistency.md 3).

Its first statement inserts a row with an id of its own. Who does not hear whether the commit happened submits the same
id again: the database waits for the old transaction, should that still be under way, and says whether the row is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar
from uuid import UUID

import asyncpg

from stellwerk.errors import InvariantBroken, StoreUnavailable
from stellwerk.instants import InstantMs
from stellwerk.stores.postgres.connections import Connections
from stellwerk.stores.postgres.faults import DATABASE_ERRORS, Fault, fault_of, unavailable

__all__ = ["Done", "Submission", "transact_once", "until_known"]

T = TypeVar("T")
R = TypeVar("R", covariant=True)

Done = tuple[T, bool]
"""What a transaction gives, and whether it wrote anything: else there is nothing to commit."""
_Work = Callable[[asyncpg.Connection], Awaitable[Done[T]]]

_TRYING_SECONDS_MAX = 10.0
_IN_DOUBT_SECONDS_MAX = 60.0
"""Much less than the rows of batches are kept for."""
_PAUSE_SECONDS_FIRST = 0.005
_PAUSE_SECONDS_MAX = 0.5

# All statements go by keys or along an index, whatever the statistics say: with none yet the planner would read tables.
_BEGIN_BATCH = """
WITH begun AS (
    INSERT INTO stellwerk.batches (batch_id, now_ms)
    VALUES (coalesce($1::uuid, gen_random_uuid()), coalesce($2::bigint, stellwerk.now_ms()))
    ON CONFLICT DO NOTHING RETURNING batch_id
) SELECT batch_id, set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true) FROM begun"""


async def transact_once(connections: Connections, work: _Work[T], now_ms: InstantMs | None) -> T:
    """Do `work` in a transaction and commit it, if it wrote anything. It is done again when others were in the way or
    the connection was lost, but committed only once.

    Raises what `work` raises, among it errors of the driver about data and locks; then nothing was committed.

    :raises StoreUnavailable: nothing was committed, or the message says that this is not known.
    """
    return await until_known(connections, _Transaction(connections, work, now_ms))


class Submission(Protocol[R]):
    """What is committed under one batch id, as often as it is submitted."""

    batch_id: UUID | None
    is_in_doubt: bool
    """A commit was asked for, and nobody knows what became of it."""

    async def attempt(self, connection: asyncpg.Connection) -> R:
        """Submit it; or, where an earlier attempt turns out to have been committed, give what that one gave."""


async def until_known(connections: Connections, submission: Submission[T]) -> T:
    """Submit it again while that may help, and in any case until it is known whether it was committed.

    Raises what an attempt raises, among it errors of the driver about data and locks; then nothing was committed.

    :raises StoreUnavailable: nothing was committed, or the message says that this is not known.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    attempt = 0
    while True:
        try:
            return await connections.write(submission.attempt)
        except (*DATABASE_ERRORS, StoreUnavailable) as error:
            spent = loop.time() - began
            if not _is_worth_repeating(error, submission.is_in_doubt, spent):
                told = _told(error, submission.is_in_doubt, connections.where)
                if told is error:
                    raise
                raise told from error
        await asyncio.sleep(_pause(attempt, submission.batch_id))
        attempt += 1


def _is_worth_repeating(error: Exception, is_in_doubt: bool, spent_seconds: float) -> bool:
    if is_in_doubt:
        return spent_seconds < _IN_DOUBT_SECONDS_MAX
    return fault_of(error) in (Fault.AGAIN, Fault.LOST) and spent_seconds < _TRYING_SECONDS_MAX


def _told(error: Exception, is_in_doubt: bool, where: str) -> Exception:
    if is_in_doubt:
        return StoreUnavailable(
            f"{where}: the connection was lost while committing, and whether it happened is not known"
        )
    return error if fault_of(error) in (Fault.DATA, Fault.BLOCKED, Fault.MISTAKE) else unavailable(error, where)


def _pause(attempt: int, batch_id: UUID | None) -> float:
    """Two nodes that were in each other's way have drawn different ids."""
    fraction = 0.0 if batch_id is None else (batch_id.int >> attempt % 8 * 8) % 256 / 256
    pause = _PAUSE_SECONDS_FIRST * (1 << min(attempt, 16))
    return min(pause, _PAUSE_SECONDS_MAX) * (0.5 + fraction / 2)


class _NothingWritten(Exception):
    """Rolls the transaction back."""


class _Transaction(Generic[T]):
    def __init__(self, connections: Connections, work: _Work[T], now_ms: InstantMs | None) -> None:
        self._connections = connections
        self._work = work
        self._now_ms = now_ms
        self._given: list[T] = []
        """What the last attempt that asked for its commit would give."""
        self.batch_id: UUID | None = None
        """Drawn by the database; one and the same for all attempts."""
        self.is_in_doubt = False
        """A commit was asked for, and nobody knows what became of it."""

    async def attempt(self, connection: asyncpg.Connection) -> T:
        is_committing = False
        given: list[T] = []
        try:
            async with self._connections.transaction(connection):
                if await self._has_happened(connection):
                    return self._given[0]
                outcome, has_written = await self._work(connection)
                given = [outcome]
                if not has_written:
                    raise _NothingWritten
                self._given = given
                is_committing = True
        except _NothingWritten:
            pass
        except BaseException as error:
            if is_committing and fault_of(error) is Fault.LOST:
                self.is_in_doubt = True
            raise
        return given[0]

    async def _has_happened(self, connection: asyncpg.Connection) -> bool:
        """The row is there already: of the last attempt that asked for its commit, since each one after it has ended
        the doubt about those before."""
        batch_id: UUID | None = await connection.fetchval(_BEGIN_BATCH, self.batch_id, self._now_ms)
        if batch_id is None:
            if not self._given:
                raise InvariantBroken(f"the batch {self.batch_id} is committed, and nobody asked for that")
            return True
        self.batch_id = batch_id
        self.is_in_doubt = False
        return False
