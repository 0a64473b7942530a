"""Machines of the simulated world: clocks that are wrong, programs that stand still or die without a word."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from simulations.kernel.scheduling import PLACE
from simulations.kernel.seal import EPOCH_MS
from simulations.kernel.simulation import Simulation
from simulations.world.hosts import HostClock, Hosts
from simulations.world.small_world import SmallWorld

# --- clocks -----------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_off_and_runs_too_fast() -> None:
    world = SmallWorld()

    async def body(world: SmallWorld) -> None:
        clock = HostClock(world.simulation, offset_ms=-3_600_000, rate=1.02)
        assert clock.wall_ms() == EPOCH_MS - 3_600_000
        await trio.sleep(100)
        assert clock.wall_ms() == EPOCH_MS - 3_600_000 + 102_000
        assert clock.monotonic() == pytest.approx(102)
        assert clock.true_time_of(clock.monotonic()) == pytest.approx(100)

    world.run(body)


def test_a_clock_knows_the_latest_instant_that_it_has_shown() -> None:
    world = SmallWorld()

    async def body(world: SmallWorld) -> None:
        clock = HostClock(world.simulation, offset_ms=500)
        assert clock.highest_wall_ms() == EPOCH_MS + 500
        await trio.sleep(10)
        clock.jump(-5_000)
        await trio.sleep(1)
        assert (clock.wall_ms(), clock.highest_wall_ms()) == (EPOCH_MS + 6_500, EPOCH_MS + 10_500)
        await trio.sleep(10)
        assert clock.highest_wall_ms() == clock.wall_ms() == EPOCH_MS + 16_500

    world.run(body)


def test_a_jump_moves_the_wall_clock_and_nothing_else() -> None:
    world = SmallWorld()

    async def body(world: SmallWorld) -> None:
        clock = HostClock(world.simulation)
        await clock.sleep(5)
        clock.jump(-60_000)
        assert (clock.wall_ms(), clock.monotonic()) == (EPOCH_MS - 55_000, 5)
        clock.jump(3_660_000)
        assert (clock.wall_ms(), clock.monotonic()) == (EPOCH_MS + 3_605_000, 5)

    world.run(body)


def test_who_sleeps_until_an_instant_finds_that_it_has_come() -> None:
    world = SmallWorld()

    async def body(world: SmallWorld) -> None:
        clock = HostClock(world.simulation, rate=0.9817)
        for number in range(1, 500):
            before = clock.wall_ms()
            until = clock.monotonic() + number / 7000
            naps = 0
            while (left := until - clock.monotonic()) > 0:
                naps += 1
                await clock.sleep(left)
            assert naps <= 2, "each nap goes on by a microsecond at least"
            await clock.sleep(number / 1000)
            assert clock.wall_ms() >= before + number

    world.run(body)


def test_the_monotonic_times_of_two_machines_cannot_be_compared() -> None:
    world = SmallWorld("node-1", "node-2")

    async def body(world: SmallWorld) -> None:
        await trio.sleep(7)
        one, two = (world.hosts[name].clock for name in ("node-1", "node-2"))
        assert abs(one.monotonic() - two.monotonic()) > 60
        for clock in (one, two):
            assert clock.true_time_of(clock.monotonic() + 1) == pytest.approx(8)
            assert clock.wall_ms() == EPOCH_MS + 7_000

    world.run(body)


def test_a_clock_that_stands_still_is_refused() -> None:
    with pytest.raises(ValueError, match="rate"):
        HostClock(Simulation(1), rate=0.0)


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_program_and_its_tasks_know_where_they_run() -> None:
    world = SmallWorld("node-1")
    places: list[str] = []

    async def child() -> None:
        places.append(PLACE.get())

    async def program() -> None:
        places.append(PLACE.get())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    async def body(world: SmallWorld) -> None:
        for _ in range(2):
            world.hosts.start("node-1", program)
            assert PLACE.get() == ""
            await world.hosts.ended("node-1")
            assert not world.hosts["node-1"].is_up

    world.run(body)
    assert places == ["node-1#1", "node-1#1", "node-1#2", "node-1#2"]
    assert world.kinds("node-1#2") == ["boot", "exit"]


@pytest.mark.parametrize("kill", [Hosts.power_cut, Hosts.stop])
def test_after_a_kill_nothing_of_the_program_runs_not_even_its_finally(kill: Callable[[Hosts, str], None]) -> None:
    world = SmallWorld("node-1")
    steps: list[str] = []

    async def program() -> None:
        place = PLACE.get()
        try:
            while True:
                steps.append(place)
                await trio.sleep(1)
        finally:
            if not world.simulation.is_over:
                steps.append("finally")

    async def body(world: SmallWorld) -> None:
        world.hosts.start("node-1", program)
        await trio.sleep(2.5)
        kill(world.hosts, "node-1")
        assert not world.hosts["node-1"].is_up
        await world.hosts.stopped("node-1")
        kill(world.hosts, "node-1")
        await trio.sleep(10)
        assert steps == ["node-1#1"] * 3
        world.hosts.start("node-1", program)
        await trio.sleep(1.5)
        assert steps == ["node-1#1"] * 3 + ["node-1#2"] * 2

    world.run(body)
    assert world.kinds("node-1#1") == ["boot", "crash"]


def test_a_frozen_host_makes_no_step_while_time_goes_on() -> None:
    world = SmallWorld("worker-1", "worker-2")
    ticks: dict[str, list[float]] = {"worker-1": [], "worker-2": []}

    def ticking(name: str) -> Callable[[], Awaitable[None]]:
        async def program() -> None:
            clock = world.hosts[name].clock
            began = clock.monotonic()
            while True:
                await clock.sleep(1)
                ticks[name].append(clock.monotonic() - began)

        return program

    async def body(world: SmallWorld) -> None:
        for name in ticks:
            world.hosts.start(name, ticking(name))
        await trio.sleep(2.5)
        world.hosts.freeze("worker-1")
        assert world.hosts["worker-1"].is_frozen
        await trio.sleep(3)
        world.hosts.thaw("worker-1")
        await trio.sleep(0.75)

    world.run(body)
    assert ticks == {"worker-1": [1, 2, 5.5], "worker-2": [1, 2, 3, 4, 5, 6]}
    assert world.kinds("worker-1#1") == ["boot", "freeze", "thaw"]


def test_a_frozen_host_that_loses_power_starts_again_unfrozen() -> None:
    world = SmallWorld("node-1")
    starts: list[str] = []

    async def program() -> None:
        starts.append(PLACE.get())
        await trio.sleep_forever()

    async def body(world: SmallWorld) -> None:
        world.hosts.start("node-1", program)
        await trio.sleep(1)
        world.hosts.freeze("node-1")
        world.hosts.power_cut("node-1")
        world.hosts.thaw("node-1")
        world.hosts.start("node-1", program)
        await trio.sleep(1)

    world.run(body)
    assert starts == ["node-1#1", "node-1#2"]
    assert world.kinds("node-1#1") == ["boot", "freeze", "crash"]


def test_what_a_program_raises_is_a_violation_that_says_where() -> None:
    world = SmallWorld("node-1")

    async def fail() -> None:
        await trio.sleep(3)
        raise RuntimeError("the disk is on fire")

    async def program() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)

    async def body(world: SmallWorld) -> None:
        world.hosts.start("node-1", program)
        await trio.sleep(10)

    world.run(body, violations=["P0"])
    [violation] = world.simulation.properties.violations
    assert (violation.invariant, violation.us) == ("P0", 3_000_000)
    assert violation.message.startswith("node-1#1 broke: RuntimeError: the disk is on fire (test_hosts.py:")


def test_wrong_names_and_second_starts_are_refused() -> None:
    world = SmallWorld("node-1")

    async def body(world: SmallWorld) -> None:
        with pytest.raises(KeyError, match="node-9"):
            world.hosts.start("node-9", trio.sleep_forever)
        with pytest.raises(ValueError, match="node-1 already"):
            world.hosts.add("node-1", HostClock(world.simulation))
        world.hosts.start("node-1", trio.sleep_forever)
        with pytest.raises(ValueError, match="node-1#1 is up already"):
            world.hosts.start("node-1", trio.sleep_forever)
        assert "node-1" in world.hosts
        assert [host.name for host in world.hosts] == ["node-1"]

    world.run(body)
