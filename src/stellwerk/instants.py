"""Points in time are integers: milliseconds since 1970-01-01T00:00:00Z. Durations are integers in milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

__all__ = ["EPOCH", "INSTANT_MS_MAX", "INSTANT_MS_MIN", "InstantMs", "to_rfc3339"]

InstantMs: TypeAlias = int

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANT_MS_MIN: InstantMs = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
INSTANT_MS_MAX: InstantMs = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
"""What RFC 3339 has years for: 0001 to 9999."""


@lru_cache(maxsize=4_096)  # what is created or leased together has the same instants
def to_rfc3339(instant_ms: InstantMs) -> str:
    """``1767225600000`` → ``2026-01-01T00:00:00.000Z``. Outside the years 1 to 9999: the nearest in them."""
    within = min(max(instant_ms, INSTANT_MS_MIN), INSTANT_MS_MAX)
    moment = EPOCH + timedelta(milliseconds=within)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
