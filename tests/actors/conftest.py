"""A node on a memory store in virtual time, and a worker's end of the protocol, driven message by message."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeVar

import attrs
import msgspec
import pytest
import structlog
import trio
import trio.testing

from stellwerk.actors.node import Node, NodeConfig, NodeIdentity, run_node
from stellwerk.actors.polls import Poll, PolledTasks, PollTopic
from stellwerk.actors.session import WorkerSession
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.errors import StellwerkError, StoreUnavailable
from stellwerk.limits import Limits
from stellwerk.ports import (
    Changeset,
    Committed,
    DueTimer,
    Hint,
    NodeReport,
    NodeRow,
    Operation,
    Outcome,
    PausePoint,
    Ports,
    ReadyScan,
    RefusedChangeset,
    Store,
    StoredInstance,
)
from stellwerk.stores.memory import MemoryStore
from stellwerk.stores.sqlite.store import SqliteStore
from stellwerk.system.file_lock import FileLock
from stellwerk.system.threads import InlineRunner
from stellwerk.wire.messages import (
    Complete,
    EngineMessage,
    Hello,
    Holding,
    LeaseRef,
    Received,
    Subscribe,
    TaskOffer,
    Tasks,
    Welcome,
    WorkerMessage,
)

M = TypeVar("M")
EPOCH_MS = 1_767_225_600_000


class VirtualClock:
    """Wall time runs with trio's own clock, which the test moves; it may also be set like any other wall clock."""

    set_by_ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + self.set_by_ms + round(trio.current_time() * 1000)

    def monotonic(self) -> float:
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class SeededEntropy:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def fraction(self) -> float:
        return self._random.random()

    def uuid(self) -> str:
        return f"00000000-0000-4000-8000-{self._random.getrandbits(48):012x}"


async def no_pause(name: str) -> None:
    """Nothing stops here."""


@attrs.define
class World:
    """A node, its store, and what a test needs to talk to it."""

    node: Node
    store: Store
    clock: VirtualClock
    nursery: trio.Nursery
    peers: int = 0

    async def deploy(self, body: str, key: str = "p", attributes: str = "") -> None:
        await self.node.deploy([("test.bpmn", bpmn(body, key, attributes))])

    async def start(self, key: str = "p", **variables: object) -> str:
        return await self.node.start_instance(key, dict(variables))

    async def connect(self, *topics: str, **options: Any) -> Peer:
        """A worker with room for `max_tasks` of each topic, that reports every heartbeat unless told otherwise."""
        self.peers += 1
        peer = Peer(self, worker_id=options.pop("worker_id", f"worker-{self.peers}"), boot_id=f"boot-{self.peers}")
        await peer.connect(**{name: options.pop(name) for name in ("reports",) if name in options})
        for topic in topics:
            await peer.say(Subscribe(topic, **options))
        return peer


