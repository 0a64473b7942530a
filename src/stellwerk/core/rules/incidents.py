"""Where the engine stands still and a person has to look."""

from __future__ import annotations

from stellwerk.core import facts as f
from stellwerk.core.instance import InstanceState, Token
from stellwerk.core.step import Step

__all__ = ["COMPENSATION_FAILED", "MODEL_FAULT", "in_compensation_handler", "open_incident", "report_deadlock"]

MODEL_FAULT = "model_fault"
COMPENSATION_FAILED = "compensation_failed"


def open_incident(step: Step, token: Token, kind: str, message: str, *, task_id: str | None = None) -> None:
    """The token fails and waits for `ResolveIncident`."""
    if in_compensation_handler(step.state, token):
        kind = COMPENSATION_FAILED
    step.emit(f.TokenFailed(token.id))
    step.emit(
        f.IncidentOpened(
            incident_id=step.fresh_id(),
            kind=kind,
            node_id=token.node_id,
            message=message,
            token_id=token.id,
            task_id=task_id,
        )
    )


def in_compensation_handler(state: InstanceState, token: Token) -> bool:
    """Whether the token executes a compensation handler, or something inside one that is a subprocess."""
    if token.compensation_id is not None:
        return True
    for scope in state.outwards(token.scope_id):
        owner = state.activities.get(scope.activity_id) if scope.activity_id is not None else None
        if owner is not None and owner.compensates is not None:
            return True
    return False


def report_deadlock(step: Step) -> None:
    """Where tokens wait at joins for others that can never come, nothing would ever wake the instance."""
    state = step.state
    if state.ended or state.tasks or state.user_tasks or state.timers or state.subscriptions or state.incidents:
        return
    token = next((token for token in state.tokens.values() if token.activity_id is None), None)
    if token is not None:
        open_incident(step, token, MODEL_FAULT, "the instance waits for tokens that can never come")
