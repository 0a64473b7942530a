"""Compensation and failing scopes (S1, S2; rule 15)."""

from __future__ import annotations

from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Rewrite
from simulations.mutants.substitutes import state_that_forgot_its_handlers

__all__ = ["MUTANTS"]

_COMPENSATION = "stellwerk.core.rules.compensation"

MUTANTS = (
    Mutant(
        name="compensation-forwards",
        number=22,
        what="What was completed first is undone first.",
        invariants=("S1",),
        patches=(
            Rewrite(
                f"{_COMPENSATION}:_compensable",
                ("reversed(step.state.completed.values())", "step.state.completed.values()"),
            ),
        ),
    ),
    Mutant(
        name="last-handler-skipped",
        number=23,
        what="A compensation ends one handler too early.",
        invariants=("S1",),
        patches=(
            Rewrite(
                f"{_COMPENSATION}:_settle",
                (
                    "tuple(activity.id for activity in completed)",
                    "tuple(activity.id for activity in completed[:-1] or completed)",
                ),
            ),
        ),
    ),
    Mutant(
        name="compensation-restarts",
        number=24,
        what="Whoever loads an instance in the middle of a compensation does not know what has been undone already.",
        invariants=("S1", "C1"),
        patches=(
            Rewrite(
                "stellwerk.actors.instance:InstanceActor._take",
                ("= state_of(stored), stored.version", "= state_that_forgot_its_handlers(stored), stored.version"),
                state_that_forgot_its_handlers=state_that_forgot_its_handlers,
            ),
        ),
    ),
    Mutant(
        name="compensation-before-draining",
        what="Compensation starts while a leased task of the failing scope may still have its effect (rule 15).",
        invariants=("S1",),
        patches=(
            Rewrite(
                f"{_COMPENSATION}:_settle",
                ("if any(task.draining and", "if any(task.draining and task.failed and"),
            ),
            Rewrite(
                f"{_COMPENSATION}:_conclude",
                ("if token.scope_id == scope_id]", "if token.scope_id == scope_id and token.id in state.tokens]"),
            ),
        ),
    ),
    Mutant(
        name="drained-task-not-compensated",
        what="A task that is completed while its scope fails is not undone with the rest (rule 15).",
        invariants=("W", "S1"),
        patches=(
            Rewrite(
                "stellwerk.core.rules.tasks:complete_task",
                ("completed=True)", "completed=False)"),
            ),
        ),
    ),
    Mutant(
        name="leased-sibling-not-drained",
        what="When a scope fails its leased tasks are cancelled, though their effect may be there and is never undone.",
        invariants=("S1",),
        patches=(
            Rewrite(
                f"{_COMPENSATION}:_stop",
                ("if drains and snapshot_needed(step, activity):", "if drains and task is None:"),
            ),
        ),
    ),
    Mutant(
        name="handlers-side-by-side",
        what="A compensation handler starts before the one before it has ended.",
        invariants=("S1",),
        patches=(
            Rewrite(
                f"{_COMPENSATION}:advance",
                (
                    "step.later(Work.MOVE, token_id)\n        return",
                    "step.later(Work.MOVE, token_id)\n"
                    "        if len(compensation.pending) > 1:\n"
                    "            step.emit(f.CompensationHandlerEnded(compensation_id, completed.id))\n"
                    "            advance(step, compensation_id)\n"
                    "        return",
                ),
            ),
        ),
    ),
    Mutant(
        name="first-failure-compensates",
        what="A failure with retries left already ends the task, and the saga goes backwards.",
        invariants=("S2", "R3"),
        patches=(
            Rewrite("stellwerk.core.lease:_is_last_failure", ("return left < 1 or", "return left < 2 or")),
            Rewrite(
                "stellwerk.core.lease:_may_end",
                ("return task.retries_left <= 1 or", "return task.retries_left <= 2 or"),
            ),
        ),
    ),
)
