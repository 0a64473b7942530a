"""Compensation: every completed activity that has a handler, once, in reverse order, one after the other (S1, S2)."""

from __future__ import annotations

import attrs

from simulations.checks.definitions import Models
from simulations.checks.explanations import Explanations
from simulations.checks.reports import Journal, Reports
from simulations.checks.shadow import Shadow
from stellwerk.core import facts as f
from stellwerk.core.external_task import TaskState
from stellwerk.core.instance import InstanceState

__all__ = ["SagaChecks"]


@attrs.frozen
class _Running:
    """A compensation as its facts tell it."""

    left: tuple[str, ...]
    handler_token: str | None = None


@attrs.define
class _Ledger:
    """What one instance has completed and undone."""

    completed: dict[str, f.ActivityStarted] = attrs.field(factory=dict)
    """Activities that ended well, in the order in which they did."""
    places: dict[str, int] = attrs.field(factory=dict)
    started: dict[str, f.ActivityStarted] = attrs.field(factory=dict)
    undone: dict[str, None] = attrs.field(factory=dict)
    running: dict[str, _Running] = attrs.field(factory=dict)
    bodies: dict[str, str] = attrs.field(factory=dict)
    """Scope of a subprocess's body → its activity."""
    gone: dict[str, None] = attrs.field(factory=dict)
    """Activities that were interrupted or failed: what was completed in them is out of reach."""


