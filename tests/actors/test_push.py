"""Handing out work: the way of a task from its token to a worker and back."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from stellwerk.actors import instance as module
from stellwerk.actors.mailbox import Reply
from stellwerk.actors.steps import Envelope
from stellwerk.core.commands import EndTaskInFailure, FailureKind
from stellwerk.core.decide import decide
from stellwerk.errors import PeerError
from stellwerk.limits import Limits
from stellwerk.wire.messages import Ack, Fail, Nack, Release, Renewed, Revoked, Subscribe, Tasks


async def test_E1_an_instance_runs_to_its_end(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    instance_id = await world.start(a=1)
    offer = await peer.task()
    assert offer.process_instance_id == instance_id
    assert bytes(offer.variables) == b'{"a":1}'
    assert isinstance(await peer.complete(offer, b=2), Ack)
    summary = await world.node.wait_for_end(instance_id, timeout_seconds=5)
    assert summary.status == "COMPLETED"
    view = await world.node.view(instance_id)
    assert view.variables == {"a": 1, "b": 2}


async def test_E1_a_fault_in_one_instance_stops_no_other(
    autojump_clock: object, world: Any, one_task: Any, monkeypatch: Any
) -> None:
    """The actor that fails is dropped, its request answered, and it comes back from the store."""
    await world.deploy(one_task())
    peer = await world.connect("work")
    faulty, sound = await world.start(), await world.start()
    offers: dict[str, Any] = {}
    while len(offers) < 2:
        frame = await peer.next(Tasks)
        offers |= {offer.process_instance_id: offer for offer in frame.tasks}

    def break_once(state: Any, command: Any, context: Any) -> Any:
        if state is not None and state.instance_id == faulty:
            monkeypatch.setattr(module, "decide", decide)
            raise ZeroDivisionError("a mistake of ours")
        return decide(state, command, context)

    monkeypatch.setattr(module, "decide", break_once)
    answer = await peer.complete(offers[faulty])
    assert isinstance(answer, Nack)
    assert answer.code == "internal"
    assert isinstance(await peer.complete(offers[sound]), Ack)
    assert isinstance(await peer.complete(offers[faulty]), Ack)
    for instance_id in (faulty, sound):
        assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"


async def test_E1_idle_instances_leave_memory_and_come_back(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    instance_id = await world.start(a=1)
    assert world.node.statistics()["instances_live"] == 1
    await trio.sleep(60)
    assert world.node.statistics()["instances_live"] == 0
    peer = await world.connect("work")
    assert isinstance(await peer.complete(await peer.task()), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"


async def test_L5_a_stale_fence_is_refused(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    answer = await peer.complete(attrs.evolve(offer, fence=offer.fence - 1))
    assert isinstance(answer, Nack)
    assert answer.code == "lease_lost"
    assert isinstance(await peer.complete(offer), Ack)


async def test_L6_failing_uses_a_retry_and_waits_as_long_as_the_worker_says(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    assert offer.retries_left == 3
    failed_at = trio.current_time()
    ref = peer.ref()
    await peer.say(Fail(ref, offer.task_id, offer.fence, "timeout", retry_after_ms=7_000))
    assert isinstance(await peer.answer(offer, ref), Ack)
    again = await peer.task()
    assert 7.0 <= trio.current_time() - failed_at < 7.1
    assert again.task_id == offer.task_id
    assert again.fence > offer.fence
    assert (again.retries_left, again.attempt) == (2, 2)


async def test_L7_a_crashed_workers_task_is_given_to_another(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    crashed = await world.connect("work", lock_duration_ms=10_000)
    instance_id = await world.start()
    offer = await crashed.task()
    crashed.drop()
    other = await world.connect("work")
    again = await other.task()
    assert 9.9 < trio.current_time() < 10.2
    assert again.task_id == offer.task_id
    assert again.retries_left == 3, "an expiry uses no retry"
    assert isinstance(await other.complete(again), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"


async def test_L8_repeating_a_completion_gives_the_same_answer(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    assert isinstance(await peer.complete(offer, a=1), Ack)
    assert isinstance(await peer.complete(offer, a=1), Ack)
    different = await peer.complete(offer, a=2)
    assert isinstance(different, Nack)
    assert different.code == "already_finished"


async def test_W1_as_many_as_there_is_room_for(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    for _ in range(5):
        await world.start()
    peer = await world.connect("work", max_tasks=3)
    first = await peer.next(Tasks)
    assert len(first.tasks) == 3
    await peer.complete(first.tasks[0])
    assert len((await peer.next(Tasks)).tasks) == 1


async def test_W1_subscribing_again_changes_the_room(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=0)
    await world.start()
    await trio.sleep(3)
    assert not peer.holding
    await peer.say(Subscribe("work", max_tasks=1))
    await peer.task()
    await peer.say(Subscribe("work", max_tasks=0))
    await world.start()
    await trio.sleep(3)
    assert len(peer.holding) == 1


async def test_W2_a_live_workers_lease_is_renewed_shortly_before_it_ends(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=30_000)
    await world.start()
    offer = await peer.task()
    for number in range(1, 4):
        renewed = await peer.next(Renewed)
        assert number * 24.9 <= trio.current_time() < number * 25.0 + 1.0
        (lease,) = renewed.leases
        assert (lease.task_id, lease.fence) == (offer.task_id, offer.fence)
        assert 29_000 < lease.lock_remaining_ms <= 30_000
    assert isinstance(await peer.complete(offer), Ack)


async def test_W2_a_cancelled_lease_is_revoked_at_once(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    await world.node.cancel_instance(instance_id, "not needed")
    (notice,) = (await peer.next(Revoked)).leases
    assert (notice.task_id, notice.fence, notice.reason) == (offer.task_id, offer.fence, "cancelled")
    late = await peer.complete(offer)
    assert isinstance(late, Nack)
    assert late.code == "cancelled"


async def test_released_work_goes_to_the_next_without_using_a_retry(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=1)
    await world.start()
    offer = await peer.task()
    other = await world.connect("work")
    await peer.say(Subscribe("work", max_tasks=0))
    ref = peer.ref()
    await peer.say(Release(ref, offer.task_id, offer.fence, started=False))
    assert isinstance(await peer.answer(offer, ref), Ack)
    again = await other.task()
    assert again.task_id == offer.task_id
    assert again.retries_left == 3


async def test_fault_14_a_big_batch_is_split_into_frames(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=0)
    for _ in range(12):
        await world.start(text="x" * 900_000)
    await peer.say(Subscribe("work", max_tasks=20))
    frames: list[Tasks] = []
    while sum(len(frame.tasks) for frame in frames) < 12:
        frames.append(await peer.next(Tasks))
    for frame in frames:
        assert sum(len(bytes(offer.variables)) for offer in frame.tasks) < world.node.limits.frame_bytes_max


async def test_fault_17_a_task_that_fits_no_frame_is_an_incident(
    autojump_clock: object, nursery: trio.Nursery, start_node: Any, one_task: Any
) -> None:
    world = await start_node(nursery, limits=Limits(frame_bytes_max=2_000, payload_bytes_max=4_000))
    await world.deploy(one_task(), attributes='stellwerk:failurePolicy="incident"')
    peer = await world.connect("work")
    big = await world.start(text="x" * 3_000)
    await world.node.wait_for_end(big, timeout_seconds=5, or_incident=True)
    (incident,) = await world.node.incidents()
    assert incident["kind"] == "undeliverable"
    assert "a frame has at most 2000" in str(incident["message"])
    await world.start(text="small")
    assert bytes((await peer.task()).variables) == b'{"text":"small"}', "the topic goes on"
    nursery.cancel_scope.cancel()


async def test_fault_42_a_quiet_topic_is_served_beside_a_busy_one(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task(), "busy")
    await world.deploy(one_task().replace('"work"', '"quiet"'), "still")
    for _ in range(1_000):
        await world.start("busy")
    await world.connect("work", max_tasks=1)
    began = trio.current_time()
    other = await world.connect("quiet")
    await world.start("still")
    await other.task()
    assert trio.current_time() - began < 0.1


async def test_fault_51_a_poison_task_becomes_an_incident(autojump_clock: object, world: Any, one_task: Any) -> None:
    attributes = 'stellwerk:failurePolicy="incident"'
    await world.deploy(one_task('stellwerk:lockExpiriesMax="2"'), attributes=attributes)
    instance_id = await world.start()
    for _ in range(2):
        peer = await world.connect("work", lock_duration_ms=1_000)
        await peer.task()
        peer.drop()
        await trio.sleep(2)
    summary = await world.node.wait_for_end(instance_id, timeout_seconds=30, or_incident=True)
    assert summary.status == "RUNNING"
    (incident,) = await world.node.incidents()
    assert incident["kind"] == "lock_expiries_exhausted"
    assert incident["element_id"] == "work"


async def test_rule_8_a_lease_that_was_renewed_after_the_sweep_had_looked_goes_on(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task('stellwerk:lockExpiriesMax="1"'))
    peer = await world.connect("work", lock_duration_ms=2_000)
    instance_id = await world.start()
    offer = await peer.task()
    refusals: list[str] = []

    def answered(reply: Any) -> None:
        with pytest.raises(PeerError) as refused:
            reply.result()
        refusals.append(refused.value.code)

    # As a sweep sends it that read the row just before the renewal was committed.
    stale = EndTaskInFailure(offer.task_id, offer.fence, FailureKind.LOCK_EXPIRIES_EXHAUSTED, "the lock ran out")
    await world.node.post(instance_id, Envelope(stale, Reply(answered)))
    await trio.sleep(1)
    assert refusals == ["lease_lost"]
    assert isinstance(await peer.complete(offer), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"


async def test_fault_100_priority_then_age(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task('stellwerk:priority="1"'), "low")
    await world.deploy(one_task('stellwerk:priority="5"'), "high")
    started = [await world.start(key) for key in ("low", "high", "low", "high")]
    peer = await world.connect("work", max_tasks=1)
    order = []
    for _ in started:
        offer = await peer.task()
        order.append(offer.process_instance_id)
        await peer.complete(offer)
    assert order == [started[1], started[3], started[0], started[2]]


@pytest.mark.parametrize(
    "numbers", [{"retries": -1}, {"retries": 2**70}, {"retry_after_ms": -1}, {"retry_after_ms": 2**70}], ids=str
)
async def test_numbers_out_of_bounds_are_refused_and_the_lease_stays(
    autojump_clock: object, world: Any, one_task: Any, numbers: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    await peer.say(Fail(7, offer.task_id, offer.fence, "no", **numbers))
    refused = await peer.next(Nack)
    assert (refused.ref, refused.code) == (7, "invalid")
    assert next(iter(numbers)) in refused.message
    assert isinstance(await peer.complete(offer), Ack)


async def test_a_worker_that_gives_up_ends_the_task_at_once(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task(), attributes='stellwerk:failurePolicy="incident"')
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    await peer.say(Fail(1, offer.task_id, offer.fence, "hopeless", retries=0))
    assert isinstance(await peer.answer(offer, 1), Ack)
    await world.node.wait_for_end(instance_id, timeout_seconds=5, or_incident=True)
    (incident,) = await world.node.incidents()
    assert (incident["kind"], incident["message"]) == ("retries_exhausted", "hopeless")
