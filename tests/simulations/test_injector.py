"""What goes wrong in a simulation does so as its plan says, and in the quiet phase nothing is wrong any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio

from simulations.kernel.simulation import Simulation
from simulations.plans.drawing import draw_plan
from simulations.plans.faults import FAULTS
from simulations.plans.injector import Injector, planned_steps
from simulations.plans.plan import CLIENT, DATABASE, Fault, FaultKind, Options, Plan
from simulations.plans.stage import Stage
from simulations.world.database import Database
from simulations.world.hosts import HostClock, Hosts
from simulations.world.network import Network, NetworkSettings


class Machines:
    """Hosts whose programs wait until they are told to leave, which takes them half a second."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._leaving: dict[str, trio.Event] = {}
        self.booted_too_early: list[str] = []
        """What was still on its way out: a cluster boots it later."""
        self.versions: list[int] = []
        self.armed: dict[str, tuple[str, int]] = {}
        self.hint_loss: list[float] = []

    def boot(self, host: str) -> None:
        if not self._hosts[host].is_up:
            self._leaving[host] = trio.Event()
            self._hosts.start(host, lambda: self._run(host))
        elif self._leaving[host].is_set():
            self.booted_too_early.append(host)

    async def _run(self, host: str) -> None:
        await self._leaving[host].wait()
        await trio.sleep(0.5)

    def leave(self, host: str) -> None:
        if self._hosts[host].is_up:
            self._leaving[host].set()

    def redeploy(self, version: int) -> None:
        self.versions.append(version)

    def crash_at(self, host: str, site: str, passes: int) -> None:
        self.armed[host] = (site, passes)

    def disarm(self, host: str) -> None:
        self.armed.pop(host, None)

    def lose_hints(self, chance: float) -> None:
        self.hint_loss.append(chance)


class World:
    """All hosts of the plan, all up, with a network and a database."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.simulation = Simulation(plan.seed, keep_trace=True)
        self.network = Network(self.simulation, NetworkSettings(slow=0.0))
        self.hosts: Hosts
        self.database: Database
        self.machines: Machines
        self.injector: Injector
        self._error: BaseException | None = None

    def run(self, body: Callable[[], Awaitable[None]]) -> World:
        """The injector at work, and beside it `body`, which ends the run."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                self._build(nursery)
                nursery.start_soon(self.injector.run)
                try:
                    await body()
                except Exception as error:
                    self._error = error
                self.simulation.abort()

        self.simulation.run(main)
        if self._error is not None:
            raise self._error
        assert not self.simulation.properties.violations
        return self

    def _build(self, nursery: trio.Nursery) -> None:
        self.hosts = Hosts(self.simulation, self.network, nursery)
        for name in self.plan.hosts:
            self.hosts.add(name, HostClock(self.simulation))
        self.database = Database(self.simulation, self.hosts, self.network, self.hosts[DATABASE].clock)
        self.database.start()
        self.machines = Machines(self.hosts)
        for name in self.plan.program_hosts:
            if name not in self.plan.spare_hosts:
                self.machines.boot(name)
        stage = Stage(self.plan, self.hosts, self.network, self.database, self.machines)
        self.injector = Injector(self.simulation, stage)

    def run_until_quiet(self) -> World:
        async def body() -> None:
            await trio.sleep(self.plan.options.chaos_seconds)
            self.injector.heal()
            await trio.sleep(3)

        return self.run(body)

    def told(self, *, apart_from: str = "") -> list[tuple[int, object, object]]:
        """The fault rows of the trace: when, which and which phase."""
        return [
            (row.us, row.data["key"], row.data["phase"])
            for row in self.simulation.trace.rows
            if row.kind == "fault" and row.data.get("key", apart_from) != apart_from
        ]

    def assert_healthy(self) -> None:
        for name in self.plan.program_hosts:
            host = self.hosts[name]
            assert not host.is_frozen
            if name not in self.plan.spare_hosts:
                assert host.is_up == (name not in self.plan.options.stays_dead), name
        for a in self.plan.hosts:
            assert not any(self.network.is_cut(a, b) for b in self.plan.hosts)
        now, phases = self.simulation.now(), self.database.phases
        assert self.database.is_up
        assert phases.read_only_until <= now
        assert phases.unavailable_until <= now
        assert max(phases.slow_until, phases.refuses_until, phases.loses_until) <= now
        assert not self.machines.armed
        assert self.machines.hint_loss[-1] == 0.0


def world_of(*faults: Fault, chaos_seconds: float = 10.0, **options: object) -> World:
    made = attrs.evolve(Options(chaos_seconds=chaos_seconds), **options)  # type: ignore[arg-type]
    return World(Plan(seed=1, options=made, faults=faults))


def fault(kind: FaultKind, at: float, seconds: float = 2.0, host: str = "node-1", **more: object) -> Fault:
    made = Fault(key=f"{kind}@{at:g}", kind=kind, at=at, seconds=seconds, host=host)
    return attrs.evolve(made, **more)  # type: ignore[arg-type]


