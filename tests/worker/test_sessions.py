"""Connections come and go; leases, heartbeats and results live on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import pytest
import trio
from trio.testing import MockClock

from stellwerk.wire.messages import TaskOffer
from stellwerk.worker import Refused, Task, Worker, WorkerGaveUp
from stellwerk.worker.leases import LeaseTable

if TYPE_CHECKING:
    from tests.worker.conftest import Observed
    from tests.worker.conftest import ScriptedEngine as Engine

Offer = Callable[..., dict[str, Any]]


class Gate:
    """A handler that waits until it is let through, and says how it ended."""

    def __init__(self, worker: Worker, topic: str = "payment", **options: Any) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.tasks: dict[str, Task] = {}
        self._open = trio.Event()
        worker.task(topic, **options)(self.handle)

    async def handle(self, payload: dict[str, Any], task: Task) -> dict[str, Any]:
        self.started.append(task.id)
        self.tasks[task.id] = task
        try:
            await self._open.wait()
        except trio.Cancelled:
            self.ended.append(f"{task.id} cancelled: {task.signal.reason}")
            raise
        self.ended.append(f"{task.id} done")
        return {"done": task.id}

    def open(self) -> None:
        self._open.set()


@pytest.mark.parametrize("code", [1000, 1001, 1008, 1011, 4000])
async def test_fault_24_any_close_by_the_engine_leads_to_a_new_connection(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, code: int
) -> None:
    Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    assert observed.worker.is_healthy()
    await peer.close(code)
    again = await engine.accept()
    assert not observed.worker.is_healthy()
    hello = await again.welcome()
    assert hello["session_no"] == 2
    await again.receive("subscribe", topic="payment", max_tasks=10)
    assert observed.worker.is_healthy()
    assert observed.error_kinds == ["fetchAndLock"]


async def test_fault_23_an_engine_that_never_welcomes_is_left_after_ten_seconds(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery
) -> None:
    Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    silent = await engine.accept()
    await silent.receive("hello")
    await engine.accept_stream()  # the next one does not even answer the handshake
    assert 10 <= engine.dials[1] - engine.dials[0] < 11
    await engine.accept_welcomed()
    assert 10 <= engine.dials[2] - engine.dials[1] < 11
    assert observed.error_kinds == ["fetchAndLock"] * 2


async def test_fault_26_the_worker_outlives_an_engine_that_is_gone_for_an_hour(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    gate.open()
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    engine.refuses = True
    await peer.close(1012)
    await trio.sleep(3600)
    waits = [later - earlier for earlier, later in zip(engine.dials[1:], engine.dials[2:], strict=False)]
    assert waits[0] < 0.3
    assert all(5 <= wait <= 10 for wait in waits[10:])
    assert len(set(waits[10:])) > 10, "jittered"
    engine.refuses = False
    again = await engine.accept_welcomed()
    await again.offer(offer())
    await again.receive("complete")


async def test_an_engine_that_stops_reading_is_left_after_two_heartbeats(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery
) -> None:
    Gate(observed.worker, lock_duration=12)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept(unread_frames_max=0)
    await peer.welcome()
    await engine.accept_welcomed()
    # It stalls at the first report, and the ping after it has two heartbeats of two seconds.
    assert engine.dials[1] - engine.dials[0] < 2 + 2 + 4 + 1
    assert observed.error_kinds == ["fetchAndLock"]


async def test_heartbeats_are_a_sixth_of_the_shortest_lock_and_name_what_is_held(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    Gate(observed.worker, lock_duration=12)
    Gate(observed.worker, "other", lock_duration=60)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    assert (await peer.receive("holding"))["leases"] == []
    before = trio.current_time()
    await peer.offer(offer(), offer("t2", 9))
    assert (await peer.receive("holding"))["leases"] == [{"task_id": "t1", "fence": 7}, {"task_id": "t2", "fence": 9}]
    assert trio.current_time() - before == pytest.approx(2)


async def test_deliveries_are_confirmed_with_whatever_else_goes_out(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment", max_tasks=100)
    async def charge(payload: object) -> None: ...

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(*(offer(f"t{number}") for number in range(50)), delivery=4)
    assert (await peer.receive("received"))["delivery"] == 4
    for _ in range(50):
        await peer.receive("complete")
    frames = [frame for frame in peer.frames if any(message["type"] == "complete" for message in frame)]
    assert len(frames) <= 2, "results that are ready together travel together"


async def test_rule_16_a_lease_is_reported_until_its_result_was_acknowledged(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    gate.open()
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    complete = await peer.receive("complete")
    assert (await peer.receive("holding"))["leases"] == [{"task_id": "t1", "fence": 7}]
    await peer.ack(complete)
    await observed.wait_for_heartbeat("finishExternalTask", "t1")
    assert (await peer.receive("holding"))["leases"] == []


async def test_fault_20_a_lease_goes_on_over_a_lost_connection(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await trio.sleep(1)
    await peer.close(1011)
    again = await engine.accept()
    kept = {"task_id": "t1", "fence": 7, "lock_remaining_ms": 28_000, "lock_expires_at": ""}
    hello = await again.welcome(kept=(kept,))
    assert hello["holding"] == [{"task_id": "t1", "fence": 7}]
    gate.open()
    assert (await again.receive("complete"))["fence"] == 7
    assert gate.started == ["t1"]


async def test_rule_14_hello_names_the_single_tries_that_were_begun_and_let_go(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    """The engine may have them locked still, and would give away again what it hears nothing of."""
    gate = Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(
        offer("expires", lock_remaining_ms=2_000, single_try=True),
        offer("lost", single_try=True),
        offer("kept", single_try=True),
        offer("ordinary", lock_remaining_ms=2_000),
    )
    await peer.receive("received")
    await peer.revoke("lost", 7, "lost")
    await trio.sleep(3)
    await peer.close(1011)
    kept = {"task_id": "kept", "fence": 7, "lock_remaining_ms": 30_000, "lock_expires_at": ""}
    again = await engine.accept()
    hello = await again.welcome(kept=(kept,))
    assert [lease["task_id"] for lease in hello["holding"]] == ["kept"]
    assert [(lease["task_id"], lease["fence"]) for lease in hello["begun"]] == [("lost", 7), ("expires", 7)]
    gate.open()
    await again.ack(await again.receive("complete", task_id="kept"))
    await observed.wait_for_heartbeat("finishExternalTask", "kept")
    await again.close(1011)
    hello = await (await engine.accept()).welcome()
    assert hello["holding"] == []
    assert [lease["task_id"] for lease in hello["begun"]] == ["lost", "expires"], "what was acknowledged is over"


async def test_rule_14_a_single_try_whose_result_waits_for_an_answer_is_named_when_it_is_lost(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    Gate(observed.worker).open()
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer(single_try=True), offer("refused", single_try=True))
    await peer.nack(await peer.receive("complete", task_id="refused"), "lease_lost")
    await peer.receive("complete", task_id="t1")
    await peer.revoke("t1", 7, "lost")
    await trio.sleep(1)
    await peer.close(1011)
    hello = await (await engine.accept()).welcome()
    assert (hello["holding"], hello["begun"]) == ([], [{"task_id": "t1", "fence": 7}])


async def test_rule_14_a_single_try_that_there_was_no_room_for_is_not_named(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    """It was never begun: its release is not answered, and hello gives it back."""
    gate = Gate(observed.worker, max_tasks=1)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("t1"), offer("t2", lock_remaining_ms=2_000, single_try=True))
    assert (await peer.receive("release", task_id="t2"))["started"] is False
    await trio.sleep(3)
    await peer.close(1011)
    hello = await (await engine.accept()).welcome()
    assert ([lease["task_id"] for lease in hello["holding"]], hello["begun"]) == (["t1"], [])
    assert gate.started == ["t1"]


def test_rule_14_a_worker_that_let_go_of_too_many_single_tries_says_that_it_cannot_tell() -> None:
    table = LeaseTable()
    single = TaskOffer(
        "t", 1, "payment", "k", "i", "d:1", None, "e", 1, 3, 0, "", 30_000, "", msgspec.Raw(), msgspec.Raw(), True
    )
    for fence in range(1, 1_002):
        assert table.begun() is not None
        lease = table.accept(attrs.evolve(single, fence=fence), 0.0)
        assert lease is not None
        lease.has_begun = True
        table.drop(lease)
    assert table.begun() is None


async def test_a_cancellation_during_a_lost_connection_arrives_with_the_welcome(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("t1"), offer("t2"), offer("t3"))
    await trio.sleep(1)
    await peer.close(1011)
    kept = {"task_id": "t3", "fence": 7, "lock_remaining_ms": 28_000, "lock_expires_at": ""}
    again = await engine.accept()
    await again.welcome(lost=({"task_id": "t1", "fence": 7, "reason": "cancelled"},), kept=(kept,))
    assert (await again.receive("holding"))["leases"] == [{"task_id": "t3", "fence": 7}]
    assert sorted(gate.ended) == ["t1 cancelled: cancelled", "t2 cancelled: lost"]


async def test_fault_95_a_result_whose_answer_was_lost_is_handed_in_again(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    gate.open()
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    first = await peer.receive("complete")
    await peer.close(1011)
    again = await engine.accept()
    # The engine has committed it, so it does not know the lease any more.
    await again.welcome(lost=({"task_id": "t1", "fence": 7, "reason": "lost"},))
    second = await again.receive("complete")
    assert {**second, "ref": 0} == {**first, "ref": 0}
    assert (await again.receive("holding"))["leases"] == []
    await again.ack(second)
    await observed.wait_for_heartbeat("finishExternalTask", "t1")
    assert observed.error_kinds == ["fetchAndLock"]


async def test_fault_148_a_result_is_handed_in_until_it_is_taken(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    gate.open()
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    for _ in range(4):
        await peer.nack(await peer.receive("complete"), "unavailable", retryable=True)
    await peer.ack(await peer.receive("complete"))
    await observed.wait_for_heartbeat("finishExternalTask", "t1")
    assert observed.error_kinds == ["finishExternalTask"] * 4


async def test_a_result_for_a_lost_lease_is_reported_and_over(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    gate.open()
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.nack(await peer.receive("complete"), "lease_lost")
    error = await observed.wait_for_error("finishExternalTask")
    assert isinstance(error, Refused)
    assert error.code == "lease_lost"
    assert (await peer.receive("holding"))["leases"] == []


@pytest.mark.parametrize("connected", [True, False])
async def test_fault_150_without_a_renewal_the_handler_is_aborted_before_the_lock_ends(
    autojump_clock: MockClock,
    engine: Engine,
    observed: Observed,
    nursery: trio.Nursery,
    offer: Offer,
    connected: bool,
) -> None:
    gate = Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await trio.sleep(1)
    if not connected:
        engine.refuses = True
        await peer.close(1011)
    started = trio.current_time()
    await observed.wait_for_error("extendLock")
    assert 28.5 < trio.current_time() - started <= 29
    await trio.testing.wait_all_tasks_blocked()
    assert gate.ended == ["t1 cancelled: expired"]
    engine.refuses = False
    if connected:
        await trio.sleep(20)
        await peer.close(1000)
        await peer.drain_until_closed()
        assert peer.count("complete") + peer.count("release") == 0


async def test_a_late_frame_shortens_the_trust(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    made_ms = trio.current_time() * 1000
    await trio.sleep(12)
    await peer.send({"type": "tasks", "delivery": 1, "tasks": [offer()], "worker_time_ms": made_ms})
    started = trio.current_time()
    await observed.wait_for_error("extendLock")
    assert trio.current_time() - started == pytest.approx(18 - 0.03)


async def test_an_engine_that_does_not_tell_when_a_frame_was_made_is_trusted_from_the_hello_on(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await trio.sleep(12)
    await peer.send({"type": "tasks", "delivery": 1, "tasks": [offer()], "server_time_ms": 1e9})
    started = trio.current_time()
    await observed.wait_for_error("extendLock")
    assert trio.current_time() - started == pytest.approx(18 - 0.03)


async def test_hello_and_reports_tell_the_workers_time_by_its_clock(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery
) -> None:
    Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept()
    hello = await peer.welcome()
    assert hello["worker_time_ms"] == pytest.approx(trio.current_time() * 1000)
    report = await peer.receive("holding")
    assert report["worker_time_ms"] == pytest.approx(trio.current_time() * 1000)
    assert report["worker_time_ms"] > hello["worker_time_ms"]


async def test_K2_no_handler_begins_on_a_lease_that_ran_out_on_the_way(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    gate.open()
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    made_ms = trio.current_time() * 1000
    await trio.sleep(31)
    late = {"type": "tasks", "delivery": 1, "tasks": [offer("late")], "worker_time_ms": made_ms}
    await peer.send(late)
    await peer.offer(offer("fresh"), delivery=2)
    await peer.receive("complete", task_id="fresh")
    assert gate.started == ["fresh"]


class StandingClock:
    """A worker's, which goes on while its process stands still."""

    def __init__(self) -> None:
        self.stood_s = 0.0

    def monotonic(self) -> float:
        return trio.current_time() + self.stood_s

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


