"""The careful way: operations by the shared rules of `stellwerk.stores.operations`, over rows that are locked before.

A batch falls into segments, each a transaction: the longest runs of operations that go by keys (of bounded size), and
each scan alone. Two nodes may do this at once. A row that both insert is a unique violation for one of them, which then
does its segment again, sees the row, and gives the answer of the shared rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

import asyncpg
import attrs

from stellwerk.errors import InvariantBroken, StellwerkError, StoreUnavailable
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    Changeset,
    Committed,
    DropMessages,
    ExpireLocks,
    Operation,
    Outcome,
    Pruned,
    PruneInstances,
    RefusedChangeset,
    RefusedGuard,
    StoredInstance,
)
from stellwerk.stores.operations import PRUNED_ROWS_MAX, apply_operation
from stellwerk.stores.postgres import reads
from stellwerk.stores.postgres.clock_watch import LeaseTime
from stellwerk.stores.postgres.connections import Connections
from stellwerk.stores.postgres.faults import Fault, fault_of
from stellwerk.stores.postgres.messages import IS_AWAITED
from stellwerk.stores.postgres.parameters import findable
from stellwerk.stores.postgres.prefetch import Wanted, fetch_rows, is_scan
from stellwerk.stores.postgres.pruning import prune
from stellwerk.stores.postgres.sizes import divide_by_bytes
from stellwerk.stores.postgres.tables import PostgresTables
from stellwerk.stores.postgres.transactions import Done, transact_once
from stellwerk.stores.tables import ROW_FAULTS, DataFault, refusal_of

__all__ = ["step_locked", "transact_carefully"]

_TRIES_MAX = 3
"""Of what another node inserted in the meantime: the second time it is seen."""
_DROPPED_ROWS_MAX = 5_000
_LOCK_MS = 100
_AROUND_LOCKS_SECONDS_MAX = 2.0
"""Where a whole table is locked there is nothing to find: everybody would wait for it."""

_DROP_MESSAGES = f"""
WITH ended AS MATERIALIZED (
    SELECT message_id FROM stellwerk.messages m WHERE expires_at_ms <= $1
        AND (is_consumed OR message_id = ANY ($3::text[]) OR NOT {IS_AWAITED})
    ORDER BY expires_at_ms LIMIT $2 FOR UPDATE OF m SKIP LOCKED
), dropped AS (
    DELETE FROM stellwerk.messages WHERE message_id = ANY (ARRAY(SELECT message_id FROM ended)) RETURNING is_consumed
) SELECT count(*), count(*) FILTER (WHERE NOT is_consumed) FROM dropped"""  # noqa: S608 -- constants
_LOCK_INSTANCE = "SELECT FROM stellwerk.instances WHERE instance_id = $1 FOR UPDATE"


async def transact_carefully(
    connections: Connections, operations: Sequence[Operation], time: LeaseTime
) -> Sequence[Outcome]:
    """One outcome for each operation, as if they were done one after the other; a `StoreUnavailable` for each that the
    database could not do, and for those after it."""
    outcomes: list[Outcome] = []
    try:
        for segment in _segments(operations):
            outcomes += await _do_segment(connections, segment, time)
    except StoreUnavailable as error:
        outcomes += [error] * (len(operations) - len(outcomes))
    return outcomes


def _segments(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    for are_scans, run in groupby(operations, key=is_scan):
        if are_scans:
            yield from ([operation] for operation in run)
        else:
            yield from divide_by_bytes(run)


async def _do_segment(connections: Connections, operations: Sequence[Operation], time: LeaseTime) -> list[Outcome]:
    first = operations[0]
    try:
        if isinstance(first, DropMessages):
            return [await _drop_messages(connections, first)]
        if isinstance(first, ExpireLocks):
            time = time.as_it_was_seen()
        return await _do_all(connections, operations, time)
    except asyncpg.LockNotAvailableError:
        deadline = asyncio.get_running_loop().time() + _AROUND_LOCKS_SECONDS_MAX
        return await _do_around_locks(connections, operations, attrs.evolve(time, lock_ms=_LOCK_MS), deadline)


async def _do_around_locks(
    connections: Connections, operations: Sequence[Operation], time: LeaseTime, deadline: float
) -> list[Outcome]:
    """Somebody else keeps a row locked: find the operations that need it by halves, and do the others.

    Each is a transaction of its own, and waits no longer for a lock than a commit of another node may take.
    """
    refused: list[Outcome] = [_blocked(connections)] * len(operations)
    if asyncio.get_running_loop().time() > deadline:
        return refused
    try:
        return await _do_all(connections, operations, time)
    except asyncpg.LockNotAvailableError:
        if len(operations) == 1:
            return refused
    half = len(operations) // 2
    first = await _do_around_locks(connections, operations[:half], time, deadline)
    return [*first, *await _do_around_locks(connections, operations[half:], time, deadline)]


def _blocked(connections: Connections) -> StoreUnavailable:
    return StoreUnavailable(f"{connections.where}: another session keeps a row locked that this needs")


async def _do_all(connections: Connections, operations: Sequence[Operation], time: LeaseTime) -> list[Outcome]:
    """All together, which nearly always succeeds; else such that each that cannot be done is refused alone."""
    for _ in range(_TRIES_MAX - 1):
        try:
            return await transact_once(connections, partial(_together, operations, time), time.now_ms)
        except asyncpg.UniqueViolationError:
            continue
        except Exception as error:
            if not _is_of_one_operation(error):
                raise
            break
    return await transact_once(connections, partial(_apart, operations, time), time.now_ms)


async def _together(
    operations: Sequence[Operation], time: LeaseTime, connection: asyncpg.Connection
) -> Done[list[Outcome]]:
    first = operations[0]
    if time.lock_ms is not None:
        await connection.execute(f"SET LOCAL lock_timeout = {time.lock_ms}")
    if isinstance(first, PruneInstances):
        count = await prune(connection, first.ended_before_ms, first.limit, PRUNED_ROWS_MAX)
        return [Pruned(count)], count > 0
    fetched = await fetch_rows(connection, operations, Wanted.by(operations), time)
    tables = PostgresTables(fetched)
    outcomes = [apply_operation(tables, operation, fetched.now_ms) for operation in operations]
    await tables.send(connection)
    return outcomes, tables.has_written


# --- a data error --------------------------------------------------------------------------------------------------


async def _apart(
    operations: Sequence[Operation], time: LeaseTime, connection: asyncpg.Connection
) -> Done[list[Outcome]]:
    """Find the operations at fault by halves, behind savepoints."""
    if len(operations) > 1:
        time = attrs.evolve(time, now_ms=await _lock_all(connection, operations, time))
    return await _behind_savepoint(connection, operations, time)


async def _lock_all(connection: asyncpg.Connection, operations: Sequence[Operation], time: LeaseTime) -> InstantMs:
    """In the common order, which the halves by themselves would not keep. → the instant for all of them."""
    wanted = [each for each in map(_wanted_by, operations) if each is not None]
    return (await fetch_rows(connection, (), Wanted.all_of(wanted), time)).now_ms


def _wanted_by(operation: Operation) -> Wanted | None:
    try:
        return Wanted.by([operation])
    except ROW_FAULTS:
        return None  # it will be refused


async def _behind_savepoint(
    connection: asyncpg.Connection, operations: Sequence[Operation], time: LeaseTime
) -> Done[list[Outcome]]:
    try:
        return await _try_behind_savepoint(connection, operations, time)
    except Exception as error:
        if not _is_of_one_operation(error):
            raise
        if len(operations) == 1:
            return [_refusal(operations[0], error)], False
    half = len(operations) // 2
    first, first_has_written = await _behind_savepoint(connection, operations[:half], time)
    second, second_has_written = await _behind_savepoint(connection, operations[half:], time)
    return [*first, *second], first_has_written or second_has_written


async def _try_behind_savepoint(
    connection: asyncpg.Connection, operations: Sequence[Operation], time: LeaseTime
) -> Done[list[Outcome]]:
    tries = _TRIES_MAX if len(operations) == 1 else 1
    for _ in range(tries - 1):
        try:
            async with connection.transaction():
                return await _together(operations, time, connection)
        except asyncpg.UniqueViolationError:
            continue
    async with connection.transaction():
        return await _together(operations, time, connection)


def _is_of_one_operation(error: Exception) -> bool:
    """Its row cannot be written; or something that nobody foresaw, neither ours nor the database's."""
    fault = fault_of(error)
    return fault is Fault.DATA or (fault is Fault.MISTAKE and not isinstance(error, StellwerkError))


