"""Camunda 7 and what grew out of the same root: Operaton, Flowable, Activiti. Attributes, and extension elements."""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs

from stellwerk.model.dialects.camunda_parameters import parameter_value
from stellwerk.model.expressions import literal
from stellwerk.model.extensions import Extensions, Reading, keep_as_header
from stellwerk.model.notation import shown
from stellwerk.model.process import Mapped
from stellwerk.model.settings import backoffs_ms
from stellwerk.model.vocabulary import CAMUNDA_LIKE, vendor_attribute
from stellwerk.model.xml import Element

__all__ = ["read_attributes", "read_extension"]

_Reader = Callable[[Element, Extensions, Reading], None]

_EXTERNAL = ("external", "external-worker")
_IMPLEMENTED = ("serviceTask", "sendTask", "businessRuleTask", "messageEventDefinition")
_RETRY_CYCLE = re.compile(r"R(\d{1,6})/(P[^,]+)")
_INSIDE_JAVA = ("class", "delegateExpression", "expression")


# --- attributes ---


def read_attributes(element: Element, found: Extensions, reading: Reading) -> None:
    """What the vendors' attributes of a task, event or message event definition say."""
    if not any(namespace in CAMUNDA_LIKE for namespace, _ in element.attributes):
        return
    _read_implementation(element, found, reading)
    _read_user(element, found, reading)
    priority = vendor_attribute(element, "taskPriority")
    if priority is not None:
        found.priority = reading.texts.number(element, priority)
    found.decision = vendor_attribute(element, "decisionRef") or found.decision
    result_variable = vendor_attribute(element, "resultVariable") or vendor_attribute(element, "resultVariableName")
    found.result_variable = result_variable or found.result_variable
    version = vendor_attribute(element, "calledElementVersion") or vendor_attribute(element, "calledElementVersionTag")
    found.called_version = version or found.called_version


def _read_implementation(element: Element, found: Extensions, reading: Reading) -> None:
    if element.name not in _IMPLEMENTED:
        return
    kind = vendor_attribute(element, "type")
    if kind in _EXTERNAL:
        found.topic = reading.texts.optional_template(element, vendor_attribute(element, "topic"))
        if found.topic is None:
            reading.findings.error(element, "an external task needs a topic")
        return
    for name in _INSIDE_JAVA:
        value = vendor_attribute(element, name)
        if value is not None:
            found.headers[f"java.{name}"] = value
    if kind is not None:
        found.headers["java.type"] = kind


def _read_user(element: Element, found: Extensions, reading: Reading) -> None:
    texts = reading.texts
    form = vendor_attribute(element, "formKey") or vendor_attribute(element, "formRef")
    found.user = attrs.evolve(
        found.user,
        assignee=texts.optional_template(element, vendor_attribute(element, "assignee")) or found.user.assignee,
        candidate_users=texts.optional_template(element, vendor_attribute(element, "candidateUsers")),
        candidate_groups=texts.optional_template(element, vendor_attribute(element, "candidateGroups")),
        form=form or found.user.form,
        due=texts.optional_template(element, vendor_attribute(element, "dueDate")),
    )


# --- extension elements ---


def read_extension(extension: Element, found: Extensions, reading: Reading) -> None:
    """One extension element; unknown ones become headers."""
    read = _ELEMENTS.get(extension.name)
    if read is None:
        keep_as_header(extension, found.headers)
    else:
        read(extension, found, reading)


def _children(extension: Element, name: str) -> list[Element]:
    return [child for child in extension.children if child.name == name and child.namespace in CAMUNDA_LIKE]


def _input_output(extension: Element, found: Extensions, reading: Reading) -> None:
    found.inputs.extend(_parameter(child, reading) for child in _children(extension, "inputParameter"))
    found.outputs.extend(_parameter(child, reading) for child in _children(extension, "outputParameter"))


def _parameter(parameter: Element, reading: Reading) -> Mapped:
    name = parameter.get("name")
    if not name:
        reading.findings.error(parameter, "the parameter has no name")
    return Mapped(name or "", parameter_value(parameter, reading), parameter.position)


