"""The processes that are measured, as BPMN text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

__all__ = ["BACKLOG_TOPIC", "TOPIC", "chain", "models", "waiting", "wide"]

TOPIC = "noop"
"""All tasks of all measured processes: a worker's leases are counted by topic."""

BACKLOG_TOPIC = "backlog"
"""But for those of the process ``backlog``."""

_OURS = f'stellwerk:topic="{TOPIC}"'
_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"
             xmlns:camunda="http://camunda.org/schema/1.0/bpmn" id="benchmarks" targetNamespace="https://stellwerk.dev/benchmarks">
"""


def models() -> Mapping[str, bytes]:
    """All that an engine gets, by the names of their files."""
    texts = {
        "chain": chain(),
        "wide": wide(),
        "single": chain("single", 1),
        "backlog": chain("backlog", 1, f'stellwerk:topic="{BACKLOG_TOPIC}"'),
        "waiting": waiting(),
    }
    return {f"{key}.bpmn": text.encode() for key, text in texts.items()}


def chain(key: str = "chain", tasks: int = 3, binding: str = _OURS) -> str:
    """Service tasks in a row; ``binding`` is the attribute that says who does them."""
    nodes = [f"task_{number}" for number in range(tasks)]
    return _process(key, _tasks(nodes, binding), _flows(["start", *nodes, "end"]))


def wide(key: str = "wide", branches: int = 64, tasks: int = 4) -> str:
    """One parallel fork into `branches` rows of `tasks` service tasks each, and one join."""
    elements, flows = ['<parallelGateway id="fork"/><parallelGateway id="join"/>'], _flows(["start", "fork"])
    for branch in range(branches):
        nodes = [f"task_{branch}_{number}" for number in range(tasks)]
        elements.append(_tasks(nodes))
        flows += _flows(["fork", *nodes, "join"], f"b{branch}_")
    return _process(key, "".join(elements), flows + _flows(["join", "end"], "last_"))


def waiting(key: str = "waiting") -> str:
    """Waits for a message that never comes, or for a year."""
    elements = (
        '<eventBasedGateway id="gateway"/>'
        '<intermediateCatchEvent id="year"><timerEventDefinition><timeDuration>P1Y</timeDuration>'
        "</timerEventDefinition></intermediateCatchEvent>"
        '<intermediateCatchEvent id="message"><messageEventDefinition messageRef="never"/></intermediateCatchEvent>'
    )
    flows = (
        _flows(["start", "gateway", "year", "end"], "year_")
        + _flows(["gateway", "message"], "message_")
        + _flows(["message", "end"], "last_")
    )
    return _process(key, elements, flows, '<message id="never" name="never"/>')


def _tasks(nodes: list[str], binding: str = _OURS) -> str:
    return "".join(f'<serviceTask id="{node}" name="{node}" {binding}/>' for node in nodes)


def _flows(nodes: list[str], prefix: str = "") -> str:
    return "".join(
        f'<sequenceFlow id="flow_{prefix}{number}" sourceRef="{source}" targetRef="{target}"/>'
        for number, (source, target) in enumerate(itertools.pairwise(nodes))
    )


def _process(key: str, elements: str, flows: str, before: str = "") -> str:
    return (
        f'{_HEAD}  {before}<process id="{key}" isExecutable="true">\n'
        f'    <startEvent id="start"/>{elements}<endEvent id="end"/>{flows}\n  </process>\n</definitions>\n'
    )
