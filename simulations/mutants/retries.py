"""Failures and their repetition: attempts, retries, back-off, single-try (R1 to R3, I1, L7)."""

from __future__ import annotations

from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Rewrite

__all__ = ["MUTANTS"]

_LEASE = "stellwerk.core.lease"
_STORE_LEASES = "stellwerk.stores.leases"
_INSTANCE = "stellwerk.actors.instance:InstanceActor"

MUTANTS = (
    Mutant(
        name="failure-not-idempotent",
        number=13,
        what="A failure or business error that is sent again, because its acknowledgement was lost, is not recognised.",
        invariants=("I1",),
        patches=(
            Rewrite(
                f"{_LEASE}:_refusal",
                ("if recorded is not None:", "if recorded is not None and kind is not _Kind.FAIL:"),
            ),
            Rewrite(
                f"{_STORE_LEASES}:check_repeat",
                ("if is_same or", "if is_same and operation.kind is OutcomeKind.COMPLETE or"),
                ("if recorded is not None:", "if recorded is not None and not is_same:"),
            ),
        ),
    ),
    Mutant(
        name="only-last-attempt-remembered",
        number=14,
        what="Only how the newest lease ended is remembered: a late repetition for an earlier one is refused.",
        invariants=("I1",),
        patches=(
            Rewrite(
                f"{_STORE_LEASES}:attempt_for",
                ("return tables.attempt(task.task_id, fence)", "return None"),
            ),
        ),
    ),
    Mutant(
        name="repeats-known-in-memory",
        number=15,
        what="That a completion was done before is known to the node that did it, not to the store.",
        invariants=("I1",),
        patches=(
            Rewrite(
                f"{_INSTANCE}._settle",
                (
                    "for envelope in step.accepted:\n",
                    "done = self._services.committer.__dict__.setdefault('done', set())\n"
                    "    for envelope in step.accepted:\n"
                    "        done.add(repeat_of(envelope.command))\n",
                ),
            ),
            Rewrite(
                f"{_INSTANCE}._refuse",
                (
                    "answer = await self._services.committer.submit(repeat)\n",
                    "answer = await self._services.committer.submit(repeat)\n"
                    "            if answer.kind is LeaseAnswerKind.REPEATED:\n"
                    "                if repeat not in self._services.committer.__dict__.get('done', set()):\n"
                    "                    answer = LeaseAnswer(LeaseAnswerKind.LEASE_LOST, answer.task)\n",
                ),
            ),
        ),
    ),
    Mutant(
        name="one-retry-too-many",
        number=16,
        what="A task fails for good one failure later than it has retries.",
        invariants=("R3",),
        patches=(Rewrite(f"{_LEASE}:_is_last_failure", ("return left < 1 or", "return left < 0 or")),),
    ),
    Mutant(
        name="expiry-costs-retry",
        number=17,
        what="A lock that runs out uses up a retry.",
        invariants=("R2",),
        patches=(
            Rewrite(
                f"{_LEASE}:_expire",
                (
                    "lock_expiries=task.lock_expiries + 1,",
                    "lock_expiries=task.lock_expiries + 1, retries_left=max(1, task.retries_left - 1),",
                ),
            ),
        ),
    ),
    Mutant(
        name="resume-costs-retry",
        what="A task that its worker hands back unfinished has used up a retry.",
        invariants=("R2",),
        patches=(
            Rewrite(
                f"{_LEASE}:_release",
                (
                    "_changed(task, state=_READY, available_at_ms=now_ms, updated_at_ms=now_ms)",
                    "_changed(task, state=_READY, available_at_ms=now_ms, updated_at_ms=now_ms,"
                    " retries_left=max(1, task.retries_left - command.started))",
                ),
            ),
        ),
    ),
    Mutant(
        name="no-back-off",
        what="A failed task is offered again at once, whatever the worker or the model say.",
        invariants=("R3",),
        patches=(
            Rewrite(
                f"{_LEASE}:_fail", ("available_at_ms=now_ms + wait_ms", "available_at_ms=now_ms + wait_ms // 1000")
            ),
        ),
    ),
    Mutant(
        name="single-try-tried-again",
        what="A single-try task whose lock ran out is offered again.",
        invariants=("L7",),
        needs=("shared",),
        patches=(
            Rewrite(
                f"{_LEASE}:expiry_needs_instance",
                ("return task.single_try or task.draining", "return task.draining"),
            ),
        ),
    ),
    Mutant(
        name="expiries-not-limited",
        what="A poison task, whose lock runs out again and again, is offered for ever.",
        invariants=("L7", "R3", "V1", "V2"),
        needs=("shared",),
        patches=(
            Rewrite(
                f"{_LEASE}:expiry_needs_instance",
                (
                    "0 < task.lock_expiries_max <= task.lock_expiries + 1",
                    "0 < task.lock_expiries_max < task.attempt // 9",
                ),
            ),
        ),
    ),
    Mutant(
        name="unconfirmed-single-try-released",
        what="A single-try task goes back to the queue although its frame may have reached the worker (rule 14).",
        invariants=("L7",),
        patches=(
            Rewrite(
                "stellwerk.actors.session:WorkerSession._take_back_overdue",
                (
                    'await self._give_back(overdue, True, float("-inf"))',
                    'await self._give_back(overdue, False, float("-inf"))',
                ),
            ),
        ),
    ),
)
