"""Timers and message subscriptions: when they are due, what they are called, and how they are given up."""

from __future__ import annotations

from typing import TypeAlias

from stellwerk.core import facts as f
from stellwerk.core.instance import InstanceState, Token
from stellwerk.core.rules.values import bindings, evaluate_text
from stellwerk.core.step import Step
from stellwerk.errors import BpmnFault
from stellwerk.instants import InstantMs
from stellwerk.json_values import JsonObject
from stellwerk.model.expressions import Bindings
from stellwerk.model.iso8601 import Duration, add, parse_cycle, parse_duration, parse_instant
from stellwerk.model.process import Activity, Event, MessageDefinition, TimerDefinition
from stellwerk.values import frozen

__all__ = [
    "Due",
    "Key",
    "Wait",
    "closings_by_owner",
    "disarm",
    "next_of_cycle",
    "open_wait",
    "planned_boundary_waits",
    "planned_wait",
]


@frozen
class Due:
    """When a timer fires."""

    node_id: str
    at_ms: InstantMs
    repeats_left: int | None


@frozen
class Key:
    """Which message is waited for."""

    node_id: str
    name: str
    key: str


Wait: TypeAlias = Due | Key


def planned_wait(step: Step, token: Token, node_id: str, definition: object, variables: JsonObject) -> Wait:
    """Evaluate what an event waits for; nothing is emitted, so that a fault leaves nothing half done.

    :raises BpmnFault: when its expressions fail or give nothing usable.
    """
    seen = bindings(step, token, variables)
    match definition:
        case TimerDefinition():
            return _due(step.context.now_ms, node_id, definition, seen)
        case MessageDefinition():
            return _message_key(step, node_id, definition, seen)
        case _:
            raise BpmnFault(f"waiting for {type(definition).__name__} cannot be run")


def _message_key(step: Step, node_id: str, definition: MessageDefinition, seen: Bindings) -> Key:
    name = _matchable(step, "the message's name", evaluate_text("the message's name", definition.name, seen))
    if definition.correlation_key is None:
        return Key(node_id, name, step.state.business_key or "")
    key = evaluate_text("the correlation key", definition.correlation_key, seen)
    return Key(node_id, name, _matchable(step, "the correlation key", key))


def _matchable(step: Step, what: str, text: str) -> str:
    """No message has a longer one: nothing would ever end the wait."""
    longest = step.context.limits.id_chars_max
    if len(text) > longest:
        raise BpmnFault(f"{what} has {len(text)} characters, at most {longest} are allowed")
    return text


def _due(now_ms: InstantMs, node_id: str, definition: TimerDefinition, seen: Bindings) -> Due:
    try:
        if definition.date is not None:
            return Due(node_id, parse_instant(evaluate_text("the timer's date", definition.date, seen)), 0)
        if definition.duration is not None:
            text = evaluate_text("the timer's duration", definition.duration, seen)
            return Due(node_id, add(now_ms, parse_duration(text)), 0)
        if definition.cycle is not None:
            text = evaluate_text("the timer's cycle", definition.cycle, seen)
            cycle = parse_cycle(text)
            at_ms = add(now_ms, cycle.interval) if cycle.start_ms is None else cycle.start_ms
            return Due(node_id, at_ms, None if cycle.times is None else cycle.times - 1)
    except ValueError as error:
        raise BpmnFault(f"timer: {error}") from None
    raise BpmnFault("the timer has neither date nor duration nor cycle")


def next_of_cycle(step: Step, token: Token, definition: TimerDefinition, due: Due, variables: JsonObject) -> Due | None:
    """The time after `due`, counted from the schedule. Without an end, times that were missed are left out.

    :raises BpmnFault: as `planned_wait`.
    """
    if definition.cycle is None or due.repeats_left == 0:
        return None
    try:
        text = evaluate_text("the timer's cycle", definition.cycle, bindings(step, token, variables))
        interval = parse_cycle(text).interval
        at_ms = add(due.at_ms, interval)
        if due.repeats_left is not None:
            return Due(due.node_id, at_ms, due.repeats_left - 1)
        return Due(due.node_id, _not_missed(at_ms, interval, step.context.now_ms), None)
    except ValueError as error:
        raise BpmnFault(f"timer: {error}") from None


def _not_missed(at_ms: InstantMs, interval: Duration, now_ms: InstantMs) -> InstantMs:
    """The first time of the schedule from `at_ms` on that has not passed."""
    if interval.months == 0:
        missed = max(0, -((at_ms - now_ms) // interval.ms))
        return at_ms + missed * interval.ms
    while at_ms < now_ms:
        at_ms = add(at_ms, interval)
    return at_ms


def planned_boundary_waits(step: Step, token: Token, node: Activity, variables: JsonObject) -> list[Wait]:
    """What the timer and message events on an activity's boundary wait for."""
    waits: list[Wait] = []
    for event_id in node.boundary_events:
        event = step.node(event_id)
        assert isinstance(event, Event), event_id
        if isinstance(event.definition, TimerDefinition | MessageDefinition):
            waits.append(planned_wait(step, token, event_id, event.definition, variables))
    return waits


def open_wait(step: Step, wait: Wait, *, token_id: str | None = None, activity_id: str | None = None) -> None:
    match wait:
        case Due():
            step.emit(f.TimerArmed(step.fresh_id(), wait.node_id, wait.at_ms, token_id, activity_id, wait.repeats_left))
        case Key():
            step.emit(f.SubscriptionOpened(step.fresh_id(), wait.node_id, wait.name, wait.key, token_id, activity_id))


def disarm(step: Step, *owner_ids: str) -> None:
    """Give up the timers, subscriptions and incidents of a few tokens and activities."""
    state = step.state
    closings: list[f.Fact] = []
    for timer in state.timers.values():
        if timer.activity_id in owner_ids or timer.token_id in owner_ids:
            closings.append(f.TimerDisarmed(timer.id))  # noqa: PERF401 (three kinds, one shape)
    for subscription in state.subscriptions.values():
        if subscription.activity_id in owner_ids or subscription.token_id in owner_ids:
            closings.append(f.SubscriptionClosed(subscription.id))  # noqa: PERF401
    for incident in state.incidents.values():
        if incident.token_id in owner_ids:
            closings.append(f.IncidentResolved(incident.id, cancelled=True))  # noqa: PERF401
    for fact in closings:
        step.emit(fact)


def closings_by_owner(state: InstanceState) -> dict[str, list[f.Fact]]:
    """The facts that give up all timers, subscriptions and incidents, by the token or activity that has them."""
    closings: dict[str, list[f.Fact]] = {}
    for timer in state.timers.values():
        closings.setdefault(timer.token_id or timer.activity_id or "", []).append(f.TimerDisarmed(timer.id))
    for subscription in state.subscriptions.values():
        owner_id = subscription.token_id or subscription.activity_id or ""
        closings.setdefault(owner_id, []).append(f.SubscriptionClosed(subscription.id))
    for incident in state.incidents.values():
        closings.setdefault(incident.token_id or "", []).append(f.IncidentResolved(incident.id, cancelled=True))
    return closings
