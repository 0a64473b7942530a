"""One function applies a fact to the state of an instance: live, in recovery and in replay.

Folding needs no definition: what a fact means is in the fact. Applying never fails on facts that `decide` made; a fact
that does not fit (a key that is missing) is a mistake of ours or a damaged history, and raises `KeyError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from stellwerk.core import facts as f
from stellwerk.core.instance import (
    ActivityInstance,
    Compensation,
    CompletedActivity,
    External,
    Incident,
    InstanceState,
    InstanceStatus,
    OpenTask,
    Scope,
    ScopeFailure,
    Subscription,
    Timer,
    Token,
    TokenStatus,
)
from stellwerk.errors import InvariantBroken

__all__ = ["APPLIERS", "apply", "fold", "started"]

_ACTIVE = TokenStatus.ACTIVE

_Applier: TypeAlias = Callable[..., None]
"""(state, fact of the kind under which it stands in the table)"""


def fold(state: InstanceState | None, facts: Iterable[f.Fact]) -> InstanceState:
    """The state after `facts`. The given state is not changed.

    :raises InvariantBroken: when there is no state and the first fact is not `InstanceStarted`.
    """
    current = state.fork() if state is not None else None
    for fact in facts:
        if current is None:
            if not isinstance(fact, f.InstanceStarted):
                raise InvariantBroken(f"a history begins with {type(fact).__name__}")
            current = started(fact)
        else:
            apply(current, fact)
    if current is None:
        raise InvariantBroken("an empty history has no state")
    return current


def started(fact: f.InstanceStarted) -> InstanceState:
    return InstanceState(
        instance_id=fact.instance_id,
        definition_id=fact.definition_id,
        business_key=fact.business_key,
        root_scope_id=fact.root_scope_id,
        scopes={
            fact.root_scope_id: Scope(
                id=fact.root_scope_id,
                node_id=None,
                parent_id=None,
                activity_id=None,
                variables=fact.variables,
                local=False,
            )
        },
        token_counts={fact.root_scope_id: 0},
    )


def apply(state: InstanceState, fact: f.Fact) -> None:
    """Change `state` by `fact`."""
    APPLIERS[type(fact)](state, fact)


# --- the instance --------------------------------------------------------------------------------------------------


def _instance_completed(state: InstanceState, _fact: f.InstanceCompleted) -> None:
    state.status = InstanceStatus.COMPLETED
    state.completed.clear()


def _instance_failed(state: InstanceState, _fact: f.InstanceFailed) -> None:
    state.status = InstanceStatus.FAILED
    state.completed.clear()


def _instance_cancelled(state: InstanceState, _fact: f.InstanceCancelled) -> None:
    state.status = InstanceStatus.CANCELLED
    state.completed.clear()


# --- tokens and scopes ---------------------------------------------------------------------------------------------


def _token_entered(state: InstanceState, fact: f.TokenEntered) -> None:
    token = state.tokens.get(fact.token_id)
    payload, compensation_id = None, None
    if token is not None:
        payload, compensation_id = token.payload, token.compensation_id
        if token.scope_id != fact.scope_id:
            raise InvariantBroken(f"token {token.id} moves into another scope")
        _count_away(state, token.node_id)
    else:
        state.token_counts[fact.scope_id] += 1
        if fact.from_token is not None:
            payload = state.tokens[fact.from_token].payload
    state.node_counts[fact.node_id] = state.node_counts.get(fact.node_id, 0) + 1
    state.tokens[fact.token_id] = Token(
        fact.token_id,
        fact.node_id,
        fact.scope_id,
        fact.via,
        None,
        None,
        _ACTIVE,
        False,
        payload,
        compensation_id,
    )


def _count_away(state: InstanceState, node_id: str) -> None:
    count = state.node_counts[node_id] - 1
    if count:
        state.node_counts[node_id] = count
    else:
        del state.node_counts[node_id]


def _changed(
    token: Token,
    activity_id: str | None,
    external: External | None,
    status: TokenStatus = _ACTIVE,
    leaving: bool = False,
) -> Token:
    return Token(
        token.id,
        token.node_id,
        token.scope_id,
        token.via,
        activity_id,
        external,
        status,
        leaving,
        token.payload,
        token.compensation_id,
    )


def _payload_set(state: InstanceState, fact: f.PayloadSet) -> None:
    token = state.tokens[fact.token_id]
    state.results[fact.node_id] = fact.payload
    state.tokens[token.id] = Token(
        token.id,
        token.node_id,
        token.scope_id,
        token.via,
        token.activity_id,
        token.external,
        token.status,
        token.leaving,
        fact.payload,
        token.compensation_id,
    )


def _token_ended(state: InstanceState, fact: f.TokenEnded) -> None:
    token = state.tokens.pop(fact.token_id)
    state.token_counts[token.scope_id] -= 1
    _count_away(state, token.node_id)


def _token_failed(state: InstanceState, fact: f.TokenFailed) -> None:
    token = state.tokens[fact.token_id]
    state.tokens[token.id] = _changed(
        token,
        activity_id=token.activity_id,
        external=token.external,
        status=TokenStatus.FAILED,
        leaving=token.leaving,
    )


def _token_revived(state: InstanceState, fact: f.TokenRevived) -> None:
    token = state.tokens[fact.token_id]
    state.tokens[token.id] = _changed(
        token, activity_id=token.activity_id, external=token.external, leaving=token.leaving
    )


def _token_leaving(state: InstanceState, token_id: str | None) -> None:
    token = state.tokens.get(token_id) if token_id is not None else None
    if token is not None and token.activity_id is None:
        state.tokens[token.id] = _changed(token, None, None, _ACTIVE, True)


def _scope_opened(state: InstanceState, fact: f.ScopeOpened) -> None:
    state.scopes[fact.scope_id] = Scope(
        fact.scope_id, fact.node_id, fact.parent_id, fact.activity_id, fact.variables, fact.local
    )
    if not fact.local:
        state.token_counts[fact.scope_id] = 0
    if fact.activity_id is not None:
        activity = state.activities[fact.activity_id]
        state.activities[activity.id] = ActivityInstance(
            activity.id, activity.node_id, activity.token_id, activity.scope_id, activity.compensates, fact.scope_id
        )


def _scope_closed(state: InstanceState, fact: f.ScopeClosed) -> None:
    del state.scopes[fact.scope_id]
    state.token_counts.pop(fact.scope_id, None)


def _scope_failing(state: InstanceState, fact: f.ScopeFailing) -> None:
    scope = state.scopes[fact.scope_id]
    state.scopes[scope.id] = Scope(
        scope.id,
        scope.node_id,
        scope.parent_id,
        scope.activity_id,
        scope.variables,
        scope.local,
        ScopeFailure(fact.code, fact.message, fact.node_id),
    )


def _variables_set(state: InstanceState, fact: f.VariablesSet) -> None:
    scope = state.scopes[fact.scope_id]
    state.scopes[scope.id] = Scope(
        scope.id,
        scope.node_id,
        scope.parent_id,
        scope.activity_id,
        {**scope.variables, **fact.variables},
        scope.local,
        scope.failure,
    )


# --- activities ----------------------------------------------------------------------------------------------------


def _activity_started(state: InstanceState, fact: f.ActivityStarted) -> None:
    state.activities[fact.activity_id] = ActivityInstance(
        fact.activity_id, fact.node_id, fact.token_id, fact.scope_id, fact.compensates
    )
    token = state.tokens[fact.token_id]
    state.tokens[token.id] = _changed(token, fact.activity_id, None)


def _activity_completed(state: InstanceState, fact: f.ActivityCompleted) -> None:
    activity = state.activities.pop(fact.activity_id)
    if fact.compensation_variables is not None:
        state.completed[activity.id] = CompletedActivity(
            activity.id,
            activity.node_id,
            activity.scope_id,
            activity.inner_scope_id,
            fact.compensation_variables,
        )
    elif activity.inner_scope_id is not None and state.completed:
        _forget_completed(state, activity.inner_scope_id)
    token = state.tokens[activity.token_id]
    state.tokens[token.id] = _changed(token, None, None, _ACTIVE, True)


def _forget_completed(state: InstanceState, scope_id: str) -> None:
    """Nobody can compensate any more what was completed in a scope."""
    for completed in [completed for completed in state.completed.values() if completed.scope_id == scope_id]:
        del state.completed[completed.id]
        if completed.body_scope_id is not None:
            _forget_completed(state, completed.body_scope_id)


def _activity_cancelled(state: InstanceState, fact: f.ActivityCancelled) -> None:
    _activity_gone(state, fact.activity_id)


def _activity_failed(state: InstanceState, fact: f.ActivityFailed) -> None:
    _activity_gone(state, fact.activity_id)


def _activity_gone(state: InstanceState, activity_id: str) -> None:
    activity = state.activities.pop(activity_id)
    state.tasks.pop(activity_id, None)
    if activity.inner_scope_id is not None and state.completed:
        _forget_completed(state, activity.inner_scope_id)
    token = state.tokens[activity.token_id]
    state.tokens[token.id] = _changed(
        token, activity_id=None, external=None, status=token.status, leaving=token.leaving
    )


# --- external and user tasks ---------------------------------------------------------------------------------------


def _task_created(state: InstanceState, fact: f.TaskCreated) -> None:
    state.tasks[fact.task_id] = OpenTask(fact.activity_id)
    token = state.tokens[state.activities[fact.activity_id].token_id]
    external = External(fact.topic, fact.retries, fact.lock_duration_ms)
    state.tokens[token.id] = _changed(token, fact.activity_id, external)


def _task_completed(state: InstanceState, fact: f.TaskCompleted) -> None:
    task = state.tasks.pop(fact.task_id)
    token = state.tokens[state.activities[task.activity_id].token_id]
    state.tokens[token.id] = _changed(token, task.activity_id, None)


def _task_error_reported(state: InstanceState, fact: f.TaskErrorReported) -> None:
    """What becomes of the task is said by `ActivityFailed` or `TaskFailed`."""


def _task_failed(state: InstanceState, fact: f.TaskFailed) -> None:
    task = state.tasks[fact.task_id]
    state.tasks[fact.task_id] = OpenTask(task.activity_id, task.draining, failed=True)


def _task_cancelled(state: InstanceState, fact: f.TaskCancelled) -> None:
    del state.tasks[fact.task_id]


def _task_draining(state: InstanceState, fact: f.TaskDraining) -> None:
    state.tasks[fact.task_id] = OpenTask(state.tasks[fact.task_id].activity_id, draining=True)


def _task_drained(state: InstanceState, fact: f.TaskDrained) -> None:
    del state.tasks[fact.task_id]


def _task_requeued(state: InstanceState, fact: f.TaskRequeued) -> None:
    state.tasks[fact.task_id] = OpenTask(state.tasks[fact.task_id].activity_id)


def _user_task_created(state: InstanceState, fact: f.UserTaskCreated) -> None:
    state.user_tasks[fact.user_task_id] = fact.activity_id
    _assign(state, fact.user_task_id, fact.assignee)


def _user_task_assigned(state: InstanceState, fact: f.UserTaskAssigned) -> None:
    _assign(state, fact.user_task_id, fact.assignee)


def _assign(state: InstanceState, user_task_id: str, assignee: str | None) -> None:
    if assignee is None:
        state.assignees.pop(user_task_id, None)
    else:
        state.assignees[user_task_id] = assignee


def _user_task_completed(state: InstanceState, fact: f.UserTaskCompleted) -> None:
    del state.user_tasks[fact.user_task_id]
    _assign(state, fact.user_task_id, None)


def _user_task_cancelled(state: InstanceState, fact: f.UserTaskCancelled) -> None:
    del state.user_tasks[fact.user_task_id]
    _assign(state, fact.user_task_id, None)


# --- waiting -------------------------------------------------------------------------------------------------------


def _timer_armed(state: InstanceState, fact: f.TimerArmed) -> None:
    state.timers[fact.timer_id] = Timer(
        fact.timer_id, fact.node_id, fact.due_at_ms, fact.token_id, fact.activity_id, fact.repeats_left
    )


def _timer_fired(state: InstanceState, fact: f.TimerFired) -> None:
    timer = state.timers.pop(fact.timer_id)
    _token_leaving(state, timer.token_id)


def _timer_disarmed(state: InstanceState, fact: f.TimerDisarmed) -> None:
    del state.timers[fact.timer_id]


def _subscription_opened(state: InstanceState, fact: f.SubscriptionOpened) -> None:
    state.subscriptions[fact.subscription_id] = Subscription(
        fact.subscription_id, fact.node_id, fact.name, fact.key, fact.token_id, fact.activity_id
    )


def _message_correlated(state: InstanceState, fact: f.MessageCorrelated) -> None:
    if fact.closes:
        subscription = state.subscriptions.pop(fact.subscription_id)
        _token_leaving(state, subscription.token_id)


def _subscription_closed(state: InstanceState, fact: f.SubscriptionClosed) -> None:
    del state.subscriptions[fact.subscription_id]


# --- errors, incidents, compensation -------------------------------------------------------------------------------


def _error_raised(state: InstanceState, fact: f.ErrorRaised) -> None:
    """Told for people; its effects are facts of their own."""


def _incident_opened(state: InstanceState, fact: f.IncidentOpened) -> None:
    state.incidents[fact.incident_id] = Incident(fact.incident_id, fact.kind, fact.node_id, fact.token_id, fact.task_id)


def _incident_resolved(state: InstanceState, fact: f.IncidentResolved) -> None:
    del state.incidents[fact.incident_id]


def _compensation_started(state: InstanceState, fact: f.CompensationStarted) -> None:
    pending = tuple(state.completed.pop(activity_id) for activity_id in fact.activities)
    state.compensations[fact.compensation_id] = Compensation(
        fact.compensation_id, fact.scope_id, fact.token_id, pending
    )


def _handler_started(state: InstanceState, fact: f.CompensationHandlerStarted) -> None:
    compensation = state.compensations[fact.compensation_id]
    state.compensations[compensation.id] = Compensation(
        compensation.id, compensation.scope_id, compensation.thrower_id, compensation.pending, fact.token_id
    )
    token = state.tokens[fact.token_id]
    state.tokens[token.id] = Token(
        token.id,
        token.node_id,
        token.scope_id,
        token.via,
        token.activity_id,
        token.external,
        token.status,
        token.leaving,
        token.payload,
        compensation.id,
    )


def _handler_ended(state: InstanceState, fact: f.CompensationHandlerEnded) -> None:
    compensation = state.compensations[fact.compensation_id]
    state.compensations[compensation.id] = Compensation(
        compensation.id, compensation.scope_id, compensation.thrower_id, compensation.pending[1:]
    )


def _compensation_ended(state: InstanceState, fact: f.CompensationEnded) -> None:
    compensation = state.compensations.pop(fact.compensation_id)
    if not fact.cancelled:
        _token_leaving(state, compensation.thrower_id)


APPLIERS: dict[type, _Applier] = {
    f.InstanceCompleted: _instance_completed,
    f.InstanceFailed: _instance_failed,
    f.InstanceCancelled: _instance_cancelled,
    f.TokenEntered: _token_entered,
    f.PayloadSet: _payload_set,
    f.TokenEnded: _token_ended,
    f.TokenFailed: _token_failed,
    f.TokenRevived: _token_revived,
    f.ScopeOpened: _scope_opened,
    f.ScopeClosed: _scope_closed,
    f.ScopeFailing: _scope_failing,
    f.VariablesSet: _variables_set,
    f.ActivityStarted: _activity_started,
    f.ActivityCompleted: _activity_completed,
    f.ActivityCancelled: _activity_cancelled,
    f.ActivityFailed: _activity_failed,
    f.TaskCreated: _task_created,
    f.TaskCompleted: _task_completed,
    f.TaskErrorReported: _task_error_reported,
    f.TaskFailed: _task_failed,
    f.TaskCancelled: _task_cancelled,
    f.TaskDraining: _task_draining,
    f.TaskDrained: _task_drained,
    f.TaskRequeued: _task_requeued,
    f.UserTaskCreated: _user_task_created,
    f.UserTaskAssigned: _user_task_assigned,
    f.UserTaskCompleted: _user_task_completed,
    f.UserTaskCancelled: _user_task_cancelled,
    f.TimerArmed: _timer_armed,
    f.TimerFired: _timer_fired,
    f.TimerDisarmed: _timer_disarmed,
    f.SubscriptionOpened: _subscription_opened,
    f.MessageCorrelated: _message_correlated,
    f.SubscriptionClosed: _subscription_closed,
    f.ErrorRaised: _error_raised,
    f.IncidentOpened: _incident_opened,
    f.IncidentResolved: _incident_resolved,
    f.CompensationStarted: _compensation_started,
    f.CompensationHandlerStarted: _handler_started,
    f.CompensationHandlerEnded: _handler_ended,
    f.CompensationEnded: _compensation_ended,
}
