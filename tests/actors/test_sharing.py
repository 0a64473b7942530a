"""One topic, many workers: all of them are busy while there is work, and each gets its share."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pytest
import trio

from stellwerk.wire.messages import Ack, Subscribe, Tasks

SLACK_SECONDS = 0.2
ROOMS = (1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 1, 1)


@attrs.define
class Crew:
    """Workers that take a while for each task."""

    world: Any
    nursery: trio.Nursery
    done: Counter[str] = attrs.field(factory=Counter)
    idle_seconds: float = 0.0

    async def hire(self, room: int, seconds: float) -> Any:
        peer = await self.world.connect("work", max_tasks=room, lock_duration_ms=600_000)
        self.nursery.start_soon(self._work, peer, seconds)
        return peer

    async def _work(self, peer: Any, seconds: float) -> None:
        while True:
            for offer in (await peer.next(Tasks)).tasks:
                self.nursery.start_soon(self._do, peer, offer, seconds)

    async def _do(self, peer: Any, offer: Any, seconds: float) -> None:
        await trio.sleep(seconds)
        assert isinstance(await peer.complete(offer), Ack)
        self.done[peer.worker_id] += 1

    async def finish(self, tasks: int) -> float:
        """When all are done. → how long that took"""
        began = trio.current_time()
        while self.done.total() < tasks:
            await trio.sleep(0.05)
        return trio.current_time() - began


@pytest.fixture
async def prepared(world: Any, one_task: Any) -> Any:
    await world.deploy(one_task())
    return world


async def start(world: Any, tasks: int) -> None:
    async with trio.open_nursery() as starters:
        for _ in range(tasks):
            starters.start_soon(world.start)


@pytest.mark.parametrize("comes_first", ["work", "workers"])
async def test_W1_no_worker_is_idle_while_there_is_work(
    autojump_clock: object, prepared: Any, comes_first: str
) -> None:
    """Ten rounds of as much as all of them can do at once take ten times as long as one task."""
    at_once = sum(ROOMS)
    async with trio.open_nursery() as nursery:
        crew = Crew(prepared, nursery)
        if comes_first == "work":
            await start(prepared, 10 * at_once)
        peers = [await crew.hire(room, 1.0) for room in ROOMS]
        if comes_first == "workers":
            await start(prepared, 10 * at_once)
        assert await crew.finish(10 * at_once) < 10 + SLACK_SECONDS
        nursery.cancel_scope.cancel()
    assert [crew.done[peer.worker_id] for peer in peers] == [10 * room for room in ROOMS], "each by its room"


async def test_W1_few_tasks_are_spread_over_the_workers(autojump_clock: object, prepared: Any) -> None:
    """They do not all go to the first one that has room for them."""
    workers = [await prepared.connect("work", max_tasks=10) for _ in range(12)]
    await start(prepared, 36)
    await trio.sleep(1)
    assert [len(worker.holding) for worker in workers] == [3] * 12


async def test_W1_a_slow_worker_holds_up_nothing_but_what_it_has(autojump_clock: object, prepared: Any) -> None:
    async with trio.open_nursery() as nursery:
        crew = Crew(prepared, nursery)
        slow = [await crew.hire(2, 40.0) for _ in range(3)]
        fast = [await crew.hire(2, 0.5) for _ in range(3)]
        await start(prepared, 6 + 300)
        assert await crew.finish(300) < 300 / 6 * 0.5 + SLACK_SECONDS
        assert [crew.done[worker.worker_id] for worker in slow] == [0, 0, 0]
        assert {crew.done[worker.worker_id] for worker in fast} <= set(range(98, 103))
        nursery.cancel_scope.cancel()


async def test_W1_workers_that_come_and_go_share_what_is_left(autojump_clock: object, prepared: Any) -> None:
    async with trio.open_nursery() as nursery:
        crew = Crew(prepared, nursery)
        first = [await crew.hire(2, 1.0) for _ in range(4)]
        await start(prepared, 8 * 5 + 16 * 5 + 8 * 5)
        await trio.sleep(5 - SLACK_SECONDS)
        second = [await crew.hire(2, 1.0) for _ in range(4)]
        await trio.sleep(SLACK_SECONDS)
        before = Counter(crew.done)
        await trio.sleep(5 - SLACK_SECONDS)
        for worker in first:
            await worker.say(Subscribe("work", max_tasks=0, lock_duration_ms=600_000))
        await trio.sleep(SLACK_SECONDS)
        for worker in (*first, *second):
            assert 8 <= crew.done[worker.worker_id] - before[worker.worker_id] <= 10
        left = 160 - crew.done.total() - sum(len(worker.holding) for worker in first)
        assert await crew.finish(160) < left / 8 + 1 + SLACK_SECONDS
        nursery.cancel_scope.cancel()
    assert all(not worker.holding for worker in (*first, *second))
