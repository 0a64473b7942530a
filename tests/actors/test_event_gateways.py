"""Event-based gateways, links and timer cycles on a node: one event wins, whatever else comes at that moment."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from stellwerk.actors.definitions import DeployRefused
from stellwerk.wire.messages import Ack, Revoked, Tasks

EPOCH_MS = 1_767_225_600_000
RACE = """<startEvent id="s"/><eventBasedGateway id="first"/>
  <intermediateCatchEvent id="paid"><messageEventDefinition messageRef="paid"/></intermediateCatchEvent>
  <intermediateCatchEvent id="late"><timerEventDefinition><timeDuration>PT10S</timeDuration></timerEventDefinition>
  </intermediateCatchEvent>
  <receiveTask id="refused" messageRef="refused"/>
  <serviceTask id="ship" stellwerk:topic="ship"/><serviceTask id="remind" stellwerk:topic="remind"/>
  <serviceTask id="close" stellwerk:topic="close"/><endEvent id="e"/>"""
WAITS = {"paid": "ship", "late": "remind", "refused": "close"}


@pytest.fixture
def race(flow: Any) -> str:
    """The first of a message, a timer and a receive task, each with a task of its own behind it."""
    return RACE + str(flow("s first paid ship e", "first late remind e", "first refused close e"))


def timer(event_id: str, kind: str, text: str, host: str, interrupting: str = "false") -> str:
    inside = f"<timerEventDefinition><{kind}>{text}</{kind}></timerEventDefinition>"
    attributes = f'id="{event_id}" attachedToRef="{host}" cancelActivity="{interrupting}"'
    return f"<boundaryEvent {attributes}>{inside}</boundaryEvent>"


def link(kind: str, event_id: str, name: str) -> str:
    return f'<intermediate{kind}Event id="{event_id}"><linkEventDefinition name="{name}"/></intermediate{kind}Event>'


async def status(world: Any, instance_id: str, seconds: float = 0) -> str:
    return str((await world.node.wait_for_end(instance_id, timeout_seconds=seconds)).status)


async def visits(world: Any, instance_id: str) -> Counter[str]:
    told = await world.node.trace(instance_id)
    return Counter(stay.node_id for token in told.tokens for stay in token.stays)


async def no_timers(world: Any) -> bool:
    """None is left in the store, due now or later."""
    due, following = await world.store.due_timers(EPOCH_MS + 10**9, 10)
    return not due and following is None


async def happen(world: Any, event: str, key: str = "k") -> None:
    if event == "late":
        await trio.sleep(10.05)
    else:
        await world.node.publish_message(event, key, {"by": event})
        await trio.sleep(0.05)


async def do_all(world: Any, topic: str, number: int) -> None:
    """A worker does the tasks of a topic, of which there are so many."""
    peer = await world.connect(topic)
    offers = (await peer.next(Tasks)).tasks
    assert len(offers) == number
    for offer in offers:
        assert isinstance(await peer.complete(offer), Ack)


# --- event-based gateways ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", WAITS)
@pytest.mark.parametrize("restart", [False, True])
async def test_the_event_that_comes_first_wins_and_closes_the_others_in_one_step(
    autojump_clock: object, site: Any, race: str, event: str, restart: bool
) -> None:
    world = await site.start()
    await world.deploy(race)
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    waiting = await world.node.replay(instance_id)
    assert {item.node_id for item in waiting.subscriptions.values()} == {"paid", "refused"}
    assert [item.node_id for item in waiting.timers.values()] == ["late"]
    if restart:
        world = await site.restart()
    await happen(world, event)
    step = (await world.node.history(instance_id))[1]
    names = Counter(type(fact).__name__ for fact in step.facts)
    fired = {"TimerFired": 1} if event == "late" else {"MessageCorrelated": 1}
    disarmed = {"SubscriptionClosed": 2} if event == "late" else {"SubscriptionClosed": 1, "TimerDisarmed": 1}
    assert {name: names[name] for name in ("TimerFired", "MessageCorrelated") if names[name]} == fired
    assert {name: names[name] for name in ("SubscriptionClosed", "TimerDisarmed") if names[name]} == disarmed
    assert names["TaskCreated"] == 1
    assert await no_timers(world)
    peer = await world.connect(WAITS[event])
    offer = await peer.task()
    assert bytes(offer.variables) == (b"{}" if event == "late" else b'{"by":"%s"}' % event.encode())
    assert isinstance(await peer.complete(offer), Ack)
    assert await status(world, instance_id, 5) == "COMPLETED"


@pytest.mark.parametrize("event", WAITS)
async def test_what_comes_after_the_first_event_changes_nothing(
    autojump_clock: object, site: Any, race: str, event: str
) -> None:
    world = await site.start()
    await world.deploy(race)
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    await happen(world, event)
    for later in WAITS:
        if later != event:
            await happen(world, later)
    seen = await visits(world, instance_id)
    assert seen == {"s": 1, "first": 1, event: 1, WAITS[event]: 1}
    assert len(await world.node.history(instance_id)) == 2


async def test_a_message_and_a_timer_at_the_same_moment_one_of_them_wins(
    autojump_clock: object, site: Any, race: str
) -> None:
    """Whichever it is in each of many instances: one branch runs, and the other event is without effect."""
    world = await site.start()
    await world.deploy(race)
    keys = [f"k{number}" for number in range(20)]
    instances = [await world.node.start_instance("p", {}, business_key=key) for key in keys]
    started = trio.current_time()

    async def publish(number: int, key: str) -> None:
        await trio.sleep(started + 9.998 + number * 0.0002 - trio.current_time())
        await world.node.publish_message("paid", key, {})

    async with trio.open_nursery() as nursery:
        for number, key in enumerate(keys):
            nursery.start_soon(publish, number, key)
    await trio.sleep(2)
    for instance_id in instances:
        seen = await visits(world, instance_id)
        assert seen["paid"] + seen["late"] == 1
        assert (seen["ship"], seen["remind"]) == (seen["paid"], seen["late"])
    ready = Counter(task.topic for task in await world.store.tasks())
    assert sum(ready.values()) == 20


async def test_a_message_and_a_timer_that_came_while_the_node_was_down_one_of_them_wins(
    autojump_clock: object, site: Any, race: str
) -> None:
    """The message was there before the node stopped, but nobody had correlated it; meanwhile the timer came due."""
    world = await site.start()
    await world.deploy(race)
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    await world.node.publish_message("paid", "k", {}, ttl_ms=3_600_000)
    site.kill()
    await trio.sleep(60)
    world = await site.start()
    await trio.sleep(2)
    seen = await visits(world, instance_id)
    assert seen["paid"] + seen["late"] == 1
    assert seen["ship"] + seen["remind"] == 1


async def test_a_message_that_lost_the_race_is_there_for_the_next_that_waits(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    """Both are there when the gateway is reached: the older one wins, the other one is kept until the next pass."""
    world = await site.start()
    await world.deploy(RACE + flow("s first paid e", "first late first", "first refused first", "ship remind close e"))
    for name in ("refused", "paid"):
        await world.node.publish_message(name, "k", {name: True})
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    assert await status(world, instance_id, 5) == "COMPLETED"
    assert await visits(world, instance_id) == {"s": 1, "first": 2, "refused": 1, "paid": 1, "e": 1}
    assert (await world.node.view(instance_id)).variables == {"refused": True, "paid": True}


@pytest.mark.parametrize("restart", [False, True])
async def test_fault_130_of_several_timers_behind_a_gateway_the_first_that_is_due_wins(
    autojump_clock: object, site: Any, flow: Any, restart: bool
) -> None:
    """Written in any order, as durations or dates; also when all have come due while nobody could look."""
    timers = {"minute": "PT1M", "soon": "PT20S", "day": "P1D"}
    waits = "".join(
        f'<intermediateCatchEvent id="{name}"><timerEventDefinition><timeDuration>{text}</timeDuration>'
        "</timerEventDefinition></intermediateCatchEvent>"
        for name, text in timers.items()
    )
    date = '<intermediateCatchEvent id="date"><timerEventDefinition><timeDate>2026-01-01T00:00:40Z</timeDate>'
    world = await site.start()
    await world.deploy(
        f'<startEvent id="s"/><eventBasedGateway id="first"/>{waits}{date}</timerEventDefinition>'
        '</intermediateCatchEvent><endEvent id="e"/>'
        + flow("s first minute e", "first soon e", "first day e", "first date e")
    )
    instance_id = await world.start()
    assert len((await world.node.replay(instance_id)).timers) == 4
    if restart:
        site.kill()
        await trio.sleep(90)
        world = await site.start()
    assert await status(world, instance_id, 21) == "COMPLETED"
    assert await visits(world, instance_id) == dict.fromkeys(("s", "first", "soon", "e"), 1)
    assert await no_timers(world)


async def test_a_gateway_in_a_loop_waits_anew_each_time(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start()
    await world.deploy(RACE + flow("s first paid ship e", "first late first", "first refused close e", "remind e"))
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    await trio.sleep(35)
    state = await world.node.replay(instance_id)
    assert (len(state.timers), len(state.subscriptions)) == (1, 2)
    await world.node.publish_message("paid", "k", {})
    await trio.sleep(0.1)
    assert await visits(world, instance_id) == {"s": 1, "first": 4, "late": 3, "paid": 1, "ship": 1}


async def test_a_gateway_that_cannot_wait_opens_an_incident_and_waits_for_nothing(
    autojump_clock: object, site: Any, race: str
) -> None:
    """One of its events has a key that does not exist; when it does, all of them are waited for."""
    receive = '<receiveTask id="refused" stellwerk:correlationKey="=order.number" messageRef="refused"/>'
    world = await site.start()
    await world.deploy(race.replace('<receiveTask id="refused" messageRef="refused"/>', receive))
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    (incident,) = await world.node.incidents(instance_id)
    assert incident["element_id"] == "first"
    state = await world.node.replay(instance_id)
    assert (state.timers, state.subscriptions) == ({}, {})
    await world.node.set_variables(instance_id, {"order": {"number": "n-1"}})
    await world.node.resolve_incident(str(incident["incident_id"]))
    await happen(world, "refused", "n-1")
    assert await visits(world, instance_id) == {"s": 1, "first": 1, "refused": 1, "close": 1}


@pytest.mark.parametrize("way", ["cancel", "boundary"])
async def test_a_gateway_that_is_given_up_leaves_nothing_behind(
    autojump_clock: object, site: Any, flow: Any, way: str
) -> None:
    inner = RACE.replace('id="s"', 'id="is"').replace('id="e"', 'id="ie"')
    inner += flow("is first paid ship ie", "first late remind ie", "first refused close ie").replace("flow.", "inner.")
    world = await site.start()
    await world.deploy(
        f'<startEvent id="s"/><subProcess id="sub">{inner}</subProcess><endEvent id="e"/><endEvent id="f"/>'
        + timer("stop", "timeDuration", "PT3S", "sub", "true")
        + flow("s sub e", "stop f")
    )
    instance_id = await world.node.start_instance("p", {}, business_key="k")
    if way == "cancel":
        await world.node.cancel_instance(instance_id, "enough")
    assert await status(world, instance_id, 5) == ("CANCELLED" if way == "cancel" else "COMPLETED")
    assert await no_timers(world)
    await world.node.publish_message("paid", "k", {})
    await trio.sleep(15)
    assert list(await world.store.matched_messages(EPOCH_MS + 15_000, 10)) == []
    assert "ship" not in await visits(world, instance_id)


# --- links ---------------------------------------------------------------------------------------------------------


async def test_several_link_throws_lead_to_one_catch(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start()
    await world.deploy(
        '<startEvent id="s"/><parallelGateway id="fork"/><serviceTask id="a" stellwerk:topic="work"/>'
        + link("Throw", "from_a", "on")
        + link("Throw", "from_b", "on")
        + link("Catch", "here", "on")
        + '<serviceTask id="after" stellwerk:topic="after"/><endEvent id="e"/>'
        + flow("s fork a from_a", "fork from_b", "here after e")
    )
    instance_id = await world.start()
    await trio.sleep(0.1)
    world = await site.restart()
    assert await visits(world, instance_id) == {"s": 1, "fork": 1, "a": 1, "from_b": 1, "here": 1, "after": 1}
    work = await world.connect("work")
    assert isinstance(await work.complete(await work.task()), Ack)
    await do_all(world, "after", 2)
    assert await status(world, instance_id, 5) == "COMPLETED"
    once = dict.fromkeys(("s", "fork", "a", "from_a", "from_b"), 1)
    assert await visits(world, instance_id) == {**once, "here": 2, "after": 2, "e": 2}


async def test_a_link_stays_in_its_scope(autojump_clock: object, site: Any, flow: Any) -> None:
    """The same name in a subprocess and outside: each throw goes on at the catch event of its own scope."""
    inner = '<startEvent id="is"/>' + link("Throw", "it", "on") + link("Catch", "ic", "on") + '<endEvent id="ie"/>'
    inner += flow("is it", "ic ie").replace("flow.", "inner.")
    world = await site.start()
    await world.deploy(
        f'<startEvent id="s"/><subProcess id="sub">{inner}</subProcess>'
        + link("Throw", "ot", "on")
        + link("Catch", "oc", "on")
        + '<endEvent id="e"/>'
        + flow("s sub ot", "oc e")
    )
    instance_id = await world.start()
    assert await status(world, instance_id, 5) == "COMPLETED"
    nodes = ("s", "sub", "is", "it", "ic", "ie", "ot", "oc", "e")
    assert await visits(world, instance_id) == dict.fromkeys(nodes, 1)


@pytest.mark.parametrize(
    ("links", "finding"),
    [
        (link("Throw", "there", "on"), '"there": no catch event of the link "on" is in the same scope'),
        (
            link("Throw", "there", "on") + link("Catch", "here", "on") + link("Catch", "here_too", "on"),
            '"here_too": the link "on" leads to "here" already',
        ),
    ],
)
async def test_a_link_that_leads_nowhere_or_to_two_places_is_refused_at_deploy(
    autojump_clock: object, world: Any, flow: Any, links: str, finding: str
) -> None:
    with pytest.raises(DeployRefused, match=finding):
        await world.deploy('<startEvent id="s"/>' + links + flow("s there"))
    assert await world.node.definitions() == []


# --- cycles at boundary events -------------------------------------------------------------------------------------

CYCLED = """<startEvent id="s"/><serviceTask id="work" stellwerk:topic="work"/>{}
  <serviceTask id="remind" stellwerk:topic="remind"/><endEvent id="e"/><endEvent id="f"/>"""


@pytest.fixture
def cycled(flow: Any) -> Any:
    """A task with a timer cycle at its boundary, that leads to a reminder."""

    def make(text: str, interrupting: str = "false") -> str:
        boundary = timer("again", "timeCycle", text, "work", interrupting)
        return CYCLED.format(boundary) + str(flow("s work e", "again remind f"))

    return make


async def reminders(world: Any, instance_id: str) -> list[float]:
    """When they came, in seconds after the start."""
    told = await world.node.trace(instance_id)
    began = told.tokens[0].stays[0].entered.at_ms
    stays = [stay for token in told.tokens for stay in token.stays if stay.node_id == "again"]
    return [round((stay.entered.at_ms - began) / 1000, 1) for stay in stays]


@pytest.mark.parametrize("restart", [False, True])
async def test_a_cycle_fires_as_often_as_it_says(autojump_clock: object, site: Any, cycled: Any, restart: bool) -> None:
    world = await site.start()
    await world.deploy(cycled("R3/PT10S"))
    instance_id = await world.start()
    await trio.sleep(15)
    if restart:
        world = await site.restart()
    await trio.sleep(60)
    assert await reminders(world, instance_id) == [10, 20, 30]
    assert (await world.node.replay(instance_id)).timers == {}
    assert await status(world, instance_id) == "RUNNING"


async def test_a_cycle_ends_with_its_task(autojump_clock: object, site: Any, cycled: Any) -> None:
    world = await site.start()
    await world.deploy(cycled("R/PT10S"))
    instance_id = await world.start()
    await trio.sleep(25)
    peer = await world.connect("work")
    assert isinstance(await peer.complete(await peer.task()), Ack)
    await trio.sleep(60)
    assert await reminders(world, instance_id) == [10, 20]
    await do_all(world, "remind", 2)
    assert await status(world, instance_id, 5) == "COMPLETED"


async def test_a_cycle_that_interrupts_fires_once(autojump_clock: object, site: Any, cycled: Any) -> None:
    world = await site.start()
    await world.deploy(cycled("R3/PT10S", "true"))
    instance_id = await world.start()
    peer = await world.connect("work")
    offer = await peer.task()
    revoked = await peer.next(Revoked)
    assert [notice.task_id for notice in revoked.leases] == [offer.task_id]
    await trio.sleep(60)
    assert await reminders(world, instance_id) == [10]
    assert (await world.node.replay(instance_id)).timers == {}


@pytest.mark.parametrize(("cycle", "times"), [("R4/PT10S", [10, 20, 75, 75]), ("R/PT10S", [10, 20, 75, 80])])
async def test_a_cycle_whose_times_were_missed(
    autojump_clock: object, site: Any, cycled: Any, cycle: str, times: list[float]
) -> None:
    """A number of times is kept to, at once afterwards; without end, what was missed counts as one time."""
    world = await site.start()
    await world.deploy(cycled(cycle))
    instance_id = await world.start()
    await trio.sleep(25)
    site.kill()
    await trio.sleep(50)
    world = await site.start()
    await trio.sleep(6)
    assert await reminders(world, instance_id) == times


async def test_fault_135_a_cycle_with_a_start_in_the_past_keeps_to_its_schedule(
    autojump_clock: object, site: Any, cycled: Any
) -> None:
    """Deployed 20 s after the full minute that the schedule counts from: at once, then at full minutes."""
    world = await site.start()
    await world.deploy(cycled("R/2025-12-31T12:00:00Z/PT1M"))
    await trio.sleep(20)
    instance_id = await world.start()
    await trio.sleep(110)
    assert await reminders(world, instance_id) == [0, 40, 100]
