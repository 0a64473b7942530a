"""What the facts of a step change in the rows beside the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from stellwerk.core import facts as f
from stellwerk.core.changes import (
    IncidentRow,
    NewTask,
    RowChanges,
    SubscriptionRow,
    TaskRequeue,
    TimerRow,
    UserTaskAssignment,
    UserTaskRow,
)
from stellwerk.core.instance import InstanceState
from stellwerk.json_values import dumps

__all__ = ["row_changes"]


def row_changes(facts: Iterable[f.Fact], state_after: InstanceState) -> RowChanges:
    """The row changes of one changeset (the facts of one command or of several in order).

    What was created and removed within the changeset occurs nowhere.
    """
    rows = _Rows(state_after)
    for fact in facts:
        taker = _TAKERS.get(type(fact))
        if taker is not None:  # most facts are of no concern to any row
            taker(rows, fact)
    return rows.changes()


@attrs.define
class _Rows:
    """Rows by id, in the order in which the facts name them."""

    state: InstanceState
    status: str | None = None
    started: dict[str, f.ActivityStarted] = attrs.field(factory=dict)
    new_tasks: dict[str, NewTask] = attrs.field(factory=dict)
    cancelled: dict[str, None] = attrs.field(factory=dict)
    drained: dict[str, None] = attrs.field(factory=dict)
    requeued: dict[str, TaskRequeue] = attrs.field(factory=dict)
    timers: dict[str, TimerRow] = attrs.field(factory=dict)
    timers_gone: dict[str, None] = attrs.field(factory=dict)
    subscriptions: dict[str, SubscriptionRow] = attrs.field(factory=dict)
    subscriptions_gone: dict[str, None] = attrs.field(factory=dict)
    user_tasks: dict[str, UserTaskRow] = attrs.field(factory=dict)
    assignments: dict[str, UserTaskAssignment] = attrs.field(factory=dict)
    user_tasks_gone: dict[str, None] = attrs.field(factory=dict)
    incidents: dict[str, IncidentRow] = attrs.field(factory=dict)
    incidents_gone: dict[str, None] = attrs.field(factory=dict)

    def _activity(self, activity_id: str) -> tuple[str, str]:
        """→ (node id, token id), of an activity of this changeset or an earlier one."""
        started = self.started.get(activity_id)
        if started is not None:
            return started.node_id, started.token_id
        activity = self.state.activities[activity_id]
        return activity.node_id, activity.token_id

    def activity_started(self, fact: f.ActivityStarted) -> None:
        self.started[fact.activity_id] = fact

    def status_changed(self, _fact: f.Fact) -> None:
        self.status = self.state.status.value

    def task_created(self, fact: f.TaskCreated) -> None:
        self.new_tasks[fact.task_id] = self._new_task(fact)

    def task_cancelled(self, fact: f.TaskCancelled) -> None:
        self.drained.pop(fact.task_id, None)
        self.requeued.pop(fact.task_id, None)
        if self.new_tasks.pop(fact.task_id, None) is None:
            self.cancelled[fact.task_id] = None

    def task_draining(self, fact: f.TaskDraining) -> None:
        self.drained[fact.task_id] = None

    def task_not_draining(self, fact: f.TaskDrained | f.TaskCompleted) -> None:
        self.drained.pop(fact.task_id, None)

    def task_requeued(self, fact: f.TaskRequeued) -> None:
        self.requeued[fact.task_id] = TaskRequeue(fact.task_id, fact.retries, dumps(fact.variables))

    def _new_task(self, fact: f.TaskCreated) -> NewTask:
        element_id, token_id = self._activity(fact.activity_id)
        return NewTask(
            task_id=fact.task_id,
            token_id=token_id,
            activity_id=fact.activity_id,
            element_id=element_id,
            topic=fact.topic,
            priority=fact.priority,
            retries=fact.retries,
            retry_backoffs_ms=fact.retry_backoffs_ms,
            lock_expiries_max=fact.lock_expiries_max,
            single_try=fact.single_try,
            lock_duration_ms=fact.lock_duration_ms,
            variables=dumps(fact.variables),
            headers=dumps(fact.headers),
        )

    def timer_armed(self, fact: f.TimerArmed) -> None:
        self.timers[fact.timer_id] = TimerRow(fact.timer_id, fact.node_id, fact.due_at_ms)

    def timer_gone(self, fact: f.TimerFired | f.TimerDisarmed) -> None:
        if self.timers.pop(fact.timer_id, None) is None:
            self.timers_gone[fact.timer_id] = None

    def subscription_opened(self, fact: f.SubscriptionOpened) -> None:
        row = SubscriptionRow(fact.subscription_id, fact.node_id, fact.name, fact.key)
        self.subscriptions[fact.subscription_id] = row

    def message_correlated(self, fact: f.MessageCorrelated) -> None:
        if fact.closes:
            self.subscription_gone(fact)

    def subscription_gone(self, fact: f.SubscriptionClosed | f.MessageCorrelated) -> None:
        if self.subscriptions.pop(fact.subscription_id, None) is None:
            self.subscriptions_gone[fact.subscription_id] = None

    def user_task_created(self, fact: f.UserTaskCreated) -> None:
        element_id, _ = self._activity(fact.activity_id)
        self.user_tasks[fact.user_task_id] = UserTaskRow(
            user_task_id=fact.user_task_id,
            element_id=element_id,
            name=fact.name,
            assignee=fact.assignee,
            candidate_users=fact.candidate_users,
            candidate_groups=fact.candidate_groups,
            form=fact.form,
            variables=dumps(fact.variables),
            due_at=fact.due_at,
        )

    def user_task_assigned(self, fact: f.UserTaskAssigned) -> None:
        row = self.user_tasks.get(fact.user_task_id)
        if row is None:
            self.assignments[fact.user_task_id] = UserTaskAssignment(fact.user_task_id, fact.assignee)
        else:
            self.user_tasks[fact.user_task_id] = attrs.evolve(row, assignee=fact.assignee)

    def user_task_gone(self, fact: f.UserTaskCompleted | f.UserTaskCancelled) -> None:
        self.assignments.pop(fact.user_task_id, None)
        if self.user_tasks.pop(fact.user_task_id, None) is None:
            self.user_tasks_gone[fact.user_task_id] = None

    def incident_opened(self, fact: f.IncidentOpened) -> None:
        row = IncidentRow(fact.incident_id, fact.kind, fact.node_id, fact.message, fact.task_id)
        self.incidents[fact.incident_id] = row

    def incident_resolved(self, fact: f.IncidentResolved) -> None:
        if self.incidents.pop(fact.incident_id, None) is None:
            self.incidents_gone[fact.incident_id] = None

    def changes(self) -> RowChanges:
        return RowChanges(
            new_tasks=tuple(self.new_tasks.values()),
            cancelled_tasks=tuple(self.cancelled),
            drained_tasks=tuple(self.drained),
            requeued_tasks=tuple(self.requeued.values()),
            timers_armed=tuple(self.timers.values()),
            timers_disarmed=tuple(self.timers_gone),
            subscriptions_opened=tuple(self.subscriptions.values()),
            subscriptions_closed=tuple(self.subscriptions_gone),
            user_tasks_opened=tuple(self.user_tasks.values()),
            user_tasks_assigned=tuple(self.assignments.values()),
            user_tasks_closed=tuple(self.user_tasks_gone),
            incidents_opened=tuple(self.incidents.values()),
            incidents_resolved=tuple(self.incidents_gone),
            status=self.status,
        )


_TAKERS: dict[type[f.Fact], Callable[..., None]] = {
    f.ActivityStarted: _Rows.activity_started,
    f.InstanceStarted: _Rows.status_changed,
    f.InstanceCompleted: _Rows.status_changed,
    f.InstanceFailed: _Rows.status_changed,
    f.InstanceCancelled: _Rows.status_changed,
    f.TaskCreated: _Rows.task_created,
    f.TaskCancelled: _Rows.task_cancelled,
    f.TaskDraining: _Rows.task_draining,
    f.TaskDrained: _Rows.task_not_draining,
    f.TaskCompleted: _Rows.task_not_draining,
    f.TaskRequeued: _Rows.task_requeued,
    f.TimerArmed: _Rows.timer_armed,
    f.TimerFired: _Rows.timer_gone,
    f.TimerDisarmed: _Rows.timer_gone,
    f.SubscriptionOpened: _Rows.subscription_opened,
    f.SubscriptionClosed: _Rows.subscription_gone,
    f.MessageCorrelated: _Rows.message_correlated,
    f.UserTaskCreated: _Rows.user_task_created,
    f.UserTaskAssigned: _Rows.user_task_assigned,
    f.UserTaskCompleted: _Rows.user_task_gone,
    f.UserTaskCancelled: _Rows.user_task_gone,
    f.IncidentOpened: _Rows.incident_opened,
    f.IncidentResolved: _Rows.incident_resolved,
}
"""(rows, fact of the kind under which it stands here); the other facts change no row."""