class SagaChecks:
    def __init__(self, reports: Reports, journal: Journal, models: Models, shadow: Shadow) -> None:
        self._reports = reports
        self._journal = journal
        self._models = models
        self._shadow = shadow
        self._ledgers: dict[str, _Ledger] = {}
        self._explained = Explanations()
        self._failed: f.TaskFailed | None = None
        self._failing: set[str] = set()
        """Instances of which a scope began to fail in this transaction."""

    def begin(self, explained: Explanations) -> None:
        self._explained = explained
        self._failed = None
        self._failing.clear()

    def check(self, state: InstanceState, fact: f.Fact) -> None:
        match fact:
            case f.ActivityStarted():
                self._journal.put(self._ledger(state).started, fact.activity_id, fact)
            case f.ActivityCompleted():
                self._completed(state, fact)
            case f.ScopeOpened(local=False, activity_id=str(activity_id)):
                self._journal.put(self._ledger(state).bodies, fact.scope_id, activity_id)
            case f.ActivityCancelled() | f.ActivityFailed():
                self._journal.put(self._ledger(state).gone, fact.activity_id, None)
            case f.CompensationStarted():
                self._compensation_started(state, fact)
            case f.CompensationHandlerStarted():
                self._handler_started(state, fact)
            case f.CompensationHandlerEnded():
                self._handler_ended(state, fact)
            case f.CompensationEnded():
                self._compensation_ended(state, fact)
            case _:
                self._check_failing(state, fact)

    def _check_failing(self, state: InstanceState, fact: f.Fact) -> None:
        match fact:
            case f.TaskFailed():
                self._failed = fact
            case f.TaskCancelled() if state.instance_id in self._failing:
                self._may_cancel(state, fact.task_id)
            case f.ScopeFailing():
                self._may_fail(state)
            case f.InstanceFailed():
                self._all_undone(state)
            case _:
                pass

    def _ledger(self, state: InstanceState) -> _Ledger:
        ledger = self._ledgers.get(state.instance_id)
        if ledger is None:
            ledger = _Ledger()
            self._journal.put(self._ledgers, state.instance_id, ledger)
        return ledger

    def _check(self, holds: bool, state: InstanceState, what: str) -> None:
        if not holds:
            self._reports.always("S1", False, f"instance {state.instance_id}: {what}")

    def _may_fail(self, state: InstanceState) -> None:
        """A failed attempt alone is no reason to compensate."""
        self._reports.sometimes("saga: scope failed")
        self._failing.add(state.instance_id)
        failed, self._failed = self._failed, None
        task = None if failed is None else self._shadow.tasks.get(failed.task_id)
        if failed is None or task is None or failed.kind != "retries_exhausted":
            return
        ending = self._explained.ending(task)
        is_last = task.retries_left <= 1 or (ending is not None and ending.worker_gives_up)
        what = f"task {task.task_id} failed, has {task.retries_left} retries left, and its scope fails"
        self._reports.always("S2", is_last, lambda: f"instance {state.instance_id}: {what}")

    def _may_cancel(self, state: InstanceState, task_id: str) -> None:
        """Rule 15: a leased task that can be compensated is waited for."""
        task, open_task = self._shadow.tasks.get(task_id), state.tasks.get(task_id)
        activity = self._ledger(state).started.get(task_id)
        if task is None or open_task is None or activity is None or task.state is not TaskState.LOCKED:
            return
        handler = self._models.handler(state.definition_id, activity.node_id)
        is_wanted_so = any(isinstance(fact, f.InstanceCancelled) for fact in self._explained.facts(state.instance_id))
        drains = handler is not None and activity.compensates is None and not open_task.failed and not is_wanted_so
        self._check(
            not drains, state, f"{activity.node_id} is leased and cancelled, not drained, while its scope fails"
        )

    def _completed(self, state: InstanceState, fact: f.ActivityCompleted) -> None:
        ledger = self._ledger(state)
        activity = ledger.started.get(fact.activity_id)
        if activity is not None and activity.compensates is None and fact.compensation_variables is None:
            handler = self._models.handler(state.definition_id, activity.node_id)
            self._check(handler is None, state, f"{activity.node_id} was completed and cannot be undone by {handler}")
        if activity is not None and fact.compensation_variables is not None:
            self._journal.put(ledger.completed, fact.activity_id, activity)
            self._journal.put(ledger.places, fact.activity_id, len(ledger.places))

    # --- the order -------------------------------------------------------------------------------------------------

    def _compensation_started(self, state: InstanceState, fact: f.CompensationStarted) -> None:
        ledger = self._ledger(state)
        last_in: dict[str, int] = {}
        for activity_id in fact.activities:
            activity = ledger.completed.get(activity_id)
            self._check(activity is not None, state, f"{activity_id} is to be undone, but it was not completed")
            if activity is None:
                return
            place = ledger.places[activity_id]
            is_before = place < last_in.get(activity.scope_id, place + 1)
            self._check(is_before, state, f"{activity.node_id} is undone after what was completed before it")
            last_in[activity.scope_id] = place
        is_new = len(set(fact.activities)) == len(fact.activities) and not ledger.undone.keys() & set(fact.activities)
        self._check(is_new, state, f"an activity is undone twice: {fact.activities}")
        self._journal.put(ledger.running, fact.compensation_id, _Running(fact.activities))
        if fact.token_id is None:
            self._nothing_drains(state, fact.scope_id)
        self._reports.sometimes("saga: two or more activities compensated", len(fact.activities) >= 2)
        self._reports.sometimes("saga: compensation thrown by the model", fact.token_id is not None)

    def _nothing_drains(self, state: InstanceState, scope_id: str) -> None:
        """Rule 15: a leased sibling may just have had its effect."""
        tree = state.body_scopes(scope_id)
        for task_id, task in state.tasks.items():
            activity = state.activities.get(task.activity_id)
            drains = (
                task.draining and activity is not None and activity.scope_id in tree and activity.compensates is None
            )
            self._check(not drains, state, f"compensation begins while task {task_id} drains")

    def _handler_started(self, state: InstanceState, fact: f.CompensationHandlerStarted) -> None:
        ledger = self._ledger(state)
        running = ledger.running.get(fact.compensation_id)
        if running is None:
            self._check(False, state, f"a handler runs for {fact.activity_id} without a compensation")
            return
        self._check(running.handler_token is None, state, f"two handlers run at once: for {fact.activity_id} too")
        expected = running.left[0] if running.left else None
        self._check(fact.activity_id == expected, state, f"{fact.activity_id} is undone when it is {expected}'s turn")
        self._right_handler(state, fact)
        self._journal.put(ledger.running, fact.compensation_id, _Running(running.left, fact.token_id))

    def _right_handler(self, state: InstanceState, fact: f.CompensationHandlerStarted) -> None:
        activity = self._ledger(state).completed.get(fact.activity_id)
        token = state.tokens.get(fact.token_id)
        if activity is None or token is None or self._models.process(state.definition_id) is None:
            return
        handler = self._models.handler(state.definition_id, activity.node_id)
        self._check(token.node_id == handler, state, f"{activity.node_id} is undone by {token.node_id}, not {handler}")

    def _handler_ended(self, state: InstanceState, fact: f.CompensationHandlerEnded) -> None:
        ledger = self._ledger(state)
        running = ledger.running.get(fact.compensation_id)
        if running is None:
            self._check(False, state, f"a handler for {fact.activity_id} ends without a compensation")
            return
        is_its = bool(running.left) and running.left[0] == fact.activity_id and running.handler_token is not None
        self._check(is_its, state, f"a handler for {fact.activity_id} ends that was not running")
        is_gone = running.handler_token not in state.tokens
        self._check(is_gone, state, f"the handler for {fact.activity_id} is taken for ended while its token lives")
        self._check(fact.activity_id not in ledger.undone, state, f"{fact.activity_id} was undone before")
        self._journal.put(ledger.undone, fact.activity_id, None)
        self._journal.put(ledger.running, fact.compensation_id, _Running(running.left[1:]))
        self._reports.sometimes("saga: activity compensated")

    def _compensation_ended(self, state: InstanceState, fact: f.CompensationEnded) -> None:
        running = self._ledger(state).running.get(fact.compensation_id)
        left = running.left if running is not None else ()
        self._check(running is not None, state, "a compensation ends that did not begin")
        self._check(fact.cancelled or not left, state, f"a compensation ends before {left} are undone")
        self._journal.remove(self._ledger(state).running, fact.compensation_id)
        self._reports.sometimes("saga: cancelled during compensation", fact.cancelled)

    # --- completeness ----------------------------------------------------------------------------------------------

    def _all_undone(self, state: InstanceState) -> None:
        """A failed instance has undone all that has a handler, except what its subprocess's own handler undid."""
        if self._models.process(state.definition_id) is None:
            return
        ledger = self._ledger(state)
        for activity_id, activity in ledger.completed.items():
            if activity_id in ledger.undone or activity.compensates is not None:
                continue
            if self._models.handler(state.definition_id, activity.node_id) is None:
                continue
            self._check(self._is_hidden(state, activity), state, f"it failed and {activity.node_id} was never undone")

    def _is_hidden(self, state: InstanceState, activity: f.ActivityStarted) -> bool:
        """It ran in a subprocess that has a handler for the whole or was interrupted, or within a handler."""
        ledger = self._ledger(state)
        host_id = ledger.bodies.get(activity.scope_id)
        while host_id is not None:
            host = ledger.started[host_id]
            if (
                host_id in ledger.gone
                or host.compensates is not None
                or self._models.handler(state.definition_id, host.node_id) is not None
            ):
                return True
            host_id = ledger.bodies.get(host.scope_id)
        return False
