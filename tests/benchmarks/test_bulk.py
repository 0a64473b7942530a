"""What the benchmarks fill a database with are instances like any other."""

from __future__ import annotations

import pytest
import trio
from tests.benchmarks.bulk import copy_instance
from tests.benchmarks.models import BACKLOG_TOPIC, models

from stellwerk import open_engine
from stellwerk.app import Engine
from stellwerk.testing.databases import PostgresAccess

COPIES = 30


async def start_and_copy(engine: Engine, access: PostgresAccess, dsn: str, process: str) -> str:
    [model] = [(name, content) for name, content in models().items() if name == f"{process}.bpmn"]
    await engine.deploy(model)
    instance_id = await engine.start(process, {"order": 7})
    told: list[str] = []
    await trio.to_thread.run_sync(copy_instance, access, dsn, process, COPIES, told.append)
    assert told == [f"{process}: {COPIES} of {COPIES} copies"]
    return instance_id


async def test_each_copied_task_is_handed_out_and_ends_its_own_instance(
    postgres_server: PostgresAccess, postgres_dsn: str
) -> None:
    handled: list[object] = []
    async with open_engine(postgres_dsn) as engine:
        original = await start_and_copy(engine, postgres_server, postgres_dsn, "backlog")
        tasks = await engine.tasks(topic=BACKLOG_TOPIC, state="READY")
        assert len({task.task_id for task in tasks}) == len({task.instance_id for task in tasks}) == COPIES + 1
        started_ms = {each.instance_id: each.started_at_ms for each in await engine.instances(process="backlog")}
        first_ms = started_ms[original]
        assert sorted(started_ms.values()) == [first_ms - copy for copy in range(COPIES, -1, -1)]
        worker = engine.worker()

        @worker.task(BACKLOG_TOPIC)
        async def handle(payload: object) -> None:
            handled.append(payload)

        await engine.start_worker(worker)
        for task in tasks:
            ended = await engine.wait_for_end(task.instance_id, timeout_seconds=20)
            assert ended.status == "COMPLETED"
    assert handled == [{"order": 7}] * (COPIES + 1)


async def test_each_copy_of_a_waiting_instance_waits_by_itself(
    postgres_server: PostgresAccess, postgres_dsn: str
) -> None:
    async with open_engine(postgres_dsn) as engine:
        await start_and_copy(engine, postgres_server, postgres_dsn, "waiting")
        timers = postgres_server.query("SELECT due_at_ms FROM stellwerk.timers", dsn=postgres_dsn)
        assert len({row["due_at_ms"] for row in timers}) == COPIES + 1
        instances = await engine.instances(limit=COPIES + 1)
        for _ in instances:
            await engine.publish("never")
        for instance in instances:
            ended = await engine.wait_for_end(instance.instance_id, timeout_seconds=20)
            assert ended.status == "COMPLETED"
            assert await engine.variables(instance.instance_id) == {"order": 7}
    left = postgres_server.query("SELECT 1 FROM stellwerk.timers", dsn=postgres_dsn)
    assert not left


async def test_a_process_without_an_instance_cannot_be_copied(
    postgres_server: PostgresAccess, postgres_dsn: str
) -> None:
    with pytest.raises(ValueError, match="backlog has 0 instances"):
        await trio.to_thread.run_sync(copy_instance, postgres_server, postgres_dsn, "backlog", 1, print)
