"""Requirement P2: the engine is killed with SIGKILL at random moments under load; nothing acknowledged is lost.

The worker lives on in the test's process. Few kills by default; the long run is
``pytest tests/endtoend/test_kill_engine.py --kills 200 -o faulthandler_timeout=0``.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from stellwerk.worker import Task, Worker

MODEL = Path(__file__).parent / "fork.bpmn"
TOPICS = ("first", "left", "right", "last")


@attrs.define
class Load:
    """Starts instances and works on them, and remembers what the engine acknowledged."""

    engine: Any
    random: random.Random
    started: list[str] = attrs.field(factory=list)
    running: int = 0
    busy_kills: int = 0
    """Kills that met running handlers."""
    runs: Counter[str] = attrs.field(factory=Counter)
    results: dict[tuple[str, str], int] = attrs.field(factory=dict)
    acknowledged: set[str] = attrs.field(factory=set)
    fences: dict[str, int] = attrs.field(factory=dict)
    errors: list[str] = attrs.field(factory=list)
    starting: bool = True

    async def start_instances(self) -> None:
        number = 0
        while self.starting:
            number += 1
            instance_id = await self._start(f"request-{number}")
            self.started.append(instance_id)
            await trio.sleep(0.01)

    async def _start(self, request_id: str) -> str:
        body = {"process_def_id": "fork", "variables": {"n": 0}, "request_id": request_id}
        while True:
            try:
                status, answer = await trio.to_thread.run_sync(
                    self.engine.ask, "POST", "/api/v1/process-instances", body
                )
            except OSError:
                await trio.sleep(0.05)  # it is down: that is what this test is about
                continue
            assert status == 201, answer
            return str(answer["instance_id"])

    def worker(self) -> Worker:
        worker = Worker(self.engine.url, max_tasks=32, lock_duration=60.0, reconnect_seconds_max=0.2)
        for topic in TOPICS:
            worker.task(topic)(self._handler(topic))
        worker.on_heartbeat(self._heartbeat)
        worker.on_error(lambda kind, error, task: self.errors.append(f"{kind}: {error}"))
        return worker

    def _handler(self, topic: str) -> Any:
        async def handle(payload: dict[str, Any], task: Task) -> dict[str, int]:
            self.runs[task.id] += 1
            self.fences[task.id] = task.fence
            self.running += 1
            await trio.sleep(self.random.uniform(0, 0.8))
            self.running -= 1
            value = self.random.getrandbits(48)
            self.results[task.process_instance_id, topic] = value
            return {topic: value}

        return handle

    def _heartbeat(self, operation: str, task_id: str | None) -> None:
        if operation == "finishExternalTask" and task_id is not None:
            self.acknowledged.add(task_id)

    async def kill_engine(self, delay: float) -> None:
        """At a random moment after the worker is connected again and has work."""
        before = len(self.acknowledged)
        while len(self.acknowledged) == before or not self.running:
            await trio.sleep(0.01)
        await trio.sleep(delay)
        self.busy_kills += self.running > 0
        self.engine.kill()
        await trio.to_thread.run_sync(self.engine.start)

    def check(self, view: Any) -> None:
        """Everything of one instance, after its end."""
        assert view["status"] == "COMPLETED", view
        for topic in TOPICS:
            assert view["variables"][topic] == self.results[view["instance_id"], topic]
        completed = Counter(fact["task_id"] for fact in _facts(view, "TaskCompleted"))
        assert set(completed.values()) == {1}
        assert len(completed) == len(TOPICS)
        entered = Counter(fact["node_id"] for fact in _facts(view, "TokenEntered"))
        assert entered["last"] == entered["end"] == 1
        for task in view["tasks"]:
            assert task["state"] == "COMPLETED"
            # Its lease had not run out, so it went on with the same fence: no handler ran twice.
            assert self.runs[task["task_id"]] == 1
            assert self.fences[task["task_id"]] == task["fence"]


async def test_P2_engine_killed_under_load(engine: Any, request: pytest.FixtureRequest) -> None:
    kills = request.config.getoption("--kills")
    moments = random.Random(request.config.getoption("--kill-seed"))
    engine.deploy(MODEL)
    load = Load(engine, random.Random(moments.random()))
    worker = load.worker()
    with trio.fail_after(120 + 5 * kills):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.serve)
            nursery.start_soon(load.start_instances)
            for _ in range(kills):
                await load.kill_engine(moments.uniform(0.0, 0.5))
            await trio.sleep(0.5)
            load.starting = False
            await _all_ended(engine, load)
            worker.stop()
    completed = set()
    for instance_id in load.started:
        view = await trio.to_thread.run_sync(
            engine.request, "GET", f"/api/v1/process-instances/{instance_id}?history=true"
        )
        load.check(view)
        completed |= {task["task_id"] for task in view["tasks"]}
    assert load.acknowledged
    assert load.acknowledged <= completed
    assert load.busy_kills >= 0.8 * kills, "the kills met an idle engine"
    assert len(set(load.started)) == len(load.started)
    # A start that was repeated because its answer was lost made no second instance.
    assert await trio.to_thread.run_sync(_count_instances, engine) == len(load.started)


def _facts(view: Any, event_type: str) -> list[Any]:
    return [event["payload"] for event in view["history"] if event["event_type"] == event_type]


def _count_instances(engine: Any) -> int:
    count, after = 0, ""
    while True:
        page = engine.request("GET", f"/api/v1/process-instances?limit=1000{after}")["instances"]
        count += len(page)
        if len(page) < 1000:
            return count
        after = f"&after={page[-1]['instance_id']}"


async def _all_ended(engine: Any, load: Load) -> None:
    while True:
        answer = await trio.to_thread.run_sync(
            engine.request, "GET", "/api/v1/process-instances?status=RUNNING&limit=1"
        )
        if not answer["instances"]:
            return
        await trio.sleep(0.1)
