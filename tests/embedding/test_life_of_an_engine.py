"""How the block of an embedded engine ends, and what then becomes of the work in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing

import stellwerk
from stellwerk.core.external_task import TaskState
from stellwerk.errors import Conflict, NotFound, StellwerkError, StoreUnavailable
from stellwerk.worker import Task, Worker, WorkerGaveUp

Process: TypeAlias = Callable[..., tuple[str, bytes]]

SECONDS_MAX = 20


@pytest.fixture(autouse=True)
def in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_E6_an_error_of_the_engine_in_the_body_keeps_its_type() -> None:
    with pytest.raises(NotFound, match="there is no instance nobody"):
        async with stellwerk.open_engine("orders.db") as engine:
            await engine.instance("nobody")


async def test_an_error_of_ones_own_comes_out_as_it_went_in() -> None:
    cause, context = KeyError("cause"), ValueError("context")
    error = RuntimeError("mine")

    def fail() -> None:
        try:
            raise context
        except ValueError:
            raise error from cause

    with pytest.raises(RuntimeError) as raised:
        async with stellwerk.open_engine():
            fail()
    assert raised.value is error
    assert (error.__cause__, error.__context__) == (cause, context)


async def test_a_group_of_ones_own_nursery_stays_that_group() -> None:
    async def fail() -> None:
        raise RuntimeError("mine")

    with pytest.raises(ExceptionGroup) as raised:
        async with stellwerk.open_engine(), trio.open_nursery() as nursery:
            nursery.start_soon(fail)
    [only] = raised.value.exceptions
    assert isinstance(only, RuntimeError)


async def test_a_worker_that_gives_up_ends_the_block_with_its_error() -> None:
    def no_credential() -> str:
        raise OSError("no credential today")

    async def run() -> None:
        async with stellwerk.open_engine() as engine:
            worker = engine.worker(token=no_credential, reconnect_seconds_max=0.01)
            worker.task("work")(lambda payload: None)
            await engine.start_worker(worker)
            await trio.sleep_forever()

    with pytest.raises(WorkerGaveUp, match="no credential today"), trio.fail_after(SECONDS_MAX):
        await run()


async def test_a_worker_without_a_handler_is_refused_and_nothing_ends() -> None:
    async with stellwerk.open_engine() as engine:
        with pytest.raises(Conflict, match="no handler"):
            await engine.start_worker(engine.worker())
        assert await engine.instances() == []


# --- the ends of a block ----------------------------------------------------------------------------------------------


async def stored_task(db: str) -> Any:
    async with stellwerk.open_engine(db) as engine:
        [task] = await engine.tasks()
        return task


async def test_E6_at_the_end_running_handlers_give_up_and_their_tasks_go_back(process: Process) -> None:
    is_running, gave_up = trio.Event(), []
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine("orders.db") as engine:
            await engine.deploy(process("work"))
            worker = engine.worker()

            @worker.task("work")
            async def work(payload: object, task: Task) -> None:
                is_running.set()
                try:
                    await trio.sleep_forever()
                finally:
                    gave_up.append(task.signal.reason)

            await engine.start_worker(worker)
            await engine.start("order")
            await is_running.wait()
        assert gave_up == ["worker_stops"]
        task = await stored_task("orders.db")
    assert (task.state, task.retries_left, task.fence > 0) == (TaskState.READY, 3, True)


async def test_E6_a_function_in_a_thread_looks_at_its_signal_and_its_task_goes_back(process: Process) -> None:
    is_running = trio.Event()
    token = trio.lowlevel.current_trio_token()
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine("orders.db") as engine:
            await engine.deploy(process("work"))
            worker = engine.worker()

            @worker.task("work")
            def work(payload: object, task: Task) -> None:
                token.run_sync_soon(is_running.set)
                task.signal.wait(SECONDS_MAX)

            await engine.start_worker(worker)
            await engine.start("order")
            await is_running.wait()
        task = await stored_task("orders.db")
    # It returned in time, so its result counts although it was told to give up.
    assert task.state is TaskState.COMPLETED


async def test_E6_drain_lets_running_handlers_end(process: Process) -> None:
    is_running, may_end = trio.Event(), trio.Event()
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine("orders.db") as engine, trio.open_nursery() as nursery:
            await engine.deploy(process("work"))
            worker = engine.worker(max_tasks=1)

            @worker.task("work")
            async def work(payload: object) -> dict[str, bool]:
                is_running.set()
                await may_end.wait()
                return {"done": True}

            await engine.start_worker(worker)
            first, second = await engine.start("order"), await engine.start("order")
            await is_running.wait()
            nursery.start_soon(engine.drain, SECONDS_MAX)
            await trio.testing.wait_all_tasks_blocked()
            may_end.set()
            assert (await engine.wait_for_end(first)).status == "COMPLETED"
    async with stellwerk.open_engine("orders.db") as engine:
        [waiting] = await engine.tasks(instance_id=second)
        assert (waiting.state, waiting.fence) == (TaskState.READY, 0)


async def test_after_a_drain_the_engine_answers_but_takes_no_worker(process: Process) -> None:
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine() as engine:
            await engine.deploy(process("work"))
            await engine.drain(0)
            instance_id = await engine.start("order")
            assert (await engine.instance(instance_id)).summary.status == "RUNNING"
            worker, refused = engine.worker(), trio.Event()
            worker.task("work")(lambda payload: None)
            worker.on_error(lambda kind, error, task: refused.set())
            await engine.start_worker(worker)
            await refused.wait()
            assert not worker.is_healthy()
            await engine.drain(0)


async def test_E6_an_error_ends_everything_at_once_and_leases_live_on(process: Process) -> None:
    is_running = trio.Event()

    async def run() -> None:
        async with stellwerk.open_engine("orders.db") as engine:
            await engine.deploy(process("work"))
            worker = engine.worker(worker_id="w1")

            @worker.task("work")
            async def work(payload: object) -> None:
                is_running.set()
                await trio.sleep_forever()

            await engine.start_worker(worker)
            await engine.start("order")
            await is_running.wait()
            raise RuntimeError("mine")

    with trio.fail_after(SECONDS_MAX):
        with pytest.raises(RuntimeError, match="mine"):
            await run()
        task = await stored_task("orders.db")
    assert (task.state, task.lease.holder.worker_id) == (TaskState.LOCKED, "w1")


async def test_E6_cancelling_ends_everything_and_frees_the_file(process: Process) -> None:
    is_open = trio.Event()

    async def run() -> None:
        async with stellwerk.open_engine("orders.db") as engine:
            await engine.deploy(process("work"))
            worker = engine.worker()
            worker.task("work")(lambda payload: None)
            await engine.start_worker(worker)
            is_open.set()
            await trio.sleep_forever()

    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await is_open.wait()
            nursery.cancel_scope.cancel()
        async with stellwerk.open_engine("orders.db") as engine:
            assert len(await engine.definitions()) == 1


async def test_who_asks_from_outside_gets_an_answer_when_the_engine_ends(process: Process) -> None:
    heard: list[str] = []

    async def wait(engine: stellwerk.Engine, instance_id: str) -> None:
        with pytest.raises(StoreUnavailable, match="ended meanwhile"):
            await engine.wait_for_end(instance_id)
        heard.append("the end")

    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery, stellwerk.open_engine() as engine:
            await engine.deploy(process("approve"))
            nursery.start_soon(wait, engine, await engine.start("order"))
            await trio.testing.wait_all_tasks_blocked()
        assert heard == ["the end"]
        for ask in (engine.definitions, lambda: engine.start("order"), lambda: engine.publish("paid")):
            with pytest.raises(StoreUnavailable, match="has ended"):
                await ask()


# --- workers of an engine ---------------------------------------------------------------------------------------------


async def errors_of(worker: Worker, engine: stellwerk.Engine) -> StellwerkError:
    """The first error that the worker reports."""
    errors: list[Exception] = []
    reported = trio.Event()

    @worker.on_error
    def note(kind: str, error: Exception, task: Task | None) -> None:
        errors.append(error)
        reported.set()

    worker.task("work")(lambda payload: None)
    await engine.start_worker(worker)
    await reported.wait()
    worker.stop()
    assert isinstance(errors[0], StellwerkError)
    return errors[0]


async def test_a_worker_of_an_engine_works_for_no_other() -> None:
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine() as engine:
            worker = engine.worker()
            worker.connect_to("http://127.0.0.1:10560")
            error = await errors_of(worker, engine)
            assert error.message.startswith("a worker that an engine made works for that engine")


async def test_a_worker_of_an_engine_runs_in_the_engines_trio() -> None:
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine() as engine:
            worker = engine.worker(reconnect_seconds_max=0.01)
            worker.task("work")(lambda payload: None)
            with pytest.raises(WorkerGaveUp, match=r"runs in the engine's own trio run: use worker\.serve\(\)"):
                await trio.to_thread.run_sync(worker.run)


async def test_a_worker_is_started_once(process: Process) -> None:
    async with stellwerk.open_engine() as engine:
        worker = engine.worker(worker_id="w1")
        worker.task("work")(lambda payload: None)
        await engine.start_worker(worker)
        with pytest.raises(Conflict, match="runs already"):
            await engine.start_worker(worker)
        await trio.testing.wait_all_tasks_blocked()
        [seen] = await engine.workers()
        assert (seen.worker_id, [topic.topic for topic in seen.topics]) == ("w1", ["work"])


async def test_a_task_that_is_just_being_handed_out_when_the_block_ends_is_not_left_locked(process: Process) -> None:
    """Wherever it stands: asked of the file, leased, delivered, or running."""
    with trio.fail_after(SECONDS_MAX):
        for moments in (*range(26, 60, 2), *range(100, 400, 20)):
            async with stellwerk.open_engine(f"{moments}.db") as engine:
                await engine.deploy(process("work"))
                await engine.start("order")
                worker = engine.worker()

                @worker.task("work")
                async def work(payload: dict[str, str]) -> None:
                    await trio.sleep_forever()

                await engine.start_worker(worker)
                for _ in range(moments):
                    await trio.lowlevel.checkpoint()
            async with stellwerk.open_engine(f"{moments}.db") as engine:
                assert [task.state for task in await engine.tasks()] == [TaskState.READY], moments


async def test_a_large_payload_passes_in_both_directions(process: Process) -> None:
    """Far larger than what the connection within the process holds at once."""
    text = "x" * 900_000
    with trio.fail_after(SECONDS_MAX):
        async with stellwerk.open_engine() as engine:
            await engine.deploy(process("work"))
            worker = engine.worker()

            @worker.task("work")
            async def work(payload: dict[str, str]) -> dict[str, str]:
                return {"back": payload["text"][::-1]}

            await engine.start_worker(worker)
            ids = [await engine.start("order", {"text": text}) for _ in range(5)]
            for instance_id in ids:
                await engine.wait_for_end(instance_id)
                assert len(str((await engine.variables(instance_id))["back"])) == len(text)


async def test_a_worker_that_another_engine_made_is_refused() -> None:
    async with stellwerk.open_engine() as one, stellwerk.open_engine() as other:
        worker = one.worker()
        worker.task("work")(lambda payload: None)
        with pytest.raises(Conflict, match="made by another engine"):
            await other.start_worker(worker)
        await one.start_worker(worker)
