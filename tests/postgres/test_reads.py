"""What is read from PostgreSQL equals what SQLite answers over the same rows; and it is of one moment."""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Protocol, TypeVar

import asyncpg
import pytest

from stellwerk.core.changes import IncidentRow, RowChanges, SubscriptionRow, TimerRow, UserTaskRow
from stellwerk.core.external_task import TaskState
from stellwerk.errors import InvalidInput
from stellwerk.ports import (
    ApiKeyRow,
    DefinitionRow,
    DeleteDefinition,
    DeployDefinitions,
    Deployed,
    DueTimer,
    Identity,
    InboxRow,
    InstanceFilter,
    MessageRow,
    NewInstance,
    PublishMessage,
    RevokeApiKey,
    Scope,
    SetProcessEnabled,
    Store,
    StoreApiKey,
    TaskQuery,
    UserTaskFilter,
)
from stellwerk.stores.postgres import api_keys, listing, messages, reads, task_listing
from stellwerk.stores.sqlite import SqliteStore
from stellwerk.system.file_lock import FileLock
from stellwerk.testing.store_contract.world import START_MS, ManualClock, StoreWorld, new_task

T = TypeVar("T")

MUCH = 2**31 - 1


class Database(Protocol):
    """`AsyncioDatabase` of conftest.py."""

    dsn: str
    connection: asyncpg.Connection

    def ask(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any) -> T: ...

    def execute(self, statement: str, *arguments: object) -> None: ...

    def fetch(self, statement: str, *arguments: object) -> list[Any]: ...

    def together(self, *works: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> list[T]: ...


# --- the same rows in both -------------------------------------------------------------------------------------------


class AtOnce:
    """A runner of threads that has none."""

    async def run_sync(self, function: Callable[[], T]) -> T:
        return function()


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waited for something")


INSTANCES = ["a", "a'b", 'a"\\', "aé", "a\ue000", "a\U0001f600", "b", "%_", ""]
"""In another order by code points of UTF-16 than by bytes, and with all that has a meaning in SQL."""
TASKS = [f"{instance_id}-{number}" for instance_id in INSTANCES for number in range(4)]
TOPICS = ["pay", "Pay", "päy", "nothing"]
NOWHERE = ["gone", "a\x00", "\x00", "a\ud800", "\udfff", "a\x00\ud800"]


async def _fill(world: StoreWorld) -> None:
    for number, instance_id in enumerate(INSTANCES):
        await _fill_instance(world, number, instance_id)
    for instance_id in INSTANCES[:3]:
        await world.step(instance_id, RowChanges(status="COMPLETED"))
    await world.step("b", snapshot=b"\x00second")
    await world.step("b")
    for version in ("1", "2"):
        rows = tuple(
            DefinitionRow(key, None, version, b"<\xff/>", START_MS, ("start", "paid"), "fail", True) for key in "qé"
        )
        await world.do(DeployDefinitions(rows), Deployed)
    for number, (name, key) in enumerate(itertools.product(("paid", "start", "other"), ("1", "2", "é"))):
        for copy in range(3):
            at_ms = START_MS + (number * copy) % 4
            row = MessageRow(f"m{copy}{name}{key}", name, key, b'{"a":"\xc3\xa4"}', at_ms, at_ms + 10 * copy)
            await world.transact(PublishMessage(row))
    await world.step("b", messages_consumed=("m1paid1",))
    for number, instance_id in enumerate(INSTANCES):
        for key in ("", "é", "other"):
            row = MessageRow(f"to{number}{key}", f"name{number % 4}", key, b"{}", START_MS, START_MS + 20, instance_id)
            await world.transact(PublishMessage(row))
    await world.transact(PublishMessage(MessageRow("to", "start", "1", b"{}", START_MS, START_MS + 99, "gone")))
    await world.transact(SetProcessEnabled("é", False), DeleteDefinition("é:1"))
    for number, key_id in enumerate(INSTANCES):
        identity = Identity(name=key_id, scopes=(Scope.WORKER,), topics=(key_id,), key_id=key_id)
        api_key = ApiKeyRow(key_id=key_id, secret_digest="d", identity=identity, created_at_ms=START_MS + number % 2)
        await world.transact(StoreApiKey(api_key))
    await world.transact(RevokeApiKey("b", START_MS))


async def _fill_instance(world: StoreWorld, number: int, instance_id: str) -> None:
    backoffs = ((), (0, 4_000))[number % 2]
    tasks = tuple(
        new_task(f"{instance_id}-{place}", topic=TOPICS[number % 3], priority=place % 2, retry_backoffs_ms=backoffs)
        for place in range(4)
    )
    changes = RowChanges(
        new_tasks=tasks,
        timers_armed=tuple(TimerRow(f"{instance_id}-{n}", "T", START_MS + n) for n in range(3)),
        subscriptions_opened=(
            SubscriptionRow(f"s{number}", "C", "paid", "1"),
            SubscriptionRow(f"s{number}-", "C", f"name{number % 4}", "é"),
        ),
        user_tasks_opened=(UserTaskRow(f"{instance_id}-u", "U", None, "é", ("x",), (), None, b'{"\xc3\xa4":1}'),),
        incidents_opened=(IncidentRow(f"{instance_id}-i", "k", "E", "m"),) if number % 3 else (),
    )
    start = NewInstance(f"q:{number % 2}", "q", [None, "key", "é"][number % 3])
    sent = (InboxRow(instance_id, f"d{9 - number}", b'{"\xc3\xa4":1}'),)
    await world.step(instance_id, changes, new_instance=start, snapshot=b"\x00first", inbox_sent=sent)
    for place in range(3):
        task = await world.lease(f"{instance_id}-{place}", duration_ms=1_000 + number)
        if place == 1:
            await world.fail(task, retry_after_ms=1_000 * (number % 5), details=b'{"d":1}')
        if place == 2 and number % 2:
            await world.commit(world.completion(task))
    if number % 4 == 3:
        await world.step(instance_id, RowChanges(drained_tasks=(f"{instance_id}-3",)))
    world.clock.advance(500 * (number % 2))


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[SqliteStore, Path]]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "engine.db"
        store = SqliteStore(path, runner=AtOnce(), clock=(clock := ManualClock()), lock=FileLock(path))
        at_once(store.open())
        at_once(_fill(StoreWorld(store, clock)))
        yield store, path
        at_once(store.close())


