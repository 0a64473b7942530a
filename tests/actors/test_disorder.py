"""Everything goes wrong at random for a while; afterwards every instance comes to its end and no row is left over."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import Any

import attrs
import msgspec
import pytest
import trio

from stellwerk.actors.views import state_of
from stellwerk.core.evolve import fold
from stellwerk.core.history import encode_state
from stellwerk.errors import StellwerkError
from stellwerk.ports import InstanceFilter
from stellwerk.wire.messages import BpmnErrorReport, Complete, Fail, Received, Release, Tasks

TOPICS = ("work", "instead", "told", "check", "last", "no-work", "no-check")
INSTANCES = 8


def undoable(name: str, attributes: str = "") -> str:
    return f"""<serviceTask id="{name}" stellwerk:topic="{name}" {attributes}/>
      <boundaryEvent id="undo-{name}" attachedToRef="{name}"><compensateEventDefinition/></boundaryEvent>
      <serviceTask id="no-{name}" stellwerk:topic="no-{name}" stellwerk:retries="2" isForCompensation="true"/>
      <association id="way-{name}" sourceRef="undo-{name}" targetRef="no-{name}" associationDirection="One"/>"""


@pytest.fixture
def model(flow: Any) -> str:
    timer = "<timerEventDefinition><timeDuration>{}</timeDuration></timerEventDefinition>"
    body = f"""<startEvent id="s"/><parallelGateway id="fork"/>{undoable("work")}
      <boundaryEvent id="late" attachedToRef="work">{timer.format("PT15S")}</boundaryEvent>
      <boundaryEvent id="news" attachedToRef="work" cancelActivity="false"><messageEventDefinition messageRef="news"/>
      </boundaryEvent><serviceTask id="told" stellwerk:topic="told" stellwerk:singleTry="true"/>
      <serviceTask id="instead" stellwerk:topic="instead"/><exclusiveGateway id="one"/>
      <intermediateCatchEvent id="wait">{timer.format("PT7S")}</intermediateCatchEvent>
      <receiveTask id="paid" messageRef="paid"/>{undoable("check", 'stellwerk:retries="2"')}
      <parallelGateway id="join"/><serviceTask id="last" stellwerk:topic="last"/><endEvent id="e"/>
      <endEvent id="e2"/>"""
    flows = flow("s fork work one join", "late instead one", "fork wait paid check join", "join last e", "news told e2")
    return body + str(flows)


@attrs.define
class Disorder:
    site: Any
    model: str
    policy: str
    random: random.Random
    world: Any = None
    published: int = 0

    async def run(self) -> None:
        self.world = await self.site.start()
        await self.world.deploy(self.model, attributes=f'stellwerk:failurePolicy="{self.policy}"')
        for number in range(INSTANCES):
            await self.world.node.start_instance("p", {}, business_key=str(number), request_id=str(number))
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(self._bad_worker)
                nursery.start_soon(self._bad_days)
                await trio.sleep(self.random.uniform(5, 25))
                nursery.cancel_scope.cancel()
            self._heal()
            self.world = await self.site.restart()
        await self._come_to_the_end()

    def _heal(self) -> None:
        self.world.store.unavailable = False
        self.world.store.refuse_changesets = 0

    # --- what goes wrong -------------------------------------------------------------------------------------------

    async def _bad_worker(self) -> None:
        while True:
            try:
                peer = await self.world.connect(
                    *TOPICS, max_tasks=3, lock_duration_ms=6_000, reports=self.random.random() < 0.8
                )
                peer.confirms = self.random.random() < 0.9
                with trio.move_on_after(self.random.uniform(1, 12)):
                    while True:
                        for offer in (await peer.next(Tasks)).tasks:
                            await self._mistreat(peer, offer)
            except StellwerkError:
                await trio.sleep(0.2)
                continue
            peer.drop()

    async def _mistreat(self, peer: Any, offer: Any) -> None:
        await trio.sleep(self.random.choice((0, 0, 0.01, 0.5, 3)))
        ref, raw = peer.ref(), msgspec.Raw(b"{}")
        task = (offer.task_id, offer.fence)
        complete = Complete(ref, *task, msgspec.Raw(b'{"by":"%s"}' % offer.element_id.encode()))
        choices: list[tuple[int, list[Any]]] = [
            (50, [complete]),
            (5, [complete, attrs.evolve(complete, ref=peer.ref())]),
            (5, [complete, Fail(peer.ref(), *task, "both")]),
            (15, [Fail(ref, *task, "broke", retry_after_ms=self.random.choice((0, 100, 2_000)))]),
            (4, [Fail(ref, *task, "broke", retries=0)]),
            (4, [BpmnErrorReport(ref, *task, "E", "oh", variables=raw, details=raw)]),
            (10, [Release(ref, *task, started=self.random.random() < 0.5)]),
            (10, []),
            (4, [Received(99), attrs.evolve(complete, fence=offer.fence - 1)]),
        ]
        (messages,) = self.random.choices([item for _, item in choices], [weight for weight, _ in choices])
        if messages:
            await peer.say(*messages)
            if self.random.random() < 0.8:
                with trio.move_on_after(1):
                    await peer.answer(offer, ref)

    async def _bad_days(self) -> None:
        while True:
            await trio.sleep(self.random.uniform(0, 2))
            with suppress(StellwerkError):  # whatever was asked for is refused, on some days
                await self._bad_day()

    async def _bad_day(self) -> None:
        node, store = self.world.node, self.world.store
        match self.random.randrange(8):
            case 0:
                store.refuse_changesets = self.random.randrange(5)
            case 1:
                store.unavailable = True
                await trio.sleep(self.random.uniform(0, 3))
                store.unavailable = False
            case 2 | 3:
                name = self.random.choice(("news", "paid"))
                self.published += 1
                await node.publish_message(name, str(self.random.randrange(INSTANCES)), {"message": self.published})
            case 4:
                if self.random.random() < 0.2:
                    rows = await node.instances()
                    await node.cancel_instance(self.random.choice(rows).instance_id, "at random")
            case 5:
                store.gate = trio.Event()
                try:
                    await trio.sleep(self.random.uniform(0, 2))
                finally:
                    store.gate.set()
            case _:
                for incident in await node.incidents():
                    await node.resolve_incident(incident["incident_id"], retries=self.random.randint(1, 3))

    # --- and then does not -----------------------------------------------------------------------------------------

    async def _come_to_the_end(self) -> None:
        node = self.world.node
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._good_worker)
            for _ in range(60):
                running = await node.instances(InstanceFilter(status="RUNNING"))
                if not running:
                    break
                for row in running:
                    await node.publish_message("paid", row.business_key, {})
                for incident in await node.incidents():
                    await node.resolve_incident(incident["incident_id"])
                await trio.sleep(5)
            nursery.cancel_scope.cancel()

    async def _good_worker(self) -> None:
        peer = await self.world.connect(*TOPICS, max_tasks=20)
        while True:
            for offer in (await peer.next(Tasks)).tasks:
                await peer.complete(offer, by=offer.element_id)


@pytest.mark.parametrize("seed", range(10))
async def test_P2_fault_66_whatever_went_wrong_every_instance_ends(
    autojump_clock: object, site_factory: Any, model: str, seed: int
) -> None:
    site = site_factory()
    disorder = Disorder(site, model, ("incident", "compensate")[seed % 2], random.Random(seed))
    await disorder.run()
    world = disorder.world
    rows = await world.node.instances()
    assert len(rows) == INSTANCES
    assert "RUNNING" not in {row.status for row in rows}
    for row in rows:
        await check(world, row)
    await trio.sleep(10)
    assert world.node.statistics()["leases_held"] == 0
    assert await world.store.due_timers(2**50, 10) == ([], None)
    assert not await world.node.incidents()
    assert not await world.store.draining_ready(10)


async def check(world: Any, row: Any) -> None:
    view = await world.node.view(row.instance_id)
    facts = [fact for step in view.steps for fact in step.facts]
    assert [step.version for step in view.steps] == list(range(1, row.version + 1))
    stored = await world.store.load_instance(row.instance_id)
    assert encode_state(state_of(stored)) == encode_state(fold(None, facts))
    assert not view.tokens
    completed = Counter(fact.task_id for fact in facts if type(fact).__name__ == "TaskCompleted")
    assert set(completed.values()) <= {1}
    for task, _ in view.tasks:
        assert task.state.value in ("COMPLETED", "FAILED", "EXPIRED", "CANCELLED")
        if task.task_id in completed:
            assert task.state.value == "COMPLETED"
    fired = Counter(fact.timer_id for fact in facts if type(fact).__name__ == "TimerFired")
    assert set(fired.values()) <= {1}
    messages = Counter(fact.message_id for fact in facts if type(fact).__name__ == "MessageCorrelated")
    assert set(messages.values()) <= {1}
    ends = [type(fact).__name__ for fact in facts if type(fact).__name__.startswith("Instance")]
    assert len(ends) == 2
    created = {fact.task_id for fact in facts if type(fact).__name__ == "TaskCreated"}
    assert created == {task.task_id for task, _ in view.tasks}
