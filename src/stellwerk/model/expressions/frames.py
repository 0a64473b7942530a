"""What an expression may see, and the account of the work that one evaluation does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions.failures import EvaluationError
from stellwerk.values import frozen

__all__ = ["FUEL_MAX", "Bindings", "Frame"]

FUEL_MAX: Final = 100_000
"""Node visits in one evaluation."""
ITEMS_FOR_ONE_FUEL: Final = 8
CHARACTERS_FOR_ONE_FUEL: Final = 1024
"""Work inside lists and texts, in the currency of node visits, roughly by the time they take."""


@frozen
class Bindings:
    """The world of an expression. Nothing else is reachable from it.

    Values are canonical JSON values and are never changed by an evaluation. A result may share parts with them.
    """

    variables: Mapping[str, JsonValue] = attrs.field(factory=dict)
    """What a bare name means, in all languages."""
    token_payload: JsonValue = None
    """ProcessCube's ``token.current``."""
    token_history: Mapping[str, JsonValue] = attrs.field(factory=dict)
    """ProcessCube's ``token.history``: results of flow nodes by their ids."""
    identity: JsonValue = None
    """ProcessCube's ``identity``: who started the instance."""
    now_ms: int = 0
    """The instant of the command, in milliseconds since 1970, for expressions about the present time."""


class Frame:
    """One evaluation under way."""

    __slots__ = ("bindings", "fuel", "local", "variables")

    def __init__(self, bindings: Bindings, fuel: int) -> None:
        self.bindings = bindings
        self.variables = bindings.variables
        self.local: dict[str, JsonValue] = {}
        """Names that the expression itself binds (entries of a FEEL context); the compiler knows which names."""
        self.fuel = fuel

    def spend(self, amount: int) -> None:
        self.fuel -= amount
        if self.fuel < 0:
            raise EvaluationError(f"it needs more than {FUEL_MAX} steps")

    def spend_items(self, count: int) -> None:
        self.spend(1 + count // ITEMS_FOR_ONE_FUEL)

    def spend_characters(self, count: int) -> None:
        self.spend(1 + count // CHARACTERS_FOR_ONE_FUEL)
