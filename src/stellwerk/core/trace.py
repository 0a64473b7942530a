"""What happened in an instance, by token and by task (requirement P3): a reading of its history and its task rows.

Tokens are told by the facts alone: each token's stays follow each other without gap or overlap. Tasks are told by
their rows: every lease ever given appears once, with who held it under which fence and how it ended. Facts carry the
wall clock, leases the store's lease clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stellwerk.core.external_task import AttemptEnd, ExternalTask, TaskAttempt, TaskState
from stellwerk.core.replay import RecordedStep
from stellwerk.core.trace_facts import Reading
from stellwerk.core.trace_values import (
    LeaseEnd,
    LeaseSpan,
    Moment,
    StayEnd,
    StayTrace,
    TaskTrace,
    TokenOrigin,
    TokenTrace,
    Trace,
    WaitEnd,
    WaitKind,
    WaitSpan,
)

__all__ = [
    "LeaseEnd",
    "LeaseSpan",
    "Moment",
    "StayEnd",
    "StayTrace",
    "TaskTrace",
    "TokenOrigin",
    "TokenTrace",
    "Trace",
    "WaitEnd",
    "WaitKind",
    "WaitSpan",
    "trace",
]


def trace(
    instance_id: str,
    steps: Sequence[RecordedStep],
    tasks: Sequence[tuple[ExternalTask, Sequence[TaskAttempt]]],
) -> Trace:
    """The whole life of an instance.

    :param steps: its whole history, from the first step on.
    :param tasks: all its task rows, each with its recorded attempts.
    """
    reading = Reading()
    for step in steps:
        reading.read(step)
    tokens = tuple(token.frozen() for token in reading.tokens.values())
    return Trace(instance_id, tokens, tuple(_task_trace(task, attempts, reading) for task, attempts in tasks))


# --- reading the rows ----------------------------------------------------------------------------------------------


def _task_trace(task: ExternalTask, attempts: Sequence[TaskAttempt], reading: Reading) -> TaskTrace:
    is_open = task.state in (TaskState.READY, TaskState.LOCKED)
    return TaskTrace(
        task_id=task.task_id,
        element_id=task.element_id,
        topic=task.topic,
        token_id=task.token_id,
        state=task.state,
        created_at_ms=task.created_at_ms,
        ended_at_ms=None if is_open else task.updated_at_ms,
        retries=task.retries,
        retries_left=task.retries_left,
        lock_expiries=task.lock_expiries,
        requeued=tuple(reading.requeued.get(task.task_id, ())),
        leases=_leases(task, attempts),
    )


def _leases(task: ExternalTask, attempts: Sequence[TaskAttempt]) -> tuple[LeaseSpan, ...]:
    """Those that ended without success are attempts; one that is held or was completed stands in the row alone."""
    spans = [_ended_lease(attempt) for attempt in sorted(attempts, key=lambda attempt: attempt.fence)]
    last = _last_lease(task)
    if last is not None and all(span.fence != last.fence for span in spans):
        spans.append(last)
    return tuple(spans)


_ENDS: Mapping[AttemptEnd, LeaseEnd] = {
    AttemptEnd.FAILED: LeaseEnd.FAILED,
    AttemptEnd.BPMN_ERROR: LeaseEnd.BPMN_ERROR,
    AttemptEnd.EXPIRED: LeaseEnd.EXPIRED,
    AttemptEnd.RELEASED: LeaseEnd.RELEASED,
    AttemptEnd.REVOKED: LeaseEnd.REVOKED,
}


def _ended_lease(attempt: TaskAttempt) -> LeaseSpan:
    return LeaseSpan(
        fence=attempt.fence,
        worker_id=attempt.worker_id,
        since_ms=attempt.since_ms,
        until_ms=attempt.ended_at_ms,
        locked_until_ms=None,
        end=_ENDS[attempt.end],
        message=attempt.message,
        details=attempt.details,
    )


def _last_lease(task: ExternalTask) -> LeaseSpan | None:
    lease = task.lease
    if lease is None:
        return None
    is_held = task.state is TaskState.LOCKED
    return LeaseSpan(
        fence=lease.fence,
        worker_id=lease.holder.worker_id,
        since_ms=lease.since_ms,
        until_ms=None if is_held else task.updated_at_ms,
        locked_until_ms=lease.until_ms if is_held else None,
        end=LeaseEnd.HELD if is_held else LeaseEnd.COMPLETED,
        message=None,
        details=None,
    )
