"""The kernel: one seed gives one run, whatever else differs; and whatever would break that is found."""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio._core._run

from simulations.kernel import scheduling
from simulations.kernel.draws import Draws, between, chance, fraction, integer, pick
from simulations.kernel.scheduling import PLACE, Scheduler, deterministic
from simulations.kernel.simulation import Simulation

ROOT = Path(__file__).parents[2]

# What upsets trio's own order: ties of deadlines, a cancelled nursery, sets that are ordered by addresses.
DISORDER = """
import json, sys
import trio
from simulations.kernel.simulation import Simulation

async def worker(simulation, name):
    for step in range(5):
        await trio.sleep(0.5)
        simulation.trace(name, "step", step=step)
    try:
        await trio.sleep_forever()
    finally:
        simulation.trace(name, "end")

async def main(simulation):
    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(worker, simulation, f"w{number}")
        await trio.sleep(3)
        nursery.cancel_scope.cancel()
    for number in range(3):
        simulation.trace("harness", "draw", number=simulation.draws("a").bits(32))

seed, schedule = int(sys.argv[1]), sys.argv[2]
garbage = [object() for _ in range(int(sys.argv[3]))]
simulation = Simulation(seed, schedule=schedule)
simulation.run(lambda: main(simulation))
print(json.dumps([simulation.trace.digest(), simulation.scheduler.digest(), simulation.now()]))
"""


def digests(seed: int, schedule: str, hash_seed: str, garbage: int) -> list[Any]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", DISORDER, str(seed), schedule, str(garbage)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("schedule", ["keyed", "fifo"])
def test_one_seed_gives_one_run_in_every_process(schedule: str) -> None:
    runs = [digests(7, schedule, hash_seed, garbage) for hash_seed, garbage in (("0", 0), ("1", 99), ("random", 5))]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][2] == 3.0


def test_another_seed_gives_another_order() -> None:
    assert digests(7, "keyed", "0", 0)[0] != digests(8, "keyed", "0", 0)[0]


def run(main: Callable[[Simulation], Any], seed: int = 1, **options: Any) -> Simulation:
    simulation = Simulation(seed, keep_trace=True, **options)
    simulation.run(partial(main, simulation))
    return simulation


def broken(simulation: Simulation) -> list[str]:
    return [violation.invariant for violation in simulation.properties.violations]


# --- time ----------------------------------------------------------------------------------------------------------


def test_days_pass_in_no_time() -> None:
    async def main(simulation: Simulation) -> None:
        await trio.sleep(7 * 86_400)
        simulation.trace("a", "woke")

    simulation = run(main)
    assert simulation.trace.rows[0].us == 7 * 86_400 * 1_000_000
    assert not simulation.properties.violations


def test_waiting_for_ever_is_a_deadlock() -> None:
    async def main(_: Simulation) -> None:
        await trio.sleep_forever()

    assert broken(run(main)) == ["P2"]


