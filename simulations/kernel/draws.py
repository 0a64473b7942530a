"""Randomness from a seed: numbers that belong to a key, and streams that belong to one.

A decision that has a name (which fault, which instance, which attempt) is drawn by its key alone, so that leaving
another decision out shifts nothing. Only where decisions follow each other on one link or host is there a stream.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Draws", "between", "chance", "fraction", "integer", "pick", "sub_seed"]

T = TypeVar("T")

_BITS = 53
"""As many as a float holds."""
_DECIMALS = 6
"""Durations end at whole microseconds, so that sums of them are the same everywhere."""


def sub_seed(seed: int, *key: object) -> int:
    """64 bits for the key; the parts of a key are strings and integers."""
    text = "/".join(str(part) for part in (seed, *key))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def fraction(seed: int, *key: object) -> float:
    """Uniform in [0, 1)."""
    return (sub_seed(seed, *key) >> (64 - _BITS)) / (1 << _BITS)


def chance(seed: int, probability: float, *key: object) -> bool:
    return fraction(seed, *key) < probability


def integer(seed: int, below: int, *key: object) -> int:
    """Uniform in [0, below)."""
    return sub_seed(seed, *key) % below


def pick(seed: int, options: Sequence[T], *key: object) -> T:
    return options[integer(seed, len(options), *key)]


def between(seed: int, low: float, high: float, *key: object) -> float:
    """Uniform, to the microsecond."""
    return round(low + (high - low) * fraction(seed, *key), _DECIMALS)


class Draws:
    """A stream of its own for each key."""

    def __init__(self, seed: int, *key: object) -> None:
        self._random = random.Random(sub_seed(seed, *key))

    def fraction(self) -> float:
        """Uniform in [0, 1)."""
        return self._random.random()

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def between(self, low: float, high: float) -> float:
        """Uniform, to the microsecond."""
        return round(low + (high - low) * self._random.random(), _DECIMALS)

    def integer(self, below: int) -> int:
        """Uniform in [0, below)."""
        return self._random.randrange(below)

    def bits(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def choice(self, options: Sequence[T]) -> T:
        return options[self._random.randrange(len(options))]
