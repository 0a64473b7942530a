"""Sleeping in virtual time, without trio's deadlines: as with them, and each host by its own clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from simulations.kernel.clock import Alarm
from simulations.world.hosts import HostClock
from simulations.world.small_world import SmallWorld, takes

HOST = "worker-1"


def run(body: Callable[[SmallWorld], Awaitable[None]]) -> None:
    SmallWorld(HOST).run(body)


def test_sleepers_wake_up_in_the_order_of_time_beside_trios_own_deadlines() -> None:
    woken: list[tuple[float, str]] = []

    async def sleep(name: str, seconds: float) -> None:
        await trio.sleep(seconds)
        woken.append((trio.current_time(), name))

    async def body(_: SmallWorld) -> None:
        async with trio.open_nursery() as nursery:
            for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
                nursery.start_soon(sleep, name, seconds)
            with trio.move_on_after(1.5) as scope:
                await trio.sleep_forever()
            assert scope.cancelled_caught
            woken.append((trio.current_time(), "deadline"))

    run(body)
    assert woken == [(1.0, "a"), (1.5, "deadline"), (2.0, "b"), (3.0, "c")]


def test_a_sleep_that_is_cancelled_ends_and_its_time_wakes_nobody_later() -> None:
    async def body(_: SmallWorld) -> None:
        with takes(1.0), trio.move_on_after(1.0):
            await trio.sleep(2.0)
        with takes(5.0):
            await trio.sleep(5.0)

    run(body)


def test_who_is_cancelled_at_the_instant_at_which_the_sleep_ends_is_cancelled() -> None:
    async def body(world: SmallWorld) -> None:
        ends: list[str] = []

        async def nap(scope: trio.CancelScope) -> None:
            with scope:
                await trio.sleep(1.0)
                ends.append("slept")

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            world.hosts.start(HOST, lambda: nap(scope))
            await trio.sleep(0.5)
            world.hosts.freeze(HOST)
            await trio.sleep(1.0)  # its sleep is over, but it makes no step
            scope.cancel()
            world.hosts.thaw(HOST)
            nursery.cancel_scope.deadline = trio.current_time() + 1
            await world.hosts.ended(HOST)
        assert ends == []

    run(body)


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_time_that_is_none_is_refused_as_by_trio(seconds: float) -> None:
    async def body(_: SmallWorld) -> None:
        with pytest.raises(ValueError, match="cannot sleep"):
            await trio.sleep(seconds)

    run(body)


@pytest.mark.parametrize(("moved_to", "wakes_at"), [(0.5, 1.0), (2.0, 2.0), (6.0, 6.0)])
def test_an_alarm_that_is_moved_rings_once_at_its_last_time(moved_to: float, wakes_at: float) -> None:
    async def body(_: SmallWorld) -> None:
        alarm = Alarm()

        async def move() -> None:
            await trio.sleep(1.0)
            alarm.wake_at(9.0)
            alarm.wake_at(moved_to)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            with takes(wakes_at):
                await alarm.sleep_until(4.0)
        with takes(10.0):
            await alarm.sleep_until(trio.current_time() + 10.0)

    run(body)


def test_an_alarm_is_woken_before_its_time_and_nobody_when_nobody_sleeps() -> None:
    async def body(_: SmallWorld) -> None:
        alarm = Alarm()
        alarm.wake()
        alarm.wake_at(1.0)

        async def wake() -> None:
            await trio.sleep(1.0)
            alarm.wake()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wake)
            with takes(1.0):
                await alarm.sleep_until(float("inf"))

    run(body)


def test_limits_on_a_host_run_by_its_clock_and_end_no_earlier_than_it_shows() -> None:
    rate = 0.9817
    world = SmallWorld()
    clock = HostClock(world.simulation, rate=rate)
    naps: list[tuple[float, float]] = []

    async def program() -> None:
        for number in range(1, 200):
            until = clock.monotonic() + number / 7000
            count = 0
            while (left := until - clock.monotonic()) > 0:
                count += 1
                with trio.move_on_after(left):
                    await trio.sleep_forever()
            naps.append((count, trio.current_time()))
        with takes(2 / rate), pytest.raises(trio.TooSlowError), trio.fail_after(2.0):
            await trio.sleep_forever()

    async def body(world: SmallWorld) -> None:
        world.hosts.add("slow-1", clock)
        world.hosts.start("slow-1", program)
        await world.hosts.ended("slow-1")
        with takes(2.0), trio.move_on_after(2.0):  # the harness has true time
            await trio.sleep_forever()

    world.run(body)
    assert max(count for count, _ in naps) <= 2
