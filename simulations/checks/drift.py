"""What the clocks of a plan may spoil of a worker's arithmetic: those that drift by more than the protocol allows for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stellwerk.values import frozen
from stellwerk.wire.session import surely_left

__all__ = ["Drift"]


@frozen
class Drift:
    """The rates of all clocks: their seconds in a true second.

    A lease of length D (true seconds) is given by the store's clock (rate s), counted on by a node's (n), and trusted by
    a worker's (w). In true seconds the node counts at most D * x(s, n) too long, with x(fast, slow) what is left of
    fast / slow - 1 after the protocol's discount for drift. The worker's clock showed at least so much, the node says: it
    goes by a report of the worker, and its own clock since. From then until the worker's deadline, which takes T, the
    worker counts at most T * x(n, w) too long. After an extension it counts all of it by itself, at most D * x(s, w).
    """

    rates: Mapping[str, float]
    """By host; 1 where there is none."""
    nodes: Sequence[str] = ()
    store: str = ""
    """The host by whose clock leases end."""

    def true_length(self, seconds: float) -> float:
        """Of seconds on the store's clock."""
        return seconds / self._rate(self.store)

    def excess(self, place: str, since_told: float, length: float) -> float:
        """So many true seconds the worker may take a lease too long for its own, because of clocks out of bounds.

        :param since_told: from the oldest report of its clock that counts, to its deadline.
        :param length: of the lease when it was given or renewed.
        """
        worker, store = self._rate(place.partition("#")[0]), self._rate(self.store)
        alone = length * _excess(store, worker)
        nodes = [self._rate(node) for node in self.nodes]
        return max(
            alone, *(length * _excess(store, node) + since_told * _excess(node, worker) for node in nodes or [store])
        )

    def _rate(self, host: str) -> float:
        return self.rates.get(host, 1.0)


def _excess(fast: float, slow: float) -> float:
    return max(0.0, surely_left(fast / slow) - 1.0)
