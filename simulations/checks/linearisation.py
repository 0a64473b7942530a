"""Is there an order of the calls in which the sequential model gives exactly these answers? (Wing and Gong, 1993)

A call that ended before another began comes before it. One without an answer may come anywhere after its beginning, or
never. Positions that were tried are remembered, as Lowe does.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import attrs

from simulations.checks.sequential_task import UNKNOWN, Call, SequentialTask, followers

__all__ = ["Verdict", "linearisable"]


class Verdict(Enum):
    POSSIBLE = "possible"
    IMPOSSIBLE = "impossible"
    UNDECIDED = "undecided"
    """Too many orders; nothing is said."""


@attrs.define
class _Search:
    calls: Sequence[Call]
    steps_left: int
    tried: set[tuple[int, SequentialTask]] = attrs.field(factory=set)

    def run(self, done: int, task: SequentialTask) -> bool:
        """Depth first, without recursion: histories of a storm are long."""
        stack = [(done, task)]
        must = sum(1 << place for place, call in enumerate(self.calls) if call.answer != UNKNOWN)
        while stack and self.steps_left > 0:
            done, task = stack.pop()
            if (done, task) in self.tried:
                continue
            self.tried.add((done, task))
            self.steps_left -= 1
            if done & must == must:
                return True
            stack.extend(self._next(done, task))
        return False

    def _next(self, done: int, task: SequentialTask) -> list[tuple[int, SequentialTask]]:
        left = [(place, call) for place, call in enumerate(self.calls) if not done >> place & 1]
        first_end = min(call.ended for _, call in left)
        return [
            (done | 1 << place, after)
            for place, call in reversed(left)
            if call.began <= first_end
            for after in followers(task, call)
        ]


def linearisable(calls: Sequence[Call], steps_max: int = 5_000) -> Verdict:
    ordered = sorted(calls, key=lambda call: (call.ended, call.began, call.fence))
    search = _Search(ordered, steps_max)
    if search.run(0, SequentialTask()):
        return Verdict.POSSIBLE
    return Verdict.UNDECIDED if search.steps_left <= 0 else Verdict.IMPOSSIBLE
