"""A worker that polls keeps its leases by itself, and hands results in until they are taken."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from stellwerk.worker import Task, Worker

if TYPE_CHECKING:
    from tests.worker.conftest import Observed, PolledEngine

MakeTask = Callable[..., dict[str, Any]]


class Running:
    """A handler that runs until it is told to give up."""

    def __init__(self, worker: Worker, **options: Any) -> None:
        self.began = trio.Event()
        self.task: Task | None = None
        self.reason: str | None = None
        self.given_up_at: float | None = None
        worker.task("payment", **options)(self.handle)

    async def handle(self, payload: object, task: Task) -> None:
        self.task = task
        self.began.set()
        try:
            await trio.sleep_forever()
        finally:
            self.reason, self.given_up_at = task.signal.reason, trio.current_time()


# --- renewals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock_seconds", [1, 6, 30, 600])
async def test_fault_152_a_lease_is_extended_when_a_third_of_it_is_left(
    autojump_clock: MockClock,
    polled: PolledEngine,
    polling: Observed,
    nursery: trio.Nursery,
    pulled_task: MakeTask,
    lock_seconds: int,
) -> None:
    """Always with its fence, and by as much as it was given: a model's own lock may be another than the handler's."""
    running = Running(polling.worker)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task(lock_remaining_ms=lock_seconds * 1000 - 5)])
    nursery.start_soon(polled.bring_nothing)
    await running.began.wait()
    last = trio.current_time()
    for _ in range(5):
        extension = await polled.receive("extend-lock", "t1")
        assert extension.body == {"worker_id": "w1", "fence": 7, "extension_ms": lock_seconds * 1000}
        assert extension.at - last == pytest.approx(lock_seconds * 2 / 3, rel=0.02)
        last = extension.at
        await extension.extend()
    await polling.wait_for_heartbeat("extendLock", "t1")
    assert polling.errors == []


async def test_fault_52_the_extensions_end_with_the_handler(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment", max_tasks=500)
    async def work(payload: object) -> None:
        await trio.sleep(1)

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task(f"t{number}") for number in range(500)])
    for _ in range(500):
        await (await polled.receive("complete")).answer()
    await trio.sleep(100)
    assert polled.count("extend-lock") == 0


async def test_fault_150_an_extension_that_fails_is_repeated_quickly_and_at_the_deadline_the_handler_is_aborted(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    running = Running(polling.worker)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    await running.began.wait()
    began = trio.current_time()

    async def refuse() -> None:
        while True:
            await (await polled.receive("extend-lock")).refuse(503, "unavailable")

    nursery.start_soon(refuse)
    assert "ran out" in str(await wait_for_lost(polling))
    assert running.reason == "expired"
    assert running.given_up_at == pytest.approx(began + 30, abs=0.1)
    tries = [asked.at - began for asked in polled.log if asked.verb == "extend-lock"]
    assert tries[0] == pytest.approx(20, abs=0.1)
    assert len(tries) >= 10
    assert all(later - earlier <= 1.1 for earlier, later in itertools.pairwise(tries))
    assert tries[-1] < 30
    await trio.sleep(100)
    assert polled.count("complete") + polled.count("fail") == 0, "somebody else may have the task"


async def wait_for_lost(polling: Observed) -> Exception:
    while True:
        found = [error for kind, error, _ in polling.errors if kind == "extendLock" and "HTTP" not in str(error)]
        if found:
            return found[0]
        await trio.sleep(0.1)


async def test_fault_150_an_engine_that_hangs_gets_several_tries_too(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    running = Running(polling.worker)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    await running.began.wait()
    began = trio.current_time()
    for _ in range(3):
        await polled.receive("extend-lock")  # and no answer
    await (await polled.receive("extend-lock")).extend()
    assert trio.current_time() - began < 30
    await trio.sleep(15)
    assert running.reason is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [("lease_lost", "lost"), ("already_finished", "lost"), ("cancelled", "cancelled"), ("of a later version", "lost")],
)
async def test_fault_151_a_refused_extension_aborts_the_handler_at_once(
    autojump_clock: MockClock,
    polled: PolledEngine,
    polling: Observed,
    nursery: trio.Nursery,
    pulled_task: MakeTask,
    code: str,
    reason: str,
) -> None:
    running = Running(polling.worker)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    extension = await polled.receive("extend-lock")
    await extension.refuse(409, code)
    poll = await polled.receive_poll(max_tasks=10)
    assert (running.reason, running.given_up_at) == (reason, extension.at)
    await poll.answer([pulled_task(fence=8)])
    await trio.sleep(1)
    assert running.task is not None
    assert running.task.fence == 8
    assert polled.count("unlock") + polled.count("fail") + polled.count("complete") == 0


async def test_an_unknown_task_aborts_the_handler_but_a_proxy_that_knows_no_such_page_does_not(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    running = Running(polling.worker)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    await (await polled.receive("extend-lock")).answer("no such page", 404)
    again = await polled.receive("extend-lock")
    assert running.reason is None
    await again.refuse(404, "not_found")
    await polling.wait_for_error("extendLock")
    await trio.sleep(0.01)
    assert running.reason == "lost"


async def test_a_handler_can_ask_for_more(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    running = Running(polling.worker)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    await running.began.wait()
    assert running.task is not None
    running.task.extend(10)  # there is more
    running.task.extend(90)
    running.task.extend(600)  # while the one before is under way
    for seconds in (90, 600):
        extension = await polled.receive("extend-lock")
        assert extension.body["extension_ms"] == seconds * 1000
        await extension.extend()
    asked_at = trio.current_time()
    await trio.sleep(1)
    assert running.task.lock_remaining == pytest.approx(599, abs=1)
    assert (await polled.receive("extend-lock")).at - asked_at == pytest.approx(590, abs=2)


async def test_an_extension_of_unknown_fate_may_shorten_a_longer_one_later(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    """An engine extends from the moment in which it hears of it, and a request can be under way for long."""
    running = Running(polling.worker)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    await polled.receive("extend-lock", None, extension_ms=30_000)  # and no answer: it may be done any time
    assert running.task is not None
    running.task.extend(600)
    await (await polled.receive("extend-lock", None, extension_ms=30_000)).extend()
    await (await polled.receive("extend-lock", None, extension_ms=600_000)).extend()
    extended_at = trio.current_time()
    await trio.sleep(1)
    assert running.task.lock_remaining == pytest.approx(29, abs=1)
    assert (await polled.receive("extend-lock")).at - extended_at == pytest.approx(20, abs=1)


async def test_more_than_the_engine_allows_is_reported_and_costs_nothing(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    running = Running(polling.worker)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    await running.began.wait()
    assert running.task is not None
    running.task.extend(7200)
    await (await polled.receive("extend-lock", None, extension_ms=7_200_000)).refuse(400, "invalid")
    assert "because invalid" in str(await polling.wait_for_error("extendLock"))
    await (await polled.receive("extend-lock", None, extension_ms=30_000)).extend()
    await trio.sleep(5)
    assert running.reason is None


# --- results ---------------------------------------------------------------------------------------------------------


async def test_fault_148_a_result_is_repeated_until_it_is_taken(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment", max_tasks=1)
    async def work(payload: object) -> dict[str, int]:
        return {"receipt": 1}

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    nursery.start_soon(polled.extend_all)
    bodies = []
    for way in ("503", "500", "no answer", "429", "401", "hangs"):
        complete = await polled.receive("complete", "t1")
        bodies.append(complete.body)
        if way == "no answer":
            await complete.hang_up()
        elif way != "hangs":
            await complete.answer({"code": "internal" if way == "500" else ""}, int(way))
    complete = await polled.receive("complete", "t1")
    assert [*bodies, complete.body] == [{"worker_id": "w1", "fence": 7, "variables": {"receipt": 1}}] * 7
    await complete.answer()
    await polling.wait_for_heartbeat("finishExternalTask", "t1")
    assert polled.count("fail") == 0


async def test_fault_148_the_lease_is_kept_while_the_result_is_not_taken(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment", max_tasks=1)
    async def work(payload: object) -> dict[str, int]:
        return {"receipt": 1}

    async def refuse() -> None:
        while trio.current_time() < 100:
            await (await polled.receive("complete")).refuse(503, "unavailable")

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    nursery.start_soon(refuse)
    nursery.start_soon(polled.extend_all)
    await trio.sleep(101)
    assert polled.count("extend-lock") >= 4
    await (await polled.receive("complete")).answer()
    await polling.wait_for_heartbeat("finishExternalTask", "t1")


async def test_fault_148_at_the_deadline_the_result_is_given_up_and_said_to_be_lost(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment", max_tasks=1)
    async def work(payload: object) -> None: ...

    async def refuse() -> None:
        while True:
            await (await polled.receive("complete|extend-lock")).refuse(503, "unavailable")

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    nursery.start_soon(refuse)
    await polled.receive_poll()
    assert trio.current_time() == pytest.approx(30, abs=0.1)
    assert "no answer came before the lease ran out" in str(polling.errors[-1][1])
    await trio.sleep(60)
    assert max(asked.at for asked in polled.log if asked.verb == "complete") <= 30


@pytest.mark.parametrize(("status", "code"), [(400, "invalid"), (413, "too_large"), (422, "invalid")])
async def test_a_result_that_is_refused_for_good_becomes_a_failure(
    autojump_clock: MockClock,
    polled: PolledEngine,
    polling: Observed,
    nursery: trio.Nursery,
    pulled_task: MakeTask,
    status: int,
    code: str,
) -> None:
    @polling.worker.task("payment")
    async def work(payload: object) -> dict[str, int]:
        return {"receipt": 1}

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    await (await polled.receive("complete")).refuse(status, code)
    failure = await polled.receive("fail")
    assert f"because {code}" in failure.body["error"]
    await failure.answer()
    await polling.wait_for_heartbeat("handleError", "t1")


async def test_a_result_that_breaks_the_engine_each_time_becomes_a_failure(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment")
    async def work(payload: object) -> None: ...

    async def break_down() -> None:
        while True:
            await (await polled.receive("complete")).refuse(500, "internal")

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    nursery.start_soon(break_down)
    await polled.receive("fail")
    assert polled.count("complete") == 6
    assert trio.current_time() < 20


@pytest.mark.parametrize("code", ["lease_lost", "already_finished", "cancelled"])
async def test_fault_70_a_result_for_a_task_that_is_gone_is_dropped_and_reported(
    autojump_clock: MockClock,
    polled: PolledEngine,
    polling: Observed,
    nursery: trio.Nursery,
    pulled_task: MakeTask,
    code: str,
) -> None:
    @polling.worker.task("payment", max_tasks=1)
    async def work(payload: object) -> None: ...

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    await (await polled.receive("complete")).refuse(409, code)
    error = await polling.wait_for_error("finishExternalTask")
    assert getattr(error, "code", None) == code
    await polled.receive_poll(max_tasks=1)
    assert polled.count("fail") + polled.count("unlock") == 0
