"""Who may do what with a lease: fences, ends, holders, renewals (L1 to L6)."""

from __future__ import annotations

from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Attribute, Entry, Rewrite
from simulations.mutants.substitutes import ExpireLocksAt
from stellwerk.core.external_task import TaskState
from stellwerk.core.lease import LeaseCommandKind

__all__ = ["MUTANTS"]

_LEASE = "stellwerk.core.lease"
_FENCE_CHECK = "if fence != task.fence:"


def _needs_no_live_lease(*kinds: LeaseCommandKind) -> Attribute:
    def without(all_kinds: frozenset[LeaseCommandKind]) -> object:
        return all_kinds - frozenset(kinds)

    return Attribute(f"{_LEASE}:_NEEDS_LIVE_LEASE", without)


MUTANTS = (
    Mutant(
        name="completion-by-anybody",
        number=1,
        what="A completion is taken from whoever sends it: neither fence nor worker are compared.",
        invariants=("L5", "A1"),
        patches=(
            Rewrite(
                f"{_LEASE}:_refusal",
                (_FENCE_CHECK, "if fence != task.fence and kind is not _Kind.COMPLETE:"),
            ),
            Rewrite(
                f"{_LEASE}:_may_end",
                (
                    "if _is_foreign(task, command.worker_id):",
                    "if command.outcome is not OutcomeKind.COMPLETE and _is_foreign(task, command.worker_id):",
                ),
            ),
        ),
    ),
    Mutant(
        name="completion-without-fence",
        number=2,
        what="A completion's fence is not compared: an earlier lease of the same worker will do.",
        invariants=("L5", "A1"),
        patches=(
            Rewrite(
                f"{_LEASE}:_refusal",
                (_FENCE_CHECK, "if fence != task.fence and kind is not _Kind.COMPLETE:"),
            ),
        ),
    ),
    Mutant(
        name="completion-after-expiry",
        number=3,
        what="A completion is taken for a lock that has run out, as long as nobody else has leased the task since.",
        invariants=("L5",),
        patches=(
            _needs_no_live_lease(LeaseCommandKind.COMPLETE),
            Entry(
                f"{_LEASE}:TRANSITIONS",
                (TaskState.READY, LeaseCommandKind.COMPLETE),
                (TaskState.COMPLETED,),
            ),
        ),
    ),
    Mutant(
        name="cancelled-lease-goes-on",
        number=4,
        what="A final state is overwritten: the lease of a task that was cancelled is renewed, and kept at a hello.",
        invariants=("F1",),
        patches=(
            Entry(f"{_LEASE}:TRANSITIONS", (TaskState.CANCELLED, LeaseCommandKind.RENEW), (TaskState.CANCELLED,)),
            Entry(f"{_LEASE}:TRANSITIONS", (TaskState.CANCELLED, LeaseCommandKind.EXTEND), (TaskState.CANCELLED,)),
            Entry(f"{_LEASE}:TRANSITIONS", (TaskState.CANCELLED, LeaseCommandKind.RESUME), (TaskState.CANCELLED,)),
        ),
    ),
    Mutant(
        name="fence-not-raised",
        number=5,
        what="A task that is leased again keeps the fence of its lease before.",
        invariants=("L2",),
        patches=(Rewrite(f"{_LEASE}:_lease", ("fence = max(task.fence + 1, now_ms)", "fence = task.fence or now_ms")),),
    ),
    Mutant(
        name="lease-not-conditional",
        number=6,
        what="Leasing is no conditional update: who selected the task first does not keep it from the second.",
        invariants=("L1",),
        patches=(
            Entry(
                f"{_LEASE}:TRANSITIONS",
                (TaskState.LOCKED, LeaseCommandKind.LEASE),
                (TaskState.LOCKED,),
            ),
        ),
    ),
    Mutant(
        name="expiry-by-node-clock",
        number=7,
        what="The sweep judges locks by the wall clock of its node instead of the store's.",
        # P0: the store asserts that what its query selects is past due for the lease machine too.
        invariants=("L4", "P0", "V1", "V2"),
        patches=(
            Rewrite(
                "stellwerk.actors.clockwork:Clockwork.reclaim_locks",
                (
                    "expiry_ms, now_ms = await self._services.ports.store.next_lock_expiry()",
                    "expiry_ms, now_ms = await self._services.ports.store.next_lock_expiry()\n"
                    "        now_ms = self._clock.wall_ms()",
                ),
            ),
            Rewrite(
                "stellwerk.actors.clockwork:Clockwork._reclaim",
                ("ExpireLocks(_BATCH)", "ExpireLocksAt(_BATCH, self._clock.wall_ms())"),
                ExpireLocksAt=ExpireLocksAt,
            ),
            Rewrite(
                "stellwerk.stores.operations:_apply_lease_operation",
                (
                    "leases.expire_locks(tables, operation.limit, now_ms)",
                    'leases.expire_locks(tables, operation.limit, getattr(operation, "now_ms", now_ms))',
                ),
            ),
        ),
    ),
    Mutant(
        name="renewal-revives-expired-lock",
        number=8,
        what="A lock that has run out is renewed, extended or kept at a hello, as long as nobody else has the task.",
        invariants=("L3", "F2"),
        patches=(
            _needs_no_live_lease(LeaseCommandKind.EXTEND, LeaseCommandKind.RENEW, LeaseCommandKind.RESUME),
            Entry(f"{_LEASE}:TRANSITIONS", (TaskState.READY, LeaseCommandKind.EXTEND), (TaskState.READY,)),
            Entry(f"{_LEASE}:TRANSITIONS", (TaskState.READY, LeaseCommandKind.RENEW), (TaskState.READY,)),
            Entry(f"{_LEASE}:TRANSITIONS", (TaskState.READY, LeaseCommandKind.RESUME), (TaskState.READY,)),
        ),
    ),
    Mutant(
        name="renewal-counts-from-answer",
        what="A renewed lease is trusted from the moment of the store's answer on, not from before the question.",
        invariants=("L6", "K1"),
        patches=(
            Rewrite(
                "stellwerk.actors.dispatcher:TopicDispatcher._renew",
                (
                    "self._renewal_answered(held, answer, began, renewed)",
                    "self._renewal_answered(held, answer, self._clock.monotonic(), renewed)",
                ),
            ),
            Rewrite(
                "stellwerk.actors.dispatcher:TopicDispatcher._hand_out",
                ("self._deliver(leased, began)", "self._deliver(leased, self._clock.monotonic())"),
            ),
        ),
    ),
    Mutant(
        name="kept-lease-told-whole",
        what="A worker that comes back is told that its leases last as long as new ones.",
        invariants=("L6", "K1"),
        patches=(
            Rewrite(
                "stellwerk.actors.leases:deadline_of",
                (
                    "max(0, task.lease.until_ms - task.updated_at_ms - 1)",
                    "max(task.lease.duration_ms, task.lease.until_ms - task.updated_at_ms - 1)",
                ),
            ),
        ),
    ),
    Mutant(
        name="kept-lease-not-moved",
        what="A lease that a hello keeps stays that of the earlier connection, which may take it back (rule 17).",
        invariants=("L1",),
        patches=(
            Rewrite(
                f"{_LEASE}:_apply",
                (
                    "return _with_lease(task, now_ms, holder=command.holder), None",
                    "return _with_lease(task, now_ms), None",
                ),
            ),
        ),
    ),
    Mutant(
        name="silent-worker-renewed",
        what="Leases are renewed for as long as their worker's connection stands, whether it reports them or is dead, "
        "and silence does not end the connection (rule 18).",
        invariants=("V1", "V2", "L7"),
        patches=(
            Rewrite(
                "stellwerk.actors.session:WorkerSession.watch",
                ("if self._silent_for() >", "if 0 * self._silent_for() >"),
            ),
            Rewrite(
                "stellwerk.actors.session:WorkerSession.vouches_for",
                ("return not self.closed and report_is_fresh(age_ms, self._heartbeat_ms) and", "return age_ms >= 0 or"),
            ),
        ),
    ),
)
