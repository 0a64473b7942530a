"""Identifiers: UUIDs of version 7, so that rows that are created together lie together in an index; names of processes.

The pure core draws no random numbers: it gets a `FreshIds`, which counts upwards from a seed that was drawn outside.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable

from stellwerk.instants import InstantMs

__all__ = ["FreshIds", "derived_id", "is_among", "process_key_of"]

_COUNTER_BITS = 74
_RAND_B_BITS = 62
_LAST_GROUP_BITS = 48
_LAST_GROUP_VALUES = 1 << _LAST_GROUP_BITS


class FreshIds:
    """A source of UUIDv7 values (RFC 9562, 5.7): a timestamp, and 74 bits that grow by one for each id (6.2, method 2).

    Two sources with the same arguments give the same ids. One source with 74 random bits may serve a process for ever.
    """

    __slots__ = ("_groups", "_high", "_low", "_timestamp")

    def __init__(self, now_ms: InstantMs, entropy: int) -> None:
        """``entropy``: a random integer below 2**74."""
        self._timestamp = now_ms & ((1 << 48) - 1)
        # One bit is kept clear, so that counting up does not run over the edge.
        counter = entropy & ((1 << (_COUNTER_BITS - 1)) - 1)
        self._high, self._low = divmod(counter, _LAST_GROUP_VALUES)
        self._groups = self._first_groups()

    def at(self, now_ms: InstantMs) -> FreshIds:
        """The same source, later or earlier: its ids from here on carry this timestamp, and are still all different."""
        timestamp = now_ms & ((1 << 48) - 1)
        if timestamp != self._timestamp:
            self._timestamp = timestamp
            self._groups = self._first_groups()
        return self

    def next(self) -> str:
        """The next id in the usual form with dashes."""
        self._low += 1
        if self._low == _LAST_GROUP_VALUES:
            self._high, self._low = self._high + 1, 0
            self._groups = self._first_groups()
        return f"{self._groups}{self._low:012x}"

    def _first_groups(self) -> str:
        """All but the last group, which alone changes from one id to the next (nearly always)."""
        rand_a = self._high >> (_RAND_B_BITS - _LAST_GROUP_BITS)
        rand_b = self._high & ((1 << (_RAND_B_BITS - _LAST_GROUP_BITS)) - 1)
        time = f"{self._timestamp:012x}"
        return f"{time[:8]}-{time[8:]}-{0x7000 | rand_a:04x}-{0x8000 | rand_b:04x}-"


def derived_id(*parts: str) -> str:
    """A UUID (version 8, RFC 9562, 5.8) that depends on nothing but `parts`.

    The same message or the same due timer thus creates the same instance, however often it is tried.
    """
    digest = hashlib.sha256("\x1f".join(parts).encode()).digest()[:16]
    value = int.from_bytes(digest, "big")
    value = (value & ~(0xF << 76)) | (0x8 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(uuid.UUID(int=value))


def process_key_of(definition_id: str) -> str:
    """Of ``key:version``. A key without a version, as some requests have it, is itself."""
    return definition_id.rpartition(":")[0] or definition_id


def is_among(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of them is this name, or ends with ``*`` and the name begins like it."""
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in patterns)
