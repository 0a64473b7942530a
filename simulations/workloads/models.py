"""BPMN as text, from a few words of Python: what the workloads deploy.

A `Model` is filled element by element; `path` draws the sequence flows. The ids in the text are those given here, so
that behaviours and judgements name them too.
"""

from __future__ import annotations

from itertools import pairwise
from xml.sax.saxutils import quoteattr

import attrs

__all__ = ["Model"]

_NAMESPACES = (
    'xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" '
    'xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn" targetNamespace="simulations"'
)
_EXTENSIONS = ("backoff", "correlation_key", "lock_duration", "lock_expiries_max", "retries", "single_try")


@attrs.define
class Model:
    """One process. Every method gives the model itself, so that they can be chained."""

    key: str
    policy: str = "incident"
    """``incident`` or ``compensate``: when something fails for good."""
    messages: tuple[str, ...] = ()
    """Names, which are also the ids of the declarations."""
    errors: tuple[str, ...] = ()
    """Codes, likewise."""
    _lines: list[str] = attrs.field(factory=list)
    _flows: int = 0

    def start(self, element_id: str = "start", *, message: str | None = None) -> Model:
        return self._element("startEvent", element_id, _message(message))

    def end(self, element_id: str, inner: str = "") -> Model:
        """`inner`: an event definition."""
        return self._element("endEvent", element_id, inner)

    def task(self, element_id: str, topic: str, **attributes: str) -> Model:
        """For workers. `attributes`: ``retries="4"``, ``backoff="PT1S"``, ``single_try="true"`` …; others as BPMN's."""
        return self._element("serviceTask", element_id, topic=topic, **attributes)

    def handler(self, element_id: str, topic: str, undoes: str, **attributes: str) -> Model:
        """A task that compensates another one."""
        event_id = f"{element_id}.event"
        self._element("serviceTask", element_id, topic=topic, isForCompensation="true", **attributes)
        self._element("boundaryEvent", event_id, "<compensateEventDefinition/>", attachedToRef=undoes)
        return self._add(
            f'<association id="{element_id}.way" associationDirection="One" sourceRef="{event_id}" '
            f'targetRef="{element_id}"/>'
        )

    def element(self, kind: str, element_id: str, inner: str = "", **attributes: str) -> Model:
        """Any other element by its BPMN name, with what stands in it."""
        return self._element(kind, element_id, inner, **attributes)

    def boundary(self, element_id: str, on: str, inner: str, *, interrupting: bool = True) -> Model:
        cancels = "true" if interrupting else "false"
        return self._element("boundaryEvent", element_id, inner, attachedToRef=on, cancelActivity=cancels)

    def open_subprocess(self, element_id: str) -> Model:
        """What is added until `close_subprocess` stands in it."""
        return self._add(f'<subProcess id="{element_id}">')

    def close_subprocess(self) -> Model:
        return self._add("</subProcess>")

    def path(self, *element_ids: str, when: str | None = None) -> Model:
        """Sequence flows from one to the next; `when`: a FEEL condition on the first of them."""
        for position, (source, target) in enumerate(pairwise(element_ids)):
            condition = when if position == 0 else None
            self._flow(f"{source}-{target}", source, target, condition)
        return self

    def choice(self, element_id: str, *, otherwise: str, **targets: str) -> Model:
        """An exclusive gateway with a default flow; `targets`: element id to FEEL condition."""
        self._element("exclusiveGateway", element_id, default=f"{element_id}-{otherwise}")
        self.path(element_id, otherwise)
        for target, condition in targets.items():
            self.path(element_id, target, when=condition)
        return self

    def xml(self) -> bytes:
        """The file."""
        declared = "".join(f'<message id="{name}" name="{name}"/>' for name in self.messages)
        declared += "".join(f'<error id="{code}" errorCode="{code}"/>' for code in self.errors)
        body = "\n    ".join(self._lines)
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<definitions {_NAMESPACES}>{declared}\n'
            f'  <process id="{self.key}" isExecutable="true" stellwerk:failurePolicy="{self.policy}">\n'
            f"    {body}\n  </process>\n</definitions>\n"
        ).encode()

    def _flow(self, flow_id: str, source: str, target: str, condition: str | None) -> None:
        inner = "" if condition is None else f"<conditionExpression>{_text(condition)}</conditionExpression>"
        self._add(f'<sequenceFlow id="{flow_id}" sourceRef="{source}" targetRef="{target}">{inner}</sequenceFlow>')

    def _element(self, kind: str, element_id: str, inner: str = "", **attributes: str) -> Model:
        given = "".join(f" {_name(name)}={quoteattr(value)}" for name, value in attributes.items())
        return self._add(f'<{kind} id="{element_id}"{given}>{inner}</{kind}>')

    def _add(self, line: str) -> Model:
        self._lines.append(line)
        return self


def _message(name: str | None) -> str:
    return "" if name is None else f'<messageEventDefinition messageRef="{name}"/>'


def _text(condition: str) -> str:
    return condition.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _name(name: str) -> str:
    """``single_try`` and the like are ours; whatever else is written as in BPMN."""
    if name == "backoff":
        return "stellwerk:retryBackoff"
    if name != "topic" and name not in _EXTENSIONS:
        return name
    first, *rest = name.split("_")
    return f"stellwerk:{first}{''.join(part.capitalize() for part in rest)}"
