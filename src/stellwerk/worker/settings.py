"""What one run of a worker is given, and how long it pauses between attempts."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from stellwerk.values import frozen
from stellwerk.worker.system import Clock, Dial, Endpoint, Entropy, Threads

__all__ = ["CRITICAL_ERRORS_MAX", "Backoff", "Settings", "TokenSource"]

TokenSource: TypeAlias = str | Callable[[], str | Awaitable[str]] | None

CRITICAL_ERRORS_MAX = 5
_BACKOFF_S_MIN = 0.1


@frozen(kw_only=True)
class Settings:
    endpoint: Endpoint
    worker_id: str
    token: TokenSource
    reconnect_seconds_max: float
    dial: Dial
    clock: Clock
    entropy: Entropy
    threads: Threads
    ctrl_c_interrupts: bool
    """Python raises `KeyboardInterrupt` for Ctrl-C wherever the main thread is, a coroutine handler included."""
    idle_timeout_s: float = 0.5
    """Where the worker polls: polls that bring nothing begin so far apart, at least."""
    long_polling_timeout_s: float = 10.0
    """Where the worker polls: how long the engine waits for a task before it answers that there is none."""


class Backoff:
    """Doubling from 0.1 s to the maximum, the second half of it by chance."""

    def __init__(self, longest_s: float, entropy: Entropy) -> None:
        self._longest_s = longest_s
        self._entropy = entropy
        self._failed_attempts = 0

    def next_s(self) -> float:
        longest = min(self._longest_s, math.ldexp(_BACKOFF_S_MIN, min(self._failed_attempts, 10)))
        self._failed_attempts += 1
        return longest * (0.5 + self._entropy.fraction() / 2)

    def reset(self) -> None:
        self._failed_attempts = 0
