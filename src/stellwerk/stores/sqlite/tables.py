"""The write path's view of the SQLite tables: reads by key, and writes that wait until they are sent together.

One transaction's writes are gathered and sent with ``executemany``, grouped by statement: three times as fast as one
by one. Rows of tasks and instances that were written lately are kept (`RecentRows`); that is right because this
process holds the file's exclusive lock, and whatever fails empties the cache.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from stellwerk.core.changes import IncidentRow, SubscriptionRow, TimerRow, UserTaskAssignment, UserTaskRow
from stellwerk.core.external_task import ExternalTask, TaskAttempt, TaskState
from stellwerk.instants import InstantMs
from stellwerk.json_values import dumps
from stellwerk.ports import ApiKeyRow, DefinitionRow, InboxRow, MessageRow, NewInstance, ProcessRow, ReadyTask
from stellwerk.stores import rows
from stellwerk.stores.catalogue import split_definition_id
from stellwerk.stores.key_rows import API_KEY_COLUMNS, api_key_from_row, api_key_to_row
from stellwerk.stores.rows import SqlRow
from stellwerk.stores.sqlite import pruning
from stellwerk.stores.sqlite.messages import drop_messages
from stellwerk.stores.sqlite.statements import WRITES, Write
from stellwerk.stores.tables import ENDED_STATUSES, DataFault, InstanceState

__all__ = ["RecentRows", "SqliteTables", "select_ready_hints"]

_TASKS_KEPT_MAX = 10_000
_INSTANCES_KEPT_MAX = 50_000
_VARIABLES_KEPT_BYTES_MAX = 4_096
"""Larger tasks are read again instead of being kept."""

_TASK_COLUMNS = ", ".join(rows.TASK_COLUMNS)
_SELECT_TASK = f"SELECT {_TASK_COLUMNS} FROM external_tasks WHERE task_id = ?"  # noqa: S608 -- constants, here and below
_SELECT_READY = f"""
SELECT {_TASK_COLUMNS} FROM external_tasks
WHERE task_type = ? AND state = 'READY' AND draining = 0 AND available_at <= updated_at
ORDER BY -priority, created_at, task_id LIMIT ?"""  # noqa: S608
_SELECT_DUE_AGAIN = f"""
SELECT {_TASK_COLUMNS} FROM external_tasks
WHERE task_type = ? AND state = 'READY' AND draining = 0 AND available_at > updated_at AND available_at <= ?
ORDER BY -priority, created_at, task_id LIMIT ?"""  # noqa: S608
# Of thousands of tasks their variables must not come along.
_HINT_COLUMNS = "-priority, created_at, task_id, lock_duration_ms, length(variables)"
_SELECT_READY_HINTS = _SELECT_READY.replace(_TASK_COLUMNS, _HINT_COLUMNS)
_SELECT_DUE_AGAIN_HINTS = _SELECT_DUE_AGAIN.replace(_TASK_COLUMNS, _HINT_COLUMNS)
_EXPIRY_NEEDS_INSTANCE = """
(single_try OR draining OR (lock_expiries_max > 0 AND lock_expiries + 1 >= lock_expiries_max))"""
_SELECT_PAST_DUE = f"""
SELECT {_TASK_COLUMNS} FROM external_tasks
WHERE state = 'LOCKED' AND lock_expire_at <= ? AND {_EXPIRY_NEEDS_INSTANCE} = ?
ORDER BY lock_expire_at, task_id LIMIT ?"""  # noqa: S608
_SELECT_NEXT_EXPIRY = "SELECT min(lock_expire_at) FROM external_tasks WHERE state = 'LOCKED' AND lock_expire_at > ?"
_SELECT_LEASES_OF_BOOT = "SELECT task_id FROM external_tasks WHERE state = 'LOCKED' AND lock_boot_id = ?"
_SELECT_ATTEMPT = f"SELECT {', '.join(rows.ATTEMPT_COLUMNS)} FROM task_attempts WHERE task_id = ? AND fence = ?"  # noqa: S608
_SELECT_NEWEST_ATTEMPT = f"""
SELECT {", ".join(rows.ATTEMPT_COLUMNS)} FROM task_attempts
WHERE task_id = ? AND worker_id = ? ORDER BY fence DESC LIMIT 1"""  # noqa: S608
_SELECT_DEFINITION = "SELECT 1 FROM definitions WHERE process_key = ? AND version = ?"
_SELECT_PROCESS = f"SELECT {', '.join(rows.PROCESS_COLUMNS)} FROM processes WHERE process_key = ?"  # noqa: S608
_SELECT_LATEST_DEFINITION = f"""
SELECT {", ".join(rows.DEFINITION_COLUMNS)} FROM definitions
WHERE process_key = ? ORDER BY version DESC LIMIT 1"""  # noqa: S608
_SELECT_API_KEY = f"SELECT {', '.join(API_KEY_COLUMNS)} FROM api_keys WHERE key_id = ?"  # noqa: S608


def select_ready(connection: sqlite3.Connection, topic: str, now_ms: InstantMs, limit: int) -> list[ExternalTask]:
    """READY tasks of a topic that are available, in order of hand-out."""
    found = connection.execute(_SELECT_READY, (topic, limit)).fetchall()
    due_again = connection.execute(_SELECT_DUE_AGAIN, (topic, now_ms, limit)).fetchall()
    tasks = [rows.task_from_row(row) for row in (*found, *due_again)]
    return _in_order_of_hand_out(tasks, limit) if due_again else tasks


def select_ready_hints(
    connection: sqlite3.Connection, topic: str, now_ms: InstantMs, limit: int
) -> tuple[ReadyTask, ...]:
    """The same, but only what a dispatcher keeps of them."""
    found = connection.execute(_SELECT_READY_HINTS, (topic, limit)).fetchall()
    due_again = connection.execute(_SELECT_DUE_AGAIN_HINTS, (topic, now_ms, limit)).fetchall()
    hints = [ReadyTask(*row) for row in (*found, *due_again)]
    return tuple(sorted(hints)[:limit] if due_again else hints)


def _in_order_of_hand_out(tasks: Iterable[ExternalTask], limit: int) -> list[ExternalTask]:
    return sorted(tasks, key=lambda task: (-task.priority, task.created_at_ms, task.task_id))[:limit]


class RecentRows:
    """Rows as the last commits left them."""

    def __init__(self) -> None:
        self.tasks: dict[str, ExternalTask] = {}
        self.instances: dict[str, InstanceState] = {}
        self.deployed: set[str] = set()
        """Ids of definitions."""
        self.processes: dict[str, ProcessRow | None] = {}

    def clear(self) -> None:
        self.tasks.clear()
        self.instances.clear()
        self.deployed.clear()
        self.processes.clear()

    def keep(self, tasks: dict[str, ExternalTask], instances: dict[str, InstanceState]) -> None:
        for task_id, task in tasks.items():
            self.tasks.pop(task_id, None)
            is_open = task.state in (TaskState.READY, TaskState.LOCKED)
            if is_open and len(task.variables) + len(task.headers) <= _VARIABLES_KEPT_BYTES_MAX:
                self.tasks[task_id] = task
        for instance_id, state in instances.items():
            self.instances.pop(instance_id, None)
            if state.status not in ENDED_STATUSES:
                self.instances[instance_id] = state
        _drop_oldest(self.tasks, _TASKS_KEPT_MAX)
        _drop_oldest(self.instances, _INSTANCES_KEPT_MAX)


def _drop_oldest(kept: dict[str, Any], kept_max: int) -> None:
    while len(kept) > kept_max:
        del kept[next(iter(kept))]


class SqliteTables:
    """`Tables` for one transaction."""

    def __init__(self, connection: sqlite3.Connection, recent: RecentRows, *, trusts_insertions: bool) -> None:
        self._connection = connection
        self._recent = recent
        self._trusts_insertions = trusts_insertions
        """What is new need not be looked up: a duplicate makes the whole transaction be done again without trust."""
        self._tasks: dict[str, ExternalTask] = {}
        """As this transaction leaves them."""
        self._inserted: set[str] = set()
        self._unsent_tasks: dict[str, ExternalTask] = {}
        self._instances: dict[str, InstanceState] = {}
        self._unsent: dict[str, list[SqlRow]] = {}
        self.has_written = False

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send what waits. Also before every scan, since a scan must see what was written."""
        if self._unsent_tasks:
            self._stage_tasks()
        if not self._unsent:
            return
        for write in WRITES:
            parameters = self._unsent.get(write)
            if parameters is not None:
                self._connection.executemany(write, parameters)
        self._unsent.clear()
        self.has_written = True

    def _stage_tasks(self) -> None:
        for task_id, task in self._unsent_tasks.items():
            if task_id in self._inserted:
                self._write(Write.INSERT_TASK, (*rows.fixed_task_row(task), *rows.moving_task_row(task)))
            else:
                self._write(Write.UPDATE_TASK, (*rows.moving_task_row(task), task_id))
        self._inserted.clear()
        self._unsent_tasks.clear()

    def keep_recent(self) -> None:
        """After the commit: what this transaction wrote is the state of the file."""
        self._recent.keep(self._tasks, self._instances)

    def _write(self, write: str, parameters: SqlRow) -> None:
        waiting = self._unsent.get(write)
        if waiting is None:
            self._unsent[write] = [parameters]
        else:
            waiting.append(parameters)

    def _write_after(self, first: Sequence[str], write: str, parameters: SqlRow) -> None:
        """Write once rows are sent that could touch the same key but stand later in the list of statements."""
        if any(earlier in self._unsent for earlier in first):
            self.send()
        self._write(write, parameters)

    def _select(self, statement: str, parameters: SqlRow, *touching: str) -> SqlRow | None:
        """The first row; `touching` are the statements whose unsent rows it must see."""
        if any(write in self._unsent for write in touching):
            self.send()
        row: SqlRow | None = self._connection.execute(statement, parameters).fetchone()
        return row

    # --- external tasks --------------------------------------------------------------------------------------------

    def task(self, task_id: str) -> ExternalTask | None:
        task = self._tasks.get(task_id) or self._recent.tasks.get(task_id)
        if task is not None:
            return task
        row = self._connection.execute(_SELECT_TASK, (task_id,)).fetchone()
        return None if row is None else rows.task_from_row(row)

    def insert_task(self, task: ExternalTask) -> None:
        if task.task_id in self._tasks or task.task_id in self._recent.tasks:
            raise DataFault(f"task {task.task_id} is there already")
        self._inserted.add(task.task_id)
        self.update_task(task)

    def update_task(self, task: ExternalTask) -> None:
        self._tasks[task.task_id] = self._unsent_tasks[task.task_id] = task

    def rewrite_variables(self, task: ExternalTask) -> None:
        self._write(Write.REWRITE_VARIABLES, (task.variables.decode(), task.task_id))

    def rewrite_priority(self, task: ExternalTask) -> None:
        self._write(Write.REWRITE_PRIORITY, (task.priority, task.task_id))

    def ready(self, topics: Sequence[str], now_ms: InstantMs, limit: int) -> list[ExternalTask]:
        self.send()
        found = [task for topic in topics for task in select_ready(self._connection, topic, now_ms, limit)]
        return _in_order_of_hand_out(found, limit)

    def past_due(self, now_ms: InstantMs, limit: int, *, needs_instance: bool) -> list[ExternalTask]:
        self.send()
        found = self._connection.execute(_SELECT_PAST_DUE, (now_ms, needs_instance, limit)).fetchall()
        return [rows.task_from_row(row) for row in found]

    def next_expiry(self, now_ms: InstantMs) -> InstantMs | None:
        self.send()
        row = self._connection.execute(_SELECT_NEXT_EXPIRY, (now_ms,)).fetchone()
        instant: InstantMs | None = row[0]
        return instant

    def leases_of(self, worker_id: str, boot_id: str) -> list[ExternalTask]:
        self.send()
        ids = sorted(row[0] for row in self._connection.execute(_SELECT_LEASES_OF_BOOT, (boot_id,)))
        found = [task for task in map(self.task, ids) if task is not None]
        return [task for task in found if task.lease is not None and task.lease.holder.worker_id == worker_id]

    def attempt(self, task_id: str, fence: int) -> TaskAttempt | None:
        row = self._select(_SELECT_ATTEMPT, (task_id, fence), Write.INSERT_ATTEMPT)
        return None if row is None else rows.attempt_from_row(row)

    def newest_attempt(self, task_id: str, worker_id: str) -> TaskAttempt | None:
        row = self._select(_SELECT_NEWEST_ATTEMPT, (task_id, worker_id), Write.INSERT_ATTEMPT)
        return None if row is None else rows.attempt_from_row(row)

    def insert_attempt(self, attempt: TaskAttempt) -> None:
        self._write(Write.INSERT_ATTEMPT, rows.attempt_to_row(attempt))

    # --- instances -------------------------------------------------------------------------------------------------

    def instance(self, instance_id: str, *, is_new: bool = False) -> InstanceState | None:
        state = self._instances.get(instance_id) or self._recent.instances.get(instance_id)
        if state is not None:
            return state
        if is_new and self._trusts_insertions:
            return None
        row = self._connection.execute(
            "SELECT version, status, definition_id, business_key FROM instances WHERE instance_id = ?", (instance_id,)
        ).fetchone()
        return None if row is None else InstanceState(*row)

    def insert_instance(self, instance_id: str, row: NewInstance, state: InstanceState, at_ms: InstantMs) -> None:
        self._instances[instance_id] = state
        self._write(
            Write.INSERT_INSTANCE,
            (
                instance_id,
                row.definition_id,
                row.process_key,
                row.business_key,
                state.status,
                state.version,
                at_ms,
                None,
            ),
        )

    def update_instance(self, instance_id: str, state: InstanceState, ended_at_ms: InstantMs | None) -> None:
        self._instances[instance_id] = state
        if ended_at_ms is None:
            self._write_after((Write.END_INSTANCE,), Write.UPDATE_INSTANCE, (state.status, state.version, instance_id))
        else:
            self._write(Write.END_INSTANCE, (state.status, state.version, ended_at_ms, instance_id))

    def ended_before(self, before_ms: InstantMs, limit: int) -> list[str]:
        self.send()
        return pruning.ended_before(self._connection, before_ms, limit)

    def delete_instance(self, instance_id: str) -> int:
        self.send()
        task_ids, deleted = pruning.delete_instance(self._connection, instance_id)
        self.has_written = True
        for task_id in task_ids:
            self._tasks.pop(task_id, None)
            self._recent.tasks.pop(task_id, None)
        self._instances.pop(instance_id, None)
        self._recent.instances.pop(instance_id, None)
        return deleted

    def append_history(self, instance_id: str, version: int, at_ms: InstantMs, facts: bytes) -> None:
        self._write(Write.APPEND_HISTORY, (instance_id, version, at_ms, facts.decode()))

    def put_snapshot(self, instance_id: str, version: int, snapshot: bytes) -> None:
        self._write(Write.PUT_SNAPSHOT, (instance_id, version, snapshot))

    # --- what waits ------------------------------------------------------------------------------------------------

    def insert_timer(self, instance_id: str, row: TimerRow) -> None:
        parameters = (row.timer_id, instance_id, row.element_id, row.due_at_ms)
        self._write_after((Write.DELETE_TIMER,), Write.INSERT_TIMER, parameters)

    def delete_timer(self, timer_id: str) -> None:
        self._write(Write.DELETE_TIMER, (timer_id,))

    def insert_subscription(self, instance_id: str, row: SubscriptionRow, now_ms: InstantMs) -> None:
        parameters = (row.subscription_id, instance_id, row.element_id, row.name, row.key, now_ms)
        self._write_after((Write.DELETE_SUBSCRIPTION,), Write.INSERT_SUBSCRIPTION, parameters)

    def delete_subscription(self, subscription_id: str) -> None:
        self._write(Write.DELETE_SUBSCRIPTION, (subscription_id,))

    def insert_user_task(self, instance_id: str, row: UserTaskRow, at_ms: InstantMs) -> None:
        parameters = rows.user_task_to_row(instance_id, row, at_ms)
        self._write_after((Write.DELETE_USER_TASK,), Write.INSERT_USER_TASK, parameters)

    def assign_user_task(self, row: UserTaskAssignment) -> None:
        self._write(Write.ASSIGN_USER_TASK, (row.assignee, row.user_task_id))

    def delete_user_task(self, user_task_id: str) -> None:
        self._write(Write.DELETE_USER_TASK, (user_task_id,))

    def has_incident(self, instance_id: str, incident_id: str) -> bool:
        statement = "SELECT 1 FROM incidents WHERE incident_id = ? AND instance_id = ?"
        return (
            self._select(statement, (incident_id, instance_id), Write.INSERT_INCIDENT, Write.DELETE_INCIDENT)
            is not None
        )

    def insert_incident(self, instance_id: str, row: IncidentRow, at_ms: InstantMs) -> None:
        parameters = rows.incident_to_row(instance_id, row, at_ms)
        self._write_after((Write.DELETE_INCIDENT,), Write.INSERT_INCIDENT, parameters)

    def delete_incident(self, incident_id: str) -> None:
        self._write(Write.DELETE_INCIDENT, (incident_id,))

    # --- messages and the inbox ------------------------------------------------------------------------------------

    def knows_message(self, message_id: str) -> bool:
        statement = "SELECT 1 FROM messages WHERE message_id = ?"
        return self._select(statement, (message_id,), Write.INSERT_MESSAGE, Write.CONSUME_MESSAGE) is not None

    def has_message(self, message_id: str) -> bool:
        statement = "SELECT 1 FROM messages WHERE message_id = ? AND is_consumed = 0"
        return self._select(statement, (message_id,), Write.INSERT_MESSAGE, Write.CONSUME_MESSAGE) is not None

    def insert_message(self, row: MessageRow) -> None:
        self._write(Write.INSERT_MESSAGE, rows.message_to_row(row))

    def consume_message(self, message_id: str) -> None:
        self._write(Write.CONSUME_MESSAGE, (message_id,))

    def drop_messages(self, now_ms: InstantMs, given_up: tuple[str, ...]) -> int:
        self.send()
        dropped, waited = drop_messages(self._connection, now_ms, given_up)
        self.has_written = self.has_written or dropped > 0
        return waited

    def has_inbox_row(self, instance_id: str, dedupe_key: str) -> bool:
        statement = "SELECT 1 FROM inbox WHERE instance_id = ? AND dedupe_key = ?"
        return (
            self._select(statement, (instance_id, dedupe_key), Write.INSERT_INBOX, Write.DELETE_INBOX, Write.DROP_INBOX)
            is not None
        )

    def insert_inbox_row(self, row: InboxRow) -> None:
        parameters = (row.instance_id, row.dedupe_key, row.command.decode())
        self._write_after((Write.DELETE_INBOX, Write.DROP_INBOX), Write.INSERT_INBOX, parameters)

    def delete_inbox_row(self, instance_id: str, dedupe_key: str) -> None:
        self._write(Write.DELETE_INBOX, (instance_id, dedupe_key))

    def drop_inbox(self, instance_id: str) -> None:
        self._write(Write.DROP_INBOX, (instance_id,))

    # --- definitions -----------------------------------------------------------------------------------------------

    def latest_definition(self, key: str) -> DefinitionRow | None:
        row = self._select(_SELECT_LATEST_DEFINITION, (key,), Write.INSERT_DEFINITION, Write.DELETE_DEFINITION)
        return None if row is None else rows.definition_from_row(row)

    def has_definition(self, definition_id: str) -> bool:
        if definition_id in self._recent.deployed:
            return True
        named = split_definition_id(definition_id)
        touching = (Write.INSERT_DEFINITION, Write.DELETE_DEFINITION)
        if named is None or self._select(_SELECT_DEFINITION, named, *touching) is None:
            return False
        self._recent.deployed.add(definition_id)
        return True

    def has_instances_of(self, definition_id: str) -> bool:
        statement = "SELECT 1 FROM instances WHERE definition_id = ? LIMIT 1"
        return self._select(statement, (definition_id,), Write.INSERT_INSTANCE) is not None

    def insert_definition(self, row: DefinitionRow) -> None:
        self._write(Write.INSERT_DEFINITION, rows.definition_to_row(row))

    def delete_definition(self, definition_id: str) -> None:
        self._recent.deployed.discard(definition_id)
        self._write(Write.DELETE_DEFINITION, split_definition_id(definition_id) or ())

    def replace_start_subscriptions(self, key: str, row: DefinitionRow | None, now_ms: InstantMs) -> None:
        names = [] if row is None else list(dict.fromkeys(row.start_messages))
        dropped = (key, dumps(names).decode())
        self._write_after((Write.PUT_START_SUBSCRIPTION,), Write.DROP_START_SUBSCRIPTIONS, dropped)
        for name in names:
            assert row is not None
            self._write(Write.PUT_START_SUBSCRIPTION, (key, name, row.definition_id, now_ms))

    def process(self, key: str) -> ProcessRow | None:
        if key not in self._recent.processes:
            found = self._select(_SELECT_PROCESS, (key,), Write.PUT_PROCESS)
            self._recent.processes[key] = None if found is None else rows.process_from_row(found)
        return self._recent.processes[key]

    def put_process(self, row: ProcessRow) -> None:
        self._recent.processes.pop(row.key, None)
        self._write(Write.PUT_PROCESS, rows.process_to_row(row))

    # --- API keys --------------------------------------------------------------------------------------------------

    def api_key(self, key_id: str) -> ApiKeyRow | None:
        row = self._select(_SELECT_API_KEY, (key_id,), Write.INSERT_API_KEY, Write.REVOKE_API_KEY)
        return None if row is None else api_key_from_row(row)

    def insert_api_key(self, row: ApiKeyRow) -> None:
        self._write(Write.INSERT_API_KEY, api_key_to_row(row))

    def revoke_api_key(self, key_id: str, now_ms: InstantMs) -> None:
        self._write(Write.REVOKE_API_KEY, (now_ms, key_id))
