"""Two nodes on one PostgreSQL, in real time and in one run.

The polls behind the hints are so long here that nothing but a hint can make it in time; what has no hint says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from io import StringIO
from itertools import count
from typing import Any, TypeVar

import attrs
import msgspec
import pytest
import trio

from stellwerk.actors.node import Node, NodeConfig, NodeIdentity, run_node
from stellwerk.actors.polls import Poll, PollTopic
from stellwerk.actors.session import WorkerSession
from stellwerk.ports import (
    Changeset,
    Committed,
    DueTimer,
    Hint,
    InstanceSummary,
    Operation,
    Outcome,
    Ports,
    RefusedChangeset,
    RefusedGuard,
    StoredInstance,
    TaskQuery,
)
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.notices import Notices
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.logging import open_log
from stellwerk.system.threads import InlineRunner
from stellwerk.testing.databases import PostgresAccess
from stellwerk.wire.messages import (
    Ack,
    Complete,
    EngineMessage,
    Hello,
    Received,
    Revoked,
    Subscribe,
    TaskOffer,
    Tasks,
    WorkerMessage,
)

M = TypeVar("M")
NEVER = 600.0
IN_TIME = 5.0
"""On a machine that does something else as well; it takes some milliseconds."""
LOCK_MS = 600_000
GREETING = "a topic of nobody"
BPMN = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL"
  xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn" targetNamespace="t">
  <process id="p" isExecutable="true">{}</process></definitions>"""
POLLS = ("dispatcher.SCAN_EVERY_SECONDS", "clockwork.POLL_SECONDS", "reading._POLL_SECONDS")
CHECK_LEASES = "stellwerk.actors.neighbours._CHECK_LEASES_SECONDS"


class WatchedStore(PostgresStore):
    """Remembers what its node asked for, and can hold up its commits."""

    def __init__(self, dsn: str, node_id: str, lines: StringIO) -> None:
        super().__init__(
            PostgresConfig(dsn=dsn),
            clock=SystemClock(),
            entropy=SystemEntropy(),
            log=open_log(stream=lines),
            node_id=node_id,
        )
        self.heard: list[Hint] = []
        self.refused: list[RefusedGuard] = []
        self.claimed: list[str] = []
        self.steps_locked = self.leases_checked = 0
        self.instance_reads: list[str] = []
        self.before_changesets: Callable[[], Awaitable[None]] | None = None
        """Called before each batch that holds one."""
        self.answers = trio.Event()
        """Until it is set, nobody hears what became of a batch that holds a changeset."""
        self.answers.set()
        self.unheard = 0

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        has_changeset = any(isinstance(operation, Changeset) for operation in operations)
        if has_changeset and self.before_changesets is not None:
            await self.before_changesets()
        outcomes = await super().transact(operations)
        self.refused += [outcome.guard for outcome in outcomes if isinstance(outcome, RefusedChangeset)]
        if has_changeset:
            self.unheard += 1
            await self.answers.wait()
            self.unheard -= 1
        return outcomes

    async def step_locked(
        self, instance_id: str, decide: Callable[[StoredInstance | None], Changeset | None]
    ) -> Committed | RefusedChangeset | None:
        self.steps_locked += 1
        return await super().step_locked(instance_id, decide)

    async def claim_timers(self, now_ms: int, limit: int) -> tuple[Sequence[DueTimer], int | None]:
        due, next_ms = await super().claim_timers(now_ms, limit)
        self.claimed += [timer.timer_id for timer in due]
        return due, next_ms

    async def standing_leases(self, leases: Sequence[tuple[str, int]]) -> Any:
        standing = await super().standing_leases(leases)
        self.leases_checked += 1
        return standing

    async def instance(self, instance_id: str) -> InstanceSummary | None:
        summary = await super().instance(instance_id)
        self.instance_reads.append(instance_id)
        return summary

    async def hints(self) -> Hint:
        hint = await super().hints()
        self.heard.append(hint)
        return hint

    def heard_of(self, topic: str) -> bool:
        return any(topic in hint.topics for hint in self.heard)


