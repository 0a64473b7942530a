"""Figures that are counted while the engine works, and read by whoever watches it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import attrs

__all__ = ["BATCH_BOUNDS", "SECONDS_BOUNDS", "Histogram"]

BATCH_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SECONDS_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


@attrs.define
class Histogram:
    bounds: Sequence[float]
    """Each the largest value of its bucket; larger ones have a bucket of their own."""
    counts: list[int] = attrs.field(init=False)
    total: float = 0.0
    """Of all values."""

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
