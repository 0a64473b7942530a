"""The life of an external task: one literal transition table, and pure functions that apply it to a row.

Every store decides with `apply_lease_command`; what the table does not list is refused and changes nothing. The order
of the checks (consistency.md 12): the recorded outcome of this fence, then the fence, then the state, then the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from operator import attrgetter
from typing import TypeAlias, assert_never

import attrs

from stellwerk.core.external_task import (
    AttemptEnd,
    ExternalTask,
    Holder,
    Lease,
    OutcomeKind,
    TaskAttempt,
    TaskOutcome,
    TaskState,
)
from stellwerk.core.retry import backoff_ms
from stellwerk.instants import InstantMs
from stellwerk.values import frozen

__all__ = [
    "TRANSITIONS",
    "Cancel",
    "Drain",
    "End",
    "Expire",
    "Extend",
    "Fail",
    "LeaseAnswerKind",
    "LeaseCommand",
    "LeaseCommandKind",
    "Release",
    "Renew",
    "Requeue",
    "Resume",
    "TakeLease",
    "apply_lease_command",
    "command_kind",
    "expiry_needs_instance",
    "recorded_outcome",
]


class LeaseAnswerKind(Enum):
    DONE = "done"
    REPEATED = "repeated"
    """The identical request was done before; the same answer as then."""
    NEEDS_INSTANCE = "needs_instance"
    """A last failure: only the instance may end the task (consistency.md 8)."""
    LEASE_LOST = "lease_lost"
    """Stale fence, expired lock, or not locked at all."""
    ALREADY_FINISHED = "already_finished"
    """This fence ended with another request."""
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class LeaseCommandKind(Enum):
    LEASE = "lease"
    COMPLETE = "complete"
    BPMN_ERROR = "bpmn error"
    FAIL = "fail"
    LAST_FAIL = "last failure"
    """By the instance: no retries are left, or the task is draining."""
    END = "end"
    """By the instance, without a request of the worker: expiry, or a task that cannot be delivered."""
    END_DRAINED = "end drained"
    GIVE_UP = "give up"
    """By an operator, whether somebody has the task or not."""
    EXTEND = "extend"
    RENEW = "renew"
    RELEASE = "release"
    RESUME = "resume"
    EXPIRE = "expire"
    CANCEL = "cancel"
    DRAIN = "drain"
    REQUEUE = "requeue"

    # Members are singletons; `Enum` hashes their names anew each time, and here is the hot path.
    __hash__ = object.__hash__


_Kind = LeaseCommandKind
_READY, _LOCKED, _COMPLETED = TaskState.READY, TaskState.LOCKED, TaskState.COMPLETED
_FAILED, _EXPIRED, _CANCELLED = TaskState.FAILED, TaskState.EXPIRED, TaskState.CANCELLED

TRANSITIONS: Mapping[TaskState, Mapping[LeaseCommandKind, tuple[TaskState, ...]]] = {
    _READY: {
        _Kind.LEASE: (_LOCKED,),
        _Kind.DRAIN: (_READY,),
        _Kind.END_DRAINED: (_CANCELLED,),
        _Kind.GIVE_UP: (_FAILED,),
        _Kind.CANCEL: (_CANCELLED,),
    },
    _LOCKED: {
        _Kind.COMPLETE: (_COMPLETED,),
        _Kind.BPMN_ERROR: (_COMPLETED, _FAILED, _CANCELLED),
        _Kind.FAIL: (_READY,),
        _Kind.LAST_FAIL: (_FAILED, _CANCELLED),
        _Kind.END: (_FAILED, _EXPIRED, _CANCELLED),
        _Kind.GIVE_UP: (_FAILED,),
        _Kind.EXTEND: (_LOCKED,),
        _Kind.RENEW: (_LOCKED,),
        _Kind.RELEASE: (_READY, _LOCKED),
        _Kind.RESUME: (_LOCKED,),
        _Kind.EXPIRE: (_READY,),
        _Kind.DRAIN: (_LOCKED,),
        _Kind.CANCEL: (_CANCELLED,),
    },
    _COMPLETED: {},
    _FAILED: {
        _Kind.REQUEUE: (_READY,),
        _Kind.CANCEL: (_CANCELLED,),
    },
    _EXPIRED: {
        _Kind.REQUEUE: (_READY,),
        _Kind.CANCEL: (_CANCELLED,),
    },
    _CANCELLED: {},
}
"""From each state, by each command, to these states. What is not here is refused and changes nothing."""


# --- commands ------------------------------------------------------------------------------------------------------


@frozen
class TakeLease:
    holder: Holder
    duration_ms: int


@frozen(kw_only=True)
class End:
    """End the task, in the same transaction in which its instance steps. ``fence`` None: no lease is asked for; it has
    none and drains (CANCELLED), or an operator gives it up (FAILED)."""

    fence: int | None
    outcome: OutcomeKind | None
    """None: not a request of the worker."""
    final_state: TaskState
    request_digest: str | None = None
    message: str | None = None
    details: bytes | None = None
    worker_id: str | None = None
    worker_gives_up: bool = False
    """The worker itself said that no retries are left."""
    only_past_due: bool = False
    """Because its lock ran out: not while the lease is live."""


@frozen(kw_only=True)
class Fail:
    fence: int
    request_digest: str
    message: str
    details: bytes | None = None
    retry_after_ms: int | None = None
    retries: int | None = None
    worker_id: str | None = None
    jitter: float = 0.0


@frozen
class Extend:
    fence: int
    duration_ms: int
    worker_id: str | None = None


@frozen
class Renew:
    fence: int
    session_id: str


@frozen
class Release:
    fence: int
    session_id: str | None
    """Only from this session; None: the worker itself releases."""
    started: bool
    worker_id: str | None = None


@frozen
class Resume:
    """Move the lease to a later session of the same worker process."""

    fence: int
    holder: Holder


@frozen
class Expire:
    """The sweep found the lock past due."""


@frozen
class Cancel:
    """The process does not need the task any more."""


@frozen
class Drain:
    """The task's scope fails: wait for the lease, then end it."""


