"""Sagas: undoing completed activities in reverse order, one after the other, by event or because a scope fails.

A scope that fails goes through three stages: what runs in it is cancelled or drained; what was completed in it is
compensated; then the scope is gone and the one around it fails likewise, up to the instance itself.
"""

from __future__ import annotations

from stellwerk.core import facts as f
from stellwerk.core.instance import ActivityInstance, CompletedActivity, InstanceState, Token, TokenStatus
from stellwerk.core.rules.cancellation import cancel_token, release_inner_scope
from stellwerk.core.rules.waiting import disarm
from stellwerk.core.step import Step, Work
from stellwerk.model.process import Activity

__all__ = [
    "advance",
    "can_compensate",
    "fail_scope",
    "handler_ended",
    "handles",
    "settle_around",
    "snapshot_needed",
    "throw_compensation",
]


# --- what can be compensated ---------------------------------------------------------------------------------------


def _handler(step: Step, node_id: str) -> str | None:
    node = step.node(node_id)
    return node.compensation_handler if isinstance(node, Activity) else None


def _expanded(step: Step, completed: CompletedActivity) -> list[CompletedActivity]:
    """The activity itself if it has a handler, else what was completed inside it, last first."""
    if _handler(step, completed.node_id) is not None:
        return [completed]
    if completed.body_scope_id is None:
        return []
    return _compensable(step, {completed.body_scope_id: None})


def _compensable(step: Step, scope_ids: dict[str, None], node_id: str | None = None) -> list[CompletedActivity]:
    """What was completed in these scopes (only the runs of one node if given), in the order of its undoing."""
    return [
        leaf
        for completed in reversed(step.state.completed.values())
        if completed.scope_id in scope_ids and node_id in (None, completed.node_id)
        for leaf in _expanded(step, completed)
    ]


def snapshot_needed(step: Step, activity: ActivityInstance) -> bool:
    """Whether the activity, when it has completed, can be compensated by a handler of its own."""
    return activity.compensates is None and _handler(step, activity.node_id) is not None


def handles(step: Step, activity: ActivityInstance) -> bool:
    """Whether the subprocess hides something completed that can be compensated."""
    inner_id = activity.inner_scope_id
    return inner_id is not None and bool(step.state.completed) and bool(_compensable(step, {inner_id: None}))


def can_compensate(step: Step, failing: ActivityInstance | None) -> bool:
    """Whether anything would be undone if the failure went on up to the whole instance."""
    state = step.state
    if state.completed and _compensable(step, _failing_tree(state, state.root_scope_id)):
        return True
    return any(
        not task.failed and (failing is None or task.activity_id != failing.id) and _drains(step, task.activity_id)
        for task in state.tasks.values()
    )


def _drains(step: Step, activity_id: str) -> bool:
    return snapshot_needed(step, step.state.activities[activity_id])


# --- running the handlers ------------------------------------------------------------------------------------------


def throw_compensation(step: Step, token: Token, node_id: str | None) -> bool:
    """Compensate a completed activity (all its runs) or the whole scope of the token, which waits for the end.

    False: there is nothing to compensate, the token may go on.
    """
    completed = _compensable(step, {token.scope_id: None}, node_id)
    if not completed:
        return False
    _start(step, token.scope_id, completed, token.id)
    return True


def _start(step: Step, scope_id: str, completed: list[CompletedActivity], thrower_id: str | None) -> None:
    compensation_id = step.fresh_id()
    activity_ids = tuple(activity.id for activity in completed)
    step.emit(f.CompensationStarted(compensation_id, scope_id, activity_ids, thrower_id))
    advance(step, compensation_id)


def advance(step: Step, compensation_id: str) -> None:
    """Start the next handler, or end the compensation."""
    compensation = step.state.compensations[compensation_id]
    if compensation.pending:
        completed = compensation.pending[0]
        handler_id = _handler(step, completed.node_id)
        assert handler_id is not None, completed.node_id
        token_id = step.fresh_id()
        step.emit(f.TokenEntered(token_id, handler_id, compensation.scope_id))
        step.emit(f.CompensationHandlerStarted(compensation_id, completed.id, token_id))
        step.later(Work.MOVE, token_id)
        return
    step.emit(f.CompensationEnded(compensation_id))
    if step.state.scopes[compensation.scope_id].failure is None:
        assert compensation.thrower_id is not None
        step.later(Work.MOVE, compensation.thrower_id)
    elif compensation.thrower_id is not None:
        step.emit(f.TokenEnded(compensation.thrower_id))
        settle_around(step, compensation.scope_id)
    else:
        _conclude(step, compensation.scope_id)


def handler_ended(step: Step, compensation_id: str) -> None:
    compensation = step.state.compensations.get(compensation_id)
    if compensation is not None:
        step.emit(f.CompensationHandlerEnded(compensation_id, compensation.pending[0].id))
        advance(step, compensation_id)


