"""What a node leaves behind that drains while the database does not answer."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
import trio

from stellwerk import open_engine
from stellwerk.core.external_task import AttemptEnd, TaskState
from stellwerk.stores.postgres.bridge import Bridge

MODEL = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="order" isExecutable="true">
    <startEvent id="s"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="charge"/>
    <serviceTask id="charge" stellwerk:topic="charge" stellwerk:singleTry="true"/>
    <sequenceFlow id="f2" sourceRef="charge" targetRef="e"/>
    <endEvent id="e"/>
  </process>
</definitions>
"""


@pytest.mark.parametrize("at_birth", [True, False])
async def test_no_task_stays_locked_that_was_leased_while_the_worker_left(postgres_dsn: str, at_birth: bool) -> None:
    bridge = await Bridge.open()
    blocker = await bridge.run(lambda: asyncpg.connect(postgres_dsn))
    started: list[Any] = []
    with trio.fail_after(30):
        async with open_engine(postgres_dsn) as engine:
            await engine.deploy(("order.bpmn", MODEL.encode()))
            worker = engine.worker()

            @worker.task("charge")
            async def charge(payload: dict[str, Any]) -> None:
                started.append(payload)

            if at_birth:
                await engine.start_worker(worker)
                while not await engine.workers():
                    await trio.sleep(0.01)
                await trio.sleep(0.2)
            else:
                await engine.start("order")
            await bridge.run(lambda: blocker.execute("BEGIN; LOCK stellwerk.external_tasks IN SHARE MODE"))
            async with trio.open_nursery() as nursery:
                if at_birth:
                    nursery.start_soon(engine.start, "order")
                else:
                    await engine.start_worker(worker)
                    while not await engine.workers():
                        await trio.sleep(0.01)
                await trio.sleep(0.3)
                nursery.start_soon(engine.drain, 5)
                await trio.sleep(0.8)
                await bridge.run(lambda: blocker.execute("ROLLBACK"))
        async with open_engine(postgres_dsn) as engine:
            [task] = await engine.tasks()
            attempts = await engine.node.ports.store.attempts(task.task_id)
    await bridge.run(blocker.close)
    await bridge.close()
    assert (task.state, task.lock_expiries, started) == (TaskState.READY, 0, [])
    assert [attempt.end for attempt in attempts] == [AttemptEnd.RELEASED]
