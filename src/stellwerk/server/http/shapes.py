"""What the native API answers, as classes: for its document, and for tests, which hold real answers against them.

The answers themselves are made by `views` and the endpoints. All fields are always there, unless they have a default.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from stellwerk.actors.views import MessageStatus
from stellwerk.core.events import EventCategory
from stellwerk.core.external_task import AttemptEnd, OutcomeKind, TaskState
from stellwerk.core.instance import TokenStatus
from stellwerk.core.trace_values import TaskTrace, TokenTrace
from stellwerk.core.waits import OpenWait
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.model.process import Severity
from stellwerk.ports import Scope
from stellwerk.server.http.structuring import Instant, Signed

__all__ = [
    "AwaitedNames",
    "CorrelatedMessage",
    "CreatedKey",
    "Definitions",
    "Deployed",
    "Done",
    "Enabled",
    "ExtendedLock",
    "History",
    "Incidents",
    "Instance",
    "InstanceSummary",
    "Instances",
    "Keys",
    "Message",
    "MessageKey",
    "Messages",
    "Nodes",
    "Problem",
    "Pruned",
    "PulledTask",
    "RetriedIncidents",
    "RevokedKey",
    "Started",
    "StateAfterStep",
    "Statistics",
    "Task",
    "Tasks",
    "Topics",
    "Trace",
    "UserTasks",
    "Workers",
]

InstanceStatus: TypeAlias = Literal["RUNNING", "COMPLETED", "FAILED", "CANCELLED"]


@attrs.frozen(kw_only=True)
class Done:
    """Nothing more to say: an empty object."""


# --- errors --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Finding:
    """Something about a BPMN file."""

    file: str
    line: int
    column: int
    element_id: str | None
    element: str
    """Its name in XML."""
    what: str
    severity: Severity


@attrs.frozen(kw_only=True)
class Problem:
    """Problem details (RFC 9457)."""

    type: str
    """`urn:stellwerk:error:` and the code."""
    title: str
    status: int
    detail: str
    """What is wrong, for people; of a malformed request everything, and where."""
    code: str
    error: str
    """The detail again."""
    path: str = ""
    """Only where the detail names a place in the request, the first one: `$.files[0].name`, or `query.limit`."""
    findings: tuple[Finding, ...] = ()
    """Only of `deploy_refused`."""


# --- definitions ---------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Definition:
    definition_id: str
    """`key:version`"""
    key: str
    version: int
    name: str | None
    digest: str
    """SHA-256 of the file."""
    deployed_at: Instant
    start_messages: tuple[str, ...]
    failure_policy: Literal["incident", "compensate"] | None
    """Null: as the engine's configuration says."""


@attrs.frozen(kw_only=True)
class ListedDefinition(Definition):
    is_enabled: bool
    """Of its process."""


@attrs.frozen(kw_only=True)
class Definitions:
    definitions: tuple[ListedDefinition, ...]


@attrs.frozen(kw_only=True)
class Deployed:
    definitions: tuple[Definition, ...]
    unchanged: tuple[str, ...]
    """Keys whose newest version had the same text already."""
    warnings: tuple[Finding, ...]


@attrs.frozen(kw_only=True)
class Enabled:
    process: str
    is_enabled: bool


# --- tasks ---------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Lease:
    worker_id: str
    fence: int
    since: Instant
    until: Instant
    duration_ms: int


@attrs.frozen(kw_only=True)
class Attempt:
    """A lease that ended without success."""

    fence: int
    worker_id: str
    since: Instant
    ended_at: Instant
    end: AttemptEnd
    message: str | None
    details: JsonValue


@attrs.frozen(kw_only=True)
class TaskSummary:
    task_id: str
    instance_id: str
    token_id: str
    element_id: str
    topic: str
    state: TaskState
    priority: Signed
    created_at: Instant
    updated_at: Instant
    available_at: Instant
    retries: int
    """How many attempts may fail in all."""
    retries_left: int
    attempt: int
    lock_expiries: int
    single_try: bool
    draining: bool
    """The process does not need it any more, but a worker may still be at it."""
    fence: int
    lease: Lease | None
    """The present or last one."""
    outcome: OutcomeKind | None
    error_message: str | None


