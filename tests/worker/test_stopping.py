"""The way down: nothing is lost, and nothing stays locked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from stellwerk.errors import Conflict
from stellwerk.worker import Task

if TYPE_CHECKING:
    from tests.worker.conftest import Observed
    from tests.worker.conftest import ScriptedEngine as Engine

Offer = Callable[..., dict[str, Any]]
Serve = Callable[..., Any]


async def never_called(payload: object) -> None: ...


async def test_W10_an_idle_worker_says_goodbye_at_once(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve
) -> None:
    observed.worker.task("payment")(never_called)
    served = await serve_worker(observed.worker)
    peer = await engine.accept_welcomed()
    before = trio.current_time()
    observed.worker.stop()
    await peer.receive("subscribe", max_tasks=0)
    await peer.receive("goodbye")
    await peer.drain_until_closed()
    await served.ended.wait()
    assert trio.current_time() == before
    assert not observed.worker.is_healthy()
    assert observed.errors == []


async def test_W10_without_a_connection_an_idle_worker_stops_at_once(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve
) -> None:
    observed.worker.task("payment")(never_called)
    engine.refuses = True
    served = await serve_worker(observed.worker)
    await trio.sleep(100)
    before = trio.current_time()
    observed.worker.stop()
    await served.ended.wait()
    assert trio.current_time() == before


async def test_W10_running_handlers_get_the_abort_signal_and_the_task_goes_back(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve, offer: Offer
) -> None:
    reasons: list[str | None] = []

    @observed.worker.task("payment")
    async def charge(payload: object, task: Task) -> None:
        try:
            await trio.sleep_forever()
        finally:
            reasons.append(task.signal.reason)

    @observed.worker.task("aborts")
    async def aborts(payload: object, task: Task) -> None:
        with trio.CancelScope(shield=True):
            await task.wait_cancelled()
            raise RuntimeError("task was aborted")

    @observed.worker.task("finishes")
    async def finishes(payload: object, task: Task) -> dict[str, bool]:
        with trio.CancelScope(shield=True):
            await task.wait_cancelled()
        return {"finished": True}

    served = await serve_worker(observed.worker)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("t1"), offer("t2", topic="aborts"), offer("t3", topic="finishes"))
    await trio.sleep(1)
    observed.worker.stop()
    for task_id in ("t1", "t2"):
        release = await peer.receive("release", task_id=task_id)
        assert release["started"] is True
        await peer.ack(release)
    complete = await peer.receive("complete", task_id="t3")
    assert complete["variables"] == {"finished": True}
    await peer.ack(complete)
    await peer.receive("goodbye")
    await peer.drain_until_closed()
    await served.ended.wait()
    assert reasons == ["worker_stops"]
    assert observed.errors == []


async def test_W10_with_a_grace_period_running_work_is_finished(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: object, task: Task) -> dict[str, bool]:
        await trio.sleep(20)
        return {"cancelled": task.cancelled}

    await serve_worker(observed.worker)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await trio.sleep(1)
    observed.worker.stop(grace=60)
    complete = await peer.receive("complete")
    assert complete["variables"] == {"cancelled": False}
    await peer.ack(complete)
    await peer.receive("goodbye")


async def test_fault_13_a_task_that_arrives_during_the_stop_goes_back_untouched(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve, offer: Offer
) -> None:
    started: list[str] = []

    @observed.worker.task("payment")
    async def charge(payload: object, task: Task) -> None:
        started.append(task.id)
        await trio.sleep(5)

    await serve_worker(observed.worker)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("t1"))
    await trio.sleep(1)
    observed.worker.stop(grace=60)
    await peer.receive("subscribe", max_tasks=0)
    await peer.offer(offer("t2"), delivery=2)
    release = await peer.receive("release")
    assert (release["task_id"], release["started"]) == ("t2", False)
    await peer.ack(release)
    await peer.ack(await peer.receive("complete"))
    await peer.receive("goodbye")
    assert started == ["t1"]
    assert observed.errors == []


async def test_fault_74_the_worker_does_not_leave_before_its_results_were_acknowledged(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: object) -> None: ...

    served = await serve_worker(observed.worker)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.receive("complete")
    observed.worker.stop()
    await trio.sleep(2)
    await peer.close(1011)  # even over a lost connection
    again = await engine.accept_welcomed(lost=({"task_id": "t1", "fence": 7, "reason": "lost"},))
    complete = await again.receive("complete")
    assert not served.ended.is_set()
    await again.ack(complete)
    await again.receive("goodbye")
    await again.drain_until_closed()
    await served.ended.wait()
    assert observed.error_kinds == ["fetchAndLock"]


async def test_fault_75_renewals_go_on_during_the_drain(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: object) -> None:
        await trio.sleep(100)

    await serve_worker(observed.worker)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await observed.wait_for_heartbeat("processExternalTask", "t1")
    observed.worker.stop(grace=3600)
    await peer.receive("subscribe", max_tasks=0)
    for _ in range(4):
        await trio.sleep(22)
        assert (await peer.receive("holding"))["leases"] == [{"task_id": "t1", "fence": 7}]
        await peer.renew("t1", 7)
    await peer.ack(await peer.receive("complete"))
    await peer.receive("goodbye")
    assert observed.errors == []


async def test_fault_76_a_handler_that_does_not_end_gives_its_task_back(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def stubborn(payload: object) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(20)

    await serve_worker(observed.worker)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await trio.sleep(1)
    before = trio.current_time()
    observed.worker.stop(grace=3)
    release = await peer.receive("release")
    assert trio.current_time() - before == pytest.approx(8), "3 s of grace, 5 s to obey the signal"
    assert release["started"] is True
    await peer.ack(release)
    await peer.receive("goodbye")
    await peer.drain_until_closed()
    assert peer.count("complete") == 0


async def test_the_stop_ends_even_when_the_engine_never_answers(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: object) -> None: ...

    served = await serve_worker(observed.worker)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.receive("complete")
    before = trio.current_time()
    observed.worker.stop()
    await served.ended.wait()
    assert trio.current_time() - before == pytest.approx(12, abs=2)
    assert observed.error_kinds == ["finishExternalTask"]


async def test_W10_dispose_is_for_good(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve
) -> None:
    observed.worker.task("payment")(never_called)
    served = await serve_worker(observed.worker)
    await engine.accept_welcomed()
    observed.worker.dispose()
    await served.ended.wait()
    with pytest.raises(Conflict, match="disposed"):
        await observed.worker.serve()


async def test_a_stopped_worker_can_serve_again_as_a_new_process_would(
    autojump_clock: MockClock, engine: Engine, observed: Observed, serve_worker: Serve
) -> None:
    observed.worker.task("payment")(never_called)
    boots = set()
    for _ in range(2):
        served = await serve_worker(observed.worker)
        peer = await engine.accept()
        hello = await peer.welcome()
        assert hello["session_no"] == 1
        boots.add(hello["boot_id"])
        observed.worker.stop()
        await served.ended.wait()
    assert len(boots) == 2


async def test_a_worker_that_cannot_serve_says_why(autojump_clock: MockClock, observed: Observed) -> None:
    with pytest.raises(Conflict, match="no handler"):
        await observed.worker.serve()
    observed.worker.task("payment")(never_called)
    observed.worker.stop()
    await observed.worker.serve()  # stopped before it began
