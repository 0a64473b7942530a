"""Leases, as users of such engines have seen them fail: late answers, lost locks, clocks and processes that break."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import attrs
import msgspec
import pytest
import structlog
import trio

from stellwerk.json_values import digest
from stellwerk.limits import Limits
from stellwerk.ports import TaskQuery
from stellwerk.wire.messages import (
    Ack,
    BpmnErrorReport,
    Complete,
    Extend,
    Fail,
    Holding,
    Nack,
    ProtocolErrorMessage,
    Received,
    Release,
    Renewed,
    Revoked,
    Subscribe,
    WorkerMessage,
)

AT_ONCE = 0.02
NOTHING = msgspec.Raw(b"{}")
INCIDENT = 'stellwerk:failurePolicy="incident"'

MakeRequest = Callable[[int, str, int], Any]
REQUESTS: dict[str, MakeRequest] = {
    "complete": lambda ref, task_id, fence: Complete(ref, task_id, fence, msgspec.Raw(b'{"late":true}')),
    "fail": lambda ref, task_id, fence: Fail(ref, task_id, fence, "late", retry_after_ms=0),
    "fail with a number": lambda ref, task_id, fence: Fail(ref, task_id, fence, "late", retries=9),
    "give up": lambda ref, task_id, fence: Fail(ref, task_id, fence, "late", retries=0),
    "bpmn error": lambda ref, task_id, fence: BpmnErrorReport(ref, task_id, fence, "E", None, NOTHING, NOTHING),
    "extend": lambda ref, task_id, fence: Extend(ref, task_id, fence, 60_000),
    "release": lambda ref, task_id, fence: Release(ref, task_id, fence, started=True),
}
requests = pytest.mark.parametrize("request_name", REQUESTS)


async def ask(peer: Any, offer: Any, message: WorkerMessage) -> Any:
    await peer.say(message)
    return await peer.answer(offer, message.ref)  # type: ignore[union-attr]


async def ask_by_name(peer: Any, offer: Any, name: str) -> Any:
    return await ask(peer, offer, REQUESTS[name](peer.ref(), offer.task_id, offer.fence))


async def rows(world: Any, task_id: str) -> tuple[Any, Any]:
    return await world.store.task(task_id), await world.store.attempts(task_id)


async def status(world: Any, instance_id: str, seconds: float = 1) -> str:
    return str((await world.node.wait_for_end(instance_id, timeout_seconds=seconds)).status)


# --- late answers --------------------------------------------------------------------------------------------------


async def test_fault_43_done_cancelled_lost_and_unknown_have_answers_of_their_own(
    autojump_clock: object, site: Any, one_task: Any
) -> None:
    world = await site.start()
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=10_000)

    async def code_of(offer: Any) -> str:
        answer = await peer.complete(offer, late=True)
        assert isinstance(answer, Nack)
        assert not answer.retryable
        return answer.code

    await world.start()
    done = await peer.task()
    assert isinstance(await peer.complete(done), Ack)
    cancelled_instance = await world.start()
    cancelled = await peer.task()
    await world.node.cancel_instance(cancelled_instance, "no")
    await world.start()
    lost = await peer.task()
    peer.drop()
    other = await world.connect("work")
    assert (await other.task()).task_id == lost.task_id
    await peer.connect(holding={})
    unknown = attrs.evolve(lost, task_id="no-such-task")
    codes = [await code_of(offer) for offer in (done, cancelled, lost, unknown)]
    assert codes == ["already_finished", "cancelled", "lease_lost", "not_found"]


@requests
async def test_fault_44_nothing_that_comes_late_touches_the_next_workers_lease(
    autojump_clock: object, site: Any, one_task: Any, request_name: str
) -> None:
    """Neither ends it, nor changes its retries, nor its end."""
    world = await site.start()
    await world.deploy(one_task())
    slow = await world.connect("work", lock_duration_ms=10_000)
    instance_id = await world.start()
    old = await slow.task()
    slow.drop()
    next_one = await world.connect("work", lock_duration_ms=60_000)
    new = await next_one.task()
    assert new.task_id == old.task_id
    before = await rows(world, old.task_id)
    await slow.connect(holding={})
    refused = await ask_by_name(slow, old, request_name)
    assert isinstance(refused, Nack)
    assert (refused.code, refused.retryable) == ("lease_lost", False)
    assert await rows(world, old.task_id) == before
    assert isinstance(await next_one.complete(new, by="the next"), Ack)
    assert await status(world, instance_id) == "COMPLETED"
    assert (await world.node.view(instance_id)).variables == {"by": "the next"}


@requests
async def test_fault_46_a_lock_that_ran_out_is_no_lock_though_nobody_else_took_the_task(
    autojump_clock: object, site: Any, one_task: Any, request_name: str
) -> None:
    world = await site.start()
    await world.deploy(one_task())
    slow = await world.connect("work", max_tasks=1, lock_duration_ms=10_000, reports=False)
    instance_id = await world.start()
    old = await slow.task()
    await slow.say(Subscribe("work", max_tasks=0, lock_duration_ms=10_000))
    slow.drop()
    await trio.sleep(10.5)
    before = await rows(world, old.task_id)
    assert before[0].state.value == "READY"
    await slow.connect(holding={})
    refused = await ask_by_name(slow, old, request_name)
    assert isinstance(refused, Nack)
    assert refused.code == "lease_lost"
    assert await rows(world, old.task_id) == before
    assert await status(world, instance_id) == "RUNNING"


@pytest.mark.parametrize("request_name", [name for name in REQUESTS if name != "give up"])
async def test_fault_46_after_the_last_failure_its_lease_can_do_nothing_more(
    autojump_clock: object, site: Any, one_task: Any, request_name: str
) -> None:
    world = await site.start()
    await world.deploy(one_task(), attributes=INCIDENT)
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    assert isinstance(await ask_by_name(peer, offer, "give up"), Ack)
    before = await rows(world, offer.task_id)
    assert before[0].state.value == "FAILED"
    refused = await ask_by_name(peer, offer, request_name)
    assert isinstance(refused, Nack)
    assert refused.code == "already_finished"
    assert await rows(world, offer.task_id) == before
    assert len(await world.node.incidents(instance_id)) == 1


@requests
async def test_fault_47_the_same_name_does_not_open_another_process_lease(
    autojump_clock: object, site: Any, one_task: Any, request_name: str
) -> None:
    """Two processes with one worker_id: the older lease of the one is not the newer one of the other."""
    world = await site.start()
    await world.deploy(one_task())
    first = await world.connect("work", lock_duration_ms=5_000, worker_id="same", reports=False)
    await world.start()
    old = await first.task()
    second = await world.connect("work", worker_id="same", lock_duration_ms=60_000)
    new = await second.task()
    assert (new.task_id, trio.current_time() >= 5) == (old.task_id, True)
    before = await rows(world, old.task_id)
    await first.connect(holding={})
    refused = await ask_by_name(first, old, request_name)
    assert isinstance(refused, Nack)
    assert refused.code == "lease_lost"
    assert await rows(world, old.task_id) == before
    assert isinstance(await second.complete(new), Ack)


async def test_fault_57_work_that_comes_too_late_is_on_record(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    slow = await world.connect("work", lock_duration_ms=5_000, reports=False)
    await world.start()
    old = await slow.task()
    slow.drop()
    await (await world.connect("work")).task()
    await slow.connect(holding={})
    with structlog.testing.capture_logs() as lines:
        assert isinstance(await slow.complete(old, charged=True), Nack)
    (line,) = [line for line in lines if line["event"] == "request refused"]
    del line["event"]
    expected = {"request": "Complete", "task": old.task_id, "fence": old.fence, "worker": slow.worker_id}
    expected |= {"payload_digest": digest({"charged": True}), "log_level": "info", "reason": "lease_lost"}
    assert line == expected
    ends = [(attempt.fence, attempt.end.value) for attempt in await world.store.attempts(old.task_id)]
    assert ends == [(old.fence, "expired")]


@pytest.mark.parametrize("request_name", ["complete", "fail", "give up", "bpmn error"])
@pytest.mark.parametrize("what_breaks", ["nothing", "connection", "engine"])
async def test_fault_95_a_result_that_is_handed_in_again_gets_the_same_answer(
    autojump_clock: object, site: Any, one_task: Any, request_name: str, what_breaks: str
) -> None:
    """However the first answer was lost; another result for the same lease is refused."""
    world = await site.start()
    await world.deploy(one_task(), attributes=INCIDENT)
    peer = await world.connect("work", max_tasks=1)
    await world.start()
    offer = await peer.task()
    await peer.say(Subscribe("work", max_tasks=0))
    assert isinstance(await ask_by_name(peer, offer, request_name), Ack)
    if what_breaks == "engine":
        world = peer.world = await site.restart()
    if what_breaks != "nothing":
        peer.drop()
        await peer.connect(holding={offer.task_id: offer.fence})
    before = await rows(world, offer.task_id)
    assert isinstance(await ask_by_name(peer, offer, request_name), Ack)
    different = await ask_by_name(peer, offer, "complete" if request_name != "complete" else "fail")
    assert isinstance(different, Nack)
    assert different.code == "already_finished"
    assert await rows(world, offer.task_id) == before


# --- locks that run out --------------------------------------------------------------------------------------------


async def test_fault_54_after_an_expiry_one_attempt_is_live(autojump_clock: object, site: Any, one_task: Any) -> None:
    """The worker whose lock ran out comes back and claims it again and again; the task is only the newest holder's."""
    world = await site.start()
    await world.deploy(one_task('stellwerk:lockExpiriesMax="0"'))
    instance_id = await world.start()
    ghosts: list[tuple[Any, Any]] = []
    for number in range(5):
        ghost = await world.connect("work", lock_duration_ms=30_000)
        with trio.fail_after(31):
            offer = await ghost.task()
        ghosts.append((ghost, offer))
        for old, lost in ghosts[:-1]:
            welcome = await old.connect()
            assert [(gone.task_id, gone.reason) for gone in welcome.lost] == [(lost.task_id, "expired")], number
            await old.say(Holding(()))
            assert isinstance(await ask_by_name(old, lost, "complete"), Nack)
            old.holding[lost.task_id] = lost.fence
        (task,) = await world.store.tasks(TaskQuery(instance_id=instance_id))
        assert (task.state.value, task.fence) == ("LOCKED", offer.fence)
        assert task.lease.holder.worker_id == ghost.worker_id
        await ghost.say(Subscribe("work", max_tasks=0, lock_duration_ms=30_000))
        ghost.drop()
    attempts = await world.store.attempts(ghosts[0][1].task_id)
    assert len(attempts) == 4
    for earlier, later in pairwise(attempts):
        assert earlier.fence < later.fence
        assert earlier.ended_at_ms <= later.since_ms


