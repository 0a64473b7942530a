"""How a node is to be, and who it is."""

from __future__ import annotations

import attrs

from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy

__all__ = ["NodeConfig", "NodeIdentity"]


@attrs.frozen(kw_only=True)
class NodeIdentity:
    """Who a node is, for other nodes and for operators."""

    node_id: str = "alone"
    name: str = ""
    """Host and process: ``host:pid``."""
    url: str | None = None
    """Where it is asked; None: it has no port."""
    version: str = ""


@attrs.frozen(kw_only=True)
class NodeConfig:
    limits: Limits = attrs.field(factory=Limits)
    failure_policy: FailurePolicy | None = None
    """For models that say nothing of their own; None: as fits the dialect."""
    retries_default: int = 3
    lock_expiries_max: int = 10
    is_offline: bool = False
    """True: nothing happens because time passes, and no worker is let in. No timer fires, no lock is reclaimed, no
    message is correlated: to look at a file must not start work in it. What is asked for is done and durable."""
    identity: NodeIdentity = attrs.field(factory=NodeIdentity)
    """For `NodeReport`; the store's `node_id` is the same."""
    ended_kept_ms: int | None = None
    """Instances that ended longer ago are deleted, a few at a time; None: they stay until somebody prunes."""
    unattended_after_ms: int = 60_000
    """READY tasks of a topic that nobody takes for so long are an alarm: no worker is there for them."""