@attrs.define(eq=False)
class Peer:
    """The worker's end of a session, driven by hand."""

    world: World
    worker_id: str
    boot_id: str
    session_no: int = 0
    session: WorkerSession | None = None
    messages: list[EngineMessage] = attrs.field(factory=list)
    holding: dict[str, int] = attrs.field(factory=dict)
    offers: dict[str, TaskOffer] = attrs.field(factory=dict)
    refs: int = 0
    confirms: bool = True
    begun: tuple[LeaseRef, ...] | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    arrived: trio.Event = attrs.field(factory=trio.Event)
    subscribed: trio.Event = attrs.field(factory=trio.Event)

    async def connect(self, *, holding: dict[str, int] | None = None, reports: bool = True) -> Welcome:
        self.session_no += 1
        held = self.holding if holding is None else holding
        leases = tuple(LeaseRef(task_id, fence) for task_id, fence in held.items())
        hello = Hello(self.worker_id, self.boot_id, self.session_no, "test/1", holding=leases, begun=self.begun)
        self.session = await self.world.node.open_session(hello)
        self.scope = trio.CancelScope()
        self.world.nursery.start_soon(self._live, self.session, self.scope, reports)
        return await self.next(Welcome)

    async def _live(self, session: WorkerSession, scope: trio.CancelScope, reports: bool) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                if reports:
                    nursery.start_soon(self._report, session)
                await self._pump(session)
                nursery.cancel_scope.cancel()

    async def _pump(self, session: WorkerSession) -> None:
        while (messages := await session.outgoing()) is not None:
            for message in messages:
                if isinstance(message, Tasks):
                    await self._take(message)
                self.messages.append(message)
            self.arrived.set()
            self.arrived = trio.Event()

    async def _take(self, message: Tasks) -> None:
        for offer in message.tasks:
            self.holding[offer.task_id] = offer.fence
            self.offers[offer.task_id] = offer
        if self.confirms:
            await self.say(Received(message.delivery))

    async def _report(self, session: WorkerSession) -> None:
        """Every heartbeat; a subscription with a shorter lock makes it shorter at once."""
        while True:
            subscribed = self.subscribed
            with trio.move_on_after(session.heartbeat_ms / 1000):
                await subscribed.wait()
                continue
            await session.handle([Holding(tuple(LeaseRef(*held) for held in self.holding.items()))])

    async def say(self, *messages: WorkerMessage) -> None:
        assert self.session is not None
        await self.session.handle(messages)
        if any(isinstance(message, Subscribe) for message in messages):
            self.subscribed.set()
            self.subscribed = trio.Event()

    async def next(self, kind: type[M], where: Callable[[M], bool] = lambda message: True) -> M:
        """The next message of this kind, taken out of what arrived. Several tasks may wait at a time."""
        while True:
            for position, message in enumerate(self.messages):
                if isinstance(message, kind) and where(message):
                    del self.messages[position]
                    return message
            with trio.fail_after(600):
                await self.arrived.wait()

    async def task(self) -> TaskOffer:
        """The only task of the next frame."""
        frame = await self.next(Tasks)
        (offer,) = frame.tasks
        return offer

    def ref(self) -> int:
        self.refs += 1
        return self.refs

    async def complete(self, offer: TaskOffer, **variables: object) -> EngineMessage:
        """Complete, and give the answer."""
        ref = self.ref()
        await self.say(Complete(ref, offer.task_id, offer.fence, msgspec.Raw(msgspec.json.encode(variables))))
        return await self.answer(offer, ref)

    async def answer(self, offer: TaskOffer, ref: int) -> EngineMessage:
        answer: Any = await self.next(object, lambda message: getattr(message, "ref", None) == ref)
        if self.holding.get(offer.task_id) == offer.fence:
            del self.holding[offer.task_id]
        return answer  # type: ignore[no-any-return]

    def drop(self) -> None:
        """The connection breaks: neither side can say anything more."""
        assert self.session is not None
        self.scope.cancel()
        self.session.disconnected()


def bpmn(body: str, key: str = "p", attributes: str = "") -> bytes:
    """A process around `body`."""
    return f"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL"
      xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn" targetNamespace="t">
      <process id="{key}" isExecutable="true" {attributes}>{body}</process></definitions>""".encode()


ONE_TASK = """<startEvent id="s"/><serviceTask id="work" stellwerk:topic="work" {}/><endEvent id="e"/>
  <sequenceFlow id="f1" sourceRef="s" targetRef="work"/><sequenceFlow id="f2" sourceRef="work" targetRef="e"/>"""


@pytest.fixture
def task_of(flow: Any) -> Callable[[str], str]:
    """start → a task of that topic → end."""
    model = '<startEvent id="s"/><serviceTask id="work" stellwerk:topic="{}"/><endEvent id="e"/>'
    return lambda topic: str(model.format(topic) + flow("s work e"))


@pytest.fixture
def started_by(flow: Any) -> Callable[[str], str]:
    """A message of that name → a task of topic ``work`` → end."""
    model = """<startEvent id="s"><messageEventDefinition messageRef="{}"/></startEvent>
      <serviceTask id="work" stellwerk:topic="work"/><endEvent id="e"/>"""
    return lambda name: str(model.format(name) + flow("s work e"))


@pytest.fixture
def one_task() -> Callable[..., str]:
    """start → a task of topic ``work`` → end, with more attributes on the task if wanted."""
    return lambda attributes="": ONE_TASK.format(attributes)


class GatedStore(MemoryStore):
    """A store whose commits can be held up."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.gate = trio.Event()
        self.gate.set()
        self.refuse_changesets = 0
        self.unavailable = False
        """Nothing can be written."""
        self.transactions: list[Sequence[Operation]] = []

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        await self.gate.wait()
        if self.refuse_changesets and any(isinstance(operation, Changeset) for operation in operations):
            self.refuse_changesets -= 1
            raise StoreUnavailable("the disk is full")
        if self.unavailable:
            raise StoreUnavailable("the disk is gone")
        self.transactions.append(tuple(operations))
        return await super().transact(operations)


