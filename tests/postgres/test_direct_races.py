"""Nodes race on the direct way: whatever they do to the same rows at once, one wins, and the others hear why not.

The races are drawn by chance, round after round. Beside them, for each lock of the commit, a meeting that is arranged.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import structlog
import trio

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask
from stellwerk.ports import (
    Changeset,
    Committed,
    LeaseAnswer,
    LeaseAnswerKind,
    LeaseTasks,
    Operation,
    Outcome,
    RefusedChangeset,
    RefusedGuard,
    ReleaseLease,
    ReleaseLeases,
    RenewLease,
    RenewLeases,
    TaskLease,
)
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.system.entropy import SystemEntropy
from stellwerk.testing.databases import PostgresAccess
from stellwerk.testing.store_contract.world import (
    START_MS,
    DictatedLeaseClock,
    ManualClock,
    StoreWorld,
    holder,
    new_task,
)

STORES = 6
ROUNDS = 30
TASKS = 60
INSTANCES = 20

Query = Callable[..., Sequence[Any]]


@asynccontextmanager
async def opened(dsn: str, number: int, clock: ManualClock | None = None) -> AsyncIterator[StoreWorld]:
    """A node's store; its leases are judged by `clock`, or by that of the database."""
    store = PostgresStore(
        PostgresConfig(dsn=dsn, reading_connections_max=1),
        clock=clock or ManualClock(),
        entropy=SystemEntropy(),
        log=structlog.get_logger(),
        node_id=f"node-{number}",
        lease_clock=DictatedLeaseClock(clock) if clock is not None else None,
    )
    await store.open()
    try:
        yield StoreWorld(store, clock or ManualClock())
    finally:
        await store.close()


@pytest.fixture
async def worlds(postgres_dsn: str) -> AsyncIterator[list[StoreWorld]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(postgres_dsn, number)) for number in range(STORES)]


@pytest.fixture
def query(postgres_server: PostgresAccess, postgres_dsn: str) -> Query:
    return lambda statement, *arguments: postgres_server.query(statement, *arguments, dsn=postgres_dsn)


async def race(*entries: tuple[StoreWorld, Sequence[Operation]]) -> list[Sequence[Outcome]]:
    """Each a transaction of its store, all at once. → their outcomes."""
    answers: dict[int, Sequence[Outcome]] = {}

    async def run(number: int, world: StoreWorld, operations: Sequence[Operation]) -> None:
        answers[number] = await world.store.transact(operations)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number, (world, operations) in enumerate(entries):
                nursery.start_soon(run, number, world, operations)
    return [answers[number] for number in range(len(entries))]


def ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:02}" for number in range(count)]


def start(world: StoreWorld, instance_id: str, *task_ids: str) -> Changeset:
    return world.changeset(instance_id, RowChanges(new_tasks=tuple(map(new_task, task_ids))))


def step(world: StoreWorld, instance_id: str, version: int) -> Changeset:
    return world.changeset(instance_id, expected_version=version, new_instance=None)


def lease_of(world: StoreWorld, task_ids: Sequence[str], by: str, duration_ms: int = 30_000) -> LeaseTasks:
    return LeaseTasks(tuple(TaskLease(task_id, holder(by, boot_id=by), duration_ms) for task_id in task_ids))


async def leased_tasks(world: StoreWorld, prefix: str, count: int) -> list[ExternalTask]:
    """Each of an instance of its own, at version 1."""
    instances = ids(prefix, count)
    await world.transact(*(start(world, instance_id, f"task of {instance_id}") for instance_id in instances))
    wishes = lease_of(world, [f"task of {instance_id}" for instance_id in instances], "worker")
    return list(await world.do(wishes, tuple))


def completion(world: StoreWorld, task: ExternalTask, digest: str) -> Changeset:
    return world.completion(task, digest, expected_version=1, new_instance=None)


# --- leases ----------------------------------------------------------------------------------------------------------


