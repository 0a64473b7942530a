"""What is open in an instance, for people: what it waits for, and what could be completed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from attrs import field

from stellwerk.core.instance import TokenStatus
from stellwerk.instants import EPOCH, to_rfc3339
from stellwerk.json_values import JsonObject, JsonValue, dumps
from stellwerk.testing.recording import InstanceRecord
from stellwerk.values import frozen

__all__ = [
    "OpenTask",
    "OpenTimer",
    "OpenUserTask",
    "described",
    "known_element",
    "open_tasks",
    "open_timers",
    "open_user_tasks",
    "waiting_at",
]

_VALUE_CHARS_MAX = 60


@frozen(hash=False)
class OpenTask:
    """An external task that was not completed yet."""

    task_id: str
    element_id: str
    topic: str
    variables: JsonValue
    """What a worker gets."""
    headers: dict[str, str] = field(factory=dict)
    instance_id: str = ""


@frozen(hash=False)
class OpenUserTask:
    """A user task that was not completed yet."""

    user_task_id: str
    element_id: str
    name: str | None
    assignee: str | None
    candidate_groups: tuple[str, ...]
    variables: JsonObject


@frozen
class OpenTimer:
    """A timer that has not fired yet."""

    element_id: str
    due_at: datetime
    """In UTC."""


def open_timers(record: InstanceRecord) -> list[OpenTimer]:
    """The next one first."""
    timers = sorted(record.state.timers.values(), key=lambda timer: timer.due_at_ms)
    return [OpenTimer(timer.node_id, EPOCH + timedelta(milliseconds=timer.due_at_ms)) for timer in timers]


def open_tasks(record: InstanceRecord) -> list[OpenTask]:
    """Oldest first. Without those at which an incident waits."""
    found = []
    for task_id, task in record.state.tasks.items():
        if task.failed or task.draining:
            continue
        created = record.tasks[task_id]
        element_id = record.element_of(task.activity_id)
        variables = record.task_variables[task_id]
        found.append(OpenTask(task_id, element_id, created.topic, variables, dict(created.headers), record.instance_id))
    return found


def open_user_tasks(record: InstanceRecord) -> list[OpenUserTask]:
    """Oldest first."""
    found = []
    for user_task_id, activity_id in record.state.user_tasks.items():
        created = record.user_tasks[user_task_id]
        found.append(
            OpenUserTask(
                user_task_id,
                record.element_of(activity_id),
                created.name,
                created.assignee,
                tuple(created.candidate_groups),
                created.variables,
            )
        )
    return found


def waiting_at(record: InstanceRecord) -> list[str]:
    """The flow nodes at which tokens stand, each as often as there are tokens; without the subprocesses around them."""
    state = record.state
    holders = {scope.activity_id for scope in state.scopes.values() if not scope.local and scope.activity_id}
    return [
        token.node_id
        for token in state.tokens.values()
        if token.activity_id is None or token.activity_id not in holders
    ]


def described(record: InstanceRecord) -> str:
    """Several lines: how the instance is, and everything that is open in it."""
    state = record.state
    ended = f" ({record.reason})" if record.reason else ""
    lines = [f"instance {record.instance_id} of {record.row.definition_id} is {state.status.value}{ended}"]
    lines += [f"  {line}" for line in _open_lines(record)]
    if len(lines) == 1:
        lines.append("  nothing is open")
    return "\n".join(lines)


def _open_lines(record: InstanceRecord) -> Iterator[str]:
    state = record.state
    for task in open_tasks(record):
        yield f'external task at "{task.element_id}" of topic "{task.topic}" with {_short(task.variables)}'
    for user_task in open_user_tasks(record):
        yield f'user task at "{user_task.element_id}" with {_short(user_task.variables)}'
    for timer in sorted(state.timers.values(), key=lambda timer: timer.due_at_ms):
        yield f'timer of "{timer.node_id}" due at {to_rfc3339(timer.due_at_ms)}'
    for subscription in state.subscriptions.values():
        yield f'"{subscription.node_id}" waits for message "{subscription.name}" with key "{subscription.key}"'
    for incident in state.incidents.values():
        opened = record.incidents[incident.id]
        yield f'incident at "{incident.node_id}": {incident.kind}: {opened.message}'
    for token in state.tokens.values():
        if token.status is TokenStatus.FAILED and not any(
            incident.token_id == token.id for incident in state.incidents.values()
        ):
            yield f'a failed token at "{token.node_id}"'


def _short(value: JsonValue) -> str:
    text = dumps(value).decode()
    return text if len(text) <= _VALUE_CHARS_MAX else text[: _VALUE_CHARS_MAX - 1] + "…"


def known_element(record: InstanceRecord, element_id: str) -> str | None:
    """None when the process has that flow node; else a sentence that says so and what may have been meant."""
    nodes = record.process.nodes
    if element_id in nodes:
        return None
    names = {node.name: node.id for node in nodes.values() if node.name}
    if element_id in names:
        return f'"{element_id}" is a name: the id of that element is "{names[element_id]}"'
    close = difflib.get_close_matches(element_id, [*nodes, *names], n=1)
    meant = f', did you mean "{names.get(close[0], close[0])}"?' if close else f": it has {_listed(list(nodes))}"
    return f'process "{record.process.key}" has no element "{element_id}"{meant}'


def _listed(element_ids: Sequence[str], shown_max: int = 20) -> str:
    more = f" and {len(element_ids) - shown_max} more" if len(element_ids) > shown_max else ""
    return ", ".join(element_ids[:shown_max]) + more
