"""The commits of the simulated database: visible at once, safe from a crash only after the next sync."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs

from simulations.kernel.simulation import Simulation
from simulations.world.exchanges import Batch
from simulations.world.rows import CommitObserver, OutcomeObserver, RowChange, Transaction
from simulations.world.tables import DatabaseRows, Found, Undo
from stellwerk.core.external_task import ExternalTask
from stellwerk.instants import InstantMs
from stellwerk.ports import InstanceSummary, Outcome, RefusedChangeset, RefusedGuard

__all__ = ["CommitLog"]


@attrs.define
class _Unsynced:
    transaction: Transaction
    batch_id: str
    undo: Undo
    durable_at: float


class CommitLog:
    """All that writes rows of instances, tasks, messages or definitions goes through here."""

    def __init__(self, simulation: Simulation, rows: DatabaseRows, sync_seconds: float) -> None:
        self._simulation = simulation
        self._rows = rows
        self._sync_seconds = sync_seconds
        self._outcomes: dict[str, list[Outcome]] = {}
        """By batch id, of those that wrote something."""
        self._unsynced: deque[_Unsynced] = deque()
        self.clock: Callable[[], InstantMs] = rows.now_ms
        """The lease clock."""
        self.observers: list[CommitObserver] = []
        self.count = 0
        self.last: Transaction | None = None

    def recorded(self, batch_id: str) -> list[Outcome] | None:
        """What became of a batch that was committed before."""
        found = self._outcomes.get(batch_id)
        return None if found is None else list(found)

    def apply(self, batch: Batch, *, found: Found | None = None, now_ms: InstantMs | None = None) -> list[Outcome]:
        """Do the operations and commit them.

        :param found: what earlier statements of the transaction found, and `now_ms`, which time it was then.
        """
        outcomes, undo, changes, now_ms = self._do(batch, found, now_ms)
        if changes:
            self._commit(batch, outcomes, undo, changes, now_ms)
        else:
            self._tell_unchanged(batch, outcomes, now_ms)
        return outcomes

    def apply_faultless(self, batch: Batch) -> list[Outcome] | None:
        """As `apply`, but None, and nothing is written, where a row cannot be written."""
        outcomes, undo, changes, now_ms = self._do(batch, None, None)
        if any(_is_data_fault(outcome) for outcome in outcomes):
            while undo:
                undo.pop()()
            return None
        if changes:
            self._commit(batch, outcomes, undo, changes, now_ms)
        else:
            self._tell_unchanged(batch, outcomes, now_ms)
        return outcomes

    def _tell_unchanged(self, batch: Batch, outcomes: Sequence[Outcome], now_ms: InstantMs) -> None:
        us = round(self._simulation.now() * 1e6)
        operations = tuple(batch.operations)
        transaction = Transaction(self.count, now_ms, us, batch.node, operations, tuple(outcomes), (), batch.jump)
        for observer in self.observers:
            if isinstance(observer, OutcomeObserver):
                observer.unchanged(transaction)

    def _do(
        self, batch: Batch, found: Found | None, now_ms: InstantMs | None
    ) -> tuple[list[Outcome], Undo, tuple[RowChange, ...], InstantMs]:
        self.sync()
        if now_ms is None:
            now_ms = self._rows.now_ms()
        tables = self._rows.tables
        tables.begin(batch.jump, found)
        outcomes = self._rows.apply(batch.operations, now_ms)
        undo, changes = tables.take()
        return outcomes, undo, changes, now_ms

    def _commit(
        self,
        batch: Batch,
        outcomes: Sequence[Outcome],
        undo: Undo,
        changes: tuple[RowChange, ...],
        now_ms: InstantMs,
    ) -> None:
        self.count += 1
        now = self._simulation.now()
        operations = tuple(batch.operations)
        us, clock_ms = round(now * 1e6), max(now_ms, self.clock())
        transaction = self.last = Transaction(
            self.count, now_ms, us, batch.node, operations, tuple(outcomes), changes, batch.jump, clock_ms
        )
        self._outcomes[batch.batch_id] = list(outcomes)
        self._unsynced.append(
            _Unsynced(
                transaction, batch.batch_id, undo, round(now + self._sync_seconds, 6) if self._sync_seconds else now
            )
        )
        self._simulation.trace(
            "database",
            "commit",
            node=batch.node,
            number=self.count,
            now_ms=now_ms,
            changes=list(map(_told, changes)),
        )
        for observer in self.observers:
            observer.committed(transaction)
        if not self._sync_seconds:
            self.sync()

    # --- sync and crash --------------------------------------------------------------------------------------------

    def durable_at(self) -> float:
        """When all that can be seen now will be safe."""
        return self._unsynced[-1].durable_at if self._unsynced else 0.0

    def sync(self) -> None:
        """Note what has become safe by now."""
        now = self._simulation.now()
        number = 0
        while self._unsynced and self._unsynced[0].durable_at <= now:
            number = self._unsynced.popleft().transaction.number
        if number:
            for observer in self.observers:
                observer.synced(number)

    def crash(self) -> int:
        """Take back what was not synced. → how many transactions."""
        self.sync()
        undone = len(self._unsynced)
        while self._unsynced:
            lost = self._unsynced.pop()
            while lost.undo:
                lost.undo.pop()()
            self._outcomes.pop(lost.batch_id, None)
            self._simulation.trace("database", "undone", number=lost.transaction.number, node=lost.transaction.node)
            for observer in self.observers:
                observer.undone(lost.transaction)
        return undone


def _is_data_fault(outcome: Outcome) -> bool:
    if isinstance(outcome, RefusedChangeset):
        return outcome.guard is RefusedGuard.DATA
    return isinstance(outcome, Exception)


# --- for the trace -----------------------------------------------------------------------------------------------


def _told(change: RowChange) -> list[str]:
    """Table, key, what became of it, and the instance that the row belongs to."""
    row = change.before if change.after is None else change.after
    of_instance = getattr(row, "instance_id", None)
    told = [change.table, _key_text(change.key), _summary(change)]
    return [*told, of_instance] if isinstance(of_instance, str) else told


def _key_text(key: object) -> str:
    return "/".join(str(part) for part in key) if isinstance(key, tuple) else str(key)


def _summary(change: RowChange) -> str:
    before, after = change.before, change.after
    if isinstance(before, ExternalTask) or isinstance(after, ExternalTask):
        return _task_summary(before, after)
    if isinstance(after, InstanceSummary):
        return f"v{after.version} {after.status}" + (f" ({after.business_key})" if after.business_key else "")
    if before is None:
        return "+"
    return "-" if after is None else "~"


def _task_summary(before: object, after: object) -> str:
    states = "→".join(task.state.value if isinstance(task, ExternalTask) else "" for task in (before, after))
    task = after if isinstance(after, ExternalTask) else before
    assert isinstance(task, ExternalTask)
    if task.lease is None:
        return states
    return f"{states} {task.lease.holder.worker_id} {task.lease.fence} {task.lease.until_ms}"
