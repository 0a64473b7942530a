"""The end of an instance, as a judgement reads it: its history in a few lists, and what handlers and client saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from stellwerk.core import facts as f
from stellwerk.core.evolve import apply, started
from stellwerk.core.external_task import ExternalTask
from stellwerk.core.instance import InstanceState
from stellwerk.json_values import JsonObject
from stellwerk.ports import HistoryStep

if TYPE_CHECKING:
    from simulations.workloads.base import ClientEvent

__all__ = [
    "EventAnswer",
    "HandlerRun",
    "InstanceOutcome",
    "Reading",
    "TaskRecord",
    "Undoing",
    "stamp_of",
]


@attrs.define(kw_only=True)
class HandlerRun:
    """A handler at work on one lease."""

    task_id: str
    instance_id: str
    element: str
    fence: int
    attempt: int
    worker_id: str
    place: str
    saw: JsonObject
    """The variables that it got."""
    began: float
    """True simulated seconds, as `ended`."""
    ended: float | None = None
    """None: its worker died, or it is still at it."""
    end: str = ""
    """``returned``, ``failed``, ``raised`` or ``cancelled``; empty without an end. Whether the engine took it is
    another question."""
    says: str = ""
    """The error's code, the failure's message or why it was cancelled."""
    gave_up: bool = False
    """It failed and said that no attempts are left."""


def stamp_of(run: HandlerRun) -> JsonObject:
    """What a run that returns leaves in the variables: whose work it is."""
    return {"attempt": run.attempt, "fence": run.fence, "worker": run.worker_id}


@attrs.frozen(kw_only=True)
class EventAnswer:
    """What the client heard when it did an event (one entry for each event that it began)."""

    event: ClientEvent
    sent: float
    """When it was tried first; true simulated seconds, as `answered`."""
    answered: float | None = None
    """None: never."""
    status: int | None = None
    """Of the answer that counted."""
    unanswered: int = 0
    """Requests before it of which nobody knows whether they happened."""
    version: int | None = None
    """`Redeploy`: the version that came out."""


@attrs.frozen(kw_only=True)
class InstanceOutcome:
    """Everything about one instance at the end of a run."""

    instance_id: str
    definition_id: str
    """``key:version``."""
    steps: Sequence[HistoryStep]
    """The whole history."""
    runs: Sequence[HandlerRun] = ()
    """In the order in which they began."""
    events: Sequence[EventAnswer] = ()
    tasks: Sequence[ExternalTask] = ()
    """Its rows at the end; empty: not known."""
    start_sent: float = 0.0
    """When the client first asked for it; true simulated seconds."""


@attrs.define(kw_only=True)
class TaskRecord:
    """An external task in the history. The positions count facts from 0."""

    task_id: str
    element: str
    created_at: int
    end: str = ""
    """The name of the fact that ended it: `TaskCompleted`, `TaskErrorReported` (caught), `TaskFailed`, `TaskCancelled`
    or `TaskDrained`; empty while it is open. One with an incident that was resolved is open again."""
    ended_at: int = -1
    worker_id: str | None = None
    """Who completed it."""
    failures: list[str] = attrs.field(factory=list)
    """The kinds of `TaskFailed`."""
    requeues: int = 0
    errors: list[str] = attrs.field(factory=list)
    """Codes that workers reported."""
    draining: bool = False


@attrs.define(kw_only=True)
class Undoing:
    """One compensation handler that was started."""

    element: str
    """What it undoes."""
    handler: str
    began_at: int
    ended_at: int = -1
    variables: JsonObject = attrs.field(factory=dict)
    """What the activity saw when it was completed, which is what the handler must see."""


class Reading:
    """An `InstanceOutcome`, read. Lists are in the order of the history."""

    def __init__(self, outcome: InstanceOutcome) -> None:
        """:raises KeyError, InvariantBroken: the history cannot be folded."""
        self.outcome = outcome
        self.entered: list[str] = []
        """The flow nodes that tokens came to."""
        self.tasks: list[TaskRecord] = []
        self.completed: list[str] = []
        """Elements of completed external tasks."""
        self.activities_completed: list[str] = []
        """Of all kinds, also those of compensation handlers."""
        self.timers_fired: list[str] = []
        self.messages: list[tuple[str, str]] = []
        """Node and message id."""
        self.incidents: list[f.IncidentOpened] = []
        self.errors: list[f.ErrorRaised] = []
        self.undone: list[Undoing] = []
        self.user_tasks_completed: list[str] = []
        self.failing_at = -1
        """Where the (last) `ScopeFailing` stands."""
        self.reason = ""
        """Why it failed or was cancelled."""
        self._tasks: dict[str, TaskRecord] = {}
        self._undoing: dict[tuple[str, str], Undoing] = {}
        self._snapshots: dict[str, JsonObject] = {}
        self._user_tasks: dict[str, str] = {}
        self.state = self._read()

    def _read(self) -> InstanceState:
        state: InstanceState | None = None
        for position, fact in enumerate(self.facts):
            if state is None:
                assert isinstance(fact, f.InstanceStarted), fact
                state = started(fact)
                if fact.message_id is not None:
                    self.messages.append((fact.start_event_id or "", fact.message_id))
            else:
                self._note(state, position, fact)
                apply(state, fact)
        assert state is not None, self.outcome.instance_id
        return state

    @property
    def facts(self) -> Iterator[f.Fact]:
        return (fact for step in self.outcome.steps for fact in step.facts)

    @property
    def status(self) -> str:
        return self.state.status.value

    @property
    def variables(self) -> JsonObject:
        return self.state.variables

    @property
    def version(self) -> int:
        return int(self.outcome.definition_id.rpartition(":")[2])

    def tasks_at(self, element: str) -> list[TaskRecord]:
        return [task for task in self.tasks if task.element == element]

    def runs_at(self, element: str) -> list[HandlerRun]:
        return [run for run in self.outcome.runs if run.element == element]

    def incidents_at(self, element: str) -> list[f.IncidentOpened]:
        return [incident for incident in self.incidents if incident.node_id == element]

    # --- noting, before the fact is applied ------------------------------------------------------------------------

    def _note(self, state: InstanceState, position: int, fact: f.Fact) -> None:
        match fact:
            case f.TokenEntered():
                self.entered.append(fact.node_id)
            case f.ActivityCompleted():
                self.activities_completed.append(state.activities[fact.activity_id].node_id)
                self._snapshots[fact.activity_id] = fact.compensation_variables or {}
            case f.TimerFired():
                self.timers_fired.append(state.timers[fact.timer_id].node_id)
            case f.MessageCorrelated():
                self.messages.append((state.subscriptions[fact.subscription_id].node_id, fact.message_id))
            case f.UserTaskCompleted():
                self.user_tasks_completed.append(state.activities[state.user_tasks[fact.user_task_id]].node_id)
            case f.ErrorRaised():
                self.errors.append(fact)
            case f.ScopeFailing():
                self.failing_at = position
            case f.InstanceFailed():
                self.reason = f"{fact.code}: {fact.message}"
            case f.InstanceCancelled():
                self.reason = fact.reason
            case f.IncidentOpened():
                self.incidents.append(fact)
            case f.CompensationHandlerStarted() | f.CompensationHandlerEnded():
                self._note_undoing(state, position, fact)
            case _:
                self._note_task(state, position, fact)

    def _note_undoing(
        self, state: InstanceState, position: int, fact: f.CompensationHandlerStarted | f.CompensationHandlerEnded
    ) -> None:
        key = (fact.compensation_id, fact.activity_id)
        if isinstance(fact, f.CompensationHandlerEnded):
            self._undoing[key].ended_at = position
            return
        undone = state.compensations[fact.compensation_id].pending[0]
        handler = state.tokens[fact.token_id].node_id
        variables = self._snapshots[fact.activity_id]
        self._undoing[key] = Undoing(element=undone.node_id, handler=handler, began_at=position, variables=variables)
        self.undone.append(self._undoing[key])

    def _note_task(self, state: InstanceState, position: int, fact: f.Fact) -> None:
        match fact:
            case f.TaskCreated():
                element = state.activities[fact.activity_id].node_id
                task = TaskRecord(task_id=fact.task_id, element=element, created_at=position)
                self._tasks[fact.task_id] = task
                self.tasks.append(task)
            case f.TaskCompleted():
                self._ended(fact.task_id, position, fact).worker_id = fact.worker_id
                self.completed.append(self._tasks[fact.task_id].element)
            case f.TaskErrorReported():
                self._ended(fact.task_id, position, fact).errors.append(fact.code)
            case f.TaskFailed():
                self._ended(fact.task_id, position, fact).failures.append(fact.kind)
            case f.TaskCancelled() | f.TaskDrained():
                self._ended(fact.task_id, position, fact)
            case f.TaskDraining():
                self._tasks[fact.task_id].draining = True
            case f.TaskRequeued():
                task = self._tasks[fact.task_id]
                task.end, task.ended_at, task.requeues = "", -1, task.requeues + 1
            case _:
                pass

    def _ended(self, task_id: str, position: int, fact: f.Fact) -> TaskRecord:
        task = self._tasks[task_id]
        task.end, task.ended_at = type(fact).__name__, position
        return task
