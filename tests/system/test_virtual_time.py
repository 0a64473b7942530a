"""What may run under a clock that is not the real one, and what refuses to."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from stellwerk.errors import Conflict, InvariantBroken
from stellwerk.system.clock import VIRTUAL_EPOCH_MS, SystemClock, VirtualClock, is_virtual_time
from stellwerk.system.threads import InlineRunner, OneThread
from stellwerk.worker import Worker
from stellwerk.worker.system import SystemThreads


class ClockOfSomebody(trio.abc.Clock):
    """Stands still."""

    def start_clock(self) -> None: ...

    def current_time(self) -> float:
        return 1000.0

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0 if deadline <= 1000.0 else 999_999.0


def test_trios_own_clock_is_the_real_one_and_no_other_is() -> None:
    async def ask() -> bool:
        return is_virtual_time()

    assert [trio.run(ask), trio.run(ask, clock=MockClock()), trio.run(ask, clock=ClockOfSomebody())] == [
        False,
        True,
        True,
    ]


async def test_virtual_wall_time_runs_with_trios_clock(mock_clock: MockClock) -> None:
    clock = VirtualClock()
    assert clock.wall_ms() == VIRTUAL_EPOCH_MS == 1_767_225_600_000
    mock_clock.jump(3 * 24 * 3600)
    assert clock.wall_ms() == VIRTUAL_EPOCH_MS + 3 * 24 * 3_600_000
    assert clock.monotonic() == 3 * 24 * 3600
    assert VirtualClock(0).wall_ms() == 3 * 24 * 3_600_000


async def test_who_sleeps_until_a_virtual_instant_wakes_up_at_it(autojump_clock: MockClock) -> None:
    clock = VirtualClock()
    for milliseconds in (1, 7, 333, 1001):
        before = clock.wall_ms()
        await clock.sleep(milliseconds / 1000)
        assert clock.wall_ms() == before + milliseconds


async def test_a_thread_refuses_to_work_in_virtual_time_and_says_the_way_out(mock_clock: MockClock) -> None:
    runner, ran = OneThread("stellwerk-sqlite"), []
    with pytest.raises(InvariantBroken, match=r"stellwerk-sqlite .* under MockClock: .* use InlineRunner, or let"):
        await runner.run_sync(lambda: ran.append(1))
    assert ran == []
    await InlineRunner().run_sync(lambda: ran.append(2))
    assert ran == [2]
    runner.close()


async def test_the_workers_threads_refuse_to_work_in_virtual_time(mock_clock: MockClock) -> None:
    ran: list[int] = []
    with pytest.raises(Conflict, match=r"under MockClock .* make the worker by engine.worker\(\), .* async def"):
        await SystemThreads().run_sync(lambda: ran.append(1))
    assert ran == []


async def test_a_worker_with_a_plain_function_does_not_begin_in_virtual_time(mock_clock: MockClock) -> None:
    worker = Worker()
    worker.task("greet")(lambda payload: None)
    with pytest.raises(Conflict, match="under MockClock"):
        await worker.serve()


async def test_the_real_clock_lets_threads_work() -> None:
    assert not is_virtual_time()
    assert await SystemThreads().run_sync(lambda: 7) == 7
    assert abs(SystemClock().monotonic() - trio.current_time()) < 1
