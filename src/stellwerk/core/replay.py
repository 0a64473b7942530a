"""The state that an instance had after any of its steps, folded anew from its first fact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

from stellwerk.core.evolve import fold
from stellwerk.core.facts import Fact
from stellwerk.core.instance import InstanceState
from stellwerk.errors import InvalidInput, InvariantBroken
from stellwerk.instants import InstantMs

__all__ = ["RecordedStep", "replay"]


class RecordedStep(Protocol):
    """One step of a history, as a store gives it back."""

    @property
    def version(self) -> int:
        """From 1, without gaps."""

    @property
    def at_ms(self) -> InstantMs:
        """Wall clock."""

    @property
    def facts(self) -> Sequence[Fact]: ...


def replay(steps: Sequence[RecordedStep], at: int | None = None) -> InstanceState:
    """The state after the step with version `at`; None: after the newest one.

    :param steps: the whole history, from the first step on.
    :raises InvalidInput: when there is no such step; the message names those that there are.
    :raises InvariantBroken: when the history does not begin at its beginning or has a gap.
    """
    if not steps:
        raise InvariantBroken("an empty history has no state")
    last = len(steps)
    wanted = last if at is None else at
    if not 1 <= wanted <= last:
        raise InvalidInput(f"there is no step {wanted}: the instance has steps 1 to {last} @ $.at")
    return fold(None, chain.from_iterable(_in_order(steps[:wanted])))


def _in_order(steps: Sequence[RecordedStep]) -> Iterator[Sequence[Fact]]:
    for expected, step in enumerate(steps, start=1):
        if step.version != expected:
            raise InvariantBroken(f"the history has no step {expected}: step {step.version} stands in its place")
        yield step.facts
