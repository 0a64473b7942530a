"""What the store has about each instance, kept at hand so that assertions need not wait for anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attrs import define, field

from stellwerk.actors.node import Node
from stellwerk.core import facts as f
from stellwerk.core.evolve import apply, started
from stellwerk.core.facts import Fact
from stellwerk.core.instance import InstanceState
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.model.process import Activity, Process
from stellwerk.ports import DefinitionRow, HistoryStep, InstanceFilter
from stellwerk.testing.drawing import is_compensation_boundary

__all__ = ["InstanceRecord", "Recording"]

_INSTANCES_MAX = 2**31 - 1


@define(eq=False)
class InstanceRecord:
    """One instance: its state, and where it was."""

    instance_id: str
    process: Process
    row: DefinitionRow
    version: int = 0
    path: list[str] = field(factory=list)
    """The flow nodes that tokens came to, in order; compensation boundary events among them, before their handlers."""
    flows: Counter[str] = field(factory=Counter)
    """How often each sequence flow was taken."""
    timers_fired: list[str] = field(factory=list)
    """Ids of the nodes whose timers fired, in order."""
    messages: set[str] = field(factory=set)
    """Ids of the messages that it took."""
    tasks: dict[str, f.TaskCreated] = field(factory=dict)
    task_variables: dict[str, JsonValue] = field(factory=dict)
    user_tasks: dict[str, f.UserTaskCreated] = field(factory=dict)
    incidents: dict[str, f.IncidentOpened] = field(factory=dict)
    """Also those that are resolved."""
    reason: str | None = None
    """Why it failed or was cancelled."""
    _state: InstanceState | None = None

    @property
    def state(self) -> InstanceState:
        assert self._state is not None, "an instance has facts"
        return self._state

    @property
    def variables(self) -> JsonObject:
        return self.state.variables

    @property
    def node_counts(self) -> Counter[str]:
        return Counter(self.path)

    def add(self, step: HistoryStep) -> None:
        for fact in step.facts:
            self._note(fact)
            if isinstance(fact, f.InstanceStarted):
                self._state = started(fact)
            else:
                apply(self.state, fact)
        self.version = step.version

    def _note(self, fact: Fact) -> None:
        """Before the fact is applied: what it ends is still in the state."""
        match fact:
            case f.TokenEntered():
                self.path.append(fact.node_id)
                if fact.via is not None:
                    self.flows[fact.via] += 1
            case f.CompensationHandlerStarted():
                self._note_compensation(fact)
            case f.TimerFired():
                self.timers_fired.append(self.state.timers[fact.timer_id].node_id)
            case f.MessageCorrelated():
                self.messages.add(fact.message_id)
            case f.InstanceStarted() if fact.message_id is not None:
                self.messages.add(fact.message_id)
            case f.InstanceFailed():
                self.reason = f"{fact.code}: {fact.message}"
            case f.InstanceCancelled():
                self.reason = fact.reason
            case f.TaskCreated() | f.TaskRequeued() | f.UserTaskCreated() | f.IncidentOpened():
                self._note_work(fact)
            case _:
                pass

    def _note_compensation(self, fact: f.CompensationHandlerStarted) -> None:
        """No token goes through the boundary event: it stands for what leads to the handler, which was entered just
        before."""
        undone = self.state.compensations[fact.compensation_id].pending[0]
        boundary_id = _compensation_boundary(self.process, undone.node_id)
        if boundary_id is not None:
            self.path.insert(len(self.path) - 1, boundary_id)

    def _note_work(self, fact: f.TaskCreated | f.TaskRequeued | f.UserTaskCreated | f.IncidentOpened) -> None:
        match fact:
            case f.TaskCreated():
                self.tasks[fact.task_id] = fact
                self.task_variables[fact.task_id] = fact.variables
            case f.TaskRequeued():
                self.task_variables[fact.task_id] = fact.variables
            case f.UserTaskCreated():
                self.user_tasks[fact.user_task_id] = fact
            case f.IncidentOpened():
                self.incidents[fact.incident_id] = fact

    def element_of(self, activity_id: str) -> str:
        return self.state.activities[activity_id].node_id


def _compensation_boundary(process: Process, activity_id: str) -> str | None:
    activity = process.nodes[activity_id]
    attached = activity.boundary_events if isinstance(activity, Activity) else ()
    return next((node_id for node_id in attached if is_compensation_boundary(process.nodes[node_id])), None)


class Recording:
    """All instances of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._records: dict[str, InstanceRecord] = {}

    def __iter__(self) -> Iterator[InstanceRecord]:
        """In the order in which they started."""
        return iter(list(self._records.values()))

    def get(self, instance_id: str) -> InstanceRecord | None:
        return self._records.get(instance_id)

    async def refresh(self) -> None:
        """Read what became durable since the last time."""
        store = self._node.ports.store
        for summary in reversed(await store.instances(InstanceFilter(), limit=_INSTANCES_MAX)):
            record = self._records.get(summary.instance_id)
            if record is None:
                deployed = await self._node.definition_cache.get(summary.definition_id)
                record = InstanceRecord(summary.instance_id, deployed.process, deployed.row)
            if record.version == summary.version:
                continue
            for step in await store.history(summary.instance_id, after=record.version):
                record.add(step)
            self._records[summary.instance_id] = record
