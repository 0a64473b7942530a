"""Tasks are handed out once, however many ask at once on however many nodes; and the table in which they stand."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import structlog
import trio

from stellwerk.core.external_task import ExternalTask
from stellwerk.ports import ExpiredLocks, FetchAndLock
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.system.entropy import SystemEntropy
from stellwerk.testing.databases import PostgresAccess
from stellwerk.testing.store_contract.world import ManualClock, StoreWorld, holder, new_task

TASKS = 2_000
STORES = 8
CLIENTS = 16
BATCH = 10

_FIRST_NUMBERS = itertools.count(step=10_000)
"""Of ids, for each node others."""


@asynccontextmanager
async def opened(dsn: str, name: str, clock: ManualClock | None = None) -> AsyncIterator[StoreWorld]:
    """A node's store; leases are judged by the database's clock."""
    clock = clock or ManualClock()
    log = structlog.get_logger()
    store = PostgresStore(PostgresConfig(dsn=dsn), clock=clock, entropy=SystemEntropy(), log=log, node_id=name)
    await store.open()
    try:
        yield StoreWorld(store, clock, numbers=itertools.count(next(_FIRST_NUMBERS)))
    finally:
        await store.close()


@pytest.fixture
async def worlds(postgres_dsn: str) -> AsyncIterator[list[StoreWorld]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(postgres_dsn, f"node-{number}")) for number in range(STORES)]


async def fill(world: StoreWorld, topics: tuple[str, ...]) -> None:
    """So many READY tasks, of these topics in turn, some of them of higher priority."""
    for first in range(0, TASKS, 500):
        tasks = [
            new_task(f"{number:05}", topic=topics[number % len(topics)], priority=number % 7 // 6)
            for number in range(first, first + 500)
        ]
        await world.instance_with(*tasks)


class Client:
    """Fetches until nothing is left."""

    def __init__(self, world: StoreWorld, name: str, topics: tuple[str, ...]) -> None:
        self._world = world
        self._operation = FetchAndLock(holder(name, boot_id=name), topics, BATCH, 60_000)
        self.fetches: list[list[ExternalTask]] = []

    async def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            found = await self._world.do(self._operation, tuple)
            self.fetches.append(list(found))

    @property
    def tasks(self) -> list[ExternalTask]:
        return [task for fetched in self.fetches for task in fetched]


async def fetch_everything(worlds: list[StoreWorld], topics: tuple[str, ...]) -> list[Client]:
    clients = [Client(worlds[number % STORES], f"worker-{number}", topics) for number in range(CLIENTS)]

    def is_over() -> bool:
        return sum(len(client.tasks) for client in clients) >= TASKS

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.run, is_over)
    return clients


def place(task: ExternalTask) -> tuple[int, int, str]:
    return -task.priority, task.created_at_ms, task.task_id


async def test_L4_and_fault_63_no_task_is_handed_out_twice(
    worlds: list[StoreWorld], postgres_server: PostgresAccess, postgres_dsn: str
) -> None:
    await fill(worlds[0], ("payment",))
    clients = await fetch_everything(worlds, ("payment",))
    counts = Counter(task.task_id for client in clients for task in client.tasks)
    assert set(counts.values()) == {1}
    assert len(counts) == TASKS
    assert sum(len(client.tasks) > 0 for client in clients) > STORES, "hardly anybody fetched beside the others"
    for client in clients:
        # Whatever was older was somebody else's already.
        assert [place(task) for task in client.tasks] == sorted(place(task) for task in client.tasks)
    rows = postgres_server.query("SELECT task_id, lock_owner FROM stellwerk.external_tasks", dsn=postgres_dsn)
    holders = {task.task_id: task.lease.holder.worker_id for client in clients for task in client.tasks if task.lease}
    assert {row["task_id"]: row["lock_owner"] for row in rows} == holders


async def test_fault_62_no_fetch_takes_or_locks_more_than_it_asked_for(
    worlds: list[StoreWorld], postgres_server: PostgresAccess, postgres_dsn: str
) -> None:
    topics = ("payment", "shipping", "invoice")
    await fill(worlds[0], topics)
    clients = await fetch_everything(worlds, topics)
    counts = Counter(task.task_id for client in clients for task in client.tasks)
    assert set(counts.values()) == {1}
    assert len(counts) == TASKS
    fetches = [fetched for client in clients for fetched in client.fetches]
    assert max(map(len, fetches)) == BATCH
    assert all(list(map(place, fetched)) == sorted(map(place, fetched)) for fetched in fetches)
    [row] = postgres_server.query(
        "SELECT count(*) AS number FROM stellwerk.external_tasks WHERE state = 'LOCKED'", dsn=postgres_dsn
    )
    assert row["number"] == TASKS


async def test_fault_64_leases_are_stamped_and_judged_by_the_clock_of_the_database(postgres_dsn: str) -> None:
    hour_ms = 3_600_000
    async with opened(postgres_dsn, "exact") as exact:
        now_ms = await exact.store.lease_now()
        fast_clock, slow_clock = ManualClock(now_ms + hour_ms), ManualClock(now_ms - hour_ms)
        async with opened(postgres_dsn, "fast", fast_clock) as fast, opened(postgres_dsn, "slow", slow_clock) as slow:
            for nodes in ((fast, slow), (slow, fast)):
                await _lease_and_judge(*nodes)


async def _lease_and_judge(one: StoreWorld, other: StoreWorld) -> None:
    task = await one.leased_task(by=holder("alive"))
    assert task.lease is not None
    now_ms = await other.store.lease_now()
    assert now_ms - 5_000 < task.lease.since_ms <= now_ms
    assert task.lease.until_ms == task.lease.since_ms + 30_000
    assert (await other.expire()).returned == ()
    assert await other.fetch(by=holder("thief")) == []
    other.versions[task.instance_id] = 1
    await other.commit(other.completion(task))
    # Short enough to run out at once, on the database's clock alone.
    short = await one.lease(await one.ready_task(), duration_ms=1)
    while not (expired := await other.expire()).returned:
        assert isinstance(expired, ExpiredLocks)
    assert [returned.task_id for returned in expired.returned] == [short.task_id]
    assert [fetched.task_id for fetched in await other.fetch(by=holder("next"))] == [short.task_id]


# --- the table -----------------------------------------------------------------------------------------------------

_COLUMNS = """
SELECT column_name, data_type, collation_name, is_nullable = 'YES' AS is_nullable FROM information_schema.columns
WHERE table_schema = 'stellwerk' AND table_name = 'external_tasks'"""
_PRIMARY_KEY = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = 'stellwerk.external_tasks'::regclass AND i.indisprimary"""
_PARTIAL_INDEXES = """
SELECT pg_get_indexdef(indexrelid, 1, true) AS first, pg_get_expr(indpred, indrelid) AS condition
FROM pg_index WHERE indrelid = 'stellwerk.external_tasks'::regclass AND indpred IS NOT NULL"""


