"""The worker's half of the protocol: what it believes, reports and repeats (L6, K1; rules 16 and 18)."""

from __future__ import annotations

from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Rewrite

__all__ = ["MUTANTS"]

_TABLE = "stellwerk.worker.leases:LeaseTable"
_RUN = "stellwerk.worker.runtime:WorkerRun"

MUTANTS = (
    Mutant(
        name="deadline-without-margin",
        what="The worker counts a lease from the arrival of its frame, however long that was under way.",
        invariants=("K1", "L6"),
        patches=(
            Rewrite(
                "stellwerk.worker.session:Session._deadline_ms",
                ("lease_deadline_ms(made_ms, lock_remaining_ms)", "self._now_ms() + lock_remaining_ms"),
            ),
        ),
    ),
    Mutant(
        name="worker-trusts-on",
        what="The worker gives a renewal that is late two more seconds before it lets a lease go.",
        invariants=("L6", "K1"),
        patches=(
            Rewrite(
                f"{_RUN}._expire_leases",
                (
                    "self._table.pop_expired(self._clock.monotonic() * 1000)",
                    "self._table.pop_expired(self._clock.monotonic() * 1000 - 2000)",
                ),
            ),
            Rewrite(
                f"{_RUN}._watch_deadlines",
                (
                    "self._watched_ms / 1000 - self._clock.monotonic()",
                    "self._watched_ms / 1000 + 2.0 - self._clock.monotonic()",
                ),
            ),
        ),
    ),
    Mutant(
        name="revoked-lease-goes-on",
        what="A renewal that crosses with a revocation is believed: the handler goes on.",
        invariants=("L6", "K1"),
        patches=(
            Rewrite(
                f"{_RUN}.revoked",
                (
                    "lease = self._table.revoke(key, reason)",
                    'lease = None if reason == "lost" else self._table.revoke(key, reason)',
                ),
            ),
        ),
    ),
    Mutant(
        name="report-leaves-out-finals",
        what="A lease whose result is under way is not reported, and the engine takes such leases back (rule 16).",
        invariants=("H1",),
        patches=(
            Rewrite(
                f"{_TABLE}.holding", ("if lease.revoked is None)", "if lease.revoked is None and lease.final is None)")
            ),
            Rewrite(
                "stellwerk.actors.session:WorkerSession._reconcile",
                ("and not self.pending[held.task_id, held.fence]\n", "\n"),
            ),
        ),
    ),
    Mutant(
        name="unanswered-result-not-repeated",
        what="A result whose answer got lost with the connection is not told again in the next one: its lease is held "
        "for ever.",
        invariants=("H2", "V1", "V2"),
        patches=(
            Rewrite(
                "stellwerk.worker.finals:Finals._send_waiting",
                ("if lease.sent_in != self._session_number", "if lease.sent_in == 0"),
            ),
        ),
    ),
)
