"""The bodies and queries of the HTTP API as attrs classes; `structuring` makes them from JSON and from query texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

from stellwerk.core.events import EventCategory, event_types
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.server.http.structuring import Instant, Signed

__all__ = [
    "BpmnErrorRequest",
    "CancelRequest",
    "ClaimRequest",
    "CompleteTaskRequest",
    "CompleteUserTaskRequest",
    "CorrelateRequest",
    "DeployFile",
    "DeployRequest",
    "EmptyRequest",
    "ExtendLockRequest",
    "FailTaskRequest",
    "FetchAndLockRequest",
    "HistoryQuery",
    "IncidentsQuery",
    "InstanceQuery",
    "InstancesQuery",
    "MessageRequest",
    "NoQuery",
    "PageQuery",
    "PruneRequest",
    "ResolveRequest",
    "RetryRequest",
    "SetVariablesRequest",
    "StartRequest",
    "StateQuery",
    "TaskPriorityRequest",
    "TaskRetriesRequest",
    "TasksQuery",
    "UnlockRequest",
    "UserTasksQuery",
    "WaitQuery",
]

_KEY: Mapping[str, object] = {"maxLength": 255}
_NAME: Mapping[str, object] = {"minLength": 1}
_PAGE: Mapping[str, object] = {"minimum": 1, "maximum": 1000}
_WAIT: Mapping[str, object] = {"maximum": 600_000}
_RETRIES: Mapping[str, object] = {"minimum": 1, "maximum": 2**31 - 1}
"""What the document of the API says about values. They are checked where they are used."""


# --- bodies --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class DeployFile:
    """Either its text, or its bytes as they are in base64 (for files that are not UTF-8)."""

    name: str
    xml: str | None = None
    xml_base64: str | None = None


@attrs.frozen(kw_only=True)
class DeployRequest:
    files: tuple[DeployFile, ...]
    failure_policy: Literal["incident", "compensate"] | None = None
    adopt_java: bool = False


@attrs.frozen(kw_only=True)
class StartRequest:
    process_def_id: str
    """``order``, or ``order:3`` for a version."""
    variables: JsonObject = attrs.field(factory=dict)
    business_key: str | None = attrs.field(default=None, metadata=_KEY)
    request_id: str | None = attrs.field(default=None, metadata=_KEY)
    """The same one again gives the same instance."""
    start_event_id: str | None = None
    wait_ms: int | None = attrs.field(default=None, metadata=_WAIT)
    """For the end or an incident."""


@attrs.frozen(kw_only=True)
class CancelRequest:
    reason: str = "cancelled by an operator"


@attrs.frozen(kw_only=True)
class MessageRequest:
    name: str = attrs.field(metadata=_KEY)
    key: str = attrs.field(default="", metadata=_KEY)
    variables: JsonObject = attrs.field(factory=dict)
    ttl_ms: int | None = None
    message_id: str | None = attrs.field(default=None, metadata=_KEY)
    instance_id: str | None = None
    """Only for this one; then `key` may be left out, whatever it waits with."""


@attrs.frozen(kw_only=True)
class CorrelateRequest:
    name: str = attrs.field(metadata=_KEY)
    key: str = attrs.field(default="", metadata=_KEY)
    variables: JsonObject = attrs.field(factory=dict)
    message_id: str | None = attrs.field(default=None, metadata=_KEY)
    instance_id: str | None = None
    """As of a message that is published."""
    wait_ms: int = attrs.field(default=0, metadata=_WAIT)
    """How long something may take until it waits for it. 0: it must wait already."""


@attrs.frozen(kw_only=True)
class ClaimRequest:
    assignee: str = attrs.field(metadata={**_NAME, **_KEY})


@attrs.frozen(kw_only=True)
class EmptyRequest:
    pass


@attrs.frozen(kw_only=True)
class CompleteUserTaskRequest:
    variables: JsonObject = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class SetVariablesRequest:
    variables: JsonObject


@attrs.frozen(kw_only=True)
class ResolveRequest:
    retries: int | None = attrs.field(default=None, metadata=_RETRIES)
    """None: as many as the task's model says."""


@attrs.frozen(kw_only=True)
class RetryRequest:
    """At least one condition, or `all`."""

    incident_ids: tuple[str, ...] | None = None
    instance_id: str | None = None
    process: str | None = None
    element_id: str | None = None
    kind: str | None = None
    topic: str | None = None
    opened_before: Instant | None = None
    all: bool = False
    retries: int | None = attrs.field(default=None, metadata=_RETRIES)
    """None: as many as each task's model says."""
    limit: int = attrs.field(default=1000, metadata=_PAGE)
    after: str | None = None
    """The ``last`` of the answer before."""


@attrs.frozen(kw_only=True)
class PruneRequest:
    older_than_ms: int
    limit: int = attrs.field(default=100, metadata=_PAGE)


