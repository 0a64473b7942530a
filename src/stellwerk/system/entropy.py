"""Randomness from the operating system."""

from __future__ import annotations

import os
import secrets
import time

from stellwerk.ids import FreshIds

__all__ = ["SystemEntropy"]

_FRACTION_BITS = 53
"""As many as a float holds."""
_UUID_BITS = 74
_POOL_BYTES = 4_096
"""Drawn at once: asking the operating system costs more than a step of an instance needs otherwise."""


class SystemEntropy:
    """`Entropy`. Each byte is used once; a forked process draws a pool of its own."""

    def __init__(self) -> None:
        self._pool = b""
        self._used = 0
        self._process_id = os.getpid()

    def integer(self, bits: int) -> int:
        length = (bits + 7) // 8
        return int.from_bytes(self._bytes(length), "big") >> (8 * length - bits)

    def _bytes(self, length: int) -> bytes:
        start, end = self._used, self._used + length
        if end > len(self._pool) or os.getpid() != self._process_id:
            self._pool = secrets.token_bytes(max(_POOL_BYTES, length))
            self._process_id = os.getpid()
            start, end = 0, length
        self._used = end
        return self._pool[start:end]

    def fraction(self) -> float:
        return float(self.integer(_FRACTION_BITS)) / (1 << _FRACTION_BITS)

    def uuid(self) -> str:
        """Version 7: time-ordered."""
        return FreshIds(time.time_ns() // 1_000_000, self.integer(_UUID_BITS)).next()