@attrs.frozen(kw_only=True)
class Task(TaskSummary):
    variables: JsonObject
    headers: JsonObject
    """From the model."""
    attempts: tuple[Attempt, ...]


@attrs.frozen(kw_only=True)
class Tasks:
    tasks: tuple[TaskSummary, ...]
    """The oldest first."""
    more: bool


@attrs.frozen(kw_only=True)
class PulledTask:
    """A task that is the worker's now."""

    task_id: str
    token_id: str
    process_instance_id: str
    task_type: str
    """Its topic."""
    variables: JsonObject
    fence: int
    """Of the lease: requests that name it can only mean this one."""
    lock_expire_at: Instant
    lock_remaining_ms: int
    """Rather less than there is."""
    retries: int
    """Attempts that may fail, this one included."""
    attempt: int
    priority: Signed
    business_key: str | None
    process_definition_id: str
    element_id: str
    created_at: Instant
    headers: JsonObject
    single_try: bool


@attrs.frozen(kw_only=True)
class ExtendedLock:
    lock_expire_at: Instant
    lock_remaining_ms: int


@attrs.frozen(kw_only=True)
class Topic:
    topic: str
    ready: int
    backing_off: int
    locked: int
    oldest_ready_at: Instant | None
    workers: int
    """Connected ones that subscribe."""
    free: int
    """How many more tasks they would take."""
    is_unattended: bool
    """Tasks are ready, and no connected worker subscribes."""


@attrs.frozen(kw_only=True)
class Topics:
    topics: tuple[Topic, ...]


@attrs.frozen(kw_only=True)
class WorkerTopic:
    topic: str
    max_tasks: int
    held: int


@attrs.frozen(kw_only=True)
class Worker:
    worker_id: str
    session_id: str
    client: str
    connected_at: Instant
    node: str
    topics: tuple[WorkerTopic, ...]


@attrs.frozen(kw_only=True)
class Workers:
    workers: tuple[Worker, ...]


# --- what waits for people, messages ---------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class UserTask:
    user_task_id: str
    instance_id: str
    element_id: str
    name: str | None
    assignee: str | None
    candidate_users: tuple[str, ...]
    candidate_groups: tuple[str, ...]
    form: str | None
    due_at: str | None
    """As the model gives it."""
    variables: JsonObject
    created_at: Instant


@attrs.frozen(kw_only=True)
class UserTasks:
    user_tasks: tuple[UserTask, ...]
    more: bool


@attrs.frozen(kw_only=True)
class Incident:
    incident_id: str
    instance_id: str
    kind: str
    element_id: str
    message: str
    task_id: str | None
    opened_at: Instant


@attrs.frozen(kw_only=True)
class Incidents:
    incidents: tuple[Incident, ...]
    more: bool


@attrs.frozen(kw_only=True)
class RefusedIncident:
    incident_id: str
    code: str
    message: str


@attrs.frozen(kw_only=True)
class RetriedIncidents:
    requeued: tuple[str, ...]
    """Their work is tried again; whether it goes well shows later."""
    refused: tuple[RefusedIncident, ...]
    unattended_topics: tuple[str, ...]
    last: str | None
    """For `after` of the next request."""
    more: bool


@attrs.frozen(kw_only=True)
class MessageKey:
    message_id: str


@attrs.frozen(kw_only=True)
class CorrelatedMessage:
    message_id: str
    instance_id: str | None
    """Whom it has reached. Null: that cannot be told, another node gave it to an instance."""
    has_started: bool
    """The message started it."""


@attrs.frozen(kw_only=True)
class Message:
    message_id: str
    name: str | None
    key: str | None
    status: MessageStatus
    published_at: Instant | None
    expires_at: Instant | None
    is_awaited: bool
    instance_id: str | None


