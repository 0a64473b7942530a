"""A worker that polls: what it asks for and when, and what becomes of the tasks that it gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from stellwerk.errors import InvalidInput
from stellwerk.worker import BpmnError, Task, TaskFailure, Worker

if TYPE_CHECKING:
    from tests.worker.conftest import Observed, PolledEngine

MakeTask = Callable[..., dict[str, Any]]


async def never_called(payload: object) -> None:
    raise AssertionError("the handler was called")


@attrs.define
class Order:
    amount: int


async def test_W5_options_and_defaults_of_a_worker_that_polls(
    autojump_clock: MockClock, polled: PolledEngine, nursery: trio.Nursery
) -> None:
    worker = Worker("http://engine:10560/base/", transport="http", dial=polled.dial, token="secret")
    worker.task("payment")(never_called)
    narrow = worker.task("mail", max_tasks=2, lock_duration=60, filter=re.compile("x", re.IGNORECASE), variables=["to"])
    narrow(never_called)
    await nursery.start(worker.serve)
    first = await polled.receive("fetch-and-lock", task_types=["payment"])
    assert first.path == "/base/api/v1/external-tasks/fetch-and-lock"
    assert first.headers["authorization"] == "Bearer secret"
    assert first.body["wait_ms"] == 0, "whether the engine can be reached shows at once"
    await first.answer([])
    poll = await polled.receive("fetch-and-lock", task_types=["payment"])
    assert poll.body == {
        "worker_id": worker.worker_id,
        "task_types": ["payment"],
        "max_tasks": 10,
        "lock_duration_ms": 30_000,
        "wait_ms": 10_000,
    }
    other = await polled.receive_poll(task_types=["mail"])
    assert (other.body["max_tasks"], other.body["lock_duration_ms"]) == (2, 60_000)
    assert (other.body["filter"], other.body["variables"]) == ("(?i)x", ["to"])
    assert worker.is_healthy()


async def test_W5_polls_that_bring_nothing_begin_so_far_apart(
    autojump_clock: MockClock, polled: PolledEngine, nursery: trio.Nursery
) -> None:
    worker = Worker("http://engine:1", transport="http", dial=polled.dial, idle_timeout=0.5, long_polling_timeout=2.0)
    worker.task("payment")(never_called)
    await nursery.start(worker.serve)
    polls = [await polled.receive_poll()]
    await polls[0].answer([])  # at once: the engine drains, say
    polls.append(await polled.receive_poll())
    await trio.sleep(2)
    await polls[1].answer([])
    polls.append(await polled.receive_poll())
    assert [poll.body["wait_ms"] for poll in polls] == [2000, 2000, 2000]
    assert polls[1].at - polls[0].at == pytest.approx(0.5)
    assert polls[2].at - polls[1].at == pytest.approx(2.0), "a poll that waited needs no pause after it"


async def test_fault_7_without_long_polling_it_asks_every_idle_timeout(
    autojump_clock: MockClock, polled: PolledEngine, nursery: trio.Nursery
) -> None:
    worker = Worker("http://engine:1", transport="http", dial=polled.dial, idle_timeout=3, long_polling_timeout=0)
    worker.task("payment")(never_called)
    await nursery.start(worker.serve)
    for number in range(4):
        poll = await polled.receive("fetch-and-lock")
        assert poll.body["wait_ms"] == 0
        assert trio.current_time() == pytest.approx(number * 3)
        await poll.answer([])


@pytest.mark.parametrize(
    "options",
    [
        {"transport": "carrier pigeon"},
        {"idle_timeout": -1},
        {"idle_timeout": True},
        {"long_polling_timeout": float("nan")},
        {"long_polling_timeout": 601},
    ],
)
def test_W5_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Worker("http://engine:1", **options)


async def test_W4_the_handler_sees_the_same_task_as_if_it_were_pushed(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    seen: list[Any] = []

    @polling.worker.task("payment")
    async def charge(payload: Order, task: Task) -> dict[str, object]:
        seen.extend([payload, task, task.lock_remaining])
        return {"receipt": 1}

    await nursery.start(polling.worker.serve)
    poll = await polled.receive_poll()
    await poll.answer([pulled_task("a/b c", single_try=True)])
    complete = await polled.receive("complete")
    assert complete.path == "/api/v1/external-tasks/a%2Fb%20c/complete"
    assert complete.body == {"worker_id": "w1", "fence": 7, "variables": {"receipt": 1}}
    await complete.answer()
    await polling.wait_for_heartbeat("finishExternalTask", "a/b c")
    payload, task, remaining = seen
    assert payload == Order(12)
    assert 29 < remaining <= 30
    assert (task.id, task.fence, task.topic, task.worker_id) == ("a/b c", 7, "payment", "w1")
    assert (task.process_instance_id, task.process_definition_id) == ("instance-1", "order:3")
    assert (task.business_key, task.element_id, task.token_id) == ("order-17", "Task_Pay", "token-1")
    assert (task.attempt, task.retries_left, task.priority, task.single_try) == (1, 3, 5, True)
    assert (task.variables, task.headers) == ({"amount": 12}, {"currency": "EUR"})
    assert polling.errors == []


@pytest.mark.parametrize("result", [None, 0, "", False, [], {}])
async def test_fault_147_a_result_that_is_false_completes_the_task(
    autojump_clock: MockClock,
    polled: PolledEngine,
    polling: Observed,
    nursery: trio.Nursery,
    pulled_task: MakeTask,
    result: object,
) -> None:
    @polling.worker.task("payment")
    async def charge(payload: object) -> object:
        return result

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    complete = await polled.receive("complete", "t1")
    assert complete.body.get("variables") == (None if result == {} else result)


async def test_W6_a_business_error(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment", max_tasks=2)
    async def charge(payload: object, task: Task) -> None:
        if task.id == "t1":
            raise BpmnError("CARD", "limit exceeded", {"limit": 10}, {"refused": True})
        raise BpmnError("CARD")

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task("t1"), pulled_task("t2")])
    full, short = await polled.receive("bpmn-error", "t1"), await polled.receive("bpmn-error", "t2")
    texts = {"code": "CARD", "message": "limit exceeded", "details": {"limit": 10}, "variables": {"refused": True}}
    assert full.body == {"worker_id": "w1", "fence": 7, **texts}
    assert short.body == {"worker_id": "w1", "fence": 7, "code": "CARD"}


async def test_W7_a_failure(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment")
    async def charge(payload: object) -> None:
        raise TaskFailure("no", {"why": 1}, retry_after=1.5, retries=0)

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task()])
    failure = await polled.receive("fail", "t1")
    numbers = {"retry_after_ms": 1500, "retries": 0}
    assert failure.body == {"worker_id": "w1", "fence": 7, "error": "no", "details": {"why": 1}, **numbers}


async def test_fault_94_a_payload_that_does_not_fit_fails_its_task_only(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment")
    async def charge(payload: Order) -> dict[str, int]:
        return {"got": payload.amount}

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task("bad", variables={"amount": "x"}), pulled_task("good")])
    assert "$.amount" in (await polled.receive("fail", "bad")).body["error"]
    assert (await polled.receive("complete", "good")).body["variables"] == {"got": 12}


# --- room ------------------------------------------------------------------------------------------------------------


async def test_fault_36_one_slow_task_does_not_hold_up_the_quick_ones(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    @polling.worker.task("payment", max_tasks=3)
    async def work(payload: object, task: Task) -> None:
        await trio.sleep(1000 if task.id == "slow" else 0.1)

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll(max_tasks=3)).answer([pulled_task("slow", lock_remaining_ms=3_600_000)])
    for number in range(20):
        poll = await polled.receive_poll()
        assert poll.body["max_tasks"] in (1, 2)
        tasks = [pulled_task(f"{name}{number}") for name in ("a", "b")[: poll.body["max_tasks"]]]
        await poll.answer(tasks)
        for task in tasks:
            await (await polled.receive("complete", task["task_id"])).answer()
    assert trio.current_time() < 10
    assert polling.errors == []


async def test_fault_31_it_never_asks_for_more_than_it_has_room_for(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    """A task takes its place until its result was taken: results that nobody takes do not pile up."""

    @polling.worker.task("payment", max_tasks=2)
    async def work(payload: object) -> None: ...

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll(max_tasks=2)).answer([pulled_task("t1"), pulled_task("t2")])
    complete = await polled.receive("complete", "t1")
    polls = polled.count("fetch-and-lock")
    await trio.sleep(5)
    assert polled.count("fetch-and-lock") == polls
    await complete.answer()
    assert (await polled.receive_poll()).body["max_tasks"] == 1


@pytest.mark.parametrize("way", ["return", "raise", "bpmn error", "misfit", "lost", "expires", "gone at the end"])
async def test_fault_32_capacity_returns_after_everything(
    autojump_clock: MockClock,
    polled: PolledEngine,
    polling: Observed,
    nursery: trio.Nursery,
    pulled_task: MakeTask,
    way: str,
) -> None:
    @polling.worker.task("payment", max_tasks=1)
    async def work(payload: Order) -> None:
        match way:
            case "raise":
                raise ValueError("no")
            case "bpmn error":
                raise BpmnError("NO")
            case "lost" | "expires":
                with trio.CancelScope(shield=True):  # gives up late
                    await trio.sleep(50)

            case _:
                return

    async def take_results() -> None:
        while True:
            asked = await polled.receive("complete|fail|bpmn-error")
            await (asked.refuse(409, "cancelled") if way == "gone at the end" else asked.answer())

    async def refuse_extensions() -> None:
        while True:
            asked = await polled.receive("extend-lock")
            await (asked.refuse(409, "lease_lost") if way == "lost" else asked.refuse(503, "unavailable"))

    nursery.start_soon(take_results)
    nursery.start_soon(refuse_extensions)
    await nursery.start(polling.worker.serve)
    variables = {"amount": "x" if way == "misfit" else 1}
    for number in range(12):
        poll = await polled.receive_poll()
        assert poll.body["max_tasks"] == 1
        assert polling.worker.health().active_task_count == 0
        await poll.answer([pulled_task(f"t{number}", variables=variables)])
    await polled.receive_poll()
    if way in ("lost", "expires"):
        assert trio.current_time() >= 600, "a handler that is not back takes its place although its lease is gone"


async def test_fault_31_what_comes_beyond_the_room_goes_back(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    began: list[str] = []

    @polling.worker.task("payment", max_tasks=1)
    async def work(payload: object, task: Task) -> None:
        began.append(task.id)
        await trio.sleep_forever()

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task("t1"), pulled_task("t2")])
    unlock = await polled.receive("unlock")
    assert unlock.task_id == "t2"
    assert unlock.body == {"worker_id": "w1", "fence": 7, "started": False}
    assert began == ["t1"]
    assert "more tasks" in str(await polling.wait_for_error("unexpectedLoopError"))


# --- how long the lock surely lasts ----------------------------------------------------------------------------------


async def test_fault_35_the_lock_is_counted_from_when_the_engine_gave_it(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    """Without a word about it, it could have been any time since the poll was sent."""
    left: list[float] = []

    @polling.worker.task("payment", max_tasks=5)
    async def work(payload: object, task: Task) -> None:
        left.append(task.lock_remaining)

    await nursery.start(polling.worker.serve)
    for headers in ({"stellwerk-waited-ms": "8000"}, {}, {"stellwerk-waited-ms": "soon"}):
        poll = await polled.receive_poll()
        await trio.sleep(8)
        await poll.answer([pulled_task(f"t{len(left)}")], headers=headers)
        await (await polled.receive("complete")).answer()
    assert left == [pytest.approx(30, abs=0.1), pytest.approx(22, abs=0.1), pytest.approx(22, abs=0.1)]


async def test_a_task_whose_lock_is_over_when_it_arrives_is_not_begun(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    polling.worker.task("payment")(never_called)
    await nursery.start(polling.worker.serve)
    poll = await polled.receive_poll()
    await trio.sleep(5)
    await poll.answer([pulled_task(lock_remaining_ms=1000)])
    await polled.receive_poll(max_tasks=10)
    assert polling.worker.health().active_task_count == 0
    assert polled.count("complete") + polled.count("fail") == 0
