"""What the actors need from the world and what the stores give: protocols and the values that pass through them.

A store is one writer: `Store.transact` makes a batch of operations durable in one transaction, in the given order, each
operation all or nothing and isolated from its neighbours. The store's clock alone judges leases; it is read once for
each transaction. Reads are separate and see only what is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import attrs

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask, Holder, OutcomeKind, TaskAttempt
from stellwerk.core.facts import Fact
from stellwerk.core.lease import LeaseAnswerKind
from stellwerk.instants import InstantMs
from stellwerk.values import frozen

__all__ = [
    "BirthLease",
    "Changeset",
    "CheckRepeat",
    "Clock",
    "Committed",
    "DefinitionRow",
    "DeployDefinitions",
    "Deployed",
    "DropMessages",
    "DueTimer",
    "Entropy",
    "ExpireLocks",
    "ExpiredLocks",
    "ExtendLease",
    "FailTask",
    "FetchAndLock",
    "HistoryStep",
    "InboxRow",
    "InstanceFilter",
    "InstanceSummary",
    "LeaseAnswer",
    "LeaseAnswerKind",
    "LeaseTasks",
    "Log",
    "LostLease",
    "MatchedMessage",
    "MessageRow",
    "NewInstance",
    "Operation",
    "Outcome",
    "PausePoint",
    "Ports",
    "PruneInstances",
    "Pruned",
    "PublishMessage",
    "ReadyScan",
    "ReadyTask",
    "RefusedChangeset",
    "RefusedGuard",
    "ReleaseLease",
    "ReleaseLeases",
    "RenewLease",
    "RenewLeases",
    "ResumeSession",
    "Resumed",
    "RevokedLease",
    "Store",
    "StoredInstance",
    "TaskEnding",
    "TaskLease",
    "ThreadRunner",
    "TopicBacklog",
]

T = TypeVar("T")


# --- the store: changesets -----------------------------------------------------------------------------------------


@frozen
class NewInstance:
    """The ``instances`` row of an instance that starts."""

    definition_id: str
    process_key: str
    business_key: str | None


@frozen
class TaskEnding:
    """The lease guard of a step (consistency.md 1, 12): the request must be one that the lease machine accepts now.

    `final_state` is what the row becomes: COMPLETED, FAILED or EXPIRED; CANCELLED for a draining task that failed.
    Where ``fence`` is None no lease is asked for (a draining task that is READY).
    """

    task_id: str
    fence: int | None
    final_state: str
    outcome: OutcomeKind | None
    """None: not a request of the worker (expiry, drain)."""
    request_digest: str | None
    message: str | None = None
    details: bytes | None = None
    worker_id: str | None = None
    worker_gives_up: bool = False
    """For FAIL: the worker itself said that no attempts are left (`FailTask.retries` 0)."""


@frozen
class BirthLease:
    """Create this new task already leased (consistency.md 10)."""

    task_id: str
    holder: Holder
    duration_ms: int


@frozen
class InboxRow:
    """An effect on another instance: one row for each (instance_id, dedupe_key), whoever sends it how often."""

    instance_id: str
    dedupe_key: str
    command: bytes
    """JSON text."""


@frozen(kw_only=True)
class Changeset:
    """One step of one instance. Applied only if every guard holds: version, endings, timers, subscriptions, messages,
    incidents and inbox rows. Then the version grows by one and the facts become one history row."""

    instance_id: str
    expected_version: int
    """0: the instance must not exist, and `new_instance` is set."""
    at_ms: InstantMs
    """Wall clock, for people."""
    facts: tuple[Fact, ...]
    changes: RowChanges
    new_instance: NewInstance | None = None
    endings: tuple[TaskEnding, ...] = ()
    birth_leases: tuple[BirthLease, ...] = ()
    messages_consumed: tuple[str, ...] = ()
    inbox_sent: tuple[InboxRow, ...] = ()
    inbox_consumed: tuple[str, ...] = ()
    """Dedupe keys of this instance's own rows."""
    snapshot: bytes | None = None
    """The folded state after this step, now and then, so that a reload need not fold everything."""