def _refusal(operation: Operation, error: Exception) -> Outcome:
    if fault_of(error) is Fault.DATA:
        return refusal_of(operation, _without_rows(error))
    return InvariantBroken(f"the store could not do {type(operation).__name__}: {type(error).__name__}: {error}")


def _without_rows(error: Exception) -> Exception:
    """What follows the first line of the database's errors may quote what users keep there."""
    if not isinstance(error, asyncpg.PostgresError):
        return error
    first_line = str(error).partition("\n")[0]
    return DataFault(f"{type(error).__name__}: {first_line}")


# --- messages ------------------------------------------------------------------------------------------------------


async def _drop_messages(connections: Connections, operation: DropMessages) -> Outcome:
    """In steps, each a transaction: nobody shall wait for all of them. → how many that still waited."""
    waited = 0
    try:
        while True:
            dropped, of_these_waited = await transact_once(connections, partial(_drop_some, operation), None)
            waited += of_these_waited
            if dropped < _DROPPED_ROWS_MAX:
                return waited
    except Exception as error:
        if not _is_of_one_operation(error):
            raise
        return _refusal(operation, error)


async def _drop_some(operation: DropMessages, connection: asyncpg.Connection) -> Done[tuple[int, int]]:
    parameters = (operation.now_ms, _DROPPED_ROWS_MAX, list(operation.given_up))
    dropped, waited = await connection.fetchrow(_DROP_MESSAGES, *parameters)
    return (dropped, waited), dropped > 0


