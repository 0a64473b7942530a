"""Handing out work, as users of such engines have seen it fail: workers that wait, or vanish, and queues that stall."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from stellwerk.core.external_task import Holder
from stellwerk.ports import FetchAndLock, LeaseTasks, TaskQuery
from stellwerk.wire.messages import Ack, Fail, Holding, ProtocolErrorMessage, Release, Revoked, Subscribe, Tasks

AT_ONCE = 0.02
"""Seconds: much less than the dispatcher's poll, which is one second."""
INCIDENT = 'stellwerk:failurePolicy="incident"'
PROFILE = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


# --- deliveries that fail ------------------------------------------------------------------------------------------


async def test_fault_2_a_task_that_could_not_be_sent_goes_to_the_next_at_once(
    autojump_clock: object, site: Any, one_task: Any
) -> None:
    """The lease is durable, and then nobody reads the connection any more."""
    world = await site.start()
    await world.deploy(one_task())
    gone = await world.connect("work", max_tasks=5, lock_duration_ms=600_000)
    other = await world.connect("work", max_tasks=1, lock_duration_ms=600_000)
    gone.scope.cancel()
    await wait_all_tasks_blocked()
    instance_id = await world.start()
    await wait_all_tasks_blocked()
    (row,) = await world.store.tasks(TaskQuery(instance_id=instance_id))
    assert row.lease.holder.worker_id == gone.worker_id, "it has the most room"
    gone.session.disconnected()
    again = await other.task()
    assert trio.current_time() < AT_ONCE
    assert (again.task_id, again.retries_left) == (row.task_id, 3)
    assert again.fence > row.fence
    assert isinstance(await other.complete(again), Ack)


@pytest.mark.parametrize("is_born_leased", [True, False])
async def test_fault_22_a_worker_that_vanishes_while_its_lease_is_committed_holds_nothing(
    autojump_clock: object, world: Any, one_task: Any, is_born_leased: bool
) -> None:
    await world.deploy(one_task())
    if not is_born_leased:
        await world.start()
    gone = await world.connect("work", max_tasks=0, lock_duration_ms=600_000)
    await wait_all_tasks_blocked()
    world.store.gate = trio.Event()
    await gone.say(Subscribe("work", max_tasks=5, lock_duration_ms=600_000))
    if is_born_leased:
        world.nursery.start_soon(world.start)
    await wait_all_tasks_blocked()
    gone.drop()
    found: list[Any] = []
    world.nursery.start_soon(_first_task, world, found)
    world.store.gate.set()
    await wait_all_tasks_blocked()
    assert trio.current_time() < AT_ONCE
    (offer,) = found
    assert not gone.offers
    assert offer.retries_left == 3
    ends = [attempt.end.value for attempt in await world.store.attempts(offer.task_id)]
    assert ends == ["released"], "the delivery that failed is on record"


async def _first_task(world: Any, found: list[Any]) -> None:
    peer = await world.connect("work")
    found.append(await peer.task())


# --- waking who waits ----------------------------------------------------------------------------------------------

Wake = Callable[[Any, Any, Any], Awaitable[float]]
"""(world, the one who holds the task, its offer) → when the waiting worker must have it"""


async def releases(world: Any, holder: Any, offer: Any) -> float:
    await holder.say(Release(1, offer.task_id, offer.fence, started=True))
    return trio.current_time()


async def fails_at_once(world: Any, holder: Any, offer: Any) -> float:
    await holder.say(Fail(1, offer.task_id, offer.fence, "no", retry_after_ms=0))
    return trio.current_time()


async def fails_for_a_while(world: Any, holder: Any, offer: Any) -> float:
    await holder.say(Fail(1, offer.task_id, offer.fence, "no", retry_after_ms=7_310))
    return trio.current_time() + 7.31


async def reports_nothing(world: Any, holder: Any, offer: Any) -> float:
    await holder.say(Holding(()))
    return trio.current_time()


async def comes_back_without_it(world: Any, holder: Any, offer: Any) -> float:
    holder.drop()
    await holder.connect(holding={})
    return trio.current_time()


async def gives_up_and_is_resolved(world: Any, holder: Any, offer: Any) -> float:
    await holder.say(Fail(1, offer.task_id, offer.fence, "no", retries=0))
    await holder.answer(offer, 1)
    await trio.sleep(3.21)
    (incident,) = await world.node.incidents()
    await world.node.resolve_incident(incident["incident_id"])
    return trio.current_time()


