"""Instead of completing tasks by hand a test may have real workers handle them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
import trio

from stellwerk import BpmnError, TaskFailure, Worker
from stellwerk.core.external_task import Holder
from stellwerk.errors import Conflict, InvalidInput
from stellwerk.ports import LeaseTasks, TaskLease
from stellwerk.testing import ProcessTest

Bpmn = Callable[..., bytes]
Payload = dict[str, Any]


async def test_handlers_work_on_their_topics(process_test: ProcessTest, fork: bytes) -> None:
    @process_test.task("left")
    def add(payload: Payload) -> Payload:
        return {"left": payload["n"] + 1}

    @process_test.task("right")
    async def double(payload: Payload) -> Payload:
        return {"right": payload["n"] * 2}

    await process_test.deploy(("fork.bpmn", fork))
    instance = await process_test.start("p", {"n": 20})
    instance.assert_ended()
    instance.assert_variables(n=20, left=21, right=40)


async def test_a_handler_may_come_later_and_others_be_completed_by_hand(process_test: ProcessTest, fork: bytes) -> None:
    await process_test.deploy(("fork.bpmn", fork))
    instance = await process_test.start("p")
    await instance.complete("right")

    @process_test.task("left")
    def handle(payload: Payload) -> None:
        return None

    instance.assert_waiting_at("left")
    await process_test.settle()
    instance.assert_ended()
    with pytest.raises(Conflict, match='topic "left" has a handler already'):
        process_test.task("left")


async def test_the_worker_of_a_program_is_used_as_it_stands(process_test: ProcessTest, fork: bytes) -> None:
    worker = Worker("http://engine.example.com")

    @worker.task("left", variables=["n"])
    def count_names(payload: Payload) -> Payload:
        return {"names": sorted(payload)}

    @worker.task("right", asyncio=True)
    async def wait_two_minutes(payload: Payload) -> None:
        await asyncio.sleep(120)

    process_test.use_worker(worker)
    with pytest.raises(Conflict, match='topic "left" has a handler already'):
        process_test.use_worker(worker)
    await process_test.deploy(("fork.bpmn", fork))
    instance = await process_test.start("p", {"n": 1, "m": 2})
    instance.assert_variables(names=["n"])
    instance.assert_waiting_at("right")
    await process_test.advance(minutes=2)
    instance.assert_ended()
    assert not worker.is_healthy(), "it was never connected to anything"


def test_a_worker_includes_others() -> None:
    whole, part, rival = Worker(), Worker(), Worker()
    part.task("left", max_tasks=3)(print)
    rival.task("left")(print)
    whole.task("right")(print)
    whole.include(part)
    assert whole.topics == ("right", "left")
    assert part.topics == ("left",)
    with pytest.raises(InvalidInput, match="topic 'left' has a handler already"):
        whole.include(rival)


async def test_errors_of_handlers_go_where_the_model_says(process_test: ProcessTest, risky: bytes) -> None:
    @process_test.task("pay")
    def refuse(payload: Payload) -> None:
        raise BpmnError("REFUSED", "no money")

    await process_test.deploy(("risky.bpmn", risky))
    instance = await process_test.start("p")
    instance.assert_path("start", "pay", "refused", "unpaid")


async def test_failures_are_tried_again_when_the_time_has_come(process_test: ProcessTest, risky: bytes) -> None:
    attempts: list[float] = []

    @process_test.task("pay")
    def fail_twice(payload: Payload) -> None:
        attempts.append(trio.current_time())
        if len(attempts) < 3:
            raise OSError("the bank does not answer")

    await process_test.deploy(("risky.bpmn", risky))
    instance = await process_test.start("p")
    assert len(attempts) == 1
    await instance.advance_to_end(within=timedelta(hours=1))
    assert len(attempts) == 3
    assert attempts[0] < attempts[1] < attempts[2]


@pytest.mark.parametrize("seconds", [0.7, 1, 29.3, 300, 100_000.9])
async def test_the_next_attempt_comes_exactly_when_it_is_due(
    process_test: ProcessTest, one_task: bytes, seconds: float
) -> None:
    attempts: list[datetime] = []

    @process_test.task("work")
    def fail(payload: Payload) -> None:
        attempts.append(process_test.now)
        raise TaskFailure("later", retry_after=seconds)

    await process_test.deploy(("one.bpmn", one_task))
    await process_test.start("p")
    await process_test.advance(seconds=seconds)
    assert [attempt - attempts[0] for attempt in attempts[1:]] == [timedelta(seconds=seconds)]


async def test_a_handler_that_sleeps_takes_virtual_time(process_test: ProcessTest, one_task: bytes) -> None:
    @process_test.task("work", lock_duration=5)
    async def take_long(payload: Payload) -> Payload:
        await trio.sleep(60)
        return {"slept": True}

    await process_test.deploy(("one.bpmn", one_task))
    instance = await process_test.start("p")
    await process_test.advance(seconds=59)
    instance.assert_waiting_at("work")
    await process_test.advance(seconds=2)
    instance.assert_ended()
    [(task, attempts)] = (await process_test.engine.instance(instance.id)).tasks
    assert attempts == ()
    assert task.lock_expiries == 0


async def test_a_lock_that_nobody_renews_runs_out_at_its_time(process_test: ProcessTest, one_task: bytes) -> None:
    await process_test.deploy(("one.bpmn", one_task))
    instance = await process_test.start("p")
    [task] = instance.tasks()
    lost = LeaseTasks((TaskLease(task.task_id, Holder("gone", "boot", 1, "session"), 300_000),))
    await process_test.engine.node.committer.submit(lost)
    with pytest.raises(Conflict, match='worker gone works on "work" already'):
        await instance.complete("work")

    @process_test.task("work")
    def handle(payload: Payload) -> None:
        return None

    started_at = process_test.now
    await instance.advance_to_end(within=timedelta(hours=1))
    assert timedelta(minutes=5) <= process_test.now - started_at < timedelta(minutes=5, seconds=2)


async def test_workers_survive_leaps_over_days(process_test: ProcessTest, bpmn: Bpmn) -> None:
    timer = "<timerEventDefinition><timeDuration>P3D</timeDuration></timerEventDefinition>"
    body = f"""<startEvent id="start"/><serviceTask id="before" stellwerk:topic="work"/>
      <intermediateCatchEvent id="pause">{timer}</intermediateCatchEvent>
      <serviceTask id="after" stellwerk:topic="work"/><endEvent id="done"/>"""
    calls: list[float] = []

    @process_test.task("work")
    def handle(payload: Payload) -> None:
        calls.append(trio.current_time() // 86_400)

    await process_test.deploy(("long.bpmn", bpmn(body, "start before pause after done")))
    instances = [await process_test.start("p") for _ in range(3)]
    await process_test.advance(days=10)
    for instance in instances:
        instance.assert_ended()
    assert calls == [0, 0, 0, 3, 3, 3]
