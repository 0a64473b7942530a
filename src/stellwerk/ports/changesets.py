"""Changesets: what one step of an instance writes, under its guards, and what becomes of it."""

from __future__ import annotations

from enum import Enum

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask, Holder, OutcomeKind
from stellwerk.core.facts import Fact
from stellwerk.instants import InstantMs
from stellwerk.ports.leases import LeaseAnswer
from stellwerk.values import frozen

__all__ = [
    "BirthLease",
    "Changeset",
    "Committed",
    "InboxRow",
    "NewInstance",
    "RefusedChangeset",
    "RefusedGuard",
    "RevokedLease",
    "TaskEnding",
]


@frozen
class NewInstance:
    """The ``instances`` row of an instance that starts."""

    definition_id: str
    process_key: str
    business_key: str | None
    must_be_newest: bool = False
    """Refused (DEFINITION) when a newer version of the process is deployed (consistency.md 7)."""
    must_be_deployed: bool = False
    """Refused when this version was deleted (UNDEPLOYED), or its process is disabled (DISABLED)."""


@frozen
class TaskEnding:
    """The lease guard of a step (consistency.md 1, 12): the request must be one that the lease machine accepts now.

    `final_state` is what the row becomes: COMPLETED, FAILED or EXPIRED; CANCELLED for a draining task that failed.
    Where ``fence`` is None no lease is asked for: a draining task that is READY (CANCELLED), or one that an operator
    gives up (FAILED), whose holder is told.
    """

    task_id: str
    fence: int | None
    final_state: str
    outcome: OutcomeKind | None
    """None: not a request of the worker (expiry, drain, given up)."""
    request_digest: str | None
    message: str | None = None
    details: bytes | None = None
    worker_id: str | None = None
    worker_gives_up: bool = False
    """For FAIL: the worker itself said that no attempts are left (`FailTask.retries` 0)."""
    only_past_due: bool = False
    """Because its lock ran out, as a sweep saw: refused where the lease lives after all. A renewal that was asked for
    in time may be committed after the sweep has looked."""


@frozen
class BirthLease:
    """Create this new task already leased (consistency.md 10)."""

    task_id: str
    holder: Holder
    duration_ms: int


@frozen
class InboxRow:
    """An effect on another instance: one row for each (instance_id, dedupe_key), whoever sends it how often."""

    instance_id: str
    dedupe_key: str
    command: bytes
    """JSON text."""


@frozen(kw_only=True)
class Changeset:
    """One step of one instance. Applied only if every guard holds: version, endings, timers, subscriptions, messages,
    incidents and inbox rows. Then the version grows by one and the facts become one history row."""

    instance_id: str
    expected_version: int
    """0: the instance must not exist, and `new_instance` is set."""
    at_ms: InstantMs
    """Wall clock, for people."""
    facts: tuple[Fact, ...]
    changes: RowChanges
    new_instance: NewInstance | None = None
    endings: tuple[TaskEnding, ...] = ()
    birth_leases: tuple[BirthLease, ...] = ()
    messages_consumed: tuple[str, ...] = ()
    inbox_sent: tuple[InboxRow, ...] = ()
    inbox_consumed: tuple[str, ...] = ()
    """Dedupe keys of this instance's own rows."""
    snapshot: bytes | None = None
    """The folded state after this step, now and then, so that a reload need not fold everything."""


@frozen
class RevokedLease:
    """A lease ended by a cancelling step, as the cancelling statement returned it (consistency.md 18)."""

    task_id: str
    topic: str
    fence: int
    holder: Holder


@frozen
class Committed:
    """The step is durable."""

    version: int
    revoked: tuple[RevokedLease, ...] = ()
    born_leased: tuple[ExternalTask, ...] = ()
    drained_ready: tuple[str, ...] = ()
    """Tasks to drain that have no lease: `EndDraining` must follow."""
    now_ms: InstantMs = 0
    """The store's lease clock in that transaction."""


class RefusedGuard(Enum):
    VERSION = "version"
    LEASE = "lease"
    TIMER = "timer"
    SUBSCRIPTION = "subscription"
    MESSAGE = "message"
    INCIDENT = "incident"
    INBOX = "inbox"
    DEFINITION = "definition"
    UNDEPLOYED = "undeployed"
    DISABLED = "disabled"
    DATA = "data"
    """The store could not write this changeset (a data error); its neighbours are untouched."""


@frozen
class RefusedChangeset:
    """Nothing of it was written."""

    guard: RefusedGuard
    subject: str
    """The id of the row whose guard failed."""
    answer: LeaseAnswer | None = None
    """For LEASE: what the worker is told."""
