"""The committed rows, as the checkers keep them from the changes alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

from simulations.checks.reports import Journal, Reports
from simulations.world.rows import RowChange
from stellwerk.core.changes import SubscriptionRow, TimerRow
from stellwerk.core.external_task import ExternalTask, TaskAttempt, TaskState
from stellwerk.ports import DefinitionRow, InstanceSummary, MessageRow
from stellwerk.stores.memory_tables import StoredMessage, Waiting

__all__ = ["OPEN_TASK_STATES", "WAITING_TABLES", "Shadow", "label"]

WAITING_TABLES = ("timers", "subscriptions", "user_tasks", "incidents")
OPEN_TASK_STATES = (TaskState.READY, TaskState.LOCKED)

_TABLES = (
    "tasks",
    "attempts",
    "instances",
    "history",
    "snapshots",
    *WAITING_TABLES,
    "messages",
    "inbox",
    "definitions",
)


def label(task: ExternalTask) -> str:
    """How violations name a task: with its element, which people know."""
    return f"task {task.task_id} ({task.element_id})"


class Shadow:
    """A table of its own for each kind of row, and what waits for each instance."""

    def __init__(self, reports: Reports, journal: Journal) -> None:
        self._reports = reports
        self._journal = journal
        self._tables: dict[str, dict[Hashable, Any]] = {name: {} for name in _TABLES}
        self.rows_of: dict[str, dict[tuple[str, Hashable], None]] = {}
        """By instance: (table, key) of its tasks that are not over for good, and of what waits."""
        self.attempts_of: dict[str, int] = {}
        """How many attempts each task has."""
        self.dropped_messages: dict[Hashable, None] = {}
        """Ids of those whose row was there once."""

    @property
    def tasks(self) -> Mapping[str, ExternalTask]:
        return cast("Mapping[str, ExternalTask]", self._tables["tasks"])

    @property
    def attempts(self) -> Mapping[tuple[str, int], TaskAttempt]:
        return cast("Mapping[tuple[str, int], TaskAttempt]", self._tables["attempts"])

    @property
    def instances(self) -> Mapping[str, InstanceSummary]:
        return cast("Mapping[str, InstanceSummary]", self._tables["instances"])

    @property
    def messages(self) -> Mapping[str, StoredMessage]:
        return cast("Mapping[str, StoredMessage]", self._tables["messages"])

    @property
    def definitions(self) -> Mapping[str, DefinitionRow]:
        return cast("Mapping[str, DefinitionRow]", self._tables["definitions"])

    @property
    def incidents(self) -> Mapping[str, Waiting]:
        return cast("Mapping[str, Waiting]", self._tables["incidents"])

    def timer(self, timer_id: str) -> TimerRow | None:
        waiting = self._tables["timers"].get(timer_id)
        return None if waiting is None else cast("TimerRow", waiting.row)

    def subscription(self, subscription_id: str) -> SubscriptionRow | None:
        waiting = self._tables["subscriptions"].get(subscription_id)
        return None if waiting is None else cast("SubscriptionRow", waiting.row)

    def waiting(self, table: str) -> Mapping[str, Waiting]:
        return cast("Mapping[str, Waiting]", self._tables[table])

    def awaiting(self, message: MessageRow) -> str | None:
        """A subscription that this message could reach, and that was opened while it lived."""
        for subscription_id, waiting in self.waiting("subscriptions").items():
            row = cast("SubscriptionRow", waiting.row)
            is_for_any_key = message.instance_id is not None and not message.key
            fits = row.name == message.name and (is_for_any_key or row.key == message.key)
            is_receiver = message.instance_id in (None, waiting.instance_id)
            if fits and is_receiver and waiting.at_ms < message.expires_at_ms:
                return subscription_id
        return None

    def has_inbox_row(self, instance_id: str, dedupe_key: str) -> bool:
        return (instance_id, dedupe_key) in self._tables["inbox"]

    def attempts_of_task(self, task_id: str) -> Iterator[TaskAttempt]:
        return (attempt for (owner, _), attempt in self.attempts.items() if owner == task_id)

    # --- changes ---------------------------------------------------------------------------------------------------

    def apply(self, change: RowChange) -> None:
        table = self._tables.get(change.table)
        if table is None:
            return
        known = table.get(change.key)
        if known is not change.before and not _is_same(known, change.before):
            self._reports.always(
                "W1",
                False,
                f"{change.table} {change.key}: a write rests on {change.before}, but the last commit left {known}",
            )
        if change.after is None:
            self._journal.remove(table, change.key)
            if change.table == "messages":
                self._journal.put(self.dropped_messages, change.key, None)
        else:
            self._journal.put(table, change.key, change.after)
        self._index(change)

    def _index(self, change: RowChange) -> None:
        if change.table == "attempts":
            row = change.before if change.after is None else change.after
            assert isinstance(row, TaskAttempt)
            count = self.attempts_of.get(row.task_id, 0) + (1 if change.before is None else 0) - (change.after is None)
            self._journal.put(self.attempts_of, row.task_id, count)
        elif change.table in WAITING_TABLES or change.table == "tasks":
            self._index_waiting(change)

    def _index_waiting(self, change: RowChange) -> None:
        row = change.before if change.after is None else change.after
        assert isinstance(row, Waiting | ExternalTask)
        rows = self.rows_of.setdefault(row.instance_id, {})
        key = (change.table, change.key)
        if change.after is not None and _may_change(change.after):
            if key not in rows:
                self._journal.put(rows, key, None)
        else:
            self._journal.remove(rows, key)


def _may_change(row: object) -> bool:
    return not isinstance(row, ExternalTask) or row.state not in (TaskState.COMPLETED, TaskState.CANCELLED)


def _is_same(known: object, before: object) -> bool:
    """A store may give back rows without what it need not read again (a task's variables)."""
    if isinstance(known, ExternalTask) and isinstance(before, ExternalTask):
        return _decisive(known) == _decisive(before)
    return known == before


def _decisive(task: ExternalTask) -> tuple[object, ...]:
    return (
        task.state,
        task.fence,
        task.lease,
        task.outcome,
        task.retries_left,
        task.lock_expiries,
        task.attempt,
        task.draining,
        task.available_at_ms,
    )
