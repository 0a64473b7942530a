"""The bounds of the HTTP side, each with its unit last and the reason for its default."""

from __future__ import annotations

import attrs

__all__ = ["HttpLimits"]


@attrs.frozen(kw_only=True)
class HttpLimits:
    head_bytes_max: int = 32 * 1024
    """Request line and headers, or the head of a chunk. Browsers and proxies stay below 16 KiB."""
    head_seconds_max: float = 10.0
    """From its first byte (of a new connection: from the connection) to the end of a request's head."""
    body_seconds_max: float = 60.0
    """From the end of the head to the end of the body: 10 MB on a slow line, and no more for who drips bytes."""
    idle_seconds_max: float = 75.0
    """Between two requests; more than the 60 s after which common proxies drop their side."""
    write_seconds_max: float = 10.0
    """For each piece of an answer: a peer that stops reading is dropped."""
    write_bytes_max: int = 64 * 1024
    """The size of such a piece."""
    ahead_bytes_max: int = 64 * 1024
    """Pipelined bytes read while an answer is being made."""
    linger_seconds_max: float = 2.0
    """Reading on after a refusal, so that a peer still sending gets to see it instead of a reset."""
    linger_bytes_max: int = 1024 * 1024
    connections_max: int = 10_000
    """Open connections, WebSockets included; beyond, new ones are closed at once. Fewer where the process may not have
    so many files open."""