@attrs.define(eq=False)
class World:
    node: Node
    store: WatchedStore
    nursery: trio.Nursery
    lines: StringIO

    async def deploy(self, *paths: str, **elements: str) -> None:
        await self.node.deploy([("p.bpmn", BPMN.format(process(*paths, **elements)).encode())])

    async def start(self, **variables: object) -> str:
        return await self.node.start_instance("p", dict(variables))

    async def completed(self, instance_id: str, seconds: float = IN_TIME) -> bool:
        ended = await self.node.wait_for_end(instance_id, timeout_seconds=seconds)
        return ended.status == "COMPLETED"

    async def heard(self, is_it: Callable[[Hint], bool]) -> None:
        with trio.fail_after(IN_TIME):
            while not any(map(is_it, self.store.heard)):
                await trio.sleep(0.002)


@attrs.define(eq=False)
class Peer:
    """The worker's end of a session, driven by hand. It confirms what it gets, and renews nothing: locks are long."""

    nursery: trio.Nursery
    hello: Hello
    session: WorkerSession
    confirms: bool = True
    messages: list[EngineMessage] = attrs.field(factory=list)
    holding: dict[str, TaskOffer] = attrs.field(factory=dict)
    arrived: trio.Event = attrs.field(factory=trio.Event)
    refs: count[int] = attrs.field(factory=lambda: count(1))

    async def pump(self) -> None:
        while (messages := await self.session.outgoing()) is not None:
            for message in messages:
                self.messages.append(message)
                if isinstance(message, Tasks) and self.confirms:
                    self.holding |= {offer.task_id: offer for offer in message.tasks}
                    await self.say(Received(message.delivery))
            self.arrived.set()
            self.arrived = trio.Event()

    async def say(self, *messages: WorkerMessage) -> None:
        await self.session.handle(messages)

    async def next(self, kind: type[M], where: Callable[[M], bool] = lambda _: True) -> M:
        """Taken out of what arrived. Several tasks may wait at a time."""
        with trio.fail_after(IN_TIME):
            while True:
                for position, message in enumerate(self.messages):
                    if isinstance(message, kind) and where(message):
                        del self.messages[position]
                        return message
                await self.arrived.wait()

    async def task(self) -> TaskOffer:
        (offer,) = (await self.next(Tasks)).tasks
        return offer

    async def complete(self, offer: TaskOffer, **variables: object) -> bool:
        """Whether it was acknowledged."""
        ref = next(self.refs)
        await self.say(Complete(ref, offer.task_id, offer.fence, msgspec.Raw(msgspec.json.encode(variables))))
        answer = await self.next(object, lambda message: getattr(message, "ref", None) == ref)
        del self.holding[offer.task_id]
        return isinstance(answer, Ack)

    async def work_off(self) -> None:
        """Each task at once and by itself, so that as many requests as possible meet."""

        async def complete(offer: TaskOffer) -> None:
            assert await self.complete(offer)

        async with trio.open_nursery() as nursery:
            while True:
                while not (frames := [message for message in self.messages if isinstance(message, Tasks)]):
                    await self.arrived.wait()
                for frame in frames:
                    self.messages.remove(frame)
                    for offer in frame.tasks:
                        nursery.start_soon(complete, offer)


def process(*paths: str, **elements: str) -> str:
    """A process along paths such as ``"s work e"``: s starts, e ends, all others are tasks of the topic that is their
    name up to a dot, unless `elements` has something else for them."""
    known = {"s": '<startEvent id="s"/>', "e": '<endEvent id="e"/>', **elements}
    nodes = dict.fromkeys(node for path in paths for node in path.split())
    tasks = {node: f'<serviceTask id="{node}" stellwerk:topic="{node.partition(".")[0]}"/>' for node in nodes}
    pairs = [pair for path in paths for pair in zip(path.split(), path.split()[1:], strict=False)]
    flows = (f'<sequenceFlow id="{a}-{b}" sourceRef="{a}" targetRef="{b}"/>' for a, b in pairs)
    return "".join(known.get(node, tasks[node]) for node in nodes) + "".join(flows)