@pytest.fixture(scope="module")
def sides(
    filled: tuple[SqliteStore, Path], new_asyncio_database: Callable[[], AbstractContextManager[Database]]
) -> Iterator[tuple[SqliteStore, Database]]:
    """Only to be read."""
    store, path = filled
    with closing(sqlite3.connect(path)) as source, new_asyncio_database() as database:
        for (table,) in database.fetch(_TABLES):
            _copy(source, database, table)
        yield store, database


_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'stellwerk'"


def _copy(source: sqlite3.Connection, target: Database, table: str) -> None:
    columns = {row[1] for row in source.execute(f"PRAGMA table_info({table})")}
    kinds = target.fetch(
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = 'stellwerk' AND table_name = $1",
        table,
    )
    wanted = {name: kind for name, kind in kinds if name in columns}
    if not wanted or table == "schema_migrations":
        return
    rows = source.execute(f"SELECT {', '.join(wanted)} FROM {table} {'ORDER BY rowid' * (table == 'inbox')}").fetchall()
    converted = [
        [bool(value) if kind == "boolean" else value for value, kind in zip(row, wanted.values(), strict=True)]
        for row in rows
    ]
    assert converted, f"{table} should hold something to compare"
    target.ask(
        asyncpg.Connection.copy_records_to_table,
        table,
        records=converted,
        columns=list(wanted),
        schema_name="stellwerk",
    )


def _now_ms(store: SqliteStore) -> int:
    return at_once(store.lease_now())


def _answer(ask: Callable[..., T], *arguments: Any, **named: Any) -> T | str:
    try:
        return ask(*arguments, **named)
    except InvalidInput as refusal:
        return refusal.message


Sides = tuple[SqliteStore, Database]


# --- equal answers ---------------------------------------------------------------------------------------------------


