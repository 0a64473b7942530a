"""The commit of regular operations (see `plan`): one function of the database, one round trip.

What its guards refuse is not refused here: it is done again carefully, and gets its answer by the shared rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import attrs

from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.core.history import encode_facts
from stellwerk.errors import StoreUnavailable
from stellwerk.instants import InstantMs
from stellwerk.json_values import dumps
from stellwerk.ports import BirthLease, Changeset, Committed, Entropy, LeaseTasks, Operation, Outcome
from stellwerk.stores import rows
from stellwerk.stores.changesets import TaskOwner, born_leased, task_row
from stellwerk.stores.postgres.connections import Connections
from stellwerk.stores.postgres.faults import DATABASE_ERRORS, Fault, fault_of
from stellwerk.stores.postgres.sizes import BYTES_MAX
from stellwerk.stores.postgres.transactions import until_known
from stellwerk.stores.tables import ENDED_STATUSES, ROW_FAULTS

__all__ = ["DirectBatch", "commit_directly"]

_Row = tuple[Any, ...]

_WIDTHS: Mapping[str, int] = {
    "steps": 5,
    "new_instances": 10,
    "history": 5,
    "snapshots": 4,
    "completions": 6,
    "new_tasks": 20,
    "leases": 6,
    "timers": 5,
    "timers_gone": 2,
    "subscriptions": 6,
    "subscriptions_gone": 2,
}
"""How many columns the rows of each kind have: in the order of the function's parameters."""

_COMMIT = f"SELECT * FROM stellwerk.commit_3({', '.join(f'${n}' for n in range(1, 3 + sum(_WIDTHS.values())))})"  # noqa: S608
_RECORDED = "SELECT judged_at_ms, refused FROM stellwerk.batches WHERE batch_id = $1"
_RECORDED_BIRTHS = """
SELECT task_id, definition_id, business_key FROM stellwerk.external_tasks WHERE task_id = ANY($1::text[])"""
_RECORDED_LEASES = f"""
SELECT {", ".join(rows.TASK_COLUMNS)} FROM stellwerk.external_tasks WHERE task_id = ANY($1::text[])"""  # noqa: S608

_VERDICT, _BIRTH, _LEASE = 0, 1, 2
_FIRST_COLUMN = 3
"""Where the columns of the task begin, in a row of the answer."""


@attrs.define
class _Answer:
    """What the database says of a batch."""

    now_ms: InstantMs
    refused: frozenset[int]
    owners: dict[str, tuple[str, str | None]]
    """Of tasks leased at birth: definition and business key of their instance."""
    leased: dict[int, ExternalTask]
    """By place among all wishes."""


