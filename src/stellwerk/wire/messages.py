"""The push protocol between engine and worker, version 1: one class for each message (docs/worker-protocol).

Every frame is one JSON object or an array of them; the field ``type`` names the message. Durations are milliseconds,
instants RFC 3339 text in UTC (for people; nobody calculates with them). `codec` turns them into frames and back.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stellwerk.values import frozen

__all__ = [
    "SUBPROTOCOL",
    "WORKERS_PATH",
    "Ack",
    "Authenticate",
    "BpmnErrorReport",
    "Complete",
    "EngineMessage",
    "Extend",
    "Fail",
    "Goaway",
    "Goodbye",
    "Hello",
    "Holding",
    "LeaseRef",
    "LostLeaseNotice",
    "Nack",
    "NackCode",
    "ProtocolErrorMessage",
    "Reauthenticate",
    "Received",
    "Release",
    "Renewed",
    "RenewedLease",
    "Revoked",
    "RevokedLeaseNotice",
    "SessionLimits",
    "Subscribe",
    "TaskOffer",
    "Tasks",
    "Unsubscribe",
    "Welcome",
    "WorkerMessage",
]

SUBPROTOCOL = "stellwerk.v1"
WORKERS_PATH = "/workers"


@frozen
class LeaseRef:
    """Names one lease."""

    task_id: str
    """At most 200 characters."""
    fence: int
    """The number of the lease: it grows with each lease of the task."""


# --- worker → engine -----------------------------------------------------------------------------------------------


@frozen
class Hello:
    """First frame. Leases of this boot that `holding` does not name are released; of single-try tasks see `begun`."""

    worker_id: str
    """A name for people and logs, 1 to 200 characters. Different processes may share it."""
    boot_id: str
    """Drawn once by the worker process, 1 to 200 characters."""
    session_no: int
    """Counts its connections, from 1."""
    client: str
    """Name and version, for people. Cut to 200 characters."""
    holding: tuple[LeaseRef, ...] = ()
    """What the worker still works on, or has results of, from the connection before. At most 20000."""
    token: str | None = None
    """A credential, at most 64 KiB. Engines without authentication do not look at it."""
    begun: tuple[LeaseRef, ...] | None = None
    """Leases of single-try tasks whose handlers this boot has begun, and which `holding` does not name (the worker gave
    them up, or heard that they are lost). All others of this boot were surely not begun, and are released. At most
    20000. Null: the worker cannot tell, so that no single-try lease is released; they wait for their locks to run out.
    """
    worker_time_ms: float | None = None
    """The worker's monotonic clock when this frame was made. Null: the worker does not say."""


@frozen
class Subscribe:
    """Room for `max_tasks` leases of the topic at once. Again with another number changes it, 0 drains."""

    topic: str
    """1 to 200 characters."""
    max_tasks: int = 10
    """0 to the `max_tasks_max` of `welcome`, which also bounds the leases of all topics together."""
    lock_duration_ms: int = 30_000
    """How long each lease lasts, within the limits of `welcome`; a model's own lock duration overrides it."""
    filter: str | None = None
    """A regular expression on the compact JSON of the variables, at most 1000 characters. Null: all tasks."""
    variables: tuple[str, ...] | None = None
    """Only these top-level variables are sent, at most 1000 names. Null: all."""


@frozen
class Unsubscribe:
    """Room for no more leases of the topic, as with `max_tasks` 0. Those that the worker holds stay."""

    topic: str
    """1 to 200 characters."""


@frozen
class Received:
    """Every `tasks` frame up to this number arrived."""

    delivery: int
    """The largest number of a `tasks` frame that arrived."""


@frozen
class Complete:
    """The task is done. Ends the lease; the token moves on in the same transaction."""

    ref: int
    """Chosen by the worker; the answer (`ack` or `nack`) names it."""
    task_id: str
    fence: int
    variables: msgspec.Raw = msgspec.Raw(b"null")
    """What is merged into the process's variables: an object. Null: nothing. Anything else becomes `result`."""


