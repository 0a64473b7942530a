"""Randomness from the operating system."""

from __future__ import annotations

import secrets
import time

from stellwerk.ids import FreshIds

__all__ = ["SystemEntropy"]

_FRACTION_BITS = 53
"""As many as a float holds."""
_UUID_BITS = 74


class SystemEntropy:
    """`Entropy`."""

    def integer(self, bits: int) -> int:
        return secrets.randbits(bits)

    def fraction(self) -> float:
        return float(secrets.randbits(_FRACTION_BITS)) / (1 << _FRACTION_BITS)

    def uuid(self) -> str:
        """Version 7: time-ordered."""
        return FreshIds(time.time_ns() // 1_000_000, secrets.randbits(_UUID_BITS)).next()
