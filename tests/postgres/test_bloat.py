"""The hot tables stay small and the store's updates HOT, with the settings that the schema brings along."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import asyncpg
import attrs
import pytest
import structlog
import trio

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask, OutcomeKind
from stellwerk.core.facts import TaskCompleted, TokenEntered
from stellwerk.ports import (
    Changeset,
    Committed,
    LeaseTasks,
    NewInstance,
    Pruned,
    PruneInstances,
    TaskEnding,
    TaskLease,
)
from stellwerk.stores.postgres.bridge import Bridge
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.system.entropy import SystemEntropy
from stellwerk.testing.store_contract.world import START_MS, ManualClock, holder, new_task

TASKS_OF_INSTANCE = 20
BATCH = 100
LEASE_MS = 60_000
_TABLES = """
SELECT c.relname AS name, pg_table_size(c.oid) AS table_bytes, pg_indexes_size(c.oid) AS index_bytes,
       coalesce(s.n_live_tup, 0) AS rows_live, coalesce(s.n_dead_tup, 0) AS rows_dead,
       coalesce(s.n_tup_upd, 0) AS updates, coalesce(s.n_tup_hot_upd, 0) AS updates_hot
FROM pg_catalog.pg_class AS c LEFT JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid
WHERE c.relnamespace = to_regnamespace('stellwerk') AND c.relkind = 'r'"""


@attrs.define
class Instance:
    """One under way, with its present task."""

    instance_id: str
    done: int = 0

    @property
    def task_id(self) -> str:
        return f"{self.instance_id}-{self.done}"

    def _changeset(self, changes: RowChanges, **fields: Any) -> Changeset:
        version = self.done + 1 if "endings" in fields else 0
        return Changeset(
            instance_id=self.instance_id, expected_version=version, at_ms=START_MS, changes=changes, **fields
        )

    def _new_task(self) -> RowChanges:
        return RowChanges(new_tasks=(new_task(self.task_id, variables=b'{"order":"0123456789","amount":12.5}'),))

    def start(self) -> Changeset:
        facts = (TokenEntered("token", "charge", "scope"),)
        return self._changeset(self._new_task(), new_instance=NewInstance("order:1", "order", None), facts=facts)

    def complete(self, task: ExternalTask) -> Changeset:
        """The present task; the next one is created, or the instance ends with it."""
        ending = TaskEnding(task.task_id, task.fence, "COMPLETED", OutcomeKind.COMPLETE, "digest")
        facts = (TaskCompleted(task.task_id, "worker"), TokenEntered("token", "charge", "scope"))
        is_last = self.done + 1 == TASKS_OF_INSTANCE
        following = attrs.evolve(self, done=self.done + 1)
        changes = RowChanges(status="COMPLETED") if is_last else following._new_task()
        return self._changeset(changes, endings=(ending,), facts=facts)


@attrs.define
class Engine:
    """Gives the store what an engine gives it, in batches of instances that happen to step at the same time."""

    store: PostgresStore
    bridge: Bridge
    connection: Any
    chance: random.Random

    async def run_instances(self, run: str, count: int) -> None:
        waiting = [Instance(f"{run}-{number:06}") for number in range(count)]
        for batch in batches(waiting):
            await self._commit([instance.start() for instance in batch])
        while waiting:
            batch = self.chance.sample(waiting, min(BATCH, len(waiting)))
            await self.step(batch)
            waiting = [instance for instance in waiting if instance.done < TASKS_OF_INSTANCE]

    async def step(self, instances: Sequence[Instance]) -> None:
        """One life-cycle of a task for each."""
        wishes = tuple(TaskLease(instance.task_id, holder(), LEASE_MS) for instance in instances)
        [tasks] = await self.store.transact([LeaseTasks(wishes)])
        assert isinstance(tasks, tuple)
        await self._commit([instance.complete(task) for instance, task in zip(instances, tasks, strict=True)])
        for instance in instances:
            instance.done += 1

    async def _commit(self, changesets: Sequence[Changeset]) -> None:
        outcomes = await self.store.transact(changesets)
        assert all(isinstance(outcome, Committed) for outcome in outcomes)

    async def prune(self) -> int:
        pruned = 0
        while True:
            [outcome] = await self.store.transact([PruneInstances(START_MS + 1, 100)])
            assert isinstance(outcome, Pruned)
            pruned += outcome.instances
            if not outcome.instances:
                break
        await self.vacuum()
        return pruned

    async def vacuum(self) -> None:
        await self.bridge.run(
            lambda: self.connection.execute("VACUUM stellwerk.instances, stellwerk.external_tasks, stellwerk.history")
        )

    async def tables(self) -> Mapping[str, Any]:
        rows = await self.bridge.run(lambda: self.connection.fetch(_TABLES))
        return {row["name"]: dict(row) for row in rows}

    async def counted(self, updates: int) -> Mapping[str, Any]:
        """The tables, once the server has counted so many updates of instances: it does when the store is closed."""
        await self.store.close()
        with trio.fail_after(5):
            while (tables := await self.tables())["instances"]["updates"] < updates:
                await trio.sleep(0.01)
        return tables


def batches(instances: Sequence[Instance]) -> Sequence[Sequence[Instance]]:
    return [instances[start : start + BATCH] for start in range(0, len(instances), BATCH)]


@pytest.fixture
async def engine(postgres_dsn: str) -> AsyncIterator[Engine]:
    clock = ManualClock()
    log = structlog.get_logger()
    store = PostgresStore(
        PostgresConfig(dsn=postgres_dsn), clock=clock, entropy=SystemEntropy(), log=log, node_id="node"
    )
    await store.open()
    bridge = await Bridge.open()
    connection = await bridge.run(lambda: asyncpg.connect(postgres_dsn))
    yield Engine(store, bridge, connection, random.Random(4))
    await bridge.run(connection.close)
    await bridge.close()
    await store.close()


async def test_steps_of_instances_are_hot_updates_and_leave_no_bloat(engine: Engine) -> None:
    """That an instance ends is known to an index, so one step of its 20 cannot be HOT."""
    count = 400
    await engine.run_instances("run", count)
    await engine.vacuum()
    tables = await engine.counted(count * TASKS_OF_INSTANCE)
    instances, tasks = tables["instances"], tables["external_tasks"]
    assert instances["updates"] == count * TASKS_OF_INSTANCE
    assert instances["updates_hot"] / instances["updates"] >= 0.9
    # Each row of instances was written 21 times, each of tasks 3 times.
    assert tasks["updates"] == 2 * count * TASKS_OF_INSTANCE
    assert instances["table_bytes"] < count * 500
    assert tasks["table_bytes"] < count * TASKS_OF_INSTANCE * 1_000


async def test_what_was_pruned_makes_room_for_what_comes(engine: Engine) -> None:
    """Years in short: the tables are as large as what is kept, not as what has passed."""

    async def sizes_after(run: str) -> dict[str, int]:
        await engine.run_instances(run, 100)
        tables = await engine.tables()
        assert await engine.prune() == 100
        return {
            f"{name} {kind}": tables[name][kind]
            for name in ("instances", "external_tasks", "history")
            for kind in ("table_bytes", "index_bytes")
        }

    await sizes_after("a")
    second = await sizes_after("b")  # a page of an index that was emptied is free one vacuum later
    for run in ("c", "d"):
        sizes = await sizes_after(run)
        assert {name: size for name, size in sizes.items() if size > 1.5 * second[name]} == {}, (second, sizes)
