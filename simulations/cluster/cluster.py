"""All programs of a run on their hosts, and what faults and the harness can do to them."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import trio

from simulations.cluster.calls import ClientObserver
from simulations.cluster.clients import ClientProgram
from simulations.cluster.nodes import NodeProgram
from simulations.cluster.operator import OperatorProgram
from simulations.cluster.pauses import PausePoints
from simulations.cluster.surroundings import Stores, Surroundings
from simulations.cluster.taps import WorkerObserver, tapped_workers
from simulations.cluster.tracing import WorkerTrace
from simulations.cluster.workers import WorkerProgram
from simulations.kernel.draws import between
from simulations.kernel.scheduling import PLACE
from simulations.kernel.simulation import Simulation
from simulations.plans.plan import CLIENT, OPERATOR, Plan
from simulations.workloads.base import Workload
from simulations.workloads.performing import Handlers
from simulations.world.hosts import HostClock, Hosts
from simulations.world.network import Network

__all__ = ["Cluster"]

STORM = "storm"
"""The workload whose topic the storm workers wait for."""
_NO_TOPIC = ("nothing",)
_START_SECONDS_MAX = 0.2
"""Within so long everything is switched on."""
_REBOOT_SECONDS = (0.2, 3.0)
"""Until a worker runs again that a handler took with it."""


class Program(Protocol):
    async def run(self) -> None: ...

    def leave(self) -> None: ...


class Cluster:
    """`simulations.plans.stage.ClusterActions`, and the life of a run."""

    def __init__(
        self,
        simulation: Simulation,
        plan: Plan,
        *,
        hosts: Hosts,
        network: Network,
        stores: Stores,
        workloads: Mapping[str, Workload],
        nursery: trio.Nursery,
        worker_observers: Sequence[WorkerObserver] = (),
        client_observers: Sequence[ClientObserver] = (),
    ) -> None:
        """Adds the hosts of all programs to `hosts`; the database's is the backend's.

        :param nursery: of the harness, for what the cluster does later.
        """
        self.plan = plan
        self._simulation = simulation
        self._hosts = hosts
        self._stores = stores
        self._nursery = nursery
        self._is_calm = False
        self._leaving: set[str] = set()
        self._to_boot: set[str] = set()
        """As soon as they have left."""
        self.handlers = Handlers(workloads, plan.instances, simulation.now)
        self.pauses = PausePoints(simulation, plan.options.pause_seconds, self._power_cut)
        self.surroundings = Surroundings(
            simulation=simulation,
            plan=plan,
            hosts=hosts,
            network=network,
            stores=stores,
            workloads=workloads,
            handlers=self.handlers,
            node_names=self._node_names,
            worker_observers=(WorkerTrace(simulation), *worker_observers),
        )
        for name in (*plan.program_hosts, CLIENT, OPERATOR):
            offset_ms, rate = plan.clock_of(name)
            hosts.add(name, HostClock(simulation, offset_ms=offset_ms, rate=rate))
        self.client = ClientProgram(self.surroundings, hosts[CLIENT], client_observers)
        self._operator = OperatorProgram(self.surroundings, hosts[OPERATOR])
        self.nodes = {
            name: NodeProgram(self.surroundings, hosts[name], self.pauses)
            for name in (*plan.node_hosts, *plan.spare_hosts)
        }
        self.workers = {name: self._worker(name) for name in (*plan.worker_hosts, *plan.storm_hosts)}

    def _worker(self, name: str) -> WorkerProgram:
        async def wish_crash() -> None:
            await self._grant_crash(name)

        return WorkerProgram(self.surroundings, self._hosts[name], self._topics(name), wish_crash)

    def _topics(self, host: str) -> Sequence[str]:
        kinds = dict.fromkeys(spec.kind for spec in self.plan.instances)
        if host in self.plan.storm_hosts and STORM in kinds:
            kinds = dict.fromkeys([STORM])
        topics = dict.fromkeys(topic for kind in kinds for topic in self.surroundings.workloads[kind].topics)
        return tuple(topics) or _NO_TOPIC

    def _node_names(self) -> Sequence[str]:
        return [name for name in self.nodes if name in self.plan.node_hosts or self._hosts[name].incarnation > 0]

    def is_up(self, host: str) -> bool:
        return self._hosts[host].is_up

    # --- the life of a run -----------------------------------------------------------------------------------------

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """Around everything that the cluster does."""
        with tapped_workers(self._simulation, self.surroundings.worker_observers, lambda host: self._hosts[host].clock):
            yield

    def start(self) -> None:
        """Switch on nodes, workers and the client, each at a moment of its own."""
        for name in (*self.plan.node_hosts, *self.plan.worker_hosts, *self.plan.storm_hosts, CLIENT):
            seconds = between(self._simulation.seed, 0, _START_SECONDS_MAX, "start", name)
            self._nursery.start_soon(self._boot_later, name, seconds, name=f"start {name}")

    def calm(self) -> None:
        """The quiet phase begins: nobody lingers, nobody crashes by itself, and the operator comes."""
        self._is_calm = True
        self.pauses.calm()
        self.boot(OPERATOR)

    async def _boot_later(self, name: str, seconds: float) -> None:
        await trio.sleep(seconds)
        if not (self._is_calm and name in self.plan.options.stays_dead):
            self.boot(name)

    # --- what faults do --------------------------------------------------------------------------------------------

    def boot(self, host: str) -> None:
        """The host's program shall run: start it if it does not, as soon as it has ended if it is on its way out."""
        if not self._hosts[host].is_up:
            self._leaving.discard(host)
            self._to_boot.discard(host)
            self._hosts.start(host, lambda: self._run(host))
        elif host in self._leaving:
            self._to_boot.add(host)

    def leave(self, host: str) -> None:
        """The program drains, hands over and ends, and is not started again until `boot`."""
        self._to_boot.discard(host)
        if self._hosts[host].is_up and host not in self._leaving:
            self._leaving.add(host)
            self._program(host).leave()

    def redeploy(self, version: int) -> None:
        """The client deploys some of the models once more, as versions that do the same."""
        self.client.redeploy(version)

    def crash_at(self, host: str, site: str, passes: int) -> None:
        """Power cut when the host passes this pause point for the so-manieth time from now on."""
        self.pauses.crash_at(host, site, passes)

    def disarm(self, host: str) -> None:
        """No crash is planned any more."""
        self.pauses.disarm(host)

    def lose_hints(self, chance: float) -> None:
        """So likely is a hint lost now; 0: as the plan's options say."""
        self._stores.lose_hints(chance)

    # --- programs --------------------------------------------------------------------------------------------------

    def _program(self, host: str) -> Program:
        return self.nodes.get(host) or self.workers[host]

    async def _run(self, host: str) -> None:
        if host == CLIENT:
            await self.client.run()
        elif host == OPERATOR:
            await self._operator.run()
        else:
            await self._program(host).run()
            self._in_harness(self._after_leaving, host)

    async def _after_leaving(self, host: str) -> None:
        await self._hosts.ended(host)
        if host in self._to_boot:
            self.boot(host)

    def _in_harness(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Not at the place of the host that asks for it, so that it goes on whatever befalls the host."""
        context = contextvars.copy_context()
        context.run(PLACE.set, "")
        context.run(lambda: self._nursery.start_soon(function, *arguments))

    # --- crashes from within ---------------------------------------------------------------------------------------

    def _power_cut(self, host: str) -> None:
        self._hosts.power_cut(host)

    async def _grant_crash(self, worker: str) -> None:
        """A handler would like its worker to lose power now. Returns if it does not."""
        if self._is_calm or self._simulation.is_over:
            return
        host = self._hosts[worker]
        seconds = between(self._simulation.seed, *_REBOOT_SECONDS, "reboot", host.place)
        self._simulation.properties.sometimes("worker lost power with its result in hand")
        self._power_cut(worker)
        self._in_harness(self._boot_later, worker, seconds)
        await trio.sleep_forever()