async def _start_node(
    nursery: trio.Nursery,
    store: Store | None = None,
    limits: Limits | None = None,
    pause_point: PausePoint = no_pause,
    seed: int = 1,
    config: NodeConfig | None = None,
    background: Any = None,
) -> World:
    clock = VirtualClock()
    used = store if store is not None else GatedStore(clock)
    ports = Ports(
        clock=clock,
        entropy=SeededEntropy(seed),
        store=used,
        background=background or InlineRunner(),
        log=structlog.get_logger(),
        pause_point=pause_point,
    )
    node: Node = await nursery.start(run_node, ports, config or NodeConfig(limits=limits or Limits()))
    return World(node, used, clock, nursery)


@pytest.fixture
def start_node() -> Callable[..., Awaitable[World]]:
    """Start a node with a store or limits of its own: ``await start_node(nursery, store=…, limits=…)``.
    ``background``: what runs its filters' patterns."""
    return _start_node


@pytest.fixture
async def world(nursery: trio.Nursery) -> AsyncIterator[World]:
    """For tests that also ask for ``autojump_clock``: pytest-trio takes it only from the test itself."""
    yield await _start_node(nursery)
    nursery.cancel_scope.cancel()


@attrs.define
class Site:
    """A store, and one node after the other on it. Each start takes a new nursery, which ends with the node."""

    nursery: trio.Nursery
    make_store: Callable[[], Store]
    starts: int = 0
    ended: trio.Event = attrs.field(factory=trio.Event)
    world: World | None = None

    async def start(self, *, limits: Limits | None = None, pause_point: PausePoint = no_pause) -> World:
        self.starts += 1
        self.ended = trio.Event()
        self.world = await self.nursery.start(self._host, limits, pause_point)
        return self.world

    async def _host(self, limits: Limits | None, pause_point: PausePoint, task_status: trio.TaskStatus[World]) -> None:
        try:
            async with trio.open_nursery() as nursery:
                world = await _start_node(nursery, self.make_store(), limits, pause_point, self.starts)
                task_status.started(world)
                await trio.sleep_forever()
        finally:
            self.ended.set()

    def kill(self) -> None:
        """Everything of the node stops where it stands; what was not committed is gone."""
        assert self.world is not None
        self.world.nursery.cancel_scope.cancel()

    async def restart(self, **options: Any) -> World:
        self.kill()
        await self.ended.wait()
        return await self.start(**options)


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[[trio.Nursery, str], Site]:
    """Makes a site with a store of its own, of kind ``memory`` or ``sqlite``, in any run of trio."""
    clock = VirtualClock()
    numbers = count()

    def make(nursery: trio.Nursery, kind: str) -> Site:
        if kind == "memory":
            return Site(nursery, cache(lambda: GatedStore(clock)))
        path = tmp_path / f"engine-{next(numbers)}.db"
        return Site(
            nursery,
            lambda: SqliteStore(path, runner=InlineRunner(), clock=clock, lock=FileLock(path), synchronous="NORMAL"),
        )

    return make


@pytest.fixture(params=["memory", "sqlite"])
async def site_factory(
    request: pytest.FixtureRequest, make_site: Callable[[trio.Nursery, str], Site], nursery: trio.Nursery
) -> AsyncIterator[Callable[[], Site]]:
    """Makes sites with a store of their own, on each kind of store. For tests that also ask for ``autojump_clock``."""
    yield lambda: make_site(nursery, request.param)
    nursery.cancel_scope.cancel()


@pytest.fixture
def site(site_factory: Callable[[], Site]) -> Site:
    return site_factory()


