"""Which index answers each question to PostgreSQL: with statistics, without any, and by a plan made for all values.

Without statistics is how a database is in its first minutes, and a table after it grew fast.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeVar

import asyncpg
import pytest

from stellwerk.ports import DropMessages, InstanceFilter, TaskQuery, UserTaskFilter
from stellwerk.stores.postgres import api_keys, careful, listing, messages, pruning, reads, task_listing

T = TypeVar("T")

Mode = Literal["force_custom_plan", "force_generic_plan"]

_INSTANCES = 20_000
_FILL = (
    """INSERT INTO stellwerk.instances
    SELECT 'i' || lpad(n::text, 8, '0'), 'p:1', 'p', CASE WHEN n % 10 = 0 THEN 'key' || n END,
        CASE WHEN n % 2 = 0 THEN 'COMPLETED' ELSE 'RUNNING' END, 2, n, CASE WHEN n % 2 = 0 THEN n END
    FROM generate_series(1, $1::int) n""",
    "INSERT INTO stellwerk.history SELECT instance_id, n, 0, '[]' FROM stellwerk.instances, generate_series(1, 2) n",
    """INSERT INTO stellwerk.snapshots SELECT instance_id, 1, '' FROM stellwerk.instances""",
    """INSERT INTO stellwerk.external_tasks (task_id, process_instance, token_id, activity_id, element_id,
        definition_id, task_type, priority, created_at, retries_total, retry_backoffs_ms, lock_expiries_max, single_try,
        variables, headers, updated_at, available_at, state, retries, attempt, lock_expiries, draining, fence,
        lock_fence, lock_expire_at)
    SELECT instance_id || '-' || n, instance_id, '', '', '', 'p:1', 'topic' || started_at_ms % 20, n, started_at_ms, 3,
        '[]', 9, false, '{}', '{}', 0, CASE WHEN n = 2 THEN 9 ELSE 0 END, CASE
            WHEN started_at_ms % 4 > 0 THEN CASE WHEN n = 3 THEN 'FAILED' ELSE 'COMPLETED' END
            WHEN started_at_ms % 200 = 0 AND n = 1 THEN 'LOCKED' ELSE 'READY' END,
        3, 0, 0, n = 3 AND started_at_ms % 400 = 4, 7, 7, started_at_ms
    FROM stellwerk.instances, generate_series(1, 3) n""",
    """INSERT INTO stellwerk.task_attempts SELECT task_id, 1, 'w', 0, 0, 'failed' FROM stellwerk.external_tasks""",
    """INSERT INTO stellwerk.timers SELECT instance_id, instance_id, 'T', started_at_ms FROM stellwerk.instances""",
    """INSERT INTO stellwerk.subscriptions
    SELECT instance_id, instance_id, 'C', 'name' || started_at_ms % 5, started_at_ms::text FROM stellwerk.instances""",
    """INSERT INTO stellwerk.start_subscriptions
    SELECT instance_id, 'start' || started_at_ms, 'p:1' FROM stellwerk.instances LIMIT 5000""",
    """INSERT INTO stellwerk.messages SELECT instance_id, 'name' || started_at_ms % 7, started_at_ms::text, '{}',
        started_at_ms, 1000000, started_at_ms % 10 > 0, CASE WHEN started_at_ms % 50 < 3 THEN instance_id END
    FROM stellwerk.instances""",
    """INSERT INTO stellwerk.incidents
    SELECT instance_id, instance_id, 'k', 'E', 'm', NULL, 0 FROM stellwerk.instances WHERE started_at_ms > 4000""",
    """INSERT INTO stellwerk.user_tasks
    SELECT instance_id, instance_id, 'U', NULL, NULL, '[]', '[]', NULL, '{}', NULL, 0 FROM stellwerk.instances""",
    """INSERT INTO stellwerk.inbox (instance_id, dedupe_key, command)
    SELECT instance_id, 'd', '{}' FROM stellwerk.instances""",
    "INSERT INTO stellwerk.api_keys SELECT 'k' || n, '', '{}', n, NULL FROM generate_series(1, 20000) n",
    """INSERT INTO stellwerk.definitions
    SELECT 'p' || n / 10, n % 10, NULL, '', '', 0, '[]', NULL, false FROM generate_series(1, 20000) n""",
)


class Database(Protocol):
    """`AsyncioDatabase` of conftest.py."""

    connection: asyncpg.Connection

    def ask(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any) -> T: ...

    def execute(self, statement: str, *arguments: object) -> None: ...

    def fetch(self, statement: str, *arguments: object) -> list[Any]: ...


NewDatabase = Callable[[], AbstractContextManager[Database]]


@pytest.fixture(scope="module")
def filled(new_asyncio_database: NewDatabase) -> Iterator[Database]:
    with new_asyncio_database() as database:
        for (table,) in database.fetch("SELECT relname FROM pg_stat_user_tables WHERE schemaname = 'stellwerk'"):
            database.execute(f"ALTER TABLE stellwerk.{table} SET (autovacuum_enabled = false)")
        for statement in _FILL:
            database.execute(statement, *([_INSTANCES] if "$1" in statement else []))
        yield database


@pytest.fixture(scope="module", params=["never analyzed", "analyzed"])
def database(request: pytest.FixtureRequest, filled: Database) -> Database:
    if request.param == "analyzed":
        filled.execute("VACUUM ANALYZE")
    else:
        assert not filled.fetch("SELECT FROM pg_stats WHERE schemaname = 'stellwerk'"), "analyzed comes last"
    return filled


@pytest.fixture(params=["force_custom_plan", "force_generic_plan"])
def mode(request: pytest.FixtureRequest) -> Mode:
    kind: Mode = request.param
    return kind


Scan = tuple[str, str | None]
"""A table, and the index by which it is read; None: all of it is."""


def _scans(database: Database, mode: Mode, function: Callable[..., Any], *arguments: object) -> list[Scan]:
    """Of all the statements that the function sends; what it changes is undone."""

    async def watched(connection: asyncpg.Connection) -> list[Any]:
        statements: list[Any] = []
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SAVEPOINT before")
        await function(connection, *arguments)  # the first time the driver asks for types as well
        await connection.execute("ROLLBACK TO before")
        connection.add_query_logger(statements.append)
        await function(connection, *arguments)
        connection.remove_query_logger(statements.append)
        await transaction.rollback()
        return [one for one in statements if "SAVEPOINT" not in one.query]

    database.execute(f"SET plan_cache_mode = {mode}")
    scans: list[Scan] = []
    for statement in database.ask(watched):
        scans += _scans_of(_explained(database, statement.query, statement.args))
    return scans


def _explained(database: Database, query: str, arguments: tuple[object, ...]) -> Any:
    """By EXECUTE: EXPLAIN alone has never a plan that was made for all values."""
    database.execute(f"PREPARE asked AS {query}")
    try:
        values = f"({', '.join(map(_literal, arguments))})" if arguments else ""
        ((plan,),) = database.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE asked{values}")
        return json.loads(plan)[0]["Plan"]
    finally:
        database.execute("DEALLOCATE asked")


def _literal(value: object) -> str:
    if isinstance(value, list):
        kind = "bigint" if value and isinstance(value[0], int) else "text"
        return f"ARRAY[{', '.join(map(_literal, value))}]::{kind}[]"
    return "NULL" if value is None else str(value) if isinstance(value, int) else f"'{value}'"


def _scans_of(plan: Any) -> list[Scan]:
    found: list[Scan] = []
    parts = plan.get("Plans", [])
    if plan["Node Type"] == "Bitmap Heap Scan":
        return [(plan["Relation Name"], name) for name in _bitmap_indexes(parts)]
    if plan["Node Type"] in ("Seq Scan", "Index Scan", "Index Only Scan"):
        found.append((plan["Relation Name"], plan.get("Index Name")))
    for part in parts:
        found += _scans_of(part)
    return found


def _bitmap_indexes(parts: Any) -> list[str]:
    names = [part["Index Name"] for part in parts if part["Node Type"] == "Bitmap Index Scan"]
    return names + [name for part in parts for name in _bitmap_indexes(part.get("Plans", []))]


_I, _T = "i00000100", "i00000100-1"
_TASKS = "external_tasks"
_KEY = (_TASKS, "external_tasks_pkey")
_READY, _BACKING_OFF = (_TASKS, "external_tasks_ready"), (_TASKS, "external_tasks_backing_off")
_DRAINED, _LOCKED = (_TASKS, "external_tasks_drained"), (_TASKS, "external_tasks_locked")
_ENDED, _OF_INSTANCE = (_TASKS, "external_tasks_ended"), (_TASKS, "external_tasks_of_instance")
_SUBSCRIPTIONS = ("subscriptions", "subscriptions_by_name")
_SUBSCRIPTIONS_THERE = ("subscriptions", "subscriptions_of_instance")
_STARTS = ("start_subscriptions", "start_subscriptions_pkey")
_ARRIVAL, _MESSAGE = ("messages", "messages_by_arrival"), ("messages", "messages_pkey")
_TIMERS_DUE, _NEWEST = ("timers", "timers_due"), ("instances", "instances_newest")
_INSTANCE = ("instances", "instances_pkey")
_DEFINITION = ("definitions", "definitions_pkey")

_QUESTIONS: dict[str, tuple[Callable[..., Any], tuple[object, ...], set[Scan]]] = {
    "an instance": (reads.instance, (_I,), {_INSTANCE}),
    "an instance to go on with": (
        reads.load_instance,
        (_I,),
        {_INSTANCE, ("snapshots", "snapshots_pkey"), ("history", "history_pkey")},
    ),
    "a history": (reads.history, (_I,), {("history", "history_pkey")}),
    "a definition": (reads.definition, ("p7:3",), {_DEFINITION}),
    "the latest definition": (reads.latest_definition, ("p7",), {_DEFINITION}),
    "a task": (reads.task, (_T,), {_KEY}),
    "attempts": (reads.attempts, (_T,), {("task_attempts", "task_attempts_pkey")}),
    "ready tasks": (reads.ready_tasks, ("topic4", 100, 5), {_READY, _BACKING_OFF}),
    "the next expiry": (reads.next_lock_expiry, (None,), {_LOCKED}),
    "draining tasks": (reads.draining_ready, (1_000,), {_DRAINED}),
    "standing leases": (reads.standing_leases, ([(_T, 7), ("i00000200-1", 7)],), {_KEY}),
    "due timers": (reads.due_timers, (100, 1_000), {_TIMERS_DUE}),
    "timers to fire": (reads.claim_timers, (100, 100, 5), {_TIMERS_DUE, ("timers", "timers_pkey")}),
    "an incident": (reads.incident, (_I,), {("incidents", "incidents_pkey")}),
    "incidents": (reads.incidents, (None, 100, "i1"), {("incidents", "incidents_pkey")}),
    "incidents of an instance": (reads.incidents, (_I, 100, "i1"), {("incidents", "incidents_of_instance")}),
    "a user task": (reads.user_task, (_I,), {("user_tasks", "user_tasks_pkey")}),
    "user tasks of an instance": (reads.user_tasks, (_I, 1_000), {("user_tasks", "user_tasks_of_instance")}),
    "the inbox": (reads.inbox, (1_000,), {("inbox", "inbox_by_arrival")}),
    "a message": (messages.message, (_I,), {_MESSAGE, _SUBSCRIPTIONS, _SUBSCRIPTIONS_THERE, _STARTS}),
    "waiting messages": (
        messages.waiting_messages,
        (5, 100, "i1"),
        {_MESSAGE, _SUBSCRIPTIONS, _SUBSCRIPTIONS_THERE, _STARTS},
    ),
    "user tasks of a process": (
        reads.user_tasks,
        (_I, 1_000, None, UserTaskFilter(process_keys=("p",), candidate_group="g", assignee="a")),
        {("user_tasks", "user_tasks_of_instance"), _INSTANCE},
    ),
    "instances, the next page": (listing.instances, (InstanceFilter(), 100, _I), {_INSTANCE, _NEWEST}),
    "instances since": (listing.instances, (InstanceFilter(started_from_ms=15_000), 100, None), {_NEWEST}),
    "instances by business key": (
        listing.instances,
        (InstanceFilter(business_key="key10"), 100, None),
        {("instances", "instances_by_business_key")},
    ),
    "tasks of an instance": (
        task_listing.tasks,
        (TaskQuery(instance_id=_I, state="COMPLETED"), 0, 100, None),
        {_OF_INSTANCE, _KEY},
    ),
    "ready tasks by age": (
        task_listing.tasks,
        (TaskQuery(topic="topic4", state="READY"), 0, 100, _T),
        {_KEY, _READY, _BACKING_OFF, _DRAINED},
    ),
    "locked tasks by age": (task_listing.tasks, (TaskQuery(state="LOCKED"), 0, 100, None), {_KEY, _LOCKED}),
    "failed tasks by age": (task_listing.tasks, (TaskQuery(state="FAILED"), 0, 100, _T), {_KEY, _ENDED}),
    "all tasks by age": (
        task_listing.tasks,
        (TaskQuery(), 0, 100, _T),
        {_KEY, _READY, _BACKING_OFF, _DRAINED, _LOCKED, _ENDED},
    ),
    "tasks of a worker": (task_listing.tasks, (TaskQuery(worker_id="w"), None, 100, None), {_KEY, _LOCKED}),
    "tasks with a live lock": (task_listing.tasks, (TaskQuery(is_locked=True), None, 100, None), {_KEY, _LOCKED}),
    "tasks by business key": (
        task_listing.tasks,
        (TaskQuery(business_key="key10", state="READY"), 0, 100, None),
        {_KEY, _OF_INSTANCE, ("instances", "instances_by_business_key")},
    ),
    "tasks by their ids": (task_listing.tasks, (TaskQuery(task_ids=(_T, "x"), state="READY"), 0, 100, None), {_KEY}),
    "count of a topic's ready tasks": (
        task_listing.count_tasks,
        (TaskQuery(topic="topic4", state="READY"), 0),
        {_READY, _BACKING_OFF, _DRAINED},
    ),
    "count of locked tasks": (task_listing.count_tasks, (TaskQuery(is_locked=True), None), {_LOCKED}),
    "count of an instance's tasks": (task_listing.count_tasks, (TaskQuery(instance_id=_I), None), {_OF_INSTANCE}),
    "an API key": (api_keys.api_key, ("k",), {("api_keys", "api_keys_pkey")}),
    "leases of workers": (task_listing.held_leases, (["w", "v"], None), {_LOCKED}),
    "backlogs": (listing.topic_backlogs, (None,), {_READY, _BACKING_OFF, _LOCKED}),
}


@pytest.mark.parametrize("question", _QUESTIONS)
def test_every_question_is_answered_by_an_index(database: Database, mode: Mode, question: str) -> None:
    function, arguments, expected = _QUESTIONS[question]
    assert set(_scans(database, mode, function, *arguments)) == expected


def test_instances_with_an_incident_are_looked_up_by_their_key(database: Database, mode: Mode) -> None:
    scans = _scans(database, mode, listing.instances, InstanceFilter(with_incident=True), 100, None)
    assert [scan for scan in scans if scan[0] == "instances"] == [_INSTANCE]


def test_messages_look_for_their_subscriptions_by_name_and_key(database: Database, mode: Mode) -> None:
    scans = _scans(database, mode, messages.matched_messages, 5, 1_000)
    assert {scan for scan in scans if scan[0] != "messages"} == {_SUBSCRIPTIONS, _SUBSCRIPTIONS_THERE, _STARTS}
    assert ("messages", "messages_for_instances") in scans
    assert scans[-1] == _MESSAGE, "the variables of those alone that meet something"
    assert _ARRIVAL in scans, "correlated messages are not read"


def test_messages_whose_time_ended_are_dropped_by_one_look_at_an_index_each(database: Database, mode: Mode) -> None:
    async def drop(connection: asyncpg.Connection) -> None:
        await careful._drop_some(DropMessages(2_000_000, ("m",)), connection)

    scans = _scans(database, mode, drop)
    assert {scan for scan in scans if scan[0] != "messages"} == {_SUBSCRIPTIONS, _SUBSCRIPTIONS_THERE, _STARTS}
    assert {scan for scan in scans if scan[0] == "messages"} == {("messages", "messages_by_end"), _MESSAGE}


def test_names_that_something_waits_for_are_found_in_steps_along_the_index(database: Database, mode: Mode) -> None:
    scans = _scans(database, mode, messages.awaited_names, 100)
    assert {scan for scan in scans if scan[0] == "subscriptions"} == {_SUBSCRIPTIONS}
    assert set(_scans(database, mode, messages.receivers, "paid", 100)) == {_SUBSCRIPTIONS}


def test_pruning_finds_everything_by_an_index(database: Database, mode: Mode) -> None:
    scans = _scans(database, mode, pruning.prune, 1_000, 100, 5_000)
    assert [scan for scan in scans if scan[1] is None] == []
    assert scans[0] == ("instances", "instances_ended")
    assert len({table for table, _ in scans}) == 10


def test_long_backlogs_are_counted_without_a_look_at_the_tasks(database: Database) -> None:
    query = (
        f"SELECT task_type, count(*), min(available_at) FROM stellwerk.external_tasks WHERE {reads.READY} GROUP BY 1"
    )
    database.execute("VACUUM stellwerk.external_tasks")
    plan = json.dumps(_explained(database, query, ()))
    assert '"Index Only Scan"' in plan
    assert '"external_tasks_ready"' in plan
