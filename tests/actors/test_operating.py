"""What an operator asks of a node, and a node that only looks into a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from stellwerk.actors.incidents import IncidentFilter
from stellwerk.actors.node import NodeConfig, run_node
from stellwerk.errors import CallerError, Conflict, InvalidInput, NotFound, StoreUnavailable
from stellwerk.ports import InstanceFilter, TaskQuery
from stellwerk.wire.messages import Fail, Hello

WAITING = """<startEvent id="s"/><parallelGateway id="fork"/>
  <intermediateCatchEvent id="later"><timerEventDefinition><timeDuration>PT1S</timeDuration></timerEventDefinition>
  </intermediateCatchEvent>
  <intermediateCatchEvent id="paid"><messageEventDefinition messageRef="paid"/></intermediateCatchEvent>
  <serviceTask id="work" stellwerk:topic="work"/>"""
MAPPED = """<startEvent id="s"/><endEvent id="e"/>
  <serviceTask id="work" stellwerk:topic="work" stellwerk:retries="1"><extensionElements>
    <stellwerk:input source="=amount ** 1000" target="power"/></extensionElements></serviceTask>"""


@pytest.fixture
def start_offline() -> Callable[..., Any]:
    """Starts an offline node with the ports of a world, on that world's store."""

    async def start(nursery: trio.Nursery, world: Any) -> Any:
        return await nursery.start(run_node, world.node.ports, NodeConfig(is_offline=True))

    return start


@pytest.fixture
def start_keeping() -> Callable[..., Any]:
    """Starts a node that keeps ended instances for an hour."""

    async def start(nursery: trio.Nursery, world: Any) -> Any:
        return await nursery.start(run_node, world.node.ports, NodeConfig(ended_kept_ms=3_600_000))

    return start


async def everything_waits(world: Any, flow: Any) -> str:
    """An instance that waits for a timer, for a message, and for a worker that is gone."""
    await world.deploy(WAITING + flow("s fork later", "fork paid", "fork work"))
    peer = await world.connect("work", lock_duration_ms=1_000, reports=False)
    instance_id = await world.start()
    await peer.task()
    return str(instance_id)


async def test_what_ended_long_ago_goes_by_itself_where_that_is_wanted(
    autojump_clock: object, site_factory: Any, start_keeping: Callable[..., Any], nursery: trio.Nursery
) -> None:
    site = site_factory()
    world = await site.start()
    await world.deploy('<startEvent id="s"/>')
    for _ in range(250):
        await world.start()
    site.kill()
    await site.ended.wait()
    async with trio.open_nursery() as keeping_nursery:
        node = await start_keeping(keeping_nursery, world)
        await trio.sleep(3_500)
        assert len(await node.instances(limit=1_000)) == 250
        await trio.sleep(200)
        assert await node.instances() == []
        keeping_nursery.cancel_scope.cancel()


async def test_looking_into_a_file_starts_no_work_in_it(
    autojump_clock: object, site_factory: Any, flow: Any, start_offline: Any, nursery: trio.Nursery
) -> None:
    site = site_factory()
    world = await site.start()
    instance_id = await everything_waits(world, flow)
    site.kill()
    await site.ended.wait()
    async with trio.open_nursery() as offline_nursery:
        node = await start_offline(offline_nursery, world)
        await node.publish_message("paid", "", {})
        before = await node.view(instance_id)
        await trio.sleep(600)
        assert await node.view(instance_id) == before
        (task,) = await node.tasks(TaskQuery(state="LOCKED"))
        assert task.topic == "work"
        assert {token.node_id for token in before.tokens} == {"later", "paid", "work"}
        with pytest.raises(Conflict, match="offline"):
            await node.open_session(Hello("w", "b", 1, "test/1"))
        await node.set_variables(instance_id, {"a": 1})
        offline_nursery.cancel_scope.cancel()
    world = await site.start()
    await trio.sleep(5)
    view = await world.node.view(instance_id)
    assert view.variables == {"a": 1}, "what is asked for is done, and durable"
    assert {token.node_id for token in view.tokens} == {"work"}
    assert [task.state.value for task, _ in view.tasks] == ["READY"]


