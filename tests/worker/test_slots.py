"""A worker's slots: none leaks, whatever becomes of its tasks, and no task waits for one with its lock running."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from stellwerk.worker import BpmnError, Task, Worker

if TYPE_CHECKING:
    from tests.worker.conftest import NetworkEngine, Observed, Peer
    from tests.worker.conftest import ScriptedEngine as Engine

Offer = Callable[..., dict[str, Any]]
CAPACITY = 3
LOCK_SECONDS = 30.0


# --- no lock runs while its task waits -----------------------------------------------------------------------------


async def test_fault_35_coroutines_start_with_their_whole_lock(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    """Nothing is fetched ahead: what arrives starts, and so the lock need not be extended in a buffer."""
    left: list[float] = []

    @observed.worker.task("payment", max_tasks=100)
    async def charge(payload: object, task: Task) -> None:
        left.append(task.lock_remaining)
        await trio.sleep(20)

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(*(offer(f"t{number}") for number in range(100)))
    await wait_all_tasks_blocked()
    assert left == [pytest.approx(30, abs=0.1)] * 100


async def test_fault_35_threads_start_with_their_whole_lock(
    network_engine: NetworkEngine, nursery: trio.Nursery, offer: Offer
) -> None:
    """Also more of them than a thread pool usually has."""
    worker = Worker(network_engine.url)
    together = threading.Barrier(60)

    @worker.task("payment", max_tasks=60)
    def charge(payload: dict[str, Any], task: Task) -> dict[str, Any]:
        together.wait(20)
        return {"left": task.lock_remaining}

    await nursery.start(worker.serve)
    peer = await network_engine.accept_welcomed()
    await peer.offer(*(offer(f"t{number}") for number in range(60)))
    for _ in range(60):
        assert (await peer.receive("complete"))["variables"]["left"] > 10


# --- slots come back -----------------------------------------------------------------------------------------------


async def test_fault_37_a_worker_that_had_no_slot_left_takes_work_again(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    """All its slots are lost to handlers that do not give up, many times; it says so, and says when they are back."""

    @observed.worker.task("payment", max_tasks=2)
    async def stubborn(payload: object) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    for number in range(20):
        await peer.offer(offer(f"a{number}"), offer(f"b{number}"), delivery=number + 1)
        await trio.sleep(1)
        await peer.revoke(f"a{number}", 7)
        await peer.revoke(f"b{number}", 7)
        await peer.receive("subscribe", max_tasks=0)
        assert observed.worker.health().active_task_count == 2
        await peer.receive("subscribe", max_tasks=2)
        assert observed.worker.health().active_task_count == 0
    assert observed.errors == []
    assert peer.count("release") + peer.count("complete") == 0


# --- the invariant -------------------------------------------------------------------------------------------------

ways = ["return", "raise", "bpmn error", "no json", "misfit", "slow", "hang", "stubborn"]
steps_of_work = st.one_of(
    st.tuples(st.just("offer"), st.sampled_from(ways)),
    st.tuples(st.just("offer"), st.sampled_from(ways)),
    st.tuples(st.sampled_from(["revoke", "renew"]), st.integers(0, 5)),
    st.tuples(st.just("sleep"), st.sampled_from([0.5, 4.0, 16.0, 40.0])),
    st.tuples(st.just("cut"), st.sampled_from(["all kept", "all lost"])),
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(steps_of_work, max_size=20))
def test_fault_30_room_and_running_handlers_always_add_up_to_the_slots(
    scripted_engine: type[Engine], offer: Offer, steps: list[tuple[str, Any]]
) -> None:
    """The room that the worker announces is its slots less the handlers that run without a lease."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            engine = scripted_engine(nursery)
            worker = Worker("http://engine:10560", dial=engine.dial)
            bench = Bench(engine, worker, offer)
            worker.task("payment", max_tasks=CAPACITY)(bench.handle)
            await nursery.start(worker.serve)
            bench.peer = await engine.accept()
            await bench.peer.welcome()
            await bench.play(steps)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


