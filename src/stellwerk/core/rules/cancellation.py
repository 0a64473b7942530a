"""Taking away what runs: an activity with everything inside it, the content of a scope, a whole instance."""

from __future__ import annotations

from stellwerk.core import facts as f
from stellwerk.core.instance import ActivityInstance, Token
from stellwerk.core.rules.waiting import closings_by_owner, disarm
from stellwerk.core.step import Step

__all__ = ["cancel_activity", "cancel_scope_content", "cancel_token", "release_inner_scope"]


def cancel_activity(step: Step, activity: ActivityInstance) -> None:
    """Everything of the activity goes, its token stays where it is, ready to be moved."""
    if activity.inner_scope_id is not None and not step.state.scopes[activity.inner_scope_id].local:
        cancel_scope_content(step, activity.inner_scope_id)
    _give_up(step, activity)
    disarm(step, activity.id, activity.token_id)
    release_inner_scope(step, activity)
    step.emit(f.ActivityCancelled(activity.id))


def cancel_token(step: Step, token: Token) -> None:
    """The token goes, with the activity that it executes."""
    activity = step.activity_of(token)
    if activity is not None:
        cancel_activity(step, activity)
    else:
        disarm(step, token.id)
    step.emit(f.TokenEnded(token.id))


def cancel_scope_content(step: Step, scope_id: str) -> None:
    """All tokens of a scope and of the scopes inside it go, and with them all that they wait for.

    Innermost first, in one pass over each table: cancelling is quick however wide the instance is.
    """
    state = step.state
    tree = state.body_scopes(scope_id)
    closings = closings_by_owner(state)
    tokens: dict[str, list[Token]] = {inner_id: [] for inner_id in tree}
    for token in state.tokens.values():
        if token.scope_id in tokens:
            tokens[token.scope_id].append(token)
    for compensation in [item for item in state.compensations.values() if item.scope_id in tokens]:
        step.emit(f.CompensationEnded(compensation.id, cancelled=True))
    for inner_id in reversed(tree):
        for token in tokens[inner_id]:
            _cancel_with(step, token, closings)


def _cancel_with(step: Step, token: Token, closings: dict[str, list[f.Fact]]) -> None:
    activity = step.activity_of(token)
    for fact in closings.get(token.id, ()):
        step.emit(fact)
    if activity is not None:
        _give_up(step, activity)
        for fact in closings.get(activity.id, ()):
            step.emit(fact)
        release_inner_scope(step, activity)
        step.emit(f.ActivityCancelled(activity.id))
    step.emit(f.TokenEnded(token.id))


def _give_up(step: Step, activity: ActivityInstance) -> None:
    if activity.id in step.state.tasks:
        step.emit(f.TaskCancelled(activity.id))
    elif activity.id in step.state.user_tasks:
        step.emit(f.UserTaskCancelled(activity.id))


def release_inner_scope(step: Step, activity: ActivityInstance) -> None:
    if activity.inner_scope_id is not None:
        step.emit(f.ScopeClosed(activity.inner_scope_id))