# --- several nodes -------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class SharedRows:
    """What the stores of several nodes have in common."""

    rows: MemoryStore
    stores: list[SharedStore] = attrs.field(factory=list)
    loses_hints: bool = False
    claims: dict[str, float] = attrs.field(factory=dict)
    """Timers, and until when nobody else gets them."""
    reports: dict[str, tuple[NodeReport, float]] = attrs.field(factory=dict)


class SharedStore:
    """One node's way to the rows: each transaction takes a while to get there, and its answer to come back."""

    is_shared = True

    def __init__(self, shared: SharedRows) -> None:
        self.seconds = 0.0005
        """One way."""
        self.scan_seconds = 0.0
        """How long what a scan read is under way."""
        self.told: list[Hint] = []
        self.steps_locked = 0
        self.steps_refused = 0
        self.reported = 0
        self.outlives_its_node = False
        """What is under way is committed although nobody waits for it any more."""
        self._shared = shared
        self._heard: list[Hint] = []
        self._something_heard = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared.rows, name)

    async def open(self) -> None:
        if not self._shared.stores:
            await self._shared.rows.open()
        self._shared.stores.append(self)

    async def close(self) -> None:
        self._shared.stores.remove(self)

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        with trio.CancelScope(shield=self.outlives_its_node):
            await trio.sleep(self.seconds)
            outcomes = await self._shared.rows.transact(operations)
            self.steps_refused += sum(isinstance(outcome, RefusedChangeset) for outcome in outcomes)
            await trio.sleep(self.seconds)
        return outcomes

    async def ready_tasks(self, topic: str, limit: int) -> ReadyScan:
        scan = await self._shared.rows.ready_tasks(topic, limit)
        await trio.sleep(self.scan_seconds)
        return scan

    async def load_instance(self, instance_id: str) -> StoredInstance | None:
        await trio.sleep(self.seconds)
        stored = await self._shared.rows.load_instance(instance_id)
        await trio.sleep(self.seconds)
        return stored

    async def step_locked(
        self, instance_id: str, decide: Callable[[StoredInstance | None], Changeset | None]
    ) -> Committed | RefusedChangeset | None:
        self.steps_locked += 1
        await trio.sleep(self.seconds)
        outcome = await self._shared.rows.step_locked(instance_id, decide)
        await trio.sleep(self.seconds)
        return outcome

    async def claim_timers(self, now_ms: int, limit: int) -> tuple[Sequence[DueTimer], int | None]:
        now, claims = trio.current_time(), self._shared.claims
        due, next_ms = await self._shared.rows.due_timers(now_ms, limit)
        free = [timer for timer in due if claims.get(timer.timer_id, 0) <= now]
        claims.update({timer.timer_id: now + 10 for timer in free})
        return free, next_ms

    async def standing_leases(self, leases: Sequence[tuple[str, int]]) -> Collection[tuple[str, int]]:
        tasks = [(await self._shared.rows.task(task_id), fence) for task_id, fence in leases]
        return {
            (task.task_id, fence)
            for task, fence in tasks
            if task is not None and task.state is TaskState.LOCKED and task.fence == fence
        }

    def tell(self, hint: Hint) -> None:
        self.told.append(hint)
        for other in self._shared.stores:
            if other is not self and not self._shared.loses_hints:
                other.hear(hint)

    def hear(self, hint: Hint) -> None:
        self._heard.append(hint)
        self._something_heard.set()

    async def hints(self) -> Hint:
        await self._something_heard.wait()
        heard, self._heard, self._something_heard = self._heard, [], trio.Event()
        due = [hint.timer_due_at_ms for hint in heard if hint.timer_due_at_ms is not None]
        return Hint(
            topics=tuple({topic for hint in heard for topic in hint.topics}),
            timer_due_at_ms=min(due, default=None),
            messages=any(hint.messages for hint in heard),
            process_keys=tuple({key for hint in heard for key in hint.process_keys}),
            revoked=tuple(revoked for hint in heard for revoked in hint.revoked),
            instances=tuple({instance_id for hint in heard for instance_id in hint.instances}),
            missed=any(hint.missed for hint in heard),
        )

    async def report_node(self, report: NodeReport) -> None:
        self._shared.reports[report.node_id] = (report, trio.current_time())
        self.reported += 1

    async def nodes(self) -> Sequence[NodeRow]:
        now = trio.current_time()
        return [
            NodeRow(report=report, seen_ms_ago=round((now - seen) * 1000))
            for _, (report, seen) in sorted(self._shared.reports.items())
        ]

    async def forget_node(self, node_id: str) -> None:
        del self._shared.reports[node_id]


