"""The operations on leases: they change rows of ``external_tasks`` alone, never an instance's version."""

from __future__ import annotations

from stellwerk.core.external_task import AttemptEnd, ExternalTask, OutcomeKind, TaskAttempt, TaskState
from stellwerk.core.lease import (
    Expire,
    Extend,
    Fail,
    LeaseAnswerKind,
    LeaseCommand,
    Release,
    Renew,
    Resume,
    TakeLease,
    apply_lease_command,
    recorded_outcome,
)
from stellwerk.core.task_settings import set_priority, set_retries
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    CheckRepeat,
    ExpiredLocks,
    ExtendLease,
    FailTask,
    FetchAndLock,
    LeaseAnswer,
    LeaseTasks,
    LostLease,
    ReleaseLeases,
    RenewLeases,
    Resumed,
    ResumeSession,
    SetTaskPriority,
    SetTaskRetries,
)
from stellwerk.stores.tables import Tables

__all__ = [
    "attempt_for",
    "check_repeat",
    "expire_locks",
    "extend_lease",
    "fail_task",
    "fetch_and_lock",
    "lease_tasks",
    "release_leases",
    "renew_leases",
    "resume_session",
    "set_on_task",
]

_UNKNOWN = LeaseAnswer(LeaseAnswerKind.UNKNOWN)


def attempt_for(tables: Tables, task: ExternalTask, fence: int | None) -> TaskAttempt | None:
    """The recorded attempt of a fence, looked up only where the row itself does not tell."""
    if fence is None or fence >= task.fence:
        return None
    return tables.attempt(task.task_id, fence)


def lease_tasks(tables: Tables, operation: LeaseTasks, now_ms: InstantMs) -> tuple[ExternalTask | None, ...]:
    return tuple(
        _take(tables, tables.task(wish.task_id), TakeLease(wish.holder, wish.duration_ms), now_ms)
        for wish in operation.leases
    )


def fetch_and_lock(tables: Tables, operation: FetchAndLock, now_ms: InstantMs) -> tuple[ExternalTask, ...]:
    if operation.max_tasks < 1:
        return ()
    topics = tuple(dict.fromkeys(operation.topics))
    command = TakeLease(operation.holder, operation.duration_ms)
    found = tables.ready(topics, now_ms, operation.max_tasks)
    return tuple(leased for task in found if (leased := _take(tables, task, command, now_ms)) is not None)


def _take(tables: Tables, task: ExternalTask | None, command: TakeLease, now_ms: InstantMs) -> ExternalTask | None:
    if task is None:
        return None
    leased, _, answer = apply_lease_command(task, command, now_ms)
    if answer is not LeaseAnswerKind.DONE:
        return None
    tables.update_task(leased)
    return leased


def _apply(tables: Tables, task_id: str, fence: int, command: LeaseCommand, now_ms: InstantMs) -> LeaseAnswer:
    task = tables.task(task_id)
    if task is None:
        return _UNKNOWN
    changed, attempt, answer = apply_lease_command(task, command, now_ms, attempt_for(tables, task, fence))
    if changed is not task:
        tables.update_task(changed)
    if attempt is not None:
        tables.insert_attempt(attempt)
    return LeaseAnswer(answer, changed)


def fail_task(tables: Tables, operation: FailTask, now_ms: InstantMs) -> LeaseAnswer:
    command = Fail(
        fence=operation.fence,
        request_digest=operation.request_digest,
        message=operation.message,
        details=operation.details,
        retry_after_ms=operation.retry_after_ms,
        retries=operation.retries,
        worker_id=operation.worker_id,
        jitter=operation.jitter,
    )
    return _apply(tables, operation.task_id, operation.fence, command, now_ms)


def extend_lease(tables: Tables, operation: ExtendLease, now_ms: InstantMs) -> LeaseAnswer:
    command = Extend(operation.fence, operation.duration_ms, operation.worker_id)
    return _apply(tables, operation.task_id, operation.fence, command, now_ms)


def renew_leases(tables: Tables, operation: RenewLeases, now_ms: InstantMs) -> tuple[LeaseAnswer, ...]:
    return tuple(
        _apply(tables, lease.task_id, lease.fence, Renew(lease.fence, lease.session_id), now_ms)
        for lease in operation.leases
    )


def release_leases(tables: Tables, operation: ReleaseLeases, now_ms: InstantMs) -> tuple[LeaseAnswer, ...]:
    return tuple(
        _apply(
            tables,
            lease.task_id,
            lease.fence,
            Release(lease.fence, lease.session_id, lease.started, lease.worker_id),
            now_ms,
        )
        for lease in operation.leases
    )


