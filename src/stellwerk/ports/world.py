"""What else the actors need from the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from stellwerk.instants import InstantMs
from stellwerk.ports.store import Store
from stellwerk.values import frozen

__all__ = ["Clock", "Entropy", "Log", "PausePoint", "Ports", "ThreadRunner"]

T = TypeVar("T")


class Clock(Protocol):
    def wall_ms(self) -> InstantMs: ...

    def monotonic(self) -> float:
        """Seconds; trio's clock, so that virtual time holds."""

    async def sleep(self, seconds: float) -> None: ...


class Entropy(Protocol):
    def integer(self, bits: int) -> int:
        """Uniform in [0, 2**bits)."""

    def fraction(self) -> float:
        """Uniform in [0, 1)."""

    def uuid(self) -> str: ...


class ThreadRunner(Protocol):
    async def run_sync(self, function: Callable[[], T]) -> T:
        """Run in the one thread of this runner. Not abandoned when cancelled: the transaction ends first."""


class Log(Protocol):
    """The part of a structlog logger that the actors use."""

    def debug(self, event: str, **values: object) -> object: ...

    def info(self, event: str, **values: object) -> object: ...

    def warning(self, event: str, **values: object) -> object: ...

    def error(self, event: str, **values: object) -> object: ...

    def exception(self, event: str, **values: object) -> object: ...


class PausePoint(Protocol):
    async def __call__(self, name: str) -> None:
        """Does nothing; a simulation stops the node here."""


@frozen(kw_only=True)
class Ports:
    """Everything that a node needs from the world."""

    clock: Clock
    entropy: Entropy
    store: Store
    background: ThreadRunner
    """For long calculations (reading a large file) that must not hold up the actors."""
    log: Log
    pause_point: PausePoint
