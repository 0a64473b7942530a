"""The bodies of requests that are held at a time, over all connections: together they must fit into memory."""

from __future__ import annotations

__all__ = ["Bodies", "HeldBody"]

_FREE_BYTES = 16 * 1024
"""Of each body: whoever fills the memory does not keep out small requests, and 10,000 connections hold little by it."""
_KEPT_BYTES_MIN = 64 * 1024
"""Of a smaller body next to nothing is left once it is read, and its request may wait for minutes."""


class Bodies:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_held = 0
        """Counted ones."""

    def begin(self) -> HeldBody:
        """For one request."""
        return HeldBody(self)

    def has_room(self, more: int, own: int) -> bool:
        """For so much more of a body of which ``own`` bytes are counted. One by itself may be longer."""
        return self.bytes_held + more <= self._bytes_max or self.bytes_held <= own

    def take(self, count: int) -> None:
        self.bytes_held += count

    def give_back(self, count: int) -> None:
        self.bytes_held -= count


class HeldBody:
    """What of one request is in memory. Each must be released in the end."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._size = 0
        self._counted = 0

    def add(self, size: int) -> bool:
        """So much more has come. False: there is no room for it, and nothing is counted any more."""
        more = self._size + size - self._counted
        if self._size + size > _FREE_BYTES and not self._bodies.has_room(more, self._counted):
            self.release()
            return False
        self._size += size
        if self._size > _FREE_BYTES:
            self._bodies.take(more)
            self._counted += more
        return True

    def read(self) -> None:
        """It is complete, and about to become what the endpoint works with."""
        if self._size <= _KEPT_BYTES_MIN:
            self.release()

    def release(self) -> None:
        self._bodies.give_back(self._counted)
        self._counted = 0
