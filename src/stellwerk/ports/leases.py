"""Operations on leases: they change rows of tasks alone, never an instance's version."""

from __future__ import annotations

from stellwerk.core.external_task import ExternalTask, Holder, OutcomeKind
from stellwerk.core.lease import LeaseAnswerKind
from stellwerk.instants import InstantMs
from stellwerk.values import frozen

__all__ = [
    "CheckRepeat",
    "ExpireLocks",
    "ExpiredLocks",
    "ExtendLease",
    "FailTask",
    "FetchAndLock",
    "LeaseAnswer",
    "LeaseAnswerKind",
    "LeaseTasks",
    "LostLease",
    "ReleaseLease",
    "ReleaseLeases",
    "RenewLease",
    "RenewLeases",
    "ResumeSession",
    "Resumed",
    "SetTaskPriority",
    "SetTaskRetries",
    "TaskLease",
]


@frozen
class LeaseAnswer:
    kind: LeaseAnswerKind
    task: ExternalTask | None = None
    """The row after the operation, where there is one."""


@frozen
class TaskLease:
    """A wish to lease one READY task by its key."""

    task_id: str
    holder: Holder
    duration_ms: int


@frozen
class LeaseTasks:
    """→ ``tuple[ExternalTask | None, ...]``, in the order of the wishes; None: not READY any more."""

    leases: tuple[TaskLease, ...]


@frozen
class FetchAndLock:
    """Requirement L4: schedule, lock and assign in one step; priority descending, then created, then id ascending.

    → ``tuple[ExternalTask, ...]``.
    """

    holder: Holder
    topics: tuple[str, ...]
    max_tasks: int
    duration_ms: int


@frozen
class FailTask:
    """A technical failure. → `LeaseAnswer`; NEEDS_INSTANCE when no retries are left, and then nothing was written."""

    task_id: str
    fence: int
    request_digest: str
    message: str
    details: bytes | None = None
    retry_after_ms: int | None = None
    retries: int | None = None
    """An explicit number of attempts left, obeyed for foreign clients."""
    worker_id: str | None = None
    jitter: float = 0.0
    """In [0, 1), drawn by the caller: spreads the back-off."""


@frozen
class ExtendLease:
    """→ `LeaseAnswer`."""

    task_id: str
    fence: int
    duration_ms: int
    worker_id: str | None = None
    """Only where this worker holds it; None: whoever does."""


@frozen
class RenewLease:
    task_id: str
    fence: int
    session_id: str


@frozen
class RenewLeases:
    """Renew by each lease's own duration, where fence and session are still the row's and the lock has not run out.

    → ``tuple[LeaseAnswer, ...]`` in order; DONE carries the row with its new lease.
    """

    leases: tuple[RenewLease, ...]


@frozen
class ReleaseLease:
    task_id: str
    fence: int
    session_id: str | None
    """Set when the engine takes the lease back: only from that session. None: the worker itself releases."""
    started: bool
    """True: a single-try task stays LOCKED until it expires (consistency.md 14)."""
    worker_id: str | None = None
    """As in `ExtendLease`."""


@frozen
class ReleaseLeases:
    """Back to READY without using a retry. → ``tuple[LeaseAnswer, ...]``; DONE carries the row (READY, or still LOCKED
    for a started single-try task; a draining one stays as it is, READY, for `EndDraining`)."""

    leases: tuple[ReleaseLease, ...]


@frozen
class ResumeSession:
    """A worker process says hello (consistency.md 10, 16, 17). → `Resumed`.

    Leases that it names, of the same boot and of a lower session_no, move to the new session. All other leases of this
    boot are released, those of single-try tasks only if they are surely not begun: the others wait for their expiry
    (rule 14). ``holding`` and ``begun`` are (task_id, fence).
    """

    holder: Holder
    holding: tuple[tuple[str, int], ...]
    begun: tuple[tuple[str, int], ...] | None = None
    """Single-try leases that may have been begun, though they are not held any more; None: any may have been."""


@frozen
class LostLease:
    task_id: str
    fence: int
    reason: str
    """``cancelled``, ``expired``, ``lost`` or ``finished``."""


@frozen
class Resumed:
    kept: tuple[ExternalTask, ...]
    lost: tuple[LostLease, ...]
    released: tuple[ExternalTask, ...]
    """READY again."""


@frozen
class ExpireLocks:
    """Reclaim up to `limit` locks that have run out. → `ExpiredLocks`."""

    limit: int


@frozen
class ExpiredLocks:
    returned: tuple[ExternalTask, ...]
    """READY again (their `lease` is the one that expired)."""
    failing: tuple[ExternalTask, ...]
    """Still LOCKED and past due: single-try, expiry limit reached, or draining. The instance must end them."""
    next_expiry_ms: InstantMs | None
    now_ms: InstantMs


@frozen
class CheckRepeat:
    """What to answer to a request for a task that its instance does not have open. → `LeaseAnswer`, never DONE."""

    task_id: str
    fence: int
    kind: OutcomeKind
    request_digest: str
    worker_id: str | None = None


@frozen
class SetTaskRetries:
    """By an operator, on a task that is READY or LOCKED: so many attempts are left. No lease changes.

    → `LeaseAnswer`: DONE, UNKNOWN, ALREADY_FINISHED or CANCELLED.
    """

    task_id: str
    retries: int


@frozen
class SetTaskPriority:
    """As `SetTaskRetries`. Of a task that is LOCKED it counts from its next attempt on."""

    task_id: str
    priority: int
