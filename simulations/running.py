"""One run of a plan: the world is built, shaken, left in peace, and judged."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import attrs
import trio

from simulations.checking import Checks
from simulations.cluster.cluster import Cluster
from simulations.cluster.remembering import files_read_once
from simulations.collecting import outcomes_of
from simulations.kernel.properties import Violation
from simulations.kernel.simulation import Simulation
from simulations.kernel.trace import Row
from simulations.plans.injector import Injector
from simulations.plans.plan import Plan
from simulations.plans.stage import Stage
from simulations.quiet import Progress, QuietPhase
from simulations.workloads.judging import judge
from simulations.workloads.registry import WORKLOADS
from simulations.world.backends import Backend, open_backend
from simulations.world.hosts import Hosts
from simulations.world.network import Network, NetworkSettings

__all__ = ["Result", "simulate"]


@attrs.frozen(kw_only=True)
class Result:
    plan: Plan
    violations: Sequence[Violation]
    """At most one: the first ends the run."""
    sometimes: Counter[str]
    counters: Counter[str]
    """Faults that really befell something, by kind."""
    simulated_seconds: float
    cpu_seconds: float
    trace_digest: str
    schedule_digest: str
    rows: Sequence[Row] | None
    """None unless the trace was asked for."""
    commits: int
    steps: int
    """Of tasks of trio."""


def simulate(plan: Plan, *, keep_trace: bool = False, mutant: str | None = None) -> Result:
    """:param mutant: a deliberate bug (`simulations.mutants`) that the engine has in this run."""
    run = _Run(plan, keep_trace=keep_trace)
    began = time.process_time()
    with _mutated(mutant), files_read_once(anew=mutant is not None):
        run.simulation.run(run.main)
    return run.result(time.process_time() - began)


def _mutated(name: str | None) -> AbstractContextManager[object]:
    if name is None:
        return nullcontext()
    from simulations.mutants.registry import MUTANTS

    return MUTANTS[name].apply()


class _Run:
    def __init__(self, plan: Plan, *, keep_trace: bool) -> None:
        self.plan = plan
        self.simulation = Simulation(plan.seed, schedule=plan.options.schedule, keep_trace=keep_trace)
        self._injected: Counter[str] = Counter()
        self._backend: Backend | None = None
        self._keep_trace = keep_trace

    async def main(self) -> None:
        simulation, plan = self.simulation, self.plan
        options = plan.options
        settings = NetworkSettings(latency=options.latency, slow=options.slow, fragment=options.fragment)
        network = Network(simulation, settings)
        async with trio.open_nursery() as nursery:
            hosts = Hosts(simulation, network, nursery)
            with open_backend(simulation, plan, hosts, network) as backend:
                self._backend = backend
                await self._play(backend, hosts, network, nursery)
            simulation.abort()

    async def _play(self, backend: Backend, hosts: Hosts, network: Network, nursery: trio.Nursery) -> None:
        simulation, plan = self.simulation, self.plan
        checks = Checks(simulation, plan, hosts, backend)
        progress = Progress(simulation.now)
        backend.observers.extend([*checks.of_commits, progress])
        cluster = Cluster(
            simulation,
            plan,
            hosts=hosts,
            network=network,
            stores=backend,
            workloads=WORKLOADS,
            nursery=nursery,
            worker_observers=checks.of_workers,
            client_observers=checks.of_clients,
        )
        injector = Injector(simulation, Stage(plan, hosts, network, backend, cluster))
        self._injected = injector.began
        with cluster.tapped():
            backend.start()
            cluster.start()
            await injector.run()
            injector.heal()
            self._set_clocks(hosts)
            cluster.calm()
            await QuietPhase(simulation, backend, cluster, network, progress).settle()
            checks.finish(backend)
            self._judge(backend, cluster)

    def _set_clocks(self, hosts: Hosts) -> None:
        """Timers are due by wall clocks: one that was armed by a clock an hour ahead of all that live now would keep
        everybody waiting for an hour, and rightly so."""
        clocks = [hosts[name].clock for name in (*self.plan.node_hosts, *self.plan.spare_hosts)]
        latest_ms = max(clock.highest_wall_ms() for clock in clocks)
        for clock in clocks:
            clock.jump(max(0, latest_ms - clock.wall_ms()))

    def _judge(self, backend: Backend, cluster: Cluster) -> None:
        for key, problem in judge(WORKLOADS, self.plan.instances, outcomes_of(backend, cluster)):
            self.simulation.properties.always("W", False, f"{key} {problem}")

    def result(self, cpu_seconds: float) -> Result:
        simulation = self.simulation
        return Result(
            plan=self.plan,
            violations=simulation.properties.violations,
            sometimes=simulation.properties.hits,
            counters=self._injected,
            simulated_seconds=simulation.now(),
            cpu_seconds=cpu_seconds,
            trace_digest=simulation.trace.digest(),
            schedule_digest=simulation.scheduler.digest(),
            rows=simulation.trace.rows if self._keep_trace else None,
            commits=0 if self._backend is None else self._backend.commit_count,
            steps=simulation.scheduler.steps,
        )
