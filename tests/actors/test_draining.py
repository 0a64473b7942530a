"""A node that drains leaves no lease behind that no worker got, however long the store takes for a commit."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.core.external_task import AttemptEnd, TaskState
from stellwerk.wire.messages import Goaway, Goodbye, Hello, Subscribe, Tasks, Welcome

SINGLE = 'stellwerk:singleTry="true"'


@pytest.fixture(params=["own", "shared"])
async def slow(request: pytest.FixtureRequest, nodes: Any, world: Any) -> Any:
    """A node whose store can be held up: `hold` and `let_go`."""
    return Slow(await nodes.start() if request.param == "shared" else world)


class Slow:
    def __init__(self, world: Any) -> None:
        self.world = world
        self._is_gated = hasattr(world.store, "gate")

    def hold(self, seconds: float) -> None:
        """Commits that begin now take so long."""
        if self._is_gated:
            self.world.store.gate = trio.Event()
            self.world.nursery.start_soon(self._open_later, self.world.store.gate, seconds)
        else:
            self.world.store.seconds = seconds / 2
            self.world.nursery.start_soon(self._quicken_later, seconds)

    async def _open_later(self, gate: trio.Event, seconds: float) -> None:
        await trio.sleep(seconds)
        gate.set()

    async def _quicken_later(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.world.store.seconds = 0.0005

    async def no_lease_is_left(self) -> bool:
        (task,) = await self.world.node.tasks()
        attempts = await self.world.store.attempts(task.task_id)
        assert [attempt.end for attempt in attempts] == [AttemptEnd.RELEASED], "it was leased, and given back"
        return (task.state, task.retries_left, task.lock_expiries) == (TaskState.READY, task.retries, 0)


async def drained(world: Any, seconds: float) -> float:
    """→ how long it took."""
    began = trio.current_time()
    await world.node.drain(seconds)
    return trio.current_time() - began


@pytest.mark.parametrize("attributes", ["", SINGLE], ids=["retries", "single try"])
@pytest.mark.parametrize("leaves", [True, False], ids=["worker leaves", "worker stays"])
@pytest.mark.parametrize("at_birth", [False, True])
async def test_rule_14_a_lease_that_commits_while_the_node_drains_is_given_back_before_it_stops(
    autojump_clock: object, slow: Slow, one_task: Any, attributes: str, leaves: bool, at_birth: bool
) -> None:
    world = slow.world
    await world.deploy(one_task(attributes))
    if at_birth:
        peer = await world.connect("work", max_tasks=1)
        await trio.sleep(0.1)
        slow.hold(2)
        world.nursery.start_soon(world.start)
    else:
        await world.start()
        peer = await world.connect("other")
        slow.hold(2)
        await peer.say(Subscribe("work", max_tasks=1))
    await trio.sleep(0.5)
    if leaves:
        world.nursery.start_soon(drop_soon, peer)
    assert 1 < await drained(world, 10) < 4, "it waits for the lease, and for its return"
    assert await slow.no_lease_is_left()
    assert not [message for message in peer.messages if isinstance(message, Tasks)]


async def drop_soon(peer: Any) -> None:
    await trio.sleep(0.1)
    peer.drop()


async def test_a_drain_does_not_wait_for_ever_for_a_lease_under_way(
    autojump_clock: object, slow: Slow, one_task: Any
) -> None:
    await slow.world.deploy(one_task())
    peer = await slow.world.connect("work", max_tasks=1)
    await trio.sleep(0.1)
    slow.hold(100)
    slow.world.nursery.start_soon(slow.world.start)
    await trio.sleep(0.5)
    peer.drop()
    assert 3 <= await drained(slow.world, 3) < 3.1


async def test_a_draining_node_leases_nothing_new(autojump_clock: object, world: Any, one_task: Any) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=5)
    await trio.sleep(0.1)
    await world.node.drain(1)
    await world.start()
    late = await world.connect("work", max_tasks=5)
    await late.next(Goaway)
    await trio.sleep(3)
    (task,) = await world.node.tasks()
    assert (task.state, task.attempt) == (TaskState.READY, 0)
    assert not [message for message in [*peer.messages, *late.messages] if isinstance(message, Tasks)]


async def test_what_nobody_got_goes_back_also_when_the_store_was_away_for_that(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, one_task: Any
) -> None:
    async def breaks(name: str) -> None:
        if name == "after-lease":
            peer.drop()
            world.store.unavailable = True

    world = await start_node(nursery, pause_point=breaks)
    await world.deploy(one_task(SINGLE))
    await world.start()
    peer = await world.connect("other")
    await peer.say(Subscribe("work", max_tasks=1))
    await trio.sleep(2)
    assert not world.node.leases.are_settled
    world.store.unavailable = False
    assert await drained(world, 3) < 1
    assert await Slow(world).no_lease_is_left()
    nursery.cancel_scope.cancel()


async def test_a_worker_is_welcomed_before_it_is_sent_away(autojump_clock: object, world: Any, one_task: Any) -> None:
    """It says hello at the moment when the node begins to drain."""
    world.store.gate = trio.Event()
    sessions: list[Any] = []

    async def open_session() -> None:
        sessions.append(await world.node.open_session(Hello("w", "boot", 1, "test/1")))

    world.nursery.start_soon(open_session)
    await trio.sleep(0.1)
    await world.node.drain(0)
    world.store.gate.set()
    await trio.sleep(0.1)
    (session,) = sessions
    assert [type(message) for message in await session.outgoing()] == [Welcome, Goaway]
    assert not session.accepts_work


async def test_a_worker_that_says_goodbye_starts_nothing_that_it_has_not_confirmed(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """The delivery and the goodbye crossed."""
    await world.deploy(one_task(SINGLE))
    await world.start()
    peer = await world.connect("other")
    peer.confirms = False
    await peer.say(Subscribe("work", max_tasks=1))
    await peer.task()
    await peer.say(Goodbye())
    await world.node.settle(1)
    assert await Slow(world).no_lease_is_left()


# --- several nodes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hints", [True, False])
async def test_a_worker_gets_on_the_next_node_what_was_leased_too_late_on_the_former(
    autojump_clock: object, nodes: Any, one_task: Any, hints: bool
) -> None:
    """A rolling restart, with a database that takes its time."""
    a, b = await nodes.start(), await nodes.start()
    await a.deploy(one_task(SINGLE))
    peer = await a.connect("work", max_tasks=1)
    await trio.sleep(0.1)
    if not hints:
        nodes.lose_hints()
    a.store.seconds = 1.0
    a.nursery.start_soon(a.start)
    await trio.sleep(0.2)
    peer.drop()
    peer.world = b
    await peer.connect()
    await peer.say(Subscribe("work", max_tasks=1))
    await a.node.drain(10)
    nodes.kill(a)
    began = trio.current_time()
    await peer.task()
    assert trio.current_time() - began < 1.5
    (task,) = await b.node.tasks()
    assert (task.fence > 1, task.lock_expiries, task.state) == (True, 0, TaskState.LOCKED)


async def test_a_lease_that_commits_after_its_node_died_and_after_the_next_hello_is_taken_back(
    autojump_clock: object, nodes: Any, one_task: Any
) -> None:
    """Nobody knows of it: the former node is gone, and the hello came too early to see it."""
    a, b = await nodes.start(), await nodes.start()
    await a.deploy(one_task(SINGLE))
    peer = await a.connect("work", max_tasks=1)
    await trio.sleep(0.1)
    a.store.seconds, a.store.outlives_its_node = 0.5, True
    a.nursery.start_soon(a.start)
    await trio.sleep(0.2)
    nodes.kill(a)
    peer.drop()
    peer.world = b
    peer.begun = ()
    await peer.connect()
    await peer.say(Subscribe("work", max_tasks=1))
    began = trio.current_time()
    offer = await peer.task()
    assert 1 < trio.current_time() - began < 4
    (task,) = await b.node.tasks()
    assert (task.fence, task.lock_expiries, task.state) == (offer.fence, 0, TaskState.LOCKED)
    held = dict(peer.holding)
    await trio.sleep(25)
    assert [message for message in peer.messages if isinstance(message, Tasks)] == []
    assert (await b.node.tasks())[0].fence == held[offer.task_id], "the later looks leave what is its own"
