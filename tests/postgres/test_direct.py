"""The one function that commits regular steps and leases: what it takes and refuses, and an answer that is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from stellwerk.core.changes import RowChanges, SubscriptionRow, TimerRow
from stellwerk.core.external_task import ExternalTask, OutcomeKind
from stellwerk.core.facts import TokenEntered, VariablesSet
from stellwerk.ports import (
    BirthLease,
    Changeset,
    CheckRepeat,
    Committed,
    DropMessages,
    ExpireLocks,
    FailTask,
    LeaseTasks,
    NewInstance,
    Operation,
    TaskEnding,
    TaskLease,
)
from stellwerk.stores.postgres.direct import commit_directly
from stellwerk.stores.postgres.plan import divide
from stellwerk.system.entropy import SystemEntropy
from stellwerk.testing.databases import PostgresServer
from stellwerk.testing.store_contract.world import holder, new_task

HOLDER = holder()


def step(instance_id: str, version: int, changes: RowChanges | None = None, **fields: Any) -> Changeset:
    new = NewInstance("p:1", "p", "order 7") if version == 0 else None
    values: dict[str, Any] = {"new_instance": new, "facts": (TokenEntered("t", "n", "s"),), **fields}
    return Changeset(
        instance_id=instance_id, expected_version=version, at_ms=1, changes=changes or RowChanges(), **values
    )


def start(instance_id: str, *task_ids: str, **fields: Any) -> Changeset:
    return step(instance_id, 0, RowChanges(new_tasks=tuple(map(new_task, task_ids))), **fields)


def lease(*task_ids: str) -> LeaseTasks:
    return LeaseTasks(tuple(TaskLease(task_id, HOLDER, 30_000) for task_id in task_ids))


def completion(task: ExternalTask, **fields: Any) -> TaskEnding:
    ending = TaskEnding(task.task_id, task.fence, "COMPLETED", OutcomeKind.COMPLETE, "digest")
    return attrs.evolve(ending, **fields)


@attrs.frozen
class Node:
    link: Any

    async def commit(self, *operations: Operation) -> dict[int, Any]:
        assert divide(operations).careful == ()
        work = partial(commit_directly, self.link.connections, SystemEntropy(), dict(enumerate(operations)), None)
        outcomes: dict[int, Any] = await self.link.bridge.run(work)
        return outcomes

    async def leased(self, task_id: str) -> ExternalTask:
        """A task of a new instance with one task."""
        await self.commit(start(f"instance of {task_id}", task_id))
        task = (await self.commit(lease(task_id)))[0][0]
        assert isinstance(task, ExternalTask)
        return task

    async def count(self, table: str) -> Any:
        return await self.link.value(f"SELECT count(*) FROM stellwerk.{table}")


@pytest.fixture
async def node(postgres_dsn: str, open_link: Any) -> Node:
    return Node(await open_link(postgres_dsn))


# --- which way -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operations", "regular"),
    [
        ([start("i", "a"), lease("b"), step("j", 4)], [0, 1, 2]),
        ([start("i", "a"), step("i", 1)], [0]),
        ([start("i", "a"), lease("a")], [0]),
        ([lease("a", "a")], []),
        ([lease("a"), FailTask("b", 1, "d", "m"), lease("c")], [0, 2]),
        ([FailTask("a", 1, "d", "m"), lease("a"), lease("b")], [2]),
        ([lease("a"), ExpireLocks(1), lease("b")], [0]),
        ([DropMessages(1), start("i")], []),
        ([CheckRepeat("a", 1, OutcomeKind.FAIL, "d")], []),
        ([step("i", 1, RowChanges(cancelled_tasks=("a",)))], []),
        ([step("i", 1, RowChanges(timers_disarmed=("x",), timers_armed=(TimerRow("x", "e", 1),)))], []),
        ([step("i", 1, endings=(TaskEnding("a", 1, "FAILED", OutcomeKind.FAIL, "d"),))], []),
        ([step("i", 0, new_instance=None)], []),
    ],
)
def test_what_touches_a_row_touched_before_or_follows_a_scan_is_done_carefully(
    operations: list[Operation], regular: list[int]
) -> None:
    plan = divide(operations)
    assert list(plan.regular) == regular
    assert sorted((*plan.regular, *plan.careful)) == list(range(len(operations)))


# --- what it does --------------------------------------------------------------------------------------------------


async def test_steps_and_leases_of_many_instances_are_one_transaction(node: Node) -> None:
    task = await node.leased("done")
    before = await node.count("batches")
    outcomes = await node.commit(
        start("i", "born", "waiting", birth_leases=(BirthLease("born", HOLDER, 5_000),)),
        lease("nothing"),
        step(task.instance_id, 1, RowChanges(new_tasks=(new_task("next"),)), endings=(completion(task),)),
    )
    assert await node.count("batches") == before + 1
    (born,) = outcomes[0].born_leased
    assert (born.state.value, born.fence, born.business_key) == ("LOCKED", outcomes[0].now_ms, "order 7")
    assert outcomes[1] == (None,)
    assert outcomes[2] == Committed(2, now_ms=outcomes[0].now_ms)
    states = "SELECT string_agg(task_id || ' ' || state, ', ' ORDER BY task_id) FROM stellwerk.external_tasks"
    assert await node.link.value(states) == "born LOCKED, done COMPLETED, next READY, waiting READY"


async def test_rule_1_of_a_step_that_a_guard_refuses_nothing_is_written_and_its_neighbours_are(node: Node) -> None:
    good, stale, foreign, late = [await node.leased(name) for name in ("good", "stale", "foreign", "late")]
    await node.link.written("UPDATE stellwerk.external_tasks SET lock_expire_at = 5 WHERE task_id = 'late'")

    def waiting(name: str) -> RowChanges:
        subscription = SubscriptionRow(f"subscription {name}", "e", "n", "k")
        return RowChanges(timers_armed=(TimerRow(f"timer {name}", "e", 1),), subscriptions_opened=(subscription,))

    outcomes = await node.commit(
        step(stale.instance_id, 7, waiting("stale"), endings=(completion(stale),)),
        step(good.instance_id, 1, endings=(completion(good),)),
        step(
            foreign.instance_id,
            1,
            waiting("foreign"),
            endings=(completion(foreign, worker_id="another"),),
            snapshot=b"s",
        ),
        step(late.instance_id, 1, waiting("late"), endings=(completion(late),)),
        step("unknown", 3, waiting("unknown")),
    )
    assert outcomes.keys() == {1}
    assert [await node.count(table) for table in ("history", "timers", "subscriptions", "snapshots")] == [5, 0, 0, 0]
    ended = "SELECT string_agg(task_id, ' ') FROM stellwerk.external_tasks WHERE state = 'COMPLETED'"
    assert await node.link.value(ended) == "good"


async def test_rule_7_a_new_instance_of_an_outdated_version_is_refused(node: Node) -> None:
    await node.link.written(
        "INSERT INTO stellwerk.definitions VALUES ('p', 1, NULL, '', '', 1, '[]', NULL, false),"
        " ('p', 2, NULL, '', '', 1, '[]', NULL, false)"
    )
    old, new = (NewInstance(f"p:{version}", "p", None, must_be_newest=True) for version in (1, 2))
    assert await node.commit(step("i", 0, new_instance=old)) == {}
    assert (await node.commit(step("i", 0, new_instance=new)))[0].version == 1


async def test_what_cannot_be_written_down_is_left_to_the_careful_way_alone(node: Node) -> None:
    unwritable = step("bad", 0, RowChanges(new_tasks=(new_task("t", headers=None),)), facts=())
    outcomes = await node.commit(start("before", "a"), unwritable, lease("b"), start("after", "c"))
    assert outcomes.keys() == {0, 2, 3}
    assert await node.count("instances") == 2


async def test_a_batch_is_bounded_in_bytes(node: Node) -> None:
    large: dict[str, object] = {"text": "x" * 9_000_000}
    steps = [step(f"i{number}", 0, facts=(VariablesSet("s", large),)) for number in range(3)]
    assert (await node.commit(*steps)).keys() == {0, 1, 2}
    assert await node.count("batches") == 2


async def test_every_row_is_found_by_its_primary_key_with_no_statistics_at_all(node: Node) -> None:
    tasks = [await node.leased(f"task {number}") for number in range(20)]
    outcomes = await node.commit(
        *(step(task.instance_id, 1, endings=(completion(task),)) for task in tasks),
        start("new", "t1", "t2"),
    )
    assert len(outcomes) == 21
    await node.link.written("SELECT pg_stat_force_next_flush()")
    await node.link.written("SELECT 1")
    scans = "SELECT sum(seq_scan) FROM pg_stat_user_tables WHERE relname IN ('instances', 'external_tasks', 'history')"
    assert await node.link.written(scans) == 0
    reads = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = $1"
    by_state = ("external_tasks_ready", "external_tasks_locked", "external_tasks_ended")
    assert [await node.link.written(reads, index) for index in by_state] == [0, 0, 0]
    assert await node.link.written(reads, "external_tasks_pkey") >= 60


# --- rule 3: the answer is lost ------------------------------------------------------------------------------------


@pytest.fixture
async def far_node(breakable_dsn: str, network: Any, open_link: Any) -> Node:
    """Behind a network that may break, with little patience."""
    return Node(await open_link(network.dsn(breakable_dsn), command_seconds_max=2))


async def test_rule_3_a_commit_whose_answer_is_lost_has_the_same_outcomes_and_is_not_done_again(
    far_node: Node, network: Any, breakable_server: PostgresServer, breakable_dsn: str, eventually: Callable[..., Any]
) -> None:
    task = await far_node.leased("done")
    await far_node.commit(start("other", "free"))
    outcomes: dict[int, Any] = {}

    def is_committed() -> bool:
        (row,) = breakable_server.query("SELECT count(*) AS steps FROM stellwerk.history", dsn=breakable_dsn)
        return bool(row["steps"] == 4)

    async def commit() -> None:
        outcomes.update(
            await far_node.commit(
                step(task.instance_id, 1, endings=(completion(task),)),
                start("i", "born", birth_leases=(BirthLease("born", HOLDER, 5_000),)),
                lease("free", "nothing"),
                step("other", 9),
            )
        )

    network.stall("answers")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await eventually(is_committed)
        network.cut()
        network.heal()
    now_ms = outcomes[0].now_ms
    assert outcomes.keys() == {0, 1, 2}
    assert outcomes[0] == Committed(2, now_ms=now_ms)
    assert [(born.task_id, born.fence) for born in outcomes[1].born_leased] == [("born", now_ms)]
    assert [leased and (leased.task_id, leased.fence) for leased in outcomes[2]] == [("free", now_ms), None]
    assert await far_node.count("history") == 4
