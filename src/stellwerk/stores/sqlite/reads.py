"""What is read from an SQLite file outside of transactions. Each function takes the connection first."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from stellwerk.core.external_task import ExternalTask, TaskAttempt
from stellwerk.core.history import decode_facts
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    DefinitionRow,
    DueTimer,
    HistoryStep,
    InboxRow,
    InstanceSummary,
    ReadyScan,
    StoredInstance,
    UserTaskFilter,
)
from stellwerk.stores import rows
from stellwerk.stores.sqlite.tables import select_ready_hints

__all__ = [
    "attempts",
    "definition",
    "definitions",
    "disabled_processes",
    "draining_ready",
    "due_timers",
    "history",
    "inbox",
    "incidents",
    "instance",
    "latest_definition",
    "load_instance",
    "next_lock_expiry",
    "ready_tasks",
    "task",
    "user_tasks",
]

_INSTANCES = f"SELECT {', '.join(rows.INSTANCE_COLUMNS)} FROM instances"  # noqa: S608 -- constants, here and below
_DEFINITIONS = f"SELECT {', '.join(rows.DEFINITION_COLUMNS)} FROM definitions"  # noqa: S608
_TASKS = f"SELECT {', '.join(rows.TASK_COLUMNS)} FROM external_tasks"  # noqa: S608


def load_instance(connection: sqlite3.Connection, instance_id: str) -> StoredInstance | None:
    row = connection.execute(
        "SELECT i.version, i.definition_id, i.status, s.version, s.snapshot"
        " FROM instances i LEFT JOIN snapshots s ON s.instance_id = i.instance_id WHERE i.instance_id = ?",
        (instance_id,),
    ).fetchone()
    if row is None:
        return None
    version, definition_id, status, snapshot_version, snapshot = row
    steps = tuple(history(connection, instance_id, after=snapshot_version or 0))
    return StoredInstance(version, definition_id, status, snapshot, steps)


def history(
    connection: sqlite3.Connection, instance_id: str, *, after: int = 0, limit: int | None = None
) -> list[HistoryStep]:
    statement = (
        "SELECT version, at_ms, facts FROM history WHERE instance_id = ? AND version > ? ORDER BY version LIMIT ?"
    )
    found = connection.execute(statement, (instance_id, after, -1 if limit is None else limit)).fetchall()
    return [HistoryStep(version, at_ms, decode_facts(facts)) for version, at_ms, facts in found]


def instance(connection: sqlite3.Connection, instance_id: str) -> InstanceSummary | None:
    row = connection.execute(f"{_INSTANCES} WHERE instance_id = ?", (instance_id,)).fetchone()
    return None if row is None else rows.instance_from_row(row)


def _conditions(wanted: Mapping[str, object]) -> tuple[list[str], list[object]]:
    """Conditions are ours; values go in as parameters. None: not asked for."""
    given = {condition: value for condition, value in wanted.items() if value is not None}
    return list(given), list(given.values())


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def definition(connection: sqlite3.Connection, key: str, version: int) -> DefinitionRow | None:
    statement = f"{_DEFINITIONS} WHERE process_key = ? AND version = ?"
    row = connection.execute(statement, (key, version)).fetchone()
    return None if row is None else rows.definition_from_row(row)


def latest_definition(connection: sqlite3.Connection, key: str) -> DefinitionRow | None:
    statement = f"{_DEFINITIONS} WHERE process_key = ? ORDER BY version DESC LIMIT 1"
    row = connection.execute(statement, (key,)).fetchone()
    return None if row is None else rows.definition_from_row(row)


def definitions(connection: sqlite3.Connection) -> list[DefinitionRow]:
    found = connection.execute(f"{_DEFINITIONS} ORDER BY process_key, version").fetchall()
    return [rows.definition_from_row(row) for row in found]


def disabled_processes(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT process_key FROM processes WHERE is_enabled = 0 ORDER BY process_key")
    return [key for (key,) in found.fetchall()]


def task(connection: sqlite3.Connection, task_id: str) -> ExternalTask | None:
    row = connection.execute(f"{_TASKS} WHERE task_id = ?", (task_id,)).fetchone()
    return None if row is None else rows.task_from_row(row)


def attempts(connection: sqlite3.Connection, task_id: str) -> list[TaskAttempt]:
    columns = ", ".join(rows.ATTEMPT_COLUMNS)
    statement = f"SELECT {columns} FROM task_attempts WHERE task_id = ? ORDER BY fence"  # noqa: S608
    return [rows.attempt_from_row(row) for row in connection.execute(statement, (task_id,)).fetchall()]


def ready_tasks(connection: sqlite3.Connection, topic: str, now_ms: InstantMs, limit: int) -> ReadyScan:
    found = select_ready_hints(connection, topic, now_ms, limit)
    next_available_ms = connection.execute(
        "SELECT min(available_at) FROM external_tasks WHERE task_type = ? AND state = 'READY' AND draining = 0"
        " AND available_at > updated_at AND available_at > ?",
        (topic, now_ms),
    ).fetchone()[0]
    return ReadyScan(found, next_available_ms, now_ms)


def next_lock_expiry(connection: sqlite3.Connection) -> InstantMs | None:
    """When the first lock runs out, or ran out."""
    (expiry_ms,) = connection.execute(
        "SELECT min(lock_expire_at) FROM external_tasks WHERE state = 'LOCKED'"
    ).fetchone()
    return None if expiry_ms is None else int(expiry_ms)


def draining_ready(connection: sqlite3.Connection, limit: int) -> list[tuple[str, str]]:
    statement = (
        "SELECT process_instance, task_id FROM external_tasks"
        " WHERE state = 'READY' AND draining = 1 ORDER BY task_id LIMIT ?"
    )
    return connection.execute(statement, (limit,)).fetchall()


def due_timers(
    connection: sqlite3.Connection, now_ms: InstantMs, limit: int
) -> tuple[list[DueTimer], InstantMs | None]:
    statement = "SELECT timer_id, instance_id, due_at_ms FROM timers ORDER BY due_at_ms, timer_id LIMIT ?"
    found = [DueTimer(*row) for row in connection.execute(statement, (limit + 1,)).fetchall()]
    due = [timer for timer in found[:limit] if timer.due_at_ms <= now_ms]
    return due, found[len(due)].due_at_ms if len(found) > len(due) else None


def incidents(
    connection: sqlite3.Connection,
    instance_id: str | None = None,
    limit: int = 1,
    after: str | None = None,
    incident_id: str | None = None,
) -> list[Mapping[str, object]]:
    """A page of those that are open, or the one with that id."""
    wanted: dict[str, object] = {"instance_id = ?": instance_id, "incident_id = ?": incident_id}
    found = _page(connection, "incidents", rows.INCIDENT_COLUMNS, wanted, limit, after)
    return [rows.incident_from_row(row) for row in found]


_OF_PROCESSES = """
EXISTS (SELECT 1 FROM instances i WHERE i.instance_id = user_tasks.instance_id
    AND i.process_key IN (SELECT value FROM json_each(?)))"""


def user_tasks(
    connection: sqlite3.Connection,
    instance_id: str | None = None,
    limit: int = 1,
    after: str | None = None,
    user_task_id: str | None = None,
    filtered: UserTaskFilter = UserTaskFilter(),
) -> list[Mapping[str, object]]:
    """As `incidents`."""
    wanted: dict[str, object] = {
        "instance_id = ?": instance_id,
        "user_task_id = ?": user_task_id,
        "assignee = ?": filtered.assignee,
        "(assignee IS NOT NULL) = ?": filtered.is_assigned,
        "? IN (SELECT value FROM json_each(candidate_users))": filtered.candidate_user,
        "? IN (SELECT value FROM json_each(candidate_groups))": filtered.candidate_group,
        _OF_PROCESSES: None if filtered.process_keys is None else rows.strings_to_text(filtered.process_keys),
    }
    found = _page(connection, "user_tasks", rows.USER_TASK_COLUMNS, wanted, limit, after)
    return [rows.user_task_from_row(row) for row in found]


def _page(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    wanted: Mapping[str, object],
    limit: int,
    after: str | None,
) -> list[rows.SqlRow]:
    """By the first of the columns, which is the key."""
    conditions, parameters = _conditions(wanted)
    if after is not None:
        conditions.append(f"{columns[0]} > ?")
        parameters.append(after)
    statement = f"SELECT {', '.join(columns)} FROM {table}{_where(conditions)} ORDER BY {columns[0]} LIMIT ?"  # noqa: S608
    return connection.execute(statement, (*parameters, limit)).fetchall()


def inbox(connection: sqlite3.Connection, limit: int) -> list[InboxRow]:
    statement = "SELECT instance_id, dedupe_key, command FROM inbox ORDER BY rowid LIMIT ?"
    found = connection.execute(statement, (limit,)).fetchall()
    return [InboxRow(instance_id, dedupe_key, command.encode()) for instance_id, dedupe_key, command in found]
