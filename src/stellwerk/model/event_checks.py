"""Which events can run where, what an event-based gateway may wait for, and whether links lead somewhere."""

from __future__ import annotations

from collections.abc import Iterator

from stellwerk.model.iso8601 import parse_cycle
from stellwerk.model.java import java_implementation
from stellwerk.model.node_findings import node_error, node_warning
from stellwerk.model.process import (
    Activity,
    CompensationDefinition,
    ErrorDefinition,
    Event,
    EventDefinition,
    EventPosition,
    Finding,
    FlowNode,
    Gateway,
    LinkDefinition,
    MessageDefinition,
    Process,
    Task,
    TaskKind,
    TerminateDefinition,
    TimerDefinition,
)

__all__ = ["ADOPT", "INSIDE", "LATER", "check_event_gateway", "check_links", "problem_of_definition"]

LATER = "cannot run yet"
ADOPT = "give it a topic, or adopt it for workers (stellwerk deploy --adopt-java)"
INSIDE = f"cannot run inside the engine: {ADOPT}"

_EVENTS: dict[EventPosition, tuple[type[EventDefinition], ...]] = {
    EventPosition.START: (MessageDefinition,),
    EventPosition.CATCH: (MessageDefinition, TimerDefinition, LinkDefinition),
    EventPosition.THROW: (CompensationDefinition, MessageDefinition, LinkDefinition),
    EventPosition.BOUNDARY: (ErrorDefinition, TimerDefinition, MessageDefinition, CompensationDefinition),
    EventPosition.END: (ErrorDefinition, TerminateDefinition, CompensationDefinition, MessageDefinition),
}
"""Which definitions run where, besides none."""


def problem_of_definition(event: Event, definition: EventDefinition) -> str | None:
    """Why this definition does not run at this event; None when it does."""
    if not isinstance(definition, _EVENTS[event.where]):
        return f"{_kind_of(definition)} {LATER}"
    if isinstance(definition, TimerDefinition) and definition.cycle is not None:
        return _problem_of_cycle(event, definition)
    throws = event.where in (EventPosition.THROW, EventPosition.END)
    if isinstance(definition, MessageDefinition) and throws and event.work is None:
        implementation = java_implementation(event.headers)
        if implementation is not None:
            return f'{implementation[0]} "{implementation[1]}" {INSIDE}'
        return f"throwing a message {LATER}, unless a topic gives it to workers"
    return None


def _problem_of_cycle(event: Event, definition: TimerDefinition) -> str | None:
    if event.where is not EventPosition.BOUNDARY:
        return f"a timer cycle {LATER} anywhere but at a boundary event"
    text = definition.cycle.literal_value if definition.cycle is not None else None
    if not isinstance(text, str):
        return None  # an expression: known when the timer is armed
    try:
        parse_cycle(text)
    except ValueError as error:
        return str(error)
    return None


def _kind_of(definition: EventDefinition) -> str:
    kind = type(definition).__name__.removesuffix("Definition").lower()
    return f"an event of kind {kind}"


# --- event-based gateways ------------------------------------------------------------------------------------------


def check_event_gateway(process: Process, gateway: Gateway) -> Iterator[Finding]:
    """What stands behind it: catch events and receive tasks, which wait from the moment the gateway is reached."""
    if gateway.instantiate:
        yield node_error(gateway, f"an event-based gateway that starts the process {LATER}")
    if not gateway.outgoing:
        yield node_error(gateway, "nothing stands behind the gateway that it could wait for")
    for target_id in dict.fromkeys(process.flows[flow_id].target for flow_id in gateway.outgoing):
        yield from _check_awaited(gateway, process.nodes[target_id])


def _check_awaited(gateway: Gateway, node: FlowNode) -> Iterator[Finding]:
    match node:
        case Event(where=EventPosition.CATCH) | Task(kind=TaskKind.RECEIVE):
            pass  # that nothing leads to the catch event of a link is told there
        case _:
            yield node_error(node, f'only events to wait for and receive tasks can stand behind "{gateway.id}"')
            return
    if isinstance(node, Activity) and node.boundary_events:
        yield node_error(node, f'with "{gateway.id}" before it, it cannot have boundary events')
    if node.inputs:
        yield node_warning(node, f'its input mappings are not looked at: "{gateway.id}" has waited in its place')


# --- links ---------------------------------------------------------------------------------------------------------


def check_links(process: Process) -> Iterator[Finding]:
    """A link leads from all throw events of a name to the one catch event of that name in the same scope."""
    throws: dict[tuple[str | None, str], Event] = {}
    catches: dict[tuple[str | None, str], Event] = {}
    links = list(_links(process))
    for node, name in links:
        if node.where is EventPosition.CATCH:
            first = catches.setdefault((node.parent, name), node)
            if first is not node:
                yield node_error(node, f'the link "{name}" leads to "{first.id}" already')
        else:
            throws.setdefault((node.parent, name), node)
    for node, name in links:
        if node.where is EventPosition.THROW:
            yield from _check_throw(node, name, has_catch=(node.parent, name) in catches)
        else:
            yield from _check_catch(node, name, has_throw=(node.parent, name) in throws)


def _links(process: Process) -> Iterator[tuple[Event, str]]:
    """Events of links and their names; one without a name was reported when it was read."""
    for node in process.nodes.values():
        if not isinstance(node, Event) or node.where not in (EventPosition.CATCH, EventPosition.THROW):
            continue
        if isinstance(node.definition, LinkDefinition) and node.definition.name:
            yield node, node.definition.name


def _check_throw(node: Event, name: str, *, has_catch: bool) -> Iterator[Finding]:
    if not has_catch:
        yield node_error(node, f'no catch event of the link "{name}" is in the same scope')
    if node.outgoing:
        yield node_error(node, "no sequence flow can leave a link: it goes on at the catch event of that name")


def _check_catch(node: Event, name: str, *, has_throw: bool) -> Iterator[Finding]:
    if node.incoming:
        yield node_error(node, "no sequence flow can lead to the catch event of a link")
    elif not has_throw:
        yield node_warning(node, f'no throw event of the link "{name}" is in the same scope: it is never reached')
