"""The hot tables stay small and their updates HOT, with the settings that the schema brings along."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import asyncpg
import attrs
import pytest

from stellwerk.stores.postgres.bridge import Bridge
from stellwerk.stores.postgres.housekeeping import figures

TASKS_OF_INSTANCE = 20
BATCH = 100

START_INSTANCES = """
INSERT INTO stellwerk.instances (instance_id, definition_id, process_key, status, version, started_at_ms)
SELECT instance_id, 'order:1', 'order', 'active', 1, stellwerk.now_ms() FROM unnest($1::text[]) AS instance_id"""
CREATE_TASKS = """
INSERT INTO stellwerk.external_tasks
    (task_id, process_instance, token_id, activity_id, element_id, definition_id, task_type, priority, created_at,
     retries_total, retry_backoffs_ms, lock_expiries_max, single_try, variables, headers, updated_at, available_at,
     state, retries, attempt, lock_expiries, draining, fence)
SELECT task_id, instance_id, 'token-1', 'activity-1', 'charge', 'order:1', 'charge-card', 0, stellwerk.now_ms(),
     3, '[]', 5, false, '{"order":"0123456789","amount":12.5}', '{}', stellwerk.now_ms(), stellwerk.now_ms(),
     'READY', 3, 0, 0, false, 0
FROM unnest($1::text[], $2::text[]) AS born (task_id, instance_id)"""
LOCK_TASKS = """
UPDATE stellwerk.external_tasks AS task
SET state = 'LOCKED', fence = stellwerk.now_ms(), attempt = attempt + 1, updated_at = stellwerk.now_ms(),
    lock_owner = 'worker-1', lock_boot_id = 'boot-1', lock_session_no = 1, lock_session_id = 'session-1',
    lock_fence = stellwerk.now_ms(), lock_since = stellwerk.now_ms(), lock_expire_at = stellwerk.now_ms() + 30000
FROM unnest($1::text[]) AS wanted (task_id) WHERE task.task_id = wanted.task_id AND state = 'READY'"""
COMPLETE_TASKS = """
UPDATE stellwerk.external_tasks AS task
SET state = 'COMPLETED', outcome = 'complete', outcome_digest = 'd', updated_at = stellwerk.now_ms()
FROM unnest($1::text[]) AS done (task_id) WHERE task.task_id = done.task_id AND state = 'LOCKED'"""
STEP_INSTANCES = """
UPDATE stellwerk.instances AS instance
SET version = version + 1, status = stepped.status, ended_at_ms = stepped.ended_at
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS stepped (instance_id, status, ended_at)
WHERE instance.instance_id = stepped.instance_id"""


@attrs.define
class Engine:
    """Does to the tables what the store does, in batches of instances that happen to step at the same time."""

    bridge: Bridge
    connection: Any
    chance: random.Random

    async def run_instances(self, run: str, count: int) -> None:
        ids = [f"{run}-{number:06}" for number in range(count)]
        for batch in batches(ids):
            await self.connection.execute(START_INSTANCES, batch)
            await self.create_tasks([(instance_id, 0) for instance_id in batch])
        done = dict.fromkeys(ids, 0)
        while done:
            batch = self.chance.sample(sorted(done), min(BATCH, len(done)))
            await self.step([(instance_id, done[instance_id]) for instance_id in batch])
            for instance_id in batch:
                done[instance_id] += 1
                if done[instance_id] == TASKS_OF_INSTANCE:
                    del done[instance_id]

    async def step(self, steps: Sequence[tuple[str, int]]) -> None:
        """One life-cycle of a task for each instance."""
        tasks = [f"{instance_id}-{number}" for instance_id, number in steps]
        await self.connection.execute(LOCK_TASKS, tasks)
        last = [number + 1 == TASKS_OF_INSTANCE for _, number in steps]
        async with self.connection.transaction():
            await self.connection.execute(COMPLETE_TASKS, tasks)
            await self.connection.execute(
                STEP_INSTANCES,
                [instance_id for instance_id, _ in steps],
                ["completed" if is_last else "active" for is_last in last],
                [1_767_225_600_000 if is_last else None for is_last in last],
            )
            following = [(instance_id, number + 1) for instance_id, number in steps if number + 1 < TASKS_OF_INSTANCE]
            await self.create_tasks(following)

    async def create_tasks(self, tasks: Sequence[tuple[str, int]]) -> None:
        task_ids = [f"{instance_id}-{number}" for instance_id, number in tasks]
        await self.connection.execute(CREATE_TASKS, task_ids, [instance_id for instance_id, _ in tasks])

    async def prune(self) -> None:
        await self.connection.execute("DELETE FROM stellwerk.external_tasks")
        await self.connection.execute("DELETE FROM stellwerk.instances")
        await self.vacuum()

    async def vacuum(self) -> None:
        await self.connection.execute("VACUUM stellwerk.instances, stellwerk.external_tasks")

    async def tables(self) -> Mapping[str, Any]:
        await self.connection.execute("SELECT pg_stat_force_next_flush()")
        tables: Any = (await figures(self.connection))["tables"]
        return dict(tables)


def batches(ids: Sequence[str]) -> Sequence[Sequence[str]]:
    return [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]


@pytest.fixture
async def engine(postgres_dsn: str) -> AsyncIterator[Engine]:
    bridge = await Bridge.open()
    connection = await bridge.run(lambda: asyncpg.connect(postgres_dsn))
    yield Engine(bridge, connection, random.Random(4))
    await bridge.run(connection.close)
    await bridge.close()


async def test_steps_of_instances_are_hot_updates_and_leave_no_bloat(engine: Engine) -> None:
    """20,000 life-cycles. That an instance ends is known to an index, so one step of its 20 cannot be HOT."""

    async def body() -> None:
        await engine.run_instances("run", 1_000)
        await engine.vacuum()
        tables = await engine.tables()
        instances = tables["instances"]
        assert instances["updates"] == 20_000
        assert instances["updates_hot"] / instances["updates"] >= 0.9
        # Each row was written 21 times.
        assert instances["table_bytes"] < 1_000 * 500
        assert tables["external_tasks"]["table_bytes"] < 20_000 * 1_000

    await engine.bridge.run(body)


async def test_what_was_pruned_makes_room_for_what_comes(engine: Engine) -> None:
    """Years in short: the tables are as large as what is kept, not as what has passed."""

    async def sizes_after(run: str) -> dict[str, int]:
        await engine.run_instances(run, 150)
        tables = await engine.tables()
        await engine.prune()
        return {
            f"{name} {kind}": tables[name][kind]
            for name in ("instances", "external_tasks")
            for kind in ("table_bytes", "index_bytes")
        }

    async def body() -> None:
        await sizes_after("a")
        second = await sizes_after("b")  # a page of an index that was emptied is free one vacuum later
        for run in ("c", "d"):
            sizes = await sizes_after(run)
            assert {name: size for name, size in sizes.items() if size > 1.5 * second[name]} == {}, (second, sizes)

    await engine.bridge.run(body)
