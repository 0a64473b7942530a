"""What can be wrong with the database for a while."""

from __future__ import annotations

from typing import Any

import attrs

from simulations.kernel.draws import between, chance
from simulations.kernel.properties import Properties
from simulations.world.exchanges import Refused, Request

__all__ = ["Phases"]


@attrs.define
class Phases:
    """Each until an instant (true seconds). What a request meets depends on its key alone, not on those before it."""

    seed: int
    properties: Properties
    read_only_until: float = 0.0
    unavailable_until: float = 0.0
    slow_until: float = 0.0
    slow_seconds: float = 0.0
    refuses_until: float = 0.0
    refuses_chance: float = 0.0
    loses_until: float = 0.0
    loses_chance: float = 0.0

    def refuse_if_so(self, request: Request[Any], now: float) -> None:
        """:raises Refused: nothing of it was done."""
        if now < self.unavailable_until:
            self.properties.sometimes("database: unavailable")
            raise Refused("the database system is starting up")
        if request.kind == "read":
            return
        if now < self.read_only_until:
            self.properties.sometimes("database: read-only")
            raise Refused("cannot execute INSERT in a read-only transaction")
        if now < self.refuses_until and chance(self.seed, self.refuses_chance, "refused", request.key):
            self.properties.sometimes("database: transaction refused")
            raise Refused("the transaction was aborted")

    def seconds(self, request: Request[Any], now: float) -> float:
        """How much longer than usual it takes."""
        if now >= self.slow_until:
            return 0.0
        self.properties.sometimes("database: slow")
        return between(self.seed, 0.5 * self.slow_seconds, 1.5 * self.slow_seconds, "slow", request.key)

    def loses_answer(self, request: Request[Any], now: float) -> bool:
        return now < self.loses_until and chance(self.seed, self.loses_chance, "answer lost", request.key)

    def is_silent_loss(self, request: Request[Any]) -> bool:
        """The connection is not reset: whoever waits for the answer waits until his patience ends."""
        return chance(self.seed, 0.25, "silently", request.key)
