"""Transactions on the server's side: a whole batch at one instant, or several statements with locks in between."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from simulations.world.exchanges import Batch, Lost
from simulations.world.locks import Owner
from simulations.world.tables import Found, at_once
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    Changeset,
    ExpireLocks,
    FetchAndLock,
    LeaseTasks,
    Operation,
    Outcome,
    RefusedChangeset,
    ResumeSession,
    StoredInstance,
)
from stellwerk.stores.postgres.prefetch import Wanted
from stellwerk.stores.tables import ROW_FAULTS
from stellwerk.values import frozen

if TYPE_CHECKING:
    from simulations.world.database import Database

__all__ = ["Begun", "OpenTransactions"]


@frozen
class Begun:
    """A transaction that waits for its client; or what became of the same batch before."""

    outcomes: list[Outcome] | None = None
    stored: StoredInstance | None = None
    """Of a step under lock."""


@attrs.define(eq=False)
class _Open:
    owner: Owner
    found: Found = attrs.field(factory=Found)
    now_ms: InstantMs | None = None

    def check(self) -> None:
        """:raises Lost: it was ended meanwhile."""
        if self.owner.is_over:
            raise Lost("terminating connection due to idle-in-transaction timeout")


class OpenTransactions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: dict[str, _Open] = {}
        """By batch id."""

    def clear(self) -> None:
        self._open.clear()

    # --- at one instant --------------------------------------------------------------------------------------------

    async def transact(self, batch: Batch) -> list[Outcome]:
        """All operations as one transaction."""
        outcomes = self._recorded(batch)
        if outcomes is not None:
            return outcomes
        self._database.look_at_clock(batch)
        if not self._database.locks:
            return self._apply(batch)
        owner = Owner(batch.batch_id)
        try:
            await self._database.locks.take(owner, _instance_keys(batch.operations))
            return self._apply(batch)
        finally:
            self._database.locks.release(owner)

    async def commit_directly(self, batch: Batch) -> dict[int, Outcome]:
        """Regular operations by one statement. → outcomes by place; those that are missing were refused, and nothing of
        them was written; where a row cannot be written all are missing."""
        database = self._database
        await database.statement(batch.batch_id, "direct")
        outcomes: Sequence[Outcome] | None = self._recorded(batch)
        if outcomes is None:
            owner = Owner(batch.batch_id)
            try:
                await database.locks.take(owner, _keys(batch.operations))
                outcomes = database.commits.apply_faultless(batch)
            finally:
                database.locks.release(owner)
            database.has_committed()
        return {
            place: outcome for place, outcome in enumerate(outcomes or ()) if not isinstance(outcome, RefusedChangeset)
        }

    def _apply(self, batch: Batch) -> list[Outcome]:
        outcomes = self._database.commits.apply(batch)
        self._database.has_committed()
        return outcomes

    def _recorded(self, batch: Batch) -> list[Outcome] | None:
        outcomes = self._database.commits.recorded(batch.batch_id)
        if outcomes is None:
            return None
        self._database.simulation.properties.sometimes("database: a batch submitted again had been committed")
        tasks = self._database.rows.tables.tasks
        for place, (operation, outcome) in enumerate(zip(batch.operations, outcomes, strict=True)):
            if isinstance(operation, LeaseTasks) and isinstance(outcome, tuple):
                outcomes[place] = tuple(_if_it_stands(lease, tasks) for lease in outcome)
        return outcomes

    # --- of several statements -------------------------------------------------------------------------------------

    async def begin(self, batch: Batch) -> Begun:
        """Find and lock the rows that the operations want, and read the time. `finish` follows, or `roll_back`."""
        outcomes = self._recorded(batch)
        if outcomes is not None:
            return Begun(outcomes)
        self._database.look_at_clock(batch)
        opened = self._begin(batch)
        try:
            self._scan(batch, opened)
            await self._database.statement(batch.batch_id, "scan")
            leases = [task.task_id for task in opened.found.leases or ()]
            await self._database.locks.take(opened.owner, _keys(batch.operations, leases))
            await self._database.statement(batch.batch_id, "lock")
            opened.check()
        except BaseException:
            self._end(batch.batch_id, opened)
            raise
        self._read(batch, opened)
        return Begun()

    async def begin_step(self, batch: Batch, instance_id: str) -> Begun:
        """Lock an instance and load it."""
        outcomes = self._recorded(batch)
        if outcomes is not None:
            return Begun(outcomes)
        self._database.look_at_clock(batch)
        opened = self._begin(batch)
        try:
            await self._database.locks.take(opened.owner, [("instances", instance_id)])
        except BaseException:
            self._end(batch.batch_id, opened)
            raise
        opened.owner.idle_since = self._database.simulation.now()
        return Begun(stored=at_once(self._database.rows.load_instance(instance_id)))

    async def finish(self, batch: Batch) -> list[Outcome]:
        """Write and commit.

        :raises Lost: the transaction is not open any more.
        """
        outcomes = self._recorded(batch)
        if outcomes is not None:
            return outcomes
        opened = self._open.get(batch.batch_id)
        if opened is None:
            raise Lost("terminating connection due to idle-in-transaction timeout")
        opened.check()
        opened.owner.idle_since = None
        try:
            if self._database.settings.isolation == "read_committed":
                await self._database.locks.take(opened.owner, _keys(batch.operations))
                await self._database.statement(batch.batch_id, "write")
                opened.check()
            outcomes = self._database.commits.apply(batch, found=opened.found, now_ms=opened.now_ms)
        finally:
            self._end(batch.batch_id, opened)
        self._database.has_committed()
        return outcomes

    async def roll_back(self, batch_id: str) -> None:
        self._end(batch_id, self._open.get(batch_id))

    def _end(self, batch_id: str, opened: _Open | None) -> None:
        """Also in the middle of one of its statements, which finds that out."""
        if opened is None:
            return
        self._database.locks.release(opened.owner)
        if self._open.get(batch_id) is opened:
            del self._open[batch_id]

    def _begin(self, batch: Batch) -> _Open:
        self._end(batch.batch_id, self._open.get(batch.batch_id))  # an attempt whose connection was lost
        opened = self._open[batch.batch_id] = _Open(Owner(batch.batch_id))
        return opened

    def _scan(self, batch: Batch, opened: _Open) -> None:
        for operation in batch.operations:
            if isinstance(operation, FetchAndLock):
                opened.found.ready = self._take_ready(operation, opened.owner)
            elif isinstance(operation, ExpireLocks):
                opened.found.past_due = self._take_past_due(operation, opened.owner)
            elif isinstance(operation, ResumeSession):
                rows, holder = self._database.rows.tables, operation.holder
                opened.found.leases = rows.leases_of(holder.worker_id, holder.boot_id)

    def _take_ready(self, operation: FetchAndLock, owner: Owner) -> list[ExternalTask]:
        """Not those that another transaction has locked."""
        tables, now_ms = self._database.rows.tables, self._database.rows.now_ms()
        ready = tables.ready(tuple(dict.fromkeys(operation.topics)), now_ms, len(tables.tasks))
        return self._skip_locked(ready, owner, operation.max_tasks)

    def _take_past_due(self, operation: ExpireLocks, owner: Owner) -> list[ExternalTask]:
        tables, now_ms = self._database.rows.tables, self._database.rows.now_ms()
        past_due = tables.past_due(now_ms, len(tables.tasks), needs_instance=False)
        return self._skip_locked(past_due, owner, operation.limit)

    def _skip_locked(self, tasks: Sequence[ExternalTask], owner: Owner, limit: int) -> list[ExternalTask]:
        locks = self._database.locks
        taken: list[ExternalTask] = []
        for task in tasks:
            if len(taken) >= limit:
                break
            if locks.take_if_free(owner, ("tasks", task.task_id)):
                taken.append(task)
            else:
                self._database.simulation.properties.sometimes("database: a scan skipped a locked row")
        return taken

    def _read(self, batch: Batch, opened: _Open) -> None:
        rows = self._database.rows
        wanted = _wanted(batch.operations)
        # Those to which a version is added are locked, and stay as they are.
        seen = sorted(wanted.definitions - wanted.deployed)
        opened.found.definitions = {key: rows.tables.latest_definition(key) for key in seen}
        opened.now_ms = rows.now_ms()
        opened.owner.idle_since = self._database.simulation.now()


def _if_it_stands(lease: ExternalTask | None, tasks: dict[str, ExternalTask]) -> ExternalTask | None:
    """A lease of a batch whose answer was lost: nobody has ended it since."""
    if lease is None or lease.lease is None:
        return None
    task = tasks.get(lease.task_id)
    if task is None or task.lease is None or task.state is not TaskState.LOCKED:
        return None
    is_same = task.lease.since_ms == lease.lease.since_ms and task.lease.holder == lease.lease.holder
    return task if is_same else None


def _instance_keys(operations: Sequence[Operation]) -> list[Hashable]:
    ids = {operation.instance_id for operation in operations if isinstance(operation, Changeset)}
    return [("instances", instance_id) for instance_id in sorted(ids)]


def _keys(operations: Sequence[Operation], task_ids: Iterable[str] = ()) -> list[Hashable]:
    """Of the rows that they want, in the order in which everybody locks them.

    :param task_ids: those that a scan found.
    """
    wanted = _wanted(operations)
    keys: list[Hashable] = [("instances", key) for key in sorted(wanted.instances)]
    keys += [("tasks", key) for key in sorted(wanted.tasks.union(task_ids))]
    keys += [("messages", key) for key in sorted(wanted.messages)]
    keys += [("incidents", key) for key in sorted(wanted.incidents)]
    keys += [("inbox", key) for key in sorted(wanted.inbox)]
    keys += [("api_keys", key) for key in sorted(wanted.api_keys)]
    keys += [("definitions", key) for key in sorted(wanted.deployed)]
    return keys


def _wanted(operations: Sequence[Operation]) -> Wanted:
    return Wanted.all_of(list(_wanted_by_each(operations)))


def _wanted_by_each(operations: Sequence[Operation]) -> Iterator[Wanted]:
    for operation in operations:
        try:
            yield Wanted.by([operation])
        except ROW_FAULTS:
            continue  # it will be refused
