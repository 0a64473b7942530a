"""How a node has its operations done by the simulated database: a batch at once, or as `PostgresStore` does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import attrs

from simulations.world.exchanges import Batch, Blocked, ClockWasSet, Lost
from simulations.world.submitting import WHERE, Doubt, Submitter, unavailable
from simulations.world.tables import at_once
from stellwerk.errors import StoreUnavailable
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    Changeset,
    Clock,
    Committed,
    DeleteDefinition,
    DropMessages,
    ExpiredLocks,
    ExpireLocks,
    Log,
    Operation,
    Outcome,
    PruneInstances,
    RefusedChangeset,
    StoredInstance,
)
from stellwerk.stores.postgres.clock_watch import ClockWatch
from stellwerk.stores.postgres.plan import divide
from stellwerk.stores.postgres.prefetch import is_scan

if TYPE_CHECKING:
    from simulations.world.database import Database

__all__ = ["Batches"]

T = TypeVar("T")

_AROUND_LOCKS_SECONDS_MAX = 2.0

_Do = Callable[[Sequence[Operation]], Awaitable[Sequence[Outcome]]]
_Decide = Callable[[StoredInstance | None], Changeset | None]


class Batches:
    def __init__(self, submitter: Submitter, host: str, clock: Clock, log: Log, isolation: str) -> None:
        self._submitter = submitter
        self._host = host
        self._clock = clock
        self._is_weaker = isolation == "read_committed"
        self._watch = ClockWatch(log)
        self._jumps_seen = 0

    # --- the database's clock --------------------------------------------------------------------------------------

    async def next_lock_expiry(self) -> tuple[InstantMs | None, InstantMs]:
        """After a jump of the database's clock no lock is taken for expired for a while (consistency.md 19)."""
        asked_at = self._clock.monotonic()
        expiry_ms, now_ms, jumps = await self._submitter.read(_next_lock_expiry)
        answered_at = self._clock.monotonic()
        await self._observe(now_ms, asked_at, answered_at, jumps)
        return self._watch.next_sweep_ms(expiry_ms, now_ms, answered_at), now_ms

    async def _look_at_clock(self) -> None:
        asked_at = self._clock.monotonic()
        now_ms, jumps = await self._submitter.read(_lease_now)
        await self._observe(now_ms, asked_at, self._clock.monotonic(), jumps)

    async def _observe(self, now_ms: InstantMs, asked_at: float, answered_at: float, jumps: int) -> None:
        self._watch.observe(now_ms, asked_at, answered_at)
        self._jumps_seen = max(self._jumps_seen, jumps)
        before_ms = self._watch.wants_limit
        if before_ms is not None:
            last_end_ms = await self._submitter.read(partial(_last_lock_end, before_ms))
            self._watch.limit_pause(before_ms, last_end_ms)

    def _batch(self, batch_id: str, operations: Sequence[Operation]) -> Batch:
        jump = self._watch.jump(self._clock.monotonic())
        return Batch(batch_id, self._host, operations, jump, self._jumps_seen)

    # --- batches ---------------------------------------------------------------------------------------------------

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        outcomes = await self._skip_sweeps(operations)
        if self._is_weaker:
            await self._divide(operations, outcomes)
        else:
            await self._do_rest(operations, outcomes)
        refusals = [outcome for outcome in outcomes.values() if isinstance(outcome, StoreUnavailable)]
        if refusals and len(refusals) == len(operations):
            raise refusals[0]
        return [outcomes[place] for place in range(len(operations))]

    async def _skip_sweeps(self, operations: Sequence[Operation]) -> dict[int, Outcome]:
        sweeps = [place for place, operation in enumerate(operations) if isinstance(operation, ExpireLocks)]
        if not sweeps or not self._watch.pause_seconds(self._clock.monotonic()):
            return {}
        next_ms, now_ms = await self.next_lock_expiry()
        return dict.fromkeys(sweeps, ExpiredLocks((), (), next_ms, now_ms))

    async def _do_rest(self, operations: Sequence[Operation], outcomes: dict[int, Outcome]) -> None:
        """At one instant."""
        rest = [place for place in range(len(operations)) if place not in outcomes]
        try:
            done = await self._with_clock([operations[place] for place in rest], self._together)
        except Blocked as error:
            raise unavailable(error) from error
        outcomes.update(zip(rest, done, strict=True))

    async def _with_clock(self, operations: Sequence[Operation], do: _Do) -> Sequence[Outcome]:
        """`do` them, after a look at the database's clock where that is due; once it turns out to have been set forward
        no lock is taken for expired."""
        outcomes: dict[int, Outcome] = {}
        while True:
            rest = [place for place in range(len(operations)) if place not in outcomes]
            try:
                done = await do([operations[place] for place in rest]) if rest else []
            except ClockWasSet:
                await self._look_at_clock()
                outcomes.update(await self._skip_sweeps(operations))
                continue
            outcomes.update(zip(rest, done, strict=True))
            return [outcomes[place] for place in range(len(operations))]

    async def _together(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        batch_id = self._submitter.batch_id()

        async def attempt(doubt: Doubt) -> list[Outcome]:
            batch = self._batch(batch_id, operations)
            return await self._commit(doubt, lambda database: database.transactions.transact(batch))

        return await self._submitter.until_known(attempt, batch_id)

    async def _commit(self, doubt: Doubt, work: Callable[[Database], Awaitable[T]]) -> T:
        """Ask for something whose loss leaves in doubt whether it was committed."""
        try:
            return await self._submitter.ask("write", work)
        except Lost:
            doubt.is_in_doubt = True
            raise

    # --- in several transactions, as `PostgresStore` ---------------------------------------------------------------

    async def _divide(self, operations: Sequence[Operation], outcomes: dict[int, Outcome]) -> None:
        regular = divide(operations).regular
        if regular:
            outcomes.update(await self._commit_directly(operations, regular))
        rest = [place for place in range(len(operations)) if place not in outcomes]
        done = await self._transact_carefully([operations[place] for place in rest])
        outcomes.update(zip(rest, done, strict=True))
        parts = {isinstance(outcome, StoreUnavailable) for outcome in outcomes.values()}
        self._submitter.sometimes("database: a batch was done in part", len(parts) > 1)

    async def _commit_directly(self, operations: Sequence[Operation], places: Sequence[int]) -> dict[int, Outcome]:
        """→ outcomes by place; what is missing has to be done carefully."""
        batch_id = self._submitter.batch_id()
        batch = Batch(batch_id, self._host, [operations[place] for place in places])

        async def attempt(doubt: Doubt) -> dict[int, Outcome]:
            return await self._commit(doubt, lambda database: database.transactions.commit_directly(batch))

        try:
            done = await self._submitter.until_known(attempt, batch_id)
        except StoreUnavailable as error:
            return dict.fromkeys(places, error)
        except Blocked:
            return {}
        return {places[position]: outcome for position, outcome in done.items()}

    async def _transact_carefully(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        try:
            for segment in _segments(operations):
                outcomes += await self._with_clock(segment, self._do_segment)
        except StoreUnavailable as error:
            outcomes += [error] * (len(operations) - len(outcomes))
        return outcomes

    async def _do_segment(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        if isinstance(operations[0], DropMessages | PruneInstances | DeleteDefinition):
            return await self._together(operations)
        try:
            return await self._in_statements(operations)
        except Blocked:
            return await self._do_around_locks(operations, self._clock.monotonic() + _AROUND_LOCKS_SECONDS_MAX)

    async def _do_around_locks(self, operations: Sequence[Operation], deadline: float) -> list[Outcome]:
        """Find by halves the operations that need a row which somebody keeps locked, and do the others."""
        blocked = StoreUnavailable(f"{WHERE}: another session keeps a row locked that this needs")
        refused: list[Outcome] = [blocked] * len(operations)
        if self._clock.monotonic() > deadline:
            return refused
        try:
            return await self._in_statements(operations)
        except Blocked:
            if len(operations) == 1:
                return refused
        half = len(operations) // 2
        first = await self._do_around_locks(operations[:half], deadline)
        return [*first, *await self._do_around_locks(operations[half:], deadline)]

    async def _in_statements(self, operations: Sequence[Operation]) -> list[Outcome]:
        """One transaction: rows are found and locked first, and written later."""
        batch_id = self._submitter.batch_id()

        async def attempt(doubt: Doubt) -> list[Outcome]:
            batch = self._batch(batch_id, operations)
            with self._rolling_back(batch_id):
                begun = await self._submitter.ask("write", lambda database: database.transactions.begin(batch))
                if begun.outcomes is not None:
                    return begun.outcomes
                doubt.is_in_doubt = False
                return await self._commit(doubt, lambda database: database.transactions.finish(batch))

        return await self._submitter.until_known(attempt, batch_id)

    @contextmanager
    def _rolling_back(self, batch_id: str) -> Iterator[None]:
        """Whoever gives up closes the connection, and with it the transaction."""
        try:
            yield
        except BaseException:
            self._submitter.post(lambda database: database.transactions.roll_back(batch_id))
            raise

    # --- a step under lock -----------------------------------------------------------------------------------------

    async def step_locked(self, instance_id: str, decide: _Decide) -> Committed | RefusedChangeset | None:
        """Raises what `decide` raises.

        :raises StoreUnavailable: as `transact`.
        """
        batch_id = self._submitter.batch_id()

        async def attempt(doubt: Doubt) -> Outcome | None:
            with self._rolling_back(batch_id):
                return await self._step(batch_id, instance_id, decide, doubt)

        outcome = await self._until_known_and_clock(attempt, batch_id)
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is None or isinstance(outcome, Committed | RefusedChangeset)
        return outcome

    async def _until_known_and_clock(self, attempt: Callable[[Doubt], Awaitable[T]], batch_id: str) -> T:
        while True:
            try:
                return await self._submitter.until_known(attempt, batch_id)
            except ClockWasSet:
                await self._look_at_clock()
            except Blocked as error:
                raise unavailable(error) from error

    async def _step(self, batch_id: str, instance_id: str, decide: _Decide, doubt: Doubt) -> Outcome | None:
        batch = self._batch(batch_id, ())
        begun = await self._submitter.ask(
            "write", lambda database: database.transactions.begin_step(batch, instance_id)
        )
        if begun.outcomes is not None:
            return begun.outcomes[0]
        doubt.is_in_doubt = False
        changeset = decide(begun.stored)
        if changeset is None:
            self._submitter.post(lambda database: database.transactions.roll_back(batch_id))
            return None
        step = attrs.evolve(batch, operations=(changeset,))
        outcomes = await self._commit(doubt, lambda database: database.transactions.finish(step))
        return outcomes[0]


def _segments(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Each a transaction: runs of operations that go by keys, and each scan alone."""
    for are_scans, run in groupby(operations, key=is_scan):
        if are_scans:
            yield from ([operation] for operation in run)
        else:
            yield list(run)


async def _next_lock_expiry(database: Database) -> tuple[InstantMs | None, InstantMs, int]:
    expiry_ms, now_ms = at_once(database.rows.next_lock_expiry())
    return expiry_ms, now_ms, database.clock_jumps


async def _lease_now(database: Database) -> tuple[InstantMs, int]:
    return database.rows.now_ms(), database.clock_jumps


async def _last_lock_end(before_ms: InstantMs, database: Database) -> InstantMs | None:
    return at_once(database.rows.last_lock_end(before_ms))
