"""What a handler gets, and what becomes of what it returns or raises."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypedDict

import attrs
import pytest
import trio
from trio.testing import MockClock

from stellwerk.errors import InvalidInput
from stellwerk.worker import BpmnError, CancelSignal, Health, Task, TaskFailure, Worker

if TYPE_CHECKING:
    from tests.worker.conftest import Observed
    from tests.worker.conftest import ScriptedEngine as Engine

Offer = Callable[..., dict[str, Any]]


@attrs.define
class Order:
    amount: int
    note: str | None = None


@dataclasses.dataclass
class Receipt:
    total: Decimal
    lines: list[Order]


class Address(TypedDict):
    city: str


async def test_W3_typed_payload_and_result(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> Receipt:
        return Receipt(Decimal("1.50") * payload.amount, [payload])

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    complete = await peer.receive("complete")
    assert complete["variables"] == {"total": "18.00", "lines": [{"amount": 12, "note": None}]}
    assert (complete["task_id"], complete["fence"]) == ("t1", 7)


async def test_W3_without_annotations_the_payload_is_a_dict(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload):  # type: ignore[no-untyped-def]
        return {"type": type(payload).__name__, **payload}

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    assert (await peer.receive("complete"))["variables"] == {"type": "dict", "amount": 12}


async def test_W3_typed_dicts_and_plain_mappings(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("address", max_tasks=2)
    async def address(payload: Address) -> dict[str, object]:
        return {"seen": payload["city"]}

    @observed.worker.task("mapping")
    async def mapping(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(
        offer("a1", topic="address", variables={"city": "Bern"}),
        offer("a2", topic="address", variables={"city": 3}),
        offer("m1", topic="mapping", variables={"x": [1, {"y": None}]}),
    )
    assert (await peer.receive("complete", task_id="a1"))["variables"] == {"seen": "Bern"}
    assert (await peer.receive("complete", task_id="m1"))["variables"] == {"x": [1, {"y": None}]}
    assert "expected str, got int @ $" in (await peer.receive("fail", task_id="a2"))["message"]


async def test_W4_handler_gets_payload_task_and_signal(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    seen: list[Any] = []

    @observed.worker.task("payment")
    async def charge(payload: Order, task: Task, signal: CancelSignal) -> None:
        seen.extend([payload, task, signal, task.lock_remaining])

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.receive("complete")
    payload, task, signal, remaining = seen
    assert payload == Order(12)
    assert not signal
    assert not task.cancelled
    assert 29 < remaining <= 30
    assert (task.id, task.fence, task.topic, task.worker_id) == ("t1", 7, "payment", "w1")
    assert (task.process_instance_id, task.process_definition_id) == ("instance-1", "order:3")
    assert (task.business_key, task.element_id, task.token_id) == ("order-17", "Task_Pay", "token-1")
    assert (task.attempt, task.retries_left, task.priority, task.single_try) == (1, 3, 5, False)
    assert task.variables == {"amount": 12}
    assert task.headers == {"currency": "EUR"}
    assert task.created_at.startswith("2026-01-01")


async def test_W4_a_handler_may_ask_for_the_task_alone(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(task: Task) -> dict[str, object]:
        return {"fence": task.fence}

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    assert (await peer.receive("complete"))["variables"] == {"fence": 7}


async def test_W5_defaults_and_options(autojump_clock: MockClock, engine: Engine, nursery: trio.Nursery) -> None:
    worker = Worker("http://engine:10560", dial=engine.dial)

    @worker.task("payment")
    async def charge(payload: dict[str, Any]) -> None: ...

    @worker.task("mail", max_tasks=2, lock_duration=60, filter=re.compile("urgent", re.IGNORECASE), variables=["to"])
    async def mail(payload: dict[str, Any]) -> None: ...

    await nursery.start(worker.serve)
    peer = await engine.accept()
    hello = await peer.welcome()
    assert hello["worker_id"] == worker.worker_id
    assert len(hello["boot_id"]) == 36
    assert hello["session_no"] == 1
    assert await peer.receive("subscribe", topic="payment") == {
        "type": "subscribe",
        "topic": "payment",
        "max_tasks": 10,
        "lock_duration_ms": 30_000,
        "filter": None,
        "variables": None,
    }
    subscribed = await peer.receive("subscribe", topic="mail")
    assert (subscribed["max_tasks"], subscribed["lock_duration_ms"]) == (2, 60_000)
    assert (subscribed["filter"], subscribed["variables"]) == ("(?i)urgent", ["to"])


@pytest.mark.parametrize("raises", [True, False])
async def test_W6_a_business_error_becomes_a_bpmn_error(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer, raises: bool
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> BpmnError:
        error = BpmnError("CARD_REFUSED", "limit exceeded", {"limit": 10}, {"refused": True})
        if raises:
            raise error
        return error

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    report = await peer.receive("bpmn_error")
    assert (report["code"], report["message"]) == ("CARD_REFUSED", "limit exceeded")
    assert (report["details"], report["variables"]) == ({"limit": 10}, {"refused": True})
    await peer.ack(report)
    await observed.wait_for_heartbeat("handleError", "t1")
    assert observed.errors == []


async def test_W7_an_exception_fails_the_task_and_is_reported(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> None:
        raise OSError("card\x00 service down")

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    failure = await peer.receive("fail")
    assert failure["message"] == "OSError: card\ufffd service down"
    assert failure["details"]["type"] == "OSError"
    assert "in charge" in failure["details"]["traceback"]
    assert (failure["retry_after_ms"], failure["retries"]) == (None, None)
    [(kind, error, task)] = observed.errors
    assert kind == "processExternalTask"
    assert isinstance(error, OSError)
    assert task is not None
    assert task.id == "t1"


async def test_a_failure_can_say_when_to_try_again(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(fail)

    async def fail() -> None:
        raise TaskFailure("try later", {"shop": 1}, retry_after=2.5, retries=1)

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    failure = await peer.receive("fail")
    assert (failure["message"], failure["details"]) == ("try later", {"shop": 1})
    assert (failure["retry_after_ms"], failure["retries"]) == (2500, 1)


async def test_fault_94_a_payload_that_does_not_fit_fails_its_task_and_the_worker_goes_on(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> dict[str, int]:
        return {"charged": payload.amount}

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("bad", variables={"amount": "twelve"}), offer("empty", variables={}), offer("good"))
    assert (await peer.receive("fail", task_id="bad"))["message"] == "payload: expected int, got str @ $.amount"
    assert "required field missing @ $.amount" in (await peer.receive("fail", task_id="empty"))["message"]
    assert (await peer.receive("complete", task_id="good"))["variables"] == {"charged": 12}
    assert observed.error_kinds == ["unprocessableExternalTask"] * 2


@pytest.mark.parametrize("result", [None, 0, "", False, [], {}])
async def test_fault_147_an_empty_result_completes_the_task(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer, result: object
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> object:
        return result

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    assert (await peer.receive("complete"))["variables"] == result


@pytest.mark.parametrize("result", [{"x": object()}, {"x": float("nan")}, {"x": "\x00"}, {1: "\ud800"}])
async def test_a_result_that_is_no_json_fails_the_task(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer, result: object
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> object:
        return result

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    assert " @ $" in (await peer.receive("fail"))["message"]


async def test_a_result_over_the_limit_fails_the_task(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> object:
        return {"text": "x" * 200_000}

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    assert "at most 100000 are allowed" in (await peer.receive("fail"))["message"]
    assert observed.error_kinds == ["finishExternalTask"]


async def test_a_result_that_the_engine_refuses_fails_the_task(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> None: ...

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.nack(await peer.receive("complete"), "invalid")
    failure = await peer.receive("fail")
    assert failure["message"] == "the engine refused the result: because invalid"
    await peer.ack(failure)
    await observed.wait_for_heartbeat("handleError", "t1")


async def test_W9_heartbeats(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> None:
        await trio.sleep(1)

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.renew("t1", 7)
    await peer.ack(await peer.receive("complete"))
    await observed.wait_for_heartbeat("finishExternalTask", "t1")
    wanted = [("fetchAndLock", None), ("processExternalTask", "t1"), ("extendLock", "t1"), ("finishExternalTask", "t1")]
    firsts = list(dict.fromkeys(beat for beat in observed.heartbeats if beat in wanted))
    assert firsts == wanted


async def test_W9_a_failed_handler_has_a_beat_of_its_own(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment")
    async def charge(payload: Order) -> None:
        raise ValueError("no")

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer())
    await peer.ack(await peer.receive("fail"))
    await observed.wait_for_heartbeat("handleError", "t1")


async def test_W8_health_counts_the_handlers_under_way(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    release = trio.Event()

    @observed.worker.task("payment")
    async def charge(payload: Order) -> None:
        await release.wait()

    assert observed.worker.health() == Health(
        is_polling_active=False,
        consecutive_critical_errors=0,
        max_consecutive_critical_errors=5,
        active_task_count=0,
        identity_refresh_failed_critically=False,
    )
    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("t1"), offer("t2"))
    await observed.wait_for_heartbeat("processExternalTask", "t2")
    health = observed.worker.health()
    assert (health.is_polling_active, health.active_task_count) == (True, 2)
    release.set()
    for _ in range(2):
        await peer.ack(await peer.receive("complete"))
    await observed.wait_for_heartbeat("finishExternalTask", "t2")
    assert observed.worker.health().active_task_count == 0
    assert observed.worker.is_healthy()


async def test_W11_several_topics_in_one_worker(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    for topic in ("a", "b", "c"):

        @observed.worker.task(topic)
        async def handle(payload: dict[str, Any], task: Task) -> dict[str, str]:
            return {"by": task.topic}

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(*(offer(f"t-{topic}", topic=topic) for topic in "abc"))
    for topic in "abc":
        assert (await peer.receive("complete", task_id=f"t-{topic}"))["variables"] == {"by": topic}


async def test_a_callback_that_raises_does_not_end_the_worker(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.on_heartbeat
    @observed.worker.on_error
    def broken(*_: object) -> None:
        raise ValueError("a mistake")

    @observed.worker.task("payment")
    async def charge(payload: Order) -> None: ...

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer("bad", variables={}), offer("good"))
    await peer.receive("complete", task_id="good")


def test_mistakes_in_the_registration_are_named() -> None:
    worker = Worker()

    def four(a: int, b: int, c: int, d: int) -> None: ...

    def keyword(payload: object, *, extra: int) -> None: ...

    async def good(payload: object) -> None: ...

    for function in (four, keyword):
        with pytest.raises(InvalidInput, match="topic 'x': a handler takes"):
            worker.task("x")(function)
    with pytest.raises(InvalidInput, match="non-empty"):
        worker.task("")(good)
    with pytest.raises(InvalidInput, match="max_tasks must be"):
        worker.task("x", max_tasks=0)(good)
    with pytest.raises(InvalidInput, match="lock_duration must be"):
        worker.task("x", lock_duration=0)(good)
    for seconds in (0.1, 24 * 3600 + 1, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="lock_duration must be 1 to 86400 seconds"):
            worker.task("x", lock_duration=seconds)(good)
    with pytest.raises(InvalidInput, match="no regular expression"):
        worker.task("x", filter="(")(good)
    with pytest.raises(InvalidInput, match=r"cannot use re\.VERBOSE"):
        worker.task("x", filter=re.compile("a b", re.VERBOSE))(good)
    with pytest.raises(InvalidInput, match="asks for an async function"):
        worker.task("x", asyncio=True)(lambda payload: None)
    worker.task("x")(good)
    with pytest.raises(InvalidInput, match="has a handler already"):
        worker.task("x")
    with pytest.raises(InvalidInput, match="must look like"):
        Worker("engine:10560")


async def test_fault_146_topic_and_handler_are_enough() -> None:
    worker = Worker()
    worker.task("payment")(lambda payload: None)
    assert worker.topics == ("payment",)
    assert "payment" in repr(worker)


async def test_W6_failure_of_a_handler_is_logged_with_its_own_traceback(
    autojump_clock: MockClock,
    engine: Engine,
    observed: Observed,
    nursery: trio.Nursery,
    offer: Offer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @observed.worker.task("payment", max_tasks=2)
    async def charge(payload: Order) -> None:
        if payload.amount == 0:
            raise TaskFailure("nothing to pay")
        raise ValueError("no luck")

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer(), offer("t2", variables={"amount": 0}))
    details = (await peer.receive("fail", task_id="t1"))["details"]
    await peer.receive("fail", task_id="t2")
    assert details["type"] == "ValueError"
    for text in (details["traceback"], caplog.text):
        assert 'in charge\n    raise ValueError("no luck")' in text
        assert "in _outcome" not in text
    assert ["ValueError: no luck" in str(r.exc_text) for r in caplog.records if r.levelname == "ERROR"] == [True]


async def test_W2_handler_for_asyncio_on_trio_is_told_the_way_out(
    autojump_clock: MockClock, engine: Engine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    @observed.worker.task("payment", max_tasks=2)
    async def charge(payload: Order) -> None:
        await asyncio.sleep(payload.amount)

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await peer.offer(offer(), offer("t2", variables={"amount": 0}))
    for task_id in ("t1", "t2"):
        message = (await peer.receive("fail", task_id=task_id))["message"]
        assert message.endswith("Register it with @worker.task('payment', asyncio=True))"), message
