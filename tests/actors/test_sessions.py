"""The session rules: confirmed delivery, reconciliation, resume, take-over. Numbers are those of consistency.md."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.errors import StellwerkError
from stellwerk.ports import ReleaseLeases
from stellwerk.wire.messages import (
    Ack,
    Complete,
    Fail,
    Goaway,
    Holding,
    LeaseRef,
    Nack,
    ProtocolErrorMessage,
    Received,
    Renewed,
    Revoked,
    Subscribe,
    Tasks,
)

SAGA = """<startEvent id="s"/>
  <parallelGateway id="fork"/>
  <serviceTask id="charge" stellwerk:topic="charge"/>
  <boundaryEvent id="undo" attachedToRef="charge"><compensateEventDefinition/></boundaryEvent>
  <serviceTask id="refund" stellwerk:topic="refund" isForCompensation="true"/>
  <association id="a" sourceRef="undo" targetRef="refund" associationDirection="One"/>
  <serviceTask id="check" stellwerk:topic="check" stellwerk:retries="1"/>
  <parallelGateway id="join"/><endEvent id="e"/>
  <sequenceFlow id="f1" sourceRef="s" targetRef="fork"/>
  <sequenceFlow id="f2" sourceRef="fork" targetRef="charge"/>
  <sequenceFlow id="f3" sourceRef="fork" targetRef="check"/>
  <sequenceFlow id="f4" sourceRef="charge" targetRef="join"/>
  <sequenceFlow id="f5" sourceRef="check" targetRef="join"/>
  <sequenceFlow id="f6" sourceRef="join" targetRef="e"/>"""


async def test_rule_2_refusals_wait_for_the_commit_and_others_are_decided_again(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """Two completions in one changeset, the lease of one has run out: that one is refused, the other is done."""
    await world.deploy(
        SAGA.replace('stellwerk:retries="1"', ""),
    )
    instance_id = await world.start()
    left = await world.connect("charge", lock_duration_ms=10_000)
    right = await world.connect("check", lock_duration_ms=20_000)
    charge, check = await left.task(), await right.task()
    world.store.gate = trio.Event()
    await trio.sleep(9.9)
    await left.say(Complete(1, charge.task_id, charge.fence))
    await right.say(Complete(1, check.task_id, check.fence))
    await trio.sleep(0.2)
    world.store.gate.set()
    refused = await left.answer(charge, 1)
    assert isinstance(refused, Nack)
    assert refused.code == "lease_lost"
    assert isinstance(await right.answer(check, 1), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "RUNNING"
    assert isinstance(await left.complete(await left.task()), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "COMPLETED"


async def test_rule_3_a_store_that_fails_acknowledges_nothing(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    world.store.refuse_changesets = 1
    answer = await peer.complete(offer, a=1)
    assert isinstance(answer, Nack)
    assert (answer.code, answer.retryable) == ("unavailable", True)
    assert isinstance(await peer.complete(offer, a=1), Ack)
    assert (await world.node.view(instance_id)).variables == {"a": 1}


async def test_rule_10_hello_releases_what_it_does_not_name(autojump_clock: object, world: Any, one_task: Any) -> None:
    """The frame was lost with the connection: nobody works on the task, it is offered again at once."""
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=60_000)
    await world.start()
    offer = await peer.task()
    peer.drop()
    peer.holding.clear()
    await peer.connect()
    await peer.say(Subscribe("work"))
    again = await peer.task()
    assert trio.current_time() < 1
    assert again.task_id == offer.task_id
    assert again.fence > offer.fence


async def test_rule_10_a_refused_commit_gives_the_room_back(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=1)
    await trio.sleep(0.1)
    world.store.refuse_changesets = 1
    with pytest.raises(StellwerkError, match="the disk is full"):
        await world.start()
    await world.start()
    assert isinstance(await peer.complete(await peer.task()), Ack)
    await world.start()
    await peer.task()


async def test_rule_10_a_newborn_does_not_overtake_older_tasks(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    older = await world.start()
    peer = await world.connect("work", max_tasks=1)
    younger = await world.start()
    order = []
    for _ in range(2):
        offer = await peer.task()
        order.append(offer.process_instance_id)
        await peer.complete(offer)
    assert order == [older, younger]


async def test_rule_12_a_repeated_failure_after_a_later_attempt_hears_the_same(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    first = await peer.task()
    await peer.say(Fail(1, first.task_id, first.fence, "timeout", retry_after_ms=10))
    assert isinstance(await peer.answer(first, 1), Ack)
    second = await peer.task()
    assert second.fence > first.fence
    await peer.say(Fail(2, first.task_id, first.fence, "timeout", retry_after_ms=10))
    assert isinstance(await peer.answer(first, 2), Ack)
    await peer.say(Fail(3, first.task_id, first.fence, "something else"))
    different = await peer.answer(first, 3)
    assert isinstance(different, Nack)
    assert different.code == "already_finished"
    assert isinstance(await peer.complete(second), Ack)


async def test_rule_14_a_single_try_that_was_never_sent_goes_back(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task('stellwerk:singleTry="true"'))
    peer = await world.connect("work", lock_duration_ms=60_000)
    peer.scope.cancel()  # nobody takes what the session has to send
    await trio.testing.wait_all_tasks_blocked()
    await world.start()
    await trio.testing.wait_all_tasks_blocked()
    peer.session.disconnected()
    other = await world.connect("work")
    assert (await other.task()).attempt == 2
    assert trio.current_time() < 1


async def test_rule_14_a_single_try_that_may_have_arrived_waits_for_its_expiry(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task('stellwerk:singleTry="true"'), attributes='stellwerk:failurePolicy="incident"')
    peer = await world.connect("work", lock_duration_ms=20_000)
    peer.confirms = False
    instance_id = await world.start()
    offer = await peer.task()
    await peer.next(Revoked)
    other = await world.connect("work")
    await world.node.wait_for_end(instance_id, timeout_seconds=60, or_incident=True)
    assert 20 <= trio.current_time() < 21
    (incident,) = await world.node.incidents()
    assert incident["kind"] == "lock_expired"
    view = await world.node.view(instance_id)
    assert view.tasks[0][0].state.value == "EXPIRED"
    assert view.tasks[0][0].task_id == offer.task_id
    assert not other.holding


@pytest.mark.parametrize("tells", [False, True])
async def test_rule_14_a_single_try_that_was_begun_and_let_go_waits_for_its_expiry(
    autojump_clock: object, world: Any, one_task: Any, tells: bool
) -> None:
    """Its worker could not be sure of the lease any more, gave it up, and came back before the lock had run out."""
    await world.deploy(one_task('stellwerk:singleTry="true"'), attributes='stellwerk:failurePolicy="incident"')
    peer = await world.connect("work", lock_duration_ms=20_000)
    instance_id = await world.start()
    offer = await peer.task()
    peer.drop()
    peer.holding.clear()
    peer.begun = (LeaseRef(offer.task_id, offer.fence),) if tells else None
    await peer.connect()
    await peer.say(Subscribe("work"))
    await world.node.wait_for_end(instance_id, timeout_seconds=60, or_incident=True)
    assert 20 <= trio.current_time() < 21
    (incident,) = await world.node.incidents()
    assert incident["kind"] == "lock_expired"
    assert not [message for message in peer.messages if isinstance(message, Tasks)]


async def test_rule_14_a_single_try_that_was_surely_not_begun_goes_back_with_hello(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task('stellwerk:singleTry="true"'))
    peer = await world.connect("work", lock_duration_ms=60_000)
    await world.start()
    offer = await peer.task()
    peer.drop()
    peer.holding.clear()
    peer.begun = (LeaseRef(offer.task_id, offer.fence - 1),)  # of an earlier lease, before an operator stepped in
    await peer.connect()
    await peer.say(Subscribe("work"))
    again = await peer.task()
    assert trio.current_time() < 1
    assert (again.task_id, again.attempt) == (offer.task_id, 2)


async def test_rule_14_a_single_try_that_its_worker_does_not_report_waits_for_its_expiry(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """Also when the worker connects once more, and what it had begun is in no report any more."""
    await world.deploy(one_task('stellwerk:singleTry="true"'), attributes='stellwerk:failurePolicy="incident"')
    peer = await world.connect("work", lock_duration_ms=20_000)
    instance_id = await world.start()
    await peer.task()
    peer.holding.clear()
    await trio.sleep(10)
    peer.drop()
    await peer.connect()
    await peer.say(Subscribe("work"))
    await world.node.wait_for_end(instance_id, timeout_seconds=60, or_incident=True)
    assert 20 <= trio.current_time() < 21
    assert not peer.holding


async def test_rule_15_a_leased_task_of_a_failing_scope_is_waited_for_and_compensated(
    autojump_clock: object, world: Any
) -> None:
    await world.deploy(SAGA)
    worker = await world.connect("charge", "check", "refund")
    instance_id = await world.start()
    offers: dict[str, Any] = {}
    while len(offers) < 2:
        offers |= {offer.topic: offer for offer in (await worker.next(Tasks)).tasks}
    await worker.say(Fail(100, offers["check"].task_id, offers["check"].fence, "no"))
    assert isinstance(await worker.answer(offers["check"], 100), Ack)
    await trio.sleep(10)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=0)).status == "RUNNING"
    assert isinstance(await worker.complete(offers["charge"], receipt=7), Ack)
    refund = await worker.task()
    assert refund.topic == "refund"
    assert b'"receipt":7' in bytes(refund.variables)
    assert isinstance(await worker.complete(refund), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "FAILED"


async def test_rule_15_a_ready_task_of_a_failing_scope_is_never_handed_out(autojump_clock: object, world: Any) -> None:
    await world.deploy(SAGA)
    worker = await world.connect("check")
    instance_id = await world.start()
    check = await worker.task()
    await worker.say(Fail(100, check.task_id, check.fence, "no"))
    await worker.answer(check, 100)
    summary = await world.node.wait_for_end(instance_id, timeout_seconds=5, or_incident=True)
    tasks = {task.topic: task.state.value for task, _ in (await world.node.view(instance_id)).tasks}
    assert summary.status in ("FAILED", "RUNNING")
    assert tasks["charge"] == "CANCELLED"


async def test_rule_16_a_completion_under_way_is_not_reconciled_away(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", reports=False)
    await world.start()
    offer = await peer.task()
    world.store.gate = trio.Event()
    await peer.say(Complete(1, offer.task_id, offer.fence), Holding(()))
    await trio.sleep(1)
    world.store.gate.set()
    assert isinstance(await peer.answer(offer, 1), Ack)


async def test_rule_16_a_lease_that_is_not_reported_is_released(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", reports=False)
    await world.start()
    offer = await peer.task()
    other = await world.connect("work")
    await peer.say(Subscribe("work", max_tasks=0), Holding(()))
    again = await other.task()
    assert again.task_id == offer.task_id
    assert trio.current_time() < 1


async def test_a_lease_is_released_once_however_long_the_store_takes(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", reports=False)
    await world.start()
    offer = await peer.task()
    world.store.gate = trio.Event()
    for _ in range(20):
        await peer.say(Subscribe("work", max_tasks=0), Holding(()))
        await trio.sleep(0.5)
    world.store.gate.set()
    await trio.sleep(1)
    operations = [operation for transaction in world.store.transactions for operation in transaction]
    (released,) = [operation for operation in operations if isinstance(operation, ReleaseLeases)]
    assert [lease.task_id for lease in released.leases] == [offer.task_id]


async def test_rule_17_a_new_session_keeps_its_leases_with_the_same_fence(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=30_000)
    await world.start()
    offer = await peer.task()
    old = peer.session
    peer.drop()
    await trio.sleep(3)
    welcome = await peer.connect()
    (kept,) = welcome.kept
    assert (kept.task_id, kept.fence) == (offer.task_id, offer.fence)
    assert 26_000 < kept.lock_remaining_ms <= 27_000, "a lost connection neither shortens nor extends a lease"
    await peer.say(Subscribe("work", lock_duration_ms=30_000))
    await peer.next(Renewed)
    await old.handle([Complete(1, offer.task_id, offer.fence)])  # a late frame of the old connection
    assert isinstance(await peer.complete(offer), Ack)


async def test_rule_17_what_a_former_session_takes_back_does_not_touch_a_lease_that_the_next_one_kept(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """The confirmation of the delivery was lost with the connection, and the worker was back before it was overdue."""
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=1, lock_duration_ms=20_000)
    peer.confirms = False
    await world.start()
    offer = await peer.task()
    peer.drop()
    welcome = await peer.connect()
    assert [kept.fence for kept in welcome.kept] == [offer.fence]
    peer.confirms = True
    await peer.say(Subscribe("work", max_tasks=1, lock_duration_ms=20_000))
    await world.start()
    await trio.sleep(30)
    assert list(peer.holding) == [offer.task_id], "it has room for one task, and that is renewed"
    assert isinstance(await peer.complete(offer), Ack)


async def test_rule_17_a_newer_session_closes_the_older_one(autojump_clock: object, world: Any, one_task: Any) -> None:
    """Faults 68, 69: the late end of the superseded connection does not touch its successor."""
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    old = peer.session
    await peer.connect()
    said = await peer.next(ProtocolErrorMessage)
    assert said.code == "superseded"
    old.disconnected()
    await peer.say(Subscribe("work"))
    assert isinstance(await peer.complete(offer), Ack)
    await world.start()
    await peer.task()


async def test_rule_17_two_processes_may_share_a_worker_id(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    first = await world.connect("work", max_tasks=1, worker_id="same")
    second = await world.connect("work", max_tasks=1, worker_id="same")
    await world.start()
    await world.start()
    one, two = await first.task(), await second.task()
    assert one.task_id != two.task_id
    assert isinstance(await first.complete(one), Ack)
    assert isinstance(await second.complete(two), Ack)


async def test_rule_18_a_silent_worker_is_not_renewed(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=30_000, reports=False)
    await world.start()
    offer = await peer.task()
    await trio.sleep(29)
    assert not [message for message in peer.messages if isinstance(message, Renewed)]
    other = await world.connect("work")
    again = await other.task()
    assert again.task_id == offer.task_id
    assert 30 <= trio.current_time() < 30.2


async def test_rule_18_revoked_is_final(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=6_000)
    instance_id = await world.start()
    offer = await peer.task()
    await world.node.cancel_instance(instance_id, "test")
    await peer.next(Revoked)
    await trio.sleep(20)  # it is reported on and on
    later = [message for message in peer.messages if isinstance(message, Renewed)]
    assert not later
    assert offer.task_id in peer.holding


async def test_fault_4_an_unconfirmed_delivery_is_taken_back_soon(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """Also faults 2 and 22: not after a whole lock duration, and without using a retry."""
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=600_000)
    peer.confirms = False
    await world.start()
    offer = await peer.task()
    other = await world.connect("work")
    again = await other.task()
    assert again.task_id == offer.task_id
    assert 5.0 <= trio.current_time() < 8.0
    assert again.retries_left == 3


async def test_fault_18_a_silent_connection_is_closed_and_gets_no_work(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=6_000, reports=False)
    await trio.sleep(2.1)
    await world.start()
    await trio.sleep(0.5)
    assert not peer.holding
    closed = await peer.next(ProtocolErrorMessage)
    assert closed.code == "too_slow"
    assert trio.current_time() < 6


async def test_fault_20_a_reconnect_within_the_lock_keeps_the_attempt(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=30_000)
    await world.start()
    offer = await peer.task()
    peer.drop()
    await world.start()
    await trio.sleep(10)
    welcome = await peer.connect()
    assert [kept.fence for kept in welcome.kept] == [offer.fence]
    assert isinstance(await peer.complete(offer), Ack)
    view = await world.node.view(offer.process_instance_id)
    assert view.tasks[0][0].attempt == 1


async def test_fault_31_never_more_leases_than_room(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=5)
    for _ in range(30):
        await world.start()
    for _ in range(30):
        while not peer.holding:
            await peer.next(Tasks)
        assert len(peer.holding) <= 5
        task_id = min(peer.holding)
        assert isinstance(await peer.complete(peer.offers[task_id]), Ack)


async def test_lost_leases_are_named_in_welcome(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    peer.drop()
    await world.node.cancel_instance(instance_id, "while it was away")
    welcome = await peer.connect()
    assert [(lost.task_id, lost.fence, lost.reason) for lost in welcome.lost] == [
        (offer.task_id, offer.fence, "cancelled")
    ]
    assert not welcome.kept


async def test_drain_says_goaway_and_gives_no_new_work(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work")
    await world.start()
    offer = await peer.task()
    world.nursery.start_soon(world.node.drain, 5.0)
    assert (await peer.next(Goaway)).within_ms == 5_000
    await world.start()
    assert isinstance(await peer.complete(offer), Ack)
    await trio.sleep(2)
    assert not peer.holding


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (Received(7), "delivery 7 was never sent"),
        (Subscribe("", 1), "a topic has 1 to"),
        (Subscribe("work", -1), "max_tasks is 0 to"),
        (Subscribe("work", 1, lock_duration_ms=10), "a lock lasts 1000 to"),
    ],
)
async def test_nonsense_ends_the_session_with_a_reason(
    autojump_clock: object, world: Any, message: Any, what: str
) -> None:
    peer = await world.connect()
    await peer.say(message)
    error = await peer.next(ProtocolErrorMessage)
    assert error.code == "invalid"
    assert what in error.message
