"""Whatever happens to workers and engine: every instance that has not ended has something left that will move it on.

Hypothesis draws what happens, step by step; after each step the rows are looked through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import attrs
import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from stellwerk.actors.views import state_of
from stellwerk.core.external_task import TaskState
from stellwerk.core.instance import InstanceState, Token
from stellwerk.errors import StellwerkError
from stellwerk.ids import derived_id
from stellwerk.ports import TaskQuery
from stellwerk.wire.messages import BpmnErrorReport, Complete, Fail, Nack, Release, Revoked, Subscribe, Tasks

TOPICS = ("work", "instead", "told", "check", "inside", "last", "no-work", "no-inside")
LOCK_MS = 6_000
TICK_SECONDS = 1.1
"""The dispatcher's poll, and a bit."""
RECOVERY_SECONDS = 2.0
"""The longest pause before a service that failed starts again."""
TIMER = "<timerEventDefinition><timeDuration>{}</timeDuration></timerEventDefinition>"


def undoable(name: str, attributes: str = "") -> str:
    return f"""<serviceTask id="{name}" stellwerk:topic="{name}" {attributes}/>
      <boundaryEvent id="undo-{name}" attachedToRef="{name}"><compensateEventDefinition/></boundaryEvent>
      <serviceTask id="no-{name}" stellwerk:topic="no-{name}" stellwerk:retries="2" isForCompensation="true"/>
      <association id="way-{name}" sourceRef="undo-{name}" targetRef="no-{name}" associationDirection="One"/>"""


@pytest.fixture
def model(flow: Any) -> str:
    """A bit of everything that waits: tasks of all kinds, timers, messages, people, a subprocess, a join."""
    inner = flow("is inside ie").replace("flow.", "inner.")
    body = f"""<startEvent id="s"/><parallelGateway id="fork"/>{undoable("work")}
      <boundaryEvent id="late" attachedToRef="work">{TIMER.format("PT15S")}</boundaryEvent>
      <boundaryEvent id="news" attachedToRef="work" cancelActivity="false"><messageEventDefinition messageRef="news"/>
      </boundaryEvent><serviceTask id="told" stellwerk:topic="told" stellwerk:singleTry="true"/>
      <serviceTask id="instead" stellwerk:topic="instead" stellwerk:lockExpiriesMax="2"/><exclusiveGateway id="one"/>
      <subProcess id="sub"><startEvent id="is"/>{undoable("inside")}<endEvent id="ie"/>{inner}</subProcess>
      <intermediateCatchEvent id="wait">{TIMER.format("PT7S")}</intermediateCatchEvent>
      <receiveTask id="paid" messageRef="paid"/><serviceTask id="check" stellwerk:topic="check" stellwerk:retries="2"/>
      <userTask id="look"/><parallelGateway id="join"/><serviceTask id="last" stellwerk:topic="last"/>
      <endEvent id="e"/><endEvent id="e2"/>"""
    flows = flow("s fork work one sub join", "late instead one", "fork wait paid check join", "fork look join")
    return str(body + flows + flow("join last e", "news told e2").replace("flow.", "more."))


# --- what can happen -----------------------------------------------------------------------------------------------


