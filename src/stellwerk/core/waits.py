"""What the tokens of an instance wait for now: a reading of its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

import attrs

from stellwerk.core.instance import InstanceState
from stellwerk.instants import InstantMs

__all__ = ["OpenWait", "OpenWaitKind", "open_waits"]


class OpenWaitKind(Enum):
    EXTERNAL_TASK = "external_task"
    USER_TASK = "user_task"
    TIMER = "timer"
    MESSAGE = "message"
    INCIDENT = "incident"
    COMPENSATION = "compensation"


@attrs.frozen(kw_only=True)
class OpenWait:
    kind: OpenWaitKind
    wait_id: str
    """Of the external task, user task, timer, subscription, incident or compensation."""
    node_id: str
    """The event that would happen (a boundary event, too); for the others the token's own node."""
    name: str | None = None
    """Of a message."""
    key: str | None = None
    """Of a message: the correlation key that it must have."""
    due_at_ms: InstantMs | None = None
    """Of a timer, wall clock."""


def open_waits(state: InstanceState) -> Mapping[str, tuple[OpenWait, ...]]:
    """By token. A token that is not in it waits for other tokens: at a join, or around a subprocess."""
    waits: dict[str, list[OpenWait]] = {}
    for token_id, activity_id, wait in _all(state):
        activity = state.activities.get(activity_id or "")
        owner = token_id or (None if activity is None else activity.token_id)
        if owner in state.tokens:
            waits.setdefault(owner, []).append(wait)
    return {token_id: tuple(found) for token_id, found in waits.items()}


def _all(state: InstanceState) -> Iterator[tuple[str | None, str | None, OpenWait]]:
    """Each with the token or the activity that it belongs to."""
    for compensation in state.compensations.values():
        thrower = state.tokens.get(compensation.thrower_id or "")
        if thrower is not None:
            wait = OpenWait(kind=OpenWaitKind.COMPENSATION, wait_id=compensation.id, node_id=thrower.node_id)
            yield thrower.id, None, wait
    for incident in state.incidents.values():
        wait = OpenWait(kind=OpenWaitKind.INCIDENT, wait_id=incident.id, node_id=incident.node_id)
        yield incident.token_id, None, wait
    for task_id, task in state.tasks.items():
        if not task.failed:
            yield None, task.activity_id, _work(state, OpenWaitKind.EXTERNAL_TASK, task_id, task.activity_id)
    for user_task_id, activity_id in state.user_tasks.items():
        yield None, activity_id, _work(state, OpenWaitKind.USER_TASK, user_task_id, activity_id)
    for awaited in state.subscriptions.values():
        wait = OpenWait(
            kind=OpenWaitKind.MESSAGE,
            wait_id=awaited.id,
            node_id=awaited.node_id,
            name=awaited.name,
            key=awaited.key,
        )
        yield awaited.token_id, awaited.activity_id, wait
    for timer in state.timers.values():
        wait = OpenWait(kind=OpenWaitKind.TIMER, wait_id=timer.id, node_id=timer.node_id, due_at_ms=timer.due_at_ms)
        yield timer.token_id, timer.activity_id, wait


def _work(state: InstanceState, kind: OpenWaitKind, wait_id: str, activity_id: str) -> OpenWait:
    activity = state.activities.get(activity_id)
    return OpenWait(kind=kind, wait_id=wait_id, node_id="" if activity is None else activity.node_id)