@pytest.mark.parametrize("down_seconds", [0.0, 3.3, 60.0])
async def test_fault_55_a_lock_ends_on_time_though_the_engine_was_restarted(
    autojump_clock: object, site: Any, one_task: Any, down_seconds: float
) -> None:
    """Nothing but the row knows it then."""
    world = await site.start()
    await world.deploy(one_task())
    crashed = await world.connect("work", lock_duration_ms=10_000)
    await world.start()
    offer = await crashed.task()
    ends_at = trio.current_time() + 10
    crashed.drop()
    await trio.sleep(4.2)
    site.kill()
    await site.ended.wait()
    await trio.sleep(down_seconds)
    world = await site.start()
    started_at = trio.current_time()
    other = await world.connect("work")
    again = await other.task()
    expected = max(ends_at, started_at)
    assert expected <= trio.current_time() < expected + AT_ONCE
    assert (again.task_id, again.retries_left) == (offer.task_id, 3)
    assert again.fence > offer.fence


@pytest.mark.parametrize("restarts", [False, True])
async def test_fault_97_a_task_that_kills_its_workers_is_stopped(
    autojump_clock: object, site: Any, one_task: Any, restarts: bool
) -> None:
    """After ten times unless the model says otherwise; also when it kills the engine along with them."""
    world = await site.start()
    await world.deploy(one_task(), attributes=INCIDENT)
    instance_id = await world.start()
    fences = []
    for _ in range(10):
        victim = await world.connect("work", lock_duration_ms=2_000)
        fences.append((await victim.task()).fence)
        victim.drop()
        if restarts:
            world = await site.restart()
        await trio.sleep(2.5)
    assert await status(world, instance_id) == "RUNNING"
    (incident,) = await world.node.incidents(instance_id)
    assert incident["kind"] == "lock_expiries_exhausted"
    next_victim = await world.connect("work")
    await trio.sleep(60)
    assert not next_victim.offers
    (task,) = await world.store.tasks(TaskQuery(instance_id=instance_id))
    assert task.retries_left == 3, "nobody failed"
    attempts = await world.store.attempts(task.task_id)
    assert [(attempt.fence, attempt.end.value) for attempt in attempts] == [(fence, "expired") for fence in fences]