def step(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """And whether the engine is left alone for a moment afterwards."""
    return st.tuples(st.just(name), st.tuples(*arguments), st.booleans())


which = st.integers(0, 5)
results = st.sampled_from(["complete", "fail", "fail later", "give up", "bpmn error", "release", "not started"])
steps_of_life = st.one_of(
    step("start", st.integers(1, 4)),
    step("connect", st.integers(1, 3), st.sampled_from(["well", "well", "silent", "confirms nothing"])),
    step("finish", which, which, results, st.booleans()),
    step("finish", which, which, results, st.booleans()),
    step("finish", which, which, st.just("complete"), st.booleans()),
    step("drop", which),
    step("reconnect", which, st.sampled_from(["with its leases", "without"])),
    step("change_room", which, st.integers(0, 3)),
    step("sleep", st.sampled_from([0.1, 1.2, 3.3, 8.0, 20.0])),
    step("publish", which, st.sampled_from(["paid", "news"])),
    step("look", which),
    step("resolve", which),
    step("cancel", which),
    step("refuse_commits", st.integers(1, 4)),
    step("lose_the_disk", st.sampled_from([0.2, 2.0])),
    step("restart"),
    step("crash_at_a_commit", st.integers(1, 4)),
)


@attrs.define
class Life:
    """A site, its workers, and what becomes of them. Only the memory store can be made to refuse its work."""

    site: Any
    model: str
    policy: str
    world: Any = None
    peers: list[Any] = attrs.field(factory=list)
    rooms: dict[str, int] = attrs.field(factory=dict)
    """Of the workers that keep to the protocol and are connected."""
    instances: list[str] = attrs.field(factory=list)
    """Some of them were perhaps never started: the engine died first."""
    recovered_at: float = 0.0
    """When everything works again that failed while the disk was lost."""
    crash_in: int = 0
    """Pause points around a commit until the engine dies."""
    has_crashed: bool = False

    async def pause_point(self, name: str) -> None:
        if self.crash_in and name.endswith("commit"):
            self.crash_in -= 1
            if not self.crash_in:
                self.has_crashed = True
                self.site.kill()
                await trio.lowlevel.checkpoint()

    async def live(self, steps: list[tuple[str, tuple[Any, ...], bool]]) -> None:
        self.world = await self.site.start(pause_point=self.pause_point)
        await self.world.deploy(self.model, attributes=f'stellwerk:failurePolicy="{self.policy}"')
        await self.start(4)
        await self.connect(1, "well")
        for name, arguments, rests in steps:
            with suppress(StellwerkError):  # the store is out of order, or somebody was quicker
                await getattr(self, name)(*arguments)
            await wait_all_tasks_blocked()
            if self.has_crashed:
                await self.restart()
                await wait_all_tasks_blocked()
            self._hear_revocations()
            await self._everything_has_a_way_on()
            if rests:
                await self.sleep(TICK_SECONDS)
        await self._come_to_the_end()

    # --- steps -----------------------------------------------------------------------------------------------------

    async def start(self, count: int) -> None:
        for _ in range(count):
            if self.has_crashed:
                return
            number = str(len(self.instances))
            self.instances.append(derived_id("start", "p", number))
            await self.world.node.start_instance("p", {}, business_key=number, request_id=number)

    async def connect(self, room: int, manners: str) -> None:
        peer = await self.world.connect(*TOPICS, max_tasks=room, lock_duration_ms=LOCK_MS, reports=manners != "silent")
        peer.confirms = manners != "confirms nothing"
        self.peers.append(peer)
        if manners == "well":
            self.rooms[peer.worker_id] = room

    async def finish(self, number: int, position: int, how: str, hears: bool) -> None:
        peer = self._peer(number)
        if peer is None or not peer.holding or not is_connected(peer):
            return
        held = sorted(peer.holding)
        offer = peer.offers[held[position % len(held)]]
        request = _request(how, peer.ref(), offer)
        await peer.say(request)
        if not hears:  # and so it does not know, and reports the task no more
            del peer.holding[offer.task_id]
            return
        with trio.move_on_after(5):
            answer = await peer.answer(offer, request.ref)
            if isinstance(answer, Nack) and answer.retryable:
                peer.holding[offer.task_id] = offer.fence

    async def drop(self, number: int) -> None:
        peer = self._peer(number)
        if peer is not None and is_connected(peer):
            peer.drop()
            self.rooms.pop(peer.worker_id, None)

    async def reconnect(self, number: int, how: str) -> None:
        peer = self._peer(number)
        if peer is None:
            return
        await self.drop(number)
        peer.world = self.world
        peer.confirms = True
        self.rooms.pop(peer.worker_id, None)
        if how == "without":
            peer.holding.clear()
        welcome = await peer.connect()
        peer.holding = {lease.task_id: lease.fence for lease in welcome.kept}
        for topic in TOPICS:
            await peer.say(Subscribe(topic, max_tasks=2, lock_duration_ms=LOCK_MS))
        self.rooms[peer.worker_id] = 2

    async def change_room(self, number: int, room: int) -> None:
        peer = self._peer(number)
        if peer is not None and is_connected(peer):
            for topic in TOPICS:
                await peer.say(Subscribe(topic, max_tasks=room, lock_duration_ms=LOCK_MS))
            if peer.worker_id in self.rooms:
                self.rooms[peer.worker_id] = room

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)
        if self.has_crashed:
            await self.restart()
        elif seconds >= TICK_SECONDS:
            await wait_all_tasks_blocked()
            self._hear_revocations()
            await self._nobody_waits_beside_a_free_worker()

    async def publish(self, number: int, name: str) -> None:
        await self.world.node.publish_message(name, str(number % len(self.instances)), {"message": name})

    async def look(self, number: int) -> None:
        rows = await self.world.node.user_tasks()
        if rows:
            await self.world.node.complete_user_task(rows[number % len(rows)]["user_task_id"], {"looked": True})

    async def resolve(self, number: int) -> None:
        rows = await self.world.node.incidents()
        if rows:
            await self.world.node.resolve_incident(rows[number % len(rows)]["incident_id"])

    async def cancel(self, number: int) -> None:
        await self.world.node.cancel_instance(self.instances[number % len(self.instances)], "not wanted")

    async def refuse_commits(self, count: int) -> None:
        self.world.store.refuse_changesets = count

    async def lose_the_disk(self, seconds: float) -> None:
        self.world.store.unavailable = True
        await trio.sleep(seconds)
        self.world.store.unavailable = False
        self.recovered_at = trio.current_time() + RECOVERY_SECONDS

    async def restart(self) -> None:
        self.world.store.refuse_changesets = 0
        self.crash_in, self.has_crashed = 0, False
        self.world = await self.site.restart(pause_point=self.pause_point)
        self.rooms.clear()
        for peer in self.peers:
            peer.session = None

    async def crash_at_a_commit(self, pause_points: int) -> None:
        """Soon: before one that is then lost, or after it, when nobody has heard of it yet."""
        self.crash_in = pause_points

    def _peer(self, number: int) -> Any:
        return self.peers[number % len(self.peers)] if self.peers else None

    def _hear_revocations(self) -> None:
        """What the workers hold is what they were not told to leave."""
        for peer in self.peers:
            for message in peer.messages:
                if isinstance(message, Revoked):
                    for lease in message.leases:
                        if peer.holding.get(lease.task_id) == lease.fence:
                            del peer.holding[lease.task_id]
            peer.messages = [message for message in peer.messages if not isinstance(message, Revoked)]

    # --- what must hold --------------------------------------------------------------------------------------------

    async def _everything_has_a_way_on(self) -> None:
        """Faults 66 and 84: a token that waits has a row that will wake it."""
        rows = await Rows.read(self.world.store)
        for instance_id in self.instances:
            stored = await self.world.store.load_instance(instance_id)
            if stored is not None and stored.status == "RUNNING":
                state = state_of(stored)
                stuck = [token for token in state.tokens.values() if not rows.moves_on(state, token)]
                assert not stuck, f"nothing will move {stuck} of {state}"
                assert state.tokens or state.compensations, "it runs without a token"

    async def _nobody_waits_beside_a_free_worker(self) -> None:
        """Fault 30: no room leaks; what is READY is offered within a tick to who has room for it."""
        store = self.world.store
        is_in_order = not getattr(store, "unavailable", False) and not getattr(store, "refuse_changesets", 0)
        if not is_in_order or trio.current_time() < self.recovered_at + TICK_SECONDS:
            return
        now_ms = await store.lease_now()
        for task in await store.tasks(TaskQuery(state="READY")):
            if task.draining or task.available_at_ms > now_ms - TICK_SECONDS * 1000:
                continue
            for peer in self.peers:
                if not is_connected(peer):
                    continue
                held = sum(peer.offers[task_id].topic == task.topic for task_id in peer.holding)
                assert held >= self.rooms.get(peer.worker_id, 0), f"{task} waits beside {peer.worker_id}"

    async def _come_to_the_end(self) -> None:
        """With one good worker, and people who do what is asked of them, everything ends in bounded time."""
        store, node, self.crash_in = self.world.store, self.world.node, 0
        store.unavailable, store.refuse_changesets = False, 0
        for number in range(len(self.peers)):
            await self.drop(number)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work_well)
            for _ in range(30):
                if not await self._running():
                    break
                for number in range(len(self.instances)):
                    await node.publish_message("paid", str(number), {})
                for row in await node.user_tasks():
                    await node.complete_user_task(row["user_task_id"], {})
                for row in await node.incidents():
                    await node.resolve_incident(row["incident_id"])
                await trio.sleep(5)
            nursery.cancel_scope.cancel()
        assert await self._running() == []
        assert await store.due_timers(2**50, 10) == ([], None)
        assert not await node.incidents()
        assert not await store.tasks(TaskQuery(state="READY"))
        assert not await store.tasks(TaskQuery(state="LOCKED"))

    async def _running(self) -> list[str]:
        summaries = [await self.world.store.instance(instance_id) for instance_id in self.instances]
        return [summary.instance_id for summary in summaries if summary and summary.status == "RUNNING"]

    async def _work_well(self) -> None:
        peer = await self.world.connect(*TOPICS, max_tasks=20)
        while True:
            for offer in (await peer.next(Tasks)).tasks:
                await peer.complete(offer)


