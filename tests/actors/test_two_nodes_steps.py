"""Two nodes step the same instances: each effect happens once, none starves, and what is newest counts."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.core.evolve import fold
from stellwerk.errors import CallerError
from stellwerk.ports import TaskQuery
from stellwerk.wire.messages import Ack, Fail, Tasks

A_SECOND = 1.1
AT_ONCE = 0.05
CATCH = '<startEvent id="s"/><intermediateCatchEvent id="wait">{}</intermediateCatchEvent><endEvent id="e"/>'
PAID = '<messageEventDefinition messageRef="paid"/>'
ORDERED = '<startEvent id="s"><messageEventDefinition messageRef="order"/></startEvent><userTask id="u"/>'


@pytest.fixture
async def pair(nodes: Any) -> Any:
    async def start(hints: bool = True) -> Any:
        if not hints:
            nodes.lose_hints()
        a, b = await nodes.start(), await nodes.start()
        await trio.sleep(0.3)
        return a, b

    return start


@pytest.fixture
def catch(flow: Any) -> Any:
    return lambda event: CATCH.format(event) + flow("s wait e")


def after(text: str) -> str:
    return f"<timerEventDefinition><timeDuration>{text}</timeDuration></timerEventDefinition>"


async def completed(world: Any, instance_id: str, seconds: float) -> bool:
    return str((await world.node.wait_for_end(instance_id, timeout_seconds=seconds)).status) == "COMPLETED"


async def facts(world: Any, instance_id: str, name: str) -> list[Any]:
    """And the history is whole."""
    view = await world.node.view(instance_id)
    assert [step.version for step in view.steps] == list(range(1, view.summary.version + 1))
    everything = [fact for step in view.steps for fact in step.facts]
    fold(None, everything)
    return [fact for fact in everything if type(fact).__name__ == name]


# --- wide instances ------------------------------------------------------------------------------------------------


def wide(flow: Any, branches: int, length: int) -> str:
    rows = range(branches)
    tasks = "".join(f'<serviceTask id="t{n}.{m}" stellwerk:topic="work"/>' for n in rows for m in range(length))
    paths = [f"fork {' '.join(f't{n}.{m}' for m in range(length))} join" for n in rows]
    body = f'<startEvent id="s"/><parallelGateway id="fork"/>{tasks}<parallelGateway id="join"/><endEvent id="e"/>'
    return body + str(flow("s fork", *paths, "join e"))


async def work_off(peer: Any) -> None:
    """Each task at once and by itself, so that as many requests as possible meet."""

    async def complete(offer: Any) -> None:
        answer = await peer.complete(offer)
        assert isinstance(answer, Ack), answer

    async with trio.open_nursery() as nursery:
        while True:
            frame = await peer.next(Tasks)
            for offer in frame.tasks:
                nursery.start_soon(complete, offer)


@pytest.mark.parametrize("hints", [True, False])
async def test_rule_4_fault_59_both_nodes_step_one_wide_instance(
    autojump_clock: object, pair: Any, flow: Any, hints: bool
) -> None:
    a, b = await pair(hints)
    await a.deploy(wide(flow, branches=20, length=3))
    peers = [await world.connect("work", max_tasks=10) for world in (a, b)]
    instance_id = await a.start()
    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(work_off, peer)
        assert await completed(a, instance_id, 10)
        nursery.cancel_scope.cancel()
    tasks = await a.node.tasks(TaskQuery(instance_id=instance_id))
    assert len(tasks) == 60
    assert {task.state.value for task in tasks} == {"COMPLETED"}
    assert {task.attempt for task in tasks} == {1}
    assert len(await facts(b, instance_id, "TaskCompleted")) == 60


async def test_rule_4_a_node_far_from_the_store_is_not_starved_by_a_near_one(
    autojump_clock: object, pair: Any, flow: Any
) -> None:
    """Whatever the far one decides is stale when it arrives, unless it holds the instance while it decides."""
    near, far = await pair(hints=False)
    await near.deploy('<startEvent id="s"/><userTask id="u"/><endEvent id="e"/>' + flow("s u e"))
    instance_id = await near.start()
    far.store.seconds = 0.02
    steps = 0

    async def step_without_end() -> None:
        nonlocal steps
        while True:
            await near.node.set_variables(instance_id, {"near": steps})
            steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(step_without_end)
        await trio.sleep(1)
        for number in range(5):
            with trio.fail_after(0.5):
                await far.node.set_variables(instance_id, {f"far{number}": number})
        nursery.cancel_scope.cancel()
    assert far.store.steps_locked == 5
    assert steps > 500, "and the near one went on"
    variables = (await near.node.outcome(instance_id)).variables
    assert variables.pop("near") in (steps - 1, steps), "the last one may have had no answer"
    assert variables == {f"far{number}": number for number in range(5)}


@pytest.mark.parametrize("delay_ms", range(0, 240, 15))
async def test_rule_4_one_of_two_rivals_is_refused_whenever_the_lock_is_taken(
    autojump_clock: object, pair: Any, flow: Any, delay_ms: int
) -> None:
    """Both complete the same user task; the far one is decided three times in vain, and then under the lock."""
    near, far = await pair(hints=False)
    await near.deploy(
        '<startEvent id="s"/><parallelGateway id="fork"/><userTask id="u"/><userTask id="v"/><endEvent id="e"/>'
        + flow("s fork u e", "fork v e")
    )
    instance_id = await near.start()
    row = next(row for row in await near.node.user_tasks(instance_id) if row["element_id"] == "u")
    await far.node.set_variables(instance_id, {"known": "here"})
    far.store.seconds = 0.02
    answers: list[str] = []

    async def complete(world: Any) -> None:
        try:
            await world.node.complete_user_task(str(row["user_task_id"]), {})
        except CallerError as error:
            answers.append(error.code)
        else:
            answers.append("done")

    async def step_without_end() -> None:
        while True:
            await near.node.set_variables(instance_id, {"near": 1})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(step_without_end)
        async with trio.open_nursery() as asking:
            asking.start_soon(complete, far)
            await trio.sleep(delay_ms / 1000)
            asking.start_soon(complete, near)
        nursery.cancel_scope.cancel()
    assert sorted(answers) in (["done", "not_found"], ["done", "not_open"])
    await trio.sleep(AT_ONCE)  # the last step may be under way
    assert len(await facts(near, instance_id, "UserTaskCompleted")) == 1


# --- timers and messages -------------------------------------------------------------------------------------------


async def test_rule_22_a_timer_fires_once(autojump_clock: object, pair: Any, catch: Any) -> None:
    a, b = await pair()
    await a.deploy(catch(after("PT5S")))
    instances = [await world.start() for world in (a, b) for _ in range(10)]
    began = trio.current_time()
    for instance_id in instances:
        assert await completed(b, instance_id, 10)
    assert 5 - AT_ONCE < trio.current_time() - began < 5 + AT_ONCE
    for instance_id in instances:
        assert len(await facts(a, instance_id, "TimerFired")) == 1
    assert a.store.steps_refused + b.store.steps_refused == 0, "nor did the other node try to"


async def test_rule_22_a_timer_that_was_claimed_by_a_node_that_died_fires_on_another(
    autojump_clock: object, nodes: Any, catch: Any
) -> None:
    async def dies(name: str) -> None:
        if name == "before-commit" and trio.current_time() > 5:
            nodes.kill(a)
            await trio.lowlevel.checkpoint()

    a = await nodes.start(pause_point=dies)
    await a.deploy(catch(after("PT5S")))
    instance_id = await a.start()
    await trio.sleep(5.2)  # claimed, and dead before it could commit
    b = await nodes.start()
    assert await completed(b, instance_id, 12)
    assert len(await facts(b, instance_id, "TimerFired")) == 1


@pytest.mark.parametrize("hours", [-2, 2])
async def test_rule_19_a_node_whose_wall_clock_is_wrong_neither_shortens_nor_drops_a_message(
    autojump_clock: object, pair: Any, catch: Any, hours: int
) -> None:
    a, b = await pair()
    a.clock.set_by_ms = hours * 3_600_000
    await a.deploy(catch(PAID))
    await a.node.publish_message("paid", "from a", {})
    await b.node.publish_message("paid", "from b", {})
    await trio.sleep(65)  # each has dropped what it takes for ended
    for key in ("from a", "from b"):
        assert await completed(a, await b.node.start_instance("p", {}, business_key=key), A_SECOND)


@pytest.mark.parametrize("hints", [True, False])
async def test_rule_6_a_message_is_correlated_once_wherever_its_two_sides_are(
    autojump_clock: object, pair: Any, catch: Any, hints: bool
) -> None:
    a, b = await pair(hints)
    await a.deploy(catch(PAID))
    for number in range(20):
        # Both commit at the same moment: neither sees the other's row when it looks first.
        key = f"k{number}"
        ids: list[str] = []

        async def begin(key: str, ids: list[str]) -> None:
            ids.append(await b.node.start_instance("p", {}, business_key=key))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin, key, ids)
            nursery.start_soon(a.node.publish_message, "paid", key, {"n": number})
        assert await completed(a, ids[0], A_SECOND)
        assert (await a.node.outcome(ids[0])).variables == {"n": number}
    assert await a.node.waiting_messages() == []


async def test_rule_6_a_message_starts_one_instance(autojump_clock: object, pair: Any, flow: Any) -> None:
    a, b = await pair()
    await a.deploy(ORDERED + '<endEvent id="e"/>' + flow("s u e"))
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon((a, b)[number % 2].node.publish_message, "order", f"k{number}", {})
    await trio.sleep(3)
    keys = [summary.business_key for summary in await b.node.instances()]
    assert sorted(str(key) for key in keys) == sorted(f"k{number}" for number in range(10))


async def test_rule_6_messages_arrive_in_the_order_of_their_acknowledgements(
    autojump_clock: object, pair: Any, flow: Any
) -> None:
    """Many within few milliseconds, published on both nodes in turn."""
    a, b = await pair()
    for world in (a, b):
        world.store.seconds = 0.0
    count = 31
    catches = "".join(f'<intermediateCatchEvent id="w{n}">{PAID}</intermediateCatchEvent>' for n in range(count))
    await a.deploy(
        f'<startEvent id="s"/>{catches}<userTask id="u"/><endEvent id="e"/>'
        + flow("s " + " ".join(f"w{n}" for n in range(count)) + " u e")
    )
    async with trio.open_nursery() as nursery:  # one node is far ahead with instants, should it count by itself
        for number in range(50):
            nursery.start_soon(a.node.publish_message, "other", f"{number}", {})
    published = [f"m{(7 * number) % count:02}" for number in range(count)]
    for number, message_id in enumerate(published):
        await (a, b)[number % 2].node.publish_message("paid", "k", {}, message_id=message_id)
    instance_id = await a.node.start_instance("p", {}, business_key="k")
    await trio.sleep(3)
    order = [fact.message_id for fact in await facts(b, instance_id, "MessageCorrelated")]
    assert order == published


# --- definitions and starts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hints", [True, False])
async def test_rule_7_a_start_by_key_takes_the_newest_version_whoever_deployed_it(
    autojump_clock: object, pair: Any, flow: Any, hints: bool
) -> None:
    a, b = await pair(hints)
    for version in range(1, 6):
        deploying, starting = ((a, b), (b, a))[version % 2]
        body = f'<startEvent id="s"/><userTask id="u{version}"/><endEvent id="e"/>' + flow(f"s u{version} e")
        await deploying.deploy(body)
        instance_id = await starting.start()
        (row,) = await starting.node.user_tasks(instance_id)
        assert row["element_id"] == f"u{version}"
        old = await starting.node.start_instance("p", {}, version=1)
        assert (await starting.node.view(old)).summary.definition_id == "p:1"


async def test_rule_7_a_start_that_the_newest_version_refuses_is_refused(
    autojump_clock: object, pair: Any, flow: Any
) -> None:
    a, b = await pair(hints=False)
    await a.deploy('<startEvent id="s"/><endEvent id="e"/>' + flow("s e"))
    await b.start()
    await a.deploy('<startEvent id="other"/><endEvent id="e"/>' + flow("other e"))
    with pytest.raises(CallerError, match='"s"'):
        await b.node.start_instance("p", {}, start_event_id="s")
    assert len(await b.node.instances()) == 1
    await b.node.start_instance("p", {}, start_event_id="other")


async def test_one_request_id_on_both_nodes_at_once_starts_one_instance(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    a, b = await pair()
    await a.deploy(one_task())
    ids: list[str] = []

    async def start(world: Any) -> None:
        ids.append(await world.node.start_instance("p", {"n": 1}, request_id="r"))

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(start, (a, b)[number % 2])
    assert len(ids) == 6
    assert len(set(ids)) == 1
    (summary,) = await a.node.instances()
    assert summary.version == 1


async def test_an_instance_that_another_node_pruned_may_be_started_again(
    autojump_clock: object, pair: Any, flow: Any
) -> None:
    """This node still has the actor of the one that is gone."""
    a, b = await pair()
    await a.deploy('<startEvent id="s"/><userTask id="old"/><endEvent id="e"/>' + flow("s old e"))
    first = await b.node.start_instance("p", {"n": 1}, request_id="r")
    (row,) = await b.node.user_tasks()
    await b.node.complete_user_task(str(row["user_task_id"]), {})
    await trio.sleep(0.1)
    assert await a.node.prune(0) == 1
    await a.deploy('<startEvent id="other"/><userTask id="new"/><endEvent id="e"/>' + flow("other new e"))
    assert await b.node.start_instance("p", {"n": 2}, request_id="r") == first
    outcome = await b.node.outcome(first)
    assert (outcome.variables, outcome.summary.definition_id) == ({"n": 2}, "p:2")
    assert [row["element_id"] for row in await b.node.user_tasks()] == ["new"]


async def test_an_instance_whose_start_one_node_refused_is_found_when_the_other_started_it(
    autojump_clock: object, pair: Any, flow: Any
) -> None:
    a, b = await pair()
    await a.deploy('<startEvent id="s"/><userTask id="u"/><endEvent id="e"/>' + flow("s u e"))
    with pytest.raises(CallerError):
        await b.node.start_instance("p", {}, request_id="r", start_event_id="none")
    instance_id = await a.node.start_instance("p", {}, request_id="r")
    (row,) = await b.node.user_tasks()
    await b.node.complete_user_task(str(row["user_task_id"]), {})
    assert await completed(b, instance_id, 1)


# --- waiting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hints", "seconds"), [(True, AT_ONCE), (False, A_SECOND)])
async def test_waiting_on_one_node_for_an_instance_that_ends_on_another(
    autojump_clock: object, pair: Any, one_task: Any, hints: bool, seconds: float
) -> None:
    a, b = await pair(hints)
    await a.deploy(one_task())
    peer = await b.connect("work")
    instance_id = await a.start()
    offer = await peer.task()
    ended: list[float] = []

    async def wait() -> None:
        assert await completed(a, instance_id, 60)
        ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(3.3)
        assert isinstance(await peer.complete(offer), Ack)
        began = trio.current_time()
    assert ended[0] - began < seconds


@pytest.mark.parametrize(("hints", "seconds"), [(True, AT_ONCE), (False, A_SECOND)])
async def test_waiting_on_one_node_for_an_incident_that_opens_on_another(
    autojump_clock: object, pair: Any, one_task: Any, hints: bool, seconds: float
) -> None:
    a, b = await pair(hints)
    await a.deploy(one_task(), attributes='stellwerk:failurePolicy="incident"')
    peer = await b.connect("work")
    instance_id = await a.start()
    offer = await peer.task()
    seen: list[float] = []

    async def wait() -> None:
        await a.node.wait_for_end(instance_id, timeout_seconds=60, or_incident=True)
        seen.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(3.3)
        await peer.say(Fail(peer.ref(), offer.task_id, offer.fence, "no", retries=0))
        began = trio.current_time()
    assert seen[0] - began < seconds
    assert len(await b.node.incidents(instance_id)) == 1
