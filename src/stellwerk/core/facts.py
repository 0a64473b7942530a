"""What happened in a process instance. Past tense, frozen, of plain values: the history is made of these.

Folding the facts of an instance in order (`evolve`) gives its state; there is no other source of it. No fact holds a
fence, a holder or a retry count: a task's life is its row.
"""

from __future__ import annotations

from typing import TypeAlias

from stellwerk.instants import InstantMs
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.values import frozen

__all__ = [
    "ActivityCancelled",
    "ActivityCompleted",
    "ActivityFailed",
    "ActivityStarted",
    "CompensationEnded",
    "CompensationHandlerEnded",
    "CompensationHandlerStarted",
    "CompensationStarted",
    "ErrorRaised",
    "Fact",
    "IncidentOpened",
    "IncidentResolved",
    "InstanceCancelled",
    "InstanceCompleted",
    "InstanceFailed",
    "InstanceStarted",
    "MessageCorrelated",
    "PayloadSet",
    "ScopeClosed",
    "ScopeFailing",
    "ScopeOpened",
    "SubscriptionClosed",
    "SubscriptionOpened",
    "TaskCancelled",
    "TaskCompleted",
    "TaskCreated",
    "TaskDrained",
    "TaskDraining",
    "TaskErrorReported",
    "TaskFailed",
    "TaskRequeued",
    "TimerArmed",
    "TimerDisarmed",
    "TimerFired",
    "TokenEnded",
    "TokenEntered",
    "TokenFailed",
    "TokenRevived",
    "UserTaskAssigned",
    "UserTaskCancelled",
    "UserTaskCompleted",
    "UserTaskCreated",
    "VariablesSet",
]


# --- the instance --------------------------------------------------------------------------------------------------


@frozen
class InstanceStarted:
    instance_id: str
    definition_id: str
    business_key: str | None
    start_event_id: str | None
    """None: a process without start events begins at its nodes without incoming flows."""
    root_scope_id: str
    variables: JsonObject
    message_id: str | None = None


@frozen
class InstanceCompleted:
    terminated: bool = False
    """By a terminate end event."""


@frozen
class InstanceFailed:
    code: str
    message: str


@frozen
class InstanceCancelled:
    reason: str


# --- tokens and scopes ---------------------------------------------------------------------------------------------


@frozen
class TokenEntered:
    """A token is at a node: newly created, or moved there from its former node."""

    token_id: str
    node_id: str
    scope_id: str
    via: str | None = None
    """The sequence flow that it took; None at a start event, boundary event or compensation handler."""
    from_token: str | None = None
    """A new token: the one that it split off from (it inherits the payload)."""


@frozen
class PayloadSet:
    """ProcessCube: the result of a node is what its token carries from now on, and ``token.history`` knows it."""

    token_id: str
    node_id: str
    payload: JsonValue


@frozen
class TokenEnded:
    token_id: str


@frozen
class TokenFailed:
    token_id: str


@frozen
class TokenRevived:
    """A failed token is taken up again: its incident was resolved."""

    token_id: str


@frozen
class ScopeOpened:
    """The process itself, a subprocess body, or the local variables of an activity with input mappings."""

    scope_id: str
    node_id: str | None
    parent_id: str | None
    activity_id: str | None
    variables: JsonObject
    local: bool = False
    """True: holds variables of one activity only; no token lives in it."""


@frozen
class ScopeClosed:
    scope_id: str


@frozen
class ScopeFailing:
    """Its tokens are cancelled, leased tasks with a compensation handler are waited for, then it is compensated."""

    scope_id: str
    code: str
    message: str
    node_id: str


@frozen
class VariablesSet:
    scope_id: str
    variables: JsonObject


# --- activities ----------------------------------------------------------------------------------------------------


@frozen
class ActivityStarted:
    activity_id: str
    node_id: str
    token_id: str
    scope_id: str
    """The scope in which its token lives."""
    compensates: str | None = None
    """The completed activity that this one undoes."""


@frozen
class ActivityCompleted:
    activity_id: str
    compensation_variables: JsonObject | None = None
    """What its compensation handler will see; None: nothing to compensate. A subprocess without a handler of its own
    has an empty object: its completed activities are compensated in its place."""


@frozen
class ActivityCancelled:
    activity_id: str


@frozen
class ActivityFailed:
    activity_id: str
    code: str
    message: str


# --- external tasks ------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class TaskCreated:
    task_id: str
    activity_id: str
    topic: str
    priority: int
    retries: int
    retry_backoffs_ms: tuple[int, ...] = ()
    lock_expiries_max: int
    single_try: bool = False
    lock_duration_ms: int | None = None
    variables: JsonValue
    headers: dict[str, str]


