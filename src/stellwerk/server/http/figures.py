"""What one node counts, as it goes to whoever puts the figures of several nodes together."""

from __future__ import annotations

import msgspec

from stellwerk.actors.figures import Histogram
from stellwerk.actors.node import Node

__all__ = ["HistogramFigures", "NodeFigures", "figures_of"]


class HistogramFigures(msgspec.Struct):
    bounds: list[float]
    counts: list[int]
    """Of each bucket; the last one has no bound."""
    total: float

    @classmethod
    def of(cls, histogram: Histogram) -> HistogramFigures:
        return cls(list(histogram.bounds), list(histogram.counts), histogram.total)


class NodeFigures(msgspec.Struct, kw_only=True):
    """All since the node started, but for the first block."""

    node: str
    version: str
    is_draining: bool
    instances_live: int
    sessions: int
    leases_held: int
    store_seconds_last: float

    commits: int
    operations: int
    failed_transactions: int
    batch_sizes: HistogramFigures
    store_seconds: HistogramFigures
    locks_reclaimed: int
    leases_ended: dict[str, int]
    """By what ended them."""
    clock_jumps: int | None
    """Of the database; None: its clock is this machine's."""


def figures_of(node: Node) -> NodeFigures:
    report, commits, requests = node.report(), node.committer.statistics, node.session_statistics
    jumps = getattr(node.ports.store, "clock_jumps", None)
    return NodeFigures(
        node=report.name,
        version=report.version,
        is_draining=report.is_draining,
        instances_live=report.instances_live,
        sessions=report.workers,
        leases_held=report.leases,
        store_seconds_last=report.store_ms / 1000,
        commits=commits.transactions,
        operations=commits.operations,
        failed_transactions=commits.failed_transactions,
        batch_sizes=HistogramFigures.of(commits.batch_sizes),
        store_seconds=HistogramFigures.of(commits.store_seconds),
        locks_reclaimed=node.clockwork.locks_reclaimed,
        leases_ended={
            "completed": requests.completed,
            "failed": requests.failed,
            "revoked": requests.revoked,
            "taken_back": requests.taken_back,
        },
        clock_jumps=jumps if isinstance(jumps, int) else None,
    )
