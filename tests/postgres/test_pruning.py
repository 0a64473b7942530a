"""Deleting what ended long ago on PostgreSQL, where several nodes may do so at once and others work beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import asyncpg
import pytest

from stellwerk.stores.operations import PRUNED_ROWS_MAX
from stellwerk.stores.postgres.pruning import prune
from stellwerk.stores.tables import DataFault

T = TypeVar("T")

TABLES = {
    "instances": "instance_id",
    "history": "instance_id",
    "snapshots": "instance_id",
    "external_tasks": "process_instance",
    "task_attempts": "task_id",
    "timers": "instance_id",
    "subscriptions": "instance_id",
    "user_tasks": "instance_id",
    "incidents": "instance_id",
    "inbox": "instance_id",
}
"""And the column by which a row belongs to an instance; ids of tasks begin with that of their instance."""


class Database(Protocol):
    """`AsyncioDatabase` of conftest.py."""

    dsn: str

    def ask(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any) -> T: ...

    def execute(self, statement: str, *arguments: object) -> None: ...

    def fetch(self, statement: str, *arguments: object) -> list[Any]: ...

    def together(self, *works: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> list[T]: ...


_TASK = """
INSERT INTO stellwerk.external_tasks (task_id, process_instance, token_id, activity_id, element_id, definition_id,
    task_type, priority, created_at, retries_total, retry_backoffs_ms, lock_expiries_max, single_try, variables,
    headers, updated_at, available_at, state, retries, attempt, lock_expiries, draining, fence)
SELECT $1 || '-' || n, $1, '', '', '', '', 'pay', 0, 0, 3, '[]', 9, false, '{}', '{}', 0, 0, 'COMPLETED', 3, 0, 0,
    false, 1
