"""Whatever a handler raises or asks for costs its own task an attempt, and nobody else anything."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from stellwerk.errors import InvalidInput
from stellwerk.wire.codec import decode_worker_frame
from stellwerk.worker import BpmnError, Task, TaskFailure, Worker

if TYPE_CHECKING:
    from tests.worker.conftest import NetworkEngine, Observed
    from tests.worker.conftest import ScriptedEngine as Engine

Offer = Callable[..., dict[str, Any]]
NAN = float("nan")
INFINITY = float("inf")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Quits(Exception):
    def __str__(self) -> str:
        sys.exit(3)


class Halfway(TaskFailure):
    def __init__(self) -> None:
        """Never calls its base class, so that all its attributes are missing."""


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no representation")


def untyped(value: object) -> Any:
    return value


def group() -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("both", [Unspeakable(), SystemExit(2)])


BROKEN: dict[str, BaseException] = {
    "no text": Unspeakable(),
    "the text ends the program": Quits(),
    "a group": group(),
    "no attributes": Halfway(),
    "an exit": SystemExit(3),
    "generator exit": GeneratorExit(),
    "stop of an iteration": StopIteration(3),
    "a huge text": ValueError("x" * 3_000_000),
    "control characters": ValueError("\x00\x01\ud800" * 100_000),
    "no message": TaskFailure(untyped(None)),
    "a message that is no text": TaskFailure(untyped(Unspeakable())),
    "details that are no JSON": TaskFailure("m", Unreadable()),
    "details with a number that cannot be written": TaskFailure("m", {"x": 10**5000}),
    "huge details": TaskFailure("m", {"x": '"\x01' * 500_000}),
    "a code that is none": BpmnError(untyped(None)),
    "a code without text": BpmnError(untyped(Unspeakable())),
    "a huge code": BpmnError("X" * 201),
    "an empty code": BpmnError(""),
    "a code with NUL": BpmnError("X\x00"),
    "a code with half a character": BpmnError("\ud800"),
    "variables that are no JSON": BpmnError("X", variables={"x": Unreadable()}),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_exception_costs_one_attempt_of_one_task(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer, case: str
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any], task: Task) -> None:
        if task.id == "bad":
            raise BROKEN[case]

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("bad"), offer("good"))
    await peer.receive("complete", task_id="good")
    failure = await peer.receive("fail", task_id="bad")
    decode_worker_frame(json.dumps(failure), 1_000_000)
    assert 0 < len(failure["message"].encode()) <= 8 * 1024
    assert len(json.dumps(failure["details"], ensure_ascii=False, separators=(",", ":"))) <= 64 * 1024
    assert observed.errors
    assert len(engine.dials) == 1


@pytest.mark.parametrize(
    "numbers",
    [
        {"retry_after": NAN},
        {"retry_after": INFINITY},
        {"retry_after": -INFINITY},
        {"retry_after": 1e16},
        {"retry_after": 10**400},
        {"retry_after": 1_765_000_000.0},
        {"retry_after": "3"},
        {"retry_after": True},
        {"retries": -1},
        {"retries": 2**31},
        {"retries": 2**70},
        {"retries": 1.5},
        {"retries": "3"},
        {"retries": False},
    ],
    ids=str,
)
async def test_a_number_that_the_engine_would_refuse_is_reported_and_left_out(
    autojump_clock: MockClock,
    engine: Engine,
    observed: Observed,
    nursery: trio.Nursery,
    offer: Offer,
    numbers: dict[str, Any],
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any]) -> None:
        raise TaskFailure("later", **numbers)

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    failure = await peer.receive("fail")
    assert (failure["message"], failure["retry_after_ms"], failure["retries"]) == ("later", None, None)
    [name] = numbers
    assert name in str(await observed.wait_for_error("unprocessableExternalTask"))


@pytest.mark.parametrize(
    ("failure", "numbers"),
    [
        (TaskFailure("now", retry_after=-0.2, retries=2**31 - 1), (0, 2**31 - 1)),
        (TaskFailure("in a year", retry_after=365 * 86_400), (31_536_000_000, None)),
        (TaskFailure("never again, whatever the other number", retry_after=NAN, retries=0), (None, 0)),
    ],
)
async def test_usable_numbers_stay(
    autojump_clock: MockClock,
    engine: Engine,
    observed: Observed,
    nursery: trio.Nursery,
    offer: Offer,
    failure: TaskFailure,
    numbers: tuple[int | None, int | None],
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any]) -> None:
        raise failure

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    request = await peer.receive("fail")
    assert (request["retry_after_ms"], request["retries"]) == numbers


@pytest.mark.parametrize("seconds", [INFINITY, NAN, 1e30, 10**400, 90_000, 0, -1, "3", None, True])
async def test_an_impossible_extension_is_refused_in_the_handler(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer, seconds: Any
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any], task: Task) -> dict[str, Any]:
        with pytest.raises(InvalidInput, match="a lease can be extended by"):
            task.extend(seconds)
        await trio.sleep(1)
        return {}

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.receive("complete")
    assert peer.count("extend") == 0
    assert observed.errors == []


async def test_a_short_extension_asks_for_the_shortest_lock_there_is(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any], task: Task) -> None:
        task.extend(0.5)
        await trio.sleep(0.1)

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer(lock_remaining_ms=400))
    assert (await peer.receive("extend"))["lock_duration_ms"] == 1_000


async def test_a_logger_that_raises_does_not_end_the_worker(
    autojump_clock: MockClock,
    engine: Engine,
    nursery: trio.Nursery,
    offer: Offer,
    observe: Callable[[Worker], Observed],
    caplog: pytest.LogCaptureFixture,
) -> None:
    class BrokenLogger:
        def debug(self, msg: str, /, *args: object) -> None:
            raise OSError("the disk is full")

        info = warning = exception = debug

    worker = Worker("http://engine:10560", dial=engine.dial, logger=BrokenLogger())
    observed = observe(worker)

    @worker.task("payment")
    async def charge(payload: dict[str, Any], task: Task) -> None:
        await trio.sleep(2)  # meanwhile the connection is lost
        task.extend(300)
        raise ValueError

    await nursery.start(worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.receive("received")
    engine.refuses = True
    await peer.close(1011)
    await observed.wait_for_error("processExternalTask")
    engine.refuses = False
    again = await engine.accept()
    await again.welcome(kept=({"task_id": "t1", "fence": 7, "lock_remaining_ms": 20_000, "lock_expires_at": ""},))
    await again.receive("fail")
    assert observed.error_kinds.count("extendLock") == 1
    assert "the logger raised OSError: the disk is full" in caplog.text


async def test_a_cancellation_that_a_handler_kept_fails_its_task_alone(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    kept: list[trio.Cancelled] = []

    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any], task: Task) -> None:
        if task.id == "good":
            await trio.sleep(1)
            return
        with trio.move_on_after(0):
            try:
                await trio.sleep_forever()
            except trio.Cancelled as cancelled:
                kept.append(cancelled)
                raise
        raise kept[0]

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("bad"), offer("good"))
    await peer.receive("fail", task_id="bad")
    await peer.receive("complete", task_id="good")


async def test_a_handler_that_fails_while_the_worker_is_cancelled_raises_nothing_out_of_it(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any]) -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while cleaning up")

    async with trio.open_nursery() as outer:
        await outer.start(observed.worker.serve)
        peer = await engine.accept_welcomed()
        await peer.offer(offer())
        await peer.receive("received")
        await trio.testing.wait_all_tasks_blocked()
        outer.cancel_scope.cancel()


async def test_ctrl_c_in_a_coroutine_ends_a_program_that_obeys_no_signals(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    async def play() -> None:
        await (await engine.accept_welcomed()).offer(offer())

    nursery.start_soon(play)
    with pytest.raises(BaseExceptionGroup) as raised:
        await observed.worker.serve()
    assert raised.value.subgroup(KeyboardInterrupt) is not None


@attrs.define
class Picky:
    amount: int = attrs.field()

    @amount.validator
    def _check(self, _: object, value: int) -> None:
        raise {1: Unspeakable(), 2: SystemExit(3)}[value]


@pytest.mark.parametrize("amount", [1, 2])
async def test_a_payload_class_that_breaks_fails_its_task_alone(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer, amount: int
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Picky) -> None: ...

    @observed.worker.task("other")
    async def other(payload: dict[str, Any]) -> None: ...

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("bad", variables={"amount": amount}), offer("good", topic="other"))
    await peer.receive("complete", task_id="good")
    await peer.receive("fail", task_id="bad")
    assert len(engine.dials) == 1


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), GeneratorExit(), StopIteration(), Unspeakable()],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_thread_raises_never_ends_the_worker(
    network_engine: NetworkEngine, nursery: trio.Nursery, offer: Offer, error: BaseException
) -> None:
    worker = Worker(network_engine.url)

    @worker.task("payment")
    def charge(payload: dict[str, Any], task: Task) -> None:
        if task.id == "bad":
            raise error

    await nursery.start(worker.serve)
    peer = await network_engine.accept_welcomed()
    await peer.offer(offer("bad"))
    await peer.receive("fail", task_id="bad")
    await peer.offer(offer("good"), delivery=2)
    await peer.receive("complete", task_id="good")


@pytest.mark.parametrize("error", [SystemExit(3), Unspeakable()], ids=lambda error: type(error).__name__)
async def test_what_a_coroutine_of_asyncio_raises_never_ends_the_worker(
    network_engine: NetworkEngine, nursery: trio.Nursery, offer: Offer, error: BaseException
) -> None:
    pytest.importorskip("trio_asyncio", reason="the extra asyncio is not installed")
    worker = Worker(network_engine.url)

    @worker.task("payment", asyncio=True)
    async def charge(payload: dict[str, Any], task: Task) -> None:
        if task.id == "bad":
            raise error

    await nursery.start(worker.serve)
    peer = await network_engine.accept_welcomed()
    await peer.offer(offer("bad"))
    await peer.receive("fail", task_id="bad")
    await peer.offer(offer("good"), delivery=2)
    await peer.receive("complete", task_id="good")


def test_what_the_engine_would_close_the_session_for_is_refused_at_the_registration() -> None:
    worker = Worker()
    wrong: list[tuple[Any, dict[str, Any]]] = [
        ("t" * 201, {}),
        (3, {}),
        ("t\x00", {}),
        ("t", {"max_tasks": 1.5}),
        ("t", {"max_tasks": True}),
        ("t", {"lock_duration": NAN}),
        ("t", {"lock_duration": "30"}),
        ("t", {"variables": [3]}),
        ("t", {"variables": ["\ud800"]}),
    ]
    for topic, options in wrong:
        with pytest.raises(InvalidInput, match="topic"):
            worker.task(topic, **options)(lambda payload: None)
    for grace in (NAN, -1, "3", None):
        with pytest.raises(InvalidInput, match="grace"):
            worker.stop(grace=cast("float", grace))
