"""What clocks that drift by more than the protocol allows for may spoil of a worker's arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stellwerk.values import frozen
from stellwerk.wire.session import surely_left

__all__ = ["Drift"]


@frozen
class Drift:
    """The rates of all clocks: their seconds in a true second.

    A lease of D true seconds is given by the store's clock (rate s), counted on by a node's (n), and trusted by a
    worker's (w). Let x(fast, slow) be what is left of fast / slow - 1 after the protocol's discount for drift; within
    its bound that is nothing. In true seconds

    - the node takes the lease for longer than it is by at most D * x(s, n);
    - what the worker's clock showed at least when the frame was made, the node takes from a report and, from then on,
      its own clock; the worker adds what remains. Together that is T, from the report to the deadline; it is counted
      by the node and waited for by the worker's clock, and so too long by at most T * x(n, w);
    - a lease that it had extended the worker counts all by itself, by at most D * x(s, w) too long.
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