@attrs.frozen(kw_only=True)
class FetchAndLockRequest:
    worker_id: str = attrs.field(metadata=_NAME)
    task_types: tuple[str, ...] = attrs.field(metadata={"minItems": 1, "items": {"type": "string", "minLength": 1}})
    """Topics."""
    max_tasks: int = attrs.field(default=10, metadata={"minimum": 1})
    """Of all topics together."""
    lock_duration_ms: int = 30_000
    """A model's own lock duration overrides it."""
    wait_ms: int = attrs.field(default=0, metadata=_WAIT)
    """For the first task."""
    filter: str | None = None
    """A regular expression on the compact JSON of the variables."""
    variables: tuple[str, ...] | None = None
    """Only these top-level ones are given. None: all."""


@attrs.frozen(kw_only=True)
class CompleteTaskRequest:
    worker_id: str = attrs.field(metadata=_NAME)
    variables: JsonValue = None
    """Any JSON value: an object is merged as the model says, null is nothing, others become the variable `result`."""
    fence: int | None = None
    """None: the lease that the worker must mean. So in the others."""


@attrs.frozen(kw_only=True)
class FailTaskRequest:
    worker_id: str = attrs.field(metadata=_NAME)
    error: str
    details: JsonValue = None
    retry_after_ms: int | None = None
    """None: the model's back-off."""
    retries: int | None = None
    """Attempts that are left. None: the engine counts."""
    fence: int | None = None


@attrs.frozen(kw_only=True)
class BpmnErrorRequest:
    worker_id: str = attrs.field(metadata=_NAME)
    code: str
    message: str | None = None
    details: JsonValue = None
    variables: JsonObject = attrs.field(factory=dict)
    fence: int | None = None


@attrs.frozen(kw_only=True)
class ExtendLockRequest:
    worker_id: str = attrs.field(metadata=_NAME)
    extension_ms: int
    """From now on."""
    fence: int | None = None


@attrs.frozen(kw_only=True)
class UnlockRequest:
    worker_id: str = attrs.field(metadata=_NAME)
    fence: int | None = None
    started: bool = True
    """False: nothing was done yet, so that a single-try task may be tried."""


@attrs.frozen(kw_only=True)
class TaskRetriesRequest:
    retries: int = attrs.field(metadata=_RETRIES)


@attrs.frozen(kw_only=True)
class TaskPriorityRequest:
    priority: Signed = attrs.field(metadata={"minimum": -(2**31 - 1), "maximum": 2**31 - 1})


# --- queries -------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class NoQuery:
    pass


@attrs.frozen(kw_only=True)
class PageQuery:
    limit: int = attrs.field(default=100, metadata=_PAGE)
    after: str | None = None
    """Id of the last one of the page before."""


@attrs.frozen(kw_only=True)
class InstancesQuery(PageQuery):
    status: Literal["RUNNING", "COMPLETED", "FAILED", "CANCELLED"] | None = None
    process: str | None = None
    definition_id: str | None = None
    business_key: str | None = None
    with_incident: bool | None = None
    started_from: Instant | None = None
    started_before: Instant | None = None


@attrs.frozen(kw_only=True)
class TasksQuery(PageQuery):
    instance_id: str | None = None
    process: str | None = None
    definition_id: str | None = None
    business_key: str | None = None
    """Of the instance."""
    element_id: str | None = None
    topic: str | None = None
    state: Literal["READY", "LOCKED", "COMPLETED", "FAILED", "EXPIRED", "CANCELLED"] | None = None
    worker_id: str | None = None
    """LOCKED by this worker, whether or not the lock has run out."""
    is_locked: bool | None = None
    """True: LOCKED, and the lock has not run out. False: anything else."""
    with_retries_left: bool | None = None
    priority_from: Signed | None = None
    priority_to: Signed | None = None
    """This one included."""


@attrs.frozen(kw_only=True)
class UserTasksQuery(PageQuery):
    instance_id: str | None = None
    process: str | None = None
    assignee: str | None = None
    candidate_group: str | None = None


@attrs.frozen(kw_only=True)
class IncidentsQuery(PageQuery):
    instance_id: str | None = None
    process: str | None = None
    kind: str | None = None


@attrs.frozen(kw_only=True)
class InstanceQuery:
    history: bool = False


@attrs.frozen(kw_only=True)
class HistoryQuery:
    limit: int = attrs.field(default=100, metadata=_PAGE)
    after: int = 0
    """Sequence of the last event of the page before."""
    category: str | None = attrs.field(default=None, metadata={"enum": [category.value for category in EventCategory]})
    event_type: str | None = attrs.field(default=None, metadata={"enum": [*event_types()]})


@attrs.frozen(kw_only=True)
class StateQuery:
    at: int | None = None
    """The step; None: the newest."""


@attrs.frozen(kw_only=True)
class WaitQuery:
    timeout_ms: int = attrs.field(default=30_000, metadata=_WAIT)
    or_incident: bool = False
