"""What the nodes of one engine tell each other: hints about work, and how they are."""

from __future__ import annotations

from stellwerk.instants import InstantMs
from stellwerk.values import frozen

__all__ = ["Hint", "NodeReport", "NodeRow", "RevokedHint", "SessionReport", "SubscriptionReport", "TopicReport"]


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


@frozen
class SubscriptionReport:
    """What a connected worker takes of one topic."""

    topic: str
    max_tasks: int
    held: int
    """Leases that it held when the node reported."""


@frozen(kw_only=True)
class SessionReport:
    """A connected worker."""

    worker_id: str
    session_id: str
    client: str
    connected_at_ms: InstantMs
    """Wall clock of the node."""
    subscriptions: tuple[SubscriptionReport, ...]
    polls: bool = False
    """It has no connection of its own, and what it holds is known to the store only."""


@frozen
class TopicReport:
    """The workers of one node that subscribe to a topic."""

    topic: str
    workers: int
    free: int
    """How many more tasks they would have taken when the node reported."""


@frozen(kw_only=True)
class NodeReport:
    """How a node is, for operators. Told at once when a worker comes, goes or subscribes in another way (at most four
    times a second), and every 5 s; what changes more often (``held``, ``free``, figures) is as old as the report.

    `sessions` is bounded: a node tells of 1,000 sessions, the first by worker id, and of 10,000 subscriptions in all.
    `topics` counts those beyond, too, for up to 10,000 topics.
    """

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
    sessions: tuple[SessionReport, ...] = ()
    """By worker id."""
    topics: tuple[TopicReport, ...] = ()
    """Those that a connected worker subscribes to, by name."""
    tells_all_topics: bool = True
    """False: workers may subscribe to others, too (there are too many, or the node's version does not tell)."""


@frozen(kw_only=True)
class NodeRow:
    report: NodeReport
    seen_ms_ago: int
    """On the store's clock."""