def test_instances_and_their_histories(sides: Sides) -> None:
    store, database = sides
    for instance_id in (*INSTANCES, "gone"):
        assert database.ask(reads.load_instance, instance_id) == at_once(store.load_instance(instance_id))
        assert database.ask(reads.instance, instance_id) == at_once(store.instance(instance_id))
        for after, limit in ((0, None), (1, None), (1, 1), (0, 0), (99, None), (0, MUCH)):
            expected = at_once(store.history(instance_id, after=after, limit=limit))
            assert database.ask(reads.history, instance_id, after=after, limit=limit) == expected
    loaded = database.ask(reads.load_instance, "b")
    assert loaded is not None
    assert loaded.snapshot == b"\x00second"
    assert [step.version for step in loaded.steps] == [loaded.version - 1, loaded.version]


@pytest.mark.parametrize("limit", [0, 1, 3, MUCH])
def test_lists_of_instances(sides: Sides, limit: int) -> None:
    store, database = sides
    wanted = [
        InstanceFilter(),
        *(InstanceFilter(status=status) for status in ("RUNNING", "COMPLETED", "x")),
        InstanceFilter(process_key="q", business_key="é"),
        InstanceFilter(definition_id="q:1"),
        *(InstanceFilter(process_keys=keys) for keys in (("q",), ("x", "q*"), ("*",), ("qq*",), (), ("q\x00", "q"))),
        InstanceFilter(with_incident=True),
        InstanceFilter(with_incident=False),
        InstanceFilter(with_incident=True, status="RUNNING", business_key="key"),
        InstanceFilter(started_from_ms=START_MS + 500, started_before_ms=START_MS + 1_500),
    ]
    for one, after in itertools.product(wanted, (None, "a", "aé", "gone")):
        expected = _answer(at_once, store.instances(one, limit=limit, after=after))
        assert _answer(database.ask, listing.instances, one, limit, after) == expected


@pytest.mark.parametrize("limit", [0, 1, 5, MUCH])
def test_lists_of_tasks(sides: Sides, limit: int) -> None:
    states = (None, "READY", "LOCKED", "COMPLETED", "FAILED", "CANCELLED", "x")
    for instance_id, topic, state, after in itertools.product(
        (None, "a", "b", "gone"), (None, "pay", "päy"), states, (None, "a-2", "b-0", "gone")
    ):
        wanted = TaskQuery(instance_id=instance_id, topic=topic, state=state)
        _compare_tasks(sides, wanted, limit, after)


def _compare_tasks(sides: Sides, wanted: TaskQuery, limit: int, after: str | None) -> None:
    store, database = sides
    expected = _answer(at_once, store.tasks(wanted, limit=limit, after=after))
    assert _answer(database.ask, task_listing.tasks, wanted, _now_ms(store), limit, after) == expected
    counted = database.ask(task_listing.count_tasks, wanted, _now_ms(store))
    assert counted == at_once(store.count_tasks(wanted))


_CONDITIONS: dict[str, tuple[Any, ...]] = {
    "worker_id": ("worker", "gone"),
    "is_locked": (True, False),
    "definition_id": ("q:1", "q"),
    "process_key": ("q", "q:1", "%", ""),
    "element_id": ("Task_1", "task_1"),
    "business_key": ("é", "key", "k"),
    "with_retries_left": (True, False),
    "priority_from": (1,),
    "priority_to": (0,),
    "task_ids": (("b-1", "gone", "aé-2", "b-1"), ()),
}


@pytest.mark.parametrize("name", _CONDITIONS)
def test_tasks_by_each_condition_alone_and_beside_others(sides: Sides, name: str) -> None:
    others: tuple[dict[str, Any], ...] = (
        {},
        {"state": "READY"},
        {"state": "LOCKED"},
        {"instance_id": "b"},
        {"topic": "pay"},
    )
    for value, other in itertools.product(_CONDITIONS[name], others):
        for limit, after in ((MUCH, None), (2, "a-2"), (2, "gone")):
            _compare_tasks(sides, TaskQuery(**{name: value}, **other), limit, after)
    first, second = _CONDITIONS[name][0], {key: values[0] for key, values in _CONDITIONS.items() if key != name}
    for key, value in second.items():
        _compare_tasks(sides, TaskQuery(**{name: first, key: value}), MUCH, None)