async def at(seconds: float) -> None:
    await trio.sleep(seconds - trio.current_time())


# --- in time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("seed", range(4))
def test_all_faults_happen_in_time_and_then_nothing_is_wrong(seed: int, size: str) -> None:
    plan = draw_plan(seed, "large" if size == "large" else "small", backend="shared")
    world = World(plan).run_until_quiet()
    begun = {key: us / 1e6 for us, key, phase in world.told() if phase == "begin"}
    assert begun == {fault.key: fault.at for fault in plan.faults}
    assert set(world.injector.began) <= set(FAULTS)
    assert sum(world.injector.began.values()) >= len(plan.faults) / 2
    world.assert_healthy()


@pytest.mark.parametrize("seed", range(3))
def test_one_fault_less_shifts_none_of_the_others(seed: int) -> None:
    plan = draw_plan(seed, "small", backend="shared")
    everything = World(plan).run_until_quiet()
    for gone in plan.faults[::6]:
        without = attrs.evolve(plan, faults=tuple(fault for fault in plan.faults if fault != gone))
        assert World(without).run_until_quiet().told() == everything.told(apart_from=gone.key)


def test_one_seed_has_one_trace() -> None:
    plan = draw_plan(7, "small", backend="shared")
    first, second = (World(plan).run_until_quiet().simulation.trace for _ in range(2))
    assert first.count > len(plan.faults)
    assert first.digest() == second.digest()


def test_steps_after_the_safety_phase_are_left_out() -> None:
    world = world_of(fault("cut", 9.5, seconds=5, other="worker-1"))
    assert [planned.step.phase for planned in planned_steps(world.plan)] == ["begin"]
    world.run_until_quiet().assert_healthy()


# --- hosts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["node_crash", "node_power_cut"])
def test_a_node_goes_down_and_is_back(kind: FaultKind) -> None:
    world = world_of(fault(kind, 1))

    async def body() -> None:
        await at(1.5)
        assert not world.hosts["node-1"].is_up
        assert world.hosts["node-2"].is_up
        await at(3.5)
        assert (world.hosts["node-1"].is_up, world.hosts["node-1"].incarnation) == (True, 2)

    world.run(body)
    assert world.injector.began == {kind: 1}


def test_who_is_held_down_by_two_faults_is_back_after_both() -> None:
    world = world_of(fault("node_crash", 1, seconds=2), fault("node_power_cut", 2, seconds=4))

    async def body() -> None:
        await at(4)
        assert not world.hosts["node-1"].is_up
        await at(6.5)
        assert (world.hosts["node-1"].is_up, world.hosts["node-1"].incarnation) == (True, 2)

    world.run(body)
    assert world.injector.began == {"node_crash": 1}, "a node that is down cannot lose its power"


def test_a_crash_ends_a_freeze_for_good() -> None:
    world = world_of(
        fault("node_freeze", 1, seconds=5), fault("node_crash", 2, seconds=1), fault("node_freeze", 4, seconds=4)
    )

    async def body() -> None:
        for when, is_frozen in ((1.5, True), (3.5, False), (4.5, True), (6.5, True), (8.5, False)):
            await at(when)
            assert world.hosts["node-1"].is_frozen is is_frozen, when

    world.run(body)


def test_nodes_are_restarted_one_after_the_other() -> None:
    world = world_of(fault("rolling_restart", 1, seconds=0, host="", amount=2.0))

    async def body() -> None:
        for when, first, second in ((1.7, False, True), (2.5, True, True), (3.7, True, False), (4.5, True, True)):
            await at(when)
            assert (world.hosts["node-1"].is_up, world.hosts["node-2"].is_up) == (first, second), when

    world.run(body)


def test_a_boot_is_asked_for_also_while_a_node_is_still_on_its_way_out() -> None:
    world = world_of(fault("rolling_restart", 1, seconds=0, host="", amount=0.4))

    async def body() -> None:
        await at(1.3)
        assert world.machines.booted_too_early == ["node-1"]

    world.run(body)


def test_a_spare_node_joins_and_leaves() -> None:
    world = world_of(fault("node_join", 1, host="node-3"), spare_nodes=1)

    async def body() -> None:
        for when, is_up in ((0.5, False), (1.5, True), (2.9, True), (3.7, False)):
            await at(when)
            assert world.hosts["node-3"].is_up is is_up, when

    world.run(body)


def test_a_planned_crash_is_armed_for_a_while_and_its_node_is_booted_after_it() -> None:
    world = world_of(fault("crash_at", 1, other="after-commit", amount=3))

    async def body() -> None:
        await at(1.5)
        assert world.machines.armed == {"node-1": ("after-commit", 3)}
        world.hosts.power_cut("node-1")
        await at(3.5)
        assert world.machines.armed == {}
        assert world.hosts["node-1"].is_up

    world.run(body)


