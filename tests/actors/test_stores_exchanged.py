"""The database behind the engine can be exchanged: nobody outside can tell which one it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from stellwerk.actors.views import state_of
from stellwerk.core.external_task import Holder
from stellwerk.core.history import encode_state
from stellwerk.errors import NotFound
from stellwerk.ports import FetchAndLock
from stellwerk.wire.messages import Ack, BpmnErrorReport, Extend, Fail, Holding, Release, Subscribe, Tasks

MakeSite = Callable[[trio.Nursery, str], Any]
NOTHING = msgspec.Raw(b"{}")
TOPICS = ("charge", "ship", "check", "refund")


@pytest.fixture
def model(flow: Any) -> str:
    timer = "<timerEventDefinition><timeDuration>{}</timeDuration></timerEventDefinition>"
    body = f"""<startEvent id="s"/><parallelGateway id="fork"/>
      <serviceTask id="charge" stellwerk:topic="charge" stellwerk:priority="=amount"/>
      <boundaryEvent id="undo" attachedToRef="charge"><compensateEventDefinition/></boundaryEvent>
      <serviceTask id="refund" stellwerk:topic="refund" isForCompensation="true"/>
      <association id="way" sourceRef="undo" targetRef="refund" associationDirection="One"/>
      <serviceTask id="ship" stellwerk:topic="ship" stellwerk:retries="2" stellwerk:lockExpiriesMax="2"/>
      <boundaryEvent id="late" attachedToRef="ship" cancelActivity="false">{timer.format("PT20S")}</boundaryEvent>
      <userTask id="look"/><receiveTask id="paid" messageRef="paid"/><parallelGateway id="join"/>
      <intermediateCatchEvent id="wait">{timer.format("PT3S")}</intermediateCatchEvent>
      <serviceTask id="check" stellwerk:topic="check" stellwerk:singleTry="true"/>
      <endEvent id="e"/><endEvent id="e2"/>"""
    ways = "fork charge join", "fork ship join", "fork look join", "fork paid join"
    return str(body + flow("s fork", *ways, "join wait check e", "late e2"))


class Recorded:
    """All that can be seen from outside, in order, while a day passes on one kind of store."""

    def __init__(self, site: Any, model: str) -> None:
        self.site = site
        self.model = model
        self.seen: list[Any] = []
        self.world: Any = None

    async def say(self, peer: Any, *messages: Any) -> None:
        await peer.say(*messages)
        await wait_all_tasks_blocked()
        self.hear(peer)

    def hear(self, peer: Any) -> None:
        """What came since, in an order of its own: at one moment trio itself chooses who is first."""
        heard: list[Any] = []
        for message in peer.messages:
            heard += message.tasks if isinstance(message, Tasks) else [message]
        self.seen += [(trio.current_time(), peer.worker_id, item) for item in sorted(heard, key=repr)]
        peer.messages.clear()

    async def pass_time(self, peer: Any, seconds: float) -> None:
        await trio.sleep(seconds)
        await wait_all_tasks_blocked()
        self.hear(peer)

    def offer(self, peer: Any, topic: str) -> Any:
        """The newest one of that topic."""
        return next(offer for offer in reversed(peer.offers.values()) if offer.topic == topic)

    async def look(self) -> None:
        """Everything that the store can be asked for."""
        store = self.world.store
        for summary in reversed(await store.instances()):
            self.seen.append(summary)
            self.seen.append(encode_state(state_of(await store.load_instance(summary.instance_id))))
            self.seen += await store.history(summary.instance_id)
        for task in await store.tasks():
            self.seen += [task, *await store.attempts(task.task_id)]
        self.seen += [await store.due_timers(2**50, 100), await store.next_lock_expiry(), await store.lease_now()]
        self.seen += [*map(dict, await store.incidents()), *map(dict, await store.user_tasks())]
        self.seen += [[await store.ready_tasks(topic, 10) for topic in TOPICS]]
        self.seen += await store.definitions()

    async def play(self) -> list[Any]:
        world = self.world = await self.site.start()
        await world.deploy(self.model, attributes='stellwerk:failurePolicy="incident"')
        for number, amount in enumerate((5, 40, 17)):
            await world.node.start_instance("p", {"amount": amount}, business_key=str(number), request_id=str(number))
            await trio.sleep(0.001)
        await self.look()
        # A worker that pulls sees the urgent one first.
        ((pulled,),) = await world.store.transact([FetchAndLock(Holder("w", "b", 1, "s"), ("charge",), 1, 7_000)])
        self.seen.append(pulled)
        peer = await world.connect(lock_duration_ms=30_000)
        for topic in TOPICS:
            await self.say(peer, Subscribe(topic, max_tasks=3, lock_duration_ms=30_000))
        ship = self.offer(peer, "ship")
        await self.say(peer, Fail(1, ship.task_id, ship.fence, "no", retry_after_ms=2_500))
        await self.say(peer, Fail(2, ship.task_id, ship.fence, "no", retry_after_ms=2_500))
        await self.pass_time(peer, 4)
        again = self.offer(peer, "ship")
        assert (again.task_id, again.retries_left) == (ship.task_id, 1)
        await self.say(peer, Fail(3, again.task_id, again.fence, "no more"))
        await self.look()
        (incident,) = await world.node.incidents()
        await world.node.resolve_incident(incident["incident_id"], 2)
        await self.pass_time(peer, 5)
        for number in range(3):
            await trio.sleep(0.01)
            await world.node.publish_message("paid", str(number), {"paid": number}, message_id=f"m-{number}")
        for row in await world.node.user_tasks():
            await trio.sleep(0.01)
            await world.node.complete_user_task(row["user_task_id"], {"looked": row["user_task_id"]})
        charge = self.offer(peer, "charge")
        await self.say(peer, Extend(4, charge.task_id, charge.fence, 90_000))
        await self.say(peer, BpmnErrorReport(5, charge.task_id, charge.fence, "E", "oh", NOTHING, NOTHING))
        await self.say(peer, BpmnErrorReport(5, charge.task_id, charge.fence + 1, "E", "oh", NOTHING, NOTHING))
        await self.look()
        # The engine stops, and what the worker held it still has.
        peer.drop()
        world = self.world = peer.world = await self.site.restart()
        await self.look()
        welcome = await peer.connect()
        self.seen.append(welcome)
        for topic in TOPICS:
            await self.say(peer, Subscribe(topic, max_tasks=3, lock_duration_ms=30_000))
        for incident in await world.node.incidents():
            await world.node.resolve_incident(incident["incident_id"])
        await self.pass_time(peer, 12)
        kept = self.offer(peer, "ship")
        await self.say(peer, Release(6, kept.task_id, kept.fence, started=True))
        peer.holding = {}
        await self.say(peer, Holding(()))
        await self.look()
        await self._work_off(peer)
        with pytest.raises(NotFound):
            await world.node.resolve_incident("none")
        await self.look()
        return self.seen

    async def _work_off(self, peer: Any) -> None:
        for _ in range(12):
            await self.pass_time(peer, 4)
            for task_id, fence in sorted(peer.holding.items()):
                offer = peer.offers[task_id]
                assert offer.fence == fence
                answer = await peer.complete(offer, **{offer.element_id: trio.current_time()})
                self.seen.append(answer)
                assert isinstance(answer, Ack)
                await trio.sleep(0.01)
        statuses = [summary.status for summary in await self.world.store.instances()]
        assert statuses == ["COMPLETED"] * 3


def recorded(make_site: MakeSite, kind: str, model: str) -> list[Any]:
    async def run() -> list[Any]:
        async with trio.open_nursery() as nursery:
            seen = await Recorded(make_site(nursery, kind), model).play()
            nursery.cancel_scope.cancel()
        return seen

    return trio.run(run, clock=MockClock(autojump_threshold=0))


def comparable(value: Any) -> Any:
    """Raw JSON by its text."""
    if attrs.has(type(value)):
        return (type(value).__name__, [comparable(getattr(value, field.name)) for field in attrs.fields(type(value))])
    if isinstance(value, tuple | list):
        return [comparable(item) for item in value]
    return bytes(value) if isinstance(value, msgspec.Raw) else value


def test_L9_the_same_day_on_another_store_is_the_same_to_the_last_fence(make_site: MakeSite, model: str) -> None:
    """Every message, row, fence and step of history; workers that push and pull, failures, an incident, a restart."""
    memory, sqlite = recorded(make_site, "memory", model), recorded(make_site, "sqlite", model)
    assert len(memory) > 200
    for ours, theirs in zip(memory, sqlite, strict=True):
        assert comparable(ours) == comparable(theirs)
