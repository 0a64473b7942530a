"""Deliberate bugs that show only in a running node: batches of commands, messages, timers."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import attrs
import pytest
import structlog
import trio
import trio.testing

from simulations.mutants.registry import MUTANTS
from stellwerk.actors.instance import Envelope
from stellwerk.actors.mailbox import Reply
from stellwerk.actors.node import Node, NodeConfig, run_node
from stellwerk.core import commands as c
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import StellwerkError
from stellwerk.ports import LeaseAnswerKind, LeaseTasks, Ports, TaskLease
from stellwerk.stores.memory import MemoryStore
from stellwerk.system.threads import InlineRunner
from stellwerk.testing.store_contract.world import holder

EPOCH_MS = 1_767_225_600_000

MODEL = b"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL"
  xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn" targetNamespace="t"><process id="p" isExecutable="true">
  <startEvent id="s"/><parallelGateway id="split"/><serviceTask id="a" stellwerk:topic="a"/>
  <serviceTask id="b" stellwerk:topic="a"/><parallelGateway id="join"/><endEvent id="e"/>
  <sequenceFlow id="f1" sourceRef="s" targetRef="split"/><sequenceFlow id="f2" sourceRef="split" targetRef="a"/>
  <sequenceFlow id="f3" sourceRef="split" targetRef="b"/><sequenceFlow id="f4" sourceRef="a" targetRef="join"/>
  <sequenceFlow id="f5" sourceRef="b" targetRef="join"/><sequenceFlow id="f6" sourceRef="join" targetRef="e"/>
  </process><process id="late" isExecutable="true"><startEvent id="s2"/><intermediateCatchEvent id="t">
  <timerEventDefinition><timeDuration>PT5S</timeDuration></timerEventDefinition></intermediateCatchEvent>
  <endEvent id="e2"/><sequenceFlow id="g1" sourceRef="s2" targetRef="t"/>
  <sequenceFlow id="g2" sourceRef="t" targetRef="e2"/></process></definitions>"""


