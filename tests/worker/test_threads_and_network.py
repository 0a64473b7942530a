"""Handlers in threads and under asyncio, over a real TCP connection to another WebSocket library, in real time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from stellwerk.worker import BpmnError, Task, Worker

if TYPE_CHECKING:
    from tests.worker.conftest import NetworkEngine as Engine
    from tests.worker.conftest import Observed

Offer = Callable[..., dict[str, Any]]


async def test_W3_plain_functions_run_side_by_side_in_threads(
    network_engine: Engine, nursery: trio.Nursery, offer: Offer
) -> None:
    worker = Worker(network_engine.url)
    together = threading.Barrier(5)

    @worker.task("payment", max_tasks=5)
    def charge(payload: dict[str, Any], task: Task) -> dict[str, Any]:
        together.wait(20)
        return {"thread": threading.current_thread() is not threading.main_thread()}

    await nursery.start(worker.serve)
    peer = await network_engine.accept_welcomed()
    await peer.offer(*(offer(f"t{number}") for number in range(5)))
    for _ in range(5):
        assert (await peer.receive("complete"))["variables"] == {"thread": True}


async def test_W4_a_thread_sees_the_cancellation_and_keeps_its_slot_until_it_is_back(
    network_engine: Engine, nursery: trio.Nursery, offer: Offer, observe: Callable[[Worker], Observed]
) -> None:
    worker = Worker(network_engine.url)
    observed = observe(worker)
    let_go = threading.Event()
    seen: list[object] = []

    @worker.task("payment", max_tasks=1)
    def charge(payload: dict[str, Any], task: Task, signal: Any) -> dict[str, Any]:
        seen.append(signal.wait(20))
        seen.append((task.cancelled, signal.reason, task.lock_remaining))
        let_go.wait(20)
        return {"late": True}

    await nursery.start(worker.serve)
    peer = await network_engine.accept_welcomed()
    await peer.offer(offer())
    await observed.wait_for_heartbeat("processExternalTask", "t1")
    await peer.revoke("t1", 7)
    await peer.receive("subscribe", max_tasks=0)
    assert worker.health().active_task_count == 1
    let_go.set()
    await peer.receive("subscribe", max_tasks=1)
    assert seen == [True, (True, "cancelled", 0.0)]
    assert peer.count("complete") == 0
    assert worker.health().active_task_count == 0


async def test_a_thread_can_ask_for_more_time(network_engine: Engine, nursery: trio.Nursery, offer: Offer) -> None:
    worker = Worker(network_engine.url)

    @worker.task("payment")
    def charge(payload: dict[str, Any], task: Task) -> dict[str, Any]:
        before = task.lock_remaining
        task.extend(300)
        return {"before": 0 < before <= 30}

    await nursery.start(worker.serve)
    peer = await network_engine.accept_welcomed()
    await peer.offer(offer())
    assert (await peer.receive("extend"))["lock_duration_ms"] == 300_000
    assert (await peer.receive("complete"))["variables"] == {"before": True}


@pytest.mark.parametrize("error", [SystemExit(3), ValueError("x"), BpmnError("X")])
async def test_whatever_a_thread_raises_ends_its_task_and_not_the_worker(
    network_engine: Engine, nursery: trio.Nursery, offer: Offer, error: BaseException
) -> None:
    worker = Worker(network_engine.url)

    @worker.task("payment")
    def charge(payload: dict[str, Any]) -> None:
        if payload["amount"] == 12:
            raise error

    await nursery.start(worker.serve)
    peer = await network_engine.accept_welcomed()
    await peer.offer(offer("bad"), offer("good", variables={"amount": 1}))
    await peer.receive("bpmn_error" if isinstance(error, BpmnError) else "fail", task_id="bad")
    await peer.receive("complete", task_id="good")


async def test_asyncio_coroutines_run_and_are_cancelled(
    network_engine: Engine, nursery: trio.Nursery, offer: Offer, observe: Callable[[Worker], Observed]
) -> None:
    worker = Worker(network_engine.url)
    observed = observe(worker)
    ended = trio.Event()

    @worker.task("payment", asyncio=True)
    async def charge(payload: dict[str, Any], task: Task) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"asyncio": asyncio.current_task() is not None}

    @worker.task("long", asyncio=True)
    async def long(payload: dict[str, Any]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise

    @worker.task("fails", asyncio=True)
    async def fails(payload: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        raise BpmnError("NO")

    await nursery.start(worker.serve)
    peer = await network_engine.accept_welcomed()
    await peer.offer(offer("l", topic="long"), offer("f", topic="fails"), offer("p"))
    complete = await peer.receive("complete", task_id="p")
    assert complete["variables"] == {"asyncio": True}
    await peer.ack(complete)
    error = await peer.receive("bpmn_error", task_id="f")
    assert error["code"] == "NO"
    await peer.ack(error)
    await observed.wait_for_heartbeat("processExternalTask", "l")
    await peer.revoke("l", 7)
    with trio.fail_after(20):
        await ended.wait()
    worker.stop()
    await peer.receive("goodbye")


async def test_the_tcp_connection_is_closed_when_the_engine_hangs_up(
    network_engine: Engine, nursery: trio.Nursery
) -> None:
    worker = Worker(network_engine.url)
    worker.task("payment")(lambda payload: None)
    await nursery.start(worker.serve)
    for code in (1000, 1001, 1011):
        peer = await network_engine.accept_welcomed()
        with trio.fail_after(5):
            await peer.close(code)  # returns when TCP is closed on both sides
    await network_engine.accept_welcomed()


SCRIPT = """
import sys
from stellwerk import Worker

worker = Worker(sys.argv[1], worker_id="script")

@worker.task("payment")
def charge(payload, task):
    task.signal.wait(30 if payload["hangs"] else 0.0)
    return {"cancelled": task.cancelled}

if __name__ == "__main__":
    worker.run(grace=0.0)
"""


async def test_W10_run_stops_gracefully_on_SIGTERM(
    network_engine: Engine, nursery: trio.Nursery, offer: Offer, tmp_path: Path
) -> None:
    script = tmp_path / "shop.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), network_engine.url]
    process = await nursery.start(lambda task_status: trio.run_process(command, task_status=task_status))
    peer = await network_engine.accept_welcomed()
    await peer.offer(offer("t1", variables={"hangs": False}))
    await peer.ack(await peer.receive("complete"))
    await peer.offer(offer("t2", variables={"hangs": True}), delivery=2)
    await peer.receive("received", delivery=2)
    os.kill(process.pid, signal.SIGTERM)
    await peer.receive("subscribe", max_tasks=0)
    complete = await peer.receive("complete", task_id="t2")
    assert complete["variables"] == {"cancelled": True}
    await peer.ack(complete)
    await peer.receive("goodbye")
    with trio.fail_after(20):
        assert await process.wait() == 0


def test_importing_the_sdk_is_light() -> None:
    code = (
        "import sys, stellwerk.worker; "
        "print([name for name in ('cattrs', 'starlette', 'sqlite3', 'trio_asyncio', 'stellwerk.core', 'rich')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
