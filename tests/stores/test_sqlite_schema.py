"""Requirement L3: the table of external tasks, as anybody with an SQLite shell sees it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from stellwerk.stores.sqlite.migrations import migrate
from stellwerk.stores.sqlite.reads import next_lock_expiry
from stellwerk.stores.sqlite.tables import select_ready


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, "memory")
        yield connection


def test_L3_the_columns_of_the_requirement_are_there(database: sqlite3.Connection) -> None:
    columns = {row[1]: (row[2], bool(row[5])) for row in database.execute("PRAGMA table_info(external_tasks)")}
    assert columns["task_id"] == ("TEXT", True)
    assert {
        "token_id",
        "process_instance",
        "task_type",
        "state",
        "lock_owner",
        "lock_expire_at",
        "retries",
        "error_message",
        "variables",
        "created_at",
        "updated_at",
    } <= columns.keys()


def plans(database: sqlite3.Connection, statements: list[str]) -> list[str]:
    return [str(database.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()) for statement in statements]


def test_L3_partial_indexes_serve_ready_by_type_and_locked_by_expiry(database: sqlite3.Connection) -> None:
    """The store's own statements: each walks its partial index in order, whatever else the table holds."""
    statements: list[str] = []
    database.set_trace_callback(statements.append)
    assert select_ready(database, "payment", 0, 10) == []
    assert next_lock_expiry(database) is None
    database.set_trace_callback(None)
    ready, due_again, locked = plans(database, statements)
    assert "USING INDEX external_tasks_ready (task_type=?)" in ready
    assert "USING INDEX external_tasks_backing_off (task_type=? AND available_at<?)" in due_again
    assert "external_tasks_locked" in locked
    assert "TEMP B-TREE" not in ready
    partial = dict(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"))
    assert "WHERE state = 'READY'" in partial["external_tasks_ready"]
    assert "WHERE state = 'LOCKED'" in partial["external_tasks_locked"]


def test_L3_inbox_is_unique_for_receiver_and_key(database: sqlite3.Connection) -> None:
    """Consistency.md 5: from the first schema on."""
    row = ("instance", "key", "{}")
    database.execute("INSERT INTO inbox (instance_id, dedupe_key, command) VALUES (?, ?, ?)", row)
    with pytest.raises(sqlite3.IntegrityError):
        database.execute("INSERT INTO inbox (instance_id, dedupe_key, command) VALUES (?, ?, ?)", row)