def _properties(extension: Element, found: Extensions, reading: Reading) -> None:
    for child in _children(extension, "property"):
        name = child.get("name") or child.get("id") or ""
        found.headers[name] = child.get("value") or ""


def _passed_in(extension: Element, found: Extensions, reading: Reading) -> None:
    _pass(extension, found.inputs, found, reading)


def _passed_out(extension: Element, found: Extensions, reading: Reading) -> None:
    _pass(extension, found.outputs, found, reading)


def _pass(extension: Element, mappings: list[Mapped], found: Extensions, reading: Reading) -> None:
    """``in`` and ``out`` of a call activity, and Flowable's parameters of an external worker task."""
    if extension.get("variables") == "all":
        found.pass_all_variables = True
        return
    if extension.get("businessKey") is not None:
        keep_as_header(extension, found.headers)
        return
    target, source, expression = (extension.get(name) for name in ("target", "source", "sourceExpression"))
    if not target or not (source or expression):
        reading.findings.error(extension, "source and target are needed")
        return
    texts = reading.texts
    value = texts.expression(extension, expression) if expression else texts.variable(extension, source or "")
    mappings.append(Mapped(target, value, extension.position))


def _retry_cycle(extension: Element, found: Extensions, reading: Reading) -> None:
    """``R5/PT5M``: five attempts, five minutes apart; ``PT1M,PT10M``: one attempt more than there are intervals."""
    text = extension.text.strip()
    if not text:
        return
    if reading.texts.is_expression(text):
        reading.findings.warning(extension, "a retry time cycle that is an expression is not evaluated")
        return
    match = _RETRY_CYCLE.fullmatch(text)
    if match:
        found.retries = literal(max(1, int(match[1])))
        found.retry_backoffs_ms = backoffs_ms(reading.findings, extension, match[2])
    else:
        found.retry_backoffs_ms = backoffs_ms(reading.findings, extension, text)
        found.retries = literal(len(found.retry_backoffs_ms) + 1)


def _error_event_definition(extension: Element, found: Extensions, reading: Reading) -> None:
    """``camunda:errorEventDefinition``: when the condition holds, the external task ends with that error."""
    expression = extension.get("expression")
    reference = extension.get("errorRef")
    if not expression:
        reading.findings.error(extension, "the error event definition has no expression")
        return
    declared = reading.roots.find("error", reference) if reference else None
    code = declared.get("errorCode") if declared is not None else reference
    if declared is None and reference:
        what = "is declared nowhere in this file: taken as the error code itself"
        reading.findings.warning(extension, f"errorRef {shown(reference)} {what}")
    found.error_mappings.append((reading.texts.condition(extension, expression), code))


def _listener(extension: Element, found: Extensions, reading: Reading) -> None:
    reading.findings.warning(extension, "listeners are not run")


def _connector(extension: Element, found: Extensions, reading: Reading) -> None:
    connector_id = next((child.text.strip() for child in _children(extension, "connectorId")), "")
    found.headers["java.connectorId"] = connector_id


def _field(extension: Element, found: Extensions, reading: Reading) -> None:
    """What would be injected into a Java class: the worker gets it as a header."""
    given = extension.get("stringValue") or extension.get("expression")
    nested = next((child.text.strip() for child in extension.children), extension.text.strip())
    found.headers[extension.get("name") or ""] = given if given is not None else nested


_ELEMENTS: dict[str, _Reader] = {
    "inputOutput": _input_output,
    "properties": _properties,
    "in": _passed_in,
    "out": _passed_out,
    "externalWorkerInParameter": _passed_in,
    "externalWorkerOutParameter": _passed_out,
    "failedJobRetryTimeCycle": _retry_cycle,
    "errorEventDefinition": _error_event_definition,
    "executionListener": _listener,
    "taskListener": _listener,
    "eventListener": _listener,
    "connector": _connector,
    "field": _field,
}
