"""Randomness of one process: it follows from the seed, the host and how often that was started."""

from __future__ import annotations

import uuid

from simulations.kernel.draws import Draws

__all__ = ["SeededEntropy"]

_UUID_BITS = 128


class SeededEntropy:
    """`stellwerk.ports.Entropy` and `stellwerk.worker.system.Entropy`."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def integer(self, bits: int) -> int:
        return self._draws.bits(bits)

    def fraction(self) -> float:
        return self._draws.fraction()

    def uuid(self) -> str:
        return str(uuid.UUID(int=self._draws.bits(_UUID_BITS), version=4))