@pytest.mark.parametrize(
    "wake",
    [releases, fails_at_once, fails_for_a_while, reports_nothing, comes_back_without_it, gives_up_and_is_resolved],
    ids=lambda wake: wake.__name__,
)
async def test_fault_9_a_task_that_comes_back_wakes_the_worker_that_waits(
    autojump_clock: object, site: Any, one_task: Any, wake: Wake
) -> None:
    world = await site.start()
    await world.deploy(one_task(), attributes=INCIDENT)
    holder = await world.connect("work", lock_duration_ms=600_000, reports=wake is not reports_nothing)
    await world.start()
    offer = await holder.task()
    await holder.say(Subscribe("work", max_tasks=0, lock_duration_ms=600_000))
    waiting = await world.connect("work", lock_duration_ms=600_000)
    await trio.sleep(12.37)
    assert not waiting.holding
    at = await wake(world, holder, offer)
    again = await waiting.task()
    assert at <= trio.current_time() < at + AT_ONCE
    assert again.task_id == offer.task_id
    assert isinstance(await waiting.complete(again), Ack)


async def test_fault_9_a_revoked_task_makes_room_for_the_next_one(
    autojump_clock: object, site: Any, one_task: Any
) -> None:
    world = await site.start()
    await world.deploy(one_task())
    worker = await world.connect("work", max_tasks=1)
    cancelled = await world.start()
    await worker.task()
    await world.start()
    await trio.sleep(3.37)
    assert len(worker.holding) == 1
    at = trio.current_time()
    await world.node.cancel_instance(cancelled, "not wanted")
    await worker.next(Revoked)
    await worker.task()
    assert trio.current_time() < at + AT_ONCE


async def test_fault_9_a_worker_that_makes_room_is_served_at_once(
    autojump_clock: object, site: Any, one_task: Any
) -> None:
    world = await site.start()
    await world.deploy(one_task())
    worker = await world.connect("work", max_tasks=0)
    await world.start()
    await trio.sleep(7.37)
    at = trio.current_time()
    await worker.say(Subscribe("work", max_tasks=1))
    await worker.task()
    assert trio.current_time() < at + AT_ONCE


async def test_fault_10_a_lock_that_runs_out_wakes_the_worker_that_waits(
    autojump_clock: object, site: Any, one_task: Any
) -> None:
    """To the moment, many times: it does not depend on where the poll happens to be."""
    world = await site.start()
    await world.deploy(one_task('stellwerk:lockExpiriesMax="0"'))
    await world.start()
    waiting = await world.connect("work", max_tasks=0)
    for lock_ms in (1_000, 7_310, 40_777):
        crashed = await world.connect("work", lock_duration_ms=lock_ms)
        offer = await crashed.task()
        at = trio.current_time() + lock_ms / 1000
        crashed.drop()
        await waiting.say(Subscribe("work", max_tasks=1))
        again = await waiting.task()
        assert at <= trio.current_time() < at + AT_ONCE
        assert again.fence > offer.fence
        await waiting.say(Subscribe("work", max_tasks=0), Release(waiting.ref(), again.task_id, again.fence, True))
        await waiting.answer(again, waiting.refs)


# --- many at once, and order ---------------------------------------------------------------------------------------