FROM generate_series(1, $2::int) n"""
_ATTEMPT = """
INSERT INTO stellwerk.task_attempts SELECT task_id, n, 'w', 0, 0, 'failed'
FROM stellwerk.external_tasks, generate_series(1, 2) n WHERE process_instance = $1"""
_OTHERS = (
    "INSERT INTO stellwerk.history VALUES ($1, 1, 0, '[]'), ($1, 2, 0, '[]')",
    "INSERT INTO stellwerk.snapshots VALUES ($1, 1, '')",
    "INSERT INTO stellwerk.timers VALUES ($1, $1, 'T', 0)",
    "INSERT INTO stellwerk.subscriptions VALUES ($1, $1, 'C', 'paid', '')",
    "INSERT INTO stellwerk.user_tasks VALUES ($1, $1, 'U', NULL, NULL, '[]', '[]', NULL, '{}', NULL, 0)",
    "INSERT INTO stellwerk.incidents VALUES ($1, $1, 'k', 'E', 'm', NULL, 0)",
    "INSERT INTO stellwerk.inbox (instance_id, dedupe_key, command) VALUES ($1, 'd', '{}')",
)


def _add(database: Database, instance_id: str, ended_at_ms: int | None, tasks: int = 2) -> None:
    """With rows in every table: 2 of history, and 3 for each task."""
    status = "RUNNING" if ended_at_ms is None else "COMPLETED"
    database.execute(
        "INSERT INTO stellwerk.instances VALUES ($1, 'p:1', 'p', NULL, $2, 1, 0, $3)", instance_id, status, ended_at_ms
    )
    database.execute(_TASK, instance_id, tasks)
    for statement in (_ATTEMPT, *_OTHERS):
        database.execute(statement, instance_id)


def _left(database: Database) -> dict[str, str]:
    """By table: of which instances there are rows."""
    return {
        table: "".join(
            row[0] for row in database.fetch(f"SELECT DISTINCT left({column}, 1) FROM stellwerk.{table} ORDER BY 1")
        )
        for table, column in TABLES.items()
    }


def _prune(database: Database, before_ms: int = 100, limit: int = 100, rows_max: int = PRUNED_ROWS_MAX) -> int:
    return database.ask(prune, before_ms, limit, rows_max)


def test_all_that_belongs_to_an_ended_instance_goes_and_nothing_else(asyncio_database: Database) -> None:
    _add(asyncio_database, "e", 50)
    _add(asyncio_database, "r", None)
    _add(asyncio_database, "l", 100)
    asyncio_database.execute("UPDATE stellwerk.instances SET ended_at_ms = 1 WHERE instance_id = 'r'")
    assert _prune(asyncio_database) == 1, "what runs again has an end that is no end"
    assert _left(asyncio_database) == dict.fromkeys(TABLES, "lr")
    assert _prune(asyncio_database) == 0


def test_the_longest_ended_go_first(asyncio_database: Database) -> None:
    for instance_id, ended_at_ms in {"a": 30, "b": 10, "c": 20, "d": 20}.items():
        _add(asyncio_database, instance_id, ended_at_ms)
    assert _prune(asyncio_database, limit=2) == 2
    assert _left(asyncio_database) == dict.fromkeys(TABLES, "ad")
    assert _prune(asyncio_database, before_ms=30, limit=2**31 - 1) == 1


def test_a_slice_ends_after_so_many_rows(asyncio_database: Database) -> None:
    for rows_max, expected in ((1, 1), (8, 1), (9, 2), (16, 2), (17, 3), (24, 3), (25, 4)):
        asyncio_database.execute(f"TRUNCATE {', '.join(f'stellwerk.{table}' for table in TABLES)}")
        for instance_id in "abcd":
            _add(asyncio_database, instance_id, 10)
        assert _prune(asyncio_database, rows_max=rows_max) == expected
        assert _left(asyncio_database) == dict.fromkeys(TABLES, "abcd"[expected:])


def test_a_slice_of_no_instance_is_refused(asyncio_database: Database) -> None:
    with pytest.raises(DataFault, match="a slice of 0 instances"):
        _prune(asyncio_database, limit=0)


def test_several_nodes_prune_at_once(asyncio_database: Database) -> None:
    asyncio_database.execute(
        "INSERT INTO stellwerk.instances"
        " SELECT 'i' || n, 'p:1', 'p', NULL, CASE WHEN n % 3 = 0 THEN 'RUNNING' ELSE 'FAILED' END, 1, 0,"
        " CASE WHEN n % 3 > 0 THEN n END FROM generate_series(1, 600) n"
    )
    asyncio_database.execute(
        "INSERT INTO stellwerk.history SELECT instance_id, n, 0, '[]' FROM stellwerk.instances, generate_series(1, 3) n"
    )

    async def until_none_is_left(connection: asyncpg.Connection) -> int:
        pruned = 0
        while slice_size := await prune(connection, 10_000, 7, PRUNED_ROWS_MAX):
            pruned += slice_size
        return pruned

    assert sum(asyncio_database.together(*[until_none_is_left] * 4)) == 400
    ((instances, history),) = asyncio_database.fetch(
        "SELECT (SELECT count(*) FROM stellwerk.instances), (SELECT count(*) FROM stellwerk.history)"
    )
    assert (instances, history) == (200, 600)


def test_one_that_somebody_works_on_is_for_another_time(asyncio_database: Database) -> None:
    for instance_id in "abc":
        _add(asyncio_database, instance_id, 10)

    async def beside_a_step(connection: asyncpg.Connection) -> int:
        other = await asyncpg.connect(asyncio_database.dsn)
        try:
            async with connection.transaction():
                await connection.execute("SELECT FROM stellwerk.instances WHERE instance_id = 'a' FOR UPDATE")
                return await prune(other, 100, 100, PRUNED_ROWS_MAX)
        finally:
            await other.close()

    assert asyncio_database.together(beside_a_step) == [2]
    assert _left(asyncio_database) == dict.fromkeys(TABLES, "a")
    assert _prune(asyncio_database) == 1
    assert _left(asyncio_database) == dict.fromkeys(TABLES, "")


async def _wait_until_something_waits_for_a_lock(connection: asyncpg.Connection) -> None:
    while not await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ):
        await asyncio.sleep(0.005)


def test_what_is_committed_to_a_task_while_pruning_waits_for_it_goes_too(asyncio_database: Database) -> None:
    """A lease operation locks tasks without their instance, and notes an attempt."""
    _add(asyncio_database, "a", 10)

    async def beside_a_failure(connection: asyncpg.Connection) -> int:
        pruning, watching = [await asyncpg.connect(asyncio_database.dsn) for _ in range(2)]
        try:
            async with connection.transaction():
                await connection.execute("SELECT FROM stellwerk.external_tasks WHERE task_id = 'a-2' FOR UPDATE")
                pruned = asyncio.create_task(prune(pruning, 100, 100, PRUNED_ROWS_MAX))
                await _wait_until_something_waits_for_a_lock(watching)
                await connection.execute("INSERT INTO stellwerk.task_attempts VALUES ('a-2', 9, 'w', 0, 0, 'failed')")
            return await pruned
        finally:
            await pruning.close()
            await watching.close()

    assert asyncio_database.together(beside_a_failure) == [1]
    assert _left(asyncio_database) == dict.fromkeys(TABLES, "")


def test_pruning_is_part_of_the_transaction_around_it(asyncio_database: Database) -> None:
    _add(asyncio_database, "a", 10)

    async def given_up(connection: asyncpg.Connection) -> int:
        transaction = connection.transaction()
        await transaction.start()
        pruned = await prune(connection, 100, 100, PRUNED_ROWS_MAX)
        await transaction.rollback()
        return pruned

    assert asyncio_database.ask(given_up) == 1
    assert _left(asyncio_database) == dict.fromkeys(TABLES, "a")
