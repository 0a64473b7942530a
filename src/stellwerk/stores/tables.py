"""The rows of an embedded store, as the write path (`operations`) sees them: by key, within one transaction.

Memory and SQLite implement `Tables`; what an operation means is written once above it. Nothing here is async: the
write path runs in the one writer's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from stellwerk.core.changes import IncidentRow, SubscriptionRow, TimerRow, UserTaskAssignment, UserTaskRow
from stellwerk.core.external_task import ExternalTask, TaskAttempt
from stellwerk.errors import InvalidInput
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    ApiKeyRow,
    Changeset,
    DefinitionRow,
    InboxRow,
    MessageRow,
    NewInstance,
    Operation,
    Outcome,
    ProcessRow,
    RefusedChangeset,
    RefusedGuard,
)
from stellwerk.values import frozen

__all__ = [
    "ENDED_STATUSES",
    "ROW_FAULTS",
    "DataFault",
    "InstanceState",
    "Tables",
    "no_page_after",
    "refusal_of",
    "split_names",
]

ENDED_STATUSES = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
"""Statuses of an instance that does nothing any more."""


class DataFault(Exception):
    """One row cannot be written as it is (a duplicate key, a value that the store cannot hold)."""


ROW_FAULTS: tuple[type[Exception], ...] = (
    DataFault,
    ValueError,
    TypeError,
    OverflowError,
    LookupError,
    AttributeError,
    AssertionError,
)
"""What an operation with an impossible value in it ends in. It is refused alone; its neighbours are applied."""


def refusal_of(operation: Operation, error: Exception) -> Outcome:
    text = f"{type(error).__name__}: {error}"
    if isinstance(operation, Changeset):
        return RefusedChangeset(RefusedGuard.DATA, text)
    return InvalidInput(f"the store cannot write this: {text}")


def no_page_after(kind: str, after: str) -> InvalidInput:
    """A page begins where the last row of the page before stands: that must still be there."""
    return InvalidInput(f"after: there is no {kind} {after} (any more), list from the start again")


def split_names(patterns: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """→ names, and beginnings of names: of those patterns that end with ``*``."""
    wanted = tuple(patterns)
    beginnings = tuple(pattern[:-1] for pattern in wanted if pattern.endswith("*"))
    return tuple(pattern for pattern in wanted if not pattern.endswith("*")), beginnings


@frozen
class InstanceState:
    """What the guards, the update of an ``instances`` row and new tasks need of it."""

    version: int
    status: str
    definition_id: str
    business_key: str | None


class Tables(Protocol):
    """Reads see what this transaction wrote. Methods that write raise `DataFault`, now or when the writes are sent."""

    # external tasks
    def task(self, task_id: str) -> ExternalTask | None: ...
    def insert_task(self, task: ExternalTask) -> None: ...
    def update_task(self, task: ExternalTask) -> None:
        """All that a lease changes; variables and priority stay as they were inserted, unless they are rewritten."""

    def rewrite_variables(self, task: ExternalTask) -> None: ...
    def rewrite_priority(self, task: ExternalTask) -> None: ...
    def ready(self, topics: Sequence[str], now_ms: InstantMs, limit: int) -> list[ExternalTask]:
        """READY, not draining, available; in order of hand-out over all topics."""

    def past_due(self, now_ms: InstantMs, limit: int, *, needs_instance: bool) -> list[ExternalTask]:
        """LOCKED with a lock that has run out, the longest overdue first; only those whose expiry needs (or does not
        need) their instance, so that tasks that wait for a stuck instance never hide the others."""

    def next_expiry(self, now_ms: InstantMs) -> InstantMs | None:
        """When the first lock that has not run out will."""

    def leases_of(self, worker_id: str, boot_id: str) -> list[ExternalTask]:
        """LOCKED by that worker process, by task id."""

    def attempt(self, task_id: str, fence: int) -> TaskAttempt | None: ...
    def newest_attempt(self, task_id: str, worker_id: str) -> TaskAttempt | None: ...
    def insert_attempt(self, attempt: TaskAttempt) -> None: ...

    # instances
    def instance(self, instance_id: str, *, is_new: bool = False) -> InstanceState | None:
        """``is_new``: it probably does not exist; None is then good enough as long as its insertion tells."""

    def insert_instance(self, instance_id: str, row: NewInstance, state: InstanceState, at_ms: InstantMs) -> None: ...
    def update_instance(self, instance_id: str, state: InstanceState, ended_at_ms: InstantMs | None) -> None: ...
    def ended_before(self, before_ms: InstantMs, limit: int) -> list[str]:
        """Ids of instances that have ended, the longest ended first."""

    def delete_instance(self, instance_id: str) -> int:
        """With every row that is its own: history, snapshot, tasks, attempts, what waits and its inbox.

        → how many rows of history, tasks and attempts there were.
        """

    def append_history(self, instance_id: str, version: int, at_ms: InstantMs, facts: bytes) -> None: ...
    def put_snapshot(self, instance_id: str, version: int, snapshot: bytes) -> None: ...

    # what waits
    def insert_timer(self, instance_id: str, row: TimerRow) -> None: ...
    def delete_timer(self, timer_id: str) -> None: ...
    def insert_subscription(self, instance_id: str, row: SubscriptionRow, now_ms: InstantMs) -> None:
        """`now_ms` (lease clock): messages whose time to live ended before are none of its."""

    def delete_subscription(self, subscription_id: str) -> None: ...
    def insert_user_task(self, instance_id: str, row: UserTaskRow, at_ms: InstantMs) -> None: ...
    def assign_user_task(self, row: UserTaskAssignment) -> None: ...
    def delete_user_task(self, user_task_id: str) -> None: ...
    def has_incident(self, instance_id: str, incident_id: str) -> bool: ...
    def insert_incident(self, instance_id: str, row: IncidentRow, at_ms: InstantMs) -> None: ...
    def delete_incident(self, incident_id: str) -> None: ...

    # messages and the inbox
    def knows_message(self, message_id: str) -> bool:
        """Waiting, or consumed and its time to live has not ended."""

    def has_message(self, message_id: str) -> bool:
        """Waiting."""

    def insert_message(self, row: MessageRow) -> None: ...
    def consume_message(self, message_id: str) -> None:
        """Its id is remembered for its time to live, so that publishing it again does nothing."""

    def drop_messages(self, now_ms: InstantMs, given_up: tuple[str, ...]) -> int:
        """See `DropMessages`. → how many that still waited."""

    def has_inbox_row(self, instance_id: str, dedupe_key: str) -> bool: ...
    def insert_inbox_row(self, row: InboxRow) -> None: ...
    def delete_inbox_row(self, instance_id: str, dedupe_key: str) -> None: ...
    def drop_inbox(self, instance_id: str) -> None: ...

    # definitions
    def latest_definition(self, key: str) -> DefinitionRow | None: ...
    def has_definition(self, definition_id: str) -> bool: ...
    def has_instances_of(self, definition_id: str) -> bool:
        """Ended ones too."""

    def insert_definition(self, row: DefinitionRow) -> None: ...
    def delete_definition(self, definition_id: str) -> None: ...
    def replace_start_subscriptions(self, key: str, row: DefinitionRow | None, now_ms: InstantMs) -> None:
        """Those of the process by those of that version; None: by nothing. A name that was there before goes on
        waiting since then."""

    def process(self, key: str) -> ProcessRow | None: ...
    def put_process(self, row: ProcessRow) -> None: ...

    # API keys
    def api_key(self, key_id: str) -> ApiKeyRow | None: ...
    def insert_api_key(self, row: ApiKeyRow) -> None: ...
    def revoke_api_key(self, key_id: str, now_ms: InstantMs) -> None: ...
