"""A history as a list of events: one for each fact, numbered from 1 without gaps, each of one category."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Protocol

import attrs

from stellwerk.core import facts as f
from stellwerk.instants import InstantMs

__all__ = ["EventCategory", "HistoryEvent", "RecordedFacts", "category_of", "event_types", "events_of"]


class EventCategory(Enum):
    """What an event is about. The list is closed: a client may rely on it."""

    INSTANCE = "instance"
    TOKEN = "token"  # noqa: S105
    SCOPE = "scope"
    ACTIVITY = "activity"
    TASK = "task"
    USER_TASK = "user_task"
    TIMER = "timer"
    MESSAGE = "message"
    VARIABLES = "variables"
    ERROR = "error"
    INCIDENT = "incident"
    COMPENSATION = "compensation"


@attrs.frozen
class HistoryEvent:
    sequence: int
    """From 1 without gaps within the instance."""
    version: int
    """The step that it belongs to."""
    at_ms: InstantMs
    """Wall clock."""
    fact: f.Fact

    @property
    def event_type(self) -> str:
        return type(self.fact).__name__

    @property
    def category(self) -> EventCategory:
        return category_of(self.fact)


class RecordedFacts(Protocol):
    """One step of a history."""

    @property
    def version(self) -> int: ...

    @property
    def at_ms(self) -> InstantMs: ...

    @property
    def facts(self) -> Sequence[f.Fact]: ...


def events_of(step: RecordedFacts, facts_before: int) -> Iterator[HistoryEvent]:
    """The events of one step. ``facts_before``: how many the steps before it have."""
    for sequence, fact in enumerate(step.facts, start=facts_before + 1):
        yield HistoryEvent(sequence, step.version, step.at_ms, fact)


def event_types() -> Sequence[str]:
    """Of all events that there are, sorted."""
    return sorted(kind.__name__ for kind in _CATEGORIES)


def category_of(fact: f.Fact) -> EventCategory:
    return _CATEGORIES[type(fact)]


_FACTS: Mapping[EventCategory, tuple[type[f.Fact], ...]] = {
    EventCategory.INSTANCE: (f.InstanceStarted, f.InstanceCompleted, f.InstanceFailed, f.InstanceCancelled),
    EventCategory.TOKEN: (f.TokenEntered, f.TokenEnded, f.TokenFailed, f.TokenRevived),
    EventCategory.SCOPE: (f.ScopeOpened, f.ScopeClosed, f.ScopeFailing),
    EventCategory.ACTIVITY: (f.ActivityStarted, f.ActivityCompleted, f.ActivityCancelled, f.ActivityFailed),
    EventCategory.TASK: (
        f.TaskCreated,
        f.TaskCompleted,
        f.TaskErrorReported,
        f.TaskFailed,
        f.TaskCancelled,
        f.TaskDraining,
        f.TaskDrained,
        f.TaskRequeued,
    ),
    EventCategory.USER_TASK: (
        f.UserTaskCreated,
        f.UserTaskAssigned,
        f.UserTaskCompleted,
        f.UserTaskCancelled,
    ),
    EventCategory.TIMER: (f.TimerArmed, f.TimerFired, f.TimerDisarmed),
    EventCategory.MESSAGE: (f.SubscriptionOpened, f.MessageCorrelated, f.SubscriptionClosed),
    EventCategory.VARIABLES: (f.VariablesSet, f.PayloadSet),
    EventCategory.ERROR: (f.ErrorRaised,),
    EventCategory.INCIDENT: (f.IncidentOpened, f.IncidentResolved),
    EventCategory.COMPENSATION: (
        f.CompensationStarted,
        f.CompensationHandlerStarted,
        f.CompensationHandlerEnded,
        f.CompensationEnded,
    ),
}
_CATEGORIES: Mapping[type[f.Fact], EventCategory] = {
    kind: category for category, kinds in _FACTS.items() for kind in kinds
}