def test_tasks_by_key_and_their_attempts(sides: Sides) -> None:
    store, database = sides
    for task_id in (*TASKS, "gone"):
        assert database.ask(reads.task, task_id) == at_once(store.task(task_id))
        assert database.ask(reads.attempts, task_id) == at_once(store.attempts(task_id))


def test_what_is_ready_locked_or_draining_at_an_instant(sides: Sides) -> None:
    store, database = sides
    now_ms = _now_ms(store)
    for topic, limit in itertools.product(TOPICS, (0, 1, 4, MUCH)):
        expected = at_once(store.ready_tasks(topic, limit))
        found = database.ask(reads.ready_tasks, topic, limit, now_ms)
        assert found == expected
        for task in found.tasks:
            assert 9 <= task.payload_bytes <= 20
    assert database.ask(reads.next_lock_expiry, now_ms) == at_once(store.next_lock_expiry())
    assert database.ask(listing.topic_backlogs, now_ms) == at_once(store.topic_backlogs())
    for limit in (0, 1, MUCH):
        assert database.ask(reads.draining_ready, limit) == at_once(store.draining_ready(limit))


def test_what_backs_off_becomes_ready_with_time(sides: Sides) -> None:
    store, database = sides
    scans = [database.ask(reads.ready_tasks, "pay", MUCH, _now_ms(store) + later) for later in range(0, 9_000, 500)]
    assert len({len(scan.tasks) for scan in scans}) > 2
    for scan in scans:
        assert list(scan.tasks) == sorted(scan.tasks)
        waiting = [task for task in at_once(store.tasks(TaskQuery(topic="pay", state="READY"))) if not task.draining]
        later = [task.available_at_ms for task in waiting if task.available_at_ms > scan.now_ms]
        assert scan.next_available_ms == min(later, default=None)
        assert len(scan.tasks) + len(later) == len(waiting)
        (backlog,) = [one for one in database.ask(listing.topic_backlogs, scan.now_ms) if one.topic == "pay"]
        assert (backlog.ready, backlog.backing_off) == (len(scan.tasks), len(later))


_USER_TASKS = (
    *(UserTaskFilter(assignee=name) for name in ("é", "x", "gone", "\x00")),
    *(UserTaskFilter(candidate_user=name) for name in ("é", "x", "a\x00")),
    *(UserTaskFilter(candidate_group=name) for name in ("x", "\x00")),
    *(UserTaskFilter(process_keys=("q", name)) for name in ("é", "\x00")),
    *(UserTaskFilter(is_assigned=one) for one in (True, False)),
)


def test_messages_and_what_they_meet(sides: Sides) -> None:
    store, database = sides
    for now_ms, limit in itertools.product((START_MS - 1, START_MS, START_MS + 12, START_MS + 99), (0, 1, 4, MUCH)):
        expected = list(at_once(store.matched_messages(now_ms, limit)))
        assert database.ask(messages.matched_messages, now_ms, limit) == expected
        for after in (None, "", "m0", "m1paid2", "zz"):
            kept = list(at_once(store.waiting_messages(now_ms, limit=limit, after=after)))
            assert database.ask(messages.waiting_messages, now_ms, limit, after) == kept
    assert len(database.ask(messages.matched_messages, START_MS - 1, MUCH)) > 6
    for message_id in ("to0", "to1é", "to2other", "m1paid1", "m0start2", "m2otheré", "gone"):
        assert database.ask(messages.message, message_id) == at_once(store.message(message_id))
    for limit in (0, 1, 3, MUCH):
        assert database.ask(messages.awaited_names, limit) == at_once(store.awaited_names(limit))


def test_messages_behind_many_that_meet_nobody_are_found(asyncio_database: Database) -> None:
    asyncio_database.execute(
        "INSERT INTO stellwerk.messages SELECT 'm' || n, 'paid', CASE WHEN n < 9 THEN '1' ELSE '2' END, '{}', n, 99"
        " FROM generate_series(1, 9) n"
    )
    asyncio_database.execute("INSERT INTO stellwerk.subscriptions VALUES ('s1', 'i', 'C', 'paid', '1')")
    for limit, expected in ((1, "m1"), (2, "m1"), (9, "m1")):
        found = asyncio_database.ask(messages.matched_messages, 0, limit)
        assert [match.message.message_id for match in found] == [expected]
    asyncio_database.execute("INSERT INTO stellwerk.subscriptions VALUES ('s2', 'j', 'C', 'paid', '2')")
    for limit, ids in ((1, ["m1"]), (2, ["m1", "m9"]), (9, ["m1", "m9"])):
        found = asyncio_database.ask(messages.matched_messages, 0, limit)
        assert [match.message.message_id for match in found] == ids


