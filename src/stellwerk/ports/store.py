"""The store itself: what it can be asked to do, and to tell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from stellwerk.core.external_task import ExternalTask, TaskAttempt
from stellwerk.instants import InstantMs
from stellwerk.ports.catalogue import (
    DefinitionRow,
    DeleteDefinition,
    DeployDefinitions,
    DropMessages,
    PruneInstances,
    PublishMessage,
    SetProcessEnabled,
)
from stellwerk.ports.changesets import Changeset, Committed, InboxRow, RefusedChangeset
from stellwerk.ports.identities import ApiKeyRow, RevokeApiKey, StoreApiKey
from stellwerk.ports.leases import (
    CheckRepeat,
    ExpireLocks,
    ExtendLease,
    FailTask,
    FetchAndLock,
    LeaseTasks,
    ReleaseLeases,
    RenewLeases,
    ResumeSession,
    SetTaskPriority,
    SetTaskRetries,
)
from stellwerk.ports.nodes import Hint, NodeReport, NodeRow
from stellwerk.ports.reads import (
    DueTimer,
    HistoryStep,
    InstanceFilter,
    InstanceSummary,
    KeptMessage,
    MatchedMessage,
    ReadyScan,
    StoredInstance,
    TaskQuery,
    TopicBacklog,
    UserTaskFilter,
)

__all__ = ["Operation", "Outcome", "Store"]


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
    | SetTaskRetries
    | SetTaskPriority
    | DeployDefinitions
    | DeleteDefinition
    | SetProcessEnabled
    | PublishMessage
    | DropMessages
    | PruneInstances
    | StoreApiKey
    | RevokeApiKey
)

Outcome: TypeAlias = object
"""What an operation gives, as its docstring says; a `StellwerkError` value where that one could not be done."""


class Store(Protocol):
    """A database behind which the engine keeps everything. Implementations: memory, SQLite, PostgreSQL.

    All methods raise `StoreUnavailable` when the database cannot answer; nothing was then acknowledged.
    """

    @property
    def file(self) -> Path | None:
        """Where everything is kept; None: in no file."""

    @property
    def is_shared(self) -> bool:
        """Other nodes may work on it at the same time."""

    async def open(self) -> None:
        """Migrate, and unless it `is_shared` take the exclusive lock.

        :raises StoreUnavailable: naming the file and who has it, when another engine holds it.
        """

    async def close(self) -> None: ...

    def trouble(self) -> str | None:
        """Why a node on it had better get no requests now: nothing that was asked for seconds was answered."""

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        """Make a batch durable: one transaction, one outcome for each operation in order."""

    async def step_locked(
        self, instance_id: str, decide: Callable[[StoredInstance | None], Changeset | None]
    ) -> Committed | RefusedChangeset | None:
        """Load, decide and commit in one transaction in which no other node can step the instance (consistency.md 4).

        :param decide: must not block, and has no effects of its own: it may be called again. None: nothing to commit.
        """

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

    async def disabled_processes(self) -> Sequence[str]:
        """Keys of those of which nothing starts, sorted."""

    async def task(self, task_id: str) -> ExternalTask | None: ...

    async def tasks(
        self, wanted: TaskQuery = TaskQuery(), *, limit: int = 1000, after: str | None = None
    ) -> Sequence[ExternalTask]:
        """Oldest first; `after` is the last id of the page before."""

    async def count_tasks(self, wanted: TaskQuery = TaskQuery()) -> int: ...

    async def topic_backlogs(self) -> Sequence[TopicBacklog]:
        """Every topic that has a READY or LOCKED task, by name."""

    async def held_leases(self, worker_ids: Sequence[str]) -> Mapping[tuple[str, str], int]:
        """By worker id and topic: how many tasks they have locked whose locks have not run out. No zeros."""

    async def attempts(self, task_id: str) -> Sequence[TaskAttempt]:
        """By fence."""

    async def ready_tasks(self, topic: str, limit: int) -> ReadyScan: ...

    async def next_lock_expiry(self) -> tuple[InstantMs | None, InstantMs]:
        """When the next lock runs out (or has run out), and what time it is, both on the lease clock."""

    async def draining_ready(self, limit: int) -> Sequence[tuple[str, str]]:
        """(instance_id, task_id) of draining tasks without a lease: `EndDraining` is owed to them."""

    async def due_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        """Timers due at `now_ms` (wall clock), and when the next one after them is due."""

    async def claim_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        """As `due_timers`, for who is about to fire them: for some seconds no other node gets the same ones
        (consistency.md 22). A hint that saves work; the version of the instance decides."""

    async def matched_messages(self, now_ms: InstantMs, limit: int) -> Sequence[MatchedMessage]:
        """Messages that something waits for and whose time to live has not ended at `now_ms` (lease clock), in order of
        arrival, at most one for each subscription."""

    async def message(self, message_id: str) -> KeptMessage | None:
        """One that is kept or was correlated, until it is dropped some time after the end of its time to live."""

    async def waiting_messages(
        self, now_ms: InstantMs, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[KeptMessage]:
        """Those that are not correlated and whose time to live has not ended at `now_ms` (lease clock), by id."""

    async def awaited_names(self, limit: int) -> Sequence[str]:
        """Names of messages that a subscription or a start event waits for: the first `limit`, sorted."""

    async def receivers(self, name: str, limit: int) -> Sequence[tuple[str, str]]:
        """(instance_id, key) of subscriptions that wait for messages of that name: the first `limit`, by key and since
        when they wait."""

    async def incident_counts(self, instance_ids: Sequence[str]) -> Mapping[str, int]:
        """How many incidents are open in each of those instances; those without any are left out."""

    async def incidents(
        self, instance_id: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        """Open ones, by id: ``incident_id, instance_id, kind, element_id, message, task_id, opened_at_ms``.

        :param after: only those whose ids are greater: the last id of the page before.
        """

    async def user_tasks(
        self,
        instance_id: str | None = None,
        *,
        wanted: UserTaskFilter = UserTaskFilter(),
        limit: int = 1000,
        after: str | None = None,
    ) -> Sequence[Mapping[str, object]]:
        """Open ones, by id, in pages as `incidents`: ``user_task_id, instance_id, element_id, name, assignee,
        candidate_users, candidate_groups, form, variables, created_at_ms, due_at``."""

    async def incident(self, incident_id: str) -> Mapping[str, object] | None:
        """An open one."""

    async def user_task(self, user_task_id: str) -> Mapping[str, object] | None:
        """An open one."""

    async def inbox(self, limit: int) -> Sequence[InboxRow]: ...

    async def api_key(self, key_id: str) -> ApiKeyRow | None:
        """Also one that was revoked."""

    async def api_keys(self) -> Sequence[ApiKeyRow]:
        """All of them, by creation and id."""

    async def has_api_keys(self) -> bool:
        """Whether one was ever made, be it revoked or expired meanwhile: from the first one on the engine is closed."""

    async def lease_now(self) -> InstantMs:
        """The lease clock."""

    async def backup(self, target: Path, progress: Callable[[float], None]) -> None:
        """Write a consistent copy of everything that is durable now to a new file, while work goes on; the file is
        there whole or not at all.

        :param progress: called now and then with how much is done, in [0, 1].
        :raises Conflict: this store has no file, or `target` exists; StoreUnavailable: it cannot be written.
        """

    # --- beside other nodes ----------------------------------------------------------------------------------------

    async def standing_leases(self, leases: Sequence[tuple[str, int]]) -> Collection[tuple[str, int]]:
        """Those of the leases (task id, fence) that the rows still know (consistency.md 18)."""

    def tell(self, hint: Hint) -> None:
        """Let the other nodes know, soon and perhaps: each hint has a poll behind it. Never blocks, never fails."""

    async def hints(self) -> Hint:
        """Wait for what other nodes told since the last call, all in one."""

    async def report_node(self, report: NodeReport) -> None:
        """Note that this node is alive, and how it is."""

    async def nodes(self) -> Sequence[NodeRow]:
        """All that have not said goodbye, by id, with what they reported last: those too that died lately."""

    async def forget_node(self, node_id: str) -> None:
        """It has stopped."""
