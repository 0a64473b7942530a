"""The statements of the careful way that write: each takes arrays, one for each column, and writes all rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import asyncpg

from stellwerk.stores.key_rows import API_KEY_COLUMNS
from stellwerk.stores.rows import (
    ATTEMPT_COLUMNS,
    DEFINITION_COLUMNS,
    INCIDENT_COLUMNS,
    INSTANCE_COLUMNS,
    MESSAGE_COLUMNS,
    MOVING_TASK_COLUMNS,
    PROCESS_COLUMNS,
    TASK_COLUMNS,
    USER_TASK_COLUMNS,
    SqlRow,
)

__all__ = ["Write", "send_rows"]

_TYPES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "version",
            "deployed_at_ms",
            "started_at_ms",
            "ended_at_ms",
            "at_ms",
            "priority",
            "created_at",
            "retries_total",
            "lock_expiries_max",
            "lock_duration_ms",
            "updated_at",
            "available_at",
            "retries",
            "attempt",
            "lock_expiries",
            "fence",
            "lock_session_no",
            "lock_fence",
            "lock_since",
            "lock_expire_at",
            "lock_own_duration_ms",
            "since_ms",
            "due_at_ms",
            "published_at_ms",
            "expires_at_ms",
            "created_at_ms",
            "opened_at_ms",
            "revoked_at_ms",
            "last_deleted",
        ),
        "bigint",
    ),
    **dict.fromkeys(("single_try", "draining", "adopt_java", "is_enabled"), "boolean"),
    **dict.fromkeys(("xml", "snapshot"), "bytea"),
}
"""Of columns that are not text."""
_TASK_TYPES: Mapping[str, str] = {**_TYPES, "variables": "json", "headers": "json"}


def _rows_of(columns: Sequence[str], types: Mapping[str, str] = _TYPES) -> str:
    arrays = ", ".join(f"${n}::{types.get(column, 'text')}[]" for n, column in enumerate(columns, 1))
    return f"unnest({arrays}) AS new ({', '.join(columns)})"


def _insert(table: str, *columns: str, types: Mapping[str, str] = _TYPES, conflict: str = "") -> str:
    names = ", ".join(columns)
    statement = f"INSERT INTO stellwerk.{table} ({names}) SELECT {names} FROM {_rows_of(columns, types)}"  # noqa: S608 -- constants of this module, here and below
    return f"{statement} {conflict}" if conflict else statement


def _update(table: str, key: str, *columns: str, types: Mapping[str, str] = _TYPES) -> str:
    assignments = ", ".join(f"{column} = new.{column}" for column in columns)
    return (
        f"UPDATE stellwerk.{table} AS old SET {assignments} FROM {_rows_of((key, *columns), types)} "  # noqa: S608
        f"WHERE old.{key} = new.{key}"
    )


def _delete(table: str, key: str) -> str:
    return f"DELETE FROM stellwerk.{table} WHERE {key} = ANY($1::text[])"  # noqa: S608


class Write:
    """No row may occur twice in what an UPDATE gets: it would apply one of them, and tell nobody."""

    INSERT_INSTANCES: Final = _insert("instances", *INSTANCE_COLUMNS)
    UPDATE_INSTANCES: Final = _update("instances", "instance_id", "status", "version")
    END_INSTANCES: Final = _update("instances", "instance_id", "status", "version", "ended_at_ms")
    APPEND_HISTORY: Final = _insert("history", "instance_id", "version", "at_ms", "facts")
    PUT_SNAPSHOTS: Final = _insert(
        "snapshots",
        "instance_id",
        "version",
        "snapshot",
        conflict="ON CONFLICT (instance_id) DO UPDATE SET version = excluded.version, snapshot = excluded.snapshot",
    )
    INSERT_TASKS: Final = _insert("external_tasks", *TASK_COLUMNS, types=_TASK_TYPES)
    UPDATE_TASKS: Final = _update("external_tasks", "task_id", *MOVING_TASK_COLUMNS, types=_TASK_TYPES)
    REWRITE_VARIABLES: Final = _update("external_tasks", "task_id", "variables", types=_TASK_TYPES)
    REWRITE_PRIORITIES: Final = _update("external_tasks", "task_id", "priority", types=_TASK_TYPES)
    INSERT_ATTEMPTS: Final = _insert("task_attempts", *ATTEMPT_COLUMNS)
    INSERT_TIMERS: Final = _insert("timers", "timer_id", "instance_id", "element_id", "due_at_ms")
    DELETE_TIMERS: Final = _delete("timers", "timer_id")
    INSERT_SUBSCRIPTIONS: Final = _insert(
        "subscriptions", "subscription_id", "instance_id", "element_id", "name", "key", "opened_at_ms"
    )
    DELETE_SUBSCRIPTIONS: Final = _delete("subscriptions", "subscription_id")
    INSERT_USER_TASKS: Final = _insert("user_tasks", *USER_TASK_COLUMNS)
    ASSIGN_USER_TASKS: Final = _update("user_tasks", "user_task_id", "assignee")
    DELETE_USER_TASKS: Final = _delete("user_tasks", "user_task_id")
    INSERT_INCIDENTS: Final = _insert("incidents", *INCIDENT_COLUMNS)
    DELETE_INCIDENTS: Final = _delete("incidents", "incident_id")
    INSERT_MESSAGES: Final = _insert("messages", *MESSAGE_COLUMNS)
    CONSUME_MESSAGES: Final = (
        "UPDATE stellwerk.messages SET is_consumed = true, variables = '' WHERE message_id = ANY($1::text[])"
    )
    # Another node may just have sent the same one: it is kept once (consistency.md 5).
    INSERT_INBOX: Final = _insert("inbox", "instance_id", "dedupe_key", "command", conflict="ON CONFLICT DO NOTHING")
    DELETE_INBOX: Final = (
        "DELETE FROM stellwerk.inbox AS old USING unnest($1::text[], $2::text[]) AS gone (instance_id, dedupe_key) "
        "WHERE old.instance_id = gone.instance_id AND old.dedupe_key = gone.dedupe_key"
    )
    DROP_INBOX: Final = _delete("inbox", "instance_id")
    INSERT_DEFINITIONS: Final = _insert("definitions", *DEFINITION_COLUMNS)
    DELETE_DEFINITIONS: Final = (
        "DELETE FROM stellwerk.definitions AS old USING unnest($1::text[], $2::bigint[]) AS gone (process_key, version)"
        " WHERE old.process_key = gone.process_key AND old.version = gone.version"
    )
    PUT_PROCESSES: Final = _insert(
        "processes",
        *PROCESS_COLUMNS,
        conflict=(
            "ON CONFLICT (process_key) DO UPDATE"
            " SET is_enabled = excluded.is_enabled, last_deleted = excluded.last_deleted"
        ),
    )
    # Those that stay go on waiting since they were opened. $2: their names, as JSON.
    DROP_START_SUBSCRIPTIONS: Final = (
        "DELETE FROM stellwerk.start_subscriptions AS old"
        " USING unnest($1::text[], $2::text[]) AS kept (process_key, names)"
        " WHERE old.process_key = kept.process_key"
        " AND old.name <> ALL (ARRAY(SELECT json_array_elements_text(kept.names::json)))"
    )
    PUT_START_SUBSCRIPTIONS: Final = _insert(
        "start_subscriptions",
        "process_key",
        "name",
        "definition_id",
        "opened_at_ms",
        conflict="ON CONFLICT (name, process_key) DO UPDATE SET definition_id = excluded.definition_id",
    )
    INSERT_API_KEYS: Final = _insert("api_keys", *API_KEY_COLUMNS)
    REVOKE_API_KEYS: Final = _update("api_keys", "key_id", "revoked_at_ms")


async def send_rows(connection: asyncpg.Connection, statement: str, rows: Sequence[SqlRow]) -> int:
    """→ how many rows it wrote."""
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True))
    tag: str = await connection.execute(statement, *columns)
    return int(tag.rpartition(" ")[2])
