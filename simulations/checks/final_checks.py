"""What must hold once faults are over and everything had its time: nothing is left lying about, nothing is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from simulations.checks.commit_checks import CommitChecks
from simulations.checks.reports import Reports
from simulations.checks.shadow import OPEN_TASK_STATES, WAITING_TABLES, Shadow, label
from stellwerk.core.changes import TimerRow
from stellwerk.core.evolve import fold
from stellwerk.core.external_task import ExternalTask, OutcomeKind, TaskState
from stellwerk.core.instance import InstanceState
from stellwerk.ports import HistoryStep, InstanceSummary
from stellwerk.stores.tables import ENDED_STATUSES

__all__ = ["FinalRows", "final_checks", "unfinished"]

_PATIENCE_MS = 30_000
"""Longer than every sweep, poll and claim of the engine."""


class FinalRows(Protocol):
    """The database, read by those who judge."""

    def all_tasks(self) -> Sequence[ExternalTask]: ...
    def all_instances(self) -> Sequence[InstanceSummary]: ...
    def history(self, instance_id: str) -> Sequence[HistoryStep]: ...


def final_checks(
    checks: CommitChecks,
    rows: FinalRows,
    reports: Reports,
    *,
    now_ms: int,
    wall_ms: int,
    patience_ms: int = _PATIENCE_MS,
) -> None:
    """``now_ms``: the store's lease clock; ``wall_ms``: the earliest of the wall clocks of the nodes that are up."""
    shadow = checks.shadow
    for invariant, what in (
        *_differences(shadow, checks.states, rows),
        *_forgotten_tasks(shadow.tasks.values(), now_ms - patience_ms),
        *_forgotten_timers(shadow, wall_ms - patience_ms),
        *_unmatched(shadow),
        *_unaccounted(shadow),
        *_left_over(shadow),
    ):
        reports.always(invariant, False, what)
    checks.promises.recheck_all()


def unfinished(instances: Iterable[InstanceSummary], incidents_of: Mapping[str, int]) -> list[str]:
    """Instances that have neither ended nor wait for an operator."""
    return [
        row.instance_id
        for row in instances
        if row.status not in ENDED_STATUSES and not incidents_of.get(row.instance_id)
    ]


# --- rows ----------------------------------------------------------------------------------------------------------


def _differences(shadow: Shadow, states: Mapping[str, InstanceState], rows: FinalRows) -> Iterator[tuple[str, str]]:
    """Nothing changed but by a commit that was told."""
    tasks = {task.task_id: task for task in rows.all_tasks()}
    for task_id in sorted(tasks.keys() ^ shadow.tasks.keys()):
        yield "W1", f"task {task_id} is there by its row or by the commits, but not by both"
    for task_id, task in tasks.items():
        known = shadow.tasks.get(task_id)
        if known is not None and (known.state, known.fence, known.outcome) != (task.state, task.fence, task.outcome):
            yield "W1", f"{label(task)} is {task.state.value}, the commits left it {known.state.value}"
    for row in rows.all_instances():
        yield from _history_differences(row, states.get(row.instance_id), rows.history(row.instance_id))


def _history_differences(
    row: InstanceSummary, state: InstanceState | None, steps: Sequence[HistoryStep]
) -> Iterator[tuple[str, str]]:
    versions = [step.version for step in steps]
    if versions != list(range(1, row.version + 1)):
        yield "C2", f"instance {row.instance_id} at version {row.version} has the steps {versions}"
        return
    folded = fold(None, (fact for step in steps for fact in step.facts))
    if folded != state:
        yield "C2", f"the history of instance {row.instance_id} does not fold to what the commits gave"
    if folded.status.value != row.status:
        yield "C2", f"instance {row.instance_id} is {row.status}, by its history {folded.status.value}"


# --- what is left --------------------------------------------------------------------------------------------------


def _forgotten_tasks(tasks: Iterable[ExternalTask], before_ms: int) -> Iterator[tuple[str, str]]:
    for task in tasks:
        if task.state is TaskState.LOCKED and task.lease is not None and task.lease.until_ms < before_ms:
            yield "L7", f"{label(task)} is locked by a lock that ran out at {task.lease.until_ms}, and nobody swept it"
        if task.state is TaskState.READY and task.draining and task.updated_at_ms < before_ms:
            yield "L7", f"{label(task)} drains without a lease, and nobody ended it"


def _forgotten_timers(shadow: Shadow, before_ms: int) -> Iterator[tuple[str, str]]:
    for timer_id, waiting in shadow.waiting("timers").items():
        assert isinstance(waiting.row, TimerRow)
        if waiting.row.due_at_ms < before_ms:
            yield "M2", f"timer {timer_id} of instance {waiting.instance_id} was due at {waiting.row.due_at_ms}"


def _unmatched(shadow: Shadow) -> Iterator[tuple[str, str]]:
    """A message and somebody who waits for it, or has done so before its time to live ended (rule 6)."""
    for message_id, stored in shadow.messages.items():
        subscription_id = None if stored.is_consumed else shadow.awaiting(stored.row)
        if subscription_id is not None:
            yield "M1", f"message {message_id} and subscription {subscription_id} missed each other"


def _unaccounted(shadow: Shadow) -> Iterator[tuple[str, str]]:
    """Every lease that ended without a completion is told among the attempts."""
    for task in shadow.tasks.values():
        is_held = task.state is TaskState.LOCKED
        is_completed = task.outcome is not None and task.outcome.kind is OutcomeKind.COMPLETE
        expected = task.attempt - (is_held or is_completed)
        found = shadow.attempts_of.get(task.task_id, 0)
        if found != expected:
            yield "I1", f"{label(task)} was leased {task.attempt} times, and {found} attempts are told, not {expected}"


def _left_over(shadow: Shadow) -> Iterator[tuple[str, str]]:
    for instance_id, keys in shadow.rows_of.items():
        row = shadow.instances.get(instance_id)
        if row is not None and row.status not in ENDED_STATUSES:
            continue
        for table, key in keys:
            is_open = table in WAITING_TABLES or shadow.tasks[str(key)].state in OPEN_TASK_STATES
            if is_open:
                yield "C3", f"instance {instance_id} has ended, and {key} of its {table} is left"
