"""What a BPMN file holds for whoever is to run it: its processes, and what each wants from outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

from stellwerk.actors.definitions import read_runnable
from stellwerk.limits import Limits
from stellwerk.model.expressions import Expression
from stellwerk.model.process import (
    Event,
    EventPosition,
    ExternalWork,
    Finding,
    FlowNode,
    MessageDefinition,
    Position,
    Process,
    Severity,
    Task,
    TaskKind,
    TimerDefinition,
    UserWork,
)

__all__ = ["FileReport", "ListedNode", "ProcessReport", "report_on", "unreadable"]


_GENERATED_ID = re.compile(
    r"""
    (?:sid-|_|[A-Za-z]+_)?[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}   # Signavio, Modelio, plain UUIDs
    | (?:Activity|Event|Gateway|Task|[A-Z][A-Za-z]*(?:Task|Event))_[0-9a-z]{7}    # bpmn.io
    | (?:[A-Z][A-Za-z]*(?:Task|Event)|Task|task|[a-z]+Task|[a-z]+task)_?[0-9]+    # Activiti, Eclipse
    | _[0-9]+(?:-[0-9]+)?                                                         # Yaoqiang, Red Hat
    """,
    re.VERBOSE | re.ASCII,
)


@attrs.frozen(kw_only=True)
class ListedNode:
    """A flow node that something outside the engine has to do with."""

    element_id: str
    element: str
    name: str | None
    line: int
    details: dict[str, object]
    """What is to be said of it; expressions as they are written."""

    @property
    def has_generated_topic(self) -> bool:
        """Nobody has named its topic: it is the id that a drawing tool gave the element."""
        return self.details.get("topic") == self.element_id and _GENERATED_ID.fullmatch(self.element_id) is not None


@attrs.frozen(kw_only=True)
class ProcessReport:
    key: str
    name: str | None
    line: int
    executable: bool
    """Another process of a file than those that are meant to run (a pool that stands for a partner, say)."""
    dialect: str
    failure_policy: str
    external_tasks: tuple[ListedNode, ...]
    user_tasks: tuple[ListedNode, ...]
    timers: tuple[ListedNode, ...]
    messages: tuple[ListedNode, ...]


@attrs.frozen(kw_only=True)
class FileReport:
    file: str
    processes: tuple[ProcessReport, ...]
    findings: tuple[Finding, ...]

    @property
    def runs(self) -> bool:
        return not any(True for _ in self.errors)

    @property
    def errors(self) -> Iterator[Finding]:
        return (finding for finding in self.findings if finding.severity is Severity.ERROR)

    def with_warning(self, line: int, element_id: str, what: str) -> FileReport:
        finding = Finding(Severity.WARNING, Position(line, 1), element_id, "process", what)
        return attrs.evolve(self, findings=(*self.findings, finding))


def unreadable(file: Path, what: str) -> FileReport:
    """Of a file that could not be looked at."""
    finding = Finding(Severity.ERROR, Position(1, 1), None, "file", what)
    return FileReport(file=str(file), processes=(), findings=(finding,))


def report_on(file: Path, xml: bytes, *, limits: Limits, adopt_java: bool) -> FileReport:
    """What deploying the file would say, and what would then run."""
    if len(xml) > limits.definition_bytes_max:
        what = f"{len(xml)} bytes, at most {limits.definition_bytes_max} are allowed"
        finding = Finding(Severity.ERROR, Position(1, 1), None, "definitions", what)
        return FileReport(file=str(file), processes=(), findings=(finding,))
    result = read_runnable(xml, limits, adopt_java)
    processes = tuple([_process_report(process) for process in result.processes])
    return FileReport(file=str(file), processes=processes, findings=result.findings)


def _process_report(process: Process) -> ProcessReport:
    nodes = list(process.nodes.values())
    return ProcessReport(
        key=process.key,
        name=process.name,
        line=process.position.line,
        executable=process.executable,
        dialect=process.dialect.value,
        failure_policy=process.effective_failure_policy().value,
        external_tasks=tuple(_external_tasks(nodes)),
        user_tasks=tuple(_user_tasks(nodes)),
        timers=tuple(_timers(nodes)),
        messages=tuple(_messages(nodes)),
    )


def _listed(node: FlowNode, element: str, details: dict[str, object]) -> ListedNode:
    given = {name: value for name, value in details.items() if value not in (None, False, ())}
    return ListedNode(element_id=node.id, element=element, name=node.name, line=node.position.line, details=given)


def _external_tasks(nodes: list[FlowNode]) -> Iterator[ListedNode]:
    for node in nodes:
        if isinstance(node, Task) and node.work is not None:
            yield _listed(node, node.kind.value, _work_details(node.work))
        elif isinstance(node, Event) and node.work is not None:
            yield _listed(node, node.where.value, _work_details(node.work))


def _work_details(work: ExternalWork) -> dict[str, object]:
    """`retries` None: the engine's own number."""
    return {
        "topic": _shown(work.topic),
        "retries": _shown(work.retries),
        "retry_backoffs_ms": list(work.retry_backoffs_ms) or None,
        "priority": _shown(work.priority),
        "single_try": work.single_try,
        "lock_duration_ms": work.lock_duration_ms,
    }


def _user_tasks(nodes: list[FlowNode]) -> Iterator[ListedNode]:
    for node in nodes:
        if not isinstance(node, Task) or not (node.kind is TaskKind.USER or node.waits):
            continue
        user = node.user or UserWork()
        details = {
            "assignee": _shown(user.assignee),
            "candidate_users": _shown(user.candidate_users),
            "candidate_groups": _shown(user.candidate_groups),
            "form": user.form,
            "due": _shown(user.due),
        }
        yield _listed(node, node.kind.value, details)


def _timers(nodes: list[FlowNode]) -> Iterator[ListedNode]:
    for node in nodes:
        for definition in node.definitions if isinstance(node, Event) else ():
            if isinstance(node, Event) and isinstance(definition, TimerDefinition):
                details = {name: _shown(getattr(definition, name)) for name in ("date", "duration", "cycle")}
                yield _listed(node, node.where.value, details)


def _messages(nodes: list[FlowNode]) -> Iterator[ListedNode]:
    """Those that the engine waits for; a thrown one that can run is an external task."""
    for node in nodes:
        if isinstance(node, Task) and node.kind is TaskKind.RECEIVE and node.message is not None:
            yield _listed(node, node.kind.value, _message_details(node.message))
        elif isinstance(node, Event) and node.where in (
            EventPosition.START,
            EventPosition.CATCH,
            EventPosition.BOUNDARY,
        ):
            for definition in node.definitions:
                if isinstance(definition, MessageDefinition):
                    yield _listed(node, node.where.value, _message_details(definition))


def _message_details(message: MessageDefinition) -> dict[str, object]:
    return {"message": _shown(message.name), "correlation_key": _shown(message.correlation_key)}


def _shown(expression: Expression | None) -> object:
    """A constant as its value, everything else as it is written."""
    if expression is None:
        return None
    return expression.literal_value if expression.is_literal else expression.source