class DirectBatch:
    """Regular operations on the way to the database and back. Their positions are those in the whole batch."""

    def __init__(self) -> None:
        self._operations: dict[int, Operation] = {}
        self._rows: dict[str, list[_Row]] = {kind: [] for kind in _WIDTHS}
        self._wishes: list[tuple[int, int]] = []
        """(position, index in the operation) of each wish for a lease, by place."""
        self.bytes = 0
        """Of facts and variables."""

    def __bool__(self) -> bool:
        return bool(self._operations)

    @property
    def positions(self) -> Sequence[int]:
        return tuple(self._operations)

    # --- on the way ------------------------------------------------------------------------------------------------

    def add(self, position: int, operation: Operation) -> None:
        """One that cannot even be written down does not become part of the batch."""
        try:
            if isinstance(operation, Changeset):
                self._add_step(position, operation)
            else:
                assert isinstance(operation, LeaseTasks)
                self._add_leases(position, operation)
        except ROW_FAULTS:
            self._take_back(position)
        else:
            self._operations[position] = operation

    def _take_back(self, position: int) -> None:
        for kind in _WIDTHS.keys() - {"leases"}:
            self._rows[kind] = [row for row in self._rows[kind] if row[0] != position]
        self._wishes = [wish for wish in self._wishes if wish[0] != position]
        del self._rows["leases"][len(self._wishes) :]

    def _add_step(self, position: int, changeset: Changeset) -> None:
        instance_id, changes = changeset.instance_id, changeset.changes
        status, at_ms, version = changes.status, changeset.at_ms, changeset.expected_version
        ended_at_ms = at_ms if status in ENDED_STATUSES else None
        new = changeset.new_instance
        if new is None:
            self._rows["steps"].append((position, instance_id, version, status, ended_at_ms))
        else:
            newer_than = _version_of(new.definition_id) if new.must_be_newest else None
            named = (new.definition_id, new.process_key, newer_than, new.business_key)
            deployed = _version_of(new.definition_id) if new.must_be_deployed else None
            row = (position, instance_id, *named, status or "RUNNING", at_ms, ended_at_ms, deployed)
            self._rows["new_instances"].append(row)
        facts = encode_facts(changeset.facts).decode()
        self._rows["history"].append((position, instance_id, version + 1, at_ms, facts))
        self.bytes += len(facts)
        if changeset.snapshot is not None:
            self._rows["snapshots"].append((position, instance_id, version + 1, changeset.snapshot))
        for ending in changeset.endings:
            judged = (ending.fence, ending.worker_id, ending.request_digest)
            self._rows["completions"].append((position, ending.task_id, instance_id, *judged))
        if changes.new_tasks:
            self._add_tasks(position, changeset)
        self._add_waiting(position, changeset)

    def _add_tasks(self, position: int, changeset: Changeset) -> None:
        births = {birth.task_id: birth for birth in changeset.birth_leases}
        for task in changeset.changes.new_tasks:
            self.bytes += len(task.variables)
            backoffs = dumps(list(task.retry_backoffs_ms)).decode() if task.retry_backoffs_ms else "[]"
            self._rows["new_tasks"].append(
                (
                    position,
                    task.task_id,
                    changeset.instance_id,
                    task.token_id,
                    task.activity_id,
                    task.element_id,
                    task.topic,
                    task.priority,
                    task.retries,
                    backoffs,
                    task.lock_expiries_max,
                    task.single_try,
                    task.lock_duration_ms,
                    task.variables.decode(),
                    task.headers.decode(),
                    *_birth_columns(births.get(task.task_id)),
                )
            )

    def _add_waiting(self, position: int, changeset: Changeset) -> None:
        instance_id, changes = changeset.instance_id, changeset.changes
        for timer in changes.timers_armed:
            armed = (position, timer.timer_id, instance_id, timer.element_id, timer.due_at_ms)
            self._rows["timers"].append(armed)
        for timer_id in changes.timers_disarmed:
            self._rows["timers_gone"].append((position, timer_id))
        for held in changes.subscriptions_opened:
            opened = (position, held.subscription_id, instance_id, held.element_id, held.name, held.key)
            self._rows["subscriptions"].append(opened)
        for subscription_id in changes.subscriptions_closed:
            self._rows["subscriptions_gone"].append((position, subscription_id))

    def _add_leases(self, position: int, operation: LeaseTasks) -> None:
        for index, wish in enumerate(operation.leases):
            holder = wish.holder
            self._wishes.append((position, index))
            self._rows["leases"].append(
                (
                    wish.task_id,
                    holder.worker_id,
                    holder.boot_id,
                    holder.session_no,
                    holder.session_id,
                    wish.duration_ms,
                )
            )

    def _columns(self) -> Iterator[Sequence[Any]]:
        for kind, width in _WIDTHS.items():
            rows_of_kind = self._rows[kind]
            yield from zip(*rows_of_kind, strict=True) if rows_of_kind else ((),) * width

    # --- there and back --------------------------------------------------------------------------------------------

    async def commit(
        self, connection: asyncpg.Connection, batch_id: UUID, now_ms: InstantMs | None
    ) -> dict[int, Outcome]:
        """→ outcomes by position; those that are not there were refused, and nothing of them was written.

        Raises what asyncpg raises: then nothing was written, or (`Fault.LOST`) that is not known.
        """
        found = await connection.fetch(_COMMIT, batch_id, now_ms, *self._columns())
        verdict = next(row for row in found if row[0] == _VERDICT)
        owners = {row["task_id"]: (row["definition_id"], row["business_key"]) for row in found if row[0] == _BIRTH}
        leased = {row[1] - 1: rows.task_from_row(row[_FIRST_COLUMN:]) for row in found if row[0] == _LEASE}
        return self._outcomes(_Answer(verdict["updated_at"], frozenset(verdict["refused"]), owners, leased))

    async def recorded(self, connection: asyncpg.Connection, batch_id: UUID) -> dict[int, Outcome]:
        """The outcomes of a commit that happened, and whose answer was lost (consistency.md 3)."""
        row = await connection.fetchrow(_RECORDED, batch_id)
        births = [new[1] for new in self._rows["new_tasks"] if new[-5] is not None]
        found = await connection.fetch(_RECORDED_BIRTHS, births)
        owners = {birth["task_id"]: (birth["definition_id"], birth["business_key"]) for birth in found}
        leased = await self._recorded_leases(connection, row["judged_at_ms"])
        return self._outcomes(_Answer(row["judged_at_ms"], frozenset(row["refused"] or ()), owners, leased))

    async def _recorded_leases(self, connection: asyncpg.Connection, now_ms: InstantMs) -> dict[int, ExternalTask]:
        """Those of this batch that nobody has ended since."""
        found = await connection.fetch(_RECORDED_LEASES, [wish[0] for wish in self._rows["leases"]])
        tasks = {row["task_id"]: rows.task_from_row(row[:]) for row in found}
        leased: dict[int, ExternalTask] = {}
        for place, (task_id, _, _, _, session_id, _) in enumerate(self._rows["leases"]):
            task = tasks.get(task_id)
            if task is None or task.lease is None or task.state is not TaskState.LOCKED:
                continue
            if task.lease.since_ms == now_ms and task.lease.holder.session_id == session_id:
                leased[place] = task
        return leased

    def _outcomes(self, answer: _Answer) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        for position, operation in self._operations.items():
            if isinstance(operation, Changeset):
                if position not in answer.refused:
                    outcomes[position] = _committed(operation, answer)
            elif isinstance(operation, LeaseTasks):
                outcomes[position] = [None] * len(operation.leases)
        for place, (position, index) in enumerate(self._wishes):
            wishes = outcomes[position]
            assert isinstance(wishes, list)
            wishes[index] = answer.leased.get(place)
        return {
            position: tuple(outcome) if isinstance(outcome, list) else outcome for position, outcome in outcomes.items()
        }