@frozen
class Fail:
    """A technical failure. Ends the lease; the task is offered again after a back-off while it has retries left."""

    ref: int
    task_id: str
    fence: int
    message: str
    """Why, for people: at most 64 KiB."""
    details: msgspec.Raw = msgspec.Raw(b"null")
    """Any JSON, such as a traceback; kept with the attempt."""
    retry_after_ms: int | None = None
    """When the next attempt may begin, from now, at most 365 days. Null: as the model or the engine says."""
    retries: int | None = None
    """So many attempts are left, 0 for none. Null: one less than before."""


@frozen
class BpmnErrorReport:
    """A business failure: ends the lease and raises a BPMN error at the task. Costs no retry."""

    ref: int
    task_id: str
    fence: int
    code: str
    """1 to 200 characters. An error boundary event with this code, or without one, catches it."""
    message: str | None = None
    """For people: at most 64 KiB."""
    details: msgspec.Raw = msgspec.Raw(b"null")
    """Any JSON; kept with the attempt."""
    variables: msgspec.Raw = msgspec.Raw(b"{}")
    """An object that is merged into the variables where the error is caught."""


@frozen
class Extend:
    """Lock the task for `lock_duration_ms` from now. The engine renews leases by itself: this is for more than that."""

    ref: int
    task_id: str
    fence: int
    lock_duration_ms: int
    """From when the engine gets it, within the limits of `welcome`."""


@frozen
class Release:
    """Hand the task back; costs no retry. A single-try task comes back only with `started` false."""

    ref: int
    task_id: str
    fence: int
    started: bool
    """Whether the handler may have begun, so that it may have had effects."""


@frozen
class Holding:
    """Heartbeat: what the worker really still works on, each until its final request was acknowledged."""

    leases: tuple[LeaseRef, ...]
    """At most 20000. One that is missing here though it was delivered is released, unless its task is single-try: that
    one waits for its lock to run out."""
    worker_time_ms: float | None = None
    """As in `hello`."""


@frozen
class Authenticate:
    """A fresh credential, as `reauthenticate` asks for."""

    token: str


@frozen
class Goodbye:
    """The worker closes. What it still holds stays leased until its deadline."""


WorkerMessage: TypeAlias = (
    Hello
    | Subscribe
    | Unsubscribe
    | Received
    | Complete
    | Fail
    | BpmnErrorReport
    | Extend
    | Release
    | Holding
    | Authenticate
    | Goodbye
)


# --- engine → worker -----------------------------------------------------------------------------------------------


@frozen
class SessionLimits:
    """What this engine accepts."""

    frame_bytes_max: int
    """Of a frame, in both directions."""
    payload_bytes_max: int
    """Of `variables` or `details`."""
    max_tasks_max: int
    """Of leases of this session at once, for one topic and in all."""
    lock_duration_ms_min: int
    """Of `subscribe` and `extend`."""
    lock_duration_ms_max: int
    """Of `subscribe` and `extend`."""


@frozen
class LostLeaseNotice:
    """A lease of `hello` that the worker does not have any more."""

    task_id: str
    fence: int
    reason: str
    """``finished``, ``cancelled``, ``expired`` or ``lost``."""


@frozen
class RenewedLease:
    """Until when the worker has a lease now."""

    task_id: str
    fence: int
    lock_remaining_ms: int
    """From when the frame was made. Rather less than the store says than more."""
    lock_expires_at: str
    """The same as an instant, for people."""


@frozen
class Welcome:
    """Answer to `hello`. What is not `kept` is lost; what does not fit into `lost` follows in `revoked`."""

    session: str
    """The engine's id of this connection, for people and logs."""
    server_time_ms: float
    """The engine's monotonic clock when this frame was made."""
    heartbeat_ms: int
    """Before any subscription; the session's own is a sixth of its shortest lock, within 250 ms and 5 s."""
    limits: SessionLimits
    kept: tuple[RenewedLease, ...] = ()
    """The leases of `hello` that live on, with the same fences."""
    lost: tuple[LostLeaseNotice, ...] = ()
    """The other leases of `hello`: their handlers are aborted."""
    worker_time_ms: float | None = None
    """What the worker's clock showed at least when this frame was made: as it said last in `hello` and `holding`, and
    the time since that was heard. Leases last from then. Null: the worker did not say."""