def is_connected(peer: Any) -> bool:
    return peer.session is not None and not peer.session.closed


def _request(how: str, ref: int, offer: Any) -> Any:
    task, nothing = (offer.task_id, offer.fence), msgspec.Raw(b"{}")
    match how:
        case "complete":
            return Complete(ref, *task, msgspec.Raw(b'{"by":"%s"}' % offer.element_id.encode()))
        case "fail":
            return Fail(ref, *task, "broke", retry_after_ms=0)
        case "fail later":
            return Fail(ref, *task, "broke", retry_after_ms=4_000)
        case "give up":
            return Fail(ref, *task, "hopeless", retries=0)
        case "bpmn error":
            return BpmnErrorReport(ref, *task, "E", "oh", variables=nothing, details=nothing)
        case _:
            return Release(ref, *task, started=how == "release")


@attrs.frozen
class Rows:
    """What the store has that can wake an instance."""

    tasks: dict[str, Any]
    user_tasks: frozenset[str]
    timers: frozenset[str]
    incidents: frozenset[str]
    drained: frozenset[str]
    next_expiry_ms: int | None

    @classmethod
    async def read(cls, store: Any) -> Rows:
        due, _ = await store.due_timers(2**50, 1_000)
        return cls(
            tasks={task.task_id: task for task in await store.tasks()},
            user_tasks=frozenset(str(row["user_task_id"]) for row in await store.user_tasks()),
            timers=frozenset(timer.timer_id for timer in due),
            incidents=frozenset(str(row["incident_id"]) for row in await store.incidents()),
            drained=frozenset(task_id for _, task_id in await store.draining_ready(1_000)),
            next_expiry_ms=(await store.next_lock_expiry())[0],
        )

    def moves_on(self, state: InstanceState, token: Token) -> bool:
        return any(self._sources(state, token))

    def _sources(self, state: InstanceState, token: Token) -> Iterator[bool]:
        activity = token.activity_id
        if activity in state.tasks:
            yield self._task_moves_on(state, activity)
        yield activity in state.user_tasks.values() and activity in self.user_tasks
        for timer in state.timers.values():
            yield timer.token_id == token.id and timer.id in self.timers
        for subscription in state.subscriptions.values():
            yield subscription.token_id == token.id
        for incident in state.incidents.values():
            yield incident.token_id == token.id and incident.id in self.incidents
        yield self._others_move_on(state, token)

    def _task_moves_on(self, state: InstanceState, activity_id: str) -> bool:
        task = self.tasks[activity_id]
        match task.state:
            case TaskState.READY:
                return not task.draining or task.task_id in self.drained
            case TaskState.LOCKED:
                return self.next_expiry_ms is not None and self.next_expiry_ms <= task.lease.until_ms
            case _:  # it stands still until its incident is resolved
                incidents = (incident for incident in state.incidents.values() if incident.task_id == task.task_id)
                return any(incident.id in self.incidents for incident in incidents)

    def _others_move_on(self, state: InstanceState, token: Token) -> bool:
        """It waits for other tokens: inside its subprocess, on the other ways to its join, or of the handlers that undo
        what its scope did."""
        activity = state.activities.get(token.activity_id or "")
        if activity is not None and activity.inner_scope_id is not None:
            inner = state.scopes[activity.inner_scope_id]
            if not inner.local:
                return any(other.scope_id == inner.id for other in state.tokens.values())
        scope = state.scopes[token.scope_id]
        is_undone = any(compensation.scope_id == scope.id for compensation in state.compensations.values())
        if is_undone or scope.failure is not None:
            return any(other.compensation_id or self._is_drained(state, other) for other in state.tokens.values())
        return token.node_id == "join" and any(
            other.scope_id == token.scope_id and other.node_id != "join" for other in state.tokens.values()
        )

    @staticmethod
    def _is_drained(state: InstanceState, token: Token) -> bool:
        task = state.tasks.get(token.activity_id or "")
        return task is not None and task.draining


# --- the properties ------------------------------------------------------------------------------------------------


def profile(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


MakeSite = Callable[[trio.Nursery, str], Any]


def live(make_site: MakeSite, kind: str, model: str, policy: str, steps: Any) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await Life(make_site(nursery, kind), model, policy).live(steps)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


@profile(100)
@given(policy=st.sampled_from(["incident", "compensate"]), steps=st.lists(steps_of_life, max_size=40))
def test_fault_66_84_every_instance_has_something_that_moves_it_on(
    make_site: MakeSite, model: str, policy: str, steps: Any
) -> None:
    """Also fault 30: what is READY is offered within a tick to a connected worker that has room."""
    live(make_site, "memory", model, policy, steps)


@profile(8)
@given(policy=st.sampled_from(["incident", "compensate"]), steps=st.lists(steps_of_life, min_size=15, max_size=30))
def test_fault_66_84_every_instance_has_something_that_moves_it_on_in_a_file(
    make_site: MakeSite, model: str, policy: str, steps: Any
) -> None:
    live(make_site, "sqlite", model, policy, steps)
