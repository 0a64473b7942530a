"""Start, intermediate, boundary and end events with their definitions (BPMN 2.0, 10.5 and 13.5)."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from stellwerk.model.dialects import read_extensions
from stellwerk.model.expressions import Expression, literal
from stellwerk.model.extensions import Extensions, Reading, check_topic
from stellwerk.model.java import adopted_topic
from stellwerk.model.notation import shown
from stellwerk.model.process import (
    CancelDefinition,
    CompensationDefinition,
    ConditionalDefinition,
    Dialect,
    ErrorDefinition,
    EscalationDefinition,
    Event,
    EventDefinition,
    EventPosition,
    ExternalWork,
    LinkDefinition,
    MessageDefinition,
    SignalDefinition,
    TerminateDefinition,
)
from stellwerk.model.timers import read_timer
from stellwerk.model.vocabulary import STELLWERK, bpmn_child, is_bpmn, is_true, text_of, vendor_attribute
from stellwerk.model.xml import Element

__all__ = ["message_definition", "read_event"]

_THROWS = (EventPosition.THROW, EventPosition.END)


def read_event(element: Element, event_id: str, parent: str | None, found: Extensions, reading: Reading) -> Event:
    """The event without its flows; ``attached_to`` is the reference as it stands in the file."""
    where = EventPosition(element.name)
    definition_elements = _definition_elements(element, reading)
    context = _Context(element, where, found, reading)
    definitions = tuple(_DEFINITIONS[definition.name](definition, context) for definition in definition_elements)
    event = Event(
        id=event_id,
        position=element.position,
        parent=parent,
        where=where,
        definitions=definitions,
        attached_to=_attached_to(element, where, reading),
        interrupting=_is_interrupting(element, where, definitions, reading),
        parallel_multiple=is_true(element.get("parallelMultiple")),
        work=_work(definition_elements, event_id, context),
    )
    if not definitions and where in (EventPosition.BOUNDARY, EventPosition.CATCH):
        reading.findings.error(element, "the event has no event definition: nothing can trigger it")
    return event


@attrs.frozen
class _Context:
    """What the reader of one definition needs to know of its event."""

    event: Element
    where: EventPosition
    found: Extensions
    reading: Reading

    @property
    def throws(self) -> bool:
        return self.where in _THROWS


def _definition_elements(event: Element, reading: Reading) -> list[Element]:
    elements = []
    for child in event.children:
        if not is_bpmn(child):
            continue
        if child.name in _DEFINITIONS:
            elements.append(child)
        elif child.name == "eventDefinitionRef":
            elements.extend(_referenced_definition(child, reading))
    return elements


def _referenced_definition(reference: Element, reading: Reading) -> list[Element]:
    candidates = (reading.roots.find(kind, reference.text) for kind in _DEFINITIONS)
    definition = next((candidate for candidate in candidates if candidate is not None), None)
    if definition is None:
        reading.findings.error(reference, f'no event definition has the id "{reference.text.strip()}"')
        return []
    elements_max = reading.limits.definition_elements_max
    if not reading.roots.take(definition, elements_max):
        reading.findings.error(reference, f"the event definitions referred to have more than {elements_max} elements")
        return []
    return [definition]


def _attached_to(element: Element, where: EventPosition, reading: Reading) -> str | None:
    if where is not EventPosition.BOUNDARY:
        return None
    attached_to = element.get("attachedToRef")
    if not attached_to:
        reading.findings.error(element, 'the attribute "attachedToRef" is missing')
    return attached_to or None


def _is_interrupting(
    element: Element, where: EventPosition, definitions: tuple[EventDefinition, ...], reading: Reading
) -> bool:
    name = {EventPosition.BOUNDARY: "cancelActivity", EventPosition.START: "isInterrupting"}.get(where)
    interrupting = is_true(element.get(name), default=True) if name else True
    if not interrupting and any(isinstance(definition, ErrorDefinition) for definition in definitions):
        reading.findings.warning(element, "an error always interrupts")
        return True
    return interrupting


def _work(definitions: list[Element], event_id: str, context: _Context) -> ExternalWork | None:
    """A throwing message event that workers do: the topic stands at the event or at its definition."""
    messages = [definition for definition in definitions if definition.name == "messageEventDefinition"]
    if not context.throws or not messages:
        return None
    own = read_extensions(messages[0], context.reading)
    context.found.headers.update(own.headers)
    if context.found.topic is not None:
        work = context.found.work()
    else:
        work = own.work(adopted_topic(event_id, own.headers, context.reading))
    check_topic(work, context.event, context.reading)
    return work


# --- definitions ---


def undeclared(holder: Element, attribute: str, taken_as: str, reference: str, reading: Reading) -> str:
    """What a reference that leads nowhere stands for: itself. Many files rely on that, and some only mistype it."""
    name = reading.roots.resolved(reference)
    what = f"is declared nowhere in this file: taken as {taken_as} itself"
    reading.findings.warning(holder, f"{attribute} {shown(name)} {what}")
    return name


def message_definition(holder: Element, found: Extensions, reading: Reading) -> MessageDefinition | None:
    """The message that an event definition or a task refers to by ``messageRef`` or by its operation; None without."""
    expression = vendor_attribute(holder, "messageExpression")
    if expression:
        return MessageDefinition(reading.texts.template(holder, expression), found.correlation_key)
    reference = holder.get("messageRef") or _message_of_operation(holder, reading)
    if not reference or not reference.strip():
        return None
    declared = reading.roots.find("message", reference)
    if declared is None:
        name = undeclared(holder, "messageRef", "the message's name", reference, reading)
        return MessageDefinition(literal(name), found.correlation_key)
    if declared not in reading.message_keys:
        reading.message_keys[declared] = read_extensions(declared, reading).correlation_key
    key = reading.message_keys[declared] if found.correlation_key is None else found.correlation_key
    return MessageDefinition(reading.texts.template(declared, declared.get("name") or declared.get("id") or ""), key)


def _message_of_operation(holder: Element, reading: Reading) -> str | None:
    reference = holder.get("operationRef") or text_of(bpmn_child(holder, "operationRef"))
    operation = reading.roots.find("operation", reference) if reference else None
    if reference and operation is None:
        reading.findings.warning(holder, f"operationRef {shown(reference)} is declared nowhere in this file")
    return text_of(bpmn_child(operation, "inMessageRef")) if operation is not None else None


def _message(definition: Element, context: _Context) -> EventDefinition:
    reading = context.reading
    own = read_extensions(definition, reading)
    if own.correlation_key is None:
        own.correlation_key = context.found.correlation_key
    message = message_definition(definition, own, reading)
    if message is not None:
        return message
    if not context.throws:
        reading.findings.error(definition, "the event names no message")
    return MessageDefinition(literal(context.event.get("name") or context.event.get("id") or ""), own.correlation_key)


def _timer(definition: Element, context: _Context) -> EventDefinition:
    return read_timer(definition, context.reading)


def _code(definition: Element, kind: str, context: _Context) -> Expression | None:
    """The code of an error or escalation; an undeclared reference is itself the code.

    An escalation may be thrown without one: whoever catches all escalations gets it.
    """
    reading = context.reading
    reference = definition.get(f"{kind}Ref")
    if not reference or not reference.strip():
        code = None
    else:
        declared = reading.roots.find(kind, reference)
        if declared is None:
            code = undeclared(definition, f"{kind}Ref", f"the {kind} code", reference, reading)
        else:
            code = _declared_code(declared, kind, reading)
            _check_catches_all(definition, code, kind, context)
    if code is None and context.throws and kind == "error":
        reading.findings.error(definition, "the error that is thrown has no code")
    return reading.texts.optional_template(definition, code)


def _check_catches_all(definition: Element, code: str | None, kind: str, context: _Context) -> None:
    """A catching event that names an error without code says less than it seems to."""
    if code is None and not context.throws:
        reference = shown(definition.get(f"{kind}Ref") or "")
        context.reading.findings.warning(definition, f"the {kind} {reference} has no {kind}Code: every code is caught")


def _declared_code(declared: Element, kind: str, reading: Reading) -> str | None:
    code = declared.get(f"{kind}Code")
    if not code and reading.dialect is Dialect.PROCESSCUBE:
        code = declared.get("name")
    return code or None


def _error(definition: Element, context: _Context) -> EventDefinition:
    reference = definition.get("errorRef")
    declared = context.reading.roots.find("error", reference) if reference else None
    return ErrorDefinition(
        code=_code(definition, "error", context),
        code_variable=vendor_attribute(definition, "errorCodeVariable") or definition.get("codeVariable", STELLWERK),
        message_variable=vendor_attribute(definition, "errorMessageVariable")
        or definition.get("messageVariable", STELLWERK),
        message=vendor_attribute(declared, "errorMessage") if declared is not None else None,
    )


def _escalation(definition: Element, context: _Context) -> EventDefinition:
    variable = vendor_attribute(definition, "escalationCodeVariable") or definition.get("codeVariable", STELLWERK)
    return EscalationDefinition(_code(definition, "escalation", context), variable)


def _signal(definition: Element, context: _Context) -> EventDefinition:
    reading = context.reading
    expression, reference = vendor_attribute(definition, "signalExpression"), definition.get("signalRef")
    if expression:
        return SignalDefinition(reading.texts.template(definition, expression))
    if not reference or not reference.strip():
        reading.findings.error(definition, "the event names no signal")
        return SignalDefinition(literal(""))
    declared = reading.roots.find("signal", reference)
    if declared is None:
        return SignalDefinition(literal(undeclared(definition, "signalRef", "the signal's name", reference, reading)))
    return SignalDefinition(reading.texts.template(declared, declared.get("name") or declared.get("id") or ""))


def _conditional(definition: Element, context: _Context) -> EventDefinition:
    condition = bpmn_child(definition, "condition")
    text = text_of(condition)
    if condition is None or text is None:
        context.reading.findings.error(definition, "the event has no condition")
        return ConditionalDefinition(literal(False))
    return ConditionalDefinition(context.reading.texts.condition(condition, text))


def _link(definition: Element, context: _Context) -> EventDefinition:
    name = definition.get("name") or context.event.get("name")
    if not name:
        context.reading.findings.error(definition, "the link has no name")
    return LinkDefinition(name or "")


def _compensation(definition: Element, context: _Context) -> EventDefinition:
    reference = definition.get("activityRef")
    waits = is_true(definition.get("waitForCompletion"), default=True)
    return CompensationDefinition(reference.strip() if reference and reference.strip() else None, waits)


def _cancel(definition: Element, context: _Context) -> EventDefinition:
    return CancelDefinition()


def _terminate(definition: Element, context: _Context) -> EventDefinition:
    return TerminateDefinition()


_DEFINITIONS: dict[str, Callable[[Element, _Context], EventDefinition]] = {
    "messageEventDefinition": _message,
    "timerEventDefinition": _timer,
    "errorEventDefinition": _error,
    "signalEventDefinition": _signal,
    "escalationEventDefinition": _escalation,
    "conditionalEventDefinition": _conditional,
    "linkEventDefinition": _link,
    "compensateEventDefinition": _compensation,
    "cancelEventDefinition": _cancel,
    "terminateEventDefinition": _terminate,
}