def test_what_waits_for_somebody(sides: Sides) -> None:
    store, database = sides
    for instance_id, limit, after in itertools.product((None, "b", "gone"), (0, 2, MUCH), (None, "", "a-i", "aé-u")):
        incidents = at_once(store.incidents(instance_id, limit=limit, after=after))
        assert database.ask(reads.incidents, instance_id, limit, after) == incidents
        user_tasks = at_once(store.user_tasks(instance_id, limit=limit, after=after))
        assert database.ask(reads.user_tasks, instance_id, limit, after) == user_tasks
    for instance_id in INSTANCES:
        for wanted in _USER_TASKS:
            user_tasks = at_once(store.user_tasks(None, wanted=wanted))
            assert database.ask(reads.user_tasks, None, 1_000, None, wanted) == user_tasks
        assert database.ask(reads.incident, f"{instance_id}-i") == at_once(store.incident(f"{instance_id}-i"))
        assert database.ask(reads.user_task, f"{instance_id}-u") == at_once(store.user_task(f"{instance_id}-u"))
    for asked in (INSTANCES, [], ["b", "b", "gone"]):
        assert database.ask(listing.incident_counts, asked) == at_once(store.incident_counts(asked))


def test_definitions_timers_and_the_inbox(sides: Sides) -> None:
    store, database = sides
    assert database.ask(reads.definitions) == at_once(store.definitions())
    for definition_id in ("q:1", "q:2", "é:2", "q:3", "q", "", ":1", "q:-1", "q:٣", "q:1234567890123456789012"):
        assert database.ask(reads.definition, definition_id) == at_once(store.definition(definition_id))
    for key in ("q", "é", "gone"):
        assert database.ask(reads.disabled_processes) == at_once(store.disabled_processes()) == ["é"]
        assert database.ask(reads.latest_definition, key) == at_once(store.latest_definition(key))
    for now_ms, limit in itertools.product((START_MS - 1, START_MS, START_MS + 1, START_MS + 9), (0, 1, 4, MUCH)):
        assert database.ask(reads.due_timers, now_ms, limit) == at_once(store.due_timers(now_ms, limit))
    for limit in (0, 1, MUCH):
        assert database.ask(reads.inbox, limit) == at_once(store.inbox(limit))


def test_api_keys(sides: Sides) -> None:
    store, database = sides
    found = database.ask(api_keys.api_keys)
    assert found == at_once(store.api_keys())
    assert len(found) == len(INSTANCES)
    for key_id in (*INSTANCES, "gone"):
        assert database.ask(api_keys.api_key, key_id) == at_once(store.api_key(key_id))
    assert database.ask(api_keys.has_api_keys) is at_once(store.has_api_keys()) is True


# --- what no row can hold --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", NOWHERE)
def test_fault_text_that_no_row_can_hold_is_not_found(sides: Sides, text: str) -> None:
    _, database = sides
    by_id = (reads.load_instance, reads.instance, reads.latest_definition, reads.task, messages.message)
    for function in (*by_id, api_keys.api_key):
        assert database.ask(function, text) is None
    assert database.ask(reads.incident, text) is database.ask(reads.user_task, text) is None
    assert database.ask(reads.definition, f"{text}:1") is None
    assert not database.ask(reads.history, text)
    assert not database.ask(reads.attempts, text)
    assert database.ask(reads.ready_tasks, text, 9, 0).tasks == ()
    texts = ("instance_id", "topic", "state", "worker_id", "definition_id", "process_key", "element_id", "business_key")
    by_text: list[dict[str, Any]] = [*({name: text} for name in texts), {"task_ids": (text,)}]
    for wanted in (TaskQuery(**conditions) for conditions in by_text):
        assert database.ask(task_listing.tasks, wanted, 0, 9, None) == []
        assert database.ask(task_listing.count_tasks, wanted, 0) == 0
    assert database.ask(listing.instances, InstanceFilter(process_keys=(text, f"{text}*")), 9, None) == []
    assert database.ask(listing.instances, InstanceFilter(business_key=text), 9, None) == []
    assert database.ask(listing.incident_counts, [text, "a'b"]) == {"a'b": 1}
    assert database.ask(reads.incidents, text) == database.ask(reads.user_tasks, text) == []
    assert database.ask(reads.standing_leases, [(text, 1), ("b-0", 2**80)]) == set()
    with pytest.raises(InvalidInput, match="there is no instance"):
        database.ask(listing.instances, InstanceFilter(), 9, text)
    with pytest.raises(InvalidInput, match="there is no external task"):
        database.ask(task_listing.tasks, TaskQuery(), 0, 9, text)


