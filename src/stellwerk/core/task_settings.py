"""What an operator sets on an open external task: attempts left and priority. No lease and no fence changes by it."""

from __future__ import annotations

import attrs

from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.core.lease import LeaseAnswerKind
from stellwerk.instants import InstantMs

__all__ = ["set_priority", "set_retries"]

_OPEN = frozenset({TaskState.READY, TaskState.LOCKED})


def set_retries(task: ExternalTask, retries: int, now_ms: InstantMs) -> tuple[ExternalTask, LeaseAnswerKind]:
    """The row after that, and the answer. Unless that is DONE, the row is returned as it was."""
    refusal = _refusal(task)
    if refusal is not None:
        return task, refusal
    return attrs.evolve(task, retries_left=retries, updated_at_ms=_updated_at_ms(task, now_ms)), LeaseAnswerKind.DONE


def set_priority(task: ExternalTask, priority: int, now_ms: InstantMs) -> tuple[ExternalTask, LeaseAnswerKind]:
    """As `set_retries`. A task that is leased keeps it for its next attempt."""
    refusal = _refusal(task)
    if refusal is not None:
        return task, refusal
    return attrs.evolve(task, priority=priority, updated_at_ms=_updated_at_ms(task, now_ms)), LeaseAnswerKind.DONE


def _refusal(task: ExternalTask) -> LeaseAnswerKind | None:
    if task.state in _OPEN:
        return None
    return LeaseAnswerKind.CANCELLED if task.state is TaskState.CANCELLED else LeaseAnswerKind.ALREADY_FINISHED


def _updated_at_ms(task: ExternalTask, now_ms: InstantMs) -> InstantMs:
    """Never earlier than it was: a task that was available when it became READY stays so, wherever the clock is set."""
    return max(now_ms, task.updated_at_ms)
