"""What the facts of a step change in the rows beside the history."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from stellwerk.core import facts as f
from stellwerk.core.changes import (
    IncidentRow,
    NewTask,
    RowChanges,
    SubscriptionRow,
    TaskRequeue,
    TimerRow,
    UserTaskRow,
)
from stellwerk.core.instance import InstanceState
from stellwerk.json_values import dumps
from stellwerk.model.process import Process

__all__ = ["row_changes"]


def row_changes(facts: Iterable[f.Fact], state_after: InstanceState, process: Process | None = None) -> RowChanges:
    """The row changes of one changeset (the facts of one command or of several in order).

    What was created and removed within the changeset occurs nowhere. ``process`` is not needed: facts tell it all.
    """
    del process
    rows = _Rows(state_after)
    for fact in facts:
        rows.take(fact)
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
    user_tasks_gone: dict[str, None] = attrs.field(factory=dict)
    incidents: dict[str, IncidentRow] = attrs.field(factory=dict)
    incidents_gone: dict[str, None] = attrs.field(factory=dict)

    def take(self, fact: f.Fact) -> None:
        match fact:
            case f.ActivityStarted():
                self.started[fact.activity_id] = fact
            case f.TaskCreated() | f.TaskCancelled() | f.TaskDraining() | f.TaskDrained() | f.TaskRequeued():
                self._take_task(fact)
            case f.TaskCompleted():
                self.drained.pop(fact.task_id, None)
            case f.TimerArmed() | f.TimerFired() | f.TimerDisarmed():
                self._take_timer(fact)
            case f.SubscriptionOpened() | f.SubscriptionClosed() | f.MessageCorrelated():
                self._take_subscription(fact)
            case f.UserTaskCreated() | f.UserTaskCompleted() | f.UserTaskCancelled():
                self._take_user_task(fact)
            case f.IncidentOpened() | f.IncidentResolved():
                self._take_incident(fact)
            case f.InstanceStarted() | f.InstanceCompleted() | f.InstanceFailed() | f.InstanceCancelled():
                self.status = self.state.status.value
            case _:
                pass  # of no concern to any row

    def _activity(self, activity_id: str) -> tuple[str, str]:
        """→ (node id, token id), of an activity of this changeset or an earlier one."""
        started = self.started.get(activity_id)
        if started is not None:
            return started.node_id, started.token_id
        activity = self.state.activities[activity_id]
        return activity.node_id, activity.token_id

    def _take_task(
        self, fact: f.TaskCreated | f.TaskCancelled | f.TaskDraining | f.TaskDrained | f.TaskRequeued
    ) -> None:
        match fact:
            case f.TaskCreated():
                self.new_tasks[fact.task_id] = self._new_task(fact)
            case f.TaskCancelled():
                self.drained.pop(fact.task_id, None)
                self.requeued.pop(fact.task_id, None)
                if self.new_tasks.pop(fact.task_id, None) is None:
                    self.cancelled[fact.task_id] = None
            case f.TaskDraining():
                self.drained[fact.task_id] = None
            case f.TaskDrained():
                self.drained.pop(fact.task_id, None)
            case f.TaskRequeued():
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

    def _take_timer(self, fact: f.TimerArmed | f.TimerFired | f.TimerDisarmed) -> None:
        if isinstance(fact, f.TimerArmed):
            self.timers[fact.timer_id] = TimerRow(fact.timer_id, fact.node_id, fact.due_at_ms)
        elif self.timers.pop(fact.timer_id, None) is None:
            self.timers_gone[fact.timer_id] = None

    def _take_subscription(self, fact: f.SubscriptionOpened | f.SubscriptionClosed | f.MessageCorrelated) -> None:
        if isinstance(fact, f.SubscriptionOpened):
            row = SubscriptionRow(fact.subscription_id, fact.node_id, fact.name, fact.key)
            self.subscriptions[fact.subscription_id] = row
        elif isinstance(fact, f.MessageCorrelated) and not fact.closes:
            pass
        elif self.subscriptions.pop(fact.subscription_id, None) is None:
            self.subscriptions_gone[fact.subscription_id] = None

    def _take_user_task(self, fact: f.UserTaskCreated | f.UserTaskCompleted | f.UserTaskCancelled) -> None:
        if isinstance(fact, f.UserTaskCreated):
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
        elif self.user_tasks.pop(fact.user_task_id, None) is None:
            self.user_tasks_gone[fact.user_task_id] = None

    def _take_incident(self, fact: f.IncidentOpened | f.IncidentResolved) -> None:
        if isinstance(fact, f.IncidentOpened):
            self.incidents[fact.incident_id] = IncidentRow(
                fact.incident_id, fact.kind, fact.node_id, fact.message, fact.task_id
            )
        elif self.incidents.pop(fact.incident_id, None) is None:
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
            user_tasks_closed=tuple(self.user_tasks_gone),
            incidents_opened=tuple(self.incidents.values()),
            incidents_resolved=tuple(self.incidents_gone),
            status=self.status,
        )
