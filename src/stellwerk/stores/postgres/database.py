"""The store on asyncio's side of the bridge: which way an operation takes, and what else a node keeps running.

Here errors of the driver become errors of the port.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import asyncpg

from stellwerk.errors import InvariantBroken, StoreUnavailable
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    Changeset,
    Clock,
    Committed,
    Entropy,
    ExpiredLocks,
    ExpireLocks,
    Hint,
    Log,
    NodeReport,
    NodeRow,
    Operation,
    Outcome,
    RefusedChangeset,
    StoredInstance,
)
from stellwerk.stores.postgres.careful import step_locked, transact_carefully
from stellwerk.stores.postgres.clock_watch import ClockWatch, LeaseTime
from stellwerk.stores.postgres.connections import Connections
from stellwerk.stores.postgres.direct import commit_directly
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.faults import DATABASE_ERRORS, Fault, fault_of, unavailable
from stellwerk.stores.postgres.housekeeping import Housekeeping
from stellwerk.stores.postgres.migrations import migrate
from stellwerk.stores.postgres.nodes import Nodes
from stellwerk.stores.postgres.notices import Notices
from stellwerk.stores.postgres.plan import divide
from stellwerk.stores.postgres.reads import last_lock_end, lease_now, next_lock_expiry

__all__ = ["PostgresDatabase"]

T = TypeVar("T")


class PostgresDatabase:
    def __init__(
        self,
        config: PostgresConfig,
        *,
        clock: Clock,
        entropy: Entropy,
        log: Log,
        is_away: Callable[[], bool],
        node_id: str,
        node_name: str,
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._connections = Connections(config, node_name, entropy.fraction, log)
        self._nodes = Nodes()
        self._notices = Notices(
            self._connections,
            sender=node_id,
            others_known=self._nodes.others_known,
            clock=clock,
            entropy=entropy,
            log=log,
            is_away=is_away,
        )
        self._housekeeping = Housekeeping(self._connections, clock=clock, entropy=entropy, log=log)
        self.clock_watch = ClockWatch(log)

    def __repr__(self) -> str:
        return f"PostgresDatabase({self._connections.where})"

    async def open(self) -> None:
        """:raises StoreUnavailable: it cannot be reached, or its schema is not for this version."""
        await self._connections.open()
        try:
            await self._connections.write(self._migrate)
            await self._notices.start()
            self._housekeeping.start()
        except DATABASE_ERRORS as error:
            await self.close()
            raise self._told(error) from error
        except BaseException:
            await self.close()
            raise

    async def _migrate(self, connection: asyncpg.Connection) -> None:
        await migrate(connection, self._connections.where)

    async def close(self) -> None:
        await self._housekeeping.stop()
        await self._notices.stop()
        await self._connections.close()

    def is_not_open(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._connections.where} is not open")

    # --- reading ---------------------------------------------------------------------------------------------------

    async def read(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        return await self._connections.read(work)

    async def write(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """One statement that writes, and may be done twice."""

        async def do(connection: asyncpg.Connection) -> T:
            async with self._connections.statement(connection):
                return await work(connection)

        try:
            return await self._connections.write(do)
        except DATABASE_ERRORS as error:
            raise self._told(error) from error

    async def next_lock_expiry(self, dictated_ms: InstantMs | None) -> tuple[InstantMs | None, InstantMs]:
        """After a jump of the database's clock no lock is taken for expired for a while (consistency.md 19)."""
        asked_at = self._clock.monotonic()
        expiry_ms, now_ms = await self.read(lambda connection: next_lock_expiry(connection, dictated_ms))
        answered_at = self._clock.monotonic()
        if dictated_ms is None:
            await self._observe(now_ms, asked_at, answered_at)
        return self.clock_watch.next_sweep_ms(expiry_ms, now_ms, answered_at), now_ms

    async def _look_at_clock(self) -> InstantMs:
        asked_at = self._clock.monotonic()
        now_ms = await self.read(lease_now)
        await self._observe(now_ms, asked_at, self._clock.monotonic())
        return now_ms

    async def _observe(self, now_ms: InstantMs, asked_at: float, answered_at: float) -> None:
        self.clock_watch.observe(now_ms, asked_at, answered_at)
        # Whatever noticed the jump: if the database failed right then, it is asked the next time.
        before_ms = self.clock_watch.wants_limit
        if before_ms is not None:
            last_end_ms = await self.read(partial(last_lock_end, before_ms=before_ms))
            self.clock_watch.limit_pause(before_ms, last_end_ms)

    # --- writing ---------------------------------------------------------------------------------------------------

    async def transact(self, operations: Sequence[Operation], now_ms: InstantMs | None) -> Sequence[Outcome]:
        try:
            outcomes = await self._transact(operations, now_ms)
        except DATABASE_ERRORS as error:
            raise self._told(error) from error
        refusals = [outcome for outcome in outcomes if isinstance(outcome, StoreUnavailable)]
        if refusals and len(refusals) == len(outcomes):
            raise refusals[0]
        return outcomes

    def _time(self, now_ms: InstantMs | None, looked_ms: InstantMs | None = None) -> LeaseTime:
        return LeaseTime(now_ms, self.clock_watch.jump(self._clock.monotonic()), looked_ms)

    async def _transact(self, operations: Sequence[Operation], now_ms: InstantMs | None) -> Sequence[Outcome]:
        outcomes: dict[int, Outcome] = {}
        regular = {position: operations[position] for position in divide(operations).regular}
        if regular:
            outcomes.update(await commit_directly(self._connections, self._entropy, regular, now_ms))
        rest = [position for position in range(len(operations)) if position not in outcomes]
        if rest:
            done = await self._transact_carefully([operations[position] for position in rest], now_ms)
            outcomes.update(zip(rest, done, strict=True))
        return [outcomes[position] for position in range(len(operations))]

    async def _transact_carefully(self, operations: Sequence[Operation], now_ms: InstantMs | None) -> Sequence[Outcome]:
        """Never raises `StoreUnavailable`: what others of the batch have done already must not be forgotten."""
        try:
            # What is refused there because a lease has ended must have ended; what is swept, too.
            looked_ms = await self._look_at_clock() if now_ms is None else None
            outcomes = await self._skip_sweeps(operations, now_ms)
        except StoreUnavailable as error:
            return [error] * len(operations)
        rest = [position for position in range(len(operations)) if position not in outcomes]
        time = self._time(now_ms, looked_ms)
        done = await transact_carefully(self._connections, [operations[position] for position in rest], time)
        outcomes.update(zip(rest, done, strict=True))
        return [outcomes[position] for position in range(len(operations))]

    def _told(self, error: Exception) -> Exception:
        """A row that cannot be written is refused long before; what is left is the database's trouble, or ours."""
        if fault_of(error) in (Fault.DATA, Fault.MISTAKE):
            return InvariantBroken(f"{self._connections.where}: {type(error).__name__}: {error}")
        return unavailable(error, self._connections.where)

    async def _skip_sweeps(self, operations: Sequence[Operation], now_ms: InstantMs | None) -> dict[int, Outcome]:
        """Outcomes by position, of those that find nothing because the clock was set."""
        sweeps = [position for position, operation in enumerate(operations) if isinstance(operation, ExpireLocks)]
        if not sweeps or not self.clock_watch.pause_seconds(self._clock.monotonic()):
            return {}
        next_ms, database_ms = await self.next_lock_expiry(now_ms)
        return dict.fromkeys(sweeps, ExpiredLocks((), (), next_ms, database_ms))

    async def step_locked(
        self, instance_id: str, decide: Callable[[StoredInstance | None], Changeset | None], now_ms: InstantMs | None
    ) -> Committed | RefusedChangeset | None:
        try:
            looked_ms = await self._look_at_clock() if now_ms is None else None
            return await step_locked(self._connections, instance_id, decide, self._time(now_ms, looked_ms))
        except DATABASE_ERRORS as error:
            raise self._told(error) from error

    # --- beside other nodes ----------------------------------------------------------------------------------------

    def tell(self, hint: Hint) -> None:
        self._notices.tell(hint)

    async def hints(self) -> Hint:
        return await self._notices.next()

    async def report_node(self, report: NodeReport) -> None:
        await self.write(lambda connection: self._nodes.report_node(connection, report))

    async def known_nodes(self) -> Sequence[NodeRow]:
        return await self.read(self._nodes.nodes)

    async def forget_node(self, node_id: str) -> None:
        await self.write(lambda connection: self._nodes.forget_node(connection, node_id))
