"""What one can ask of a process instance. Imperative; the answer is a list of facts or a refusal.

Each command is decided for itself by `decide`. Lease checks are not decided here: a command that ends a task carries
the fence, and the store checks it in the transaction that makes the step durable.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.values import frozen

__all__ = [
    "AssignUserTask",
    "CancelInstance",
    "Command",
    "CompleteTask",
    "CompleteUserTask",
    "CorrelateMessage",
    "EndDraining",
    "EndTaskInFailure",
    "FailureKind",
    "FireTimer",
    "GiveUpTask",
    "ResolveIncident",
    "SetVariables",
    "StartInstance",
    "ThrowBpmnError",
]


@frozen
class StartInstance:
    """Create the instance and run it from a start event. It must not exist yet."""

    instance_id: str
    definition_id: str
    variables: JsonObject
    business_key: str | None = None
    start_event_id: str | None = None
    """None: the process's only none start event."""
    message_id: str | None = None
    """The message that starts it (its row is consumed in the same changeset)."""


@frozen
class CompleteTask:
    task_id: str
    fence: int
    variables: JsonValue
    """The worker's result. An object is merged into the scope or goes through the output mappings; None is nothing;
    anything else is set as variable ``result`` (ProcessCube: the token's payload)."""
    request_digest: str
    worker_id: str | None = None


@frozen
class ThrowBpmnError:
    """A business error reported by the worker. Never changes the retries."""

    task_id: str
    fence: int
    error_code: str
    message: str | None
    details: JsonValue
    variables: JsonObject
    request_digest: str
    worker_id: str | None = None


class FailureKind(Enum):
    RETRIES_EXHAUSTED = "retries_exhausted"
    LOCK_EXPIRED = "lock_expired"
    """A single-try lock ran out."""
    LOCK_EXPIRIES_EXHAUSTED = "lock_expiries_exhausted"
    UNDELIVERABLE = "undeliverable"
    """The task cannot be put into a frame."""


@frozen
class EndTaskInFailure:
    """The last failure, a single-try expiry, the expiry limit: the task ends, its token fails, the policy decides.

    For a draining task the kind does not matter: it just ends.
    """

    task_id: str
    fence: int
    kind: FailureKind
    message: str
    request_digest: str | None = None
    """Of the worker's ``fail`` request; None when the sweep sends the command."""
    details: JsonValue = None
    worker_id: str | None = None
    worker_gives_up: bool = False
    """The worker itself said that no attempts are left (``retries`` 0), whatever the row says."""


@frozen
class EndDraining:
    """A draining task turned out to have no lease any more: end it."""

    task_id: str


@frozen
class GiveUpTask:
    """An operator says that no attempts are left: the task ends, whoever has it, and its token stops at an incident,
    whatever the failure policy. Nobody gets it until that is resolved."""

    task_id: str
    message: str


@frozen
class FireTimer:
    timer_id: str


@frozen
class CorrelateMessage:
    subscription_id: str
    message_id: str
    variables: JsonObject


@frozen
class CompleteUserTask:
    """Finish a user, manual or undefined task that waits for a person."""

    user_task_id: str
    variables: JsonObject


@frozen
class AssignUserTask:
    """Give an open user task to somebody; None: to nobody."""

    user_task_id: str
    assignee: str | None
    unless_assigned: bool = False
    """Refused while somebody else has it."""


@frozen
class ResolveIncident:
    """Try again from where the incident stands. A task becomes READY with `retries` attempts (at least 1)."""

    incident_id: str
    retries: int = 1


@frozen
class CancelInstance:
    reason: str


@frozen
class SetVariables:
    """Set variables of a scope by hand (None: the process's own)."""

    variables: JsonObject
    scope_id: str | None = None


Command: TypeAlias = (
    StartInstance
    | CompleteTask
    | ThrowBpmnError
    | EndTaskInFailure
    | EndDraining
    | GiveUpTask
    | FireTimer
    | CorrelateMessage
    | CompleteUserTask
    | AssignUserTask
    | ResolveIncident
    | CancelInstance
    | SetVariables
)
