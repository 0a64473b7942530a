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
from stellwerk.errors import Conflict, NotFound, StellwerkError, StoreUnavailable
from stellwerk.limits import Limits
from stellwerk.ports import Changeset, RefusedChangeset, RefusedGuard
from stellwerk.wire.messages import Ack, BpmnErrorReport, Complete, Nack, Subscribe, Tasks

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
      <subProcess id="sub"><startEvent id="is"/>{undoable("pack")}{undoable("ship")}<endEvent id="ie"/>{inner}</subProcess>
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
    assert encode_state(state_of(stored)) == encode_state(fold(None, None, facts))
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
  <sequenceFlow id="out" sourceRef="enough" targetRef="e"><conditionExpression>{}</conditionExpression></sequenceFlow>"""


async def test_E1_a_long_instance_comes_back_from_its_snapshot(autojump_clock: object, site: Any, flow: Any) -> None:
    world = await site.start()
    await world.deploy(LOOP.format("${count == 250}") + flow("s again work enough"))
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
        steps = [step for step in world.store._steps(instance_id, after=0)]
        assert encode_state(fold(None, None, [fact for step in steps for fact in step.facts])) == encode_state(state)
        checked += 1
        heard(instance_id, state, *rest)

    node.stepped = stepped
    driver = Driver(mixed)
    await driver._drive(world)
    assert checked > 10


# --- the store fails, and many at once -----------------------------------------------------------------------------

WIDE = """<startEvent id="s"/><parallelGateway id="fork"/>{}<parallelGateway id="join"/><endEvent id="e"/>"""


@pytest.fixture
def wide(flow: Any) -> Any:
    def draw(width: int, element: str = '<serviceTask id="{}" stellwerk:topic="work"/>') -> str:
        names = [f"t{number}" for number in range(width)]
        body = WIDE.format("".join(element.format(name) for name in names))
        return str(body + flow("s fork", *(f"fork {name} join" for name in names), "join e"))

    return draw


async def test_a_wide_instance_needs_few_commits(autojump_clock: object, world: Any, wide: Any) -> None:
    await world.deploy(wide(200))
    instance_id = await world.start()
    peer = await world.connect("work", max_tasks=200)
    offers: list[Any] = []
    while len(offers) < 200:
        offers += (await peer.next(Tasks)).tasks
    before = len(world.store.transactions)
    await peer.say(*(Complete(number + 1, offer.task_id, offer.fence) for number, offer in enumerate(offers)))
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    steps = [
        operation
        for operations in world.store.transactions[before:]
        for operation in operations
        if isinstance(operation, Changeset)
    ]
    assert len(steps) <= 3
    for number in range(200):
        assert isinstance(await peer.next(Ack, lambda ack, ref=number + 1: ack.ref == ref), Ack)


async def test_a_full_mailbox_makes_senders_wait_and_loses_nothing(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, wide: Any
) -> None:
    world = await start_node(nursery, limits=Limits(mailbox_commands_max=3))
    await world.deploy(wide(40, '<userTask id="{}"/>'))
    instance_id = await world.start()
    rows = await world.node.user_tasks()
    done: list[str] = []

    async def complete(row: Any) -> None:
        await world.node.complete_user_task(row["user_task_id"], {row["element_id"]: True})
        done.append(row["element_id"])

    world.store.gate = trio.Event()
    async with trio.open_nursery() as people:
        for row in rows:
            people.start_soon(complete, row)
        await trio.sleep(1)
        assert not done
        assert "3/3" in repr(world.node._instances._live[instance_id][0].mailbox)
        people.start_soon(world.node.publish_message, "else", "where", {})
        await trio.sleep(1)
        world.store.gate.set()
    assert len(done) == 40
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "COMPLETED"
    assert len((await world.node.view(instance_id)).variables) == 40
    nursery.cancel_scope.cancel()


async def test_cancelling_gets_through_a_full_mailbox(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, wide: Any
) -> None:
    world = await start_node(nursery, limits=Limits(mailbox_commands_max=3))
    await world.deploy(wide(40, '<userTask id="{}"/>'))
    instance_id = await world.start()
    answers: Counter[str] = Counter()

    async def complete(row: Any) -> None:
        try:
            await world.node.complete_user_task(row["user_task_id"], {})
        except (Conflict, NotFound) as refused:
            answers[refused.code] += 1
        else:
            answers["done"] += 1

    world.store.gate = trio.Event()
    async with trio.open_nursery() as people:
        for row in (await world.node.user_tasks())[:20]:
            people.start_soon(complete, row)
        await trio.sleep(1)
        people.start_soon(world.node.cancel_instance, instance_id, "enough")
        await trio.sleep(1)
        world.store.gate.set()
    assert answers.total() == 20
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "CANCELLED"
    nursery.cancel_scope.cancel()


async def test_a_store_that_is_gone_for_a_while_answers_errors_and_loses_nothing(
    autojump_clock: object, world: Any, wide: Any
) -> None:
    await world.deploy(wide(3))
    instance_id = await world.start()
    peer = await world.connect("work", max_tasks=3, lock_duration_ms=600_000)
    offers: list[Any] = []
    while len(offers) < 3:
        offers += (await peer.next(Tasks)).tasks
    assert isinstance(await peer.complete(offers[0], a=1), Ack)
    world.store.unavailable = True
    answer = await peer.complete(offers[1], b=2)
    peer.holding[offers[1].task_id] = offers[1].fence
    assert isinstance(answer, Nack)
    assert (answer.code, answer.retryable) == ("unavailable", True)
    for ask in (world.start(), world.node.cancel_instance(instance_id, "no"), world.node.publish_message("m", "k", {})):
        with pytest.raises(StoreUnavailable):
            await ask
    await trio.sleep(20)
    world.store.unavailable = False
    assert (await world.node.view(instance_id)).variables == {"a": 1}
    for offer in offers[1:]:
        assert isinstance(await peer.complete(offer, b=2), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    again = await world.start()
    frame = await peer.next(Tasks)
    assert frame.tasks[0].process_instance_id == again


async def test_one_result_that_the_store_cannot_hold_is_refused_alone(
    autojump_clock: object, world: Any, wide: Any
) -> None:
    """The others of its batch are done, and the instance works on."""
    await world.deploy(wide(5))
    instance_id = await world.start()
    peer = await world.connect("work", max_tasks=5, lock_duration_ms=600_000)
    offers: list[Any] = []
    while len(offers) < 5:
        offers += (await peer.next(Tasks)).tasks
    poison = offers[1].task_id
    intact = world.store.transact

    async def transact(operations: Any) -> Any:
        outcomes = list(await intact([item for item in operations if not is_poison(item)]))
        return [
            RefusedChangeset(RefusedGuard.DATA, "ValueError: too odd") if is_poison(item) else outcomes.pop(0)
            for item in operations
        ]

    def is_poison(operation: Any) -> bool:
        return isinstance(operation, Changeset) and any(ending.task_id == poison for ending in operation.endings)

    world.store.transact = transact
    await peer.say(*(Complete(number + 1, offer.task_id, offer.fence) for number, offer in enumerate(offers)))
    for number, offer in enumerate(offers):
        answer = await peer.answer(offer, number + 1)
        assert isinstance(answer, Nack if offer.task_id == poison else Ack), number
    world.store.transact = intact
    peer.holding[poison] = offers[1].fence
    assert isinstance(await peer.complete(offers[1]), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"


async def test_passivated_instances_take_commands_as_they_leave(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, wide: Any
) -> None:
    """Far more instances than may live at once, with small mailboxes."""
    world = await start_node(nursery, limits=Limits(mailbox_commands_max=1, live_instances_max=2, instance_idle_ms=1))
    await world.deploy(wide(6, '<userTask id="{}"/>'))
    instances = [await world.start() for _ in range(10)]
    async with trio.open_nursery() as people:
        for number, row in enumerate(await world.node.user_tasks()):
            people.start_soon(_later, number % 7 / 3, world.node.complete_user_task, row["user_task_id"], {})
    for instance_id in instances:
        assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
    await trio.sleep(5)
    assert world.node.statistics()["instances_live"] == 0
    nursery.cancel_scope.cancel()


async def _later(seconds: float, function: Any, *arguments: Any) -> None:
    await trio.sleep(seconds)
    await function(*arguments)