# --- failing scopes ------------------------------------------------------------------------------------------------


def fail_scope(step: Step, scope_id: str, code: str, message: str, node_id: str) -> None:
    """The scope fails: cancel or drain what runs in it, and compensate as soon as nothing is left to wait for.

    Its fate and that of all scopes around it is sealed: no boundary event of theirs may interrupt the compensation.
    """
    step.emit(f.ScopeFailing(scope_id, code, message, node_id))
    for scope in list(step.state.outwards(scope_id)):
        if scope.activity_id is not None:
            disarm(step, scope.activity_id)
    tree = _failing_tree(step.state, scope_id)
    throwers = {item.thrower_id: None for item in step.state.compensations.values()}
    for token in [token for token in step.state.tokens.values() if token.scope_id in tree]:
        if token.id not in throwers and token.compensation_id is None:
            _stop(step, token)
    _settle(step, scope_id)


def _failing_tree(state: InstanceState, scope_id: str) -> dict[str, None]:
    """The scope and those inside it, without the bodies of compensation handlers: they run to their end."""
    tree = {scope_id: None}
    for scope in state.scopes.values():
        owner = state.activities.get(scope.activity_id) if scope.activity_id is not None else None
        if owner is not None and owner.compensates is None and scope.parent_id in tree and not scope.local:
            tree[scope.id] = None
    return tree


def _stop(step: Step, token: Token) -> None:
    """Cancel a token of a failing scope, unless its task must be drained or it holds a scope with such tokens."""
    activity = step.activity_of(token)
    if activity is None:
        if token.status is TokenStatus.ACTIVE or _has_incident(step.state, token.id):
            cancel_token(step, token)
        return
    if activity.inner_scope_id is not None and not step.state.scopes[activity.inner_scope_id].local:
        disarm(step, activity.id, token.id)
        return
    task = step.state.tasks.get(activity.id)
    if task is not None and task.draining:
        return
    drains = task is not None and not task.failed and activity.id not in step.tasks_created
    if drains and snapshot_needed(step, activity):
        disarm(step, activity.id, token.id)
        step.emit(f.TaskDraining(activity.id))
    else:
        cancel_token(step, token)


def _has_incident(state: InstanceState, token_id: str) -> bool:
    return any(incident.token_id == token_id for incident in state.incidents.values())


def settle_around(step: Step, scope_id: str) -> None:
    """Something ended that a failing scope may have waited for."""
    failing = next((scope for scope in step.state.outwards(scope_id) if scope.failure is not None), None)
    if failing is not None:
        _settle(step, failing.id)


def _settle(step: Step, scope_id: str) -> None:
    """Begin to compensate the failing scope, if no task is draining and no handler is running in it any more."""
    state = step.state
    tree = _failing_tree(state, scope_id)
    if any(item.scope_id in tree for item in state.compensations.values()):
        return
    if any(task.draining and state.activities[task.activity_id].scope_id in tree for task in state.tasks.values()):
        return
    completed = _compensable(step, tree)
    if completed:
        compensation_id = step.fresh_id()
        activity_ids = tuple(activity.id for activity in completed)
        step.emit(f.CompensationStarted(compensation_id, scope_id, activity_ids))
        _close_inner_scopes(step, scope_id, tree)
        advance(step, compensation_id)
    else:
        _close_inner_scopes(step, scope_id, tree)
        _conclude(step, scope_id)


def _close_inner_scopes(step: Step, scope_id: str, tree: dict[str, None]) -> None:
    for inner_id in reversed(tree):
        if inner_id != scope_id:
            host = step.state.activities[step.state.scopes[inner_id].activity_id or ""]
            for token in [token for token in step.state.tokens.values() if token.scope_id == inner_id]:
                cancel_token(step, token)
            release_inner_scope(step, host)
            step.emit(f.ActivityCancelled(host.id))
            step.emit(f.TokenEnded(host.token_id))


def _conclude(step: Step, scope_id: str) -> None:
    """The scope is compensated and gone; what is around it fails for the same reason."""
    state = step.state
    scope = state.scopes[scope_id]
    failure = scope.failure
    assert failure is not None, scope_id
    for token in [token for token in state.tokens.values() if token.scope_id == scope_id]:
        cancel_token(step, token)
    if scope.activity_id is None:
        step.emit(f.InstanceFailed(failure.code, failure.message))
        return
    host = state.activities[scope.activity_id]
    step.emit(f.ScopeClosed(scope_id))
    step.emit(f.ActivityFailed(host.id, failure.code, failure.message))
    if any(outer.failure is not None for outer in state.outwards(host.scope_id)):
        step.emit(f.TokenEnded(host.token_id))
        settle_around(step, host.scope_id)
    else:
        step.emit(f.TokenFailed(host.token_id))
        fail_scope(step, host.scope_id, failure.code, failure.message, host.node_id)