# --- fixtures --------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Nodes:
    nursery: trio.Nursery
    dsn: str
    started: int = 0
    peers: int = 0

    async def start(self) -> World:
        self.started += 1
        world: World = await self.nursery.start(self._host, f"node-{self.started}")
        return world

    async def pair(self) -> tuple[World, World]:
        """Two that know of each other: whoever reported later has seen the other one, and who was heard is there."""
        a, b = await self.start(), await self.start()
        with trio.fail_after(IN_TIME):
            while not (a.store.heard_of(GREETING) and b.store.heard_of(GREETING)):
                for world in (a, b):
                    world.store.tell(Hint(topics=(GREETING,)))
                await trio.sleep(0.01)
        return a, b

    async def _host(self, node_id: str, *, task_status: trio.TaskStatus[World]) -> None:
        lines = StringIO()
        store = WatchedStore(self.dsn, node_id, lines)
        ports = Ports(
            clock=SystemClock(),
            entropy=SystemEntropy(),
            store=store,
            background=InlineRunner(),
            log=open_log(stream=lines),
            pause_point=_no_pause,
        )
        config = NodeConfig(identity=NodeIdentity(node_id=node_id, name=node_id))
        async with trio.open_nursery() as nursery:
            node: Node = await nursery.start(run_node, ports, config)
            task_status.started(World(node, store, nursery, lines))

    async def connect(self, world: World, *topics: str, max_tasks: int = 10, confirms: bool = True) -> Peer:
        self.peers += 1
        hello = Hello(f"worker-{self.peers}", f"boot-{self.peers}", 1, "test/1")
        return await self._connect(world, hello, topics, max_tasks, confirms)

    async def move(self, peer: Peer, world: World, *topics: str, max_tasks: int = 10) -> Peer:
        """The worker process connects to another node; it holds nothing."""
        hello = attrs.evolve(peer.hello, session_no=peer.hello.session_no + 1)
        return await self._connect(world, hello, topics, max_tasks, True)

    async def _connect(self, world: World, hello: Hello, topics: Sequence[str], max_tasks: int, confirms: bool) -> Peer:
        peer = Peer(world.nursery, hello, await world.node.open_session(hello), confirms)
        world.nursery.start_soon(peer.pump)
        await peer.say(*(Subscribe(topic, max_tasks=max_tasks, lock_duration_ms=LOCK_MS) for topic in topics))
        return peer


async def _no_pause(name: str) -> None:
    """Nothing stops here."""


@pytest.fixture
def long_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    for poll in POLLS:
        monkeypatch.setattr(f"stellwerk.actors.{poll}", NEVER)
    monkeypatch.setattr(CHECK_LEASES, NEVER)