@frozen
class TaskOffer:
    """A task that is leased to the worker. Nothing has to be accepted: it may begin at once."""

    task_id: str
    fence: int
    topic: str
    """One that the worker subscribed to."""
    token_id: str
    """The token that waits at the task."""
    process_instance_id: str
    process_definition_id: str
    """``key:version``."""
    business_key: str | None
    """Given when the instance was started."""
    element_id: str
    """The id of the task in the BPMN file."""
    attempt: int
    """Counts the leases of the task from 1, also those that ran out or were handed back."""
    retries_left: int
    """Attempts that may still fail, this one included."""
    priority: int
    """Higher ones are handed out first."""
    created_at: str
    """When the token reached the task."""
    lock_remaining_ms: int
    """So long does the lease last, from when the frame was made. Rather less than the store says than more."""
    lock_expires_at: str
    """The same as an instant, for people."""
    variables: msgspec.Raw
    """What the handler works on: all variables that the task sees, mapped ones among them, or the model's `payload`."""
    headers: msgspec.Raw
    """Constants out of the model: an object of texts."""
    single_try: bool = False
    """Once its handler may have begun, the task is offered again only after a failure that the worker reported, or when
    somebody resolves its incident."""


@frozen
class Tasks:
    """Work. What `received` does not confirm within 5 s is taken back, at no cost of a retry."""

    delivery: int
    """Counts the `tasks` frames of this session, from 1."""
    tasks: tuple[TaskOffer, ...]
    """In the order of their priority, then of their age."""
    server_time_ms: float = 0.0
    """As in `welcome`."""
    worker_time_ms: float | None = None
    """As in `welcome`."""


@frozen
class Renewed:
    """The engine renewed these leases, or the worker extended them."""

    leases: tuple[RenewedLease, ...]
    server_time_ms: float = 0.0
    """As in `welcome`."""
    worker_time_ms: float | None = None
    """As in `welcome`."""


@frozen
class RevokedLeaseNotice:
    """A lease that has ended without the worker."""

    task_id: str
    fence: int
    reason: str
    """``cancelled``, ``expired``, ``suspended``, ``lost`` (the engine does not know the lease as this worker's), or
    one of those in `welcome`."""


@frozen
class Revoked:
    """The handlers are aborted. Final for its fence whatever arrives later."""

    leases: tuple[RevokedLeaseNotice, ...]


@frozen
class Ack:
    """The request was done, and is durable. A repetition of it gets the same answer."""

    ref: int
    """That of the request."""


class NackCode:
    """The closed list of codes in `Nack` and `ProtocolErrorMessage`."""

    LEASE_LOST = "lease_lost"
    ALREADY_FINISHED = "already_finished"
    CANCELLED = "cancelled"
    NOT_FOUND = "not_found"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"
    FORBIDDEN = "forbidden"
    UNAUTHENTICATED = "unauthenticated"
    INTERNAL = "internal"
    SUPERSEDED = "superseded"
    TOO_SLOW = "too_slow"
    UNKNOWN_TYPE = "unknown_type"


@frozen
class Nack:
    """The request was refused and changed nothing."""

    ref: int
    """That of the request."""
    code: str
    """Of the closed list."""
    message: str
    """What and where, for people: at most 500 characters."""
    retryable: bool = False
    """Whether to send the same request again, a little later."""


@frozen
class Reauthenticate:
    """The worker's credential runs out: a fresh one is wanted, by `authenticate`."""

    within_ms: int
    """From now."""


@frozen
class Goaway:
    """The node drains: no new work comes; finish and reconnect elsewhere."""

    reason: str
    """For people."""
    within_ms: int
    """When the engine stops waiting for what the worker holds, from now."""


@frozen
class ProtocolErrorMessage:
    """The connection closes after it."""

    code: str
    """Of the closed list."""
    message: str
    """What and where, for people: at most 500 characters."""


EngineMessage: TypeAlias = (
    Welcome | Tasks | Renewed | Revoked | Ack | Nack | Reauthenticate | Goaway | ProtocolErrorMessage
)