async def test_fault_29_a_thousand_tasks_that_come_back_are_no_storm(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """They go out as the workers take them, one call of the store for each time there is room, none in vain."""
    await world.deploy(one_task())
    for _ in range(1_000):
        await world.start()
    crowd = await world.connect("work", max_tasks=1_000, lock_duration_ms=600_000)
    while len(crowd.holding) < 1_000:
        await crowd.next(Tasks)
    crowd.drop()
    workers = [await world.connect("work", max_tasks=5, lock_duration_ms=600_000) for _ in range(2)]
    world.store.transactions.clear()
    await crowd.connect(holding={})
    await trio.sleep(30)
    calls = [operation for batch in world.store.transactions for operation in batch if type(operation) is LeaseTasks]
    assert [len(call.leases) for call in calls] == [10]
    assert [len(worker.holding) for worker in workers] == [5, 5]
    for _ in range(100):
        for worker in workers:
            task_id = min(worker.holding)
            assert isinstance(await worker.complete(worker.offers[task_id]), Ack)
            await wait_all_tasks_blocked()
            assert len(worker.holding) == 5
    calls = [operation for batch in world.store.transactions for operation in batch if type(operation) is LeaseTasks]
    assert [len(call.leases) for call in calls] == [10] + [1] * 200
    assert world.node.dispatcher("work").statistics.refused == 0


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_fault_101_the_push_obeys_the_same_order_as_the_fetch(
    autojump_clock: object, site_factory: Any, one_task: Any, is_waiting: bool
) -> None:
    """By priority, then by age; there is no aging: a stream of urgent tasks keeps the others waiting."""
    urgencies = [3, 0, 9, -2, 3, 3, 9, 0, 7, -2, 1, 9]
    expected = sorted(range(len(urgencies)), key=lambda number: (-urgencies[number], number))

    async def start_all(world: Any) -> None:
        for number, urgency in enumerate(urgencies):
            await world.start(urgency=urgency, number=number)
            await trio.sleep(0.01)

    world = await _without_workers(site_factory, one_task)
    if is_waiting:  # it is busy while the others come, and then nothing is leased at birth
        peer = await world.connect("work", max_tasks=1)
        await world.start(urgency=0, number=-1)
        busy_with = await peer.task()
        await start_all(world)
        await peer.complete(busy_with)
    else:
        await start_all(world)
        peer = await world.connect("work", max_tasks=1)
    pushed = []
    for _ in urgencies:
        offer = await peer.task()
        pushed.append(msgspec.json.decode(offer.variables)["number"])
        await peer.complete(offer)
    world = await _without_workers(site_factory, one_task)
    await start_all(world)
    fetched = []
    for _ in urgencies:
        ((task,),) = await world.store.transact([FetchAndLock(Holder("w", "b", 1, "s"), ("work",), 1, 30_000)])
        fetched.append(msgspec.json.decode(task.variables)["number"])
    assert pushed == fetched == expected


async def _without_workers(site_factory: Any, one_task: Any) -> Any:
    world = await site_factory().start()
    await world.deploy(one_task('stellwerk:priority="=urgency"'))
    return world


# --- credits -------------------------------------------------------------------------------------------------------

credit_steps = st.one_of(
    st.tuples(st.just("set_room"), st.integers(0, 6)),
    st.tuples(st.just("start"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["complete", "fail", "release", "cancel"]), st.integers(0, 5)),
    st.tuples(st.sampled_from(["forget", "resume"]), st.just(0)),
)


@PROFILE
@given(steps=st.lists(credit_steps, max_size=25))
def test_fault_39_room_that_is_raised_and_lowered_is_neither_lost_nor_grows(
    start_node: Any, one_task: Any, steps: list[tuple[str, int]]
) -> None:
    """The worker says how much it holds at most, never how much more it wants, so that nothing can add up."""

    async def play() -> None:
        async with trio.open_nursery() as nursery:
            world = await start_node(nursery)
            await world.deploy(one_task())
            await Credits(world, await world.connect("work", max_tasks=3, lock_duration_ms=600_000)).play(steps)
            nursery.cancel_scope.cancel()

    trio.run(play, clock=MockClock(autojump_threshold=0))


class Credits:
    """One worker that changes its room; after every step it holds exactly what there is, as far as it has room."""

    def __init__(self, world: Any, peer: Any) -> None:
        self.world = world
        self.peer = peer
        self.room = 3

    async def play(self, steps: list[tuple[str, int]]) -> None:
        for name, number in steps:
            before = dict(self.peer.holding)
            await getattr(self, name)(number)
            await trio.sleep(0.5)
            await self._check(before)
        await self.set_room(6)
        await self._check(dict(self.peer.holding))

    async def _check(self, before: dict[str, int]) -> None:
        held = self.peer.holding
        is_new = set(held.items()) - set(before.items())
        assert len(held) <= self.room or not is_new, "more than it has room for"
        ready = await self.world.store.tasks(TaskQuery(state="READY"))
        assert not ready or len(held) >= self.room, f"{len(ready)} wait, it has room for {self.room - len(held)} more"
        assert not [message for message in self.peer.messages if isinstance(message, ProtocolErrorMessage)]

    async def set_room(self, room: int) -> None:
        self.room = room
        await self.peer.say(Subscribe("work", max_tasks=room, lock_duration_ms=600_000))
        await trio.sleep(0.5)

    async def start(self, count: int) -> None:
        for _ in range(count):
            await self.world.start()

    def _offer(self, position: int) -> Any:
        held = sorted(self.peer.holding)
        return self.peer.offers[held[position % len(held)]] if held else None

    async def complete(self, position: int) -> None:
        if (offer := self._offer(position)) is not None:
            assert isinstance(await self.peer.complete(offer), Ack)

    async def fail(self, position: int) -> None:
        if (offer := self._offer(position)) is not None:
            ref = self.peer.ref()
            await self.peer.say(Fail(ref, offer.task_id, offer.fence, "no", retry_after_ms=0, retries=3))
            await self.peer.answer(offer, ref)

    async def release(self, position: int) -> None:
        if (offer := self._offer(position)) is not None:
            ref = self.peer.ref()
            await self.peer.say(Release(ref, offer.task_id, offer.fence, started=False))
            await self.peer.answer(offer, ref)

    async def cancel(self, position: int) -> None:
        if (offer := self._offer(position)) is not None:
            await self.world.node.cancel_instance(offer.process_instance_id, "not wanted")
            (notice,) = (await self.peer.next(Revoked)).leases
            del self.peer.holding[notice.task_id]

    async def forget(self, _: int) -> None:
        """The connection breaks, and it comes back without any of its leases."""
        self.peer.drop()
        self.peer.holding.clear()
        await self.resume(0)

    async def resume(self, _: int) -> None:
        self.peer.drop()
        await self.peer.connect()
        await self.set_room(self.room)
