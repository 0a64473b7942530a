"""What the nodes of one engine tell each other: hints about work, and how they are."""

from __future__ import annotations

from stellwerk.instants import InstantMs
from stellwerk.values import frozen

__all__ = ["Hint", "NodeReport", "NodeRow", "RevokedHint"]


@frozen
class RevokedHint:
    """A lease ended by a step on another node than the one where its worker is connected (consistency.md 18)."""

    session_id: str
    task_id: str
    fence: int
    reason: str
    """As in the protocol: ``cancelled``, ``expired`` or ``lost``."""


@frozen(kw_only=True)
class Hint:
    """What happened on another node since the last hint. Rows judge: to act on it twice, or never, does no harm."""

    topics: tuple[str, ...] = ()
    """Tasks became READY there."""
    timer_due_at_ms: InstantMs | None = None
    """The earliest of the timers that were armed (wall clock)."""
    messages: bool = False
    """A message was published, or something waits for one."""
    process_keys: tuple[str, ...] = ()
    """They have a newer version."""
    revoked: tuple[RevokedHint, ...] = ()
    instances: tuple[str, ...] = ()
    """They ended or met an incident."""
    missed: bool = False
    """Hints may have been lost (the connection was made anew): look at everything again."""


@frozen(kw_only=True)
class NodeReport:
    """How a node is, for operators."""

    node_id: str
    name: str
    """Host and process."""
    url: str | None
    version: str
    started_at_ms: InstantMs
    """Wall clock of the node."""
    is_draining: bool
    workers: int
    leases: int
    instances_live: int
    commits: int
    operations: int
    """Committed since the start, in `commits` transactions."""
    store_ms: float
    """How long the database took for the last commit."""


@frozen(kw_only=True)
class NodeRow:
    report: NodeReport
    seen_ms_ago: int
    """On the store's clock."""