async def test_retry_leaves_open_what_the_instance_refuses(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start()
    await world.deploy(MAPPED + flow("s work e"), attributes='stellwerk:failurePolicy="incident"')
    peer = await world.connect("work", max_tasks=2)
    good, bad = [await world.start(amount=1) for _ in range(2)]
    for _ in range(2):
        offer = await peer.task()
        await peer.say(Fail(1, offer.task_id, offer.fence, "too small"))
        await peer.answer(offer, 1)
    opened = {}
    for instance_id in (good, bad):
        await world.node.wait_for_end(instance_id, timeout_seconds=5, or_incident=True)
        ((opened[instance_id],),) = [[row["incident_id"] for row in await world.node.incidents(instance_id)]]
    await world.node.set_variables(bad, {"amount": 10})
    peer.drop()
    progress: list[int] = []
    retried = await world.node.retry_incidents(IncidentFilter(process_key="p"), progress=progress.append)
    assert retried.requeued == [opened[good]]
    assert [(refused.incident_id, refused.error.code) for refused in retried.refused] == [(opened[bad], "conflict")]
    assert (progress[-1], retried.topics, retried.more) == (1, {"work"}, False)
    assert await world.node.unattended(retried.topics) == ["work"]
    assert [row["incident_id"] for row in await world.node.incidents()] == [opened[bad]]


@pytest.mark.parametrize("retries", [0, 2**31])
async def test_fault_86_number_of_retries_that_makes_no_sense_is_refused(
    autojump_clock: object, world: Any, retries: int
) -> None:
    with pytest.raises(InvalidInput, match="retries"):
        await world.node.retry_incidents(IncidentFilter(), retries=retries)


async def test_retry_says_when_the_store_cannot_write(autojump_clock: object, world: Any, flow: Any) -> None:
    """And leaves open what it could not re-queue, for the next attempt."""
    body = """<startEvent id="s"/><exclusiveGateway id="c"/><endEvent id="e"/><sequenceFlow id="f" sourceRef="c"
      targetRef="e"><conditionExpression>=a &gt; 0</conditionExpression></sequenceFlow>"""
    await world.deploy(body + flow("s c"))
    for _ in range(3):
        await world.node.wait_for_end(await world.start(), timeout_seconds=5, or_incident=True)
    opened = sorted(row["incident_id"] for row in await world.node.incidents())
    world.store.unavailable = True
    with pytest.raises(StoreUnavailable):
        await world.node.retry_incidents(IncidentFilter())
    world.store.unavailable = False
    assert sorted(row["incident_id"] for row in await world.node.incidents()) == opened
    assert (await world.node.retry_incidents(IncidentFilter())).requeued == opened


async def test_prune_lets_others_work_between(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    ended = [await world.start() for _ in range(250)]
    for instance_id in ended:
        await world.node.cancel_instance(instance_id, "not wanted")
    await trio.sleep(1)
    progress: list[int] = []

    def step(deleted: int) -> None:
        progress.append(deleted)
        if len(progress) == 1:
            world.nursery.start_soon(world.start)

    assert await world.node.prune(0, step) == 250
    assert progress == [100, 200, 250]
    (left,) = await world.node.instances(InstanceFilter(status="RUNNING"))
    assert await world.node.instances() == [left]
    with pytest.raises(InvalidInput, match="older_than_ms"):
        await world.node.prune(-1)


async def test_backup_by_the_node_is_written_where_it_is_asked_for(
    autojump_clock: object, make_site: Any, nursery: trio.Nursery, tmp_path: Path, one_task: Any
) -> None:
    world = await make_site(nursery, "sqlite").start()
    await world.deploy(one_task())
    progress: list[float] = []
    await world.node.backup(tmp_path / "copy.db", progress.append)
    assert progress[-1] == 1.0
    assert (tmp_path / "copy.db").stat().st_size > 0
    with pytest.raises(Conflict):
        await world.node.backup(tmp_path / "copy.db")
    nursery.cancel_scope.cancel()


async def test_what_is_not_there_is_not_found(autojump_clock: object, world: Any) -> None:
    node = world.node
    asked: list[Callable[[], Any]] = [
        lambda: node.view("x"),
        lambda: node.outcome("x"),
        lambda: node.history("x"),
        lambda: node.history_page("x"),
        lambda: node.trace("x"),
        lambda: node.replay("x"),
        lambda: node.task("x"),
        lambda: node.definition("x"),
        lambda: node.definition("x", 3),
        lambda: node.wait_for_end("x"),
    ]
    for ask in asked:
        with pytest.raises(NotFound, match="x"):
            await ask()
    with structlog.testing.capture_logs() as lines, pytest.raises(CallerError):
        await node.backup(Path("nowhere"))
    assert lines == []
