"""What the dialects say about one element, in one form. Each dialect's reader fills in what it finds."""

from __future__ import annotations

import attrs

from stellwerk.json_values import JsonValue, dumps
from stellwerk.limits import Limits
from stellwerk.model.expressions import Expression
from stellwerk.model.findings import Findings
from stellwerk.model.process import Dialect, ExternalWork, Mapped, Script, UserWork
from stellwerk.model.roots import Roots
from stellwerk.model.texts import Texts
from stellwerk.model.xml import Element

__all__ = ["JAVA_HEADERS", "Extensions", "Reading", "check_topic", "keep_as_header"]

JAVA_HEADERS = ("java.class", "java.delegateExpression", "java.expression", "java.type", "java.connectorId")
"""Headers that hold an implementation which runs inside a Java engine only."""


@attrs.frozen(kw_only=True)
class Reading:
    """What every part of the reader needs to know of the file."""

    findings: Findings
    texts: Texts
    roots: Roots
    dialect: Dialect
    limits: Limits
    adopt_java: bool
    default_priority: Expression | None = None
    """Camunda's ``taskPriority`` of the process."""
    message_keys: dict[Element, Expression | None] = attrs.field(factory=dict)
    """The correlation keys of declared messages: many elements may refer to one, it is read once."""


@attrs.define(kw_only=True)
class Extensions:
    """Empty until a dialect's reader finds something."""

    topic: Expression | None = None
    retries: Expression | None = None
    retry_backoffs_ms: tuple[int, ...] = ()
    priority: Expression | None = None
    single_try: bool = False
    lock_duration_ms: int | None = None
    lock_expiries_max: int | None = None
    payload: Expression | None = None
    error_mappings: list[tuple[Expression, str | None]] = attrs.field(factory=list)
    inputs: list[Mapped] = attrs.field(factory=list)
    outputs: list[Mapped] = attrs.field(factory=list)
    headers: dict[str, str] = attrs.field(factory=dict)
    user: UserWork = attrs.field(factory=UserWork)
    correlation_key: Expression | None = None
    decision: str | None = None
    result_variable: str | None = None
    script: Script | None = None
    called: Expression | None = None
    called_version: str | None = None
    pass_all_variables: bool | None = None

    def work(self, topic: Expression | None = None) -> ExternalWork | None:
        """The work for workers, if there is a topic: the dialect's own or else `topic`."""
        chosen = self.topic if self.topic is not None else topic
        if chosen is None:
            return None
        return ExternalWork(
            topic=chosen,
            retries=self.retries,
            retry_backoffs_ms=self.retry_backoffs_ms,
            priority=self.priority,
            single_try=self.single_try,
            lock_duration_ms=self.lock_duration_ms,
            lock_expiries_max=self.lock_expiries_max,
            payload=self.payload,
            error_mappings=tuple(self.error_mappings),
        )


def check_topic(work: ExternalWork | None, element: Element, reading: Reading) -> None:
    """A topic that is written out must be one that workers can subscribe to."""
    if work is None or not work.topic.is_literal:
        return
    topic, longest = work.topic.literal_value, reading.limits.topic_chars_max
    if isinstance(topic, bool) or not isinstance(topic, str | int | float):
        reading.findings.error(element, "the topic is no text")
    elif not 0 < len(str(topic)) <= longest:
        reading.findings.error(element, f"a topic has 1 to {longest} characters, not {len(str(topic))}")


def keep_as_header(extension: Element, headers: dict[str, str]) -> None:
    """An extension that no dialect knows: its text, or its attributes and children as compact JSON."""
    text = extension.text.strip()
    plain = not extension.attributes and not extension.children
    value = text if plain else dumps(_as_json(extension)).decode()
    name, number = extension.name, len(headers)
    while name in headers:
        number += 1
        name = f"{extension.name}.{number}"
    headers[name] = value


def _as_json(element: Element) -> JsonValue:
    """Attributes by local name, child elements as lists by local name, text as ``text``."""
    result: dict[str, object] = {name: value for (_, name), value in element.attributes.items()}
    for child in element.children:
        entries = result.setdefault(child.name, [])
        if isinstance(entries, list):
            entries.append(_as_json(child))
    if element.text.strip():
        result.setdefault("text", element.text.strip())
    return result