def resume_session(tables: Tables, operation: ResumeSession, now_ms: InstantMs) -> Resumed:
    """Rules 10, 14 and 17: what is named moves to the new session, all else of this boot goes back to READY, unless it
    is a single try that may have been begun."""
    holder = operation.holder
    kept: list[ExternalTask] = []
    lost: list[LostLease] = []
    for task_id, fence in dict.fromkeys(operation.holding):
        answer = _apply(tables, task_id, fence, Resume(fence, holder), now_ms)
        if answer.kind is LeaseAnswerKind.DONE and answer.task is not None:
            kept.append(answer.task)
        else:
            lost.append(LostLease(task_id, fence, _reason(tables, answer, fence, now_ms)))
    kept_ids = {task.task_id for task in kept}
    released = _release_unnamed(tables, operation, kept_ids, now_ms)
    return Resumed(tuple(kept), tuple(lost), released)


def _release_unnamed(
    tables: Tables, operation: ResumeSession, kept_ids: set[str], now_ms: InstantMs
) -> tuple[ExternalTask, ...]:
    released: list[ExternalTask] = []
    begun = None if operation.begun is None else frozenset(operation.begun)
    for task in tables.leases_of(operation.holder.worker_id, operation.holder.boot_id):
        lease = task.lease
        if task.task_id in kept_ids or lease is None or lease.holder.session_no >= operation.holder.session_no:
            continue
        started = begun is None or (task.task_id, task.fence) in begun
        answer = _apply(tables, task.task_id, task.fence, Release(task.fence, None, started), now_ms)
        if answer.kind is LeaseAnswerKind.DONE and answer.task is not None and answer.task.state is TaskState.READY:
            released.append(answer.task)
    return tuple(released)


_REASONS = {
    AttemptEnd.FAILED: "finished",
    AttemptEnd.BPMN_ERROR: "finished",
    AttemptEnd.EXPIRED: "expired",
    AttemptEnd.RELEASED: "lost",
    AttemptEnd.REVOKED: "cancelled",
}


def _reason(tables: Tables, answer: LeaseAnswer, fence: int, now_ms: InstantMs) -> str:
    """Why a lease that a worker names is not its own any more."""
    task = answer.task
    if answer.kind is LeaseAnswerKind.ALREADY_FINISHED:
        return "finished"
    if answer.kind is LeaseAnswerKind.CANCELLED:
        return "cancelled"
    if task is None:
        return "lost"
    attempt = tables.attempt(task.task_id, fence)
    if attempt is not None:
        return _REASONS[attempt.end]
    is_its_lock = fence == task.fence and task.state is TaskState.LOCKED and task.lease is not None
    return "expired" if is_its_lock and task.lease is not None and task.lease.until_ms <= now_ms else "lost"


def expire_locks(tables: Tables, limit: int, now_ms: InstantMs) -> ExpiredLocks:
    returned: list[ExternalTask] = []
    for task in tables.past_due(now_ms, limit, needs_instance=False):
        answer = _apply(tables, task.task_id, task.fence, Expire(), now_ms)
        assert answer.kind is LeaseAnswerKind.DONE, f"the store's query and the lease machine differ on {task}"
        assert answer.task is not None
        returned.append(answer.task)
    failing = tables.past_due(now_ms, limit, needs_instance=True)
    return ExpiredLocks(tuple(returned), tuple(failing), tables.next_expiry(now_ms), now_ms)


def set_on_task(tables: Tables, operation: SetTaskRetries | SetTaskPriority, now_ms: InstantMs) -> LeaseAnswer:
    task = tables.task(operation.task_id)
    if task is None:
        return _UNKNOWN
    if isinstance(operation, SetTaskRetries):
        changed, answer = set_retries(task, operation.retries, now_ms)
    else:
        changed, answer = set_priority(task, operation.priority, now_ms)
    if changed is not task:
        tables.update_task(changed)
    if changed.priority != task.priority:
        tables.rewrite_priority(changed)
    return LeaseAnswer(answer, changed)


def check_repeat(tables: Tables, operation: CheckRepeat) -> LeaseAnswer:
    """Rules 12 and 13, without a live lease in sight."""
    task = tables.task(operation.task_id)
    if task is None:
        return _UNKNOWN
    recorded = recorded_outcome(task, operation.fence, attempt_for(tables, task, operation.fence))
    is_same = (
        recorded is not None and recorded.kind is operation.kind and recorded.request_digest == operation.request_digest
    )
    if is_same or _repeats_newest_attempt(tables, operation):
        return LeaseAnswer(LeaseAnswerKind.REPEATED, task)
    if recorded is not None:
        return LeaseAnswer(LeaseAnswerKind.ALREADY_FINISHED, task)
    is_cancelled = task.state is TaskState.CANCELLED and operation.fence == task.fence
    return LeaseAnswer(LeaseAnswerKind.CANCELLED if is_cancelled else LeaseAnswerKind.LEASE_LOST, task)


def _repeats_newest_attempt(tables: Tables, operation: CheckRepeat) -> bool:
    if operation.worker_id is None or operation.kind is not OutcomeKind.FAIL:
        return False
    newest = tables.newest_attempt(operation.task_id, operation.worker_id)
    return newest is not None and newest.end is AttemptEnd.FAILED and newest.request_digest == operation.request_digest
