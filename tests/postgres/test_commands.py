"""The other commands with ``--db postgresql://…``, and an engine inside a program, on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from stellwerk import open_engine
from stellwerk.cli.main import run
from stellwerk.errors import Conflict, InvalidInput, StoreUnavailable

MODEL = """<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="order" isExecutable="true">
    <startEvent id="s"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="charge"/>
    <serviceTask id="charge" stellwerk:topic="charge"/>
    <sequenceFlow id="f2" sourceRef="charge" targetRef="e"/>
    <endEvent id="e"/>
  </process>
</definitions>
"""


@attrs.frozen
class Ended:
    exit_code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture
def stellwerk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], postgres_dsn: str
) -> Command:
    """Run a command with ``--db`` in this process, or on another database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "order.bpmn").write_text(MODEL)

    def run_here(*arguments: str, db: str = postgres_dsn) -> Ended:
        capsys.readouterr()
        exit_code = run([*arguments, "--db", db])
        captured = capsys.readouterr()
        return Ended(exit_code, captured.out, captured.err)

    return run_here


def test_commands_work_on_the_database_without_an_engine(stellwerk: Command) -> None:
    assert stellwerk("deploy", "order.bpmn").out == "deployed order version 1\n"
    instance_id = stellwerk("start", "order").out.strip()
    (row,) = json.loads(stellwerk("instances", "--json").out)
    assert (row["instance_id"], row["status"]) == (instance_id, "RUNNING")
    (task,) = json.loads(stellwerk("tasks", "--json").out)
    assert (task["state"], task["topic"]) == ("READY", "charge")
    assert stellwerk("nodes").out.startswith("Nodes: none"), "a command is no node"
    assert stellwerk("cancel", instance_id, "--reason", "not wanted").exit_code == 0
    assert stellwerk("prune", "--older-than", "0s").exit_code == 0


def test_backup_names_the_way_out(stellwerk: Command) -> None:
    ended = stellwerk("backup", "copy.db")
    assert (ended.exit_code, len(ended.err.splitlines())) == (2, 1), ended
    assert "PostgreSQL" in ended.err
    assert "pg_dump" in ended.err


def test_database_of_somebody_else_is_left_as_it_is(stellwerk: Command, postgres_server: Any) -> None:
    dsn = postgres_server.create_database(is_migrated=False)
    try:
        ended = stellwerk("instances", db=dsn)
        assert (ended.exit_code, len(ended.err.splitlines())) == (2, 1), ended
        assert "is not a database of stellwerk" in ended.err
        schemas = postgres_server.query("SELECT 1 FROM pg_namespace WHERE nspname = 'stellwerk'", dsn=dsn)
        assert not schemas
    finally:
        postgres_server.drop_database(dsn)


def test_database_that_is_not_there_is_one_clear_line(stellwerk: Command, postgres_server: Any) -> None:
    ended = stellwerk("instances", db=postgres_server.dsn("missing").replace("postgres@", "postgres:sesame@"))
    assert (ended.exit_code, len(ended.err.splitlines())) == (2, 1), ended
    assert "PostgreSQL database missing on " in ended.err
    assert "does not exist" in ended.err
    assert "sesame" not in ended.err


async def test_start_waits_only_where_nodes_are_at_work(stellwerk: Command, postgres_dsn: str) -> None:
    async def in_thread(*arguments: str) -> Ended:
        return await trio.to_thread.run_sync(lambda: stellwerk(*arguments))

    await in_thread("deploy", "order.bpmn")
    with trio.fail_after(20):
        ended = await in_thread("start", "order", "--wait")
    assert (ended.exit_code, len(ended.err.splitlines())) == (1, 1), ended
    assert "no engine runs on the database" in ended.err
    async with open_engine(postgres_dsn) as engine:
        worker = engine.worker()

        @worker.task("charge")
        def charge(payload: dict[str, Any]) -> None:
            return

        await engine.start_worker(worker)
        await engine.node.nodes()  # which reports this one
        with trio.fail_after(20):
            ended = await in_thread("start", "order", "--wait")
    assert (ended.exit_code, ended.out.splitlines()[1]) == (0, "COMPLETED"), ended


