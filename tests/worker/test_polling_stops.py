"""How a worker that polls comes to its end: nothing is lost, and nothing stays locked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from stellwerk.worker import Task, Worker

if TYPE_CHECKING:
    from tests.worker.conftest import Observed, PolledEngine

MakeTask = Callable[..., dict[str, Any]]
Serve = Callable[..., Any]


async def never_called(payload: object) -> None:
    raise AssertionError("the handler was called")


async def test_fault_13_stopping_ends_the_polls_at_once(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, serve_worker: Serve
) -> None:
    polling.worker.task("payment")(never_called)
    polling.worker.task("mail", lock_duration=60)(never_called)
    served = await serve_worker(polling.worker)
    polls = [await polled.receive_poll(task_types=[topic]) for topic in ("payment", "mail")]
    before = trio.current_time()
    polling.worker.stop()
    for poll in polls:
        await poll.connection.worker_left.wait()
        await poll.hang_up()
    await served.ended.wait()
    assert trio.current_time() == before
    assert polling.errors == []
    assert polled.count("fetch-and-lock") == 4


async def test_fault_13_tasks_that_were_on_their_way_go_back(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, serve_worker: Serve, pulled_task: MakeTask
) -> None:
    """The engine answered before it noticed that the worker stops."""
    polling.worker.task("payment")(never_called)
    served = await serve_worker(polling.worker)
    poll = await polled.receive_poll()
    polling.worker.stop()
    await poll.connection.worker_left.wait()
    await poll.answer([pulled_task("t1"), pulled_task("t2", single_try=True)])
    for task_id in ("t1", "t2"):
        unlock = await polled.receive("unlock", task_id)
        assert unlock.body == {"worker_id": "w1", "fence": 7, "started": False}
        assert not served.ended.is_set()
        await unlock.answer()
    await served.ended.wait()
    assert polling.errors == []


async def test_an_engine_that_does_not_notice_is_not_waited_for_for_long(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, serve_worker: Serve
) -> None:
    polling.worker.task("payment")(never_called)
    served = await serve_worker(polling.worker)
    await polled.receive_poll()
    before = trio.current_time()
    polling.worker.stop()
    await served.ended.wait()
    assert trio.current_time() - before == pytest.approx(3)


async def test_W10_an_engine_that_is_away_does_not_hold_up_the_end(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, serve_worker: Serve
) -> None:
    polling.worker.task("payment")(never_called)
    polled.refuses = True
    served = await serve_worker(polling.worker)
    await trio.sleep(100)
    before = trio.current_time()
    polling.worker.stop()
    await served.ended.wait()
    assert trio.current_time() == before
    assert not polling.worker.is_healthy()


async def test_fault_75_while_it_stops_leases_are_extended_and_results_taken(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, serve_worker: Serve, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment", max_tasks=1)
    async def work(payload: object) -> dict[str, int]:
        await trio.sleep(50)
        return {"receipt": 1}

    served = await serve_worker(polling.worker)
    await (await polled.receive_poll()).answer([pulled_task()])
    await trio.sleep(1)
    polling.worker.stop(grace=100)
    for _ in range(2):
        await (await polled.receive("extend-lock")).answer({"lock_expire_at": "", "lock_remaining_ms": 30_000})
    await (await polled.receive("complete")).refuse(503, "unavailable")
    assert not served.ended.is_set()
    await (await polled.receive("complete")).answer()
    await served.ended.wait()
    assert polled.count("fetch-and-lock") == 2


async def test_fault_76_after_the_grace_what_is_unfinished_goes_back(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, serve_worker: Serve, pulled_task: MakeTask
) -> None:
    reasons: list[str | None] = []

    @polling.worker.task("payment", max_tasks=1)
    async def work(payload: object, task: Task) -> None:
        try:
            await trio.sleep_forever()
        finally:
            reasons.append(task.signal.reason)

    served = await serve_worker(polling.worker)
    await (await polled.receive_poll()).answer([pulled_task()])
    await trio.sleep(1)
    before = trio.current_time()
    polling.worker.stop(grace=5)
    unlock = await polled.receive("unlock", "t1")
    assert unlock.body == {"worker_id": "w1", "fence": 7, "started": True}
    assert unlock.at - before == pytest.approx(5)
    await unlock.answer()
    await served.ended.wait()
    assert reasons == ["worker_stops"]


async def test_a_cancelled_worker_leaves_its_leases_to_their_deadlines_and_no_connection_open(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment", max_tasks=2)
    async def work(payload: object) -> None:
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            await inner.start(polling.worker.serve)
            await (await polled.receive_poll()).answer([pulled_task()])
            poll = await polled.receive_poll()
            scope.cancel()
    for asked in (poll, polled.log[0]):
        await asked.connection.worker_left.wait()
    assert polled.count("unlock") == 0


# --- connections -----------------------------------------------------------------------------------------------------


async def test_fault_26_a_worker_goes_on_when_the_engine_was_away(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment")
    async def work(payload: object) -> None: ...

    await nursery.start(polling.worker.serve)
    poll = await polled.receive_poll()
    assert polling.worker.is_healthy()
    polled.refuses = True
    await poll.hang_up()
    await polling.wait_for_error("fetchAndLock")
    assert not polling.worker.is_healthy()
    dials = polled.dials
    await trio.sleep(600)
    assert 50 <= polled.dials - dials <= 130, "pauses grow to at most ten seconds"
    polled.refuses = False
    first = await polled.receive("fetch-and-lock")
    assert first.body["wait_ms"] == 0
    await first.answer([pulled_task()])
    await polled.receive("complete", "t1")
    assert polling.worker.is_healthy()


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_a_busy_engine_is_asked_again_when_it_says(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, status: int
) -> None:
    polling.worker.task("payment")(never_called)
    await nursery.start(polling.worker.serve)
    for _ in range(10):
        poll = await polled.receive("fetch-and-lock")
        await poll.refuse(status, "overloaded", {"retry-after": "20"})
        refused_at = trio.current_time()
        poll = await polled.receive("fetch-and-lock")
        assert poll.at - refused_at >= 20
        await poll.answer([])
    assert polling.worker.health().consecutive_critical_errors == 0


async def test_an_idle_connection_that_the_engine_closed_is_replaced_without_a_word(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment")
    async def work(payload: object) -> None:
        await trio.sleep(0.001)

    await nursery.start(polling.worker.serve)
    for number in range(5):
        poll = await polled.receive_poll()
        await poll.answer([pulled_task(f"t{number}")])
        complete = await polled.receive("complete")
        await complete.answer()
        await polling.wait_for_heartbeat("finishExternalTask", f"t{number}")
        await complete.hang_up()
    assert polling.errors == []


async def test_few_connections_serve_many_tasks(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment", max_tasks=100)
    async def work(payload: object) -> None: ...

    await nursery.start(polling.worker.serve)
    for batch in range(10):
        poll = await polled.receive_poll()
        names = [f"t{batch}-{number}" for number in range(poll.body["max_tasks"])]
        await poll.answer([pulled_task(name) for name in names])
        for _ in names:
            await (await polled.receive("complete")).answer()
    assert polled.dials <= 9


async def test_an_answer_that_is_none_of_this_api_is_reported_and_ends_the_worker_in_the_end(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery
) -> None:
    polling.worker.task("payment")(never_called)

    async def nonsense() -> None:
        while True:
            await (await polled.receive("fetch-and-lock")).answer([{"task_id": 3}])

    nursery.start_soon(nonsense)
    with pytest.raises(BaseException, match="5 critical errors in a row") as failed:
        await polling.worker.serve()
    assert "fetch-and-lock: Expected `str`, got `int` @ $[0].task_id" in str(failed.value)


# --- credentials -----------------------------------------------------------------------------------------------------


async def test_a_refused_credential_is_replaced_once_and_the_request_repeated(
    autojump_clock: MockClock, polled: PolledEngine, nursery: trio.Nursery, pulled_task: MakeTask, observe: Any
) -> None:
    tokens = iter(["first", "second", "third"])
    asked_for: list[str] = []

    async def token() -> str:
        asked_for.append(next(tokens))
        return asked_for[-1]

    worker = Worker("http://engine:1", worker_id="w1", transport="http", dial=polled.dial, token=token)
    observed = observe(worker)

    @worker.task("payment", max_tasks=2)
    async def work(payload: object) -> None: ...

    await nursery.start(worker.serve)
    await (await polled.receive_poll()).answer([pulled_task("t1"), pulled_task("t2")])
    for task_id in ("t1", "t2"):
        complete = await polled.receive("complete", task_id)
        assert complete.headers["authorization"] == "Bearer first"
        await complete.refuse(401, "unauthenticated")
    for task_id in ("t1", "t2"):
        complete = await polled.receive("complete", task_id)
        assert complete.headers["authorization"] == "Bearer second"
        await complete.answer()
    assert asked_for == ["first", "second"], "both needed a new one, and one was fetched"
    await observed.wait_for_heartbeat("finishExternalTask", "t2")
    assert observed.errors == []


@pytest.mark.parametrize(("status", "code"), [(401, "unauthenticated"), (403, "forbidden")])
async def test_who_is_not_let_in_gives_up_after_five_tries(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, status: int, code: str
) -> None:
    polling.worker.task("payment")(never_called)

    async def refuse() -> None:
        while True:
            await (await polled.receive("fetch-and-lock")).refuse(status, code)

    nursery.start_soon(refuse)
    with pytest.raises(BaseException, match=f"because {code}"):
        await polling.worker.serve()
    assert polling.error_kinds == ["permanentAuthorizationError"] * 5


async def test_a_topic_that_is_forbidden_ends_the_worker_though_others_are_allowed(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery
) -> None:
    polling.worker.task("payment")(never_called)
    polling.worker.task("mail")(never_called)

    async def answer() -> None:
        while True:
            poll = await polled.receive("fetch-and-lock")
            await (poll.refuse(403, "forbidden") if "mail" in poll.body["task_types"] else poll.answer([]))

    nursery.start_soon(answer)
    with pytest.raises(BaseException, match="because forbidden"):
        await polling.worker.serve()


@pytest.mark.parametrize("token", ["two words", "line\r\nInjected: yes", "", "schlüssel"])
async def test_a_credential_that_no_header_can_carry_is_refused_without_quoting_it(
    autojump_clock: MockClock, polled: PolledEngine, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker("http://engine:1", transport="http", dial=polled.dial, token=token)
    worker.task("payment")(never_called)
    with pytest.raises(BaseException, match="no HTTP header can carry") as failed:
        await worker.serve()
    if token:
        assert token not in str(failed.value) + caplog.text
    assert polled.log == []