@frozen
class Requeue:
    """The incident of the task was resolved."""

    retries: int
    variables: bytes


LeaseCommand: TypeAlias = TakeLease | End | Fail | Extend | Renew | Release | Resume | Expire | Cancel | Drain | Requeue

_KINDS: Mapping[type, LeaseCommandKind] = {
    TakeLease: _Kind.LEASE,
    Fail: _Kind.FAIL,
    Extend: _Kind.EXTEND,
    Renew: _Kind.RENEW,
    Release: _Kind.RELEASE,
    Resume: _Kind.RESUME,
    Expire: _Kind.EXPIRE,
    Cancel: _Kind.CANCEL,
    Drain: _Kind.DRAIN,
    Requeue: _Kind.REQUEUE,
}
_ENDINGS: Mapping[OutcomeKind | None, LeaseCommandKind] = {
    OutcomeKind.COMPLETE: _Kind.COMPLETE,
    OutcomeKind.BPMN_ERROR: _Kind.BPMN_ERROR,
    OutcomeKind.FAIL: _Kind.LAST_FAIL,
    None: _Kind.END,
}
_OUTCOMES: Mapping[LeaseCommandKind, OutcomeKind] = {
    _Kind.COMPLETE: OutcomeKind.COMPLETE,
    _Kind.BPMN_ERROR: OutcomeKind.BPMN_ERROR,
    _Kind.FAIL: OutcomeKind.FAIL,
    _Kind.LAST_FAIL: OutcomeKind.FAIL,
}
_NEEDS_LIVE_LEASE = frozenset(
    {
        _Kind.COMPLETE,
        _Kind.BPMN_ERROR,
        _Kind.FAIL,
        _Kind.LAST_FAIL,
        _Kind.EXTEND,
        _Kind.RENEW,
        _Kind.RELEASE,
        _Kind.RESUME,
    }
)


def command_kind(command: LeaseCommand) -> LeaseCommandKind:
    if isinstance(command, End):
        if command.fence is None:
            return _Kind.GIVE_UP if command.final_state is _FAILED else _Kind.END_DRAINED
        return _ENDINGS[command.outcome]
    return _KINDS[type(command)]


# --- the decision --------------------------------------------------------------------------------------------------


def apply_lease_command(
    task: ExternalTask, command: LeaseCommand, now_ms: InstantMs, attempt: TaskAttempt | None = None
) -> tuple[ExternalTask, TaskAttempt | None, LeaseAnswerKind]:
    """The row after the command, the attempt that ended by it, and the answer.

    `attempt` is the recorded attempt of the command's fence, needed only where that is not the row's newest fence.
    Unless the answer is DONE, the row is returned as it was. The answer to a last `Fail` and to an `Expire` that only
    the instance may settle is NEEDS_INSTANCE.
    """
    kind = command_kind(command)
    refusal = _refusal(task, command, kind, now_ms, attempt)
    if refusal is not None:
        return task, None, refusal
    changed, ended = _apply(task, command, now_ms)
    assert changed.state in TRANSITIONS[task.state][kind], f"{task.state} -{kind}-> {changed.state}"
    return changed, ended, LeaseAnswerKind.DONE


