"""Deleting what belongs to instances that ended long ago. Each function takes the connection first."""

from __future__ import annotations

import sqlite3

from stellwerk.instants import InstantMs

__all__ = ["delete_instance", "ended_before"]

_SELECT_ENDED = """
SELECT instance_id FROM instances
WHERE ended_at_ms IS NOT NULL AND ended_at_ms < ? AND status IN ('COMPLETED', 'FAILED', 'CANCELLED')
ORDER BY ended_at_ms, instance_id LIMIT ?"""
_SELECT_TASKS = "SELECT task_id FROM external_tasks WHERE process_instance = ?"
_DELETE_ATTEMPTS = "DELETE FROM task_attempts WHERE task_id = ?"
_DELETE_LARGE = (
    "DELETE FROM history WHERE instance_id = ?",
    "DELETE FROM external_tasks WHERE process_instance = ?",
)
_DELETE_SMALL = (
    "DELETE FROM snapshots WHERE instance_id = ?",
    "DELETE FROM timers WHERE instance_id = ?",
    "DELETE FROM subscriptions WHERE instance_id = ?",
    "DELETE FROM user_tasks WHERE instance_id = ?",
    "DELETE FROM incidents WHERE instance_id = ?",
    "DELETE FROM inbox WHERE instance_id = ?",
    "DELETE FROM instances WHERE instance_id = ?",
)


def ended_before(connection: sqlite3.Connection, before_ms: InstantMs, limit: int) -> list[str]:
    return [row[0] for row in connection.execute(_SELECT_ENDED, (before_ms, limit)).fetchall()]


def delete_instance(connection: sqlite3.Connection, instance_id: str) -> tuple[list[str], int]:
    """→ the ids of its tasks, and how many rows of history, tasks and attempts there were."""
    task_ids = [row[0] for row in connection.execute(_SELECT_TASKS, (instance_id,)).fetchall()]
    deleted = connection.executemany(_DELETE_ATTEMPTS, [(task_id,) for task_id in task_ids]).rowcount
    deleted += sum(connection.execute(statement, (instance_id,)).rowcount for statement in _DELETE_LARGE)
    for statement in _DELETE_SMALL:
        connection.execute(statement, (instance_id,))
    return task_ids, deleted
