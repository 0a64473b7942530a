"""An embedded engine under a clock that the test moves: real SQLite, real workers, no threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import stellwerk
from stellwerk.app import CannotListen
from stellwerk.core.external_task import TaskState
from stellwerk.errors import Conflict
from stellwerk.system.clock import VirtualClock
from stellwerk.worker import Task, Worker

Process: TypeAlias = Callable[..., tuple[str, bytes]]
DATABASES = pytest.mark.parametrize("db", ["orders.db", ":memory:"])

DAY_SECONDS = 24 * 3600
EPOCH_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z"""


@pytest.fixture(autouse=True)
def in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@DATABASES
async def test_E6_a_worker_in_process_works_in_virtual_time(
    db: str, autojump_clock: MockClock, process: Process
) -> None:
    threads: set[threading.Thread] = set()
    async with stellwerk.open_engine(db) as engine:
        await engine.deploy(process("work"))
        worker = engine.worker()

        @worker.task("work")
        def work(payload: dict[str, int]) -> dict[str, int]:
            threads.add(threading.current_thread())
            return {"next": payload["number"] + 1}

        await engine.start_worker(worker)
        for number in range(10):
            instance_id = await engine.start("order", {"number": number})
            ended = await engine.wait_for_end(instance_id)
            assert await engine.variables(instance_id) == {"number": number, "next": number + 1}
            assert (ended.started_at_ms, ended.ended_at_ms) == (EPOCH_MS, EPOCH_MS)
    assert threads == {threading.current_thread()}
    assert trio.current_time() == 0, "work takes no virtual time, wherever it is done"


@DATABASES
async def test_E6_three_days_pass_at_once(db: str, mock_clock: MockClock, process: Process) -> None:
    async with stellwerk.open_engine(db) as engine:
        await engine.deploy(process("three_days", "work"))
        worker = engine.worker()
        worker.task("work")(lambda payload: {"done": True})
        await engine.start_worker(worker)
        instance_id = await engine.start("order")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(3 * DAY_SECONDS - 1)
        await trio.testing.wait_all_tasks_blocked()
        assert (await engine.instance(instance_id)).current_nodes == ("three_days",)
        mock_clock.autojump_threshold = 0
        ended = await engine.wait_for_end(instance_id)
        assert ended.status == "COMPLETED"
        assert ended.ended_at_ms is not None
        assert 0 <= ended.ended_at_ms - (EPOCH_MS + 3 * DAY_SECONDS * 1000) < 15_000
        assert await engine.variables(instance_id) == {"done": True}


async def test_E6_retries_and_their_pauses_take_virtual_time_only(autojump_clock: MockClock, process: Process) -> None:
    attempts: list[float] = []
    async with stellwerk.open_engine("orders.db") as engine:
        await engine.deploy(process("work"))
        worker = engine.worker()

        @worker.task("work")
        def work(payload: object, task: Task) -> None:
            attempts.append(trio.current_time())
            if task.attempt < 3:
                raise stellwerk.TaskFailure("not yet", retry_after=60)

        await engine.start_worker(worker)
        instance_id = await engine.start("order")
        assert (await engine.wait_for_end(instance_id)).status == "COMPLETED"
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert len(pauses) == 2
    assert all(60 <= pause < 90 for pause in pauses)


async def test_E6_a_coroutine_that_takes_long_keeps_its_lease_in_virtual_time(
    autojump_clock: MockClock, process: Process
) -> None:
    async with stellwerk.open_engine("orders.db") as engine:
        await engine.deploy(process("work"))
        worker = engine.worker(lock_duration=30)

        @worker.task("work")
        async def work(payload: object, task: Task) -> dict[str, int]:
            await trio.sleep(600)
            return {"fence": task.fence}

        await engine.start_worker(worker)
        instance_id = await engine.start("order")
        ended = await engine.wait_for_end(instance_id)
        [task] = await engine.tasks(instance_id=instance_id)
        assert (ended.ended_at_ms, task.lock_expiries) == (EPOCH_MS + 600_000, 0)
        assert (task.state, await engine.variables(instance_id)) == (TaskState.COMPLETED, {"fence": task.fence})


async def test_E6_an_asyncio_handler_works_in_virtual_time(autojump_clock: MockClock, process: Process) -> None:
    async with stellwerk.open_engine("orders.db") as engine:
        await engine.deploy(process("work"))
        worker = engine.worker()

        @worker.task("work", asyncio=True)
        async def work(payload: object) -> dict[str, bool]:
            import asyncio

            await asyncio.sleep(20)
            return {"done": True}

        await engine.start_worker(worker)
        instance_id = await engine.start("order")
        ended = await engine.wait_for_end(instance_id)
        assert await engine.variables(instance_id) == {"done": True}
        assert ended.ended_at_ms is not None
        assert EPOCH_MS + 20_000 <= ended.ended_at_ms < EPOCH_MS + 21_000


async def test_wall_time_goes_on_in_a_file_that_is_opened_again(mock_clock: MockClock, process: Process) -> None:
    async with stellwerk.open_engine("orders.db") as engine:
        await engine.deploy(process("three_days"))
        instance_id = await engine.start("order")
    mock_clock.jump(3 * DAY_SECONDS)
    mock_clock.autojump_threshold = 0
    async with stellwerk.open_engine("orders.db") as engine:
        ended = await engine.wait_for_end(instance_id)
    assert ended.ended_at_ms is not None
    assert EPOCH_MS <= ended.ended_at_ms - 3 * DAY_SECONDS * 1000 <= EPOCH_MS + 1000


async def test_wall_time_can_begin_when_the_test_wants(mock_clock: MockClock, process: Process) -> None:
    leap_day = datetime(2028, 2, 29, tzinfo=UTC)
    async with stellwerk.open_engine(clock=VirtualClock(int(leap_day.timestamp() * 1000))) as engine:
        await engine.deploy(process("approve"))
        await engine.start("order")
        assert len(await engine.instances(started_from=leap_day)) == 1


async def test_a_port_in_virtual_time_is_refused(mock_clock: MockClock) -> None:
    with pytest.raises(CannotListen, match="an engine in virtual time has no port"):
        async with stellwerk.open_engine(port=0):
            pytest.fail("the clock would move on while the network works")


async def test_a_worker_that_no_engine_made_says_why_it_cannot_run_functions(mock_clock: MockClock) -> None:
    async with stellwerk.open_engine() as engine:
        worker = Worker()
        worker.task("work")(lambda payload: None)
        with pytest.raises(Conflict, match=r"under MockClock .* make the worker by engine\.worker\(\)"):
            await engine.start_worker(worker)


@DATABASES
async def test_the_end_of_a_block_takes_no_virtual_time(db: str, mock_clock: MockClock, process: Process) -> None:
    is_running = trio.Event()
    async with stellwerk.open_engine(db) as engine:
        await engine.deploy(process("work"))
        worker = engine.worker()

        @worker.task("work")
        async def work(payload: object) -> None:
            is_running.set()
            await trio.sleep_forever()

        await engine.start_worker(worker)
        await engine.start("order")
        await is_running.wait()
    assert trio.current_time() == 0