@attrs.frozen(kw_only=True)
class Messages:
    messages: tuple[Message, ...]
    more: bool


@attrs.frozen(kw_only=True)
class AwaitedNames:
    names: tuple[str, ...]
    more: bool


# --- instances -----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _InstanceBase:
    instance_id: str
    definition_id: str
    process: str
    business_key: str | None
    status: InstanceStatus
    version: int
    """Steps so far."""
    started_at: Instant
    ended_at: Instant | None


@attrs.frozen(kw_only=True)
class InstanceSummary(_InstanceBase):
    incidents: int
    """How many are open."""


@attrs.frozen(kw_only=True)
class Instances:
    instances: tuple[InstanceSummary, ...]
    """The newest first."""
    more: bool


@attrs.frozen(kw_only=True)
class Started:
    """The last three are there if the request has `wait_ms`."""

    instance_id: str
    status: InstanceStatus
    variables: JsonObject = attrs.field(factory=dict)
    incidents: tuple[Incident, ...] = ()
    reason: str | None = None


@attrs.frozen(kw_only=True)
class Token:
    token_id: str
    node_id: str
    scope_id: str
    status: TokenStatus
    activity_id: str | None
    external: JsonValue
    waits: tuple[OpenWait, ...]


@attrs.frozen(kw_only=True)
class HistoryEvent:
    sequence: int
    """From 1, without gaps."""
    version: int
    """The step: its events became durable together."""
    event_type: str
    category: EventCategory
    occurred_at: Instant
    payload: JsonObject


@attrs.frozen(kw_only=True)
class History:
    history: tuple[HistoryEvent, ...]
    more: bool


@attrs.frozen(kw_only=True)
class Instance(_InstanceBase):
    """The last two are there if they are asked for."""

    incidents: tuple[Incident, ...]
    reason: str | None
    """Why it failed or was cancelled."""
    current_nodes: tuple[str, ...]
    tokens: tuple[Token, ...]
    variables: JsonObject
    tasks: tuple[Task, ...]
    user_tasks: tuple[UserTask, ...]
    history: tuple[HistoryEvent, ...] = ()
    more_history: bool = False


@attrs.frozen(kw_only=True)
class Trace:
    instance_id: str
    tokens: tuple[TokenTrace, ...]
    tasks: tuple[TaskTrace, ...]


@attrs.frozen(kw_only=True)
class StateAfterStep:
    version: int
    at: Instant
    state: JsonObject
    """Fields follow the engine's and may change with it."""


# --- operating -----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Pruned:
    instances: int
    """How many were deleted."""
    more: bool


@attrs.frozen(kw_only=True)
class Statistics:
    """Figures of this process, for people. There are more, and their names may change."""

    instances_live: int
    sessions: int
    leases_held: int


@attrs.frozen(kw_only=True)
class Node:
    node_id: str
    name: str
    url: str | None
    version: str
    started_at: Instant
    seen_ms_ago: int
    is_draining: bool
    workers: int
    leases: int
    instances_live: int
    commits: int
    operations: int
    commits_per_second: float
    operations_per_commit: float
    store_ms: float


@attrs.frozen(kw_only=True)
class Nodes:
    nodes: tuple[Node, ...]


@attrs.frozen(kw_only=True)
class Key:
    key_id: str
    name: str
    scopes: tuple[Scope, ...]
    worker_ids: tuple[str, ...] | None
    """Null: no restriction. So in the others."""
    topics: tuple[str, ...] | None
    processes: tuple[str, ...] | None
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None


@attrs.frozen(kw_only=True)
class CreatedKey(Key):
    key: str
    """The key itself, this once."""
    warning: str | None
    """That nobody can make other keys, where it is so."""


@attrs.frozen(kw_only=True)
class RevokedKey:
    warning: str | None
    """That nobody can make other keys any more, where it is so."""


@attrs.frozen(kw_only=True)
class Keys:
    keys: tuple[Key, ...]
