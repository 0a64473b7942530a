"""Events: what they do when a token reaches them, and what happens when a timer fires or a message arrives."""

from __future__ import annotations

from stellwerk.core import facts as f
from stellwerk.core.commands import CorrelateMessage, FireTimer
from stellwerk.core.instance import ActivityInstance, Timer, Token
from stellwerk.core.rules.activities import keep_result
from stellwerk.core.rules.cancellation import cancel_activity
from stellwerk.core.rules.compensation import throw_compensation
from stellwerk.core.rules.errors import BPMN_ERROR, Raised, catch, enter_event, fail
from stellwerk.core.rules.flows import leave, visible_bindings
from stellwerk.core.rules.scopes import terminate_scope
from stellwerk.core.rules.tasks import start_waiting, start_work
from stellwerk.core.rules.values import evaluate_mappings, evaluate_text, is_processcube, propagate
from stellwerk.core.rules.waiting import Due, disarm, next_of_cycle, open_wait
from stellwerk.core.step import NotOpen, Step, Work
from stellwerk.errors import BpmnFault, LimitExceeded
from stellwerk.json_values import JsonObject
from stellwerk.model.process import (
    CompensationDefinition,
    ErrorDefinition,
    Event,
    EventPosition,
    LinkDefinition,
    TerminateDefinition,
    TimerDefinition,
)

__all__ = ["correlate_message", "enter_event_node", "fire_timer"]


# --- a token reaches an event --------------------------------------------------------------------------------------


def enter_event_node(step: Step, token: Token, node: Event) -> None:
    match node.where:
        case EventPosition.START | EventPosition.BOUNDARY:
            _pass(step, token, node)
        case EventPosition.CATCH if isinstance(node.definition, LinkDefinition):
            _pass(step, token, node)
        case EventPosition.CATCH:
            start_waiting(step, token, node, node.definition)
        case EventPosition.THROW | EventPosition.END:
            _throw(step, token, node)


def _throw(step: Step, token: Token, node: Event) -> None:
    if node.work is not None:
        start_work(step, token, node, node.work)
        return
    if len(node.definitions) > 1:
        raise BpmnFault(f'"{node.id}" has several event definitions, which cannot be run')
    match node.definition:
        case ErrorDefinition():
            _raise_error(step, token, node.definition)
        case TerminateDefinition():
            terminate_scope(step, token.scope_id)
        case CompensationDefinition():
            if not throw_compensation(step, token, node.definition.activity_ref):
                _pass(step, token, node)
        case LinkDefinition():
            _follow_link(step, token, node, node.definition)
        case _:
            _pass(step, token, node)


def _follow_link(step: Step, token: Token, node: Event, definition: LinkDefinition) -> None:
    """A link is a sequence flow that is not drawn (13.5.5): go on at the catch event of that name in the same scope."""
    process = step.context.definition
    for target_id in process.scope_children(node.parent):
        target = process.nodes[target_id]
        if isinstance(target, Event) and target.where is EventPosition.CATCH and target.definition == definition:
            step.emit(f.TokenEntered(token.id, target.id, token.scope_id))
            step.later(Work.MOVE, token.id)
            return
    raise BpmnFault(f'no link catch event is named "{definition.name}"')


def _pass(step: Step, token: Token, node: Event) -> None:
    """Nothing to wait for: map (Zeebe allows output mappings on all events) and go on."""
    if node.outputs:
        visible = step.state.visible_variables(token.scope_id)
        propagate(step, token.scope_id, evaluate_mappings(step, token, node.outputs, visible, {}))
    leave(step, token, node)


def _raise_error(step: Step, token: Token, definition: ErrorDefinition) -> None:
    if definition.code is None:
        raise BpmnFault("the error end event has no code")
    code = evaluate_text("the error code", definition.code, visible_bindings(step, token))
    raised = Raised(code, definition.message, {})
    if not catch(step, token, raised):
        fail(step, token, BPMN_ERROR, raised)


