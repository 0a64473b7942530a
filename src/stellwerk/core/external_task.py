"""The external task as a value: the row of ``external_tasks`` and its past attempts.

A task is the way in which a token is executed outside the engine; its lease is the right to do so for a while.
All instants are on the store's lease clock. What may happen to a task stands in `lease`.
"""

from __future__ import annotations

from enum import Enum

from stellwerk.instants import InstantMs
from stellwerk.values import frozen

__all__ = [
    "AttemptEnd",
    "ExternalTask",
    "Holder",
    "Lease",
    "OutcomeKind",
    "TaskAttempt",
    "TaskOutcome",
    "TaskState",
]


class TaskState(Enum):
    __hash__ = object.__hash__  # Enum's own is written in Python, and this one is looked up all the time

    READY = "READY"
    """Waits for a worker (from ``available_at_ms`` on)."""
    LOCKED = "LOCKED"
    """Leased. A lock that has run out stays LOCKED until the sweep reclaims it."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    """Retries exhausted or an uncaught business error; final unless an incident is open."""
    EXPIRED = "EXPIRED"
    """The lock of a single-try task ran out; final unless an incident is open."""
    CANCELLED = "CANCELLED"


@frozen
class Holder:
    """Who holds a lease: one connection of one worker process (consistency.md 17)."""

    worker_id: str
    boot_id: str
    """Drawn once by the worker process."""
    session_no: int
    """Counts the connections of that process."""
    session_id: str
    """Drawn by the engine for each connection."""


@frozen
class Lease:
    """The current or the last lease of a task."""

    holder: Holder
    fence: int
    since_ms: InstantMs
    until_ms: InstantMs
    duration_ms: int


class OutcomeKind(Enum):
    """The requests that end a lease and whose repetition must get the same answer."""

    COMPLETE = "complete"
    FAIL = "fail"
    BPMN_ERROR = "bpmn_error"


@frozen
class TaskOutcome:
    """How the last lease was ended by its worker: the kind of request and the digest of its canonical form."""

    kind: OutcomeKind
    request_digest: str


class AttemptEnd(Enum):
    """Why a lease ended without success."""

    FAILED = "failed"
    BPMN_ERROR = "bpmn_error"
    EXPIRED = "expired"
    RELEASED = "released"
    """Handed back by the worker, or taken back because its delivery was never confirmed."""
    REVOKED = "revoked"
    """Cancelled by the process."""


@frozen
class TaskAttempt:
    """A row of ``task_attempts``: a lease that ended without success. Key: (task_id, fence)."""

    task_id: str
    fence: int
    worker_id: str
    since_ms: InstantMs
    ended_at_ms: InstantMs
    end: AttemptEnd
    request_digest: str | None = None
    message: str | None = None
    details: bytes | None = None
    """JSON text."""


@frozen
class ExternalTask:
    """A row of ``external_tasks`` (requirement L3, and what else the lease machine needs)."""

    task_id: str
    instance_id: str
    token_id: str
    activity_id: str
    element_id: str
    definition_id: str
    business_key: str | None
    topic: str
    priority: int
    created_at_ms: InstantMs
    updated_at_ms: InstantMs
    available_at_ms: InstantMs
    """READY, but not offered before this instant (a retry's back-off)."""
    state: TaskState
    retries_left: int
    retries: int
    """How many attempts may fail in all."""
    retry_backoffs_ms: tuple[int, ...]
    """Empty: the default back-off of `retry`."""
    attempt: int
    """How many leases there were, the current one included."""
    lock_expiries: int
    lock_expiries_max: int
    """0: no limit."""
    single_try: bool
    lock_duration_ms: int | None
    """The model's own; overrides what the worker asks for."""
    draining: bool
    """Its scope fails; the lease is waited for and then ends the task, whatever its outcome (consistency.md 15)."""
    fence: int
    """Of the newest lease; 0 before the first."""
    lease: Lease | None
    outcome: TaskOutcome | None
    error_message: str | None
    variables: bytes
    """JSON text of what the worker gets."""
    headers: bytes
    """JSON text: an object with string values."""
