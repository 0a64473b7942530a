"""What happened, in an order that a seed decides: rows for people, and a digest of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from simulations.kernel.clock import SimulatedClock
from stellwerk.values import frozen

__all__ = ["Row", "Trace", "line_of"]

_encode = msgspec.json.Encoder(order="sorted").encode


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
        us = round(self._clock.seconds * 1e6)
        self._hash.update(f"{us} {place} {kind} ".encode() + _encode(data))
        if self._is_kept:
            self.rows.append(Row(self.count, us, place, kind, data))

    def digest(self) -> str:
        return self._hash.hexdigest()

    def lines(self) -> Iterator[str]:
        return map(line_of, self.rows)


def line_of(row: Row) -> str:
    return f"{row.us} {row.place} {row.kind} {_encode(row.data).decode()}"