def recorded_outcome(task: ExternalTask, fence: int, attempt: TaskAttempt | None) -> TaskOutcome | None:
    """How the worker ended the lease with this fence, if it did: from the row, else from the attempt."""
    if task.outcome is not None and fence == task.fence:
        return task.outcome
    if attempt is None or attempt.fence != fence or attempt.request_digest is None:
        return None
    kind = OutcomeKind.BPMN_ERROR if attempt.end is AttemptEnd.BPMN_ERROR else OutcomeKind.FAIL
    return TaskOutcome(kind, attempt.request_digest)


def _refusal(
    task: ExternalTask,
    command: LeaseCommand,
    kind: LeaseCommandKind,
    now_ms: InstantMs,
    attempt: TaskAttempt | None,
) -> LeaseAnswerKind | None:
    fence: int | None = getattr(command, "fence", None)
    if fence is not None:
        recorded = recorded_outcome(task, fence, attempt)
        if recorded is not None:
            return _answer_to_repeat(recorded, command, kind)
        if fence != task.fence:
            return LeaseAnswerKind.LEASE_LOST
    if kind not in TRANSITIONS[task.state]:
        return LeaseAnswerKind.CANCELLED if task.state is _CANCELLED else LeaseAnswerKind.LEASE_LOST
    if kind in _NEEDS_LIVE_LEASE and not _is_live(task, now_ms):
        return LeaseAnswerKind.LEASE_LOST
    return _unmet_condition(task, command, now_ms)


def _answer_to_repeat(recorded: TaskOutcome, command: LeaseCommand, kind: LeaseCommandKind) -> LeaseAnswerKind:
    digest: str | None = getattr(command, "request_digest", None)
    is_same = recorded.kind is _OUTCOMES.get(kind) and recorded.request_digest == digest
    return LeaseAnswerKind.REPEATED if is_same else LeaseAnswerKind.ALREADY_FINISHED


def _is_live(task: ExternalTask, now_ms: InstantMs) -> bool:
    return task.lease is not None and task.lease.until_ms > now_ms


def _unmet_condition(task: ExternalTask, command: LeaseCommand, now_ms: InstantMs) -> LeaseAnswerKind | None:
    """What else each command asks for."""
    lost = LeaseAnswerKind.LEASE_LOST
    match command:
        case TakeLease():
            return lost if task.draining or _is_backing_off(task, now_ms) else None
        case End():
            return None if _may_end(task, command, now_ms) else lost
        case Fail():
            if _is_foreign(task, command.worker_id):
                return lost
            return LeaseAnswerKind.NEEDS_INSTANCE if _is_last_failure(task, command) else None
        case Renew():
            return None if _holder(task).session_id == command.session_id else lost
        case Release():
            is_his = command.session_id in (None, _holder(task).session_id)
            return None if is_his and not _is_foreign(task, command.worker_id) else lost
        case Extend():
            return lost if _is_foreign(task, command.worker_id) else None
        case Resume():
            return None if _may_resume(_holder(task), command.holder) else lost
        case Expire():
            if _is_live(task, now_ms):
                return lost
            return LeaseAnswerKind.NEEDS_INSTANCE if expiry_needs_instance(task) else None
        case Cancel() | Drain() | Requeue():
            return None
        case _:
            assert_never(command)


def _is_backing_off(task: ExternalTask, now_ms: InstantMs) -> bool:
    """One that was available from the moment in which it became READY stays so, wherever the clock is set."""
    return task.available_at_ms > max(now_ms, task.updated_at_ms)


def _holder(task: ExternalTask) -> Holder:
    assert task.lease is not None, f"{task.task_id} is LOCKED without a lease"
    return task.lease.holder


def _is_foreign(task: ExternalTask, worker_id: str | None) -> bool:
    return worker_id is not None and worker_id != _holder(task).worker_id


