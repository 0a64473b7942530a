"""What is read from a store, outside of transactions."""

from __future__ import annotations

import attrs

from stellwerk.core.facts import Fact
from stellwerk.instants import InstantMs
from stellwerk.ports.catalogue import MessageRow
from stellwerk.values import frozen

__all__ = [
    "DueTimer",
    "HistoryStep",
    "InstanceFilter",
    "InstanceSummary",
    "KeptMessage",
    "MatchedMessage",
    "ReadyScan",
    "ReadyTask",
    "StoredInstance",
    "TaskQuery",
    "TopicBacklog",
    "UserTaskFilter",
]


@frozen
class HistoryStep:
    version: int
    at_ms: InstantMs
    facts: tuple[Fact, ...]


@frozen
class StoredInstance:
    """What an actor needs to come back: the newest snapshot (if any) and the steps after it."""

    version: int
    definition_id: str
    status: str
    snapshot: bytes | None
    steps: tuple[HistoryStep, ...]


@frozen
class InstanceSummary:
    instance_id: str
    definition_id: str
    process_key: str
    business_key: str | None
    status: str
    version: int
    started_at_ms: InstantMs
    ended_at_ms: InstantMs | None


@frozen(kw_only=True)
class InstanceFilter:
    """Which instances; None: whatever it is."""

    status: str | None = None
    process_key: str | None = None
    process_keys: tuple[str, ...] | None = None
    """Any of these; one that ends with ``*`` stands for all that begin so."""
    definition_id: str | None = None
    business_key: str | None = None
    with_incident: bool | None = None
    """Whether an incident is open."""
    started_from_ms: InstantMs | None = None
    started_before_ms: InstantMs | None = None


@frozen(kw_only=True)
class TaskQuery:
    """Which external tasks: all conditions hold together. None: whatever it is."""

    instance_id: str | None = None
    topic: str | None = None
    state: str | None = None
    """As `TaskState` has them."""
    worker_id: str | None = None
    """LOCKED, by this worker, whether or not the lock has run out."""
    is_locked: bool | None = None
    """True: LOCKED, and the lock has not run out. False: anything else."""
    definition_id: str | None = None
    process_key: str | None = None
    element_id: str | None = None
    business_key: str | None = None
    with_retries_left: bool | None = None
    priority_from: int | None = None
    priority_to: int | None = None
    """This one included, as `priority_from`."""
    task_ids: tuple[str, ...] | None = None
    """Any of these; those that do not exist are left out."""


@frozen(kw_only=True)
class TopicBacklog:
    """What is open on one topic."""

    topic: str
    ready: int
    """READY and available now."""
    backing_off: int
    """READY, available later: waiting for its next attempt."""
    locked: int
    oldest_ready_at_ms: InstantMs | None
    """Since when the longest waiting one of `ready` is available, on the lease clock. None where there is none."""


@frozen
class ReadyTask:
    """What a dispatcher keeps of a READY task; sorts in the order of hand-out."""

    rank: int
    """Minus the priority."""
    created_at_ms: InstantMs
    task_id: str
    lock_duration_ms: int | None = None
    payload_bytes: int = attrs.field(default=0, eq=False)
    """About what it takes in a frame (some stores count characters)."""

    def __lt__(self, other: ReadyTask) -> bool:
        # By hand: a heap compares a dozen times for each task.
        if self.rank != other.rank:
            return self.rank < other.rank
        if self.created_at_ms != other.created_at_ms:
            return self.created_at_ms < other.created_at_ms
        return self.task_id < other.task_id


@frozen
class ReadyScan:
    tasks: tuple[ReadyTask, ...]
    """At most the limit, in order of hand-out, available now."""
    next_available_ms: InstantMs | None
    """When the next retry comes due, on the lease clock."""
    now_ms: InstantMs


@frozen
class DueTimer:
    timer_id: str
    instance_id: str
    due_at_ms: InstantMs


@frozen
class MatchedMessage:
    """A message and what waits for it: an instance's subscription, or a definition that it starts."""

    message: MessageRow
    instance_id: str | None
    subscription_id: str | None
    definition_id: str | None


@frozen(kw_only=True)
class KeptMessage:
    """A message that is still known, without its variables."""

    message_id: str
    name: str
    key: str
    published_at_ms: InstantMs
    """On the lease clock."""
    expires_at_ms: InstantMs
    """On the lease clock, too."""
    is_correlated: bool
    """It has reached somebody, and is only known so that it is not taken a second time."""
    is_awaited: bool
    """A subscription that it could reach, or a start event with its name, is there now, and was before its time to live
    ended."""
    instance_id: str | None = None
    """The only one that it can reach."""


@frozen(kw_only=True)
class UserTaskFilter:
    """Which open user tasks: all conditions hold together. None: whatever it is."""

    assignee: str | None = None
    is_assigned: bool | None = None
    candidate_user: str | None = None
    candidate_group: str | None = None
    process_keys: tuple[str, ...] | None = None
