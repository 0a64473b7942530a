"""All checkers of a run, put together: those who see the commits, the workers and the clients."""

from __future__ import annotations

from collections.abc import Sequence

from simulations.checks.beliefs import Beliefs
from simulations.checks.black_box import BlackBox
from simulations.checks.clients import ClientChecks
from simulations.checks.commit_checks import CommitChecks
from simulations.checks.drift import Drift
from simulations.checks.final_checks import final_checks
from simulations.cluster.calls import ClientObserver
from simulations.cluster.taps import WorkerObserver
from simulations.kernel.simulation import Simulation
from simulations.plans.plan import DATABASE, Plan
from simulations.world.backends import Backend
from simulations.world.hosts import Hosts
from simulations.world.rows import CommitObserver

__all__ = ["Checks"]


class Checks:
    def __init__(self, simulation: Simulation, plan: Plan, hosts: Hosts, backend: Backend) -> None:
        self._plan = plan
        self._hosts = hosts
        reports = self._reports = simulation.properties
        self.commits = CommitChecks(
            reports,
            is_serialisable=plan.options.isolation == "serialisable",
            highest_wall_ms=self._highest_wall_ms,
        )
        if plan.options.backend == "shared":  # the clock of a file stands still while no node is there
            self.commits.promises.lease_now_ms = backend.lease_now_ms
        self._black_box = BlackBox(reports, simulation.now, self.commits.promises)
        self._beliefs = Beliefs(reports, simulation.now, drift=_drift_of(plan), is_running=self._is_running)
        self._clients = ClientChecks(reports, self.commits.shadow)
        # The beliefs are to know of a commit before any worker hears of it.
        self.of_commits: Sequence[CommitObserver] = (self.commits, self._beliefs)
        self.of_workers: Sequence[WorkerObserver] = (self._black_box, self._beliefs)
        self.of_clients: Sequence[ClientObserver] = (self._clients,)

    def _highest_wall_ms(self, node: str) -> int:
        """A node whose clock was set back may have found a timer due before that, and fire it now."""
        return self._hosts[node.partition("#")[0]].clock.highest_wall_ms()

    def _is_running(self, place: str) -> bool:
        host = self._hosts[place.partition("#")[0]]
        return host.is_up and host.place == place

    def finish(self, backend: Backend) -> None:
        """Once the quiet phase is over."""
        self._black_box.finish()
        self._clients.finish()
        walls = [self._hosts[name].clock.wall_ms() for name in self._plan.node_hosts if self._hosts[name].is_up]
        now_ms, wall_ms = backend.lease_now_ms(), min(walls)
        final_checks(self.commits, backend, self._reports, now_ms=now_ms, wall_ms=wall_ms)


def _drift_of(plan: Plan) -> Drift:
    rates = {host: plan.clock_of(host)[1] for host in plan.hosts}
    nodes = (*plan.node_hosts, *plan.spare_hosts)
    return Drift(rates, nodes, DATABASE if plan.options.backend == "shared" else nodes[0])