@frozen
class RevokedLease:
    """A lease ended by a cancelling step, as the cancelling statement returned it (consistency.md 18)."""

    task_id: str
    topic: str
    fence: int
    holder: Holder


@frozen
class Committed:
    """The step is durable."""

    version: int
    revoked: tuple[RevokedLease, ...] = ()
    born_leased: tuple[ExternalTask, ...] = ()
    drained_ready: tuple[str, ...] = ()
    """Tasks to drain that have no lease: `EndDraining` must follow."""
    now_ms: InstantMs = 0
    """The store's lease clock in that transaction."""


class RefusedGuard(Enum):
    VERSION = "version"
    LEASE = "lease"
    TIMER = "timer"
    SUBSCRIPTION = "subscription"
    MESSAGE = "message"
    INCIDENT = "incident"
    INBOX = "inbox"
    DATA = "data"
    """The store could not write this changeset (a data error); its neighbours are untouched."""


@frozen
class RefusedChangeset:
    """Nothing of it was written."""

    guard: RefusedGuard
    subject: str
    """The id of the row whose guard failed."""
    answer: LeaseAnswer | None = None
    """For LEASE: what the worker is told."""


# --- the store: leases ---------------------------------------------------------------------------------------------


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


@frozen
class ReleaseLeases:
    """Back to READY without using a retry. → ``tuple[LeaseAnswer, ...]``; DONE carries the row (READY, or still LOCKED
    for a started single-try task; a draining one stays as it is, READY, for `EndDraining`)."""

    leases: tuple[ReleaseLease, ...]


@frozen
class ResumeSession:
    """A worker process says hello (consistency.md 10, 16, 17). → `Resumed`.

    Leases that it names, of the same boot and of a lower session_no, move to the new session. All other leases of this
    boot are released (single-try too, rule 14). ``holding`` is (task_id, fence).
    """

    holder: Holder
    holding: tuple[tuple[str, int], ...]


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


# --- the store: definitions and messages ---------------------------------------------------------------------------


@frozen
class DefinitionRow:
    """A deployed process. ``definition_id`` is ``key:version``."""

    key: str
    name: str | None
    digest: str
    """SHA-256 of the XML: the same text again is the same version."""
    xml: bytes = attrs.field(repr=False)
    deployed_at_ms: InstantMs
    start_messages: tuple[str, ...] = ()
    """Names of message start events: their subscriptions switch to this version in the deploying transaction."""
    failure_policy: str | None = None
    adopt_java: bool = False
    """Java classes and beans became topics: the file must be read again in the same way."""
    version: int = 0

    @property
    def definition_id(self) -> str:
        return f"{self.key}:{self.version}"


@frozen
class DeployDefinitions:
    """All or none (consistency.md 7). → `Deployed`."""

    definitions: tuple[DefinitionRow, ...]


@frozen
class Deployed:
    definitions: tuple[DefinitionRow, ...]
    """With their versions."""
    unchanged: tuple[str, ...]
    """Keys whose newest version already had this digest."""


@frozen
class MessageRow:
    """A published message, kept until it is correlated or its time to live ends."""

    message_id: str
    name: str
    key: str
    variables: bytes
    published_at_ms: InstantMs
    expires_at_ms: InstantMs


@frozen
class PublishMessage:
    """→ bool: False when that message_id was published before."""

    message: MessageRow


@frozen
class DropMessages:
    """Drop messages whose time to live ended before `now_ms` (wall clock). → int: how many."""

    now_ms: InstantMs


@frozen
class PruneInstances:
    """Delete instances that ended (COMPLETED, FAILED or CANCELLED) before `ended_before_ms` (wall clock), with all that
    belongs to them (history, snapshots, tasks, attempts, rows of any kind), the longest ended first. → `Pruned`.

    Running instances are never touched. A start or message whose request_id is repeated later than that is new again.
    """

    ended_before_ms: InstantMs
    limit: int
    """At most so many instances: a large prune is many small transactions."""


@frozen
class Pruned:
    instances: int
    """0: there are no more."""


