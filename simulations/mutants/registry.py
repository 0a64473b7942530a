"""All deliberate bugs, by name."""

from __future__ import annotations

from collections.abc import Mapping

from simulations.mutants import (
    batching,
    commits,
    leases,
    recovery,
    retries,
    sagas,
    tokens,
    waiting,
    worker_kit,
    world,
)
from simulations.mutants.mutant import Mutant

__all__ = ["FAMILIES", "MUTANTS", "Mutant"]

FAMILIES: Mapping[str, tuple[Mutant, ...]] = {
    "leases": leases.MUTANTS,
    "commits": commits.MUTANTS,
    "batching": batching.MUTANTS,
    "retries": retries.MUTANTS,
    "recovery": recovery.MUTANTS,
    "sagas": sagas.MUTANTS,
    "tokens": tokens.MUTANTS,
    "timers and messages": waiting.MUTANTS,
    "worker": worker_kit.MUTANTS,
    "database": world.MUTANTS,
}

MUTANTS: Mapping[str, Mutant] = {mutant.name: mutant for family in FAMILIES.values() for mutant in family}