@frozen
class TaskCompleted:
    task_id: str
    worker_id: str | None = None


@frozen
class TaskErrorReported:
    """The worker reported a business error; `ErrorRaised` says who caught it."""

    task_id: str
    code: str
    message: str | None
    worker_id: str | None = None


@frozen
class TaskFailed:
    """Ended for good (``kind``: a `FailureKind`'s value)."""

    task_id: str
    kind: str
    message: str


@frozen
class TaskCancelled:
    task_id: str


@frozen
class TaskDraining:
    task_id: str


@frozen
class TaskDrained:
    """A draining task ended without being completed."""

    task_id: str


@frozen
class TaskRequeued:
    """Offered again: the input mappings were evaluated anew, so the worker sees what was repaired meanwhile."""

    task_id: str
    retries: int
    variables: JsonValue


# --- waiting -------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class UserTaskCreated:
    user_task_id: str
    activity_id: str
    name: str | None
    assignee: str | None = None
    candidate_users: tuple[str, ...] = ()
    candidate_groups: tuple[str, ...] = ()
    form: str | None = None
    due_at: str | None = None
    variables: JsonObject


@frozen
class UserTaskAssigned:
    user_task_id: str
    assignee: str | None
    """None: nobody has it any more."""


@frozen
class UserTaskCompleted:
    user_task_id: str


@frozen
class UserTaskCancelled:
    user_task_id: str


@frozen
class TimerArmed:
    """For a catch event the token waits at it; for a boundary event the activity it is attached to."""

    timer_id: str
    node_id: str
    due_at_ms: InstantMs
    token_id: str | None = None
    activity_id: str | None = None
    repeats_left: int | None = 0
    """Of a cycle: how often it will be armed again after this time; None: without end."""


@frozen
class TimerFired:
    timer_id: str


@frozen
class TimerDisarmed:
    timer_id: str


@frozen
class SubscriptionOpened:
    subscription_id: str
    node_id: str
    name: str
    key: str
    token_id: str | None = None
    activity_id: str | None = None


@frozen
class MessageCorrelated:
    """The subscription closes, unless it belongs to a non-interrupting boundary event (then it stays open)."""

    subscription_id: str
    message_id: str
    closes: bool = True


@frozen
class SubscriptionClosed:
    subscription_id: str


# --- errors, incidents, compensation -------------------------------------------------------------------------------


@frozen
class ErrorRaised:
    """A BPMN error left a node; ``caught_by`` is the event that takes it, or None."""

    node_id: str
    code: str
    message: str | None
    caught_by: str | None


@frozen(kw_only=True)
class IncidentOpened:
    incident_id: str
    kind: str
    """A `FailureKind`'s value, ``bpmn_error``, ``model_fault`` or ``compensation_failed``."""
    node_id: str
    message: str
    token_id: str | None = None
    task_id: str | None = None


@frozen
class IncidentResolved:
    incident_id: str
    cancelled: bool = False
    """What it stood at was cancelled."""


@frozen
class CompensationStarted:
    """``activities``: completed activities in the order in which their handlers will run (last completed first)."""

    compensation_id: str
    scope_id: str
    activities: tuple[str, ...]
    token_id: str | None = None
    """The throwing token, which waits; None: the scope is failing."""


@frozen
class CompensationHandlerStarted:
    compensation_id: str
    activity_id: str
    """The completed activity that is undone."""
    token_id: str
    """The handler's token."""


@frozen
class CompensationHandlerEnded:
    compensation_id: str
    activity_id: str


@frozen
class CompensationEnded:
    compensation_id: str
    cancelled: bool = False


Fact: TypeAlias = (
    InstanceStarted
    | InstanceCompleted
    | InstanceFailed
    | InstanceCancelled
    | TokenEntered
    | PayloadSet
    | TokenEnded
    | TokenFailed
    | TokenRevived
    | ScopeOpened
    | ScopeClosed
    | ScopeFailing
    | VariablesSet
    | ActivityStarted
    | ActivityCompleted
    | ActivityCancelled
    | ActivityFailed
    | TaskCreated
    | TaskCompleted
    | TaskErrorReported
    | TaskFailed
    | TaskCancelled
    | TaskDraining
    | TaskDrained
    | TaskRequeued
    | UserTaskCreated
    | UserTaskAssigned
    | UserTaskCompleted
    | UserTaskCancelled
    | TimerArmed
    | TimerFired
    | TimerDisarmed
    | SubscriptionOpened
    | MessageCorrelated
    | SubscriptionClosed
    | ErrorRaised
    | IncidentOpened
    | IncidentResolved
    | CompensationStarted
    | CompensationHandlerStarted
    | CompensationHandlerEnded
    | CompensationEnded
)