Operation: TypeAlias = (
    Changeset
    | LeaseTasks
    | FetchAndLock
    | FailTask
    | ExtendLease
    | RenewLeases
    | ReleaseLeases
    | ResumeSession
    | ExpireLocks
    | CheckRepeat
    | DeployDefinitions
    | PublishMessage
    | DropMessages
    | PruneInstances
)

Outcome: TypeAlias = object
"""What an operation gives, as its docstring says; a `StellwerkError` value where that one could not be done."""


# --- the store: reads ----------------------------------------------------------------------------------------------


@frozen
class HistoryStep:
    version: int
    at_ms: InstantMs
    facts: tuple[Fact, ...]


@frozen
class StoredInstance:
    """What an actor needs to come back: the newest snapshot (if any) and the steps after it."""

    version: int
    definition_id: str
    status: str
    snapshot: bytes | None
    steps: tuple[HistoryStep, ...]


@frozen
class InstanceSummary:
    instance_id: str
    definition_id: str
    process_key: str
    business_key: str | None
    status: str
    version: int
    started_at_ms: InstantMs
    ended_at_ms: InstantMs | None


@frozen(kw_only=True)
class InstanceFilter:
    """Which instances; None: whatever it is."""

    status: str | None = None
    process_key: str | None = None
    definition_id: str | None = None
    business_key: str | None = None
    with_incident: bool | None = None
    """Whether an incident is open."""
    started_from_ms: InstantMs | None = None
    started_before_ms: InstantMs | None = None


@frozen(kw_only=True)
class TopicBacklog:
    """What is open on one topic."""

    topic: str
    ready: int
    """READY and available now."""
    backing_off: int
    """READY, available later: waiting for its next attempt."""
    locked: int
    oldest_ready_at_ms: InstantMs | None
    """Since when the longest waiting one of `ready` is available, on the lease clock. None where there is none."""


@frozen
class ReadyTask:
    """What a dispatcher keeps of a READY task; sorts in the order of hand-out."""

    rank: int
    """Minus the priority."""
    created_at_ms: InstantMs
    task_id: str
    lock_duration_ms: int | None = None
    payload_bytes: int = attrs.field(default=0, eq=False)
    """About what it takes in a frame (some stores count characters)."""

    def __lt__(self, other: ReadyTask) -> bool:
        # By hand: a heap compares a dozen times for each task.
        if self.rank != other.rank:
            return self.rank < other.rank
        if self.created_at_ms != other.created_at_ms:
            return self.created_at_ms < other.created_at_ms
        return self.task_id < other.task_id


@frozen
class ReadyScan:
    tasks: tuple[ReadyTask, ...]
    """At most the limit, in order of hand-out, available now."""
    next_available_ms: InstantMs | None
    """When the next retry comes due, on the lease clock."""
    now_ms: InstantMs


@frozen
class DueTimer:
    timer_id: str
    instance_id: str
    due_at_ms: InstantMs


@frozen
class MatchedMessage:
    """A message and what waits for it: an instance's subscription, or a definition that it starts."""

    message: MessageRow
    instance_id: str | None
    subscription_id: str | None
    definition_id: str | None


