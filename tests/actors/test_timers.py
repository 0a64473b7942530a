"""Timers: each fires once, when it is due or as soon as somebody can look, and dies with what it belongs to."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from stellwerk.limits import Limits
from stellwerk.ports import TaskQuery
from stellwerk.wire.messages import Ack, Complete, Revoked

TIMER = "<timerEventDefinition><{0}>{1}</{0}></timerEventDefinition>"
CATCH = """<startEvent id="s"/><intermediateCatchEvent id="wait">{}</intermediateCatchEvent><endEvent id="e"/>"""
BOUNDARY = """<startEvent id="s"/><serviceTask id="work" stellwerk:topic="work"/>
  <boundaryEvent id="late" attachedToRef="work" cancelActivity="{}">{}</boundaryEvent>
  <serviceTask id="other" stellwerk:topic="other"/><endEvent id="e"/><endEvent id="f"/>"""


def duration(text: str) -> str:
    return TIMER.format("timeDuration", text)


@pytest.fixture
def catch(flow: Any) -> Any:
    return lambda timer: CATCH.format(timer) + flow("s wait e")


@pytest.fixture
def boundary(flow: Any) -> Any:
    return lambda interrupting, timer: BOUNDARY.format(interrupting, timer) + flow("s work e", "late other f")


async def status(world: Any, instance_id: str, seconds: float = 0) -> str:
    return str((await world.node.wait_for_end(instance_id, timeout_seconds=seconds)).status)


async def facts(world: Any, instance_id: str, name: str) -> list[Any]:
    steps = (await world.node.view(instance_id)).steps
    return [fact for step in steps for fact in step.facts if type(fact).__name__ == name]


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("seconds", [0.25, 10, 900])
async def test_a_duration_is_kept_to_the_millisecond(
    autojump_clock: object, site: Any, catch: Any, seconds: float
) -> None:
    world = await site.start()
    await world.deploy(catch(duration(f"PT{seconds}S")))
    instance_id = await world.start()
    began = trio.current_time()
    assert await status(world, instance_id, seconds + 5) == "COMPLETED"
    assert seconds <= trio.current_time() - began < seconds + 0.01


async def test_a_date_is_kept_to_the_millisecond(autojump_clock: object, site: Any, catch: Any) -> None:
    world = await site.start()
    await world.deploy(catch(TIMER.format("timeDate", iso(world.clock.wall_ms() + 7_500))))
    instance_id = await world.start()
    assert await status(world, instance_id, 10) == "COMPLETED"
    assert 7.5 <= trio.current_time() < 7.52


async def test_a_date_in_the_past_fires_at_once(autojump_clock: object, site: Any, catch: Any) -> None:
    world = await site.start()
    await world.deploy(catch(TIMER.format("timeDate", "1999-12-31T23:59:59Z")))
    instance_id = await world.start()
    assert await status(world, instance_id, 0.1) == "COMPLETED"


async def test_a_shorter_timer_armed_later_fires_first(autojump_clock: object, site: Any, catch: Any) -> None:
    world = await site.start()
    for key, seconds in (("long", 100), ("short", 0.3)):
        await world.deploy(catch(duration(f"PT{seconds}S")), key)
    long = await world.start("long")
    await trio.sleep(0.1)
    short = await world.start("short")
    assert await status(world, short, 0.31) == "COMPLETED"
    assert await status(world, long) == "RUNNING"


async def test_timers_one_after_the_other_add_no_delay(autojump_clock: object, site: Any, flow: Any) -> None:
    """A timer that is armed while the store is looked through is not left to the poll."""
    world = await site.start()
    names = [f"t{number}" for number in range(20)]
    events = [f'<intermediateCatchEvent id="{name}">{duration("PT0.1S")}</intermediateCatchEvent>' for name in names]
    body = f'<startEvent id="s"/>{"".join(events)}<endEvent id="e"/>' + flow(f"s {' '.join(names)} e")
    await world.deploy(body)
    instance_id = await world.start()
    assert await status(world, instance_id, 20) == "COMPLETED"
    assert trio.current_time() < 2.2


async def test_more_timers_than_one_look_takes_all_fire(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, catch: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("stellwerk.actors.clockwork._BATCH", 10)
    world = await start_node(nursery)
    await world.deploy(catch(duration("PT5S")))
    started = [await world.start() for _ in range(35)]
    await trio.sleep(5.5)
    assert {await status(world, instance_id) for instance_id in started} == {"COMPLETED"}
    nursery.cancel_scope.cancel()


# --- boundary events -----------------------------------------------------------------------------------------------


async def test_fault_70_an_interrupting_timer_revokes_the_leased_task(
    autojump_clock: object, site: Any, boundary: Any
) -> None:
    world = await site.start()
    await world.deploy(boundary("true", duration("PT5S")))
    peer = await world.connect("work", "other")
    instance_id = await world.start()
    offer = await peer.task()
    revoked = await peer.next(Revoked)
    assert 5 <= trio.current_time() < 5.05
    assert [(lease.task_id, lease.fence) for lease in revoked.leases] == [(offer.task_id, offer.fence)]
    late: Any = await peer.complete(offer)
    assert late.code in ("cancelled", "lease_lost")
    assert (await world.store.task(offer.task_id)).state.value == "CANCELLED"
    await peer.complete(await peer.task())
    assert await status(world, instance_id, 1) == "COMPLETED"


async def test_a_non_interrupting_timer_runs_beside_the_task(autojump_clock: object, site: Any, boundary: Any) -> None:
    world = await site.start()
    await world.deploy(boundary("false", duration("PT5S")))
    peer = await world.connect("work", "other")
    instance_id = await world.start()
    work = await peer.task()
    other = await peer.task()
    assert 5 <= trio.current_time() < 5.05
    assert isinstance(await peer.complete(other), Ack)
    assert await status(world, instance_id, 1) == "RUNNING"
    assert isinstance(await peer.complete(work), Ack)
    assert await status(world, instance_id, 1) == "COMPLETED"


async def test_a_finished_task_takes_its_timer_along(autojump_clock: object, site: Any, boundary: Any) -> None:
    world = await site.start()
    await world.deploy(boundary("true", duration("PT5S")))
    peer = await world.connect("work")
    instance_id = await world.start()
    await peer.complete(await peer.task())
    assert await status(world, instance_id, 1) == "COMPLETED"
    await trio.sleep(20)
    assert (await world.store.due_timers(world.clock.wall_ms(), 10)) == ([], None)
    assert not await facts(world, instance_id, "TimerFired")


@pytest.mark.parametrize("before_ms", [*range(-3, 4)])
@pytest.mark.parametrize("held_up_ms", [0, 2, 40])
async def test_fault_81_either_the_completion_or_the_timer_wins(
    autojump_clock: object, world: Any, boundary: Any, before_ms: int, held_up_ms: int
) -> None:
    """Whichever comes first, and however long the commits take in which they meet."""
    await world.deploy(boundary("true", duration("PT5S")))
    peer = await world.connect("work")
    other = await world.connect("other")
    instance_id = await world.start()
    offer = await peer.task()
    await trio.sleep(5 - trio.current_time() - before_ms / 1000)
    if held_up_ms:
        world.store.gate = trio.Event()
    ref = peer.ref()
    await peer.say(Complete(ref, offer.task_id, offer.fence))
    await trio.sleep(held_up_ms / 1000)
    world.store.gate.set()
    answer: Any = await peer.answer(offer, ref)
    await trio.sleep(1)
    fired = len(await facts(world, instance_id, "TimerFired"))
    completed = len(await facts(world, instance_id, "TaskCompleted"))
    assert fired + completed == 1
    assert isinstance(answer, Ack) == (completed == 1)
    if fired:
        await other.complete(await other.task())
    assert await status(world, instance_id, 1) == "COMPLETED"
    assert len(await world.store.tasks(TaskQuery(instance_id=instance_id))) == 1 + fired


async def test_fault_78_a_loop_that_a_timer_drives_leaves_one_task_open(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    world = await site.start()
    body = f"""<startEvent id="s"/><exclusiveGateway id="again"/><serviceTask id="work" stellwerk:topic="work"/>
      <boundaryEvent id="late" attachedToRef="work">{duration("PT5S")}</boundaryEvent><endEvent id="e"/>"""
    await world.deploy(body + flow("s again work e", "late again"))
    peer = await world.connect("work", lock_duration_ms=60_000)
    instance_id = await world.start()
    stale = [await peer.task() for _ in range(4)]
    states = Counter(task.state.value for task in await world.store.tasks(TaskQuery(instance_id=instance_id)))
    assert states == {"CANCELLED": 3, "LOCKED": 1}
    assert len((await world.store.due_timers(2**50, 10))[0]) == 1
    assert isinstance(await peer.complete(stale[-1]), Ack)
    assert await status(world, instance_id, 1) == "COMPLETED"


# --- scopes --------------------------------------------------------------------------------------------------------

SCOPE = """<startEvent id="s"/>
  <subProcess id="sub"><startEvent id="is"/><parallelGateway id="fork"/><serviceTask id="in" stellwerk:topic="in"/>
    <boundaryEvent id="bt" attachedToRef="in" cancelActivity="false">{0}</boundaryEvent>
    <intermediateCatchEvent id="it">{0}</intermediateCatchEvent>
    <endEvent id="ie"/><endEvent id="ie2"/><endEvent id="ie3"/>{1}</subProcess>
  <boundaryEvent id="st" attachedToRef="sub" cancelActivity="false">{0}</boundaryEvent>
  <boundaryEvent id="stop" attachedToRef="sub"><messageEventDefinition messageRef="stop"/></boundaryEvent>
  <serviceTask id="after" stellwerk:topic="after"/><endEvent id="e"/><endEvent id="e2"/>{2}"""


async def test_fault_82_the_end_of_a_scope_kills_its_timers(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start()
    inner, outer = flow("is fork in ie", "fork it ie2", "bt ie3"), flow("s sub after e", "stop after", "st e2")
    outer = outer.replace("flow.", "outer.")
    await world.deploy(SCOPE.format(duration("PT10S"), inner, outer))
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    await trio.sleep(0.5)
    assert len((await world.store.due_timers(world.clock.wall_ms() + 60_000, 10))[0]) == 3
    await world.node.publish_message("stop", "k", {})
    await trio.sleep(30)
    assert not (await world.store.due_timers(world.clock.wall_ms() + 60_000, 10))[0]
    assert not await facts(world, instance_id, "TimerFired")
    peer = await world.connect("after")
    await peer.complete(await peer.task())
    assert await status(world, instance_id, 1) == "COMPLETED"


async def test_the_end_of_an_instance_kills_its_timers(autojump_clock: object, site: Any, catch: Any) -> None:
    world = await site.start()
    await world.deploy(catch(duration("PT10S")))
    instance_id = await world.start()
    await world.node.cancel_instance(instance_id, "enough")
    await trio.sleep(30)
    assert await status(world, instance_id) == "CANCELLED"
    assert not await facts(world, instance_id, "TimerFired")


# --- faults and restarts -------------------------------------------------------------------------------------------


async def test_a_timer_whose_commit_is_refused_fires_later_once(autojump_clock: object, world: Any, catch: Any) -> None:
    await world.deploy(catch(duration("PT5S")))
    instance_id = await world.start()
    world.store.refuse_changesets = 2
    assert await status(world, instance_id, 10) == "COMPLETED"
    assert world.store.refuse_changesets == 0
    assert len(await facts(world, instance_id, "TimerFired")) == 1


@pytest.mark.parametrize("down_seconds", [0.5, 3_600])
async def test_a_timer_that_came_due_while_the_engine_was_down_fires_once(
    autojump_clock: object, site: Any, boundary: Any, down_seconds: float
) -> None:
    world = await site.start()
    await world.deploy(boundary("true", duration("PT5S")))
    instance_id = await world.start()
    await trio.sleep(4.7)
    site.kill()
    await site.ended.wait()
    await trio.sleep(down_seconds)
    world = await site.start()
    peer = await world.connect("work", "other")
    with trio.fail_after(1):
        offer = await peer.task()
        while offer.element_id != "other":
            offer = await peer.task()
    assert isinstance(await peer.complete(offer), Ack)
    assert await status(world, instance_id, 1) == "COMPLETED"
    world = await site.restart()
    await trio.sleep(10)
    assert len(await facts(world, instance_id, "TimerFired")) == 1


async def test_rule_19_setting_the_wall_clock_moves_dated_timers_and_no_lease(
    autojump_clock: object, world: Any, boundary: Any, catch: Any
) -> None:
    await world.deploy(boundary("true", TIMER.format("timeDate", iso(world.clock.wall_ms() + 86_400_000))))
    await world.deploy(catch(duration("PT60S")), "q")
    peer = await world.connect("work", lock_duration_ms=60_000)
    dated, waiting = await world.start(), await world.start("q")
    offer = await peer.task()
    world.clock.set_by_ms = 3_600_000
    await trio.sleep(5)
    assert (await world.store.task(offer.task_id)).state.value == "LOCKED"
    assert await status(world, waiting) == "COMPLETED"
    world.clock.set_by_ms = -3_600_000
    await trio.sleep(5)
    assert (await world.store.task(offer.task_id)).state.value == "LOCKED"
    world.clock.set_by_ms = 2 * 86_400_000
    assert (await peer.next(Revoked)).leases[0].task_id == offer.task_id
    assert trio.current_time() < 12
    assert await status(world, dated) == "RUNNING"


async def test_one_instance_that_cannot_step_keeps_no_timer_of_another(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, catch: Any
) -> None:
    world = await start_node(nursery, limits=Limits(mailbox_commands_max=10))
    await world.deploy(catch(duration("PT5S")))
    first, second = await world.start(), await world.start()
    cache = world.node.definition_cache
    intact = cache.get
    faults = iter(range(3))

    async def get(definition_id: str) -> Any:
        if trio.current_time() >= 5 and next(faults, None) is not None:
            raise ZeroDivisionError("a mistake of ours")
        return await intact(definition_id)

    cache.get = get
    assert await status(world, second, 60) == "COMPLETED"
    assert await status(world, first, 60) == "COMPLETED"
    nursery.cancel_scope.cancel()