@attrs.define
class Bench:
    """An engine that keeps to the protocol, and counts."""

    engine: Engine
    worker: Worker
    make_offer: Offer
    peer: Peer = attrs.field(init=False)
    room: int = -1
    offered: int = 0
    deliveries: int = 0
    held: dict[str, float] = attrs.field(factory=dict)
    """Leases and when they end."""
    running: set[str] = attrs.field(factory=set)

    async def handle(self, payload: dict[str, str], task: Task) -> object:
        self.running.add(task.id)
        try:
            return await self._handle(payload["how"])
        finally:
            self.running.remove(task.id)

    async def _handle(self, how: str) -> object:
        match how:
            case "raise":
                raise ValueError("broken")
            case "bpmn error":
                raise BpmnError("E", "oh")
            case "no json":
                return object()
            case "slow":
                await trio.sleep(3)
            case "hang":
                await trio.sleep_forever()
            case "stubborn":
                with trio.CancelScope(shield=True):
                    await trio.sleep(7)
            case _:
                pass
        return None

    async def play(self, steps: list[tuple[str, Any]]) -> None:
        await self._check()
        for name, argument in steps:
            await getattr(self, name)(argument)
            await self._check()
        for task_id in list(self.held):
            await self._revoke(task_id)
        await self.sleep(60)
        await self._check()
        assert self.worker.health().active_task_count == 0
        for _ in range(CAPACITY):
            await self.offer("hang")
        await self._check()
        assert len(self.running) == CAPACITY

    # --- steps -----------------------------------------------------------------------------------------------------

    async def offer(self, how: str) -> None:
        if len(self.held) < self.room:
            self.offered += 1
            self.deliveries += 1
            task_id = f"{how}-{self.offered}"
            variables = {"how": how} if how != "misfit" else {}
            self.held[task_id] = trio.current_time() + LOCK_SECONDS
            await self.peer.offer(self.make_offer(task_id, variables=variables), delivery=self.deliveries)

    async def revoke(self, position: int) -> None:
        if self.held:
            await self._revoke(sorted(self.held)[position % len(self.held)])

    async def _revoke(self, task_id: str) -> None:
        del self.held[task_id]
        await self.peer.revoke(task_id, 7)

    async def renew(self, position: int) -> None:
        if self.held:
            task_id = sorted(self.held)[position % len(self.held)]
            self.held[task_id] = trio.current_time() + LOCK_SECONDS
            await self.peer.renew(task_id, 7)

    async def sleep(self, seconds: float) -> None:
        """Answering what comes meanwhile; leases end."""
        with trio.move_on_after(seconds):
            while True:
                await self._hear(1_000)

    async def cut(self, how: str) -> None:
        await self.peer.close(1011)
        self.peer = await self.engine.accept()
        self.deliveries = 0
        kept: list[dict[str, Any]] = []
        lost: list[dict[str, Any]] = []
        for task_id, ends_at in self.held.items():
            left_ms = int((ends_at - trio.current_time()) * 1000)
            if how == "all kept" and left_ms > 0:
                kept.append({"task_id": task_id, "fence": 7, "lock_remaining_ms": left_ms, "lock_expires_at": ""})
            else:
                lost.append({"task_id": task_id, "fence": 7, "reason": "lost"})
        for lease in lost:
            del self.held[lease["task_id"]]
        await self.peer.welcome(kept=tuple(kept), lost=tuple(lost))

    # --- what must hold --------------------------------------------------------------------------------------------

    async def _hear(self, seconds: float) -> None:
        """One frame, if any comes in time."""
        with trio.move_on_after(seconds):
            await self.peer.receive_any()
            for message in self.peer.frames[-1]:
                await self._answer(message)

    async def _answer(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "subscribe":
                self.room = message["max_tasks"]
            case "complete" | "fail" | "bpmn_error":
                self.held.pop(message["task_id"], None)
                await self.peer.ack(message)
            case "release":
                assert message["started"], "the worker was offered more than it said it has room for"
                self.held.pop(message["task_id"], None)
                await self.peer.ack(message)
            case _:
                pass

    async def _check(self) -> None:
        await wait_all_tasks_blocked()
        while (frames := len(self.peer.frames)) >= 0:
            await self._hear(0.001)
            if len(self.peer.frames) == frames:
                break
        now = trio.current_time()
        self.held = {task_id: ends_at for task_id, ends_at in self.held.items() if ends_at - now > 0.5}
        without_lease = self.running - set(self.held)
        assert self.room + len(without_lease) == CAPACITY
        assert len(self.running) <= CAPACITY