def _may_end(task: ExternalTask, command: End, now_ms: InstantMs) -> bool:
    if command.fence is None:
        return task.draining is (command_kind(command) is _Kind.END_DRAINED)
    if command.final_state not in TRANSITIONS[task.state][command_kind(command)]:
        return False
    if command.outcome is None:
        needs_expiry = command.only_past_due or command.final_state is _EXPIRED
        return not (needs_expiry and _is_live(task, now_ms))
    if _is_foreign(task, command.worker_id):
        return False
    if command.outcome is OutcomeKind.FAIL:
        return task.retries_left <= 1 or task.draining or command.worker_gives_up
    return True


def _is_last_failure(task: ExternalTask, command: Fail) -> bool:
    left = task.retries_left - 1 if command.retries is None else command.retries
    return left < 1 or task.draining


def _may_resume(old: Holder, new: Holder) -> bool:
    return old.worker_id == new.worker_id and old.boot_id == new.boot_id and old.session_no < new.session_no


def expiry_needs_instance(task: ExternalTask) -> bool:
    """One more expiry ends this task for good: single-try, the expiry limit is reached, or it drains."""
    reaches_limit = 0 < task.lock_expiries_max <= task.lock_expiries + 1
    return task.single_try or task.draining or reaches_limit


# --- what changes --------------------------------------------------------------------------------------------------


def _apply(task: ExternalTask, command: LeaseCommand, now_ms: InstantMs) -> tuple[ExternalTask, TaskAttempt | None]:
    match command:
        case TakeLease():
            return _lease(task, command, now_ms), None
        case End():
            return _end(task, command, now_ms)
        case Fail():
            return _fail(task, command, now_ms)
        case Extend():
            return _with_lease(task, now_ms, until_ms=now_ms + command.duration_ms), None
        case Renew():
            return _renew(task, now_ms), None
        case Release():
            return _release(task, command, now_ms)
        case Resume():
            return _with_lease(task, now_ms, holder=command.holder), None
        case Expire():
            return _expire(task, now_ms)
        case Cancel():
            return _cancel(task, now_ms)
        case Drain():
            return _changed(task, draining=True, updated_at_ms=now_ms), None
        case Requeue():
            return _requeue(task, command, now_ms), None
        case _:
            assert_never(command)


def _lease(task: ExternalTask, command: TakeLease, now_ms: InstantMs) -> ExternalTask:
    duration_ms = command.duration_ms if task.lock_duration_ms is None else task.lock_duration_ms
    # A fence taken from the clock still grows after the database was restored from a backup (consistency.md 11).
    fence = max(task.fence + 1, now_ms)
    return _changed(
        task,
        state=_LOCKED,
        fence=fence,
        lease=Lease(command.holder, fence, now_ms, now_ms + duration_ms, duration_ms),
        attempt=task.attempt + 1,
        outcome=None,
        updated_at_ms=now_ms,
    )


def _end(task: ExternalTask, command: End, now_ms: InstantMs) -> tuple[ExternalTask, TaskAttempt | None]:
    if command.fence is None:
        return _end_without_lease(task, command, now_ms)
    outcome = None
    if command.outcome is not None and command.request_digest is not None:
        outcome = TaskOutcome(command.outcome, command.request_digest)
    is_failure = command.outcome in (None, OutcomeKind.FAIL)
    is_expiry = command.outcome is None and not _is_live(task, now_ms)
    changed = _changed(
        task,
        state=command.final_state,
        outcome=outcome,
        retries_left=0 if command.outcome is OutcomeKind.FAIL else task.retries_left,
        lock_expiries=task.lock_expiries + is_expiry,
        error_message=command.message if is_failure else task.error_message,
        updated_at_ms=now_ms,
    )
    return changed, _attempt_of_end(task, command, now_ms, is_expiry)


def _end_without_lease(task: ExternalTask, command: End, now_ms: InstantMs) -> tuple[ExternalTask, TaskAttempt | None]:
    if command_kind(command) is _Kind.END_DRAINED:
        return _changed(task, state=_CANCELLED, updated_at_ms=now_ms), None
    ended = _attempt(task, now_ms, AttemptEnd.REVOKED) if task.state is _LOCKED else None
    changed = _changed(
        task, state=command.final_state, retries_left=0, error_message=command.message, updated_at_ms=now_ms
    )
    return changed, ended


