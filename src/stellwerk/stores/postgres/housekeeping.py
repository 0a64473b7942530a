"""What has to be cleared away, by every node, a little at a time.

A row of ``batches`` answers whether a transaction happened whose answer was lost (consistency.md 3). It may go when
nobody can ask any more, which no clock that can be set may decide alone: a node deletes what was old already when it
looked ten minutes of monotonic time ago, and has reached the database ever since.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import asyncpg

from stellwerk.instants import InstantMs
from stellwerk.ports import Clock, Entropy, Log
from stellwerk.stores.postgres.connections import Connections

__all__ = ["BATCH_KEPT_SECONDS", "NODE_KEPT_MS", "Housekeeping"]

T = TypeVar("T")

BATCH_KEPT_SECONDS = 600
"""Who is in doubt about a batch must have given up asking by then."""
NODE_KEPT_MS = 86_400_000
_ROUND_SECONDS = 60.0
_ROUNDS_BETWEEN_FULL_LOOKS = 60
_STEP_ROWS = 500
"""It takes the writing connection a few milliseconds, for which commits wait."""
_STEP_PAUSE_SECONDS = 0.1

_NOW = "SELECT stellwerk.now_ms()"
# Not from the beginning each time: behind a snapshot that is held for hours, deleted rows stand in the index as long.
_DELETE_BATCHES = """
WITH old AS MATERIALIZED (
    SELECT batch_id FROM stellwerk.batches
    WHERE now_ms BETWEEN $1 AND $2 ORDER BY now_ms LIMIT $3 FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM stellwerk.batches AS batch USING old WHERE batch.batch_id = old.batch_id RETURNING batch.now_ms
)
SELECT count(*) AS rows, max(now_ms) AS last_ms FROM deleted"""
_DELETE_NODES = """
WITH dead AS MATERIALIZED (
    SELECT node_id FROM stellwerk.nodes WHERE seen_at_ms < $1 ORDER BY node_id LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM stellwerk.nodes AS node USING dead WHERE node.node_id = dead.node_id"""


class Housekeeping:
    """A task on the store's loop."""

    def __init__(
        self,
        connections: Connections,
        *,
        clock: Clock,
        entropy: Entropy,
        log: Log,
        round_seconds: float = _ROUND_SECONDS,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._entropy = entropy
        self._log = log
        self._round_seconds = round_seconds
        self._looks: deque[tuple[float, InstantMs]] = deque()
        """When the database was reached (monotonic), and what its clock showed. Each stands for a round."""
        self._deleted_up_to_ms: InstantMs = 0
        self._rounds = 0
        self._is_failing = False
        self._task: asyncio.Task[None] | None = None
        self.batches_deleted = 0

    def __repr__(self) -> str:
        return f"Housekeeping(batches_deleted={self.batches_deleted})"

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """May be called again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def tidy(self) -> None:
        """One round: delete what has to go.

        :raises Exception: what the driver raises; nothing is half done.
        """
        now_ms = await self._connections.read(_now)
        self._looks.append((self._clock.monotonic(), now_ms))
        old_ms = self._certainly_old_ms(now_ms)
        if old_ms is not None:
            await self._delete_batches(old_ms)
        await self._write(partial(_delete_nodes, now_ms - NODE_KEPT_MS))

    async def round(self) -> None:
        """`tidy`; an error is for the log."""
        try:
            await self.tidy()
        except Exception as error:  # noqa: BLE001 - whatever it is: without housekeeping the database fills up
            self._looks.clear()
            if not self._is_failing:
                self._log.warning("housekeeping failed", reason=str(error) or type(error).__name__)
            self._is_failing = True
        else:
            self._is_failing = False

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._round_seconds * (0.5 + self._entropy.fraction()))
            await self.round()

    async def _delete_batches(self, old_ms: InstantMs) -> None:
        if self._rounds % _ROUNDS_BETWEEN_FULL_LOOKS == 0:
            self._deleted_up_to_ms = 0  # other nodes may have skipped rows, and clocks were set back before
        self._rounds += 1
        deleted = _STEP_ROWS
        while deleted == _STEP_ROWS:
            deleted = await self._write(partial(self._delete_step, old_ms))
            await asyncio.sleep(_STEP_PAUSE_SECONDS)

    async def _delete_step(self, old_ms: InstantMs, connection: asyncpg.Connection) -> int:
        row = await connection.fetchrow(_DELETE_BATCHES, self._deleted_up_to_ms, old_ms, _STEP_ROWS)
        rows: int = row["rows"]
        self.batches_deleted += rows
        self._deleted_up_to_ms = row["last_ms"] or self._deleted_up_to_ms
        return rows

    async def _write(self, statement: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        async def work(connection: asyncpg.Connection) -> T:
            async with self._connections.statement(connection):
                return await statement(connection)

        return await self._connections.write(work)

    def _certainly_old_ms(self, now_ms: InstantMs) -> InstantMs | None:
        """None: this node has not looked for long enough to tell."""
        looked_ms: InstantMs | None = None
        while self._looks and self._clock.monotonic() - self._looks[0][0] >= BATCH_KEPT_SECONDS:
            looked_ms = self._looks.popleft()[1]
        return None if looked_ms is None else min(looked_ms, now_ms - BATCH_KEPT_SECONDS * 1000)


async def _now(connection: asyncpg.Connection) -> InstantMs:
    now_ms: InstantMs = await connection.fetchval(_NOW)
    return now_ms


async def _delete_nodes(before_ms: InstantMs, connection: asyncpg.Connection) -> None:
    await connection.execute(_DELETE_NODES, before_ms, _STEP_ROWS)
