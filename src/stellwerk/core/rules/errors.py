"""BPMN errors and final failures: who catches them, and what the failure policy does with those nobody catches."""

from __future__ import annotations

from collections.abc import Iterator

from stellwerk.core import facts as f
from stellwerk.core.commands import FailureKind
from stellwerk.core.instance import ActivityInstance, Token
from stellwerk.core.rules.cancellation import cancel_activity, release_inner_scope
from stellwerk.core.rules.compensation import can_compensate, fail_scope, settle_around
from stellwerk.core.rules.incidents import in_compensation_handler, open_incident
from stellwerk.core.rules.values import bindings, propagate
from stellwerk.core.rules.waiting import disarm
from stellwerk.core.step import Step, Work
from stellwerk.errors import BpmnFault
from stellwerk.json_values import JsonObject
from stellwerk.model.expressions import evaluate
from stellwerk.model.process import Activity, ErrorDefinition, Event, FailurePolicy
from stellwerk.values import frozen

__all__ = [
    "LOCK_EXPIRED_CODE",
    "RETRIES_EXHAUSTED_CODE",
    "Raised",
    "catch",
    "enter_event",
    "fail",
    "technical_error",
]

RETRIES_EXHAUSTED_CODE = "stellwerk:retries-exhausted"
LOCK_EXPIRED_CODE = "stellwerk:lock-expired"
BPMN_ERROR = "bpmn_error"


@frozen
class Raised:
    """An error on its way to whoever catches it."""

    code: str
    message: str | None
    variables: JsonObject
    technical: bool = False
    """Not thrown by the model or a worker: only an event that names its code catches it."""


def technical_error(kind: FailureKind, message: str) -> Raised:
    """How the model can ask for failures of external tasks: by a boundary event with this code."""
    expired = kind in (FailureKind.LOCK_EXPIRED, FailureKind.LOCK_EXPIRIES_EXHAUSTED)
    code = LOCK_EXPIRED_CODE if expired else RETRIES_EXHAUSTED_CODE
    return Raised(code, message, {}, technical=True)


# --- catching ------------------------------------------------------------------------------------------------------


def catch(step: Step, token: Token, raised: Raised) -> bool:
    """Hand the error to the innermost boundary event that catches it: the activity it is attached to is interrupted.

    The token's own activity, if it has one, must have no open task any more, or none that the store should cancel.
    False: nobody catches it, and nothing has changed.
    """
    found = _find_catcher(step, token, raised)
    if found is None:
        return False
    event, host = found
    step.emit(f.ErrorRaised(token.node_id, raised.code, raised.message, event.id))
    own = step.activity_of(token)
    if own is not None:
        _end_in_failure(step, own, raised)
    if own is None or own.id != host.id:
        cancel_activity(step, host)
    enter_event(step, event, host.token_id, host.scope_id, {**raised.variables, **_error_variables(event, raised)})
    return True


def _find_catcher(step: Step, token: Token, raised: Raised) -> tuple[Event, ActivityInstance] | None:
    for host in _levels(step, token):
        event = _matching_event(step, token, host, raised)
        if event is not None:
            return event, host
    return None


def _levels(step: Step, token: Token) -> Iterator[ActivityInstance]:
    """The token's activity and those around it, innermost first, that may be interrupted.

    Not beyond a compensation handler, whose failure is an incident; and nothing in which a scope is failing, for that
    one is to be compensated to the end.
    """
    state = step.state
    failing = [
        outer.id for scope in state.scopes.values() if scope.failure is not None for outer in state.outwards(scope.id)
    ]
    host = step.activity_of(token)
    scope_id = token.scope_id
    while True:
        if host is None:
            owner_id = state.scopes[scope_id].activity_id
            if owner_id is None:
                return
            host = state.activities[owner_id]
        if host.inner_scope_id not in failing:
            yield host
        if host.compensates is not None:
            return
        scope_id, host = host.scope_id, None