async def test_K2_no_handler_begins_when_its_process_stood_still_until_the_lease_was_over(
    autojump_clock: MockClock, engine: Engine, nursery: trio.Nursery, offer: Offer
) -> None:
    """It stands still after it has read the frame, and before it calls the handler in the scheduler's next step."""
    clock = StandingClock()
    worker = Worker("http://engine:10560", worker_id="w1", dial=engine.dial, clock=clock)
    gate = Gate(worker)
    stands_still_soon = False

    def stand_still(operation: str, task_id: str | None) -> None:
        if operation == "fetchAndLock" and stands_still_soon:
            clock.stood_s += 31

    worker.on_heartbeat(stand_still)
    await nursery.start(worker.serve)
    peer = await engine.accept_welcomed()
    # Another lease ends earlier: so nothing looks at ends when this one comes, before its handler's turn.
    await peer.offer(offer("first", lock_remaining_ms=25_000))
    await trio.sleep(0.01)
    stands_still_soon = True
    await peer.offer(offer("late"), delivery=2)
    await trio.sleep(0.01)
    stands_still_soon = False
    now = {"worker_time_ms": clock.monotonic() * 1000}
    await peer.send({"type": "tasks", "delivery": 3, "tasks": [offer("fresh")], **now})
    await trio.sleep(0.01)
    assert gate.started == ["first", "fresh"]


