"""Our own extensions: attributes on the element itself, and headers and mappings as extension elements."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from stellwerk.model.extensions import Extensions, Reading
from stellwerk.model.notation import shown
from stellwerk.model.process import Mapped
from stellwerk.model.settings import backoffs_ms, duration_ms, whole_number
from stellwerk.model.vocabulary import STELLWERK, is_true
from stellwerk.model.xml import Element

__all__ = ["read_attributes", "read_extension"]


def read_extension(extension: Element, found: Extensions, reading: Reading) -> None:
    """``stellwerk:header``, ``stellwerk:input``, ``stellwerk:output``."""
    match extension.name:
        case "header":
            found.headers[_required(extension, "key", reading)] = extension.get("value") or ""
        case "input":
            found.inputs.append(_mapped(extension, reading))
        case "output":
            found.outputs.append(_mapped(extension, reading))
        case _:
            reading.findings.error(extension, f"stellwerk:{extension.name} is unknown")


def _required(extension: Element, name: str, reading: Reading) -> str:
    value = extension.get(name)
    if not value:
        reading.findings.error(extension, f'the attribute "{name}" is missing')
    return value or ""


def _mapped(extension: Element, reading: Reading) -> Mapped:
    source = _required(extension, "source", reading)
    target = _required(extension, "target", reading)
    return Mapped(target, reading.texts.template(extension, source), extension.position)


def read_attributes(element: Element, found: Extensions, reading: Reading) -> None:
    """The ``stellwerk:`` attributes of a task, event, message or process."""
    for (namespace, name), text in element.attributes.items():
        if namespace != STELLWERK:
            continue
        read = _ATTRIBUTES.get(name)
        if read is None:
            reading.findings.error(element, f"the attribute stellwerk:{name} is unknown")
        else:
            read(element, text, found, reading)


_Reader = Callable[[Element, str, Extensions, Reading], None]


def _topic(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.topic = reading.texts.template(element, text)


def _retries(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.retries = reading.texts.number(element, text, minimum=1)


def _retry_backoff(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.retry_backoffs_ms = backoffs_ms(reading.findings, element, text)


def _priority(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.priority = reading.texts.number(element, text)


def _single_try(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    if text.strip() not in ("true", "false", "1", "0"):
        reading.findings.error(element, f"singleTry is true or false, not {shown(text)}")
    found.single_try = is_true(text)


def _lock_duration(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    milliseconds = duration_ms(reading.findings, element, text)
    if milliseconds is None:
        return
    low, high = reading.limits.lock_duration_ms_min, reading.limits.lock_duration_ms_max
    if not low <= milliseconds <= high:
        reading.findings.error(element, f"lockDuration must lie between {low} and {high} ms, not {milliseconds} ms")
        return
    found.lock_duration_ms = milliseconds


def _lock_expiries_max(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.lock_expiries_max = whole_number(reading.findings, element, "lockExpiriesMax", text)


def _correlation_key(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.correlation_key = reading.texts.template(element, text)


def _payload(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.payload = reading.texts.expression(element, text)


def _result_variable(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.result_variable = text.strip() or None


def _assignee(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.user = attrs.evolve(found.user, assignee=reading.texts.optional_template(element, text))


def _candidate_users(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.user = attrs.evolve(found.user, candidate_users=reading.texts.optional_template(element, text))


def _candidate_groups(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.user = attrs.evolve(found.user, candidate_groups=reading.texts.optional_template(element, text))


def _form(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.user = attrs.evolve(found.user, form=text)


def _due(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    found.user = attrs.evolve(found.user, due=reading.texts.optional_template(element, text))


def _read_elsewhere(element: Element, text: str, found: Extensions, reading: Reading) -> None:
    """Belongs to the process or an error event, whose own readers take it."""


_ATTRIBUTES: dict[str, _Reader] = {
    "topic": _topic,
    "retries": _retries,
    "retryBackoff": _retry_backoff,
    "priority": _priority,
    "singleTry": _single_try,
    "lockDuration": _lock_duration,
    "lockExpiriesMax": _lock_expiries_max,
    "correlationKey": _correlation_key,
    "payload": _payload,
    "resultVariable": _result_variable,
    "assignee": _assignee,
    "candidateUsers": _candidate_users,
    "candidateGroups": _candidate_groups,
    "form": _form,
    "due": _due,
    "failurePolicy": _read_elsewhere,
    "versionTag": _read_elsewhere,
    "codeVariable": _read_elsewhere,
    "messageVariable": _read_elsewhere,
}
