"""What happened, in an order that a seed decides: rows for people, and a digest of all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

from simulations.kernel.clock import SimulatedClock
from stellwerk.values import frozen

__all__ = ["Row", "Trace", "line_of"]


@frozen
class Row:
    number: int
    us: int
    """Microseconds since the start of the simulation."""
    place: str
    """Host and incarnation (``node-1#2``), or the name of a part of the harness."""
    kind: str
    data: Mapping[str, object]
    """JSON values only: nothing whose text depends on the process that writes it."""


class Trace:
    def __init__(self, clock: SimulatedClock, *, is_kept: bool) -> None:
        """:param is_kept: else there is only the digest."""
        self._clock = clock
        self._is_kept = is_kept
        self._hash = hashlib.sha256()
        self.is_closed = False
        """Nothing that happens while a run is taken down belongs to it."""
        self.count = 0
        self.rows: list[Row] = []

    def __call__(self, place: str, kind: str, **data: object) -> None:
        if self.is_closed:
            return
        self.count += 1
        row = Row(self.count, round(self._clock.seconds * 1e6), place, kind, data)
        self._hash.update(line_of(row).encode())
        self._hash.update(b"\n")
        if self._is_kept:
            self.rows.append(row)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def lines(self) -> Iterator[str]:
        return map(line_of, self.rows)


def line_of(row: Row) -> str:
    data = json.dumps(row.data, sort_keys=True, separators=(",", ":"), default=_refuse)
    return f"{row.us} {row.place} {row.kind} {data}"


def _refuse(value: object) -> object:
    raise TypeError(f"a trace holds JSON values, not {type(value).__name__}")
