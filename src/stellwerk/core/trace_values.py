"""The values of a trace: what happened in an instance, by token and by task (`trace`)."""

from __future__ import annotations

from enum import Enum

import attrs

from stellwerk.core.external_task import TaskState
from stellwerk.instants import InstantMs

__all__ = [
    "LeaseEnd",
    "LeaseSpan",
    "Moment",
    "StayEnd",
    "StayTrace",
    "TaskTrace",
    "TokenOrigin",
    "TokenTrace",
    "Trace",
    "WaitEnd",
    "WaitKind",
    "WaitSpan",
]


@attrs.frozen
class Moment:
    """The step in which something happened, and when that was on the wall clock."""

    version: int
    at_ms: InstantMs


# --- tokens --------------------------------------------------------------------------------------------------------


class TokenOrigin(Enum):
    """How a token came to be."""

    START = "start"
    """The instance started."""
    SPLIT = "split"
    """Its parent left a node over several flows."""
    SUBPROCESS = "subprocess"
    """Its parent entered the subprocess in which this token lives."""
    EVENT = "event"
    """A non-interrupting event happened to its parent."""
    COMPENSATION = "compensation"
    """It runs a compensation handler."""


class StayEnd(Enum):
    """How a token's stay at a node ended."""

    LEFT = "left"
    """It went on."""
    INTERRUPTED = "interrupted"
    """An event interrupted what it was doing, and it went on from there."""
    FAILED = "failed"
    """What it was doing failed; it went on from the event that caught the error, or ended."""
    MERGED = "merged"
    """It became one with another token at a join."""
    ENDED = "ended"
    """It went no further: an end event, or no way out."""
    CANCELLED = "cancelled"
    """It was taken away: its scope was cancelled, terminated or failed."""


class WaitKind(Enum):
    TIMER = "timer"
    MESSAGE = "message"
    USER_TASK = "user_task"
    INCIDENT = "incident"


class WaitEnd(Enum):
    """How a wait ended."""

    FIRED = "fired"
    CORRELATED = "correlated"
    COMPLETED = "completed"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"
    """It was not needed any more."""


@attrs.frozen(kw_only=True)
class WaitSpan:
    """Something that was waited for while the token stayed at a node (boundary events of that node too)."""

    kind: WaitKind
    wait_id: str
    """Of the timer, subscription, user task or incident."""
    node_id: str
    """The event that would happen; for user tasks and incidents the token's own node."""
    name: str | None
    """The message's name, the user task's name, or what the incident says."""
    key: str | None = None
    """Of a message: the correlation key that it must have."""
    due_at_ms: InstantMs | None
    """Of a timer, wall clock."""
    assignee: str | None = None
    """Of a user task: who has it, or had it last."""
    since: Moment
    until: Moment | None
    """None: still open."""
    end: WaitEnd | None


@attrs.frozen(kw_only=True)
class StayTrace:
    """A token at a node."""

    node_id: str
    via: str | None
    """The sequence flow that it took; None at a start event, a boundary event or a compensation handler."""
    activity_id: str | None
    """The activity that it ran there, if any; an external task or user task has the same id."""
    entered: Moment
    left: Moment | None
    """None: it is still there."""
    end: StayEnd | None
    waits: tuple[WaitSpan, ...]


@attrs.frozen(kw_only=True)
class TokenTrace:
    token_id: str
    scope_id: str
    origin: TokenOrigin
    parent_id: str | None
    """The token that it split off from, whose subprocess it runs, or to whose activity an event happened."""
    merged_into: str | None
    stays: tuple[StayTrace, ...]
    """In order; at least one."""


# --- tasks ---------------------------------------------------------------------------------------------------------


class LeaseEnd(Enum):
    """How a lease ended."""

    HELD = "held"
    """It has not ended (its lock may have run out, but was not reclaimed yet)."""
    COMPLETED = "completed"
    BPMN_ERROR = "bpmn_error"
    FAILED = "failed"
    EXPIRED = "expired"
    RELEASED = "released"
    REVOKED = "revoked"


@attrs.frozen(kw_only=True)
class LeaseSpan:
    """Who held a task, from when to when, under which fence. Instants are on the store's lease clock."""

    fence: int
    worker_id: str
    since_ms: InstantMs
    until_ms: InstantMs | None
    """When it ended; None while it is held."""
    locked_until_ms: InstantMs | None
    """While it is held: when its lock runs out."""
    end: LeaseEnd
    message: str | None
    """What the worker or the engine said about a lease that ended without success."""
    details: bytes | None
    """JSON text."""


@attrs.frozen(kw_only=True)
class TaskTrace:
    """The life of an external task. Instants in numbers are on the store's lease clock."""

    task_id: str
    element_id: str
    topic: str
    token_id: str
    state: TaskState
    created_at_ms: InstantMs
    ended_at_ms: InstantMs | None
    """None while it is READY or LOCKED."""
    retries: int
    """How many attempts may fail in all."""
    retries_left: int
    lock_expiries: int
    requeued: tuple[Moment, ...]
    """When an incident was resolved and the task was offered again."""
    leases: tuple[LeaseSpan, ...]
    """Every lease ever given, by fence."""


@attrs.frozen
class Trace:
    instance_id: str
    tokens: tuple[TokenTrace, ...]
    """In the order in which they came to be."""
    tasks: tuple[TaskTrace, ...]
    """In the order given."""