async def test_rule_1_a_task_that_all_nodes_want_is_leased_once(worlds: list[StoreWorld], query: Query) -> None:
    workers = ids("worker", STORES)
    won: dict[str, ExternalTask] = {}
    for number in range(ROUNDS):
        tasks = ids(f"round {number}", TASKS)
        await worlds[0].step(f"instance {number}", RowChanges(new_tasks=tuple(map(new_task, tasks))))
        entries = [(world, [lease_of(world, tasks, name)]) for world, name in zip(worlds, workers, strict=True)]
        for name, [wishes] in zip(workers, await race(*entries), strict=True):
            assert isinstance(wishes, tuple)
            for task_id, task in zip(tasks, wishes, strict=True):
                if task is not None:
                    assert task_id not in won, f"{task_id} has two holders"
                    assert (task.task_id, task.lease.holder.worker_id, task.attempt) == (task_id, name, 1)
                    won[task_id] = task
    assert len(won) == ROUNDS * TASKS
    rows = query("SELECT task_id, state, fence, lock_owner, attempt FROM stellwerk.external_tasks")
    answered = {
        task.task_id: ("LOCKED", task.fence, task.lease.holder.worker_id, 1) for task in won.values() if task.lease
    }
    assert {row["task_id"]: (row["state"], row["fence"], row["lock_owner"], row["attempt"]) for row in rows} == answered


async def test_fault_59_a_task_that_somebody_else_works_on_holds_up_no_lease_of_the_others(
    worlds: list[StoreWorld], open_link: Any, open_session: Any, postgres_dsn: str
) -> None:
    world = worlds[0]
    await world.step("i", RowChanges(new_tasks=(new_task("free"), new_task("busy"))))
    session = await open_session(await open_link(postgres_dsn))
    await session.hold("SELECT FROM stellwerk.external_tasks WHERE task_id = 'busy' FOR UPDATE")
    with trio.fail_after(1.5):  # less than any limit on how long a lock is waited for
        [leased] = await world.transact(lease_of(world, ["busy", "free"], "worker"))
        await world.step("j", RowChanges(new_tasks=(new_task("new"),)))
        fetched = await world.fetch(by=holder("fetching"))
    await session.release()
    assert isinstance(leased, tuple)
    assert [task and task.task_id for task in leased] == [None, "free"]
    assert [task.task_id for task in fetched] == ["new"]


async def test_rule_1_a_task_that_is_not_ready_is_not_leased(worlds: list[StoreWorld], query: Query) -> None:
    world = worlds[0]
    [task] = await leased_tasks(world, "i", 1)
    for state in ("LOCKED", "COMPLETED"):
        query("UPDATE stellwerk.external_tasks SET state = $1", state)
        [wishes] = await world.transact(lease_of(world, [task.task_id], "late"))
        assert wishes == (None,)
    [row] = query("SELECT state, lock_owner, fence FROM stellwerk.external_tasks")
    assert (row["state"], row["lock_owner"], row["fence"]) == ("COMPLETED", "worker", task.fence)


# --- steps -----------------------------------------------------------------------------------------------------------


async def test_rule_1_an_instance_that_all_nodes_step_makes_one_step(worlds: list[StoreWorld], query: Query) -> None:
    instances = ids("shared", INSTANCES)
    await worlds[0].transact(*(start(worlds[0], instance_id) for instance_id in instances))
    for version in range(1, ROUNDS + 1):
        entries = []
        for number, world in enumerate(worlds):
            steps = [step(world, instance_id, version) for instance_id in instances]
            entries.append((world, [*steps, start(world, f"own {number} {version}")]))
        outcomes = await race(*entries)
        for place, instance_id in enumerate(instances):
            answers = [answered[place] for answered in outcomes]
            assert sum(isinstance(answer, Committed) for answer in answers) == 1, answers
            refused = [answer for answer in answers if isinstance(answer, RefusedChangeset)]
            assert refused == [RefusedChangeset(RefusedGuard.VERSION, instance_id)] * (STORES - 1)
        assert all(isinstance(answered[-1], Committed) for answered in outcomes)
    stepped = query(
        """SELECT i.version, count(h.version) AS steps, max(h.version) AS newest
        FROM stellwerk.instances i JOIN stellwerk.history h USING (instance_id)
        WHERE instance_id LIKE 'shared%' GROUP BY instance_id"""
    )
    assert [(row["version"], row["steps"], row["newest"]) for row in stepped] == [(ROUNDS + 1,) * 3] * INSTANCES
    # Whoever lost heard it from the guard. No batch was given up as a whole, and done again the slow way.
    [batches] = query("SELECT count(*) AS direct FROM stellwerk.batches WHERE judged_at_ms IS NOT NULL")
    assert batches["direct"] == 1 + ROUNDS * STORES


