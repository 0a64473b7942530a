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
    task_id: str
    fence: int


# --- worker → engine -----------------------------------------------------------------------------------------------


@frozen
class Hello:
    """First frame. Leases of this boot that `holding` does not name are released."""

    worker_id: str
    boot_id: str
    """Drawn once by the worker process."""
    session_no: int
    """Counts its connections, from 1."""
    client: str
    """Name and version, for people."""
    holding: tuple[LeaseRef, ...] = ()
    token: str | None = None


@frozen
class Subscribe:
    """Room for `max_tasks` leases of the topic at once. Again with another number changes it, 0 drains."""

    topic: str
    max_tasks: int = 10
    lock_duration_ms: int = 30_000
    filter: str | None = None
    """A regular expression on the compact JSON of the variables."""
    variables: tuple[str, ...] | None = None
    """Only these variables are sent; None: all."""


@frozen
class Unsubscribe:
    topic: str


@frozen
class Received:
    """Every `tasks` frame up to this number arrived."""

    delivery: int


@frozen
class Complete:
    ref: int
    task_id: str
    fence: int
    variables: msgspec.Raw = msgspec.Raw(b"null")


@frozen
class Fail:
    ref: int
    task_id: str
    fence: int
    message: str
    details: msgspec.Raw = msgspec.Raw(b"null")
    retry_after_ms: int | None = None
    retries: int | None = None


@frozen
class BpmnErrorReport:
    """Type ``bpmn_error``."""

    ref: int
    task_id: str
    fence: int
    code: str
    message: str | None = None
    details: msgspec.Raw = msgspec.Raw(b"null")
    variables: msgspec.Raw = msgspec.Raw(b"{}")


@frozen
class Extend:
    ref: int
    task_id: str
    fence: int
    lock_duration_ms: int


@frozen
class Release:
    ref: int
    task_id: str
    fence: int
    started: bool


@frozen
class Holding:
    """Heartbeat: what the worker really still works on, each until its final request was acknowledged."""

    leases: tuple[LeaseRef, ...]


@frozen
class Authenticate:
    token: str


@frozen
class Goodbye:
    pass


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
    frame_bytes_max: int
    payload_bytes_max: int
    max_tasks_max: int
    lock_duration_ms_min: int
    lock_duration_ms_max: int


@frozen
class LostLeaseNotice:
    task_id: str
    fence: int
    reason: str


@frozen
class RenewedLease:
    task_id: str
    fence: int
    lock_remaining_ms: int
    """From before the store call."""
    lock_expires_at: str


@frozen
class Welcome:
    session: str
    server_time_ms: float
    """The engine's monotonic clock when this frame was made, for the worker's estimate of how long frames take."""
    heartbeat_ms: int
    """Before any subscription; the session's own follows from the shortest lock (see `session`)."""
    limits: SessionLimits
    kept: tuple[RenewedLease, ...] = ()
    lost: tuple[LostLeaseNotice, ...] = ()


@frozen
class TaskOffer:
    task_id: str
    fence: int
    topic: str
    token_id: str
    process_instance_id: str
    process_definition_id: str
    business_key: str | None
    element_id: str
    attempt: int
    retries_left: int
    priority: int
    created_at: str
    lock_remaining_ms: int
    lock_expires_at: str
    variables: msgspec.Raw
    headers: msgspec.Raw
    single_try: bool = False


@frozen
class Tasks:
    delivery: int
    tasks: tuple[TaskOffer, ...]
    server_time_ms: float = 0.0


@frozen
class Renewed:
    leases: tuple[RenewedLease, ...]
    server_time_ms: float = 0.0


@frozen
class RevokedLeaseNotice:
    task_id: str
    fence: int
    reason: str
    """``cancelled``, ``expired``, ``suspended``, ``lost`` (the engine does not know the lease as this worker's)."""


@frozen
class Revoked:
    """The handlers are aborted. Final for its fence whatever arrives later."""

    leases: tuple[RevokedLeaseNotice, ...]


@frozen
class Ack:
    ref: int


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
    ref: int
    code: str
    message: str
    retryable: bool = False


@frozen
class Reauthenticate:
    within_ms: int


@frozen
class Goaway:
    """The node drains: no new work comes; finish and reconnect elsewhere."""

    reason: str
    within_ms: int


@frozen
class ProtocolErrorMessage:
    """Type ``error``: the connection closes after it."""

    code: str
    message: str


EngineMessage: TypeAlias = (
    Welcome | Tasks | Renewed | Revoked | Ack | Nack | Reauthenticate | Goaway | ProtocolErrorMessage
)
