"""What is acknowledged and when; versions and guards of changesets (A1, D1, E1, E2, C1; rules 1 to 4)."""

from __future__ import annotations

from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Rewrite
from simulations.mutants.substitutes import UnguardedChangeset, unguarded

__all__ = ["MUTANTS"]

_CHANGESETS = "stellwerk.stores.changesets"
_INSTANCE = "stellwerk.actors.instance:InstanceActor"
_REQUESTS = "stellwerk.actors.requests"

MUTANTS = (
    Mutant(
        name="acknowledged-before-commit",
        number=10,
        what="A completion is acknowledged when the instance has got it, before the step is durable.",
        invariants=("A1", "D1"),
        patches=(
            Rewrite(
                f"{_REQUESTS}:WorkerRequests._command",
                (
                    "await self._services.post(instance_id, Envelope(command, Reply(answered)))",
                    "await self._services.post(instance_id, Envelope(command, Reply(answered)))\n"
                    "    if isinstance(command, CompleteTask):\n"
                    "        self._session.acknowledge(request.ref)",
                ),
            ),
        ),
    ),
    Mutant(
        name="store-error-acknowledged",
        number=12,
        what="When the store does not answer, the worker is told that all is well.",
        invariants=("A1", "D1"),
        patches=(
            Rewrite(
                f"{_REQUESTS}:_outcome",
                ("return error", "return LeaseAnswerKind.DONE if isinstance(error, StoreUnavailable) else error"),
            ),
        ),
    ),
    Mutant(
        name="version-not-guarded",
        number=18,
        what="A node whose state of an instance is old writes all the same: the version is no guard.",
        invariants=("E2", "F3", "C1"),
        needs=("shared",),
        patches=(
            Rewrite(
                f"{_CHANGESETS}:_guard_version",
                (
                    "if stored == changeset.expected_version:",
                    "if stored >= changeset.expected_version > 0 or stored == 0:",
                ),
            ),
            Rewrite(
                f"{_CHANGESETS}:apply_changeset",
                (
                    "version = changeset.expected_version + 1",
                    "version = (0 if instance is None else instance.version) + 1",
                ),
            ),
        ),
    ),
    Mutant(
        name="version-checked-before",
        number=19,
        what="The version is compared in a read before the commit, not by it: another node may come between.",
        invariants=("E2", "C1"),
        needs=("shared",),
        patches=(
            Rewrite(
                f"{_INSTANCE}._commit",
                (
                    "outcome = await services.committer.submit(self._changeset(step, changes, births))",
                    "changeset = self._changeset(step, changes, births)\n"
                    "        seen = await services.ports.store.instance(self.instance_id)\n"
                    "        if seen is not None and seen.version == self._version:\n"
                    "            changeset = unguarded(changeset)\n"
                    "        outcome = await services.committer.submit(changeset)",
                ),
                unguarded=unguarded,
            ),
            Rewrite(
                f"{_CHANGESETS}:_guard_version",
                (
                    "if stored == changeset.expected_version:",
                    "if stored == changeset.expected_version or isinstance(changeset, UnguardedChangeset):",
                ),
                UnguardedChangeset=UnguardedChangeset,
            ),
            Rewrite(
                f"{_CHANGESETS}:apply_changeset",
                (
                    "version = changeset.expected_version + 1",
                    "version = (0 if instance is None else instance.version) + 1",
                ),
            ),
        ),
    ),
    Mutant(
        name="half-a-changeset",
        what="A step whose lease was refused moves the token all the same; only the task's row is left out (rule 1).",
        invariants=("L5", "C1", "A1"),
        patches=(
            Rewrite(
                f"{_CHANGESETS}:_guard_endings",
                ("return _refused_lease(ending, answer, task)", "continue"),
            ),
        ),
    ),
    Mutant(
        name="old-state-refuses",
        what="A node refuses a command by a state of the instance that another node has gone beyond.",
        invariants=("I3", "I2", "V1", "V2"),
        needs=("shared",),
        patches=(
            Rewrite(
                f"{_INSTANCE}._step_until_settled",
                ("if not (step.accepted or is_current):", "if not (step.accepted or is_current or self._version):"),
            ),
        ),
    ),
    Mutant(
        name="cancelled-task-completed",
        what="The completion of a task that was cancelled meanwhile is acknowledged.",
        invariants=("D1", "A1"),
        patches=(
            Rewrite(
                "stellwerk.stores.leases:check_repeat",
                ("LeaseAnswerKind.CANCELLED if is_cancelled", "LeaseAnswerKind.REPEATED if is_cancelled"),
            ),
        ),
    ),
    Mutant(
        name="ended-instance-cancelled",
        what="An instance that has ended can still be cancelled.",
        invariants=("F3",),
        patches=(
            Rewrite(
                "stellwerk.core.decide:_change_by_hand",
                ("if step.state.ended:", "if step.state.ended and not isinstance(command, c.CancelInstance):"),
            ),
        ),
    ),
    Mutant(
        name="start-not-idempotent",
        what="An instance that is started twice with one Idempotency-Key is there twice.",
        invariants=("I1", "V1", "V2", "W"),
        patches=(
            Rewrite(
                "stellwerk.actors.operations:NodeOperations.start_instance",
                (
                    'if request_id is None else derived_id("start", process_key, request_id)',
                    'if request_id is None else derived_id("start", self.ports.entropy.uuid(), request_id)',
                ),
            ),
        ),
    ),
)
