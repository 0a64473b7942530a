"""What an operator asks of a large file must not hold up the work: which index answers it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from stellwerk.ports import InstanceFilter, TaskQuery
from stellwerk.stores.sqlite import listing, messages, pruning, task_listing
from stellwerk.stores.sqlite.migrations import migrate

Plans = Callable[..., list[str]]


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, "memory")
        connection.execute(
            "INSERT INTO instances VALUES ('i', 'order:1', 'order', NULL, 'RUNNING', 1, 0, NULL)",
        )
        connection.execute(
            "INSERT INTO external_tasks (task_id, process_instance, token_id, activity_id, element_id, definition_id,"
            " task_type, priority, created_at, retries_total, retry_backoffs_ms, lock_expiries_max, single_try,"
            " variables, headers, updated_at, available_at, state, retries, attempt, lock_expiries, draining, fence)"
            " VALUES ('t', 'i', '', '', '', '', 'pay', 0, 0, 3, '[]', 9, 0, '{}', '{}', 0, 0, 'READY', 3, 0, 0, 0, 0)"
        )
        yield connection


@pytest.fixture
def plans(database: sqlite3.Connection) -> Plans:
    """Plans of all that a function sends, in order, each on one line."""

    def explain(function: Callable[..., object], *arguments: object) -> list[str]:
        statements: list[str] = []
        database.set_trace_callback(statements.append)
        function(database, *arguments)
        database.set_trace_callback(None)
        return [
            "; ".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}")) for statement in statements
        ]

    return explain


def test_backlogs_are_counted_from_the_indexes_of_open_tasks(database: sqlite3.Connection, plans: Plans) -> None:
    ready, backing_off, locked = plans(listing.topic_backlogs, 0)
    assert ready == "SCAN external_tasks USING INDEX external_tasks_ready"
    assert backing_off == "SCAN external_tasks USING INDEX external_tasks_backing_off"
    assert locked.startswith("SCAN external_tasks USING INDEX external_tasks_locked")
    program = database.execute(f"EXPLAIN {listing._COUNT_READY}").fetchall()
    cursors = {row[2] for row in program if row[1] == "OpenRead" and row[3] == _root_page(database, "external_tasks")}
    assert not [row for row in program if row[1] == "Column" and row[2] in cursors], "no row of a READY task is read"


def test_leases_of_workers_are_counted_from_the_index_of_locked_tasks(plans: Plans) -> None:
    (plan,) = plans(task_listing.held_leases, ["w"], 0)
    assert "external_tasks USING INDEX external_tasks_locked" in plan


def _root_page(database: sqlite3.Connection, name: str) -> int:
    (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    return int(page)


@pytest.mark.parametrize("topic", [None, "pay"])
@pytest.mark.parametrize("after", [None, "t"])
def test_open_tasks_are_listed_from_their_indexes(plans: Plans, topic: str | None, after: str | None) -> None:
    *_, ready = plans(task_listing.tasks, TaskQuery(topic=topic, state="READY"), 0, 10, after)
    *_, locked = plans(task_listing.tasks, TaskQuery(topic=topic, state="LOCKED"), 0, 10, after)
    for index in ("external_tasks_ready", "external_tasks_backing_off", "external_tasks_drained"):
        assert index in ready
    assert "external_tasks_locked" in locked
    for plan in (ready, locked):
        assert "SCAN external_tasks;" not in f"{plan};"
        assert "SEARCH external_tasks USING INDEX sqlite_autoindex_external_tasks_1 (task_id=?)" in plan


def test_all_tasks_are_listed_along_the_table_from_the_page_before(plans: Plans) -> None:
    *_, before, page = plans(task_listing.tasks, TaskQuery(), 0, 10, "t")
    assert "USING INTEGER PRIMARY KEY (rowid<?)" in before
    assert page == "SEARCH external_tasks USING INTEGER PRIMARY KEY (rowid>?)"


def test_tasks_of_an_instance_are_found_by_it(plans: Plans) -> None:
    (plan,) = plans(task_listing.tasks, TaskQuery(instance_id="i", state="COMPLETED"), 0, 10, None)
    assert "external_tasks_of_instance (process_instance=?)" in plan


_OF_INSTANCE = "SEARCH external_tasks USING INDEX external_tasks_of_instance (process_instance=?)"
_LOCKED_INDEX = "external_tasks USING INDEX external_tasks_locked"
_BY_ID = "SEARCH external_tasks USING INDEX sqlite_autoindex_external_tasks_1 (task_id=?)"


@pytest.mark.parametrize("more", [{}, {"topic": "pay", "process_key": "order", "with_retries_left": True}])
@pytest.mark.parametrize(
    "conditions, expected",
    [
        ({"instance_id": "i"}, _OF_INSTANCE),
        ({"business_key": "A-17"}, _OF_INSTANCE),
        ({"business_key": "A-17", "state": "READY"}, _OF_INSTANCE),
        ({"worker_id": "w"}, _LOCKED_INDEX),
        ({"is_locked": True}, _LOCKED_INDEX),
        ({"is_locked": True, "state": "LOCKED"}, _LOCKED_INDEX),
        ({"task_ids": ("t", "u")}, _BY_ID),
        ({"task_ids": ("t", "u"), "state": "LOCKED", "topic": "pay"}, _BY_ID),
    ],
)
def test_few_tasks_are_found_and_counted_without_reading_the_others(
    plans: Plans, conditions: dict[str, object], expected: str, more: dict[str, object]
) -> None:
    wanted = TaskQuery(**{**conditions, **more})  # type: ignore[arg-type]
    for found in (plans(task_listing.tasks, wanted, 0, 10, None), plans(task_listing.count_tasks, wanted, 0)):
        assert len(found) == 1
        assert expected in found[0].replace("COVERING ", "")
        assert "SCAN external_tasks;" not in f"{found[0]};"


def test_open_tasks_are_counted_from_their_indexes(plans: Plans) -> None:
    ready = plans(task_listing.count_tasks, TaskQuery(state="READY"), 0)
    names = ("external_tasks_ready", "external_tasks_backing_off", "external_tasks_drained")
    assert [name in plan for name, plan in zip(names, ready, strict=True)] == [True] * 3
    (of_topic, *_) = plans(task_listing.count_tasks, TaskQuery(state="READY", topic="pay"), 0)
    assert "USING INDEX external_tasks_ready (task_type=?)" in of_topic


@pytest.mark.parametrize(
    "wanted, expected",
    [
        (InstanceFilter(), "SCAN i USING INDEX instances_newest"),
        (
            InstanceFilter(process_keys=("order", "re*")),
            "SCAN i USING INDEX instances_newest; LIST SUBQUERY 1; SCAN json_each VIRTUAL TABLE INDEX 1:; "
            "CORRELATED SCALAR SUBQUERY 2; SCAN json_each VIRTUAL TABLE INDEX 1:",
        ),
        (InstanceFilter(started_from_ms=1), "SEARCH i USING INDEX instances_newest (started_at_ms>?)"),
        (
            InstanceFilter(business_key="A-17"),
            "SEARCH i USING INDEX instances_by_business_key (business_key=?)",
        ),
        (
            InstanceFilter(business_key="A-17", status="RUNNING", started_from_ms=1),
            "SEARCH i USING INDEX instances_by_business_key (business_key=? AND started_at_ms>?)",
        ),
    ],
)
def test_instances_are_listed_in_the_order_of_an_index(plans: Plans, wanted: InstanceFilter, expected: str) -> None:
    assert plans(listing.instances, wanted, 10, None) == [expected]


def test_a_page_of_instances_begins_where_the_last_one_ended(plans: Plans) -> None:
    *_, page = plans(listing.instances, InstanceFilter(), 10, "i")
    assert page == "SEARCH i USING INDEX instances_newest ((started_at_ms,instance_id)<(?,?))"


def test_instances_with_an_incident_are_found_from_the_incidents(plans: Plans) -> None:
    (plan,) = plans(listing.instances, InstanceFilter(with_incident=True), 10, None)
    assert "SCAN incidents USING COVERING INDEX incidents_of_instance" in plan
    assert "SEARCH i USING PRIMARY KEY (instance_id=?)" in plan


def test_pruning_finds_everything_by_an_index(plans: Plans) -> None:
    (ended,) = plans(pruning.ended_before, 0, 10)
    assert ended == "SEARCH instances USING INDEX instances_ended (ended_at_ms>? AND ended_at_ms<?)"
    deletions = plans(pruning.delete_instance, "i")
    assert len(deletions) == 11
    assert [plan for plan in deletions if not plan.startswith("SEARCH ")] == []


def test_incidents_of_a_page_are_counted_by_one_look_at_their_index(plans: Plans) -> None:
    (plan,) = plans(listing.incident_counts, ["i", "j"])
    assert "SEARCH incidents USING COVERING INDEX incidents_of_instance (instance_id=?)" in plan


def test_awaited_messages_are_found_without_reading_every_subscription(plans: Plans) -> None:
    (names,) = plans(messages.awaited_names, 10)
    assert "SCAN subscriptions" not in names
    (kept,) = plans(messages.waiting_messages, 0, 10, None)
    assert "SEARCH s USING COVERING INDEX subscriptions_by_name (name=? AND key=? AND opened_at_ms<?)" in kept
    assert "SEARCH m USING INDEX sqlite_autoindex_messages_1 (message_id>?)" in kept
    (found,) = plans(messages.receivers, "paid", 10)
    assert found == "SEARCH subscriptions USING INDEX subscriptions_by_name (name=?)"


def test_messages_are_matched_as_far_as_they_are_asked_for(plans: Plans) -> None:
    """In the order of two indexes, laid one into the other: neither of the two lists is made first."""
    (plan,) = plans(messages.matched_messages, 0, 10)
    assert "MERGE (UNION ALL)" in plan
    assert "SCAN m USING INDEX messages_by_arrival" in plan
    assert "SEARCH s USING INDEX subscriptions_by_name (name=? AND key=? AND opened_at_ms<?)" in plan
    assert "SCAN m USING INDEX messages_for_instances" in plan
    assert "SEARCH s USING INDEX subscriptions_of_instance (instance_id=? AND opened_at_ms<?)" in plan
    assert plan.count("TEMP B-TREE") == plan.count("TEMP B-TREE FOR RIGHT PART OF ORDER BY"), "within one message"


def test_messages_whose_time_ended_are_dropped_by_one_look_at_an_index_each(plans: Plans) -> None:
    """However many wait for the same name and key: since when the first of them does is what counts."""
    before, drop, after = plans(messages.drop_messages, 1_000, ("m",))
    for plan in (before, drop, after):
        assert "SEARCH m USING INDEX messages_by_end (expires_at_ms<?)" in plan
    assert "SEARCH s USING COVERING INDEX subscriptions_by_name (name=? AND key=? AND opened_at_ms<?)" in drop
    assert "SEARCH s USING INDEX subscriptions_of_instance (instance_id=? AND opened_at_ms<?)" in drop
    assert "SCAN m" not in drop
    assert "SCAN s" not in drop
