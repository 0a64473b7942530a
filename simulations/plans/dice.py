"""Keyed draws for one thing in a plan: each decision has a name, and none depends on another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from simulations.kernel import draws
from stellwerk.values import frozen

__all__ = ["Dice", "Span"]

T = TypeVar("T")

Span = tuple[float, float]
"""Lowest and highest."""


@frozen
class Dice:
    seed: int
    key: tuple[str, ...]

    def at(self, *key: str) -> Dice:
        """Those of a thing within this one."""
        return Dice(self.seed, (*self.key, *key))

    def fraction(self, name: str) -> float:
        """Uniform in [0, 1)."""
        return draws.fraction(self.seed, *self.key, name)

    def chance(self, probability: float, name: str) -> bool:
        return draws.chance(self.seed, probability, *self.key, name)

    def between(self, low: float, high: float, name: str) -> float:
        """Uniform, to the microsecond."""
        return draws.between(self.seed, low, high, *self.key, name)

    def pick(self, options: Sequence[T], name: str) -> T:
        """One of options that are always the same."""
        return draws.pick(self.seed, options, *self.key, name)

    def within(self, spans: Sequence[Span], name: str) -> float:
        """Uniform within one of the spans, to the millisecond."""
        low, high = self.pick(spans, f"{name}, which span")
        return round(self.between(low, high, name), 3)

    def favourite(self, names: Sequence[str], name: str) -> str:
        """One of options that come and go: taking away another one changes nothing, and a further one is chosen
        only for itself."""
        return min(names, key=lambda option: (self.fraction(f"{name}: {option}"), option))

    def weighted(self, weights: Mapping[str, int], name: str) -> str:
        """As `favourite`, in proportion to the weights (1 or more): each name takes part so many times."""
        lots = [(option, lot) for option, weight in weights.items() for lot in range(weight)]
        return min(lots, key=lambda lot: (self.fraction(f"{name}: {lot[0]} {lot[1]}"), lot))[0]

    def number(self) -> int:
        """63 bits, for whoever draws on: they fit every format."""
        return draws.sub_seed(self.seed, *self.key) >> 1
