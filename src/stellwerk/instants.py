"""Points in time are integers: milliseconds since 1970-01-01T00:00:00Z. Durations are integers in milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

__all__ = ["EPOCH", "InstantMs", "to_rfc3339"]

InstantMs: TypeAlias = int

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_rfc3339(instant_ms: InstantMs) -> str:
    """``1767225600000`` → ``2026-01-01T00:00:00.000Z``."""
    moment = EPOCH + timedelta(milliseconds=instant_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{instant_ms % 1000:03d}Z"