@pytest.fixture
def no_hints(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, nobody is told anything."""
    return lambda: monkeypatch.setattr(Notices, "tell", lambda *_: None)


@pytest.fixture
async def nodes(nursery: trio.Nursery, postgres_dsn: str) -> Any:
    yield Nodes(nursery, postgres_dsn)
    nursery.cancel_scope.cancel()


async def facts(world: World, instance_id: str, name: str) -> int:
    view = await world.node.view(instance_id)
    assert [step.version for step in view.steps or ()] == list(range(1, view.summary.version + 1))
    return sum(type(fact).__name__ == name for step in view.steps or () for fact in step.facts)


# --- hints -----------------------------------------------------------------------------------------------------------


async def test_E5_work_that_one_node_creates_is_offered_to_a_worker_of_another(nodes: Nodes, long_polls: None) -> None:
    a, b = await nodes.pair()
    await a.deploy("s work e")
    peer = await nodes.connect(b, "work")
    for number in range(3):  # also when its dispatcher has been idle since
        instance_id = await a.start(n=number)
        offer = await peer.task()
        assert offer.process_instance_id == instance_id
        assert await peer.complete(offer, result=number)
        assert (await a.node.outcome(instance_id)).variables == {"n": number, "result": number}


async def test_rule_18_a_cancel_on_one_node_revokes_the_lease_held_through_another(
    nodes: Nodes, long_polls: None
) -> None:
    a, b = await nodes.pair()
    await a.deploy("s work e")
    peer = await nodes.connect(b, "work")
    instance_id = await a.start()
    offer = await peer.task()
    await a.node.cancel_instance(instance_id, "enough")
    (lease,) = (await peer.next(Revoked)).leases
    assert (lease.task_id, lease.fence, lease.reason) == (offer.task_id, offer.fence, "cancelled")


@pytest.mark.parametrize("hints", [True, False])
async def test_rule_7_a_start_by_key_takes_the_newest_version_that_another_node_deployed(
    nodes: Nodes, long_polls: None, no_hints: Callable[[], None], hints: bool
) -> None:
    a, b = await nodes.pair()
    await a.deploy("s first e")
    await b.heard(lambda hint: "p" in hint.process_keys)  # a late one would make it forget what it learns next
    await b.start()  # it knows which is the newest
    if not hints:
        no_hints()
    b.store.heard.clear()
    await a.deploy("s second e")
    if hints:
        await b.heard(lambda hint: "p" in hint.process_keys)
    instance_id = await b.start()
    (task,) = await b.node.tasks(TaskQuery(instance_id=instance_id))
    assert task.topic == "second"
    assert b.store.refused == ([] if hints else [RefusedGuard.DEFINITION]), "the hint spares a refusal"


async def test_waiting_on_one_node_for_an_instance_that_ends_on_another(nodes: Nodes, long_polls: None) -> None:
    a, b = await nodes.pair()
    await a.deploy("s work e")
    peer = await nodes.connect(b, "work")
    instance_id = await a.start()
    offer = await peer.task()

    async def wait() -> None:
        assert await a.completed(instance_id, NEVER)

    with trio.fail_after(IN_TIME):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            while instance_id not in a.store.instance_reads:
                await trio.sleep(0.002)
            assert await peer.complete(offer)


async def test_rule_18_after_the_listening_connection_was_terminated_nothing_stays_unnoticed(
    nodes: Nodes, long_polls: None, no_hints: Callable[[], None], monkeypatch: pytest.MonkeyPatch,
    postgres_server: PostgresAccess,
) -> None:  # fmt: skip
    a, b = await nodes.pair()
    await a.deploy("s work e")
    peer = await nodes.connect(b, "work")
    with monkeypatch.context() as deaf:
        deaf.setattr(Notices, "tell", lambda *_: None)
        missed = await a.start()
        assert not peer.holding, "nobody has told it"
        b.store.heard.clear()
        (ended,) = await trio.to_thread.run_sync(lambda: postgres_server.query(_TERMINATE, dsn=nodes.dsn))
        assert ended["application_name"] == "stellwerk node-2"
        assert (await peer.task()).process_instance_id == missed
        assert any(hint.missed for hint in b.store.heard)
    after = await a.start()
    assert (await peer.task()).process_instance_id == after


_TERMINATE = """
SELECT application_name, pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'stellwerk node-2' AND query ~ '^LISTEN|pg_notify' AND datname = current_database()"""


# --- steps -----------------------------------------------------------------------------------------------------------


async def test_rule_4_both_nodes_step_one_wide_instance(nodes: Nodes) -> None:
    """Whatever one of them decides is stale when it arrives, unless it holds the instance while it decides."""
    near, far = await nodes.pair()
    rows = range(6)
    paths = [f"fork {topic}.{n} {topic}.{n}.b join" for topic in ("near", "far") for n in rows]
    fork, join = ('<parallelGateway id="fork"/>', '<parallelGateway id="join"/>')
    await near.deploy("s fork", *paths, "join e", fork=fork, join=join)
    instance_id = await near.start()

    async def overtake() -> None:
        await near.node.set_variables(instance_id, {"near": near.store.steps_locked})

    far.store.before_changesets = overtake
    peers = [await nodes.connect(near, "near", max_tasks=6), await nodes.connect(far, "far", max_tasks=6)]
    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(peer.work_off)
        assert await near.completed(instance_id, 10)
        nursery.cancel_scope.cancel()
    tasks = await near.node.tasks(TaskQuery(instance_id=instance_id))
    assert [(task.state.value, task.attempt) for task in tasks] == [("COMPLETED", 1)] * 24
    assert await facts(far, instance_id, "TaskCompleted") == 24
    assert far.store.refused.count(RefusedGuard.VERSION) == 3 * far.store.steps_locked > 0


async def test_rule_10_room_for_a_birth_that_was_refused_is_given_back(nodes: Nodes, long_polls: None) -> None:
    a, b = await nodes.pair()
    await a.deploy("s human work e", human='<userTask id="human"/>')
    peer = await nodes.connect(a, "work", max_tasks=2)
    instance_id = await a.start()
    (row,) = await a.node.user_tasks(instance_id)
    rivals = count()

    async def overtake() -> None:
        number = next(rivals)
        if number < 2:
            await b.node.set_variables(instance_id, {"b": number})

    a.store.before_changesets = overtake
    await a.node.complete_user_task(str(row["user_task_id"]), {})
    assert a.store.refused == [RefusedGuard.VERSION] * 2
    offers = [await peer.task()]
    assert offers[0].attempt == 1
    for _ in range(2):  # it has room for one of them
        other = await a.start()
        (row,) = await a.node.user_tasks(other)
        await a.node.complete_user_task(str(row["user_task_id"]), {})
    offers.append(await peer.task())
    assert len(peer.holding) == 2
    assert await peer.complete(offers[0])
    await peer.task()
    assert {offer.attempt for offer in peer.holding.values()} == {1}


async def test_rule_10_what_a_worker_never_got_from_a_node_that_died_is_offered_again_at_once(
    nodes: Nodes, long_polls: None
) -> None:
    a, b = await nodes.pair()
    await a.deploy("s work e")
    peer = await nodes.connect(a, "work", confirms=False)
    instance_id = await a.start()
    lost = await peer.task()
    a.nursery.cancel_scope.cancel()
    moved = await nodes.move(peer, b, "work")
    offer = await moved.task()
    assert (offer.task_id, offer.process_instance_id) == (lost.task_id, instance_id)
    assert offer.fence > lost.fence
    assert await moved.complete(offer)
    assert await b.completed(instance_id)


async def test_rule_16_a_lease_whose_completion_is_under_way_is_not_called_lost(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node looks at its leases between the commit and its answer."""
    monkeypatch.setattr(CHECK_LEASES, 0.01)
    a, b = await nodes.pair()
    await a.deploy("s work e")
    peer = await nodes.connect(b, "work")
    instance_id = await a.start()
    offer = await peer.task()
    b.store.answers = trio.Event()
    async with trio.open_nursery() as nursery:

        async def complete() -> None:
            assert await peer.complete(offer)

        nursery.start_soon(complete)
        assert await a.completed(instance_id), "it is committed"
        looks = b.store.leases_checked
        with trio.fail_after(IN_TIME):
            while b.store.leases_checked < looks + 3:
                await trio.sleep(0.002)
        assert b.store.unheard == 1, "and not answered"
        b.store.answers.set()
    assert not [message for message in peer.messages if isinstance(message, Revoked)]


# --- tasks -----------------------------------------------------------------------------------------------------------


async def test_rule_21_tasks_that_both_nodes_know_of_are_done_once_each(nodes: Nodes) -> None:
    a, b = await nodes.pair()
    await a.deploy("s work e")
    started: list[str] = []

    async def start(world: World) -> None:
        for _ in range(40):
            started.append(await world.start())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, a)
        nursery.start_soon(start, b)
    peers = [await nodes.connect(world, "work", max_tasks=5) for world in (a, b, a, b)]
    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(peer.work_off)
        for instance_id in started:
            assert await a.completed(instance_id, 10)
        nursery.cancel_scope.cancel()
    tasks = await a.node.tasks(limit=200)
    assert sorted(task.instance_id for task in tasks) == sorted(started)
    assert {task.attempt for task in tasks} == {1}
    for instance_id in started:
        assert await facts(a, instance_id, "TaskCompleted") == 1