# --- processes that break ------------------------------------------------------------------------------------------


async def test_fault_49_a_task_in_back_off_is_due_on_time_after_a_crash(
    autojump_clock: object, site: Any, one_task: Any
) -> None:
    """The engine dies when the failure is durable and nobody has heard of it yet."""
    is_armed = False

    async def crash(name: str) -> None:
        if is_armed and name == "after-commit":
            site.kill()
            await trio.lowlevel.checkpoint()

    world = await site.start(pause_point=crash)
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=600_000)
    await world.start()
    offer = await peer.task()
    is_armed = True
    failure = Fail(1, offer.task_id, offer.fence, "not now", retry_after_ms=30_000)
    failed_at = trio.current_time()
    await peer.say(failure)
    await site.ended.wait()
    await trio.sleep(7)
    peer.world = await site.start()
    peer.drop()
    await peer.connect()
    await peer.say(Subscribe("work", lock_duration_ms=600_000))
    assert isinstance(await ask(peer, offer, failure), Ack)
    again = await peer.task()
    assert failed_at + 30 <= trio.current_time() < failed_at + 30 + AT_ONCE
    assert (again.task_id, again.retries_left) == (offer.task_id, 2), "the repeat cost nothing"


@pytest.mark.parametrize("when", ["before-commit", "after-commit"])
async def test_fault_61_a_crash_while_a_timer_fires_leaves_no_claim_on_it(
    autojump_clock: object, site: Any, flow: Any, when: str
) -> None:
    is_armed = False

    async def crash(name: str) -> None:
        if is_armed and name == when:
            site.kill()
            await trio.lowlevel.checkpoint()

    body = """<startEvent id="s"/><intermediateCatchEvent id="wait"><timerEventDefinition>
      <timeDuration>PT5S</timeDuration></timerEventDefinition></intermediateCatchEvent><endEvent id="e"/>"""
    world = await site.start(pause_point=crash)
    await world.deploy(body + flow("s wait e"))
    instance_id = await world.start()
    await trio.sleep(2)
    is_armed = True
    await site.ended.wait()
    assert 5 <= trio.current_time() < 5 + AT_ONCE
    world = await site.start()
    at = trio.current_time()
    assert await status(world, instance_id, 60) == "COMPLETED"
    assert trio.current_time() < at + AT_ONCE
    facts = [type(fact).__name__ for step in (await world.node.view(instance_id)).steps for fact in step.facts]
    assert facts.count("TimerFired") == 1


