"""How long a failed task waits before it is offered again."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BACKOFF_FIRST_MS", "BACKOFF_MAX_MS", "backoff_ms"]

BACKOFF_FIRST_MS = 1_000
BACKOFF_MAX_MS = 5 * 60_000
_DOUBLINGS_MAX = 20
"""Beyond these the cap holds anyway; keeps the shift small whatever the count."""


def backoff_ms(failures: int, backoffs_ms: Sequence[int], jitter: float) -> int:
    """The wait in ms after failure number `failures` (from 1).

    The model's `backoffs_ms` are taken exactly, the last one for all later failures. Without them: 1 s doubling to
    5 min, of which `jitter` (in [0, 1), drawn by the caller) takes away up to a half, so that tasks that failed
    together do not come back together.
    """
    position = max(failures, 1) - 1
    if backoffs_ms:
        return backoffs_ms[min(position, len(backoffs_ms) - 1)]
    full = min(BACKOFF_FIRST_MS << min(position, _DOUBLINGS_MAX), BACKOFF_MAX_MS)
    return full - int(full * jitter / 2)
