"""What a worker says, and what waits for it, is bounded; a bound that is reached hurts nobody else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from stellwerk.errors import CallerError, LimitExceeded
from stellwerk.limits import Limits
from stellwerk.wire.codec import encode_message
from stellwerk.wire.messages import (
    Ack,
    Authenticate,
    BpmnErrorReport,
    Complete,
    Extend,
    Fail,
    Hello,
    Holding,
    LeaseRef,
    Nack,
    ProtocolErrorMessage,
    Release,
    Revoked,
    Subscribe,
    Tasks,
)

LONG_ID = "t" * 201
MANY = 2 * Limits().worker_max_tasks_max


async def stop_reading(peer: Any) -> None:
    """From now on nobody takes what the engine has to say."""
    peer.scope.cancel()
    await trio.testing.wait_all_tasks_blocked()


async def flood(peer: Any) -> None:
    """Reports of leases that never were: each is answered."""
    for _ in range(100):
        if peer.session.closed:
            return
        await peer.say(Holding(tuple(LeaseRef(f"task-{number:04}", 1) for number in range(1_000))))


async def test_a_worker_that_does_not_read_is_told_so_and_disconnected(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery
) -> None:
    world = await start_node(nursery, limits=Limits(session_outbox_bytes_max=500_000))
    peer = await world.connect()
    await stop_reading(peer)
    await flood(peer)
    assert peer.session.closed
    (said,) = await peer.session.outgoing()
    assert isinstance(said, ProtocolErrorMessage)
    assert said.code == "too_slow"
    assert await peer.session.outgoing() is None
    nursery.cancel_scope.cancel()


async def test_an_outbox_too_small_for_its_own_refusal_is_no_loop(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery
) -> None:
    world = await start_node(nursery, limits=Limits(session_outbox_bytes_max=10))
    session = await world.node.open_session(Hello("w", "b", 1, "test/1"))
    assert session.closed
    (said,) = await session.outgoing()
    assert isinstance(said, ProtocolErrorMessage)
    nursery.cancel_scope.cancel()


async def test_a_full_outbox_fails_no_instance(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any
) -> None:
    """The revocation that does not fit any more belongs to a cancellation that is durable."""
    world = await start_node(nursery, limits=Limits(session_outbox_bytes_max=100_000))
    await world.deploy(one_task())
    peer = await world.connect("work", reports=False)
    instances = [await world.start() for _ in range(10)]
    while len(peer.offers) < 10:
        await peer.next(Tasks)
    await stop_reading(peer)
    held = tuple(LeaseRef(*lease) for lease in peer.holding.items())
    while peer.session._outbox.bytes < 99_700:
        await peer.say(Holding((*held, LeaseRef("unknown", 1))))
    for instance_id in instances:
        await world.node.cancel_instance(instance_id, "not needed")
    assert peer.session.closed
    for instance_id in instances:
        summary = await world.node.wait_for_end(instance_id, timeout_seconds=1)
        assert summary.status == "CANCELLED"
    nursery.cancel_scope.cancel()


async def test_a_fault_in_a_hint_refuses_no_durable_step(
    autojump_clock: object, world: Any, one_task: Any, monkeypatch: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=1, lock_duration_ms=10_000)
    await trio.sleep(0.1)
    with monkeypatch.context() as patch:
        patch.setattr(world.node, "_revoke", lambda committed: 1 // 0)
        instance_id = await world.start()
    offer = await peer.task()
    assert 10 <= trio.current_time() < 12, "the lease that nobody was told of ran out, and its room is back"
    assert isinstance(await peer.complete(offer), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "COMPLETED"


async def test_tasks_that_did_not_fit_into_the_outbox_go_back_at_once(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any
) -> None:
    """Also single-try ones: not a byte of them was written."""
    limits = Limits(frame_bytes_max=20_000, session_outbox_bytes_max=10_000)
    world = await start_node(nursery, limits=limits)
    await world.deploy(one_task('stellwerk:singleTry="true"'))
    peer = await world.connect("work", lock_duration_ms=600_000)
    await stop_reading(peer)
    await world.start(text="x" * 12_000)
    await trio.testing.wait_all_tasks_blocked()
    assert peer.session.closed
    await world.start(text="small")
    (task, _), *_ = (await world.node.view((await world.node.instances())[1].instance_id)).tasks
    assert task.state.value == "READY"
    assert trio.current_time() < 1
    nursery.cancel_scope.cancel()


async def test_large_notices_go_in_several_messages(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery
) -> None:
    """No message is larger than a frame, however much the peer says that it holds."""
    world = await start_node(nursery, limits=Limits(frame_bytes_max=10_000))
    leases = tuple(LeaseRef("\x01" * 150 + str(number), 1) for number in range(60))
    session = await world.node.open_session(Hello("w", "b", 1, "test/1", holding=leases))
    welcome, *rest = await session.outgoing()
    named = list(welcome.lost) + [notice for message in rest for notice in message.leases]
    assert {(notice.task_id, notice.fence) for notice in named} == {(lease.task_id, lease.fence) for lease in leases}
    await session.handle([Holding(leases)])
    messages = await session.outgoing()
    assert all(isinstance(message, Revoked) for message in messages)
    assert max(len(encode_message(message)) for message in [welcome, *rest, *messages]) <= 10_000
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "request_",
    [
        Complete(1, LONG_ID, 1),
        Fail(1, LONG_ID, 1, "no"),
        BpmnErrorReport(1, LONG_ID, 1, "NO"),
        Extend(1, LONG_ID, 1, 10_000),
        Release(1, LONG_ID, 1, started=True),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_a_request_with_an_impossible_task_id_is_refused(
    autojump_clock: object, world: Any, request_: Any
) -> None:
    peer = await world.connect()
    await peer.say(request_)
    answer = await peer.next(Nack)
    assert (answer.ref, answer.code) == (1, "invalid")
    assert "@ $.task_id" in answer.message
    assert len(answer.message) < 200


@pytest.mark.parametrize(
    ("message", "code", "where"),
    [
        (Holding((LeaseRef("ok", 1), LeaseRef(LONG_ID, 1))), "invalid", "@ $.leases[1].task_id"),
        (Holding(tuple(LeaseRef(f"t{n}", 1) for n in range(MANY + 1))), "too_large", "@ $.leases"),
        (Holding((LeaseRef("ok", 2**70),)), "invalid", "@ $.leases[0].fence"),
        (Authenticate("x" * 70_000), "too_large", "@ $.token"),
        (Subscribe("work", variables=("x" * 70_000,)), "too_large", "@ $.variables"),
    ],
)
async def test_too_much_ends_the_session_with_a_reason(
    autojump_clock: object, world: Any, message: Any, code: str, where: str
) -> None:
    peer = await world.connect()
    await peer.say(message)
    error = await peer.next(ProtocolErrorMessage)
    assert error.code == code
    assert where in error.message


async def test_too_much_in_hello_opens_no_session(autojump_clock: object, world: Any) -> None:
    for changes, where in (
        ({"holding": (LeaseRef(LONG_ID, 1),)}, r"\$\.holding\[0\]\.task_id"),
        ({"holding": tuple(LeaseRef(f"t{number}", 1) for number in range(MANY + 1))}, r"\$\.holding"),
        ({"begun": (LeaseRef("ok", 1), LeaseRef("ok", -1))}, r"\$\.begun\[1\]\.fence"),
        ({"token": "x" * 70_000}, r"\$\.token"),
    ):
        with pytest.raises(CallerError, match=where):
            await world.node.open_session(Hello("w", "b", 1, "test/1", **changes))
    session = await world.node.open_session(Hello("w", "b", 1, "x" * 3_000_000))
    assert len(session.hello.client) == 200


async def test_what_is_quoted_of_a_peer_is_short(autojump_clock: object, world: Any) -> None:
    peer = await world.connect()
    peer.session.refuse(7, CallerError(f"unknown type {'y' * 1_000_000!r}"))
    assert len((await peer.next(Nack)).message) <= 500
    peer.session.close("unknown_type", f"unknown type {'y' * 1_000_000!r}")
    assert len((await peer.next(ProtocolErrorMessage)).message) <= 500


@pytest.mark.parametrize(
    ("changes", "code", "where"),
    [
        ({"code": ""}, "invalid", "@ $.code"),
        ({"code": "x" * 201}, "too_large", "@ $.code"),
        ({"message": "x" * 65_537}, "too_large", "@ $.message"),
        ({"message": "é" * 32_769}, "too_large", "@ $.message"),
        ({"details": msgspec.Raw(b'"' + b"x" * 1_048_576 + b'"')}, "too_large", "$.details"),
    ],
)
async def test_texts_of_a_business_error_are_bounded(
    autojump_clock: object, world: Any, one_task: Any, changes: dict[str, Any], code: str, where: str
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    await peer.say(BpmnErrorReport(1, offer.task_id, offer.fence, **{"code": "NO_STOCK", **changes}))
    answer = await peer.next(Nack)
    assert answer.code == code
    assert where in answer.message
    assert isinstance(await peer.complete(offer), Ack), "the lease is still the worker's"


async def test_the_text_of_a_failure_is_bounded(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    await peer.say(Fail(1, offer.task_id, offer.fence, "x" * 65_537))
    answer = await peer.next(Nack)
    assert (answer.code, "@ $.message" in answer.message) == ("too_large", True)
    await peer.say(Fail(2, offer.task_id, offer.fence, "x" * 65_536, retry_after_ms=0))
    assert isinstance(await peer.next(Ack), Ack)
    with pytest.raises(LimitExceeded, match=r"\$\.reason"):
        await world.node.cancel_instance(offer.process_instance_id, "x" * 65_537)


async def test_a_worker_gets_no_more_than_it_can_report(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any
) -> None:
    """However many topics it has room for; and what it finishes in one is room for the others."""
    world = await start_node(nursery, limits=Limits(worker_max_tasks_max=5))
    topics = ["one", "two", "three"]
    for topic in topics:
        await world.deploy(one_task().replace('topic="work"', f'topic="{topic}"'), key=f"p-{topic}")
    for topic in topics:
        for _ in range(4):
            await world.start(f"p-{topic}")
    peer = await world.connect(*topics, max_tasks=5)
    seen = 0
    while seen < 12:
        await trio.sleep(0.1)
        assert 0 < len(peer.holding) <= 5
        offer = peer.offers[min(peer.holding)]
        assert isinstance(await peer.complete(offer), Ack)
        seen += 1
    assert trio.current_time() < 2
    nursery.cancel_scope.cancel()