def _attempt_of_end(task: ExternalTask, command: End, now_ms: InstantMs, is_expiry: bool) -> TaskAttempt | None:
    match command.outcome:
        case OutcomeKind.COMPLETE:
            return None
        case OutcomeKind.BPMN_ERROR:
            end = AttemptEnd.BPMN_ERROR
        case OutcomeKind.FAIL:
            end = AttemptEnd.FAILED
        case None:
            end = AttemptEnd.EXPIRED if is_expiry else AttemptEnd.FAILED
        case _:
            assert_never(command.outcome)
    return _attempt(task, now_ms, end, command.request_digest, command.message, command.details)


def _fail(task: ExternalTask, command: Fail, now_ms: InstantMs) -> tuple[ExternalTask, TaskAttempt]:
    left = task.retries_left - 1 if command.retries is None else command.retries
    wait_ms = command.retry_after_ms
    if wait_ms is None:
        wait_ms = backoff_ms(task.retries - left, task.retry_backoffs_ms, command.jitter)
    changed = _changed(
        task,
        state=_READY,
        retries_left=left,
        available_at_ms=now_ms + wait_ms,
        outcome=TaskOutcome(OutcomeKind.FAIL, command.request_digest),
        error_message=command.message,
        updated_at_ms=now_ms,
    )
    ended = _attempt(task, now_ms, AttemptEnd.FAILED, command.request_digest, command.message, command.details)
    return changed, ended


def _renew(task: ExternalTask, now_ms: InstantMs) -> ExternalTask:
    lease = task.lease
    assert lease is not None
    # A renewal never takes back what an explicit extension gave.
    return _with_lease(task, now_ms, until_ms=max(lease.until_ms, now_ms + lease.duration_ms))


def _release(task: ExternalTask, command: Release, now_ms: InstantMs) -> tuple[ExternalTask, TaskAttempt | None]:
    if task.single_try and command.started:
        return task, None  # its handler may have had effects: only the expiry may end it (consistency.md 14)
    changed = _changed(task, state=_READY, available_at_ms=now_ms, updated_at_ms=now_ms)
    return changed, _attempt(task, now_ms, AttemptEnd.RELEASED)


def _expire(task: ExternalTask, now_ms: InstantMs) -> tuple[ExternalTask, TaskAttempt]:
    changed = _changed(
        task, state=_READY, lock_expiries=task.lock_expiries + 1, available_at_ms=now_ms, updated_at_ms=now_ms
    )
    return changed, _attempt(task, now_ms, AttemptEnd.EXPIRED)


def _cancel(task: ExternalTask, now_ms: InstantMs) -> tuple[ExternalTask, TaskAttempt | None]:
    ended = _attempt(task, now_ms, AttemptEnd.REVOKED) if task.state is _LOCKED else None
    return _changed(task, state=_CANCELLED, updated_at_ms=now_ms), ended


def _requeue(task: ExternalTask, command: Requeue, now_ms: InstantMs) -> ExternalTask:
    return _changed(
        task,
        state=_READY,
        variables=command.variables,
        retries_left=max(command.retries, 1),
        lock_expiries=0,
        available_at_ms=now_ms,
        updated_at_ms=now_ms,
    )


def _with_lease(
    task: ExternalTask, now_ms: InstantMs, *, until_ms: InstantMs | None = None, holder: Holder | None = None
) -> ExternalTask:
    old = task.lease
    assert old is not None
    lease = Lease(
        old.holder if holder is None else holder,
        old.fence,
        old.since_ms,
        old.until_ms if until_ms is None else until_ms,
        old.duration_ms,
    )
    return _changed(task, lease=lease, updated_at_ms=now_ms)


def _attempt(
    task: ExternalTask,
    now_ms: InstantMs,
    end: AttemptEnd,
    request_digest: str | None = None,
    message: str | None = None,
    details: bytes | None = None,
) -> TaskAttempt:
    lease = task.lease
    assert lease is not None
    return TaskAttempt(
        task_id=task.task_id,
        fence=lease.fence,
        worker_id=lease.holder.worker_id,
        since_ms=lease.since_ms,
        ended_at_ms=now_ms,
        end=end,
        request_digest=request_digest,
        message=message,
        details=details,
    )


_contents_of = attrgetter(*(field.name for field in attrs.fields(ExternalTask)))


def _changed(task: ExternalTask, **changes: object) -> ExternalTask:
    """`attrs.evolve`, at a tenth of its cost: this is the hottest function of a store."""
    changed = ExternalTask(*_contents_of(task))
    for name, value in changes.items():
        setattr(changed, name, value)  # nobody else has it yet
    return changed
