"""Zeebe (Camunda 8): everything stands in extension elements."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from stellwerk.model.extensions import Extensions, Reading, keep_as_header
from stellwerk.model.process import Mapped, Script
from stellwerk.model.vocabulary import ZEEBE, is_true
from stellwerk.model.xml import Element

__all__ = ["read_extension"]

_Reader = Callable[[Element, Extensions, Reading], None]


def read_extension(extension: Element, found: Extensions, reading: Reading) -> None:
    """One ``zeebe:`` extension element; unknown ones become headers."""
    read = _ELEMENTS.get(extension.name)
    if read is None:
        keep_as_header(extension, found.headers)
    else:
        read(extension, found, reading)


def _children(extension: Element, name: str) -> list[Element]:
    return [child for child in extension.children if child.name == name and child.namespace == ZEEBE]


def _task_definition(extension: Element, found: Extensions, reading: Reading) -> None:
    found.topic = reading.texts.optional_template(extension, extension.get("type"))
    if found.topic is None:
        reading.findings.error(extension, "the task definition has no type")
    retries = extension.get("retries")
    if retries is not None:
        found.retries = reading.texts.number(extension, retries, minimum=1)


def _io_mapping(extension: Element, found: Extensions, reading: Reading) -> None:
    found.inputs.extend(_mapped(child, reading) for child in _children(extension, "input"))
    found.outputs.extend(_mapped(child, reading) for child in _children(extension, "output"))


def _mapped(mapping: Element, reading: Reading) -> Mapped:
    source, target = mapping.get("source"), mapping.get("target")
    if not target:
        reading.findings.error(mapping, "the mapping has no target")
    return Mapped(target or "", reading.texts.template(mapping, source or ""), mapping.position)


def _task_headers(extension: Element, found: Extensions, reading: Reading) -> None:
    for header in _children(extension, "header"):
        found.headers[header.get("key") or ""] = header.get("value") or ""


def _properties(extension: Element, found: Extensions, reading: Reading) -> None:
    for header in _children(extension, "property"):
        found.headers[header.get("name") or ""] = header.get("value") or ""


def _called_element(extension: Element, found: Extensions, reading: Reading) -> None:
    found.called = reading.texts.optional_template(extension, extension.get("processId"))
    found.called_version = extension.get("versionTag")
    found.pass_all_variables = is_true(extension.get("propagateAllParentVariables"), default=True)


def _subscription(extension: Element, found: Extensions, reading: Reading) -> None:
    found.correlation_key = reading.texts.optional_template(extension, extension.get("correlationKey"))


def _assignment_definition(extension: Element, found: Extensions, reading: Reading) -> None:
    texts = reading.texts
    found.user = attrs.evolve(
        found.user,
        assignee=texts.optional_template(extension, extension.get("assignee")),
        candidate_users=texts.optional_template(extension, extension.get("candidateUsers")),
        candidate_groups=texts.optional_template(extension, extension.get("candidateGroups")),
    )


def _form_definition(extension: Element, found: Extensions, reading: Reading) -> None:
    names = ("formKey", "formId", "externalReference")
    form = next((value for value in map(extension.get, names) if value), None)
    found.user = attrs.evolve(found.user, form=form)


def _task_schedule(extension: Element, found: Extensions, reading: Reading) -> None:
    due = reading.texts.optional_template(extension, extension.get("dueDate"))
    found.user = attrs.evolve(found.user, due=due)


def _called_decision(extension: Element, found: Extensions, reading: Reading) -> None:
    found.decision = extension.get("decisionId")
    found.result_variable = extension.get("resultVariable")


def _script(extension: Element, found: Extensions, reading: Reading) -> None:
    expression = extension.get("expression") or ""
    reading.texts.template(extension, expression)
    found.result_variable = extension.get("resultVariable")
    found.script = Script("feel", expression, found.result_variable)


def _priority_definition(extension: Element, found: Extensions, reading: Reading) -> None:
    found.priority = reading.texts.number(extension, extension.get("priority") or "")


def _listeners(extension: Element, found: Extensions, reading: Reading) -> None:
    reading.findings.warning(extension, "listeners are not run")


def _nothing_to_keep(extension: Element, found: Extensions, reading: Reading) -> None:
    """Read with the loop or the process, or it says nothing that a worker could use."""


_ELEMENTS: dict[str, _Reader] = {
    "taskDefinition": _task_definition,
    "ioMapping": _io_mapping,
    "taskHeaders": _task_headers,
    "properties": _properties,
    "calledElement": _called_element,
    "subscription": _subscription,
    "assignmentDefinition": _assignment_definition,
    "formDefinition": _form_definition,
    "taskSchedule": _task_schedule,
    "calledDecision": _called_decision,
    "script": _script,
    "priorityDefinition": _priority_definition,
    "executionListeners": _listeners,
    "taskListeners": _listeners,
    "loopCharacteristics": _nothing_to_keep,
    "versionTag": _nothing_to_keep,
    "userTask": _nothing_to_keep,
}
