"""Identifiers: UUIDs of version 7, so that rows that are created together lie together in an index.

The pure core draws no random numbers: it gets a `FreshIds`, which counts upwards from a seed that was drawn outside.
"""

from __future__ import annotations

import hashlib
import uuid

from stellwerk.instants import InstantMs

__all__ = ["FreshIds", "derived_id"]

_COUNTER_BITS = 74
_RAND_B_BITS = 62


class FreshIds:
    """A source of UUIDv7 values (RFC 9562, 5.7) for one step: a timestamp, and 74 bits that grow by one for each id.

    Two sources with the same arguments give the same ids.
    """

    __slots__ = ("_counter", "_prefix")

    def __init__(self, now_ms: InstantMs, entropy: int) -> None:
        """``entropy``: a random integer below 2**74."""
        self._prefix = now_ms & ((1 << 48) - 1)
        # One bit is kept clear, so that counting up does not run over the edge.
        self._counter = entropy & ((1 << (_COUNTER_BITS - 1)) - 1)

    def next(self) -> str:
        """The next id in the usual form with dashes."""
        self._counter += 1
        rand_a = self._counter >> _RAND_B_BITS
        rand_b = self._counter & ((1 << _RAND_B_BITS) - 1)
        value = (self._prefix << 80) | (0x7000 | rand_a) << 64 | (0x2 << 62) | rand_b
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def derived_id(*parts: str) -> str:
    """A UUID (version 8, RFC 9562, 5.8) that depends on nothing but `parts`.

    The same message or the same due timer thus creates the same instance, however often it is tried.
    """
    digest = hashlib.sha256("\x1f".join(parts).encode()).digest()[:16]
    value = int.from_bytes(digest, "big")
    value = (value & ~(0xF << 76)) | (0x8 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(uuid.UUID(int=value))