def _version_of(definition_id: str) -> int:
    version = definition_id.rpartition(":")[2]
    return int(version) if version.isdecimal() else 0


def _birth_columns(birth: BirthLease | None) -> _Row:
    if birth is None:
        return (None,) * 5
    holder = birth.holder
    return (holder.worker_id, holder.boot_id, holder.session_no, holder.session_id, birth.duration_ms)


def _committed(changeset: Changeset, answer: _Answer) -> Committed:
    born = tuple(_born(changeset, answer)) if changeset.birth_leases else ()
    return Committed(changeset.expected_version + 1, (), born, (), answer.now_ms)


def _born(changeset: Changeset, answer: _Answer) -> Iterator[ExternalTask]:
    births = {birth.task_id: birth for birth in changeset.birth_leases}
    for task in changeset.changes.new_tasks:
        birth = births.get(task.task_id)
        if birth is not None:
            owner = TaskOwner(changeset.instance_id, *answer.owners[task.task_id])
            yield born_leased(task_row(task, owner, answer.now_ms), birth, answer.now_ms)


# --- once, whatever happens to the connection ----------------------------------------------------------------------


async def commit_directly(
    connections: Connections, entropy: Entropy, operations: Mapping[int, Operation], now_ms: InstantMs | None
) -> dict[int, Outcome]:
    """→ outcomes by position. What is missing was not done, and has to be done carefully.

    The outcome of what the database could not answer is a `StoreUnavailable`, whose message says so where it is not
    known whether it happened.
    """
    outcomes: dict[int, Outcome] = {}
    for batch in _batches(operations):
        submission = _Submission(connections, batch, UUID(entropy.uuid()), now_ms)
        try:
            outcomes.update(await until_known(connections, submission))
        except StoreUnavailable as error:
            outcomes.update(dict.fromkeys(batch.positions, error))
        except (*DATABASE_ERRORS, *ROW_FAULTS) as error:
            if fault_of(error) not in (Fault.DATA, Fault.BLOCKED):
                raise
    return outcomes


def _batches(operations: Mapping[int, Operation]) -> Iterator[DirectBatch]:
    batch = DirectBatch()
    for position, operation in operations.items():
        batch.add(position, operation)
        if batch.bytes > BYTES_MAX:
            yield batch
            batch = DirectBatch()
    if batch:
        yield batch


class _Submission:
    """Of a batch, under one id (consistency.md 3)."""

    def __init__(self, connections: Connections, batch: DirectBatch, batch_id: UUID, now_ms: InstantMs | None) -> None:
        self._connections = connections
        self._batch = batch
        self._now_ms = now_ms
        self.batch_id: UUID | None = batch_id
        self.is_in_doubt = False

    async def attempt(self, connection: asyncpg.Connection) -> dict[int, Outcome]:
        try:
            return await self._commit(connection)
        except DATABASE_ERRORS as error:
            fault = fault_of(error)
            if fault is Fault.LOST:
                self.is_in_doubt = True
            elif fault is Fault.DATA:
                self.is_in_doubt = False  # the row of the batch was written before: no earlier attempt is under way
            raise

    async def _commit(self, connection: asyncpg.Connection) -> dict[int, Outcome]:
        assert self.batch_id is not None
        try:
            async with self._connections.statement(connection):
                return await self._batch.commit(connection, self.batch_id, self._now_ms)
        except asyncpg.UniqueViolationError as error:
            if error.constraint_name != "batches_pkey":
                raise
        async with self._connections.statement(connection):
            return await self._batch.recorded(connection, self.batch_id)
