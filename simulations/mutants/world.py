"""The simulated database itself: what a store must not do (A1, D1)."""

from __future__ import annotations

from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Rewrite

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant(
        name="answered-before-sync",
        number=11,
        what="The database answers before a commit is on disk: a crash takes back what was acknowledged.",
        invariants=("A1", "D1", "C1"),
        needs=("shared",),
        patches=(
            Rewrite(
                "simulations.world.database:Database.execute",
                ("if durable_at > self.simulation.now():", "if durable_at > self.simulation.now() + 1.0:"),
            ),
        ),
    ),
)