def test_a_wall_clock_jumps() -> None:
    world = world_of(fault("wall_jump", 1, seconds=0, host="worker-1", amount=-5000))

    async def body() -> None:
        await at(2)
        difference = world.hosts["worker-1"].clock.wall_ms() - world.hosts["worker-2"].clock.wall_ms()
        assert difference == -5000

    world.run(body)


def test_who_stays_dead_is_down_in_the_quiet_phase() -> None:
    dead = ("node-2", "worker-1", "worker-3")
    world = world_of(
        fault("node_freeze", 9, seconds=5, host="node-2"),
        fault("worker_crash", 9, seconds=5, host="worker-3"),
        fault("worker_crash", 9, seconds=5, host="worker-4"),
        stays_dead=dead,
    ).run_until_quiet()
    assert [name for name in world.plan.program_hosts if not world.hosts[name].is_up] == list(dead)
    world.assert_healthy()


# --- network ----------------------------------------------------------------------------------------------------------


def test_a_cut_one_way_within_a_cut_both_ways() -> None:
    world = world_of(
        fault("cut", 1, seconds=2, host="worker-1", other="node-1"),
        fault("cut_one_way", 2, seconds=4, host="worker-1", other="node-1", both=False),
    )

    async def body() -> None:
        for when, forth, back in ((1.5, True, True), (3.5, True, False), (6.5, False, False)):
            await at(when)
            cuts = world.network.is_cut("worker-1", "node-1"), world.network.is_cut("node-1", "worker-1")
            assert cuts == (forth, back), when

    world.run(body)


def test_links_are_swizzled_one_by_one_and_only_of_that_node() -> None:
    world = world_of(fault("swizzle", 1, seconds=4))
    others = (*world.plan.worker_hosts, CLIENT, DATABASE)

    async def body() -> None:
        await at(3)
        cut = [other for other in others if world.network.is_cut("node-1", other)]
        assert 0 < len(cut) < len(others)
        assert not any(world.network.is_cut("node-2", other) for other in others)
        await at(5.1)
        assert not any(world.network.is_cut("node-1", other) for other in others)

    world.run(body)


def test_new_connections_are_refused_for_a_while() -> None:
    world = world_of(fault("refuse_dials", 1, seconds=2))

    async def body() -> None:
        listener = world.network.listen("node-1")
        await at(1.5)
        with pytest.raises(ConnectionRefusedError):
            await world.network.dial("worker-1", "node-1")
        await at(3.5)
        await (await world.network.dial("worker-1", "node-1")).aclose()
        await listener.aclose()

    world.run(body)


def test_of_two_slow_phases_of_one_link_the_slower_counts() -> None:
    world = world_of(
        fault("slow_link", 1, seconds=4, host="worker-1", other="node-1", amount=1.0),
        fault("slow_link", 2, seconds=6, host="worker-1", other="node-1", amount=0.3),
    )

    async def body() -> None:
        for when, expected in ((0.2, 0.0), (3.0, 1.0), (5.5, 0.3), (8.5, 0.0)):
            await at(when)
            await world.network.carry("worker-1", "node-1")
            assert expected <= trio.current_time() - when < expected + 0.1, when

    world.run(body)


# --- database ---------------------------------------------------------------------------------------------------------


def test_of_two_phases_of_the_database_the_worse_counts_until_the_last_one_ends() -> None:
    world = world_of(
        fault("database_refuses", 1, seconds=5, host=DATABASE, amount=0.2),
        fault("database_refuses", 2, seconds=2, host=DATABASE, amount=0.6),
        fault("database_read_only", 2, seconds=1, host=DATABASE),
    )

    async def body() -> None:
        for when, chance in ((1.5, 0.2), (2.5, 0.6), (4.5, 0.2), (6.5, 0.0)):
            await at(when)
            phases = world.database.phases
            assert (phases.refuses_chance if phases.refuses_until > when else 0.0) == chance, when
            assert (phases.read_only_until > when) == (when == 2.5)

    world.run(body)


def test_the_database_crashes_and_its_clock_jumps_forth() -> None:
    world = world_of(
        fault("database_crash", 1, seconds=1, host=DATABASE),
        fault("database_clock_jump", 5, seconds=0, host=DATABASE, amount=9000),
    ).run_until_quiet()
    assert world.database.clock_jumps == 1
    assert world.simulation.properties.hits["database: crashed"] == 1
    world.assert_healthy()


def test_hints_are_lost_for_a_while_and_models_deployed_again() -> None:
    world = world_of(
        fault("hints_lost", 1, seconds=4, host="", amount=0.5),
        fault("hints_lost", 2, seconds=1, host="", amount=1.0),
        fault("redeploy", 3, seconds=0, host="", amount=12),
    )

    async def body() -> None:
        await at(6)

    world.run(body)
    assert world.machines.hint_loss == [0.5, 1.0, 0.5, 0.0]
    assert world.machines.versions == [12]