def test_L3_columns_with_their_types_and_partial_indexes(postgres_server: PostgresAccess, postgres_dsn: str) -> None:
    found = {row["column_name"]: row for row in postgres_server.query(_COLUMNS, dsn=postgres_dsn)}
    columns = {name: (found[name]["data_type"], found[name]["is_nullable"]) for name in found}
    # Ids are texts in byte order, variables are json as they came, and instants milliseconds: see "The tables" in docs.
    required = {
        "task_id": ("text", False),
        "token_id": ("text", False),
        "process_instance": ("text", False),
        "task_type": ("text", False),
        "state": ("text", False),
        "lock_owner": ("text", True),
        "lock_expire_at": ("bigint", True),
        "retries": ("bigint", False),
        "error_message": ("text", True),
        "variables": ("json", False),
        "created_at": ("bigint", False),
        "updated_at": ("bigint", False),
    }
    assert {name: columns.get(name) for name in required} == required
    ids = ("task_id", "token_id", "process_instance", "task_type", "lock_owner")
    assert {found[name]["collation_name"] for name in ids} == {"C"}
    assert [row["attname"] for row in postgres_server.query(_PRIMARY_KEY, dsn=postgres_dsn)] == ["task_id"]
    partial = {(row["first"], row["condition"]) for row in postgres_server.query(_PARTIAL_INDEXES, dsn=postgres_dsn)}
    assert [condition for first, condition in partial if first == "task_type" and "'READY'" in condition]
    assert ("lock_expire_at", "(state = 'LOCKED'::text)") in partial


async def test_L3_what_stands_in_the_table_can_be_read_as_what_it_is(
    postgres_server: PostgresAccess, postgres_dsn: str
) -> None:
    """Ids that the engine draws are UUIDs, instants are instants, and numbers stand there digit by digit."""
    variables = b'{"big":1000000000000000000000000000000,"order":{"id":7},"tiny":1e308}'
    task_id = SystemEntropy().uuid()
    async with opened(postgres_dsn, "node") as world:
        await world.instance_with(new_task(task_id, variables=variables))
        now_ms = await world.store.lease_now()
    [row] = postgres_server.query(
        """SELECT task_id::uuid AS id, variables::text, variables::jsonb #>> '{order,id}' AS "order",
            extract(epoch FROM to_timestamp(created_at / 1000.0)) * 1000 AS created_ms
        FROM stellwerk.external_tasks""",
        dsn=postgres_dsn,
    )
    assert (str(row["id"]), row["variables"], row["order"]) == (task_id, variables.decode(), "7")
    assert now_ms - 10_000 < row["created_ms"] <= now_ms
