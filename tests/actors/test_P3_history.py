"""After any accident the engine explains what happened: who held a task when, and what the instance was at any step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from stellwerk.actors.views import state_of
from stellwerk.core.external_task import TaskState
from stellwerk.core.trace import LeaseEnd, LeaseSpan, TaskTrace, WaitSpan
from stellwerk.errors import InvalidInput, NotFound
from stellwerk.wire.messages import Ack, BpmnErrorReport, Fail, Release, Unsubscribe

EPOCH_MS = 1_767_225_600_000
WAITING = """<startEvent id="s"/><userTask id="ask" name="Ask"/><boundaryEvent id="late" attachedToRef="ask">
  <timerEventDefinition><timeDuration>PT5S</timeDuration></timerEventDefinition></boundaryEvent>
  <intermediateCatchEvent id="pause"><timerEventDefinition><timeDuration>PT1M</timeDuration></timerEventDefinition>
  </intermediateCatchEvent><receiveTask id="paid" messageRef="paid"/><endEvent id="e"/>"""
LOOP = """<startEvent id="s"/><exclusiveGateway id="m"/><serviceTask id="work" stellwerk:topic="work"/>
  <exclusiveGateway id="x" default="out"/><endEvent id="e"/>
  <sequenceFlow id="f1" sourceRef="s" targetRef="m"/><sequenceFlow id="f2" sourceRef="m" targetRef="work"/>
  <sequenceFlow id="f3" sourceRef="work" targetRef="x"/><sequenceFlow id="out" sourceRef="x" targetRef="e"/>
  <sequenceFlow id="again" sourceRef="x" targetRef="m"><conditionExpression>=again</conditionExpression>
  </sequenceFlow>"""

ONCE = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
  xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"><error id="late" errorCode="stellwerk:lock-expired"/>
  <process id="p" isExecutable="true"><startEvent id="s"/>
  <serviceTask id="once" stellwerk:topic="once" stellwerk:singleTry="true"/>
  <boundaryEvent id="caught" attachedToRef="once"><errorEventDefinition errorRef="late"/></boundaryEvent>
  <serviceTask id="ask" stellwerk:topic="ask"/>
  <boundaryEvent id="no" attachedToRef="ask"><errorEventDefinition/></boundaryEvent>
  <endEvent id="e"/><endEvent id="f"/>{}</process></definitions>"""


def _told(lease: LeaseSpan) -> tuple[str, int, str, str | None]:
    return lease.worker_id, lease.fence, lease.end.value, lease.message


def _waited(wait: WaitSpan) -> str:
    return f"{wait.kind.value} {wait.node_id} {wait.end.value if wait.end else 'open'}"


def _seconds(lease: LeaseSpan) -> tuple[float, float | None]:
    """From when to when, rounded to a tenth: delivery itself takes a moment."""
    until = None if lease.until_ms is None else round((lease.until_ms - EPOCH_MS) / 1000, 1)
    return round((lease.since_ms - EPOCH_MS) / 1000, 1), until


async def _only_task(world: Any, instance_id: str) -> TaskTrace:
    (task,) = (await world.node.trace(instance_id)).tasks
    assert isinstance(task, TaskTrace)
    return task


async def _report(peer: Any, offer: Any, kind: type, *words: object, **more: object) -> None:
    """Fail, release or a business error; acknowledged."""
    ref = peer.ref()
    await peer.say(kind(ref, offer.task_id, offer.fence, *words, **more))
    assert isinstance(await peer.answer(offer, ref), Ack)


