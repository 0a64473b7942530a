"""Timers and messages: each fires and arrives once, in time, and only where it was waited for (M1, M2)."""

from __future__ import annotations

from collections.abc import Callable

from simulations.checks.explanations import Explanations
from simulations.checks.reports import Journal, Reports
from simulations.checks.shadow import Shadow
from simulations.world.rows import RowChange, Transaction
from stellwerk.core import facts as f
from stellwerk.core.external_task import TaskState
from stellwerk.core.instance import InstanceState
from stellwerk.ports import Changeset, DropMessages, PublishMessage
from stellwerk.stores.memory_tables import StoredMessage

__all__ = ["WaitingChecks"]


_LATE_MS = 2_000


class WaitingChecks:
    def __init__(
        self, reports: Reports, shadow: Shadow, journal: Journal, highest_wall_ms: Callable[[str], int] | None
    ) -> None:
        """``highest_wall_ms``: the latest instant that a node's wall clock has ever shown; None: the instants in the
        steps say that."""
        self._reports = reports
        self._shadow = shadow
        self._journal = journal
        self._highest_wall_ms = highest_wall_ms
        self._seen_wall_ms = 0
        self._messages: dict[str, str] = {}
        """Message → the instance that it reached."""
        self._fired: dict[str, None] = {}
        self._explained = Explanations()
        self._transaction: Transaction | None = None

    def begin(self, explained: Explanations, transaction: Transaction) -> None:
        self._explained = explained
        self._transaction = transaction
        for changesets in explained.steps.values():
            for changeset in changesets:
                self._seen_wall_ms = max(self._seen_wall_ms, changeset.at_ms)
                self._consumed_once(changeset)

    def _consumed_once(self, changeset: Changeset) -> None:
        """A step that takes a message or inbox row must find it: the guard that makes delivery exact."""
        for message_id in changeset.messages_consumed:
            stored = self._shadow.messages.get(message_id)
            is_there = stored is not None and not stored.is_consumed
            self._check("M1", is_there, changeset.instance_id, f"it took message {message_id}, which was not there")
        for dedupe_key in changeset.inbox_consumed:
            is_there = self._shadow.has_inbox_row(changeset.instance_id, dedupe_key)
            self._check("M1", is_there, changeset.instance_id, f"it took inbox row {dedupe_key}, which was not there")

    def _check(self, invariant: str, holds: bool, instance_id: str, what: str) -> None:
        if not holds:
            self._reports.always(invariant, False, f"instance {instance_id}: {what}")

    # --- facts -----------------------------------------------------------------------------------------------------

    def check(self, state: InstanceState, fact: f.Fact) -> None:
        match fact:
            case f.TimerFired():
                self._timer_fired(state, fact)
            case f.MessageCorrelated():
                self._correlated(state, fact)
            case f.InstanceStarted(message_id=str(message_id)):
                self._reached(state, message_id)
                self._reports.sometimes("message: started an instance")
            case _:
                pass

    def _timer_fired(self, state: InstanceState, fact: f.TimerFired) -> None:
        timer = state.timers.get(fact.timer_id)
        self._check("M2", timer is not None, state.instance_id, f"timer {fact.timer_id} fires that is not armed")
        self._check("M2", fact.timer_id not in self._fired, state.instance_id, f"timer {fact.timer_id} fires twice")
        self._journal.put(self._fired, fact.timer_id, None)
        if timer is None:
            return
        hook = self._highest_wall_ms
        node = "" if self._transaction is None else self._transaction.node
        latest_ms = self._seen_wall_ms if hook is None else hook(node)
        early_ms = timer.due_at_ms - latest_ms
        what = (
            f"the timer at {timer.node_id} fires {early_ms} ms before it is due, by the clock of the node that fires it"
        )
        self._check("M2", early_ms <= 0, state.instance_id, what)
        self._reports.sometimes("timer: fired more than two seconds late", -early_ms > _LATE_MS)
        self._reports.sometimes("gateway: a timer came first", _is_at_gateway(state, timer.token_id, timer.node_id))
        is_boundary = timer.activity_id is not None
        self._reports.sometimes("timer: boundary timer fired", is_boundary)
        leased = is_boundary and self._is_leased(timer.activity_id or "")
        self._reports.sometimes("timer: boundary timer interrupted a leased task", leased)
        self._reports.sometimes("timer: fired")

    def _is_leased(self, task_id: str) -> bool:
        """A task has the id of its activity."""
        task = self._shadow.tasks.get(task_id)
        return task is not None and task.state is TaskState.LOCKED

    def _correlated(self, state: InstanceState, fact: f.MessageCorrelated) -> None:
        subscription = state.subscriptions.get(fact.subscription_id)
        what = f"message {fact.message_id} arrives at subscription {fact.subscription_id}, which is not open"
        self._check("M1", subscription is not None, state.instance_id, what)
        self._reached(state, fact.message_id)
        stored = self._shadow.messages.get(fact.message_id)
        if subscription is None or stored is None:
            self._check("M1", stored is not None, state.instance_id, f"there is no message {fact.message_id}")
            return
        expected, got = (subscription.name, subscription.key), (stored.row.name, stored.row.key)
        what = f"it waits for message {expected} and got {got}"
        self._check("M1", expected == got, state.instance_id, what)
        token_id = subscription.token_id
        is_first = _is_at_gateway(state, token_id, subscription.node_id)
        self._reports.sometimes("gateway: a message came first", is_first)
        is_leased = subscription.activity_id is not None and self._is_leased(subscription.activity_id)
        self._reports.sometimes("message: boundary event at a leased task", is_leased)
        self._reports.sometimes("message: correlated")

    def _reached(self, state: InstanceState, message_id: str) -> None:
        known = self._messages.get(message_id)
        what = f"message {message_id} arrives, which had reached instance {known}"
        self._check("M1", known is None, state.instance_id, what)
        self._journal.put(self._messages, message_id, state.instance_id)
        consumed = [
            message
            for changeset in self._explained.steps.get(state.instance_id, ())
            for message in changeset.messages_consumed
        ]
        what = f"message {message_id} arrived and its row was not consumed"
        self._check("M1", message_id in consumed, state.instance_id, what)

    # --- rows ------------------------------------------------------------------------------------------------------

    def message_written(self, change: RowChange) -> None:
        """Before the shadow takes it. Between publishing and arrival nothing but its time to live may take a message
        away, and that only if nobody is there who waited for it before."""
        before, after = change.before, change.after
        if isinstance(before, StoredMessage) and not before.is_consumed:
            if after is None:
                self._check_dropped(before)
            elif isinstance(after, StoredMessage) and after.is_consumed:
                self._check_consumed(before)
        elif isinstance(before, StoredMessage):
            is_gone = after is None or after == before
            self._reports.always("M1", is_gone, lambda: f"message {change.key} was consumed and is back")
        elif isinstance(after, StoredMessage):
            is_published = any(isinstance(operation, PublishMessage) for operation in self._operations())
            self._reports.always("I2", is_published, lambda: f"message {change.key} was published by nobody")

    def _operations(self) -> tuple[object, ...]:
        return () if self._transaction is None else self._transaction.operations

    def _check_dropped(self, before: StoredMessage) -> None:
        """The store's clock says so, whatever the wall clock of the node that drops it does."""
        row, transaction = before.row, self._transaction
        limits = [operation.now_ms for operation in self._operations() if isinstance(operation, DropMessages)]
        is_over = bool(limits) and transaction is not None and row.expires_at_ms <= min(max(limits), transaction.now_ms)
        self._reports.always("M1", is_over, lambda: f"message {row.message_id} was dropped before its time")
        awaited = self._shadow.awaiting(row)
        what = f"message {row.message_id} was dropped, and subscription {awaited} had waited for it in time"
        self._reports.always("M1", awaited is None, what)
        self._reports.sometimes("message: ran out of its time to live")

    def _check_consumed(self, before: StoredMessage) -> None:
        message_id = before.row.message_id
        is_taken = any(
            message_id in changeset.messages_consumed
            for changesets in self._explained.steps.values()
            for changeset in changesets
        )
        self._reports.always("M1", is_taken, lambda: f"message {message_id} was consumed by no step")


def _is_at_gateway(state: InstanceState, token_id: str | None, node_id: str) -> bool:
    """The token waits before the event, for the first of several."""
    token = state.tokens.get(token_id or "")
    return token is not None and token.node_id != node_id
