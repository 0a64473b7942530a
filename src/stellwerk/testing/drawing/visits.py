"""What of a process was visited, as numbers to draw."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field

from stellwerk.values import frozen

__all__ = ["Visits"]


@frozen(hash=False)
class Visits:
    """How often tokens came to flow nodes, and took sequence flows, by their ids. What is missing was never visited."""

    nodes: Mapping[str, int] = field(factory=dict)
    flows: Mapping[str, int] = field(factory=dict)