async def test_fault_56_a_task_that_nobody_takes_is_escalated_by_its_timer(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    """There is no time limit for the start of a task beside the model's own: a boundary timer needs no worker."""
    body = """<startEvent id="s"/><serviceTask id="work" stellwerk:topic="work"/>
      <boundaryEvent id="late" attachedToRef="work" cancelActivity="false"><timerEventDefinition>
      <timeDuration>PT1H</timeDuration></timerEventDefinition></boundaryEvent>
      <userTask id="look"/><endEvent id="e"/><endEvent id="f"/>"""
    world = await site.start()
    await world.deploy(body + flow("s work e", "late look f"))
    instance_id = await world.start()
    await trio.sleep(3_599)
    assert not await world.node.user_tasks(instance_id)
    await trio.sleep(1 + AT_ONCE)
    (row,) = await world.node.user_tasks(instance_id)
    assert row["element_id"] == "look"
    (task,) = await world.store.tasks(TaskQuery(instance_id=instance_id))
    assert task.state.value == "READY", "it still waits"
    (topic,) = await world.node.topics()
    assert (topic.topic, topic.backlog.ready, topic.is_unattended) == ("work", 1, True), (
        "operators see that nobody comes"
    )
    peer = await world.connect("work")
    await peer.task()
    (topic,) = await world.node.topics()
    assert (topic.backlog.ready, topic.backlog.locked, topic.is_unattended) == (0, 1, False)


# --- clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_ms", [-3_600_000, -5_000, 5_000, 3_600_000])
async def test_fault_64_a_node_whose_clock_is_wrong_steals_no_lease_and_keeps_none(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any, skew_ms: int
) -> None:
    """The store's clock stamps and judges: that of the node that gave the lease, and that of another, say nothing."""
    right = await start_node(nursery)
    wrong = await start_node(nursery, store=right.store, seed=2)
    wrong.clock.set_by_ms = skew_ms
    await right.deploy(one_task())
    for giver, other in ((right, wrong), (wrong, right)):
        holder = await giver.connect("work", lock_duration_ms=20_000)
        instance_id = await giver.start()
        offer = await holder.task()
        leased_at = trio.current_time()
        waiting = await other.connect("work")
        await holder.next(Renewed)
        assert leased_at + 13 < trio.current_time() < leased_at + 18
        holder.drop()
        ends_at = trio.current_time() + 20
        again = await waiting.task()
        assert ends_at - 0.1 <= trio.current_time() < ends_at + 1.1, "the node that waits polls every second"
        assert again.task_id == offer.task_id
        assert isinstance(await waiting.complete(again), Ack)
        assert await status(other, instance_id) == "COMPLETED"
        waiting.drop()
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("jump_ms", [-3_600_000, -5_000, 5_000, 3_600_000])
async def test_fault_64_a_clock_that_is_set_under_a_lease_moves_it_by_nothing(
    autojump_clock: object, world: Any, one_task: Any, jump_ms: int
) -> None:
    await world.deploy(one_task())
    crashed = await world.connect("work", lock_duration_ms=20_000)
    await world.start()
    await crashed.task()
    ends_at = trio.current_time() + 20
    crashed.drop()
    waiting = await world.connect("work")
    await trio.sleep(3)
    world.clock.set_by_ms = jump_ms
    await waiting.task()
    assert ends_at <= trio.current_time() < ends_at + AT_ONCE


@pytest.mark.parametrize("lock_duration_ms", [5_000, 60_000])
async def test_fault_65_no_node_judges_a_lease_by_its_own_settings(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any, lock_duration_ms: int
) -> None:
    """Only the deadline that stands in the row counts, also where the other node allows no such duration."""
    giver = await start_node(nursery)
    only = 20_000
    limits = Limits(lock_duration_ms_min=only, lock_duration_ms_max=only, lock_duration_ms_default=only)
    other = await start_node(nursery, store=giver.store, seed=2, limits=limits)
    await giver.deploy(one_task())
    holder = await giver.connect("work", lock_duration_ms=lock_duration_ms)
    await giver.start()
    await holder.task()
    ends_at = trio.current_time() + lock_duration_ms / 1000
    holder.drop()
    waiting = await other.connect("work", lock_duration_ms=only)
    await waiting.task()
    assert ends_at - 0.1 <= trio.current_time() < ends_at + 1.1, "the node that waits polls every second"
    nursery.cancel_scope.cancel()


# --- sessions ------------------------------------------------------------------------------------------------------


async def test_fault_68_what_the_superseded_connection_still_says_does_nothing(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """Not its late frames, nor its end; and the new one counts its deliveries from the beginning."""
    await world.deploy(one_task())
    peer = await world.connect("work", lock_duration_ms=30_000)
    for _ in range(4):
        await world.start()
        await peer.task()
    old = peer.session
    welcome = await peer.connect()
    assert (await peer.next(ProtocolErrorMessage)).code == "superseded"
    assert len(welcome.kept) == 4
    await peer.say(Subscribe("work", lock_duration_ms=30_000))
    held = dict(peer.holding)
    await old.handle([Holding(()), Received(99), Subscribe("work", max_tasks=0)])
    old.disconnected()
    await world.start()
    assert (await peer.task()).attempt == 1, "and its first delivery is confirmed"
    await trio.sleep(60)
    for task_id, fence in held.items():
        task = await world.store.task(task_id)
        assert (task.state.value, task.fence) == ("LOCKED", fence)
        assert task.lease.holder.session_no == 2
    assert not [message for message in peer.messages if isinstance(message, Revoked)]
    for offer in list(peer.offers.values()):
        assert isinstance(await peer.complete(offer), Ack)


async def test_fault_69_the_newest_connection_of_a_process_is_the_one(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """Three in a row without one of them closed; an older one that arrives late is refused."""
    await world.deploy(one_task())
    peer = await world.connect("work")
    for number in (2, 3):
        await peer.connect()
        assert (await peer.next(ProtocolErrorMessage)).code == "superseded"
        assert world.node.statistics()["sessions"] == 1, number
    hello = attrs.evolve(peer.session.hello, session_no=2)
    with pytest.raises(Exception, match="session 3 of this process is connected"):
        await world.node.open_session(hello)
    await peer.say(Subscribe("work"))
    await world.start()
    assert isinstance(await peer.complete(await peer.task()), Ack)
