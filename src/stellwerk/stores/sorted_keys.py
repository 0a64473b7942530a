"""A sorted set of tuples that stays quick with a million entries: a list of short sorted lists."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["SortedKeys"]

K = TypeVar("K", bound=tuple[object, ...])

_RUN_MAX = 1_000
"""Keys in one run: moving that many on an insertion is still cheaper than looking at them."""


class SortedKeys(Generic[K]):
    """Add, discard and iterate in order; no duplicates."""

    __slots__ = ("_lasts", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[K]] = []
        self._lasts: list[K] = []
        """The last key of each run."""

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[K]:
        for run in self._runs:
            yield from run

    def add(self, key: K) -> None:
        if not self._runs:
            self._runs.append([key])
            self._lasts.append(key)
            return
        index = min(bisect_left(self._lasts, key), len(self._runs) - 1)
        run = self._runs[index]
        position = bisect_left(run, key)
        if position < len(run) and run[position] == key:
            return
        run.insert(position, key)
        self._lasts[index] = run[-1]
        if len(run) > _RUN_MAX:
            self._split(index)

    def _split(self, index: int) -> None:
        run = self._runs[index]
        half = len(run) // 2
        self._runs[index : index + 1] = [run[:half], run[half:]]
        self._lasts[index : index + 1] = [run[half - 1], run[-1]]

    def discard(self, key: K) -> None:
        index = bisect_left(self._lasts, key)
        if index == len(self._runs):
            return
        run = self._runs[index]
        position = bisect_left(run, key)
        if run[position] != key:
            return
        del run[position]
        if run:
            self._lasts[index] = run[-1]
        else:
            del self._runs[index], self._lasts[index]

    def from_key(self, key: K) -> Iterator[K]:
        """All keys that are not below `key`, in order."""
        index = bisect_left(self._lasts, key)
        if index == len(self._runs):
            return
        run = self._runs[index]
        yield from run[bisect_left(run, key) :]
        for run in self._runs[index + 1 :]:
            yield from run
