"""Instances: versions without gaps, histories that only grow and fold, rows that agree with them (E, C, F3)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sized
from typing import TypeAlias, cast

from simulations.checks.definitions import Models
from simulations.checks.explanations import Explanations
from simulations.checks.owner_checks import ownerless
from simulations.checks.reports import Journal, Reports
from simulations.checks.shadow import OPEN_TASK_STATES, Shadow
from simulations.world.rows import RowChange
from stellwerk.core import facts as f
from stellwerk.core.evolve import apply, started
from stellwerk.core.external_task import TaskState
from stellwerk.core.history import decode_facts, decode_state
from stellwerk.core.instance import InstanceState, InstanceStatus
from stellwerk.errors import StellwerkError
from stellwerk.ports import InstanceSummary
from stellwerk.stores.tables import ENDED_STATUSES

__all__ = ["FactCheck", "InstanceChecks"]

FactCheck: TypeAlias = Callable[[InstanceState, f.Fact], None]
"""(state before the fact, the fact)"""

_FAILED_STATES = (TaskState.FAILED, TaskState.EXPIRED)
_ENDINGS = (f.InstanceCompleted, f.InstanceFailed, f.InstanceCancelled)


class InstanceChecks:
    def __init__(
        self, reports: Reports, shadow: Shadow, journal: Journal, models: Models, fact_checks: tuple[FactCheck, ...]
    ) -> None:
        self._reports = reports
        self._models = models
        self._shadow = shadow
        self._journal = journal
        self._fact_checks = fact_checks
        self._versions: dict[str, int] = {}
        """The newest step of each history."""
        self.states: dict[str, InstanceState] = {}
        """Folded from the histories."""
        self._ids_seen: dict[tuple[str, str], None] = {}
        """Activities that were started and tokens that ended: none of them may come again."""
        self._inserted: set[str] = set()
        self._stepped: dict[str, None] = {}
        self._explained = Explanations()

    def begin(self, explained: Explanations) -> None:
        self._explained = explained
        self._inserted.clear()
        self._stepped.clear()

    def _fail(self, invariant: str, instance_id: str, what: str) -> None:
        self._reports.always(invariant, False, f"instance {instance_id}: {what}")

    def _check(self, invariant: str, holds: bool, instance_id: str, what: str | Callable[[], str]) -> None:
        if not holds:
            self._fail(invariant, instance_id, what if isinstance(what, str) else what())

    # --- rows ------------------------------------------------------------------------------------------------------

    def instance_written(self, change: RowChange) -> None:
        before, after = change.before, change.after
        assert before is None or isinstance(before, InstanceSummary)
        if not isinstance(after, InstanceSummary):
            if before is not None:
                self._deleted(before)
            return
        instance_id = after.instance_id
        self._stepped[instance_id] = None
        if before is None:
            self._inserted.add(instance_id)
            self._check("E1", after.version == 1, instance_id, f"it begins with version {after.version}")
            return
        grown = after.version - before.version
        is_first = grown == 0 and instance_id in self._inserted
        self._check("E1", grown == 1 or is_first, instance_id, f"version {before.version} became {after.version}")
        is_over = before.status in ENDED_STATUSES and not is_first
        self._check("F3", not is_over, instance_id, f"it was {before.status} and changed")
        self._check("E2", self._is_fresh(instance_id, before.version) or is_first, instance_id, _STALE)

    def _is_fresh(self, instance_id: str, version: int) -> bool:
        """Whether a step of this transaction was decided on that version."""
        return any(step.expected_version == version for step in self._explained.steps.get(instance_id, ()))

    def _deleted(self, before: InstanceSummary) -> None:
        is_allowed = self._explained.prunes and before.status in ENDED_STATUSES
        self._check("F3", is_allowed, before.instance_id, f"it was {before.status} and its row is gone")
        self._journal.remove(self.states, before.instance_id)
        self._journal.remove(self._versions, before.instance_id)

    def history_written(self, change: RowChange) -> None:
        assert isinstance(change.key, tuple)
        instance_id = str(change.key[0])
        if change.before is not None:
            is_pruned = change.after is None and self._explained.prunes
            self._check("C2", is_pruned, instance_id, f"step {change.before} of its history became {change.after}")
            return
        version, _, text = cast("tuple[int, int, bytes]", change.after)
        known = self._versions.get(instance_id, 0)
        self._check("C2", version == known + 1, instance_id, f"step {version} follows step {known} of its history")
        self._journal.put(self._versions, instance_id, version)
        self._stepped[instance_id] = None
        self._fold(instance_id, text)

    def snapshot_written(self, change: RowChange) -> None:
        """What a reload takes for the state must be the state."""
        if change.after is None:
            return
        instance_id = str(change.key)
        version, text = cast("tuple[int, bytes]", change.after)
        self._check("C2", version == self._versions.get(instance_id), instance_id, f"a snapshot claims step {version}")
        is_same = decode_state(text) == self.states.get(instance_id)
        self._check("C2", is_same, instance_id, f"the snapshot at step {version} is not what its history folds to")
        self._reports.sometimes("process: snapshot written")

    # --- folding ---------------------------------------------------------------------------------------------------

    def _fold(self, instance_id: str, text: bytes) -> None:
        facts = decode_facts(text)
        known = self.states.get(instance_id)
        self._check("F3", known is None or not known.ended, instance_id, "it has ended, and its history goes on")
        self._check("C2", bool(facts), instance_id, "a step without any fact")
        state = None if known is None else known.fork()
        for fact in facts:
            if state is None:
                if not isinstance(fact, f.InstanceStarted):
                    self._fail("C2", instance_id, f"its history begins with {type(fact).__name__}")
                    return
                state = started(fact)
                self._tell(state, fact)
            elif not self._folded(state, fact):
                return
        if state is not None:
            self._journal.put(self.states, instance_id, state)

    def _folded(self, state: InstanceState, fact: f.Fact) -> bool:
        if isinstance(fact, _ENDINGS):
            self._ends(state, fact)
        elif isinstance(fact, f.TokenEntered):
            self._enters(state, fact)
        elif isinstance(fact, f.TokenEnded):
            self._once(state, fact.token_id, "C1", "token")
        elif isinstance(fact, f.ActivityStarted):
            self._starts(state, fact)
        self._tell(state, fact)
        try:
            apply(state, fact)
        except (KeyError, AssertionError, StellwerkError) as error:
            self._fail("C1", state.instance_id, f"{fact} does not fit what happened before: {error!r}")
            return False
        return True

    def _tell(self, state: InstanceState, fact: f.Fact) -> None:
        for check in self._fact_checks:
            check(state, fact)

    def _once(self, state: InstanceState, subject_id: str, invariant: str, what: str) -> None:
        key = (state.instance_id, subject_id)
        self._check(invariant, key not in self._ids_seen, state.instance_id, f"{what} {subject_id} comes a second time")
        self._journal.put(self._ids_seen, key, None)

    def _enters(self, state: InstanceState, fact: f.TokenEntered) -> None:
        token = state.tokens.get(fact.token_id)
        if token is None:
            is_new = (state.instance_id, fact.token_id) not in self._ids_seen
            self._check("C1", is_new, state.instance_id, f"token {fact.token_id} has ended and moves to {fact.node_id}")
        elif token.activity_id is not None:
            what = f"token {token.id} leaves {token.node_id} for {fact.node_id} while its activity runs"
            self._fail("C1", state.instance_id, what)

    def _starts(self, state: InstanceState, fact: f.ActivityStarted) -> None:
        self._once(state, fact.activity_id, "C2", "activity")
        token = state.tokens.get(fact.token_id)
        is_free = token is not None and token.activity_id is None
        self._check(
            "C2", is_free, state.instance_id, f"{fact.node_id} starts with a token that is not there or not free"
        )

    def _ends(self, state: InstanceState, fact: f.Fact) -> None:
        """Nothing is left over, however an instance ends."""
        left: dict[str, Sized] = {
            "tokens": state.tokens,
            "tasks": state.tasks,
            "user tasks": state.user_tasks,
            "timers": state.timers,
            "subscriptions": state.subscriptions,
            "incidents": state.incidents,
            "compensations": state.compensations,
        }
        shown = [f"{len(found)} {name}" for name, found in left.items() if found]
        self._check("C3", not shown, state.instance_id, f"{type(fact).__name__} with {', '.join(shown)} left")
        self._check("F3", not state.ended, state.instance_id, "it ends a second time")

    # --- after the transaction -------------------------------------------------------------------------------------

    def finish(self) -> None:
        for instance_id in self._stepped:
            state = self.states.get(instance_id)
            row = self._shadow.instances.get(instance_id)
            if state is None or row is None:
                self._fail("C2", instance_id, "it has a row without a history, or a history without a row")
                continue
            self._same_status(state, row)
            self._same_rows(state)
            self._may_go_on(state)
            for what in ownerless(state, self._models):
                self._fail("C1", instance_id, what)

    def _same_status(self, state: InstanceState, row: InstanceSummary) -> None:
        version = self._versions.get(row.instance_id, 0)
        self._check("E1", row.version == version, row.instance_id, f"version {row.version} with {version} steps")
        self._check("C2", row.status == state.status.value, row.instance_id, f"{row.status}, folded {state.status}")

    def _same_rows(self, state: InstanceState) -> None:
        """The rows are nothing but the index of the history."""
        found: dict[str, set[Hashable]] = {}
        for table, key in self._shadow.rows_of.get(state.instance_id, ()):
            found.setdefault(table, set()).add(key)
        tasks = found.pop("tasks", set())
        for table, expected in (
            ("timers", state.timers),
            ("subscriptions", state.subscriptions),
            ("user_tasks", state.user_tasks),
            ("incidents", state.incidents),
        ):
            rows = found.get(table, set())
            if rows != expected.keys():
                self._fail("C1", state.instance_id, f"{table} {_sorted(rows)} but by its history {_sorted(expected)}")
        self._same_tasks(state, tasks)

    def _same_tasks(self, state: InstanceState, rows: set[Hashable]) -> None:
        for task_id, task in state.tasks.items():
            row = self._shadow.tasks.get(task_id)
            allowed = _FAILED_STATES if task.failed else OPEN_TASK_STATES
            if row is None or row.state not in allowed or (not task.failed and row.draining != task.draining):
                shown = "gone" if row is None else f"{row.state.value} draining {row.draining}"
                self._fail("C1", state.instance_id, f"task {task_id} is {shown}, by its history {task}")
        if len(rows) == len(state.tasks):
            return
        for key in sorted(map(str, rows)):
            row = self._shadow.tasks[key]
            is_open = row.state in OPEN_TASK_STATES
            self._check("C1", not is_open or key in state.tasks, state.instance_id, f"nobody waits for task {key}")

    def _may_go_on(self, state: InstanceState) -> None:
        """A running instance waits for something that can come."""
        waits = state.tasks or state.user_tasks or state.timers or state.subscriptions or state.incidents
        is_stuck = state.status is InstanceStatus.RUNNING and not waits
        self._check("C3", not is_stuck, state.instance_id, lambda: f"nothing will ever wake it: {_tokens(state)}")


_STALE = "it was stepped on another version than the newest"


def _sorted(keys: object) -> list[str]:
    return sorted(map(str, cast("dict[object, object]", keys)))


def _tokens(state: InstanceState) -> str:
    return ", ".join(f"{token.id} at {token.node_id}" for token in state.tokens.values()) or "no tokens"
