"""What every program of the cluster runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs

from simulations.cluster.balancing import Balancer
from simulations.cluster.entropy import SeededEntropy
from simulations.cluster.taps import WorkerObserver
from simulations.kernel.simulation import Simulation
from simulations.plans.plan import Plan
from simulations.workloads.base import Workload
from simulations.workloads.performing import Handlers
from simulations.world.hosts import HostClock, Hosts
from simulations.world.network import Network
from stellwerk.ports import Store

__all__ = ["Stores", "Surroundings"]


class Stores(Protocol):
    """`simulations.world.backends.Backend`."""

    def store_for(self, host_name: str, node_id: str, clock: HostClock) -> Store:
        """A store as one node's process has it, not opened yet."""

    def lose_hints(self, chance: float, /) -> None:
        """So likely is a hint lost now; 0: as the plan's options say."""


@attrs.frozen(kw_only=True)
class Surroundings:
    simulation: Simulation
    plan: Plan
    hosts: Hosts
    network: Network
    stores: Stores
    workloads: Mapping[str, Workload]
    """By name: at least those that the plan's instances are of."""
    handlers: Handlers
    node_names: Callable[[], Sequence[str]]
    """Where workers and clients find nodes: those that were started at some time, as a load balancer knows them."""
    worker_observers: Sequence[WorkerObserver] = ()

    def entropy_of(self, place: str, *more: object) -> SeededEntropy:
        return SeededEntropy(self.simulation.draws("process", place, *more))

    def trace(self, place: str, kind: str, **data: object) -> None:
        self.simulation.trace(place, kind, **data)

    def balancer(self) -> Balancer:
        return Balancer(self.simulation, self.node_names)
