"""What the engine will not take is neither repeated for ever nor let go, and stands in nobody else's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from stellwerk.worker import BpmnError, Task, TaskFailure, WorkerGaveUp

if TYPE_CHECKING:
    from tests.worker.conftest import Observed, Peer
    from tests.worker.conftest import ScriptedEngine as Engine

Offer = Callable[..., dict[str, Any]]


def kept(*task_ids: str) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"task_id": task_id, "fence": 7, "lock_remaining_ms": 900_000, "lock_expires_at": ""} for task_id in task_ids
    )


async def close_for(peer: Peer, code: str) -> None:
    await peer.send({"type": "error", "code": code, "message": f"closed: {code}"})
    await peer.drain_until_closed()


async def test_a_refused_failure_is_said_more_simply_so_that_a_retry_is_used(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any]) -> None:
        raise TaskFailure("x" * 5_000, {"shop": 1}, retry_after=60, retries=0)

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.nack(await peer.receive("fail"), "invalid")
    shorter = await peer.receive("fail")
    assert (len(shorter["message"].encode()), shorter["details"]) == (1024, None)
    assert (shorter["retry_after_ms"], shorter["retries"]) == (60_000, 0)
    await peer.nack(shorter, "too_large")
    plain = await peer.receive("fail")
    assert (plain["details"], plain["retry_after_ms"], plain["retries"]) == (None, None, None)
    await peer.ack(plain)
    await observed.wait_for_heartbeat("handleError", "t1")
    assert [holding["leases"] for holding in peer.log if holding["type"] == "holding"] == []
    assert (await peer.receive("holding"))["leases"] == []


async def test_a_lease_whose_every_failure_is_refused_stays_held_and_its_handler_does_not_run_again(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    runs: list[str] = []

    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any], task: Task) -> None:
        runs.append(task.id)
        raise TaskFailure("no")

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer(lock_remaining_ms=3_600_000))
    for _ in range(2):  # with the traceback, without it
        await peer.nack(await peer.receive("fail"), "invalid")
    await trio.sleep(145)
    assert (await peer.receive("holding"))["leases"] == [{"task_id": "t1", "fence": 7}]
    assert peer.count("fail") == 2
    await trio.sleep(160)
    again = await peer.receive("fail")
    assert runs == ["t1"]
    await peer.nack(again, "invalid")
    await trio.sleep(305)
    await peer.ack(await peer.receive("fail"))
    await observed.wait_for_heartbeat("handleError", "t1")
    assert observed.error_kinds.count("finishExternalTask") == 3


@pytest.mark.parametrize("code", ["invalid", "too_large", "internal"])
async def test_the_result_that_closes_the_session_is_found_and_the_others_get_through(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer, code: str
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any], task: Task) -> dict[str, Any]:
        if task.id == "bad":
            raise BpmnError("POISON")
        return {"charged": task.id}

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(*(offer(task_id, lock_remaining_ms=900_000) for task_id in ("a", "bad", "b")))
    await peer.receive("complete", task_id="b")
    await close_for(peer, code)

    unanswered = ["a", "bad", "b"]
    failure: dict[str, Any] | None = None
    for _ in range(10):
        peer = await engine.accept()
        assert len((await peer.welcome(kept=kept(*unanswered)))["holding"]) == len(unanswered)
        failure = await answer_until_poisoned(peer, unanswered, code)
        if failure is not None:
            break
    assert failure is not None
    assert failure["message"] == f"the engine refused the result: closed: {code}"
    await peer.ack(failure)
    await observed.wait_for_heartbeat("handleError", "bad")
    assert unanswered == ["bad"]
    assert observed.heartbeats.count(("finishExternalTask", "a")) == 1
    assert "finishExternalTask" in observed.error_kinds
    assert observed.worker.health().consecutive_critical_errors == 0

    await peer.offer(offer("c"), offer("d"))
    await peer.receive("complete", task_id="c")
    await peer.receive("complete", task_id="d")  # no more one at a time


async def answer_until_poisoned(peer: Peer, unanswered: list[str], code: str) -> dict[str, Any] | None:
    """An engine that closes the session for a `bpmn_error`. → the `fail` that came instead of it"""
    while True:
        with trio.fail_after(60):
            while not any(message["type"] in ("complete", "bpmn_error", "fail") for message in peer.log[-1:]):
                await peer.receive_any()
        request = peer.log[-1]
        peer.log.clear()
        if request["type"] == "fail":
            return request
        if request["type"] == "bpmn_error":
            await close_for(peer, code)
            return None
        unanswered.remove(request["task_id"])
        await peer.ack(request)


async def test_a_session_that_is_closed_for_another_reason_costs_no_result(
    autojump_clock: MockClock, engine: Engine, observed: Observed, offer: Offer
) -> None:
    """A filter that this engine does not take, say: the results that wait meanwhile are none the worse for it."""
    requests: list[str] = []

    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any]) -> None: ...

    async def play() -> None:
        peer = await engine.accept_welcomed()
        await peer.offer(offer(lock_remaining_ms=900_000))
        await peer.receive("complete")
        while True:
            await close_for(peer, "invalid")
            requests.extend(message["type"] for message in peer.log if "ref" in message)
            peer = await engine.accept()
            await peer.welcome(kept=kept("t1"))
            await peer.receive("subscribe")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(play)
        with pytest.raises(WorkerGaveUp, match="closed: invalid"):
            await observed.worker.serve()
        nursery.cancel_scope.cancel()
    assert set(requests) == {"complete"}


async def test_a_result_that_fits_one_engine_and_not_the_next_becomes_a_failure(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any]) -> dict[str, str]:
        return {"text": "x" * 50_000}

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer(lock_remaining_ms=900_000))
    await peer.receive("complete")
    await peer.close(1011)
    smaller = await engine.accept()
    await smaller.welcome(kept=kept("t1"), frame_bytes_max=20_000)
    assert "does not fit a frame of 20000" in (await smaller.receive("fail"))["message"]
