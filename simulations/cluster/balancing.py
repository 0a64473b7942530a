"""Which node a worker or client tries next: as behind a load balancer that looks after its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulations.kernel.draws import integer
from simulations.kernel.simulation import Simulation

__all__ = ["Balancer"]

_AVOIDED_SECONDS = 4.0


class Balancer:
    """Of one host. A node that could not be reached lately is tried last."""

    def __init__(self, simulation: Simulation, node_names: Callable[[], Sequence[str]]) -> None:
        self._simulation = simulation
        self._node_names = node_names
        self._failed_at: dict[str, float] = {}

    def order(self, *key: object) -> list[str]:
        """All nodes, each time from another one on.

        :param key: of this decision.
        """
        names = list(self._node_names())
        first = integer(self._simulation.seed, len(names), "balance", *key)
        return sorted(names[first:] + names[:first], key=self._is_avoided)

    def failed(self, node: str) -> None:
        self._failed_at[node] = self._simulation.now()

    def _is_avoided(self, node: str) -> bool:
        return self._simulation.now() - self._failed_at.get(node, float("-inf")) < _AVOIDED_SECONDS
