"""The same handlers at a real engine, in virtual time, however the tasks come."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import stellwerk
from stellwerk.app.engine import Engine
from stellwerk.worker import BpmnError, ErrorKind, Task, TaskFailure
from stellwerk.worker.options import Transport

MODEL = b"""<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="order" isExecutable="true" stellwerk:failurePolicy="incident">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="step"/>
    <serviceTask id="step" stellwerk:topic="work" stellwerk:retryBackoff="PT0S" {}/>
    <boundaryEvent id="declined" attachedToRef="step"><errorEventDefinition/></boundaryEvent>
    <sequenceFlow id="f2" sourceRef="step" targetRef="e"/><endEvent id="e"/>
    <sequenceFlow id="f3" sourceRef="declined" targetRef="e2"/><endEvent id="e2"/>
  </process>
</definitions>
"""

both = pytest.mark.parametrize("transport", ["websocket", "http"])


async def deploy(engine: Engine, attributes: bytes = b"") -> None:
    await engine.deploy(("order.bpmn", MODEL.replace(b"{}", attributes)))


@both
async def test_W6_results_failures_and_business_errors(autojump_clock: MockClock, transport: Transport) -> None:
    async with stellwerk.open_engine() as engine:
        await deploy(engine)
        worker = engine.worker(transport=transport)

        @worker.task("work")
        async def work(payload: dict[str, str], task: Task) -> dict[str, object] | None:
            match payload["how"]:
                case "fails once" if task.attempt == 1:
                    raise ValueError("not yet")
                case "is declined":
                    raise BpmnError("DECLINED", "no", {"why": 1}, {"declined": True})
                case "fails for good":
                    raise TaskFailure("never", retries=0)
                case "returns nothing":
                    return None
                case how:
                    return {"done": how, "attempt": task.attempt}

        await engine.start_worker(worker)
        ways = ("returns", "returns nothing", "fails once", "is declined", "fails for good")
        ids = {how: await engine.start("order", {"how": how}) for how in ways}
        ends = {how: await engine.wait_for_end(id_, or_incident=True) for how, id_ in ids.items()}
        results = {how: await engine.variables(id_) for how, id_ in ids.items()}
    assert [ends[how].status for how in ways] == ["COMPLETED"] * 4 + ["RUNNING"]
    assert results["returns"] == {"how": "returns", "done": "returns", "attempt": 1}
    assert results["returns nothing"] == {"how": "returns nothing"}
    assert results["fails once"] == {"how": "fails once", "done": "fails once", "attempt": 2}
    assert results["is declined"]["declined"] is True


@both
async def test_fault_75_a_long_handler_keeps_its_lease(autojump_clock: MockClock, transport: Transport) -> None:
    async with stellwerk.open_engine() as engine:
        await deploy(engine)
        worker = engine.worker(transport=transport)
        troubles: list[str] = []
        worker.on_error(lambda kind, error, task: troubles.append(f"{kind}: {error}"))

        @worker.task("work", lock_duration=10)
        async def work(payload: object, task: Task) -> dict[str, int]:
            await trio.sleep(200)
            return {"attempt": task.attempt}

        await engine.start_worker(worker)
        id_ = await engine.start("order")
        await engine.wait_for_end(id_)
        assert await engine.variables(id_) == {"attempt": 1}
        assert trio.current_time() == pytest.approx(200, abs=1)
    assert troubles == []


@both
async def test_fault_152_a_models_own_lock_is_kept_too(autojump_clock: MockClock, transport: Transport) -> None:
    """Though it is far shorter than a poll waits."""
    async with stellwerk.open_engine() as engine:
        await deploy(engine, b'stellwerk:lockDuration="PT1S"')
        worker = engine.worker(transport=transport)

        @worker.task("work", lock_duration=60)
        async def work(payload: object, task: Task) -> dict[str, int]:
            await trio.sleep(20)
            return {"attempt": task.attempt}

        await engine.start_worker(worker)
        for pause in (0, 5, 7):
            await trio.sleep(pause)
            id_ = await engine.start("order")
            await engine.wait_for_end(id_)
            assert await engine.variables(id_) == {"attempt": 1}


@both
async def test_fault_70_a_cancelled_task_stops_its_handler(autojump_clock: MockClock, transport: Transport) -> None:
    """At once where work is pushed; else when the lock is to be extended."""
    async with stellwerk.open_engine() as engine:
        await deploy(engine)
        worker = engine.worker(transport=transport)
        began, ended = trio.Event(), trio.Event()
        reasons: list[str | None] = []

        @worker.task("work", lock_duration=30)
        async def work(payload: object, task: Task) -> None:
            began.set()
            try:
                await trio.sleep_forever()
            finally:
                reasons.append(task.signal.reason)
                ended.set()

        await engine.start_worker(worker)
        id_ = await engine.start("order")
        await began.wait()
        cancelled_at = trio.current_time()
        await engine.cancel(id_, "not wanted")
        await ended.wait()
        assert trio.current_time() - cancelled_at <= (20 if transport == "http" else 0)
    assert reasons == ["cancelled"]


@both
async def test_fault_13_a_stop_at_any_moment_leaves_nothing_locked(
    autojump_clock: MockClock, transport: Transport
) -> None:
    """While tasks arrive: each is done once, with its first attempt, or was given back at once."""
    began: Counter[str] = Counter()
    left = 0

    async def work(payload: object, task: Task) -> None:
        began[task.id] += 1

    async with stellwerk.open_engine() as engine:
        await deploy(engine)
        for number in range(60):
            worker = engine.worker(transport=transport)
            worker.task("work", max_tasks=3)(work)
            async with trio.open_nursery() as nursery:
                await nursery.start(worker.serve)
                nursery.start_soon(engine.start, "order")
                for _ in range(number):
                    await trio.lowlevel.checkpoint()
                worker.stop(grace=1)
            await wait_all_tasks_blocked()
            assert list(await engine.tasks(state="LOCKED")) == []
            left += len(await engine.tasks(state="READY"))
        last = engine.worker(transport=transport)
        last.task("work", max_tasks=3)(work)
        await engine.start_worker(last)
        for instance in await engine.instances():
            await engine.wait_for_end(instance.instance_id)
        assert trio.current_time() < 60, "no task waited for its lock to run out"
        ended = await engine.tasks(state="COMPLETED")
    assert began == Counter(task.task_id for task in ended)
    assert len(ended) == 60
    assert left > 0, "some were stopped too early for their task"


@both
async def test_fault_36_a_slow_task_holds_up_nothing(autojump_clock: MockClock, transport: Transport) -> None:
    async with stellwerk.open_engine() as engine:
        await deploy(engine)
        worker = engine.worker(transport=transport)

        @worker.task("work", max_tasks=3)
        async def work(payload: dict[str, int]) -> None:
            await trio.sleep(payload["seconds"])

        await engine.start_worker(worker)
        slow = await engine.start("order", {"seconds": 300})
        ids = [await engine.start("order", {"seconds": 1}) for _ in range(20)]
        for id_ in ids:
            await engine.wait_for_end(id_)
        assert trio.current_time() < 20
        assert (await engine.instance(slow)).summary.status == "RUNNING"


@both
async def test_W5_a_filter_and_the_named_variables(autojump_clock: MockClock, transport: Transport) -> None:
    async with stellwerk.open_engine() as engine:
        await deploy(engine)
        worker = engine.worker(transport=transport)
        seen: list[object] = []

        @worker.task("work", filter='"region":"eu"', variables=["amount"])
        async def work(payload: object) -> None:
            seen.append(payload)

        await engine.start_worker(worker)
        other = await engine.start("order", {"region": "us", "amount": 1})
        mine = await engine.start("order", {"region": "eu", "amount": 2})
        await engine.wait_for_end(mine)
        await trio.sleep(60)
        assert (await engine.instance(other)).summary.status == "RUNNING"
    assert seen == [{"amount": 2}]


async def test_a_filter_that_no_engine_takes_ends_the_worker_either_way(autojump_clock: MockClock) -> None:
    kinds: dict[str, list[ErrorKind]] = {}
    for transport in ("websocket", "http"):
        async with stellwerk.open_engine() as engine:
            worker = engine.worker(transport=transport)
            seen = kinds[transport] = []
            worker.on_error(lambda kind, error, task, seen=seen: seen.append(kind))

            @worker.task("work", filter="(a{1000}){1000}")
            async def work(payload: object) -> None: ...

            with pytest.raises(stellwerk.worker.WorkerGaveUp, match=r"filter"):
                await worker.serve()
    assert kinds["websocket"] == kinds["http"] == [ErrorKind.UNEXPECTED_LOOP_ERROR] * 5
