"""A store that keeps everything in memory: for tests, simulations and embedding without durability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from pathlib import Path

from stellwerk.core.changes import IncidentRow, UserTaskRow
from stellwerk.core.external_task import ExternalTask, TaskAttempt, TaskState
from stellwerk.core.history import decode_facts
from stellwerk.errors import Conflict
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    ApiKeyRow,
    Clock,
    DefinitionRow,
    DueTimer,
    HistoryStep,
    InboxRow,
    InstanceFilter,
    InstanceSummary,
    KeptMessage,
    MatchedMessage,
    Operation,
    Outcome,
    ReadyScan,
    ReadyTask,
    StoredInstance,
    TaskQuery,
    TopicBacklog,
    UserTaskFilter,
)
from stellwerk.stores import memory_listing, memory_messages
from stellwerk.stores.alone import AloneStore
from stellwerk.stores.lease_clock import LeaseClock
from stellwerk.stores.memory_tables import MemoryTables, Waiting
from stellwerk.stores.operations import apply_operation
from stellwerk.stores.tables import ROW_FAULTS, refusal_of

__all__ = ["MemoryStore"]


class MemoryStore(AloneStore):
    """`Store` without a database; closing it keeps the rows, so that it can be opened again."""

    def __init__(self, clock: Clock) -> None:
        self._tables = MemoryTables()
        self._clock = LeaseClock(clock)
        self.file: Path | None = None
        self._high_water_ms: InstantMs = 0

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._tables.instances)} instances, {len(self._tables.tasks)} tasks)"

    async def open(self) -> None:
        self._clock.open(self._high_water_ms)

    async def close(self) -> None:
        self._high_water_ms = self._now_ms()

    async def lease_now(self) -> InstantMs:
        return self._now_ms()

    def _now_ms(self) -> InstantMs:
        self._high_water_ms = max(self._high_water_ms, self._clock.now_ms())
        return self._high_water_ms

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        now_ms = self._now_ms()
        return [self._apply(operation, now_ms) for operation in operations]

    def _apply(self, operation: Operation, now_ms: InstantMs) -> Outcome:
        self._tables.forget_undo()
        try:
            return apply_operation(self._tables, operation, now_ms)
        except ROW_FAULTS as error:
            self._tables.undo()
            return refusal_of(operation, error)

    # --- instances and definitions ---------------------------------------------------------------------------------

    async def load_instance(self, instance_id: str) -> StoredInstance | None:
        row = self._tables.instances.get(instance_id)
        if row is None:
            return None
        version, snapshot = self._tables.snapshots.get(instance_id, (0, None))
        steps = tuple(self._steps(instance_id, after=version))
        return StoredInstance(row.version, row.definition_id, row.status, snapshot, steps)

    async def history(self, instance_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[HistoryStep]:
        return list(self._steps(instance_id, after, limit))

    def _steps(self, instance_id: str, after: int, limit: int | None = None) -> Iterator[HistoryStep]:
        # Versions count from 1 without gaps.
        until = None if limit is None else after + limit
        for version, at_ms, facts in self._tables.history.get(instance_id, [])[after:until]:
            yield HistoryStep(version, at_ms, decode_facts(facts))

    async def instance(self, instance_id: str) -> InstanceSummary | None:
        return self._tables.instances.get(instance_id)

    async def instances(
        self, wanted: InstanceFilter = InstanceFilter(), *, limit: int = 100, after: str | None = None
    ) -> Sequence[InstanceSummary]:
        return memory_listing.instances(self._tables, wanted, limit, after)

    async def definition(self, definition_id: str) -> DefinitionRow | None:
        return next((row for row in await self.definitions() if row.definition_id == definition_id), None)

    async def latest_definition(self, key: str) -> DefinitionRow | None:
        return self._tables.latest_definition(key)

    async def definitions(self) -> Sequence[DefinitionRow]:
        return [row for key in sorted(self._tables.definitions) for row in self._tables.definitions[key]]

    async def disabled_processes(self) -> Sequence[str]:
        return sorted(key for key, row in self._tables.processes.items() if not row.is_enabled)

    # --- tasks -----------------------------------------------------------------------------------------------------

    async def task(self, task_id: str) -> ExternalTask | None:
        return self._tables.tasks.get(task_id)

    async def tasks(
        self, wanted: TaskQuery = TaskQuery(), *, limit: int = 1000, after: str | None = None
    ) -> Sequence[ExternalTask]:
        return memory_listing.tasks(self._tables, wanted, self._now_ms(), limit, after)

    async def count_tasks(self, wanted: TaskQuery = TaskQuery()) -> int:
        return memory_listing.count_tasks(self._tables, wanted, self._now_ms())

    async def topic_backlogs(self) -> Sequence[TopicBacklog]:
        return memory_listing.topic_backlogs(self._tables, self._now_ms())

    async def held_leases(self, worker_ids: Sequence[str]) -> Mapping[tuple[str, str], int]:
        return memory_listing.held_leases(self._tables, worker_ids, self._now_ms())

    async def attempts(self, task_id: str) -> Sequence[TaskAttempt]:
        return sorted(self._tables.attempts.get(task_id, {}).values(), key=lambda attempt: attempt.fence)

    async def ready_tasks(self, topic: str, limit: int) -> ReadyScan:
        now_ms = self._now_ms()
        tasks = tuple(
            ReadyTask(-task.priority, task.created_at_ms, task.task_id, task.lock_duration_ms, len(task.variables))
            for task in self._tables.ready((topic,), now_ms, limit)
        )
        return ReadyScan(tasks, self._tables.next_available(topic, now_ms), now_ms)

    async def next_lock_expiry(self) -> tuple[InstantMs | None, InstantMs]:
        return self._tables.next_expiry(-1), self._now_ms()

    async def draining_ready(self, limit: int) -> Sequence[tuple[str, str]]:
        found = [
            (task.instance_id, task.task_id)
            for task in self._tables.tasks.values()
            if task.draining and task.state is TaskState.READY
        ]
        return sorted(found, key=lambda pair: pair[1])[:limit]

    # --- what waits ------------------------------------------------------------------------------------------------

    async def due_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        due: list[DueTimer] = []
        for due_at_ms, timer_id in self._tables.timers_by_due:
            if due_at_ms > now_ms or len(due) == limit:
                return due, due_at_ms
            due.append(DueTimer(timer_id, self._tables.timers[timer_id].instance_id, due_at_ms))
        return due, None

    async def matched_messages(self, now_ms: InstantMs, limit: int) -> Sequence[MatchedMessage]:
        return list(islice(memory_messages.matched_messages(self._tables, now_ms), limit))

    async def message(self, message_id: str) -> KeptMessage | None:
        return memory_messages.message(self._tables, message_id)

    async def waiting_messages(
        self, now_ms: InstantMs, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[KeptMessage]:
        return memory_messages.waiting_messages(self._tables, now_ms, limit, after)

    async def awaited_names(self, limit: int) -> Sequence[str]:
        return memory_messages.awaited_names(self._tables, limit)

    async def receivers(self, name: str, limit: int) -> Sequence[tuple[str, str]]:
        return memory_messages.receivers(self._tables, name, limit)

    async def incident_counts(self, instance_ids: Sequence[str]) -> Mapping[str, int]:
        return memory_listing.incident_counts(self._tables, instance_ids)

    async def incidents(
        self, instance_id: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        return [
            _incident(waiting, waiting.row)
            for waiting in _page(self._tables.incidents, instance_id, limit, after)
            if isinstance(waiting.row, IncidentRow)
        ]

    async def user_tasks(
        self,
        instance_id: str | None = None,
        *,
        wanted: UserTaskFilter = UserTaskFilter(),
        limit: int = 1000,
        after: str | None = None,
    ) -> Sequence[Mapping[str, object]]:
        return [
            _user_task(waiting, waiting.row)
            for waiting in _page(self._tables.user_tasks, instance_id, limit, after, partial(self._is_wanted, wanted))
            if isinstance(waiting.row, UserTaskRow)
        ]

    def _is_wanted(self, wanted: UserTaskFilter, waiting: Waiting) -> bool:
        row, instance = waiting.row, self._tables.instances.get(waiting.instance_id)
        assert isinstance(row, UserTaskRow), row
        return (
            wanted.assignee in (None, row.assignee)
            and wanted.is_assigned in (None, row.assignee is not None)
            and (wanted.candidate_user is None or wanted.candidate_user in row.candidate_users)
            and (wanted.candidate_group is None or wanted.candidate_group in row.candidate_groups)
            and (wanted.process_keys is None or (instance is not None and instance.process_key in wanted.process_keys))
        )

    async def incident(self, incident_id: str) -> Mapping[str, object] | None:
        waiting = self._tables.incidents.get(incident_id)
        if waiting is None or not isinstance(waiting.row, IncidentRow):
            return None
        return _incident(waiting, waiting.row)

    async def user_task(self, user_task_id: str) -> Mapping[str, object] | None:
        waiting = self._tables.user_tasks.get(user_task_id)
        if waiting is None or not isinstance(waiting.row, UserTaskRow):
            return None
        return _user_task(waiting, waiting.row)

    async def inbox(self, limit: int) -> Sequence[InboxRow]:
        return list(islice(self._tables.inbox.values(), limit))

    async def api_key(self, key_id: str) -> ApiKeyRow | None:
        return self._tables.api_key(key_id)

    async def api_keys(self) -> Sequence[ApiKeyRow]:
        return sorted(self._tables.api_keys.values(), key=lambda row: (row.created_at_ms, row.key_id))

    async def has_api_keys(self) -> bool:
        return bool(self._tables.api_keys)

    async def backup(self, target: Path, progress: Callable[[float], None]) -> None:
        raise Conflict(f"{target} was not written: a store in memory has no file to back up")


def _page(
    rows: Mapping[str, Waiting],
    instance_id: str | None,
    limit: int,
    after: str | None,
    is_wanted: Callable[[Waiting], bool] = lambda _row: True,
) -> list[Waiting]:
    keys = (
        key
        for key, row in rows.items()
        if instance_id in (None, row.instance_id) and (after is None or key > after) and is_wanted(row)
    )
    return [rows[key] for key in nsmallest(limit, keys)]


def _incident(waiting: Waiting, row: IncidentRow) -> Mapping[str, object]:
    return {
        "incident_id": row.incident_id,
        "instance_id": waiting.instance_id,
        "kind": row.kind,
        "element_id": row.element_id,
        "message": row.message,
        "task_id": row.task_id,
        "opened_at_ms": waiting.at_ms,
    }


def _user_task(waiting: Waiting, row: UserTaskRow) -> Mapping[str, object]:
    return {
        "user_task_id": row.user_task_id,
        "instance_id": waiting.instance_id,
        "element_id": row.element_id,
        "name": row.name,
        "assignee": row.assignee,
        "candidate_users": row.candidate_users,
        "candidate_groups": row.candidate_groups,
        "form": row.form,
        "variables": row.variables,
        "created_at_ms": waiting.at_ms,
        "due_at": row.due_at,
    }
