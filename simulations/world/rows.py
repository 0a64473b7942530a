"""What a commit did, for those who watch: the checkers and the trace."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

from stellwerk.instants import InstantMs
from stellwerk.ports import Operation, Outcome
from stellwerk.stores.postgres.clock_watch import ClockJump
from stellwerk.values import frozen

__all__ = ["CommitObserver", "OutcomeObserver", "RowChange", "Transaction"]


@frozen
class RowChange:
    """One write. The rows are those of `MemoryTables`; what was written twice in a transaction changed twice."""

    table: str
    """The attribute of `MemoryTables`: tasks, attempts, instances, history, snapshots, timers, subscriptions,
    user_tasks, incidents, messages, inbox, api_keys or definitions."""
    key: Hashable
    """Of the one row: the id; (task_id, fence) of an attempt; (instance_id, version) of a step of a history;
    (instance_id, dedupe_key) of an inbox row; the definition_id."""
    before: object | None
    """None: it was not there."""
    after: object | None
    """None: it is not there any more."""
    operation: int = 0
    """The place of the operation that wrote it among those of its transaction."""


@frozen
class Transaction:
    """One commit."""

    number: int
    """Counts commits from 1; a number is never used again."""
    now_ms: int
    """The lease clock in it."""
    us: int
    """True time of the commit."""
    node: str
    """Who asked for it: a host's name."""
    operations: tuple[Operation, ...]
    outcomes: tuple[Outcome, ...]
    changes: tuple[RowChange, ...]
    """In the order of the writes."""
    jump: ClockJump | None = None
    """The jump forward of the database's clock that the asking node makes up for: leases from before it count as ending
    later by as much (consistency.md 19)."""
    clock_ms: InstantMs | None = None
    """The lease clock at the commit. In a transaction of several statements `now_ms` is earlier: it was read when the
    rows were locked, and others may have committed since. None: the same."""


class CommitObserver(Protocol):
    """Called in the order in which it happens, at the same instant."""

    def committed(self, transaction: Transaction) -> None:
        """Later transactions see it. Nobody was answered yet."""

    def undone(self, transaction: Transaction) -> None:
        """A crash took it back. The newest first."""

    def synced(self, number: int) -> None:
        """All transactions up to this one will survive a crash; only now may anybody be answered who saw them."""


@runtime_checkable
class OutcomeObserver(CommitObserver, Protocol):
    """One that also wants to know of what was only refused, or looked at."""

    def unchanged(self, transaction: Transaction) -> None:
        """It wrote nothing; its number is that of the commit before it."""
