"""Several commands in one step (consistency.md 2) and leases given at birth (10)."""

from __future__ import annotations

from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Rewrite

__all__ = ["MUTANTS"]

_INSTANCE = "stellwerk.actors.instance:InstanceActor"

MUTANTS = (
    Mutant(
        name="refused-step-kept",
        what="The state after a step is kept although the store has refused the step.",
        # Which of them shows first depends on what was refused. I3: what seems to be done already is refused.
        invariants=("C1", "C3", "I3", "L5", "V1", "V2"),
        patches=(
            Rewrite(
                f"{_INSTANCE}._commit",
                (
                    "began = services.ports.clock.monotonic()\n",
                    "began = services.ports.clock.monotonic()\n    self._state = step.state\n",
                ),
            ),
        ),
    ),
    Mutant(
        name="neighbours-acknowledged",
        what="When one command of a step is refused, the others of it are told that they are done.",
        invariants=("D1", "A1"),
        patches=(
            Rewrite(
                f"{_INSTANCE}._refuse_guarded",
                (
                    "answer_lease(envelope, refused.answer)\n",
                    "answer_lease(envelope, refused.answer)\n"
                    "                for other in step.accepted:\n"
                    "                    if not other.reply.answered:\n"
                    "                        other.reply.set(LeaseAnswerKind.DONE)\n",
                ),
            ),
        ),
    ),
    Mutant(
        name="neighbours-refused",
        what="When one command of a step is refused, the others of it get the same refusal.",
        invariants=("I3", "I2"),
        patches=(
            Rewrite(
                f"{_INSTANCE}._refuse_guarded",
                (
                    "answer_lease(envelope, refused.answer)\n",
                    "for other in step.accepted:\n"
                    "                    if not other.reply.answered:\n"
                    "                        answer_lease(other, refused.answer)\n",
                ),
            ),
        ),
    ),
    Mutant(
        name="birth-room-leaks",
        what="Room that was kept for a task which is leased at birth stays taken when the task has arrived (rule 10).",
        invariants=("P3", "V3", "V1", "V2"),
        patches=(
            Rewrite(
                "stellwerk.actors.births:TopicBirths.born",
                ("subscription.end_reservation(task.task_id)\n", "\n"),
            ),
        ),
    ),
    Mutant(
        name="batch-decided-on-old-state",
        what="Each command of a step is decided on the state before the step, not after the command before it.",
        # C3: of two tokens that reach a join in one step neither sees the other, and nothing is left to wait for.
        invariants=("C3", "C1", "V1", "V2"),
        patches=(
            Rewrite(
                f"{_INSTANCE}._decide_in",
                ("decide(state, envelope.command, context)", "decide(self._state, envelope.command, context)"),
            ),
        ),
    ),
)
