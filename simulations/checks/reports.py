"""To whom the checkers report, and how what they remember is taken back when a crash undoes commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, MutableMapping
from typing import Protocol, TypeVar

__all__ = ["Journal", "Reports"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Reports(Protocol):
    """The part of `simulations.kernel.properties.Properties` that checkers use."""

    def sometimes(self, name: str, happened: bool = True) -> None: ...

    def always(self, invariant: str, holds: bool, message: str | Callable[[], str]) -> None: ...


class Journal:
    """How to undo what the checkers noted for each transaction, until it is synced."""

    def __init__(self) -> None:
        self._open: list[Callable[[], object]] = []
        self._closed: deque[tuple[int, list[Callable[[], object]]]] = deque()

    def note(self, undo: Callable[[], object]) -> None:
        self._open.append(undo)

    def put(self, mapping: MutableMapping[K, V], key: K, value: V) -> None:
        if key in mapping:
            before = mapping[key]
            self._open.append(lambda: mapping.__setitem__(key, before))
        else:
            self._open.append(lambda: mapping.pop(key, None))
        mapping[key] = value

    def remove(self, mapping: MutableMapping[K, V], key: K) -> None:
        if key in mapping:
            before = mapping.pop(key)
            self._open.append(lambda: mapping.__setitem__(key, before))

    def close(self, number: int) -> None:
        """All that was noted since the last call belongs to this transaction."""
        self._closed.append((number, self._open))
        self._open = []

    def undo(self, number: int) -> None:
        """:raises ValueError: when that is not the newest transaction."""
        if not self._closed or self._closed[-1][0] != number:
            newest = self._closed[-1][0] if self._closed else None
            raise ValueError(f"transaction {number} cannot be undone, the newest that can is {newest}")
        _, undos = self._closed.pop()
        for undo in reversed(undos):
            undo()

    def forget(self, number: int) -> None:
        """Up to this one nothing will be undone any more."""
        while self._closed and self._closed[0][0] <= number:
            self._closed.popleft()