async def test_rule_21_a_busy_node_sees_older_tasks_of_others_also_without_hints(
    nodes: Nodes, no_hints: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own workers are never without work; it looks into the store every second, as it always does."""
    a, b = await nodes.pair()
    await a.deploy("s work e")
    peer = await nodes.connect(b, "work", max_tasks=1)
    await b.start()
    offer = await peer.task()
    no_hints()
    old = await a.start()
    with trio.fail_after(IN_TIME):
        while offer.process_instance_id != old:
            await b.start()
            assert await peer.complete(offer)
            offer = await peer.task()


# --- timers ----------------------------------------------------------------------------------------------------------

WAIT = """<intermediateCatchEvent id="wait"><timerEventDefinition><timeDuration>PT1S</timeDuration>
  </timerEventDefinition></intermediateCatchEvent>"""


async def test_rule_22_a_due_timer_fires_once_and_the_other_node_does_not_even_try(nodes: Nodes) -> None:
    a, b = await nodes.pair()
    await a.deploy("s wait e", wait=WAIT)
    instances = [await world.start() for _ in range(8) for world in (a, b)]
    for instance_id in instances:
        assert await b.completed(instance_id, 10)
    for instance_id in instances:
        assert await facts(a, instance_id, "TimerFired") == 1
    assert len(a.store.claimed) + len(b.store.claimed) == len(instances)
    assert len({*a.store.claimed, *b.store.claimed}) == len(instances)
    assert a.store.refused == b.store.refused == []


async def test_rule_22_timers_that_a_node_has_claimed_no_other_takes(nodes: Nodes) -> None:
    """Though all are due, and their instances have not stepped yet."""
    a, b = await nodes.pair()
    await a.deploy("s wait e", wait=WAIT)
    gate = trio.Event()
    instances = [await a.start() for _ in range(10)]
    a.store.before_changesets = b.store.before_changesets = gate.wait
    with trio.fail_after(IN_TIME):
        while len(a.store.claimed) + len(b.store.claimed) < len(instances):
            await trio.sleep(0.01)
    later_ms = a.node.ports.clock.wall_ms() + 1_000
    for world in (a, b):
        assert (await world.store.claim_timers(later_ms, 100))[0] == []
        assert len((await world.store.due_timers(later_ms, 100))[0]) == len(instances)
    gate.set()
    for instance_id in instances:
        assert await a.completed(instance_id)
        assert await facts(b, instance_id, "TimerFired") == 1


# --- workers that poll -----------------------------------------------------------------------------------------------


async def test_fault_10_a_task_that_one_node_creates_wakes_a_poll_on_another(nodes: Nodes, long_polls: None) -> None:
    a, b = await nodes.pair()
    await a.deploy("s work e")
    topics = (PollTopic(topic="work", lock_duration_ms=LOCK_MS),)
    for number in range(3):
        async with trio.open_nursery() as nursery:

            async def start(number: int = number) -> None:
                await trio.sleep(0.3)  # the other node has looked, and waits
                await a.start(n=number)

            nursery.start_soon(start)
            with trio.fail_after(IN_TIME):
                polled = await b.node.fetch_and_lock(Poll(worker_id="w", topics=topics, max_tasks=5, wait_ms=60_000))
        (task,) = polled.tasks
        await a.node.complete_task(task.task_id, "w", {"result": number}, fence=task.fence)
        assert (await b.node.outcome(task.instance_id)).variables == {"n": number, "result": number}


async def test_without_a_wait_a_poll_finds_what_another_node_created_before_and_each_task_once(
    nodes: Nodes, long_polls: None, no_hints: Callable[[], None]
) -> None:
    a, b = await nodes.pair()
    await a.deploy("s work e")
    no_hints()
    wanted = Poll(worker_id="w", topics=(PollTopic(topic="work", lock_duration_ms=LOCK_MS),), max_tasks=2)
    assert not (await b.node.fetch_and_lock(wanted)).tasks
    for _ in range(6):
        await a.start()
    got = [
        task.task_id for _ in range(2) for world in (b, a) for task in (await world.node.fetch_and_lock(wanted)).tasks
    ]
    assert len(set(got)) == len(got) == 6
