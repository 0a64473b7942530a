"""The row changes that follow from the facts of one step: what a changeset carries beside the facts themselves.

History is the truth and the rows are its index: each of these can be derived from facts and definition alone.
"""

from __future__ import annotations

from stellwerk.instants import InstantMs
from stellwerk.values import frozen

__all__ = [
    "IncidentRow",
    "NewTask",
    "RowChanges",
    "SubscriptionRow",
    "TaskRequeue",
    "TimerRow",
    "UserTaskAssignment",
    "UserTaskRow",
]


@frozen(kw_only=True)
class NewTask:
    """An external task to insert, READY."""

    task_id: str
    token_id: str
    activity_id: str
    element_id: str
    topic: str
    priority: int
    retries: int
    retry_backoffs_ms: tuple[int, ...]
    lock_expiries_max: int
    single_try: bool
    lock_duration_ms: int | None
    variables: bytes
    headers: bytes


@frozen
class TaskRequeue:
    """The incident of a FAILED or EXPIRED task was resolved: READY again, with a newer fence at its next lease."""

    task_id: str
    retries: int
    variables: bytes
    """What the worker gets now: the process may have been repaired."""


@frozen
class TimerRow:
    timer_id: str
    element_id: str
    due_at_ms: InstantMs
    """Wall clock."""


@frozen
class SubscriptionRow:
    """A catch event, boundary event or receive task that waits for a message."""

    subscription_id: str
    element_id: str
    name: str
    key: str
    """Equal to the message's key; empty when neither has one."""


@frozen
class UserTaskRow:
    user_task_id: str
    element_id: str
    name: str | None
    assignee: str | None
    candidate_users: tuple[str, ...]
    candidate_groups: tuple[str, ...]
    form: str | None
    variables: bytes
    """JSON text of what the person gets to see."""
    due_at: str | None = None


@frozen
class UserTaskAssignment:
    user_task_id: str
    assignee: str | None


@frozen
class IncidentRow:
    incident_id: str
    kind: str
    element_id: str
    message: str
    task_id: str | None = None


@frozen(kw_only=True)
class RowChanges:
    """All row changes of a step. A row created and removed within the step occurs in neither list."""

    new_tasks: tuple[NewTask, ...] = ()
    cancelled_tasks: tuple[str, ...] = ()
    """READY or LOCKED (or FAILED/EXPIRED with an incident) → CANCELLED; holders are told."""
    drained_tasks: tuple[str, ...] = ()
    """Mark as draining; a READY one is reported back, so that `EndDraining` can follow."""
    requeued_tasks: tuple[TaskRequeue, ...] = ()
    timers_armed: tuple[TimerRow, ...] = ()
    timers_disarmed: tuple[str, ...] = ()
    subscriptions_opened: tuple[SubscriptionRow, ...] = ()
    subscriptions_closed: tuple[str, ...] = ()
    user_tasks_opened: tuple[UserTaskRow, ...] = ()
    user_tasks_assigned: tuple[UserTaskAssignment, ...] = ()
    """Of those that were open before; each once."""
    user_tasks_closed: tuple[str, ...] = ()
    incidents_opened: tuple[IncidentRow, ...] = ()
    incidents_resolved: tuple[str, ...] = ()
    """Guarded: each must still be there."""
    status: str | None = None
    """The instance's new status (``RUNNING``, ``COMPLETED``, ``FAILED``, ``CANCELLED``), if it changed."""
