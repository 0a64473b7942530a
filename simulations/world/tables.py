"""The rows of the simulated database: those of the memory store, which also tell what is written to them, and which can
be taken back to where they were."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from simulations.world.rows import RowChange
from stellwerk.core.external_task import ExternalTask, TaskAttempt, TaskState
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    Clock,
    DefinitionRow,
    DueTimer,
    HistoryStep,
    InstanceSummary,
    NodeReport,
    NodeRow,
    Operation,
    Outcome,
)
from stellwerk.stores.lease_clock import LeaseClock
from stellwerk.stores.memory import MemoryStore
from stellwerk.stores.memory_tables import MemoryTables
from stellwerk.stores.operations import apply_operation
from stellwerk.stores.postgres.clock_watch import ClockJump, LeaseTime
from stellwerk.stores.tables import ROW_FAULTS, refusal_of

__all__ = ["DatabaseRows", "Found", "JumpingLeaseClock", "NotingTables", "Undo", "at_once"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")

Undo = list[Callable[[], object]]

_NOTED = (
    "tasks",
    "instances",
    "snapshots",
    "timers",
    "subscriptions",
    "user_tasks",
    "incidents",
    "messages",
    "inbox",
    "processes",
    "api_keys",
)
"""Tables that are plain dictionaries of rows by key."""
_CLAIM_MS = 10_000
"""As in PostgreSQL: so long a node that takes due timers keeps the others off them."""
_SEEN_MS_MAX = 60_000


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("rows are read at one instant")


@attrs.define
class Found:
    """What a transaction of several statements found before the one that writes; None: nothing was looked for."""

    ready: list[ExternalTask] | None = None
    past_due: list[ExternalTask] | None = None
    leases: list[ExternalTask] | None = None
    definitions: Mapping[str, DefinitionRow | None] = attrs.field(factory=dict)
    """The newest of each process as it was then."""


class NotingTables(MemoryTables):
    """One transaction at a time: `begin`, then writes, then `take`."""

    def __init__(self) -> None:
        super().__init__()
        self._names = {id(getattr(self, name)): name for name in _NOTED}
        self._time = LeaseTime()
        self._found = Found()
        self.changes: list[RowChange] = []
        self.operation = 0

    # --- transactions ----------------------------------------------------------------------------------------------

    def begin(self, jump: ClockJump | None, found: Found | None) -> None:
        self._undo, self.changes, self.operation = [], [], 0
        self._time = LeaseTime(jump=jump)
        self._found = found or Found()

    def take(self) -> tuple[Undo, tuple[RowChange, ...]]:
        """How to take the transaction back (from the end), and what it wrote."""
        undo, changes = self._undo, tuple(self.changes)
        self.begin(None, None)
        return undo, changes

    def mark(self) -> tuple[int, int]:
        return len(self._undo), len(self.changes)

    def undo_to(self, mark: tuple[int, int]) -> None:
        while len(self._undo) > mark[0]:
            self._undo.pop()()
        del self.changes[mark[1] :]

    # --- what is noted ---------------------------------------------------------------------------------------------

    def _note(self, table: str, key: Hashable, before: object | None, after: object | None) -> None:
        self.changes.append(RowChange(table, key, before, after, self.operation))

    def _insert(self, table: dict[K, V], key: K, value: V) -> None:
        super()._insert(table, key, value)
        if (name := self._names.get(id(table))) is not None:
            self._note(name, key, None, value)

    def _replace(self, table: dict[K, V], key: K, value: V) -> None:
        before = table.get(key)
        super()._replace(table, key, value)
        if (name := self._names.get(id(table))) is not None:
            self._note(name, key, before, value)

    def _delete(self, table: dict[K, V], key: K) -> V | None:
        before = super()._delete(table, key)
        if before is not None and (name := self._names.get(id(table))) is not None:
            self._note(name, key, before, None)
        return before

    def update_task(self, task: ExternalTask) -> None:
        before = self.tasks[task.task_id]
        super().update_task(task)
        self._note("tasks", task.task_id, before, task)

    def insert_attempt(self, attempt: TaskAttempt) -> None:
        super().insert_attempt(attempt)
        self._note("attempts", (attempt.task_id, attempt.fence), None, attempt)

    def append_history(self, instance_id: str, version: int, at_ms: InstantMs, facts: bytes) -> None:
        super().append_history(instance_id, version, at_ms, facts)
        self._note("history", (instance_id, version), None, (version, at_ms, facts))

    def insert_definition(self, row: DefinitionRow) -> None:
        super().insert_definition(row)
        self._note("definitions", row.definition_id, None, row)

    def delete_definition(self, definition_id: str) -> None:
        versions = self.definitions[definition_id.rpartition(":")[0]]
        before = next(row for row in versions if row.definition_id == definition_id)
        super().delete_definition(definition_id)
        self._note("definitions", definition_id, before, None)

    def delete_instance(self, instance_id: str) -> int:
        for step in self.history.get(instance_id, ()):
            self._note("history", (instance_id, step[0]), step, None)
        for task_id in self.tasks_of.get(instance_id, ()):
            for fence, attempt in self.attempts.get(task_id, {}).items():
                self._note("attempts", (task_id, fence), attempt, None)
        return super().delete_instance(instance_id)

    # --- what is seen differently ----------------------------------------------------------------------------------

    def task(self, task_id: str) -> ExternalTask | None:
        task = self.tasks.get(task_id)
        return task if task is None or self._time.jump is None else self._time.as_it_is(task)

    def ready(self, topics: Sequence[str], now_ms: InstantMs, limit: int) -> list[ExternalTask]:
        found = self._found.ready
        return super().ready(topics, now_ms, limit) if found is None else found

    def past_due(self, now_ms: InstantMs, limit: int, *, needs_instance: bool) -> list[ExternalTask]:
        found = None if needs_instance else self._found.past_due
        if found is None:
            found = super().past_due(now_ms, limit, needs_instance=needs_instance)
        if self._time.jump is None:
            return found
        # Those that were given before the clock was set last as long as ever.
        seen = [self._time.as_it_is(task) for task in found]
        return [task for task in seen if task.lease is not None and task.lease.until_ms <= now_ms]

    def leases_of(self, worker_id: str, boot_id: str) -> list[ExternalTask]:
        found = self._found.leases
        if found is None:
            return super().leases_of(worker_id, boot_id)
        # They are looked at again once they are locked.
        still = {task.task_id for task in super().leases_of(worker_id, boot_id)}
        return [self.tasks[task.task_id] for task in found if task.task_id in still]

    def latest_definition(self, key: str) -> DefinitionRow | None:
        found = self._found.definitions
        return found[key] if key in found else super().latest_definition(key)


class JumpingLeaseClock(LeaseClock):
    """The database's clock: it can be set forward."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._ahead_ms = 0

    def jump(self, milliseconds: int) -> None:
        self._ahead_ms += milliseconds

    def now_ms(self) -> InstantMs:
        return super().now_ms() + self._ahead_ms