@pytest.mark.parametrize("after", ["a\x00", "a\x00z", "a\ud800", "a\udfffz", "\x00", "\ud800", "m1\x00", "m1\ud800"])
def test_a_page_after_a_text_that_no_row_can_hold_begins_in_the_order_of_bytes(sides: Sides, after: str) -> None:
    _, database = sides
    whole = [str(row["user_task_id"]) for row in database.ask(reads.user_tasks)]
    found = [row["user_task_id"] for row in database.ask(reads.user_tasks, None, 99, after)]
    assert found == [key for key in whole if key > after]
    ids = [row.message_id for row in database.ask(messages.waiting_messages, 0, 99, None)]
    waiting = [row.message_id for row in database.ask(messages.waiting_messages, 0, 99, after)]
    assert waiting == [message_id for message_id in ids if message_id > after]


# --- leases and the clock --------------------------------------------------------------------------------------------


def test_rule_18_leases_stand_while_their_rows_know_them(sides: Sides) -> None:
    store, database = sides
    tasks = [task for name in TASKS if (task := at_once(store.task(name))) is not None]
    held = {(task.task_id, task.fence) for task in tasks if task.state is TaskState.LOCKED}
    assert 0 < len(held) < len(tasks)
    asked = [(task.task_id, task.fence + offset) for task in tasks for offset in (-1, 0, 1)]
    assert database.ask(reads.standing_leases, [*asked, ("gone", 1)]) == held
    assert database.ask(reads.standing_leases, []) == set()


def test_without_a_dictated_clock_the_databases_own_is_read(asyncio_database: Database) -> None:
    before_ms = asyncio_database.ask(reads.lease_now)
    scan = asyncio_database.ask(reads.ready_tasks, "pay", 9, None)
    expiry_ms, now_ms = asyncio_database.ask(reads.next_lock_expiry, None)
    after_ms = asyncio_database.ask(reads.lease_now)
    assert before_ms <= scan.now_ms <= now_ms <= after_ms
    assert (scan.tasks, scan.next_available_ms, expiry_ms) == ((), None, None)
    assert asyncio_database.ask(listing.topic_backlogs, None) == []


# --- timers ----------------------------------------------------------------------------------------------------------


def _arm(database: Database, **due_at_ms: int) -> None:
    for timer_id, instant in due_at_ms.items():
        database.execute("INSERT INTO stellwerk.timers VALUES ($1, 'i', 'T', $2)", timer_id, instant)


def _claim(database: Database, now_ms: int, limit: int = 10, lease_now_ms: int = 1_000) -> tuple[str, int | None]:
    due, following = database.ask(reads.claim_timers, now_ms, limit, lease_now_ms)
    return "".join(timer.timer_id for timer in due), following


def test_rule_22_due_timers_are_claimed_for_ten_seconds(asyncio_database: Database) -> None:
    _arm(asyncio_database, c=30, a=10, b=20)
    due, following = asyncio_database.ask(reads.claim_timers, 20, 10, 1_000)
    assert (due, following) == ([DueTimer("a", "i", 10), DueTimer("b", "i", 20)], 30)
    assert _claim(asyncio_database, 25) == ("", 30)
    assert _claim(asyncio_database, 30) == ("c", 30 + 10_000), "those of another node are due again after its claim"
    assert _claim(asyncio_database, 31, lease_now_ms=9_000) == ("", 31 + 2_000)
    assert _claim(asyncio_database, 31, lease_now_ms=10_999) == ("", 31 + 1)
    assert _claim(asyncio_database, 31, lease_now_ms=11_000) == ("abc", None)


