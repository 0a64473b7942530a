"""Every commit of the store is looked at, and what a crash takes back is forgotten again.

The checkers know the rows only from the changes, and the histories only from their bytes: nothing of the engine is
asked. What each invariant says stands in `simulations.checks.invariants`.
"""

from __future__ import annotations

from collections.abc import Callable

from simulations.checks.definitions import Models
from simulations.checks.explanations import Explanations
from simulations.checks.instance_checks import InstanceChecks
from simulations.checks.lease_checks import LeaseChecks
from simulations.checks.outcome_notes import OutcomeNotes
from simulations.checks.promises import Promises
from simulations.checks.reports import Journal, Reports
from simulations.checks.saga_checks import SagaChecks
from simulations.checks.shadow import Shadow
from simulations.checks.store_clock import StoreClock, clock_of
from simulations.checks.token_checks import TokenChecks
from simulations.checks.waiting_checks import WaitingChecks
from simulations.world.rows import RowChange, Transaction
from stellwerk.core.instance import InstanceState

__all__ = ["LOCK_MS_MAX", "CommitChecks"]

LOCK_MS_MAX = 24 * 3_600_000
"""The longest lock that the protocol allows."""


class CommitChecks:
    """An `OutcomeObserver`."""

    def __init__(
        self,
        reports: Reports,
        *,
        lock_ms_max: int = LOCK_MS_MAX,
        highest_wall_ms: Callable[[str], int] | None = None,
        is_serialisable: bool = True,
    ) -> None:
        """``highest_wall_ms``: the latest instant that a node's wall clock has ever shown, for timers.
        ``is_serialisable``: transactions commit in the order in which they read the clock."""
        self._reports = reports
        self._journal = Journal()
        self.clock = StoreClock()
        self.shadow = Shadow(reports, self._journal)
        self.models = Models(self.shadow)
        self.promises = Promises(reports, self.shadow)
        self._leases = LeaseChecks(reports, self.shadow, self.clock, lock_ms_max)
        self._sagas = SagaChecks(reports, self._journal, self.models, self.shadow)
        self._waiting = WaitingChecks(reports, self.shadow, self._journal, highest_wall_ms)
        self._tokens = TokenChecks(reports, self._journal, self.models)
        fact_checks = (self._sagas.check, self._waiting.check, self._tokens.check)
        self._instances = InstanceChecks(reports, self.shadow, self._journal, self.models, fact_checks)
        self._notes = OutcomeNotes(reports, self.shadow, self._instances.states)
        self._newest = 0
        self._is_serialisable = is_serialisable
        self._by_table: dict[str, Callable[[RowChange], None]] = {
            "tasks": self._leases.task_written,
            "attempts": self._leases.attempt_written,
            "instances": self._instances.instance_written,
            "messages": self._waiting.message_written,
        }

    @property
    def states(self) -> dict[str, InstanceState]:
        """Of all instances, folded from their histories."""
        return self._instances.states

    # --- CommitObserver --------------------------------------------------------------------------------------------

    def committed(self, transaction: Transaction) -> None:
        self._check_order(transaction)
        explained = Explanations.of(transaction)
        self._leases.begin(explained, transaction.changes, transaction.now_ms)
        self._instances.begin(explained)
        self._tokens.begin()
        self._sagas.begin(explained)
        self._waiting.begin(explained, transaction)
        self._notes.committed(transaction)
        # A history is judged with the rows around it as they were before: the facts say how they change.
        for change in transaction.changes:
            if change.table == "history":
                self._instances.history_written(change)
        for change in transaction.changes:
            before = self._by_table.get(change.table)
            if before is not None:
                before(change)
            self.shadow.apply(change)
            if change.table == "snapshots":
                self._instances.snapshot_written(change)
        self._leases.finish()
        self._instances.finish()
        self._tokens.finish(self._instances.states)
        self.promises.committed(transaction)
        self._journal.close(transaction.number)

    def unchanged(self, transaction: Transaction) -> None:
        """Only what was refused can be seen in it."""
        self._notes.committed(transaction)

    def undone(self, transaction: Transaction) -> None:
        self._journal.undo(transaction.number)
        self.promises.undone(transaction)

    def synced(self, number: int) -> None:
        self._journal.forget(number)
        self.promises.synced(number)

    def _check_order(self, transaction: Transaction) -> None:
        never_fell = self.clock.observe(transaction) or not self._is_serialisable
        self._reports.always("T1", never_fell, lambda: f"the lease clock fell to {clock_of(transaction)}")
        is_next = transaction.number > self._newest
        self._reports.always("T1", is_next, lambda: f"commit {transaction.number} follows {self._newest}")
        self._newest = max(self._newest, transaction.number)