def _matching_event(step: Step, token: Token, host: ActivityInstance, raised: Raised) -> Event | None:
    """A matching code goes before a catch-all, whatever the order in the file."""
    node = step.node(host.node_id)
    catch_all = None
    for event_id in node.boundary_events if isinstance(node, Activity) else ():
        event = step.node(event_id)
        assert isinstance(event, Event), event_id
        definition = event.definition
        if not isinstance(definition, ErrorDefinition):
            continue
        if definition.code is None:
            catch_all = catch_all or event
        elif _code(step, token, definition, host) == raised.code:
            return event
    return None if raised.technical else catch_all


def _code(step: Step, token: Token, definition: ErrorDefinition, host: ActivityInstance) -> object:
    """A code that cannot be evaluated matches nothing: an error must not be lost over it."""
    assert definition.code is not None
    try:
        return evaluate(definition.code, bindings(step, token, step.state.visible_variables(host.scope_id)))
    except BpmnFault:
        return None


def _error_variables(event: Event, raised: Raised) -> JsonObject:
    definition = event.definition
    variables: JsonObject = {}
    if isinstance(definition, ErrorDefinition):
        if definition.code_variable is not None:
            variables[definition.code_variable] = raised.code
        if definition.message_variable is not None:
            variables[definition.message_variable] = raised.message
    return variables


def enter_event(
    step: Step, event: Event, token_id: str, scope_id: str, variables: JsonObject, *, from_token: str | None = None
) -> None:
    """A boundary event happened: a token goes on from it, with what the event brought along.

    With output mappings the event works like an activity that has just got its result, so that a mapping that fails
    can be repeated.
    """
    step.emit(f.TokenEntered(token_id, event.id, scope_id, None, from_token))
    if event.outputs:
        activity_id = step.fresh_id()
        step.emit(f.ActivityStarted(activity_id, event.id, token_id, scope_id))
        step.emit(f.ScopeOpened(step.fresh_id(), event.id, scope_id, activity_id, variables, local=True))
    else:
        propagate(step, scope_id, variables)
    step.later(Work.MOVE, token_id)


# --- failing -------------------------------------------------------------------------------------------------------


def fail(step: Step, token: Token, kind: str, raised: Raised) -> None:
    """Nobody caught it: the token fails, and the failure policy decides between compensation and an incident.

    An incident keeps the activity and its task (which is already failed for good); compensation ends them.
    """
    activity = step.activity_of(token)
    task_id = activity.id if activity is not None and activity.id in step.state.tasks else None
    if not raised.technical:
        step.emit(f.ErrorRaised(token.node_id, raised.code, raised.message, None))
    message = raised.message or raised.code
    if _is_doomed(step, token):
        if activity is not None:
            _end_in_failure(step, activity, raised)
        step.emit(f.TokenEnded(token.id))
        settle_around(step, token.scope_id)
        return
    compensate = (
        step.context.failure_policy is FailurePolicy.COMPENSATE
        and not in_compensation_handler(step.state, token)
        and can_compensate(step, activity)
    )
    if not compensate:
        open_incident(step, token, kind, _with_code(raised, message), task_id=task_id)
        return
    if activity is not None:
        _end_in_failure(step, activity, raised)
    step.emit(f.TokenFailed(token.id))
    fail_scope(step, token.scope_id, raised.code, message, token.node_id)


def _with_code(raised: Raised, message: str) -> str:
    """What nobody catches is often a code that is misspelt: whoever looks at the incident has to see it."""
    if raised.technical or message == raised.code:
        return message
    return f"{raised.code}: {message}"


def _is_doomed(step: Step, token: Token) -> bool:
    """A failing scope will take the token away anyway (it came from a boundary event of a compensation handler)."""
    return not in_compensation_handler(step.state, token) and any(
        scope.failure is not None for scope in step.state.outwards(token.scope_id)
    )


def _end_in_failure(step: Step, activity: ActivityInstance, raised: Raised) -> None:
    disarm(step, activity.id, activity.token_id)
    release_inner_scope(step, activity)
    step.emit(f.ActivityFailed(activity.id, raised.code, raised.message or raised.code))