# --- something happens that was waited for -------------------------------------------------------------------------


def fire_timer(step: Step, command: FireTimer) -> None:
    timer = step.state.timers.get(command.timer_id)
    if timer is None:
        raise NotOpen(f"timer {command.timer_id} is not armed")
    step.emit(f.TimerFired(timer.id))
    if timer.token_id is not None:
        _go_on(step, timer.token_id, timer.node_id)
        return
    host = step.state.activities[timer.activity_id or ""]
    event = _boundary(step, timer.node_id)
    if not event.interrupting:
        _arm_again(step, timer, host, event)
    _happen(step, event, host, {})


def _arm_again(step: Step, timer: Timer, host: ActivityInstance, event: Event) -> None:
    if not isinstance(event.definition, TimerDefinition):
        return
    due = Due(timer.node_id, timer.due_at_ms, timer.repeats_left)
    variables = step.state.visible_variables(host.scope_id)
    try:
        following = next_of_cycle(step, step.state.tokens[host.token_id], event.definition, due, variables)
    except BpmnFault:
        return  # it was readable when it was armed; a cycle whose text changed under way ends
    if following is not None:
        open_wait(step, following, activity_id=host.id)


def correlate_message(step: Step, command: CorrelateMessage) -> None:
    subscription = step.state.subscriptions.get(command.subscription_id)
    if subscription is None:
        raise NotOpen(f"subscription {command.subscription_id} is not open")
    if subscription.token_id is not None:
        step.emit(f.MessageCorrelated(subscription.id, command.message_id))
        _go_on(step, subscription.token_id, subscription.node_id, command.variables)
        return
    host = step.state.activities[subscription.activity_id or ""]
    event = _boundary(step, subscription.node_id)
    if not event.interrupting:
        _check_room(step)
    step.emit(f.MessageCorrelated(subscription.id, command.message_id, closes=event.interrupting))
    _happen(step, event, host, command.variables)


def _check_room(step: Step) -> None:
    """The message stays where it is until there is room, instead of becoming an incident for each one."""
    try:
        step.check_room(1)
    except BpmnFault as fault:
        raise LimitExceeded(fault.message) from None


def _boundary(step: Step, node_id: str) -> Event:
    event = step.node(node_id)
    assert isinstance(event, Event), node_id
    return event


def _happen(step: Step, event: Event, host: ActivityInstance, variables: JsonObject) -> None:
    """A boundary event happens: it interrupts its activity, or a token of its own goes on beside it."""
    if event.interrupting:
        cancel_activity(step, host)
        token_id = host.token_id
        enter_event(step, event, token_id, host.scope_id, variables)
    else:
        token_id = step.fresh_id()
        enter_event(step, event, token_id, host.scope_id, variables, from_token=host.token_id)
    if variables and is_processcube(step):
        step.emit(f.PayloadSet(token_id, event.id, variables))


def _go_on(step: Step, token_id: str, node_id: str, variables: JsonObject | None = None) -> None:
    """A token stood at a catch event or receive task, or at the event-based gateway before it, and may go on."""
    token = step.state.tokens[token_id]
    if token.node_id != node_id:
        token = _choose(step, token, node_id)
    activity = step.activity_of(token)
    assert activity is not None, token_id
    if variables is not None:
        keep_result(step, activity, variables)
    step.later(Work.MOVE, token_id)


def _choose(step: Step, token: Token, node_id: str) -> Token:
    """The event-based gateway is decided: give up its other events, and be where the event is."""
    disarm(step, token.id)
    node = step.node(node_id)
    flows = step.context.definition.flows
    via = next(flow_id for flow_id in step.node(token.node_id).outgoing if flows[flow_id].target == node_id)
    step.emit(f.TokenEntered(token.id, node_id, token.scope_id, via))
    step.emit(f.ActivityStarted(step.fresh_id(), node.id, token.id, token.scope_id))
    return step.state.tokens[token.id]
