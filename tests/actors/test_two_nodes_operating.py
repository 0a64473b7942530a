"""Several nodes as an operator sees them: who is there, what nobody works on, and what happens when one dies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs
import pytest
import structlog
import trio

from stellwerk.actors.reports import bounded
from stellwerk.errors import StoreUnavailable
from stellwerk.ports import Hint, NodeReport, SessionReport, SubscriptionReport, TopicReport
from stellwerk.stores.memory import MemoryStore
from stellwerk.wire.messages import Ack, Revoked, Subscribe, Tasks, Unsubscribe

A_SECOND = 1.1
PAID = '<messageEventDefinition messageRef="paid"/>'


def after(text: str) -> str:
    return f"<timerEventDefinition><timeDuration>{text}</timeDuration></timerEventDefinition>"


async def completed(world: Any, instance_id: str, seconds: float) -> bool:
    return str((await world.node.wait_for_end(instance_id, timeout_seconds=seconds)).status) == "COMPLETED"


# --- a node dies ---------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(flow: Any) -> str:
    return str(
        f"""<startEvent id="s"/><parallelGateway id="fork"/><serviceTask id="one" stellwerk:topic="work"/>
        <serviceTask id="two" stellwerk:topic="work"/><intermediateCatchEvent id="wait">{after("PT20S")}
        </intermediateCatchEvent><intermediateCatchEvent id="paid">{PAID}</intermediateCatchEvent>
        <parallelGateway id="join"/><endEvent id="e"/>"""
        + flow("s fork one two join", "fork wait join", "fork paid join", "join e")
    )


@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("commits", range(4, 44, 3))
async def test_E5_a_node_dies_with_instances_under_way_and_the_other_goes_on(
    autojump_clock: object, nodes: Any, mixed: str, commits: int, hints: bool
) -> None:
    """At each commit in turn: before it is sent, or when it is durable and nobody has heard of it."""
    if not hints:
        nodes.lose_hints()
    left = commits

    async def dies(name: str) -> None:
        nonlocal left
        if name.endswith("-commit"):
            left -= 1
        if left == 0:
            nodes.kill(a)
            await trio.lowlevel.checkpoint()

    b = await nodes.start()
    a = await nodes.start(pause_point=dies)
    await b.deploy(mixed)
    peers = [await a.connect("work", max_tasks=2, lock_duration_ms=10_000)]
    peers.append(await b.connect("work", max_tasks=2, lock_duration_ms=10_000))
    completions: list[str] = []

    async def work(peer: Any) -> None:
        while True:
            frame = await peer.next(Tasks)
            for offer in frame.tasks:
                if isinstance(await peer.complete(offer), Ack):
                    completions.append(offer.task_id)

    async def start(world: Any, number: int, started: dict[int, str]) -> None:
        started[number] = await world.node.start_instance("p", {}, business_key=f"k{number}", request_id=f"r{number}")

    started: dict[int, str] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, peers[1])
        with trio.CancelScope() as scope, suppress(StoreUnavailable):
            a.nursery.start_soon(work, peers[0])
            a.nursery.start_soon(die_with, a.nursery, scope)
            for number in range(6):
                await start(a, number, started)
            for number in range(6):
                await a.node.publish_message("paid", f"k{number}", {}, message_id=f"m{number}")
            await trio.sleep(30)
        for number in range(6):  # whatever had no answer is asked for again
            await start(b, number, started)
            await b.node.publish_message("paid", f"k{number}", {}, message_id=f"m{number}")
        for instance_id in started.values():
            assert await completed(b, instance_id, 60)
        nursery.cancel_scope.cancel()
    assert len(await b.node.instances()) == 6
    tasks = await b.node.tasks()
    assert {task.state.value for task in tasks} == {"COMPLETED"}
    assert len(tasks) == 12
    assert len(completions) == len(set(completions)), "each was accepted once"


async def die_with(nursery: trio.Nursery, scope: trio.CancelScope) -> None:
    """Whoever asks a node that dies hears no more of it."""
    try:
        await trio.sleep_forever()
    finally:
        assert nursery.cancel_scope.cancel_called
        scope.cancel()


async def test_fault_20_the_workers_of_a_node_that_died_keep_their_leases_on_the_other(
    autojump_clock: object, nodes: Any, one_task: Any
) -> None:
    a, b = await nodes.start(), await nodes.start()
    await a.deploy(one_task())
    peer = await a.connect("work", max_tasks=3)
    instances = [await a.start() for _ in range(3)]
    while len(peer.holding) < 3:
        await peer.next(Tasks)
    nodes.kill(a)
    await trio.sleep(2)
    peer.world = b
    welcome = await peer.connect()
    await peer.say(Subscribe("work"))
    assert {lease.task_id: lease.fence for lease in welcome.kept} == peer.holding
    for offer in list(peer.offers.values()):
        assert isinstance(await peer.complete(offer), Ack)
    for instance_id in instances:
        assert await completed(b, instance_id, 1)
    assert {task.attempt for task in await b.node.tasks()} == {1}


# --- who is there --------------------------------------------------------------------------------------------------


async def test_all_nodes_are_listed_wherever_one_asks(autojump_clock: object, nodes: Any, one_task: Any) -> None:
    a, b = await nodes.start(), await nodes.start()
    await a.deploy(one_task())
    await a.connect("work")
    await a.start()
    await trio.sleep(5.5)
    for world in (a, b):
        rows = await world.node.nodes()
        assert [row.report.node_id for row in rows] == ["node-1", "node-2"]
        first = rows[0].report
        assert (first.name, first.workers, first.leases, first.instances_live) == ("host:1", 1, 1, 1)
        assert (first.is_draining, rows[0].seen_ms_ago <= 5_000) == (False, True)
        assert first.commits >= 2
        assert first.store_ms > 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.node.drain, 8)
        await trio.sleep(5.5)
        assert [row.report.is_draining for row in await b.node.nodes()] == [True, False]
        nursery.cancel_scope.cancel()
    nodes.kill(a)
    await trio.sleep(0.1)
    assert [row.report.node_id for row in await b.node.nodes()] == ["node-2"], "it said goodbye"


async def test_workers_and_topics_are_those_of_all_nodes_wherever_one_asks(
    autojump_clock: object, nodes: Any, one_task: Any
) -> None:
    a, b = await nodes.start(), await nodes.start()
    offline = await nodes.start(is_offline=True)
    await a.deploy(one_task())
    await b.connect("work", max_tasks=3, worker_id="on b")
    await a.connect("work", "other", max_tasks=1, worker_id="on a")
    await trio.sleep(0.3)
    for _ in range(6):
        await b.start()
    await trio.sleep(5.1)
    for world in (a, b, offline):
        first, second = await world.node.workers()
        assert (first.worker_id, first.node, first.client) == ("on a", "host:1", "test/1")
        assert (second.worker_id, second.node) == ("on b", "host:2")
        assert [(view.topic, view.max_tasks, view.held) for view in first.topics] == [("work", 1, 1), ("other", 1, 0)]
        assert [(view.topic, view.max_tasks, view.held) for view in second.topics] == [("work", 3, 3)]
        topics = {view.topic: view for view in await world.node.topics()}
        assert {topic: (view.workers, view.free) for topic, view in topics.items()} == {"other": (1, 1), "work": (2, 0)}
        assert topics["work"].backlog.ready == 2
        assert not topics["work"].is_unattended
        assert await world.node.unattended(frozenset({"work", "other", "third"})) == ["third"]


async def test_other_nodes_know_at_once_of_workers_that_come_change_and_go(
    autojump_clock: object, nodes: Any, one_task: Any
) -> None:
    a, b = await nodes.start(), await nodes.start()
    await trio.sleep(1)

    async def seen() -> list[list[tuple[str, int]]]:
        await trio.sleep(0.3)
        return [[(one.topic, one.max_tasks) for one in view.topics] for view in await b.node.workers()]

    peer = await a.connect("work", max_tasks=2)
    assert await seen() == [[("work", 2)]]
    await peer.say(Subscribe("work", max_tasks=5))
    assert await seen() == [[("work", 5)]]
    await peer.say(Subscribe("more", max_tasks=1))
    assert await seen() == [[("work", 5), ("more", 1)]]
    await peer.say(Unsubscribe("work"))
    assert await seen() == [[("more", 1)]]
    peer.drop()
    assert await seen() == []


async def test_a_crowd_of_workers_is_told_at_most_four_times_a_second(
    autojump_clock: object, nodes: Any, one_task: Any
) -> None:
    a = await nodes.start()
    b = await nodes.start()
    await trio.sleep(6)
    before = a.store.reported
    for _ in range(100):
        await a.connect("work")
        await trio.sleep(0.02)
    assert len(await b.node.workers()) >= 80
    assert 5 <= a.store.reported - before <= 12, "2 s of connecting"
    await trio.sleep(0.3)
    assert len(await b.node.workers()) == 100
    before = a.store.reported
    await trio.sleep(20)
    assert 3 <= a.store.reported - before <= 5, "nothing changes: the beat is left"


async def test_workers_of_a_node_that_is_silent_do_not_count(autojump_clock: object, nodes: Any, one_task: Any) -> None:
    a, b = await nodes.start(), await nodes.start()
    await a.deploy(one_task())
    await a.connect("work", max_tasks=1)
    await trio.sleep(1)
    for _ in range(2):
        await b.start()
    assert [view.is_unattended for view in await b.node.topics()] == [False]
    report, seen = nodes.shared.reports["node-1"]
    nodes.kill(a)
    await trio.sleep(1)
    nodes.shared.reports["node-1"] = (report, seen)  # it could not say goodbye
    await trio.sleep(10)
    assert len(await b.node.workers()) == 1
    await trio.sleep(10)
    assert await b.node.workers() == []
    assert [(view.workers, view.is_unattended) for view in await b.node.topics()] == [(0, True)]


async def test_workers_of_a_node_that_does_not_tell_its_topics_may_attend_any(
    autojump_clock: object, nodes: Any, one_task: Any
) -> None:
    """It runs an older version, during an upgrade."""
    a, b = await nodes.start(), await nodes.start()
    await a.deploy(one_task())
    await a.start()
    await trio.sleep(1)
    assert [view.is_unattended for view in await b.node.topics()] == [True]
    report, _ = nodes.shared.reports["node-1"]
    older = attrs.evolve(report, node_id="node-0", workers=1, sessions=(), topics=(), tells_all_topics=False)
    nodes.shared.reports["node-0"] = (older, trio.current_time())
    assert [(view.workers, view.is_unattended) for view in await b.node.topics()] == [(0, False)]
    nodes.shared.reports["node-0"] = (attrs.evolve(older, workers=0), trio.current_time())
    assert [view.is_unattended for view in await b.node.topics()] == [True]


def test_a_report_is_bounded_and_says_so() -> None:
    sessions = [
        SessionReport(
            worker_id=f"w{number:05}",
            session_id="s",
            client="c",
            connected_at_ms=0,
            subscriptions=tuple(SubscriptionReport(f"t{topic}", 1, 0) for topic in range(20)),
        )
        for number in range(1_500)
    ]
    topics = [TopicReport(f"t{number}", 1, 1) for number in range(10_001)]
    whole = NodeReport(
        node_id="n",
        name="n",
        url=None,
        version="1",
        started_at_ms=0,
        is_draining=False,
        workers=1_500,
        leases=0,
        instances_live=0,
        commits=0,
        operations=0,
        store_ms=0,
        sessions=tuple(sessions),
        topics=tuple(topics),
    )
    told = bounded(whole)
    assert told.sessions == tuple(sessions[:500]), "10,000 subscriptions"
    assert (len(told.topics), told.tells_all_topics, told.workers) == (10_000, False, 1_500)
    small = attrs.evolve(
        whole, sessions=tuple(attrs.evolve(one, subscriptions=()) for one in sessions), topics=tuple(topics[1:])
    )
    assert len(bounded(small).sessions) == 1_000
    assert bounded(small).tells_all_topics


async def test_a_node_alone_is_listed_too(autojump_clock: object, world: Any) -> None:
    (row,) = await world.node.nodes()
    assert (row.report.workers, row.seen_ms_ago) == (0, 0)


async def test_who_looks_at_the_store_offline_is_no_node(autojump_clock: object, nodes: Any) -> None:
    await nodes.start()
    offline = await nodes.start(is_offline=True)
    await trio.sleep(6)
    assert [row.report.node_id for row in await offline.node.nodes()] == ["node-1"]


@pytest.mark.parametrize(("hints", "seconds"), [(True, 0.05), (False, A_SECOND)])
async def test_what_is_done_offline_is_carried_on_by_the_nodes_that_are_there(
    autojump_clock: object, nodes: Any, flow: Any, hints: bool, seconds: float
) -> None:
    if not hints:
        nodes.lose_hints()
    online = await nodes.start()
    offline = await nodes.start(is_offline=True)
    await offline.deploy(
        f'<startEvent id="s"/><intermediateCatchEvent id="w">{after("PT0.01S")}</intermediateCatchEvent>'
        f'<intermediateCatchEvent id="m">{PAID}</intermediateCatchEvent><endEvent id="e"/>' + flow("s w m e")
    )
    await online.connect("work")
    await trio.sleep(3.3)
    began = trio.current_time()
    instance_id = await offline.node.start_instance("p", {}, business_key="k")
    await offline.node.publish_message("paid", "k", {})
    assert await completed(online, instance_id, 10)
    assert trio.current_time() - began < 2 * seconds + 0.1
    assert await completed(offline, instance_id, 0)


# --- what nobody works on ------------------------------------------------------------------------------------------


async def test_fault_56_ready_tasks_that_no_worker_of_any_node_takes_are_an_alarm(
    autojump_clock: object, nodes: Any, one_task: Any
) -> None:
    a, b = await nodes.start(), await nodes.start()
    await a.deploy(one_task())
    await a.deploy(one_task().replace('topic="work"', 'topic="served"'), key="q")
    peer = await b.connect("served", max_tasks=1)
    with structlog.testing.capture_logs() as lines:
        await a.start()
        for _ in range(5):
            await a.start("q")  # all but one wait, but somebody is there
        await trio.sleep(50)
        assert a.node.statistics()["topics_unattended_ms"] == {}
        await trio.sleep(100)
    alarms = [line for line in lines if line["event"] == "no worker takes the tasks of a topic"]
    assert [line["topic"] for line in alarms] == ["work", "work"], "once by each node"
    assert alarms[0]["oldest_ready_ms"] >= 60_000
    for world in (a, b):
        (waited_ms,) = world.node.statistics()["topics_unattended_ms"].values()
        assert 130_000 < waited_ms < 151_000
        unattended = {view.topic: view.is_unattended for view in await world.node.topics()}
        assert unattended == {"served": False, "work": True}
        assert await world.node.unattended(frozenset({"served", "work"})) == ["work"]
    with structlog.testing.capture_logs() as lines:
        await peer.say(Subscribe("work", max_tasks=1))
        await trio.sleep(20)
    assert [line["topic"] for line in lines if line["event"] == "the tasks of a topic are taken again"] == ["work"] * 2
    assert a.node.statistics()["topics_unattended_ms"] == {}


async def test_fault_56_the_alarm_is_there_without_other_nodes_too(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    await world.start()
    await trio.sleep(80)
    assert world.node.statistics()["topics_unattended_ms"].keys() == {"work"}


# --- what it costs -------------------------------------------------------------------------------------------------


class AloneStrictly(MemoryStore):
    """Nobody is there who could be told anything."""

    def tell(self, hint: Hint) -> None:
        raise AssertionError(hint)

    async def hints(self) -> Hint:
        raise AssertionError

    async def standing_leases(self, leases: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
        raise AssertionError

    async def report_node(self, report: NodeReport) -> None:
        raise AssertionError


async def test_a_store_of_ones_own_is_asked_nothing_about_other_nodes(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, world: Any, mixed: str
) -> None:
    alone = await start_node(nursery, AloneStrictly(world.clock))
    with structlog.testing.capture_logs() as lines:
        await alone.deploy(mixed)
        instance_id = await alone.node.start_instance("p", {}, business_key="k")
        cancelled = await alone.node.start_instance("p", {}, business_key="other")
        peer = await alone.connect("work", max_tasks=2)
        await trio.sleep(1)
        await alone.node.cancel_instance(cancelled, "enough")
        await alone.node.publish_message("paid", "k", {})
        while not await completed(alone, instance_id, 0):
            for offer in list(peer.offers.values()):
                await peer.complete(offer)
                del peer.offers[offer.task_id]
            await trio.sleep(1)
    assert not [line for line in lines if line["log_level"] in ("error", "exception")]


async def test_a_lost_connection_for_hints_is_followed_by_a_look_at_everything(
    autojump_clock: object, nodes: Any, one_task: Any
) -> None:
    a, b = await nodes.start(), await nodes.start()
    await a.deploy(one_task())
    await b.start()
    peer = await b.connect("work", max_tasks=2, lock_duration_ms=600_000)
    instance_id = await a.start()
    while len(peer.holding) < 2:
        await peer.next(Tasks)
    nodes.lose_hints()
    await a.node.cancel_instance(instance_id, "enough")
    await a.deploy(one_task('name="newer"'))
    assert len(b.node.leases) == 2
    b.store.hear(Hint(missed=True))
    await trio.sleep(0.05)
    assert len(b.node.leases) == 1
    assert (await peer.next(Revoked)).leases[0].reason == "lost"