class _Clock:
    def wall_ms(self) -> int:
        return EPOCH_MS + round(trio.current_time() * 1000)

    def monotonic(self) -> float:
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class _Entropy:
    def __init__(self) -> None:
        self._random = random.Random(1)

    def integer(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def fraction(self) -> float:
        return self._random.random()

    def uuid(self) -> str:
        return f"00000000-0000-4000-8000-{self._random.getrandbits(48):012x}"


async def _no_pause(name: str) -> None:
    """Nothing stops here."""


@attrs.define
class _Site:
    node: Node
    store: MemoryStore

    async def forked(self) -> tuple[str, list[ExternalTask]]:
        """An instance whose two tasks are leased."""
        instance_id = await self.node.start_instance("p", {})
        wishes = tuple(TaskLease(task.task_id, holder(), 60_000) for task in await self.store.tasks())
        (leased,) = await self.store.transact([LeaseTasks(wishes)])
        assert isinstance(leased, tuple)
        return instance_id, [task for task in leased if isinstance(task, ExternalTask)]

    async def complete_at_once(self, *leases: tuple[ExternalTask, int]) -> list[str]:
        """Both in one step. → the answers."""
        replies: list[Reply[LeaseAnswerKind]] = []
        for task, fence in leases:
            replies.append(Reply())
            command = c.CompleteTask(task.task_id, fence, {task.element_id: 1}, "digest", "worker")
            await self.node.post(task.instance_id, Envelope(command, replies[-1]))
        return [await _told(reply) for reply in replies]

    async def status(self, instance_id: str) -> str:
        summary = await self.store.instance(instance_id)
        assert summary is not None
        return summary.status


async def _told(reply: Reply[LeaseAnswerKind]) -> str:
    with trio.move_on_after(30):
        try:
            return (await reply.wait()).value
        except StellwerkError as error:
            return error.code
    return "nothing"


@asynccontextmanager
async def _site() -> AsyncIterator[_Site]:
    clock = _Clock()
    store = MemoryStore(clock)
    ports = Ports(
        clock=clock,
        entropy=_Entropy(),
        store=store,
        background=InlineRunner(),
        log=structlog.get_logger(),
        pause_point=_no_pause,
    )
    async with trio.open_nursery() as nursery:
        node: Node = await nursery.start(run_node, ports, NodeConfig())
        await node.deploy([("p.bpmn", MODEL)])
        yield _Site(node, store)
        nursery.cancel_scope.cancel()


async def completing_both_in_one_step(site: _Site) -> object:
    instance_id, tasks = await site.forked()
    await site.complete_at_once(*((task, task.fence) for task in tasks))
    return await site.status(instance_id)


async def a_stale_one_before_a_good_one(site: _Site) -> object:
    _, (first, second) = await site.forked()
    answers = await site.complete_at_once((first, first.fence - 1), (second, second.fence))
    return answers, (await site.node.ports.store.task(second.task_id) or second).state.value


async def what_follows_a_refused_step(site: _Site) -> object:
    instance_id, (first, second) = await site.forked()
    await site.complete_at_once((first, first.fence - 1))
    await site.complete_at_once((second, second.fence))
    return await site.complete_at_once((first, first.fence)), await site.status(instance_id)


async def starting_twice_with_one_key(site: _Site) -> object:
    first = await site.node.start_instance("p", {}, request_id="key")
    return first == await site.node.start_instance("p", {}, request_id="key")


async def cancelling_twice(site: _Site) -> object:
    instance_id, _ = await site.forked()
    await site.node.cancel_instance(instance_id, "once")
    try:
        await site.node.cancel_instance(instance_id, "twice")
    except StellwerkError as error:
        return error.code
    return "done"


async def publishing_twice_with_one_id(site: _Site) -> object:
    for _ in range(2):
        await site.node.publish_message("m", "key", {}, message_id="id")
    return len(await site.store.waiting_messages(EPOCH_MS))


async def how_long_a_message_waits(site: _Site) -> object:
    await site.node.publish_message("m", "key", {})
    (kept,) = await site.store.waiting_messages(EPOCH_MS)
    return kept.expires_at_ms - EPOCH_MS > 60_000


async def when_a_timer_fires(site: _Site) -> object:
    instance_id = await site.node.start_instance("late", {})
    began = trio.current_time()
    while await site.status(instance_id) == "RUNNING":
        await trio.sleep(0.1)
    return trio.current_time() - began >= 5.0


NODE: Mapping[str, tuple[Callable[[_Site], Awaitable[object]], object]] = {
    "batch-decided-on-old-state": (completing_both_in_one_step, "COMPLETED"),
    "neighbours-acknowledged": (a_stale_one_before_a_good_one, (["lease_lost", "done"], "COMPLETED")),
    "neighbours-refused": (a_stale_one_before_a_good_one, (["lease_lost", "done"], "COMPLETED")),
    "refused-step-kept": (what_follows_a_refused_step, (["done"], "COMPLETED")),
    "start-not-idempotent": (starting_twice_with_one_key, True),
    "ended-instance-cancelled": (cancelling_twice, "ended"),
    "message-twice-by-id": (publishing_twice_with_one_id, 1),
    "message-kept-too-shortly": (how_long_a_message_waits, True),
    "timer-early": (when_a_timer_fires, True),
}


@pytest.mark.parametrize("name", sorted(NODE))
async def test_a_node_with_the_bug_does_something_else(name: str, autojump_clock: trio.testing.MockClock) -> None:
    experiment, expected = NODE[name]
    async with _site() as site:
        assert await experiment(site) == expected
    with MUTANTS[name].apply():
        async with _site() as site:
            assert await experiment(site) != expected


async def test_the_node_is_as_it_was_after_all_that(autojump_clock: trio.testing.MockClock) -> None:
    async with _site() as site:
        assert await completing_both_in_one_step(site) == "COMPLETED"
