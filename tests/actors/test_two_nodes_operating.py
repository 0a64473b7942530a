"""Several nodes as an operator sees them: who is there, what nobody works on, and what happens when one dies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import structlog
import trio

from stellwerk.errors import StoreUnavailable
from stellwerk.ports import Hint, NodeReport, NodeRow
from stellwerk.stores.memory import MemoryStore
from stellwerk.wire.messages import Ack, Revoked, Subscribe, Tasks

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
        assert world.node.unattended(frozenset({"served", "work"})) == ["work"]
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

    async def report_node(self, report: NodeReport) -> Sequence[NodeRow]:
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