async def test_nodes_are_a_table_in_a_small_terminal(
    stellwerk: Command, postgres_dsn: str, postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    async with open_engine(postgres_dsn) as one, open_engine(postgres_dsn) as two, open_engine(postgres_dsn) as three:
        for engine in (one, two, three):
            await engine.node.nodes()  # which reports it
        for engine, seconds in ((two, 20), (three, 100)):
            statement = "UPDATE stellwerk.nodes SET seen_at_ms = seen_at_ms - $1 WHERE node_id = $2"
            node_id = engine.node.config.identity.node_id
            postgres_server.query(statement, seconds * 1000, node_id, dsn=postgres_dsn)
        ended = await trio.to_thread.run_sync(lambda: stellwerk("nodes"))
        title, heading, _, *rows = ended.out.splitlines()
        assert title == "Nodes"
        assert heading.split() == ["node", "seen", "up", "workers", "leases", "instances", "commits/s", "state"]
        assert max(map(len, ended.out.splitlines())) <= 80
        assert sorted(row.split()[-1] for row in rows if row) == ["GONE", "SILENT", "up"]
        monkeypatch.setenv("COLUMNS", "160")
        wide = await trio.to_thread.run_sync(lambda: stellwerk("nodes"))
        assert "version" in wide.out.splitlines()[1]


async def test_two_embedded_engines_share_their_work(postgres_dsn: str) -> None:
    async with open_engine(postgres_dsn) as one, open_engine(postgres_dsn) as other:
        await one.deploy(("order.bpmn", MODEL.encode()))
        worker = other.worker()

        @worker.task("charge")
        def charge(payload: dict[str, Any]) -> dict[str, Any]:
            return {"charged": payload["amount"]}

        await other.start_worker(worker)
        instance_id = await one.start("order", {"amount": 5})
        with trio.fail_after(20):
            ended = await one.wait_for_end(instance_id)
        assert ended.status == "COMPLETED"
        assert (await one.variables(instance_id))["charged"] == 5


async def test_virtual_time_is_refused(mock_clock: MockClock, postgres_dsn: str) -> None:
    with pytest.raises(Conflict, match="virtual time"):
        async with open_engine(postgres_dsn):
            pass


async def test_database_that_is_missing_is_named(postgres_server: Any) -> None:
    with pytest.raises(StoreUnavailable, match="missing"):
        async with open_engine(postgres_server.dsn("missing")):
            pass
    with pytest.raises(InvalidInput, match="mysql"):
        async with open_engine("mysql://h/d"):
            pass
    with pytest.raises(InvalidInput, match="direct way"):
        async with open_engine(listen_db="postgresql://h/d"):
            pass


async def test_engine_works_through_a_pooler(pooled_dsn: str, postgres_dsn: str) -> None:
    async with open_engine(pooled_dsn, listen_db=postgres_dsn) as engine:
        await engine.deploy(("order.bpmn", MODEL.encode()))
        worker = engine.worker()

        @worker.task("charge")
        def charge(payload: dict[str, Any]) -> None:
            return

        await engine.start_worker(worker)
        ids = [await engine.start("order", {"number": number}) for number in range(10)]
        with trio.fail_after(20):
            ended = [await engine.wait_for_end(instance_id) for instance_id in ids]
        assert {summary.status for summary in ended} == {"COMPLETED"}


async def test_every_engine_and_every_command_sees_the_workers_of_all_nodes(
    stellwerk: Command, postgres_dsn: str
) -> None:
    async with open_engine(postgres_dsn) as one, open_engine(postgres_dsn) as two:
        workers = [engine.worker(worker_id=f"worker-{number}") for number, engine in enumerate((one, two), 1)]
        for engine, worker in zip((one, two), workers, strict=True):

            @worker.task("charge", max_tasks=3)
            def charge(payload: dict[str, Any]) -> None:
                return

            await engine.start_worker(worker)
        with trio.fail_after(20):
            for engine in (one, two):
                while [view.worker_id for view in await engine.workers()] != ["worker-1", "worker-2"]:
                    await trio.sleep(0.01)
                while [(view.workers, view.free) for view in await engine.topics()] != [(2, 6)]:
                    await trio.sleep(0.01)
        names = [row.report.name for row in await one.nodes()]
        assert sorted(view.node for view in await two.workers()) == sorted(names)
        table, rows = await trio.to_thread.run_sync(lambda: (stellwerk("workers"), stellwerk("workers", "--json")))
    assert "node" in table.out.splitlines()[1]
    assert {row["node"] for row in json.loads(rows.out)} == set(names)


async def test_command_on_the_database_knows_that_nodes_have_workers(stellwerk: Command, postgres_dsn: str) -> None:
    """READY tasks that wait for their turn are not marked as if nobody were there for them."""
    async with open_engine(postgres_dsn) as engine:
        await engine.deploy(("order.bpmn", MODEL.encode()))
        await engine.start("order")
        topics = await trio.to_thread.run_sync(lambda: stellwerk("topics"))
        assert "NO WORKER" in topics.out
        started = trio.Event()
        worker = engine.worker(max_tasks=1)

        @worker.task("charge")
        async def charge(payload: dict[str, Any]) -> None:
            started.set()
            await trio.sleep_forever()

        await engine.start_worker(worker)
        await started.wait()
        await engine.start("order")
        await engine.node.nodes()  # which reports this one as it is now
        topics = await trio.to_thread.run_sync(lambda: stellwerk("topics"))
        assert "charge" in topics.out
        assert "NO WORKER" not in topics.out