@attrs.define(eq=False)
class Nodes:
    """Several nodes on one store, each in a nursery of its own."""

    nursery: trio.Nursery
    shared: SharedRows = attrs.field(factory=lambda: SharedRows(MemoryStore(VirtualClock())))
    started: int = 0

    def lose_hints(self) -> None:
        """From now on."""
        self.shared.loses_hints = True

    async def start(self, *, pause_point: PausePoint = no_pause, **config: Any) -> World:
        self.started += 1
        identity = NodeIdentity(node_id=f"node-{self.started}", name=f"host:{self.started}")
        world: World = await self.nursery.start(self._host, NodeConfig(identity=identity, **config), pause_point)
        world.peers = 100 * self.started
        return world

    async def _host(self, config: NodeConfig, pause_point: PausePoint, *, task_status: trio.TaskStatus[World]) -> None:
        async with trio.open_nursery() as nursery:
            store: Any = SharedStore(self.shared)
            seed = self.started
            task_status.started(await _start_node(nursery, store, None, pause_point, seed, config))
            await trio.sleep_forever()

    def kill(self, world: World) -> None:
        """Everything of the node stops where it stands; what was not committed is gone."""
        world.nursery.cancel_scope.cancel()


@pytest.fixture
async def nodes(nursery: trio.Nursery) -> AsyncIterator[Nodes]:
    """Starts nodes on one store: ``a, b = await nodes.start(), await nodes.start()``. For tests that also ask for
    ``autojump_clock``."""
    yield Nodes(nursery)
    nursery.cancel_scope.cancel()


def _flow(*paths: str) -> str:
    numbered = [pair for path in paths for pair in pairwise(path.split())]
    return "".join(
        f'<sequenceFlow id="flow.{number}.{source}.{target}" sourceRef="{source}" targetRef="{target}"/>'
        for number, (source, target) in enumerate(numbered)
    )


@pytest.fixture
def flow() -> Callable[..., str]:
    """The sequence flows along paths: ``flow("start task end", "boundary other")``."""
    return _flow


# --- workers that fetch ----------------------------------------------------------------------------------------------


@pytest.fixture
def poll() -> Callable[..., Awaitable[PolledTasks]]:
    """Fetch and lock: ``await poll(world, "work", max_tasks=…, wait_ms=…)``; other options are the topics'."""

    async def fetch(
        world: World, *topics: str, worker_id: str = "w", max_tasks: int = 10, wait_ms: int = 0, **options: Any
    ) -> PolledTasks:
        options.setdefault("lock_duration_ms", 30_000)
        asked = tuple(PollTopic(topic=topic, **options) for topic in topics)
        wanted = Poll(worker_id=worker_id, topics=asked, max_tasks=max_tasks, wait_ms=wait_ms)
        return await world.node.fetch_and_lock(wanted)

    return fetch


@attrs.define(eq=False)
class WaitingPoll:
    """A poll under way, of a client that may leave."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    answered: trio.Event = attrs.field(factory=trio.Event)
    polled: PolledTasks | None = None
    error: StellwerkError | None = None

    async def tasks(self) -> Sequence[ExternalTask]:
        with trio.fail_after(600):
            await self.answered.wait()
        assert self.polled is not None, self.error
        return self.polled.tasks


@pytest.fixture
def wait_for_tasks(nursery: trio.Nursery, poll: Any) -> Callable[..., Awaitable[WaitingPoll]]:
    """Like `poll`, in the background; for a minute unless something else is asked. Goes on once it waits."""

    async def begin(world: World, *topics: str, **options: Any) -> WaitingPoll:
        options.setdefault("wait_ms", 60_000)
        waiting = WaitingPoll()

        async def run() -> None:
            with waiting.scope:
                try:
                    waiting.polled = await poll(world, *topics, **options)
                except StellwerkError as error:
                    waiting.error = error
                waiting.answered.set()

        nursery.start_soon(run)
        await trio.sleep(0.05)
        return waiting

    return begin
