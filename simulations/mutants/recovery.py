"""Nodes and workers that come back, sweeps, polls behind wake-ups (L4, V1)."""

from __future__ import annotations

from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Rewrite
from simulations.mutants.substitutes import ForgetLeases, forget_leases

__all__ = ["MUTANTS"]

_CLOCKWORK = "stellwerk.actors.clockwork:Clockwork"


def _dies_at_store_error(service: str) -> Rewrite:
    return Rewrite(
        "stellwerk.actors.supervisor:supervise",
        (
            "except StoreUnavailable as error:\n",
            f"except StoreUnavailable as error:\n            if name == '{service}':\n"
            "                await trio.sleep_forever()\n",
        ),
    )


MUTANTS = (
    Mutant(
        name="start-forgets-leases",
        number=9,
        what="A node that starts takes back all locks that it finds, as if nobody else were there.",
        invariants=("L4",),
        patches=(
            Rewrite(
                f"{_CLOCKWORK}.reclaim_locks",
                (
                    "while True:\n",
                    "await self._services.committer.submit(ForgetLeases(_BATCH))\n    while True:\n",
                ),
                ForgetLeases=ForgetLeases,
            ),
            Rewrite(
                "stellwerk.stores.operations:_apply_lease_operation",
                (
                    "return leases.expire_locks(tables, operation.limit, now_ms)",
                    "if isinstance(operation, ForgetLeases):\n"
                    "                return forget_leases(tables, operation.limit, now_ms)\n"
                    "            return leases.expire_locks(tables, operation.limit, now_ms)",
                ),
                ForgetLeases=ForgetLeases,
                forget_leases=forget_leases,
            ),
        ),
    ),
    Mutant(
        name="hello-steals-from-twin",
        number=20,
        what="A hello takes back the leases of another process with the same worker id (rule 17).",
        invariants=("L4", "L6"),
        patches=(
            Rewrite(
                "stellwerk.stores.memory_tables:_is_boot_of",
                (
                    "return holder.worker_id == worker_id and holder.boot_id == boot_id",
                    "return holder.worker_id == worker_id",
                ),
            ),
            Rewrite(
                "stellwerk.stores.sqlite.tables:SqliteTables.leases_of",
                ("_SELECT_LEASES_OF_BOOT", '_SELECT_LEASES_OF_BOOT.replace("lock_boot_id = ?", "? IS NOT NULL")'),
            ),
        ),
    ),
    Mutant(
        name="sweeper-dies",
        number=25,
        what="The sweep of expired locks ends at the first error of the store and is not started again.",
        invariants=("V1", "V2", "L7"),
        patches=(_dies_at_store_error("locks"),),
    ),
    Mutant(
        name="timer-service-dies",
        what="The service that fires timers ends at the first error of the store and is not started again.",
        invariants=("V1", "V2", "M2"),
        patches=(_dies_at_store_error("timers"),),
    ),
    Mutant(
        name="no-scan-behind-wake-ups",
        number=26,
        what="READY tasks are only looked for when somebody tells of them: there is no scan behind the hints.",
        invariants=("V1", "V2", "V3"),
        patches=(
            Rewrite(
                "stellwerk.actors.dispatcher:TopicDispatcher._scan",
                ("self._scanned_at + SCAN_EVERY_SECONDS * size", "_NEVER"),
            ),
        ),
    ),
    Mutant(
        name="late-subscriber-forgotten",
        what="Messages are matched when one is published, and never else: who comes to wait for an earlier one waits "
        "for ever (rule 6).",
        invariants=("V1", "V2", "M1"),
        patches=(
            Rewrite(
                f"{_CLOCKWORK}.correlate_messages",
                ("with trio.move_on_after(POLL_SECONDS):", "with trio.CancelScope():"),
            ),
            Rewrite("stellwerk.actors.node:Node.stepped", ("if changes.subscriptions_opened:", "if False:")),
            Rewrite("stellwerk.actors.neighbours:Neighbours.heard", ("if hint.messages:", "if False:")),
        ),
    ),
    Mutant(
        name="draining-task-forgotten",
        what="A draining task that comes back unfinished, or whose lock runs out, is not ended: its scope waits for "
        "ever (rule 15).",
        invariants=("V1", "V2", "L7"),
        patches=(
            Rewrite(
                f"{_CLOCKWORK}._reclaim",
                ("for task in expired.failing:", "for task in (one for one in expired.failing if not one.draining):"),
            ),
            Rewrite(
                f"{_CLOCKWORK}.end_drained",
                ("await self._send(task_id, instance_id, EndDraining(task_id))", "del task_id, instance_id"),
            ),
            Rewrite(
                "stellwerk.actors.node:Node.returned",
                ("self.spawn(self.post, task.instance_id, Envelope(EndDraining(task.task_id), Reply()))\n        ", ""),
            ),
        ),
    ),
)