async def test_rule_1_a_step_that_waited_for_another_is_judged_by_what_that_one_left(
    worlds: list[StoreWorld], query: Query, open_link: Any, open_session: Any, postgres_dsn: str
) -> None:
    world = worlds[0]
    await world.step("i")
    session = await open_session(await open_link(postgres_dsn))
    await session.hold(
        "UPDATE stellwerk.instances SET version = 2; INSERT INTO stellwerk.history VALUES ('i', 2, 0, '[]')"
    )
    outcomes: list[Outcome] = []

    async def late() -> None:
        outcomes.extend(await world.transact(step(world, "i", 1), start(world, "neighbour")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(late)
        await session.all_wait(1)
        await session.release()
    assert outcomes[0] == RefusedChangeset(RefusedGuard.VERSION, "i")
    assert isinstance(outcomes[1], Committed)
    [row] = query(
        "SELECT version, (SELECT count(*) FROM stellwerk.history) FROM stellwerk.instances WHERE instance_id = 'i'"
    )
    assert tuple(row.values()) == (2, 3)
    [batches] = query("SELECT count(*) AS direct FROM stellwerk.batches WHERE judged_at_ms IS NOT NULL")
    assert batches["direct"] == 2, "its neighbour was refused with it, and done again"


# --- completions -----------------------------------------------------------------------------------------------------


async def test_rule_1_a_task_that_two_nodes_complete_is_completed_once(worlds: list[StoreWorld], query: Query) -> None:
    one, other = worlds[:2]
    digests: dict[str, str] = {}
    for number in range(ROUNDS):
        tasks = await leased_tasks(one, f"round {number}", INSTANCES)
        by_one = [completion(one, task, "by one") for task in tasks]
        by_other = [completion(other, task, "by other") for task in tasks]
        for task, *answers in zip(tasks, *(await race((one, by_one), (other, by_other))), strict=True):
            (winner,) = (place for place, answer in enumerate(answers) if isinstance(answer, Committed))
            assert answers[1 - winner] == RefusedChangeset(RefusedGuard.VERSION, task.instance_id)
            digests[task.task_id] = ("by one", "by other")[winner]
    rows = query("SELECT task_id, state, outcome_digest FROM stellwerk.external_tasks")
    assert {row["task_id"]: (row["state"], row["outcome_digest"]) for row in rows} == {
        task_id: ("COMPLETED", digest) for task_id, digest in digests.items()
    }
    [counted] = query(
        "SELECT (SELECT sum(version) FROM stellwerk.instances) AS versions, count(*) AS steps FROM stellwerk.history"
    )
    assert (counted["versions"], counted["steps"]) == (2 * len(digests), 2 * len(digests))


CHUNK = 4


@attrs.frozen
class Ends:
    """What became of leases, by who was told that it was he: one for each."""

    by: dict[str, str] = attrs.field(factory=dict)
    renewals: dict[str, LeaseAnswer] = attrs.field(factory=dict)

    def claim(self, task_id: str, by: str) -> None:
        assert task_id not in self.by, f"{task_id} was {self.by[task_id]}, and {by}"
        self.by[task_id] = by

    async def complete(self, world: StoreWorld, tasks: Sequence[ExternalTask]) -> None:
        for some in chunks(tasks):
            outcomes = await world.transact(*(completion(world, task, "result") for task in some))
            for task, outcome in zip(some, outcomes, strict=True):
                if isinstance(outcome, Committed):
                    self.claim(task.task_id, "completed")
                else:
                    assert isinstance(outcome, RefusedChangeset)
                    assert (outcome.guard, outcome.subject) == (RefusedGuard.LEASE, task.task_id)
                    assert outcome.answer is not None
                    assert outcome.answer.kind is LeaseAnswerKind.LEASE_LOST

    async def expire(self, world: StoreWorld, tasks: Sequence[ExternalTask]) -> None:
        for _ in chunks(tasks):
            expired = await world.expire(CHUNK)
            for task in expired.returned:
                self.claim(task.task_id, "expired")

    async def release(self, world: StoreWorld, tasks: Sequence[ExternalTask]) -> None:
        for some in chunks(tasks):
            releases = ReleaseLeases(tuple(ReleaseLease(task.task_id, task.fence, None, True) for task in some))
            for task, answer in zip(some, await world.do(releases, tuple), strict=True):
                if answer.kind is LeaseAnswerKind.DONE:
                    self.claim(task.task_id, "released")

    async def renew(self, world: StoreWorld, tasks: Sequence[ExternalTask]) -> None:
        for some in chunks(tasks):
            wishes = RenewLeases(tuple(RenewLease(task.task_id, task.fence, "worker-1") for task in some))
            answers = await world.do(wishes, tuple)
            self.renewals.update({task.task_id: answer for task, answer in zip(some, answers, strict=True)})


def chunks(tasks: Sequence[ExternalTask]) -> list[Sequence[ExternalTask]]:
    return [tasks[first : first + CHUNK] for first in range(0, len(tasks), CHUNK)]


async def test_rule_1_a_completion_and_the_end_of_its_lease_never_both_happen(postgres_dsn: str, query: Query) -> None:
    """Each node judges by a clock of its own, so that both would be right: the row alone decides between them."""
    chance = random.Random(4)
    in_time, past_due = ManualClock(START_MS), ManualClock(START_MS + 40_000)
    winners: Counter[str] = Counter()
    async with (
        opened(postgres_dsn, 1, in_time) as completing,
        opened(postgres_dsn, 2, in_time) as renewing,
        opened(postgres_dsn, 3, past_due) as expiring,
        opened(postgres_dsn, 4, in_time) as releasing,
    ):
        for number in range(ROUNDS // 2):
            tasks = await leased_tasks(completing, f"round {number}", INSTANCES)
            ends = Ends()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ends.complete, completing, chance.sample(tasks, INSTANCES))
                nursery.start_soon(ends.renew, renewing, chance.sample(tasks, INSTANCES))
                nursery.start_soon(ends.expire, expiring, tasks)
                nursery.start_soon(ends.release, releasing, tasks[::-1])
            assert ends.by.keys() == {task.task_id for task in tasks}, "of some leases nobody heard how they ended"
            check_rows(query, tasks, ends)
            winners.update(ends.by.values())
    assert min(winners[by] for by in ("completed", "expired", "released")) > INSTANCES, "they hardly met"


_ROWS = """
SELECT t.task_id, t.state, t.outcome, t.fence, t.lock_expire_at, i.version
FROM stellwerk.external_tasks t JOIN stellwerk.instances i ON i.instance_id = t.process_instance
WHERE t.task_id = ANY($1::text[])"""


def check_rows(query: Query, tasks: Sequence[ExternalTask], ends: Ends) -> None:
    rows = {row["task_id"]: row for row in query(_ROWS, [task.task_id for task in tasks])}
    for task in tasks:
        row = rows[task.task_id]
        is_completed = ends.by[task.task_id] == "completed"
        expected = ("COMPLETED", "complete", task.fence, 2) if is_completed else ("READY", None, task.fence, 1)
        assert (row["state"], row["outcome"], row["fence"], row["version"]) == expected
        renewal = ends.renewals[task.task_id]
        if renewal.kind is LeaseAnswerKind.DONE:
            assert renewal.task is not None
            assert renewal.task.lease is not None
            if is_completed:
                assert row["lock_expire_at"] == renewal.task.lease.until_ms
        else:
            assert renewal.kind is LeaseAnswerKind.LEASE_LOST or is_completed


async def test_rule_1_a_completion_that_waited_for_an_expiry_is_refused(
    worlds: list[StoreWorld], query: Query, open_link: Any, open_session: Any, postgres_dsn: str
) -> None:
    world = worlds[0]
    [task] = await leased_tasks(world, "i", 1)
    session = await open_session(await open_link(postgres_dsn))
    await session.hold("UPDATE stellwerk.external_tasks SET state = 'READY'")
    outcomes: list[Outcome] = []

    async def late() -> None:
        outcomes.extend(await world.transact(completion(world, task, "result")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(late)
        await session.all_wait(1)
        await session.release()
    [outcome] = outcomes
    assert isinstance(outcome, RefusedChangeset)
    assert (outcome.guard, outcome.subject) == (RefusedGuard.LEASE, task.task_id)
    [row] = query("SELECT state, outcome, (SELECT version FROM stellwerk.instances) FROM stellwerk.external_tasks")
    assert tuple(row.values()) == ("READY", None, 1)
