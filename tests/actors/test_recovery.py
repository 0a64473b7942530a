"""The engine may stop anywhere: what was acknowledged is there afterwards, and all ends as if nothing had happened."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import msgspec
import pytest
import trio

from stellwerk.actors.views import state_of
from stellwerk.core.evolve import fold
from stellwerk.core.history import encode_state
from stellwerk.errors import StellwerkError
from stellwerk.wire.messages import Ack, BpmnErrorReport, Subscribe, Tasks

# --- a model with a bit of everything ------------------------------------------------------------------------------


def undoable(name: str) -> str:
    return f"""<serviceTask id="{name}" stellwerk:topic="{name}"/>
      <boundaryEvent id="undo-{name}" attachedToRef="{name}"><compensateEventDefinition/></boundaryEvent>
      <serviceTask id="no-{name}" stellwerk:topic="no-{name}" isForCompensation="true"/>
      <association id="way-{name}" sourceRef="undo-{name}" targetRef="no-{name}" associationDirection="One"/>"""


def timer(event_id: str, text: str) -> str:
    return f"""<intermediateCatchEvent id="{event_id}"><timerEventDefinition><timeDuration>{text}</timeDuration>
      </timerEventDefinition></intermediateCatchEvent>"""


TOPICS = ("charge", "pack", "ship", "check", "confirm", "last", "no-charge", "no-pack", "no-ship", "no-confirm")


@pytest.fixture
def mixed(flow: Any) -> str:
    """Fork and join, a subprocess, a timer, a message, boundary events, a business error and its compensation."""
    inner = flow("is pack ship ie").replace("flow.", "inner.")
    body = f"""<startEvent id="s"/><parallelGateway id="fork"/>{undoable("charge")}
      <subProcess id="sub"><startEvent id="is"/>{undoable("pack")}{undoable("ship")}<endEvent id="ie"/>{inner}
      </subProcess>
      {timer("wait", "PT5S")}<receiveTask id="paid" messageRef="paid"/><serviceTask id="check" stellwerk:topic="check"/>
      <parallelGateway id="join"/>{undoable("confirm")}
      <boundaryEvent id="never" attachedToRef="confirm"><timerEventDefinition><timeDuration>PT10H</timeDuration>
      </timerEventDefinition></boundaryEvent><boundaryEvent id="late" attachedToRef="sub" cancelActivity="false">
      <timerEventDefinition><timeDuration>PT10H</timeDuration></timerEventDefinition></boundaryEvent>
      <serviceTask id="last" stellwerk:topic="last"/><endEvent id="e"/><endEvent id="e2"/><endEvent id="e3"/>"""
    return str(
        body + flow("s fork charge sub join", "fork wait paid check join", "join confirm last e", "never e2", "late e3")
    )


@attrs.define
class Driver:
    """Does all that people and workers do for one instance of `mixed`; whatever is in doubt it does again."""

    body: str
    peer: Any = None
    crashes: int = 0

    async def run(self, site: Any, crash: Any) -> Any:
        """To the end, on one node after the other. Gives the last one."""
        world = await site.start(pause_point=crash)
        while True:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._give_up, site, scope)
                    try:
                        await self._drive(world)
                    except StellwerkError:
                        await site.ended.wait()
                    else:
                        nursery.cancel_scope.cancel()
                        return world
            self.crashes += 1
            crash.restarted()
            world = await site.start(pause_point=crash)

    @staticmethod
    async def _give_up(site: Any, scope: trio.CancelScope) -> None:
        await site.ended.wait()
        scope.cancel()

    async def _drive(self, world: Any) -> None:
        if not await world.node.definitions():
            await world.deploy(self.body)
        instance_id = await world.node.start_instance("p", {}, business_key="k", request_id="r-1")
        await world.node.publish_message("paid", "k", {"amount": 3}, message_id="m-1")
        await self._connect(world)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work)
            summary = await world.node.wait_for_end(instance_id, timeout_seconds=600)
            assert summary.status == "FAILED"
            nursery.cancel_scope.cancel()

    async def _connect(self, world: Any) -> None:
        if self.peer is None:
            self.peer = await world.connect(*TOPICS)
            return
        self.peer.world = world
        self.peer.messages.clear()
        self.peer.holding.clear()
        await self.peer.connect()
        for topic in TOPICS:
            await self.peer.say(Subscribe(topic))

    async def _work(self) -> None:
        while True:
            frame = await self.peer.next(Tasks)
            for offer in frame.tasks:
                if offer.element_id == "last":
                    ref = self.peer.ref()
                    raw = msgspec.Raw(b"{}")
                    await self.peer.say(
                        BpmnErrorReport(ref, offer.task_id, offer.fence, "broke", None, variables=raw, details=raw)
                    )
                    await self.peer.answer(offer, ref)
                else:
                    await self.peer.complete(offer, **{offer.element_id.replace("-", "_"): "done"})


@attrs.define
class Crash:
    """Kills the node at the given pause points, counted over all nodes, or at every so-manieth of each node."""

    site: Any
    at: int = -1
    every: int = 0
    name: str = "commit"
    seen: int = 0
    seen_here: int = 0

    async def __call__(self, name: str) -> None:
        if not name.endswith(self.name):
            return
        self.seen += 1
        self.seen_here += 1
        if self.seen == self.at or (self.every and self.seen_here == self.every):
            self.site.kill()
            await trio.lowlevel.checkpoint()

    def restarted(self) -> None:
        self.seen_here = 0


async def end_state(world: Any) -> dict[str, Any]:
    """All that must be the same however often the engine was stopped."""
    (summary,) = await world.node.instances()
    view = await world.node.view(summary.instance_id)
    facts = [fact for step in view.steps for fact in step.facts]
    assert [step.version for step in view.steps] == list(range(1, summary.version + 1))
    stored = await world.store.load_instance(summary.instance_id)
    assert encode_state(state_of(stored)) == encode_state(fold(None, facts))
    return {
        "status": summary.status,
        "variables": view.variables,
        "tokens": view.tokens,
        "tasks": Counter((task.element_id, task.state.value) for task, _ in view.tasks),
        "facts": Counter((type(fact).__name__, getattr(fact, "node_id", None)) for fact in facts),
        "undone": [
            fact.node_id for fact in facts if type(fact).__name__ == "TokenEntered" and fact.node_id.startswith("no-")
        ],
        "timers": await world.store.due_timers(2**50, 10),
        "incidents": list(view.incidents),
        "messages": await world.store.matched_messages(0, 10),
    }


async def uninterrupted(site: Any, mixed: str) -> tuple[dict[str, Any], int]:
    crash = Crash(site)
    world = await Driver(mixed).run(site, crash)
    return await end_state(world), crash.seen


async def test_P2_the_uninterrupted_run(autojump_clock: object, site: Any, mixed: str) -> None:
    state, commits = await uninterrupted(site, mixed)
    assert state["status"] == "FAILED"
    assert state["undone"] == ["no-confirm", "no-ship", "no-pack", "no-charge"]
    assert commits > 30


@pytest.mark.parametrize("part", range(6))
async def test_P2_fault_131_a_crash_at_any_commit_changes_nothing(
    autojump_clock: object, site_factory: Any, mixed: str, part: int
) -> None:
    """Before each commit and after it, when nobody has heard of it yet."""
    expected, commits = await uninterrupted(site_factory(), mixed)
    for at in range(1 + part, commits + 1, 6):
        site = site_factory()
        driver = Driver(mixed)
        world = await driver.run(site, Crash(site, at=at))
        assert driver.crashes == 1, at
        assert await end_state(world) == expected, at


@pytest.mark.parametrize("every", [9, 12, 15])
async def test_P2_crashes_again_and_again_change_nothing(
    autojump_clock: object, site_factory: Any, mixed: str, every: int
) -> None:
    expected, _ = await uninterrupted(site_factory(), mixed)
    site = site_factory()
    driver = Driver(mixed)
    world = await driver.run(site, Crash(site, every=every))
    assert driver.crashes > 1
    assert await end_state(world) == expected


async def test_P2_a_crash_between_lease_and_push_only_costs_time(
    autojump_clock: object, site_factory: Any, mixed: str
) -> None:
    expected, _ = await uninterrupted(site_factory(), mixed)
    for at in (1, 2, 4):
        site = site_factory()
        driver = Driver(mixed)
        world = await driver.run(site, Crash(site, at=at, name="lease"))
        assert await end_state(world) == expected


# --- snapshots -----------------------------------------------------------------------------------------------------

LOOP = """<startEvent id="s"/><exclusiveGateway id="again"/><serviceTask id="work" stellwerk:topic="work"/>
  <exclusiveGateway id="enough" default="back"/><endEvent id="e"/>
  <sequenceFlow id="back" sourceRef="enough" targetRef="again"/>
  <sequenceFlow id="out" sourceRef="enough" targetRef="e"><conditionExpression>{}</conditionExpression>
  </sequenceFlow>"""


async def test_E1_a_long_instance_comes_back_from_its_snapshot(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start()
    await world.deploy(LOOP.format("=count = 250") + flow("s again work enough"))
    instance_id = await world.start(count=0)
    peer = await world.connect("work")
    for count in range(1, 251):
        if count in (99, 100, 101, 120, 201):
            peer.drop()
            world = await site.restart()
            stored = await world.store.load_instance(instance_id)
            assert len(stored.steps) < 100
            assert (stored.snapshot is not None) == (stored.version >= 100)
            peer = await world.connect("work", worker_id=f"after-{count}")
        offer = await peer.task()
        assert msgspec.json.decode(bytes(offer.variables)) == {"count": count - 1}
        assert isinstance(await peer.complete(offer, count=count), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    state = await end_state(world)
    assert state["variables"] == {"count": 250}


async def test_E1_what_lives_in_memory_is_what_history_says(autojump_clock: object, world: Any, mixed: str) -> None:
    """After every step of the mixed model."""
    checked = 0
    node = world.node
    heard = node.stepped

    def stepped(instance_id: str, state: Any, *rest: Any) -> None:
        nonlocal checked
        steps = list(world.store._steps(instance_id, after=0))
        assert encode_state(fold(None, [fact for step in steps for fact in step.facts])) == encode_state(state)
        checked += 1
        heard(instance_id, state, *rest)

    node.stepped = stepped
    driver = Driver(mixed)
    await driver._drive(world)
    assert checked > 10
