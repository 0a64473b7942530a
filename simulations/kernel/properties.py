"""What must always hold, and what must happen now and then so that a green run means something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from simulations.kernel.trace import Trace
from stellwerk.values import frozen

__all__ = ["Properties", "Violation"]


@frozen
class Violation:
    invariant: str
    """Its name in the list of invariants: ``L2``, ``V1``."""
    message: str
    us: int

    def __str__(self) -> str:
        return f"[{self.invariant}] {self.message} (at {self.us / 1e6:.6f} s)"


class Properties:
    def __init__(self, trace: Trace, now: Callable[[], float], on_violation: Callable[[], None]) -> None:
        self._trace = trace
        self._now = now
        self._on_violation = on_violation
        self.hits: Counter[str] = Counter()
        """How often what should happen now and then did."""
        self.violations: list[Violation] = []
        self.is_closed = False
        """The run is taken down: what breaks now was broken by that."""

    def sometimes(self, name: str, happened: bool = True) -> None:
        if happened and not self.is_closed:
            self.hits[name] += 1

    def always(self, invariant: str, holds: bool, message: str | Callable[[], str]) -> None:
        """The first violation ends the run."""
        if holds or self.is_closed:
            return
        text = message if isinstance(message, str) else message()
        violation = Violation(invariant, text, round(self._now() * 1e6))
        self.violations.append(violation)
        self._trace("checks", "violation", invariant=invariant, message=text)
        self._on_violation()
