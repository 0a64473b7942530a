"""Flow node instances, which ProcessCube keeps as rows: here they are read from an instance's history.

Each stay of a token at a node is one. Its id is the activity's where there is one, so it is the id of the external task
or user task too; the others' are derived from the token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from stellwerk.core import facts as f
from stellwerk.core.external_task import ExternalTask, TaskAttempt
from stellwerk.core.trace import StayEnd, StayTrace, TokenTrace, WaitKind, trace
from stellwerk.ids import derived_id
from stellwerk.instants import InstantMs
from stellwerk.json_values import JsonValue
from stellwerk.model.process import FlowNode, Process
from stellwerk.ports import HistoryStep

__all__ = ["FlowNodeInstance", "flow_node_instances", "start_variables", "stay_id"]

_STATES: Mapping[StayEnd, str] = {
    StayEnd.LEFT: "finished",
    StayEnd.MERGED: "finished",
    StayEnd.ENDED: "finished",
    StayEnd.INTERRUPTED: "canceled",
    StayEnd.FAILED: "error",
    StayEnd.CANCELLED: "terminated",
}


@attrs.frozen(kw_only=True)
class FlowNodeInstance:
    id: str
    node: FlowNode
    previous_id: str | None
    state: str
    start_token: JsonValue
    end_token: JsonValue
    """None while it has not ended."""
    error: str | None
    started_at_ms: InstantMs
    finished_at_ms: InstantMs | None
    task: ExternalTask | None
    """Its external task, if it has one."""


def flow_node_instances(
    process: Process,
    instance_id: str,
    steps: Sequence[HistoryStep],
    tasks: Sequence[tuple[ExternalTask, tuple[TaskAttempt, ...]]],
) -> Sequence[FlowNodeInstance]:
    """Those of a whole instance, by the order in which they began.

    :param steps: the whole history.
    """
    reading = _Payloads()
    for step in steps:
        for fact in step.facts:
            reading.read(fact)
    rows = {task.task_id: task for task, _ in tasks}
    found = [
        _flow_node_instance(process, token, index, reading, rows)
        for token in trace(instance_id, steps, tasks).tokens
        for index in range(len(token.stays))
    ]
    return sorted(found, key=lambda one: one.started_at_ms)


def stay_id(token: TokenTrace, index: int) -> str:
    return token.stays[index].activity_id or place_id(token.token_id, index)


def place_id(token_id: str, index: int) -> str:
    """Of a stay without an activity."""
    return derived_id("stay", token_id, str(index))


def start_variables(steps: Sequence[HistoryStep]) -> JsonValue:
    """:param steps: the first one is enough."""
    for fact in steps[0].facts if steps else ():
        if isinstance(fact, f.InstanceStarted):
            return fact.variables
    return None


def _flow_node_instance(
    process: Process, token: TokenTrace, index: int, reading: _Payloads, rows: Mapping[str, ExternalTask]
) -> FlowNodeInstance:
    stay = token.stays[index]
    task = None if stay.activity_id is None else rows.get(stay.activity_id)
    error = next((wait.name for wait in stay.waits if wait.kind is WaitKind.INCIDENT and wait.until is None), None)
    before, after = reading.of(token.token_id, index)
    return FlowNodeInstance(
        id=stay_id(token, index),
        node=process.nodes[stay.node_id],
        previous_id=stay_id(token, index - 1) if index > 0 else None,
        state=_state(stay, error, task),
        start_token=before,
        end_token=after if stay.left is not None else None,
        error=error,
        started_at_ms=stay.entered.at_ms,
        finished_at_ms=None if stay.left is None else stay.left.at_ms,
        task=task,
    )


def _state(stay: StayTrace, error: str | None, task: ExternalTask | None) -> str:
    if stay.end is not None:
        return _STATES[stay.end]
    if error is not None:
        return "error"
    waits = task is not None or any(wait.until is None for wait in stay.waits)
    return "suspended" if waits else "running"


class _Payloads:
    """What each token carried when it came to each node, and when it left."""

    def __init__(self) -> None:
        self._stays: dict[str, list[tuple[JsonValue, JsonValue]]] = {}
        self._variables: JsonValue = None

    def of(self, token_id: str, index: int) -> tuple[JsonValue, JsonValue]:
        return self._stays[token_id][index]

    def read(self, fact: f.Fact) -> None:
        match fact:
            case f.InstanceStarted():
                self._variables = fact.variables
            case f.TokenEntered():
                payload = self._payload(fact.from_token or fact.token_id)
                self._stays.setdefault(fact.token_id, []).append((payload, payload))
            case f.PayloadSet():
                stays = self._stays[fact.token_id]
                stays[-1] = (stays[-1][0], fact.payload)
            case _:
                pass

    def _payload(self, token_id: str) -> JsonValue:
        stays = self._stays.get(token_id)
        return stays[-1][1] if stays else self._variables