class Store(Protocol):
    """A database behind which the engine keeps everything. Implementations: memory, SQLite (PostgreSQL later).

    All methods raise `StoreUnavailable` when the database cannot answer; nothing was then acknowledged.
    """

    @property
    def file(self) -> Path | None:
        """Where everything is kept; None: in no file."""

    async def open(self) -> None:
        """Migrate and take the exclusive lock.

        :raises StoreUnavailable: naming the file and who has it, when another engine holds it.
        """

    async def close(self) -> None: ...

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        """Make a batch durable: one transaction, one outcome for each operation in order."""

    async def load_instance(self, instance_id: str) -> StoredInstance | None: ...

    async def history(self, instance_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[HistoryStep]:
        """In order; `after`: only steps behind that version; `limit`: at most so many, None: all."""

    async def instance(self, instance_id: str) -> InstanceSummary | None: ...

    async def instances(
        self, wanted: InstanceFilter = InstanceFilter(), *, limit: int = 100, after: str | None = None
    ) -> Sequence[InstanceSummary]:
        """Newest first; `after` is the last id of the page before."""

    async def definition(self, definition_id: str) -> DefinitionRow | None: ...

    async def latest_definition(self, key: str) -> DefinitionRow | None: ...

    async def definitions(self) -> Sequence[DefinitionRow]:
        """Every version, by key and version."""

    async def task(self, task_id: str) -> ExternalTask | None: ...

    async def tasks(
        self,
        *,
        instance_id: str | None = None,
        topic: str | None = None,
        state: str | None = None,
        limit: int = 1000,
        after: str | None = None,
    ) -> Sequence[ExternalTask]:
        """Oldest first; `after` is the last id of the page before."""

    async def topic_backlogs(self) -> Sequence[TopicBacklog]:
        """Every topic that has a READY or LOCKED task, by name."""

    async def attempts(self, task_id: str) -> Sequence[TaskAttempt]:
        """By fence."""

    async def ready_tasks(self, topic: str, limit: int) -> ReadyScan: ...

    async def next_lock_expiry(self) -> tuple[InstantMs | None, InstantMs]:
        """When the next lock runs out (or has run out), and what time it is, both on the lease clock."""

    async def draining_ready(self, limit: int) -> Sequence[tuple[str, str]]:
        """(instance_id, task_id) of draining tasks without a lease: `EndDraining` is owed to them."""

    async def due_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        """Timers due at `now_ms` (wall clock), and when the next one after them is due."""

    async def matched_messages(self, now_ms: InstantMs, limit: int) -> Sequence[MatchedMessage]:
        """Messages that something waits for, in order of arrival, at most one for each subscription."""

    async def incidents(
        self, instance_id: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        """Open ones, by id: ``incident_id, instance_id, kind, element_id, message, task_id, opened_at_ms``.

        :param after: only those whose ids are greater: the last id of the page before.
        """

    async def user_tasks(
        self, instance_id: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        """Open ones, by id, in pages as `incidents`: ``user_task_id, instance_id, element_id, name, assignee,
        candidate_users, candidate_groups, form, variables, created_at_ms, due_at``."""

    async def incident(self, incident_id: str) -> Mapping[str, object] | None:
        """An open one."""

    async def user_task(self, user_task_id: str) -> Mapping[str, object] | None:
        """An open one."""

    async def inbox(self, limit: int) -> Sequence[InboxRow]: ...

    async def lease_now(self) -> InstantMs:
        """The lease clock."""

    async def backup(self, target: Path, progress: Callable[[float], None]) -> None:
        """Write a consistent copy of everything that is durable now to a new file, while work goes on; the file is
        there whole or not at all.

        :param progress: called now and then with how much is done, in [0, 1].
        :raises Conflict: this store has no file, or `target` exists; StoreUnavailable: it cannot be written.
        """


# --- the world -----------------------------------------------------------------------------------------------------


class Clock(Protocol):
    def wall_ms(self) -> InstantMs: ...

    def monotonic(self) -> float:
        """Seconds; trio's clock, so that virtual time holds."""

    async def sleep(self, seconds: float) -> None: ...


class Entropy(Protocol):
    def integer(self, bits: int) -> int:
        """Uniform in [0, 2**bits)."""

    def fraction(self) -> float:
        """Uniform in [0, 1)."""

    def uuid(self) -> str: ...


class ThreadRunner(Protocol):
    async def run_sync(self, function: Callable[[], T]) -> T:
        """Run in the one thread of this runner. Not abandoned when cancelled: the transaction ends first."""


class Log(Protocol):
    """The part of a structlog logger that the actors use."""

    def debug(self, event: str, **values: object) -> object: ...

    def info(self, event: str, **values: object) -> object: ...

    def warning(self, event: str, **values: object) -> object: ...

    def error(self, event: str, **values: object) -> object: ...

    def exception(self, event: str, **values: object) -> object: ...


class PausePoint(Protocol):
    async def __call__(self, name: str) -> None:
        """Does nothing; a simulation stops the node here."""


@frozen(kw_only=True)
class Ports:
    """Everything that a node needs from the world."""

    clock: Clock
    entropy: Entropy
    store: Store
    background: ThreadRunner
    """For long calculations (reading a large file) that must not hold up the actors."""
    log: Log
    pause_point: PausePoint
