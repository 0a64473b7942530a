"""What the mutants put in the place of the engine's own values and functions."""

from __future__ import annotations

import attrs

from stellwerk.actors.views import state_of
from stellwerk.core.evolve import fold
from stellwerk.core.facts import CompensationStarted, Fact
from stellwerk.core.history import decode_state
from stellwerk.core.instance import InstanceState
from stellwerk.core.lease import Release, apply_lease_command
from stellwerk.instants import InstantMs
from stellwerk.ports import Changeset, ExpiredLocks, ExpireLocks, StoredInstance
from stellwerk.stores.tables import Tables
from stellwerk.values import frozen

__all__ = [
    "ExpireLocksAt",
    "ForgetLeases",
    "UnguardedChangeset",
    "forget_leases",
    "state_that_forgot_its_handlers",
    "unguarded",
]

_END_OF_TIME_MS = 2**52


@frozen
class ExpireLocksAt(ExpireLocks):
    """Reclaim what has run out by the clock of whoever asks."""

    now_ms: InstantMs = 0


@frozen(kw_only=True)
class UnguardedChangeset(Changeset):
    """Its version was compared before, somewhere else."""


def unguarded(changeset: Changeset) -> Changeset:
    """The first step of an instance stays guarded: its row is inserted."""
    if changeset.expected_version == 0:
        return changeset
    return UnguardedChangeset(**{field.name: getattr(changeset, field.name) for field in attrs.fields(Changeset)})


def state_that_forgot_its_handlers(stored: StoredInstance) -> InstanceState:
    """Of compensations that are under way it is known what there was to undo, but not what has been undone since."""
    state = state_of(stored)
    facts: list[Fact] = []
    for fact in (fact for step in stored.steps for fact in step.facts):
        facts.append(fact)
        if isinstance(fact, CompensationStarted) and fact.compensation_id in state.compensations:
            begun = fold(None if stored.snapshot is None else decode_state(stored.snapshot), facts)
            now = state.compensations[fact.compensation_id]
            pending = begun.compensations[fact.compensation_id].pending
            state.compensations[now.id] = attrs.evolve(now, pending=pending)
    return state


@frozen
class ForgetLeases(ExpireLocks):
    """Take back every lock, whoever holds it and until when."""


def forget_leases(tables: Tables, limit: int, now_ms: InstantMs) -> ExpiredLocks:
    returned = []
    for needs_instance in (False, True):
        for task in tables.past_due(_END_OF_TIME_MS, limit, needs_instance=needs_instance):
            released, attempt, _ = apply_lease_command(task, Release(task.fence, None, started=False), now_ms)
            if attempt is not None:
                tables.update_task(released)
                tables.insert_attempt(attempt)
                returned.append(released)
    return ExpiredLocks(tuple(returned), (), None, now_ms)