async def test_fault_52_renewals_keep_a_long_task_alive(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    for _ in range(10):
        await trio.sleep(25)
        await peer.renew("t1", 7)
    assert gate.ended == []
    gate.open()
    await peer.receive("complete")
    assert ("extendLock", "t1") in observed.heartbeats
    assert observed.errors == []


async def test_fault_52_a_handler_can_ask_for_more_time(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.receive("received")
    await trio.testing.wait_all_tasks_blocked()
    task = gate.tasks["t1"]
    task.extend(10)  # it has more than that
    task.extend(300)
    extend = await peer.receive("extend")
    assert (extend["lock_duration_ms"], extend["fence"]) == (300_000, 7)
    await peer.ack(extend)
    await trio.sleep(200)
    assert gate.ended == []
    assert task.lock_remaining == pytest.approx(100, abs=1)
    assert peer.count("extend") == 1


async def test_a_refused_extension_aborts_the_handler(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.receive("received")
    await trio.testing.wait_all_tasks_blocked()
    gate.tasks["t1"].extend(300)
    await peer.nack(await peer.receive("extend"), "lease_lost")
    await observed.wait_for_error("extendLock")
    await trio.testing.wait_all_tasks_blocked()
    assert gate.ended == ["t1 cancelled: lost"]
    assert gate.tasks["t1"].lock_remaining == 0


async def test_W2_rule_18_a_revocation_aborts_the_handler_and_is_final(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await trio.sleep(1)
    await peer.revoke("t1", 7)
    await peer.renew("t1", 7)
    await peer.offer(offer(), delivery=2)
    assert (await peer.receive("holding"))["leases"] == []
    assert gate.ended == ["t1 cancelled: cancelled"]
    await peer.offer(offer(fence=8), delivery=3)
    assert (await peer.receive("holding"))["leases"] == [{"task_id": "t1", "fence": 8}]
    assert gate.started == ["t1", "t1"]
    assert observed.errors == []


async def test_fault_32_a_slot_comes_back_however_its_task_ends(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment", max_tasks=1)
    async def handle(payload: dict[str, str]) -> None:
        match payload["how"]:
            case "raise":
                raise ValueError
            case "hang":
                await trio.sleep_forever()
            case _:
                pass

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    for round_ in range(10):
        for how in ("return", "raise", "hang", "misfit"):
            task_id = f"{how}-{round_}"
            variables: object = {"how": how} if how != "misfit" else {}
            await peer.offer(offer(task_id, variables=variables), delivery=1)
            if how == "hang":
                await trio.testing.wait_all_tasks_blocked()
                await peer.revoke(task_id, 7)
                await trio.testing.wait_all_tasks_blocked()
            else:
                await peer.ack(await peer.receive("complete" if how == "return" else "fail", task_id=task_id))
    assert peer.count("release") == 0
    assert observed.worker.health().active_task_count == 0


async def test_fault_30_a_handler_that_does_not_give_up_keeps_its_slot(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment", max_tasks=2)
    async def stubborn(payload: object) -> dict[str, int]:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        return {"late": 1}

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await trio.sleep(1)
    await peer.revoke("t1", 7)
    await peer.receive("subscribe", topic="payment", max_tasks=1)
    await peer.offer(offer("t2"), offer("t3"), delivery=2)  # crossed with the subscription
    release = await peer.receive("release")
    assert (release["task_id"], release["started"]) == ("t3", False)
    await peer.ack(release)
    await peer.renew("t2", 7, 120_000)
    await peer.receive("subscribe", topic="payment", max_tasks=2)
    assert (await peer.receive("complete"))["task_id"] == "t2"
    assert peer.count("complete") == 1, "the result of the revoked one is dropped"
    assert observed.errors == []


async def test_fault_34_tasks_start_when_they_arrive_and_nothing_queues(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker, max_tasks=5)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(*(offer(f"t{number}") for number in range(6)))
    release = await peer.receive("release")
    assert (release["task_id"], release["started"]) == ("t5", False)
    await trio.testing.wait_all_tasks_blocked()
    assert len(gate.started) == 5
    assert observed.worker.health().active_task_count == 5
    assert observed.error_kinds == ["unexpectedLoopError"]


async def test_fault_36_a_slow_task_does_not_hold_up_fast_ones(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    slow = Gate(observed.worker, "slow", max_tasks=1)

    @observed.worker.task("fast", max_tasks=1)
    async def fast(payload: object) -> None: ...

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("s", topic="slow"))
    for number in range(30):
        await peer.offer(offer(f"f{number}", topic="fast"), delivery=number + 2)
        await peer.ack(await peer.receive("complete", task_id=f"f{number}"))
    assert slow.started == ["s"]
    assert slow.ended == []


async def test_superseded_is_reported_and_followed_by_a_long_pause(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery
) -> None:
    Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.send({"type": "error", "code": "superseded", "message": "a newer session took over"})
    await engine.accept_welcomed()
    assert engine.dials[1] - engine.dials[0] >= 30
    assert observed.error_kinds == ["fetchAndLock"]


async def test_W8_five_critical_errors_in_a_row_stop_the_worker(
    autojump_clock: MockClock, engine: Engine, observed: Observed
) -> None:
    Gate(observed.worker)

    async def refuse() -> None:
        for number in range(5):
            peer = await engine.accept()
            assert observed.worker.health().consecutive_critical_errors == number
            await peer.receive("hello")
            await peer.send({"type": "error", "code": "forbidden", "message": "not for you"})
            await peer.drain_until_closed()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        with pytest.raises(
            WorkerGaveUp,
            match="after 5 critical errors in a row; the last: http://engine:10560 refuses this worker: not for you",
        ):
            await observed.worker.serve()
    assert observed.error_kinds == ["permanentAuthorizationError"] * 5
    assert not observed.worker.is_healthy()
    assert observed.worker.health().consecutive_critical_errors == 5


async def test_frames_that_cannot_be_read_are_critical(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery
) -> None:
    Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.send({"type": "tasks", "delivery": "one", "tasks": []})
    error = await observed.wait_for_error("unexpectedLoopError")
    assert str(error) == "tasks: Expected `int`, got `str` @ $.delivery"
    again = await engine.accept_welcomed()
    assert observed.worker.health().consecutive_critical_errors == 1
    await again.send({"type": "invented", "ref": 3})  # the engine may be newer than we
    await trio.sleep(20)
    assert observed.worker.health().consecutive_critical_errors == 0


async def test_W7_W8_a_credential_that_cannot_be_had(
    autojump_clock: MockClock, engine: Engine, observe: Callable[[Worker], Observed]
) -> None:
    async def token() -> str:
        raise OSError("identity provider down")

    worker = Worker("http://engine:10560", dial=engine.dial, token=token)
    observed = observe(worker)
    Gate(worker)
    with pytest.raises(WorkerGaveUp, match="identity provider down"):
        await worker.serve()
    assert observed.error_kinds == ["identityRefresh"] * 5 + ["criticalIdentityFailure"]
    assert engine.dials == []
    assert worker.health().identity_refresh_failed_critically
    assert not worker.is_healthy()


async def test_credentials_are_refreshed_when_the_engine_asks(
    autojump_clock: MockClock, engine: Engine, nursery: trio.Nursery
) -> None:
    tokens = iter(["first", "second"])

    async def token() -> str:
        return next(tokens)

    worker = Worker("http://engine:10560", dial=engine.dial, token=token)
    Gate(worker)
    await nursery.start(worker.serve)
    peer = await engine.accept()
    assert (await peer.welcome())["token"] == "first"
    await peer.send({"type": "reauthenticate", "within_ms": 10_000})
    assert (await peer.receive("authenticate"))["token"] == "second"


async def test_goaway_with_time_lets_work_end_and_the_worker_comes_back(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.send({"type": "goaway", "reason": "the node drains", "within_ms": 3000})
    await trio.sleep(2)
    gate.open()
    request = await peer.receive("complete")
    assert len(engine.dials) == 1
    await peer.ack(request)
    await peer.drain_until_closed()
    hello = await (await engine.accept()).welcome()
    assert (hello["holding"], hello["session_no"]) == ([], 2)
    assert engine.dials[1] <= 2.1
    assert observed.error_kinds == []


async def test_goaway_without_time_moves_what_is_held_to_the_next_session_at_once(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    """Others listen on the same address: the handler does not notice that its worker has another engine."""
    gate = Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.receive("received")
    await peer.send({"type": "goaway", "reason": "the node drains", "within_ms": 0})
    await peer.drain_until_closed()
    kept = {"task_id": "t1", "fence": 7, "lock_remaining_ms": 30_000, "lock_expires_at": ""}
    other = await engine.accept()
    hello = await other.welcome(kept=(kept,))
    assert [(lease["task_id"], lease["fence"]) for lease in hello["holding"]] == [("t1", 7)]
    assert 0.05 <= engine.dials[1] - engine.dials[0] <= 0.1
    gate.open()
    await other.ack(await other.receive("complete", task_id="t1", fence=7))
    assert (observed.error_kinds, peer.count("goodbye"), peer.count("release")) == ([], 0, 0)


async def test_goaway_of_every_engine_is_followed_by_longer_and_longer_pauses(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery
) -> None:
    """The only engine drains: whoever comes back at once, again and again, would keep it busy with that."""
    Gate(observed.worker)
    await nursery.start(observed.worker.serve)
    for _ in range(6):
        peer = await engine.accept_welcomed()
        await peer.send({"type": "goaway", "reason": "the node drains", "within_ms": 0})
        await peer.drain_until_closed()
    pauses = [later - earlier for earlier, later in zip(engine.dials, engine.dials[1:], strict=False)]
    assert all(0.05 * 2**number <= pause <= 0.1 * 2**number for number, pause in enumerate(pauses)), pauses


async def test_fault_27_hundreds_of_lost_connections_lose_no_slot_and_no_result(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    gate = Gate(observed.worker, max_tasks=1)
    gate.open()
    await nursery.start(observed.worker.serve)
    for number in range(100):
        peer = await engine.accept_welcomed()
        await peer.offer(offer(f"t{number}"))
        await peer.receive("complete", task_id=f"t{number}")
        await peer.close(1006 if number % 2 else 1011)
        again = await engine.accept()
        await again.welcome(lost=({"task_id": f"t{number}", "fence": 7, "reason": "lost"},))
        await again.ack(await again.receive("complete", task_id=f"t{number}"))
        await observed.wait_for_heartbeat("finishExternalTask", f"t{number}")
        await again.close(1011)
    assert len(gate.started) == 100
    assert observed.worker.health().active_task_count == 0


async def test_worker_says_where_it_is_connected_and_when_not(
    autojump_clock: MockClock,
    engine: Engine,
    observed: Observed,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "stellwerk.worker")
    Gate(observed.worker, "payment")
    Gate(observed.worker, "mail")
    engine.refuses = True
    await nursery.start(observed.worker.serve)
    await observed.wait_for_error("fetchAndLock")
    engine.refuses = False
    peer = await engine.accept_welcomed()
    observed.worker.stop()
    await peer.drain_until_closed()
    await trio.testing.wait_all_tasks_blocked()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("not connected: no connection to ws://engine:10560/workers")
    assert lines[1].startswith("reconnecting in 0.")
    assert [line for line in lines[2:] if "onnect" in line] == [
        "connected to ws://engine:10560/workers, topics: payment, mail"
    ]
    assert lines[-1] == "stopped"