class DatabaseRows(MemoryStore):
    """Everything in the database, and what PostgreSQL can be asked beside it. Its coroutines never wait."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.tables = NotingTables()
        self._tables = self.tables
        self._clock = self.clock = JumpingLeaseClock(clock)
        self._claims: dict[str, InstantMs] = {}
        """Timers, and until when (lease clock) no other node gets them."""
        self._reports: dict[str, tuple[NodeReport, InstantMs]] = {}

    def now_ms(self) -> InstantMs:
        """The lease clock: it never falls, whatever becomes of the database."""
        return self._now_ms()

    def apply(self, operations: Sequence[Operation], now_ms: InstantMs) -> list[Outcome]:
        """Within `begin` and `take` of the tables. What cannot be written is refused alone."""
        return [self._apply_one(place, operation, now_ms) for place, operation in enumerate(operations)]

    def _apply_one(self, place: int, operation: Operation, now_ms: InstantMs) -> Outcome:
        tables = self.tables
        tables.operation = place
        mark = tables.mark()
        try:
            return apply_operation(tables, operation, now_ms)
        except ROW_FAULTS as error:
            tables.undo_to(mark)
            return refusal_of(operation, error)

    # --- what PostgreSQL answers beside it -------------------------------------------------------------------------

    async def claim_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        lease_now_ms = self.now_ms()
        due, _ = await self.due_timers(now_ms, len(self.tables.timers))
        free = [timer for timer in due if self._claims.get(timer.timer_id, 0) <= lease_now_ms]
        taken = free[:limit]
        for timer in taken:
            self._claims[timer.timer_id] = lease_now_ms + _CLAIM_MS
        if len(free) > limit:
            return taken, free[limit].due_at_ms
        return taken, self._next_claim_ms(due, {timer.timer_id for timer in taken}, now_ms, lease_now_ms)

    def _next_claim_ms(
        self, due: Sequence[DueTimer], taken: set[str], now_ms: InstantMs, lease_now_ms: InstantMs
    ) -> InstantMs | None:
        instants = [
            now_ms + self._claims[timer.timer_id] - lease_now_ms for timer in due if timer.timer_id not in taken
        ]
        later = next(self.tables.timers_by_due.from_key((now_ms + 1, "")), None)
        return min(instants if later is None else (later[0], *instants), default=None)

    async def standing_leases(self, leases: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        found = [(self.tables.tasks.get(task_id), fence) for task_id, fence in leases]
        return [
            (task.task_id, fence)
            for task, fence in found
            if task is not None and task.state is TaskState.LOCKED and task.fence == fence
        ]

    async def last_lock_end(self, before_ms: InstantMs) -> InstantMs | None:
        """The latest end of a lease that began before that."""
        locked = (self.tables.tasks[task_id].lease for _, task_id in self.tables.locked)
        return max((lease.until_ms for lease in locked if lease and lease.since_ms < before_ms), default=None)

    async def report_node(self, report: NodeReport) -> None:
        self._reports[report.node_id] = report, self.now_ms()

    async def others_known(self, node_id: str) -> bool:
        oldest_ms = self.now_ms() - _SEEN_MS_MAX
        return any(name != node_id and seen_ms >= oldest_ms for name, (_, seen_ms) in self._reports.items())

    async def nodes(self) -> Sequence[NodeRow]:
        now_ms = self.now_ms()
        return [
            NodeRow(report=report, seen_ms_ago=now_ms - seen_ms)
            for _, (report, seen_ms) in sorted(self._reports.items())
        ]

    async def forget_node(self, node_id: str) -> None:
        self._reports.pop(node_id, None)

    # --- for those who judge ---------------------------------------------------------------------------------------

    def all_tasks(self) -> list[ExternalTask]:
        return [self.tables.tasks[key] for key in sorted(self.tables.tasks)]

    def all_instances(self) -> list[InstanceSummary]:
        return [self.tables.instances[key] for key in sorted(self.tables.instances)]

    def all_steps(self, instance_id: str) -> list[HistoryStep]:
        return list(self._steps(instance_id, 0))