def test_going_round_in_circles_is_a_livelock() -> None:
    async def circle() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async def main(_: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(circle, name="circle")

    simulation = run(main)
    assert broken(simulation) == ["P1"]
    assert "circle" in simulation.properties.violations[0].message


def test_going_round_in_circles_that_take_hardly_any_time_is_a_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(_: Simulation) -> None:
        while True:
            await trio.sleep(0.000_001)

    monkeypatch.setattr(scheduling, "_STEPS_MAX", 1_000)
    simulation = run(main)
    assert broken(simulation) == ["P1"]
    assert "steps of tasks and no end" in simulation.properties.violations[0].message


STUBBORN = """
import sys
import trio
from simulations.kernel.simulation import Simulation

async def goes_on():
    with trio.CancelScope(shield=True):
        while True:
            await trio.sleep(float(sys.argv[1]))

async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(goes_on)
        simulation.properties.always("X", False, "broken")

simulation = Simulation(1)
simulation.run(main)
"""


@pytest.mark.parametrize(
    ("pause", "why"), [("0", "steps of tasks at one instant"), ("0.5", "still goes on after 600 s")]
)
def test_what_cannot_be_cancelled_does_not_hang_the_harness(pause: str, why: str) -> None:
    """Otherwise the end of a run, with or without a violation, would be waited for for ever."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", STUBBORN, pause]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Stuck: the run cannot be taken down" in done.stderr
    assert why in done.stderr


def test_an_error_that_nobody_caught_is_found() -> None:
    async def main(_: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise KeyError("somewhere")

    simulation = run(main)
    assert broken(simulation) == ["P0"]
    assert "somewhere" in simulation.properties.violations[0].message


def test_the_first_violation_ends_the_run() -> None:
    async def main(simulation: Simulation) -> None:
        for number in range(3):
            await trio.sleep(1)
            simulation.properties.always("X", number != 1, f"number {number}")
        simulation.properties.sometimes("never reached")

    simulation = run(main)
    assert [str(violation) for violation in simulation.properties.violations] == ["[X] number 1 (at 2.000000 s)"]
    assert not simulation.properties.hits


# --- places --------------------------------------------------------------------------------------------------------


async def ticking(simulation: Simulation, place: str) -> None:
    try:
        while True:
            await trio.sleep(1)
            simulation.trace(place, "tick")
    finally:
        simulation.trace(place, "finally")


def start(nursery: trio.Nursery, simulation: Simulation, place: str) -> None:
    token = PLACE.set(place)
    nursery.start_soon(ticking, simulation, place)
    PLACE.reset(token)


def test_a_frozen_place_makes_no_step_and_then_goes_on() -> None:
    async def main(simulation: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            start(nursery, simulation, "a")
            start(nursery, simulation, "b")
            await trio.sleep(1.5)
            simulation.scheduler.freeze("a")
            await trio.sleep(3)
            simulation.scheduler.thaw("a")
            await trio.sleep(1.2)
            nursery.cancel_scope.cancel()

    times = {"a": [1.0, 4.5, 5.5], "b": [1.0, 2.0, 3.0, 4.0, 5.0]}
    simulation = run(main)
    for place, expected in times.items():
        ticks = [row.us / 1e6 for row in simulation.trace.rows if row.place == place and row.kind == "tick"]
        assert ticks == expected


def test_after_a_power_cut_no_finally_runs() -> None:
    async def main(simulation: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            start(nursery, simulation, "a")
            await trio.sleep(1.5)
            simulation.scheduler.kill("a")
            nursery.cancel_scope.cancel()
            await trio.sleep(0)

    simulation = run(main)
    assert [row.kind for row in simulation.trace.rows if row.place == "a"] == ["tick"]


def test_after_a_power_cut_nobody_makes_a_step_whose_turn_comes_at_that_very_instant() -> None:
    """All wake at once: whoever comes first cuts the power of the others."""

    async def main(simulation: Simulation) -> None:
        async def cut_the_others(place: str) -> None:
            await trio.sleep(1)
            if simulation.is_over:
                return
            simulation.trace(place, "tick")
            for other in "abcde".replace(place, ""):
                simulation.scheduler.kill(other)

        async with trio.open_nursery() as nursery:
            for place in "abcde":
                token = PLACE.set(place)
                nursery.start_soon(cut_the_others, place)
                PLACE.reset(token)
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
            simulation.abort()

    assert [row.us for row in run(main).trace.rows if row.kind == "tick"] == [1_000_000]


# --- the seal ------------------------------------------------------------------------------------------------------


def start_thread() -> None:
    threading.Thread(target=print).start()


async def start_trio_thread() -> None:
    await trio.to_thread.run_sync(print)


async def open_socket() -> None:
    trio.socket.socket()


def sleep() -> None:
    time.sleep(0)


async def dial() -> None:
    await trio.open_tcp_stream("127.0.0.1", 1)


@pytest.mark.parametrize("way_out", [start_thread, start_trio_thread, open_socket, dial, sleep])
def test_reaching_outside_is_found(way_out: Callable[[], Any]) -> None:
    async def main(_: Simulation) -> None:
        reached = way_out()
        if reached is not None:
            await reached

    assert broken(run(main)) == ["P4"]


def test_entropy_and_clocks_are_the_seeds() -> None:
    async def draw(simulation: Simulation) -> None:
        await trio.sleep(1.25)
        drawn = [os.urandom(4).hex(), secrets.token_hex(4), str(uuid.uuid4()), random.random(), time.time()]
        simulation.trace("a", "drawn", drawn=drawn, monotonic=time.monotonic())

    first, again, other = (list(run(draw, seed).trace.lines()) for seed in (1, 1, 2))
    assert first == again != other
    assert '"monotonic":1.25' in first[0]
    assert "1767225601.25" in first[0]


def test_everything_is_as_before_afterwards() -> None:
    before = (os.urandom, time.time, threading.Thread.start, random.getstate())

    async def main(_: Simulation) -> None:
        random.random()

    run(main)
    assert (os.urandom, time.time, threading.Thread.start, random.getstate()) == before


# --- trio ----------------------------------------------------------------------------------------------------------


def test_trio_uses_the_scheduler_and_gets_its_own_back() -> None:
    run_module: Any = trio._core._run
    before = (run_module._ALLOW_DETERMINISTIC_SCHEDULING, run_module._r)
    scheduler = Scheduler(1, "keyed", print)
    with deterministic(scheduler):
        trio.run(trio.sleep, 0)
    assert scheduler.steps > 0
    assert (run_module._ALLOW_DETERMINISTIC_SCHEDULING, run_module._r) == before


def test_a_trio_that_was_not_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio, "__version__", "0.99.0")
    with pytest.raises(RuntimeError, match=r"this is 0\.99\.0"), deterministic(Scheduler(1, "keyed", print)):
        pass


# --- draws ---------------------------------------------------------------------------------------------------------


def test_keyed_draws_belong_to_their_key() -> None:
    assert fraction(1, "a") == fraction(1, "a")
    assert len({fraction(seed, *key) for seed in (1, 2) for key in (("a",), ("b",), ("a", 1), ("a", 2))}) == 8
    assert all(0 <= fraction(1, number) < 1 for number in range(1000))
    assert 400 < sum(chance(1, 0.5, number) for number in range(1000)) < 600
    assert {integer(1, 3, number) for number in range(50)} == {0, 1, 2}
    assert {pick(1, "xyz", number) for number in range(50)} == set("xyz")
    assert all(2 <= between(1, 2, 3, number) < 3 for number in range(50))


def test_streams_do_not_shift_each_other() -> None:
    alone = Draws(1, "a")
    first = [alone.bits(32) for _ in range(5)]
    beside, other = Draws(1, "a"), Draws(1, "b")
    assert first == [(other.fraction(), beside.bits(32))[1] for _ in range(5)]