def test_a_full_page_of_timers_tells_the_next_one(asyncio_database: Database) -> None:
    _arm(asyncio_database, a=10, b=10, c=20, d=90)
    assert _claim(asyncio_database, 50, limit=1) == ("a", 10)
    assert _claim(asyncio_database, 50, limit=1) == ("b", 20)
    assert _claim(asyncio_database, 50, limit=1) == ("c", 90)
    assert _claim(asyncio_database, 50, limit=0) == ("", 90)
    assert _claim(asyncio_database, 90, limit=MUCH) == ("d", 90 + 10_000)
    assert asyncio_database.ask(reads.due_timers, 50, 2)[1] == 20, "claims are for those alone who mean to fire"


def test_rule_22_several_nodes_at_once_get_different_timers(asyncio_database: Database) -> None:
    asyncio_database.execute("INSERT INTO stellwerk.timers SELECT 't' || n, 'i', 'T', n FROM generate_series(1, 500) n")

    async def until_none_is_left(connection: asyncpg.Connection) -> list[str]:
        mine: list[str] = []
        while claimed := (await reads.claim_timers(connection, 1_000, 20))[0]:
            mine += [timer.timer_id for timer in claimed]
        return mine

    found = asyncio_database.together(*[until_none_is_left] * 4)
    assert sorted(itertools.chain(*found)) == sorted(f"t{number}" for number in range(1, 501))


def test_a_timer_that_somebody_holds_is_left_out_and_looked_at_again(asyncio_database: Database) -> None:
    _arm(asyncio_database, a=10, b=20)

    async def holding(connection: asyncpg.Connection) -> Sequence[object]:
        async with connection.transaction():
            await connection.execute("DELETE FROM stellwerk.timers WHERE timer_id = 'a'")
            other = await asyncpg.connect(asyncio_database.dsn)
            try:
                return await reads.claim_timers(other, 50, 10, 1_000)
            finally:
                await other.close()

    ((due, following),) = asyncio_database.together(holding)
    assert (due, following) == ([DueTimer("b", "i", 20)], 50 + 10_000)


# --- one moment ------------------------------------------------------------------------------------------------------


def test_an_instance_is_read_whole_while_another_node_steps_it(asyncio_database: Database) -> None:
    asyncio_database.execute("INSERT INTO stellwerk.instances VALUES ('i', 'q:1', 'q', NULL, 'RUNNING', 0, 0, NULL)")
    step = """
    WITH stepped AS (UPDATE stellwerk.instances SET version = $1 WHERE instance_id = 'i'),
    kept AS (
        INSERT INTO stellwerk.snapshots SELECT 'i', $1::bigint, $1::bigint::text::bytea WHERE $1 % 7 = 0
        ON CONFLICT (instance_id) DO UPDATE SET version = excluded.version, snapshot = excluded.snapshot)
    INSERT INTO stellwerk.history VALUES ('i', $1::bigint, 0, '[]')"""

    async def stepping(connection: asyncpg.Connection) -> int:
        for version in range(1, 301):
            await connection.execute(step, version)
        return 0

    async def reading(connection: asyncpg.Connection) -> int:
        versions: set[int] = set()
        while 300 not in versions:
            loaded = await reads.load_instance(connection, "i")
            assert loaded is not None
            first = int(loaded.snapshot or b"0") + 1
            assert [one.version for one in loaded.steps] == list(range(first, loaded.version + 1))
            versions.add(loaded.version)
        return len(versions)

    _, seen = asyncio_database.together(stepping, reading)
    assert seen > 10


def test_the_port_is_read_in_full() -> None:
    """Each reading method of the port has its function here."""
    modules = (reads, listing, task_listing, messages, api_keys)
    functions = {name for module in modules for name in module.__all__}
    others = {"file", "is_shared", "open", "close", "transact", "step_locked", "backup", "trouble"}
    beside_others = {"tell", "hints", "report_node", "nodes", "forget_node"}
    names = {name for name in vars(Store) if not name.startswith("_")}
    assert names - others - beside_others <= functions