async def test_P3_a_trace_names_each_holder_of_a_task_with_fence_and_times_in_order(
    autojump_clock: object, site: Any, one_task: Any
) -> None:
    """Failure, back-off, expiry, release, a new lease, completion; and the same after a restart of the node."""
    world = await site.start()
    await world.deploy(one_task())
    instance_id = await world.start()

    failing = await world.connect("work", worker_id="failing")
    first = await failing.task()
    await trio.sleep(2)
    details = msgspec.Raw(b'{"status":503}')
    await _report(failing, first, Fail, "the bank is closed", details, retry_after_ms=3_000)
    failing.drop()

    crashing = await world.connect("work", worker_id="crashing", lock_duration_ms=10_000)
    second = await crashing.task()
    held = (await _only_task(world, instance_id)).leases[-1]
    assert (held.end, held.until_ms) == (LeaseEnd.HELD, None)
    assert held.locked_until_ms == held.since_ms + 10_000
    crashing.drop()

    releasing = await world.connect("work", worker_id="releasing")
    third = await releasing.task()
    await trio.sleep(1)
    await releasing.say(Unsubscribe("work"))
    await _report(releasing, third, Release, started=True)

    done = await world.connect("work", worker_id="done")
    fourth = await done.task()
    await trio.sleep(4)
    assert isinstance(await done.complete(fourth), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"

    told = await world.node.trace(instance_id)
    (task,) = told.tasks
    assert [_told(lease) for lease in task.leases] == [
        ("failing", first.fence, "failed", "the bank is closed"),
        ("crashing", second.fence, "expired", None),
        ("releasing", third.fence, "released", None),
        ("done", fourth.fence, "completed", None),
    ]
    assert task.leases[0].details == b'{"status":503}'
    assert [_seconds(lease) for lease in task.leases] == [(0, 2), (5, 15), (15, 16), (16, 20)]
    assert first.fence < second.fence < third.fence < fourth.fence
    assert (task.state, task.retries, task.retries_left, task.lock_expiries) == (TaskState.COMPLETED, 3, 2, 1)
    assert task.ended_at_ms == task.leases[-1].until_ms

    world = await site.restart()
    assert await world.node.trace(instance_id) == told


async def test_P3_a_lease_that_is_held_across_a_restart_stays_one_lease(
    autojump_clock: object, site: Any, one_task: Any
) -> None:
    world = await site.start()
    await world.deploy(one_task())
    instance_id = await world.start()
    peer = await world.connect("work", worker_id="steady")
    offer = await peer.task()
    world = await site.restart()
    (held,) = (await _only_task(world, instance_id)).leases
    assert _told(held) == ("steady", offer.fence, "held", None)
    peer.world = world
    await peer.connect()
    assert isinstance(await peer.complete(offer), Ack)
    (completed,) = (await _only_task(world, instance_id)).leases
    assert _told(completed) == ("steady", offer.fence, "completed", None)
    assert completed.since_ms == held.since_ms


async def test_P3_a_trace_tells_of_revoked_and_requeued_leases(
    autojump_clock: object, site: Any, one_task: Any
) -> None:
    world = await site.start()
    await world.deploy(one_task('stellwerk:retries="1"'), attributes='stellwerk:failurePolicy="incident"')
    instance_id = await world.start()
    peer = await world.connect("work", worker_id="w")
    first = await peer.task()
    await _report(peer, first, Fail, "no")
    failed = await _only_task(world, instance_id)
    assert (failed.state, [_told(lease) for lease in failed.leases]) == (
        TaskState.FAILED,
        [("w", first.fence, "failed", "no")],
    )
    (incident,) = await world.node.incidents(instance_id)
    await world.node.resolve_incident(str(incident["incident_id"]))
    second = await peer.task()
    await world.node.cancel_instance(instance_id, "enough")
    task = await _only_task(world, instance_id)
    assert [_told(lease) for lease in task.leases] == [
        ("w", first.fence, "failed", "no"),
        ("w", second.fence, "revoked", None),
    ]
    assert [moment.version for moment in task.requeued] == [3]
    assert (task.state, task.ended_at_ms) == (TaskState.CANCELLED, task.leases[-1].until_ms)
    (token,) = (await world.node.trace(instance_id)).tokens
    assert [stay.end and stay.end.value for stay in token.stays] == ["left", "cancelled"]


async def test_P3_a_trace_tells_of_a_single_try_that_expired_and_of_a_business_error(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    world = await site.start()
    await world.node.deploy([("p.bpmn", ONCE.format(flow("s once e", "caught ask e", "no f")).encode())])
    instance_id = await world.start()
    crashing = await world.connect("once", worker_id="crashing", lock_duration_ms=5_000)
    once = await crashing.task()
    crashing.drop()
    asked = await world.connect("ask", worker_id="asked")
    ask = await asked.task()
    await _report(asked, ask, BpmnErrorReport, "REFUSED", "not for you")
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    told = await world.node.trace(instance_id)
    assert [(task.element_id, task.state, [_told(lease)[:3] for lease in task.leases]) for task in told.tasks] == [
        ("once", TaskState.EXPIRED, [("crashing", once.fence, "expired")]),
        ("ask", TaskState.COMPLETED, [("asked", ask.fence, "bpmn_error")]),
    ]
    (token,) = told.tokens
    assert [(stay.node_id, stay.end and stay.end.value) for stay in token.stays] == [
        ("s", "left"),
        ("once", "failed"),
        ("caught", "left"),
        ("ask", "failed"),
        ("no", "left"),
        ("f", "ended"),
    ]
    assert [task.token_id for task in told.tasks] == [token.token_id] * 2


async def test_P3_user_tasks_timers_and_messages_are_stays_of_their_token(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    world = await site.start()
    await world.deploy(WAITING + flow("s ask e", "late pause paid e"))
    instance_id = await world.start()
    await trio.sleep(6)
    world = await site.restart()
    await trio.sleep(60)
    await world.node.publish_message("paid", "", {})
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    (token,) = (await world.node.trace(instance_id)).tokens
    stays = [
        (
            stay.node_id,
            stay.end and stay.end.value,
            [(wait.kind.value, wait.node_id, wait.end.value) for wait in stay.waits],
        )
        for stay in token.stays
    ]
    assert stays == [
        ("s", "left", []),
        ("ask", "interrupted", [("timer", "late", "fired"), ("user_task", "ask", "cancelled")]),
        ("late", "left", []),
        ("pause", "left", [("timer", "pause", "fired")]),
        ("paid", "left", [("message", "paid", "correlated")]),
        ("e", "ended", []),
    ]
    asked, paused = token.stays[1], token.stays[3]
    assert asked.waits[0].due_at_ms == asked.entered.at_ms + 5_000
    assert paused.left is not None
    assert paused.left.at_ms - paused.entered.at_ms == pytest.approx(60_000, abs=20)


async def test_P3_replay_folds_from_the_beginning_also_past_a_snapshot(autojump_clock: object, site: Any) -> None:
    world = await site.start()
    await world.deploy(LOOP)
    instance_id = await world.start(again=True, number=0)
    peer = await world.connect("work")
    for number in range(1, 105):
        assert isinstance(await peer.complete(await peer.task(), number=number), Ack)
    world = await site.restart()
    stored = await world.store.load_instance(instance_id)
    assert stored.snapshot is not None
    assert await world.node.replay(instance_id) == state_of(stored)
    for at in (1, 50, 100, 101):
        assert (await world.node.replay(instance_id, at)).variables["number"] == at - 1
    with pytest.raises(InvalidInput, match="there is no step 106: the instance has steps 1 to 105"):
        await world.node.replay(instance_id, 106)
    with pytest.raises(NotFound):
        await world.node.replay("nobody")
    with pytest.raises(NotFound):
        await world.node.trace("nobody")