# --- a step under lock ---------------------------------------------------------------------------------------------


class _Undecided(Exception):
    """`decide` raised `error`, which tells nothing about rows."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def step_locked(
    connections: Connections,
    instance_id: str,
    decide: Callable[[StoredInstance | None], Changeset | None],
    time: LeaseTime,
) -> Committed | RefusedChangeset | None:
    """Load, decide and commit while no other node can step the instance (consistency.md 4).

    Raises what `decide` raises.

    :raises StoreUnavailable: as `transact_carefully`.
    """
    step = partial(_decide_and_step, instance_id, decide, time)
    for tries_left in reversed(range(_TRIES_MAX)):
        try:
            return await transact_once(connections, step, time.now_ms)
        except _Undecided as undecided:
            raise undecided.error from None
        except Exception as error:
            if not _is_of_one_operation(error):
                raise
            if not isinstance(error, asyncpg.UniqueViolationError) or not tries_left:
                return _refused_step(error)
    raise AssertionError("the last try returns or raises")


async def _decide_and_step(
    instance_id: str,
    decide: Callable[[StoredInstance | None], Changeset | None],
    time: LeaseTime,
    connection: asyncpg.Connection,
) -> Done[Committed | RefusedChangeset | None]:
    await connection.execute(_LOCK_INSTANCE, findable(instance_id))
    stored = await reads.load_instance(connection, instance_id)
    try:
        changeset = decide(stored)
    except Exception as error:
        raise _Undecided(error) from error
    if changeset is None:
        return None, False
    outcomes, has_written = await _together([changeset], time, connection)
    assert isinstance(outcomes[0], Committed | RefusedChangeset)
    return outcomes[0], has_written


def _refused_step(error: Exception) -> RefusedChangeset:
    if fault_of(error) is not Fault.DATA:
        raise InvariantBroken(f"the store could not do the step: {type(error).__name__}: {error}") from error
    fault = _without_rows(error)
    return RefusedChangeset(RefusedGuard.DATA, f"{type(fault).__name__}: {fault}")
