"""An engine in one's own trio program (requirement E6)."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import stellwerk
from stellwerk.actors.definitions import DeployRefused
from stellwerk.app import CannotListen
from stellwerk.errors import Conflict, IdempotencyConflict, InvalidInput, NotFound, StoreUnavailable
from stellwerk.worker import Task, Worker

Process: TypeAlias = Callable[..., tuple[str, bytes]]
DATABASES = pytest.mark.parametrize("db", ["orders.db", ":memory:"])

SECONDS_MAX = 20


@pytest.fixture(autouse=True)
def in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- the main job -----------------------------------------------------------------------------------------------------


@DATABASES
async def test_E6_engine_and_worker_in_one_program(db: str, process: Process) -> None:
    name, xml = process("work")
    Path(name).write_bytes(xml)
    threads: list[str] = []
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine(db) as engine:
            deployment = await engine.deploy("order.bpmn")
            assert [row.definition_id for row in deployment.definitions] == ["order:1"]
            worker = engine.worker(worker_id="w1")

            @worker.task("work")
            def work(payload: dict[str, float], task: Task) -> dict[str, float]:
                threads.append(threading.current_thread().name)
                assert (task.business_key, task.worker_id) == ("A-17", "w1")
                return {"twice": payload["amount"] * 2}

            await engine.start_worker(worker)
            instance_id = await engine.start("order", {"amount": 12.5}, business_key="A-17")
            ended = await engine.wait_for_end(instance_id)
            assert (ended.status, ended.business_key) == ("COMPLETED", "A-17")
            assert await engine.variables(instance_id) == {"amount": 12.5, "twice": 25.0}
    assert threading.main_thread().name not in threads
    assert Path("orders.db").exists() is (db != ":memory:")


async def test_E6_what_was_acknowledged_is_in_the_file_when_it_is_opened_again(process: Process) -> None:
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine("orders.db") as engine:
            await engine.deploy(process("approve"))
            instance_id = await engine.start("order", {"amount": 1})
        async with stellwerk.open_engine(Path("orders.db"), synchronous="NORMAL") as engine:
            [task] = await engine.user_tasks(instance_id)
            await engine.complete_user_task(str(task["user_task_id"]), {"approved": True})
            assert (await engine.wait_for_end(instance_id)).status == "COMPLETED"
            assert await engine.variables(instance_id) == {"amount": 1, "approved": True}


async def test_E6_a_worker_in_the_programs_own_nursery_also_coroutines(process: Process) -> None:
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine() as engine, trio.open_nursery() as nursery:
            await engine.deploy(process("work"))
            worker = engine.worker(max_tasks=2)

            @worker.task("work")
            async def work(payload: dict[str, int]) -> dict[str, int]:
                return {"next": payload["number"] + 1}

            await nursery.start(worker.serve)
            ids = [await engine.start("order", {"number": number}) for number in range(20)]
            for number, instance_id in enumerate(ids):
                assert (await engine.wait_for_end(instance_id)).status == "COMPLETED"
                assert (await engine.variables(instance_id))["next"] == number + 1
            worker.stop()


async def test_E6_a_handler_starts_and_asks_its_own_engine(process: Process) -> None:
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine("orders.db") as engine:
            await engine.deploy(process("work"), process("approve", key="child"))
            worker = engine.worker()

            @worker.task("work")
            async def work(payload: dict[str, Any], task: Task) -> dict[str, str]:
                return {"child": await engine.start("child", request_id=task.id)}

            await engine.start_worker(worker)
            instance_id = await engine.start("order")
            await engine.wait_for_end(instance_id)
            child = str((await engine.variables(instance_id))["child"])
            assert (await engine.instance(child)).summary.status == "RUNNING"


async def test_E6_all_that_one_can_ask_and_do(mock_clock: MockClock, process: Process) -> None:
    before = datetime(2026, 1, 1, tzinfo=UTC)
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine("orders.db") as engine:
            await engine.deploy(process("paid", "approve"), process("work", key="other"))
            assert [row.definition_id for row in await engine.definitions()] == ["order:1", "other:1"]
            instance_id = await engine.start("order", business_key="A-17", request_id="once")
            assert await engine.start("order", business_key="A-17", request_id="once") == instance_id
            with pytest.raises(IdempotencyConflict):
                await engine.start("order", request_id="once")
            message_id = await engine.publish("paid", "A-17", {"paid": 10}, message_id="payment-1")
            assert message_id == "payment-1"
            await trio.testing.wait_all_tasks_blocked()
            [task] = await engine.user_tasks()
            await engine.set_variables(instance_id, {"approver": "Ada"})
            await engine.complete_user_task(str(task["user_task_id"]))
            assert (await engine.wait_for_end(instance_id)).status == "COMPLETED"
            assert await engine.variables(instance_id) == {"paid": 10, "approver": "Ada"}

            view = await engine.instance(instance_id, with_history=True)
            steps = await engine.history(instance_id)
            assert view.steps == steps
            assert [step.version for step in steps] == list(range(1, len(steps) + 1))
            assert (await engine.replay(instance_id, 1)).variables == {}
            assert (await engine.replay(instance_id)).variables == {"paid": 10, "approver": "Ada"}
            assert (await engine.trace(instance_id)).instance_id == instance_id

            other = await engine.start("other")
            assert [task.topic for task in await engine.tasks(instance_id=other, state="READY")] == ["work"]
            assert [topic.is_unattended for topic in await engine.topics()] == [True]
            assert await engine.workers() == []
            await engine.cancel(other, "not wanted")
            assert (await engine.instance(other)).reason == "not wanted"

            found = await engine.instances(process="order", business_key="A-17", started_from=before)
            assert [summary.instance_id for summary in found] == [instance_id]
            assert await engine.instances(started_before=before) == []
            await engine.backup("copy.db")
            assert await engine.prune(timedelta(hours=1)) == 0
            mock_clock.jump(1)
            assert await engine.prune(timedelta(0)) == 2
            with pytest.raises(NotFound):
                await engine.instance(instance_id)
            assert engine.statistics()["sessions"] == 0
        async with stellwerk.open_engine("copy.db") as engine:
            assert len(await engine.instances()) == 2


async def test_E6_incidents_are_seen_and_retried(process: Process) -> None:
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine(failure_policy="incident") as engine:
            await engine.deploy(process("work"))
            worker, is_repaired = engine.worker(), False

            @worker.task("work")
            async def work(payload: dict[str, Any]) -> None:
                if not is_repaired:
                    raise stellwerk.TaskFailure("the stock is gone", retries=0)

            await engine.start_worker(worker)
            ids = [await engine.start("order") for _ in range(3)]
            for instance_id in ids:
                assert (await engine.wait_for_end(instance_id, or_incident=True)).status == "RUNNING"
            assert len(await engine.incidents(process="order")) == 3
            is_repaired = True
            [incident] = await engine.incidents(ids[0])
            await engine.resolve_incident(str(incident["incident_id"]))
            assert len((await engine.retry_incidents(topic="work")).requeued) == 2
            assert {(await engine.wait_for_end(instance_id)).status for instance_id in ids} == {"COMPLETED"}


async def test_E6_two_engines_in_one_program_do_not_mix(process: Process) -> None:
    def worker_of(engine: stellwerk.Engine, answer: str) -> Worker:
        worker = engine.worker()

        @worker.task("work")
        async def work(payload: dict[str, Any]) -> dict[str, str]:
            return {"answer": answer}

        return worker

    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine("one.db") as one, stellwerk.open_engine() as two:
            for engine, answer in ((one, "one"), (two, "two")):
                await engine.deploy(process("work"))
                await engine.start_worker(worker_of(engine, answer))
            ids = {engine: [await engine.start("order") for _ in range(5)] for engine in (one, two)}
            for engine, answer in ((one, "one"), (two, "two")):
                for instance_id in ids[engine]:
                    await engine.wait_for_end(instance_id)
                    assert await engine.variables(instance_id) == {"answer": answer}
            with pytest.raises(NotFound):
                await two.instance(ids[one][0])


async def test_E6_a_second_engine_on_the_same_file_is_refused(process: Process) -> None:
    async with stellwerk.open_engine("orders.db") as engine:
        await engine.deploy(process("approve"))
        with pytest.raises(StoreUnavailable, match=r"^orders\.db is in use by another engine \(pid \d+\)$"):
            async with stellwerk.open_engine("orders.db"):
                pytest.fail("two engines have one file")
        await engine.start("order")
    async with stellwerk.open_engine("orders.db") as engine:
        assert len(await engine.instances()) == 1


# --- a port, or none --------------------------------------------------------------------------------------------------


async def test_E6_without_a_port_there_is_no_socket() -> None:
    async with stellwerk.open_engine() as engine:
        with pytest.raises(Conflict, match="no port: open it with port=0"):
            _ = engine.url


async def test_E6_with_a_free_port_other_processes_can_come_in(process: Process) -> None:
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine(port=0) as engine:
            assert engine.url.startswith("http://127.0.0.1:")
            assert await trio.to_thread.run_sync(fetch, f"{engine.url}/livez") == b"ok"
            await engine.deploy(process("work"))
            worker = Worker(engine.url)
            worker.task("work")(lambda payload: {"over": "the network"})
            await engine.start_worker(worker)
            instance_id = await engine.start("order")
            await engine.wait_for_end(instance_id)
            assert await engine.variables(instance_id) == {"over": "the network"}
            [seen] = await engine.workers()
            assert seen.worker_id == worker.worker_id


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
        return bytes(answer.read())


async def test_E6_a_port_that_is_taken_is_refused_and_the_file_is_free_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1 port {port}"):
            async with stellwerk.open_engine("orders.db", port=port):
                pytest.fail("two programs have one port")
    async with stellwerk.open_engine("orders.db", port=port) as engine:
        assert engine.url == f"http://127.0.0.1:{port}"


# --- what is asked wrongly --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"port": 70_000}, "port must be a number from 0 to 65535, or None for no port, not 70000"),
        ({"port": "80"}, "port must be a number from 0 to 65535, or None for no port, not '80'"),
        ({"failure_policy": "retry"}, "failure_policy must be one of 'incident', 'compensate', not 'retry'"),
        ({"synchronous": "OFF"}, "synchronous must be 'FULL' or 'NORMAL', not 'OFF'"),
        ({"log_level": "loud"}, "log_level must be one of 'debug', 'info', 'warning', 'error', not 'loud'"),
        ({"log_format": "xml"}, "log_format must be one of 'text', 'json', not 'xml'"),
    ],
)
async def test_an_option_without_sense_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        async with stellwerk.open_engine("orders.db", **options):
            pytest.fail("an option was ignored")
    assert str(refused.value) == message
    assert not Path("orders.db").exists()


@pytest.mark.parametrize("db", ["", "missing/orders.db", "."])
async def test_a_place_for_no_file_is_refused(db: str) -> None:
    with pytest.raises(StoreUnavailable):
        async with stellwerk.open_engine(db):
            pytest.fail("there is no such place")


async def test_files_that_cannot_be_deployed_are_refused_by_name(process: Process) -> None:
    Path("broken.bpmn").write_text("<definitions")
    async with stellwerk.open_engine() as engine:
        with pytest.raises(DeployRefused, match=r"^broken\.bpmn: "):
            await engine.deploy("broken.bpmn", process("approve"))
        with pytest.raises(FileNotFoundError, match=r"missing\.bpmn"):
            await engine.deploy("missing.bpmn")
        with pytest.raises(InvalidInput, match="at least one file"):
            await engine.deploy()
        with pytest.raises(InvalidInput, match=r"text\.bpmn: the content of a file is bytes, not str"):
            await engine.deploy(("text.bpmn", "<definitions/>"))  # type: ignore[arg-type]
        assert await engine.definitions() == []
        with pytest.raises(InvalidInput, match="started_from must have a time zone"):
            await engine.instances(started_from=datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidInput, match="older_than must not be negative"):
            await engine.prune(timedelta(days=-1))


def test_an_engine_outside_trio_says_where_it_lives() -> None:
    async def without_trio() -> None:
        async with stellwerk.open_engine():
            pytest.fail("nobody runs this")

    with pytest.raises(Conflict, match="lives in trio"):
        without_trio().send(None)
