"""The statements that write, by name. Those of one batch are sent grouped by statement, in the order of `WRITES`."""

from __future__ import annotations

from typing import Final

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
)

__all__ = ["WRITES", "Write"]


def _insert(table: str, *columns: str) -> str:
    places = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608 -- constants of this module


def _assignments(*columns: str) -> str:
    return ", ".join(f"{column} = ?" for column in columns)


class Write:
    """Plain strings, whose hash is kept: with an `Enum` the look-ups alone cost 3 µs a step."""

    INSERT_INSTANCE: Final = _insert("instances", *INSTANCE_COLUMNS)
    UPDATE_INSTANCE: Final = "UPDATE instances SET status = ?, version = ? WHERE instance_id = ?"
    END_INSTANCE: Final = "UPDATE instances SET status = ?, version = ?, ended_at_ms = ? WHERE instance_id = ?"
    APPEND_HISTORY: Final = _insert("history", "instance_id", "version", "at_ms", "facts")
    PUT_SNAPSHOT: Final = (
        "INSERT INTO snapshots (instance_id, version, snapshot) VALUES (?, ?, ?) "
        "ON CONFLICT (instance_id) DO UPDATE SET version = excluded.version, snapshot = excluded.snapshot"
    )
    INSERT_TASK: Final = _insert("external_tasks", *TASK_COLUMNS)
    UPDATE_TASK: Final = f"UPDATE external_tasks SET {_assignments(*MOVING_TASK_COLUMNS)} WHERE task_id = ?"  # noqa: S608
    REWRITE_VARIABLES: Final = "UPDATE external_tasks SET variables = ? WHERE task_id = ?"
    REWRITE_PRIORITY: Final = "UPDATE external_tasks SET priority = ? WHERE task_id = ?"
    INSERT_ATTEMPT: Final = _insert("task_attempts", *ATTEMPT_COLUMNS)
    INSERT_TIMER: Final = _insert("timers", "timer_id", "instance_id", "element_id", "due_at_ms")
    DELETE_TIMER: Final = "DELETE FROM timers WHERE timer_id = ?"
    INSERT_SUBSCRIPTION: Final = _insert(
        "subscriptions", "subscription_id", "instance_id", "element_id", "name", "key", "opened_at_ms"
    )
    DELETE_SUBSCRIPTION: Final = "DELETE FROM subscriptions WHERE subscription_id = ?"
    INSERT_USER_TASK: Final = _insert("user_tasks", *USER_TASK_COLUMNS)
    ASSIGN_USER_TASK: Final = "UPDATE user_tasks SET assignee = ? WHERE user_task_id = ?"
    DELETE_USER_TASK: Final = "DELETE FROM user_tasks WHERE user_task_id = ?"
    INSERT_INCIDENT: Final = _insert("incidents", *INCIDENT_COLUMNS)
    DELETE_INCIDENT: Final = "DELETE FROM incidents WHERE incident_id = ?"
    INSERT_MESSAGE: Final = _insert("messages", *MESSAGE_COLUMNS)
    CONSUME_MESSAGE: Final = "UPDATE messages SET is_consumed = 1, variables = '' WHERE message_id = ?"
    INSERT_INBOX: Final = _insert("inbox", "instance_id", "dedupe_key", "command")
    DELETE_INBOX: Final = "DELETE FROM inbox WHERE instance_id = ? AND dedupe_key = ?"
    DROP_INBOX: Final = "DELETE FROM inbox WHERE instance_id = ?"
    INSERT_DEFINITION: Final = _insert("definitions", *DEFINITION_COLUMNS)
    DELETE_DEFINITION: Final = "DELETE FROM definitions WHERE process_key = ? AND version = ?"
    PUT_PROCESS: Final = (
        f"{_insert('processes', *PROCESS_COLUMNS)} ON CONFLICT (process_key)"
        " DO UPDATE SET is_enabled = excluded.is_enabled, last_deleted = excluded.last_deleted"
    )
    # Those that stay go on waiting since they were opened.
    DROP_START_SUBSCRIPTIONS: Final = (
        "DELETE FROM start_subscriptions WHERE process_key = ? AND name NOT IN (SELECT value FROM json_each(?))"
    )
    PUT_START_SUBSCRIPTION: Final = (
        f"{_insert('start_subscriptions', 'process_key', 'name', 'definition_id', 'opened_at_ms')}"
        " ON CONFLICT (name, process_key) DO UPDATE SET definition_id = excluded.definition_id"
    )
    INSERT_API_KEY: Final = _insert("api_keys", *API_KEY_COLUMNS)
    REVOKE_API_KEY: Final = "UPDATE api_keys SET revoked_at_ms = ? WHERE key_id = ?"


WRITES: tuple[str, ...] = (
    Write.INSERT_INSTANCE,
    Write.UPDATE_INSTANCE,
    Write.END_INSTANCE,
    Write.APPEND_HISTORY,
    Write.PUT_SNAPSHOT,
    Write.INSERT_TASK,
    Write.UPDATE_TASK,
    Write.REWRITE_VARIABLES,
    Write.REWRITE_PRIORITY,
    Write.INSERT_ATTEMPT,
    Write.INSERT_TIMER,
    Write.DELETE_TIMER,
    Write.INSERT_SUBSCRIPTION,
    Write.DELETE_SUBSCRIPTION,
    Write.INSERT_USER_TASK,
    Write.ASSIGN_USER_TASK,
    Write.DELETE_USER_TASK,
    Write.INSERT_INCIDENT,
    Write.DELETE_INCIDENT,
    Write.INSERT_MESSAGE,
    Write.CONSUME_MESSAGE,
    Write.INSERT_INBOX,
    Write.DELETE_INBOX,
    Write.DROP_INBOX,
    Write.INSERT_DEFINITION,
    Write.DELETE_DEFINITION,
    Write.PUT_PROCESS,
    Write.DROP_START_SUBSCRIPTIONS,
    Write.PUT_START_SUBSCRIPTION,
    Write.INSERT_API_KEY,
    Write.REVOKE_API_KEY,
)
"""In the order in which they are sent."""
