"""Whether plans fail in the way that is looked for: run here, or several at once in other processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from simulations.plans.plan import Plan, to_json
from simulations.tools.children import ChildFailed, Children
from simulations.tools.outcomes import Outcome, Simulate
from simulations.tools.shrinking import Stopped

__all__ = ["HereOracle", "PoolOracle"]


class _Counting:
    """Both kinds count their runs, remember what they saw and end in time."""

    def __init__(
        self, signature: str, *, mutant: str | None, seconds_max: float, progress: Callable[[int], None]
    ) -> None:
        self.runs = 0
        self._signature = signature
        self._mutant = mutant
        self._deadline = time.monotonic() + seconds_max
        self._progress = progress
        self._seen: dict[str, bool] = {}

    def _known(self, plan: Plan) -> bool | None:
        return self._seen.get(to_json(plan))

    def _judge(self, plan: Plan, outcome: Outcome | None) -> bool:
        """None: the run broke; that is another way of failing."""
        self.runs += 1
        self._progress(self.runs)
        fails = outcome is not None and outcome.signature == self._signature
        self._seen[to_json(plan)] = fails
        return fails

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise Stopped


class HereOracle(_Counting):
    def __init__(
        self,
        simulate: Simulate,
        signature: str,
        *,
        mutant: str | None = None,
        seconds_max: float = float("inf"),
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """:param signature: of the way of failing that is looked for (`Outcome.signature`).
        :param progress: is told how many runs there were."""
        super().__init__(signature, mutant=mutant, seconds_max=seconds_max, progress=progress)
        self._simulate = simulate

    def first(self, plans: Sequence[Plan]) -> int | None:
        return next((index for index, plan in enumerate(plans) if self._fails(plan)), None)

    def _fails(self, plan: Plan) -> bool:
        known = self._known(plan)
        if known is not None:
            return known
        self._check_time()
        return self._judge(plan, Outcome.of(self._simulate(plan, mutant=self._mutant)))


class PoolOracle(_Counting):
    """Several candidates at once; the answer is the one that the other oracle would give."""

    def __init__(
        self,
        children: Children,
        signature: str,
        *,
        jobs: int,
        mutant: str | None = None,
        seconds_max: float = float("inf"),
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(signature, mutant=mutant, seconds_max=seconds_max, progress=progress)
        self._children = children
        self._jobs = jobs

    def first(self, plans: Sequence[Plan]) -> int | None:
        ahead: dict[int, Future[Outcome]] = {}
        for index, plan in enumerate(plans):
            for further in range(index, min(index + self._jobs, len(plans))):
                if further not in ahead and self._known(plans[further]) is None:
                    self._check_time()
                    ahead[further] = self._children.submit(plans[further], mutant=self._mutant)
            known = self._known(plan)
            if known if known is not None else self._judge(plan, _outcome(ahead[index])):
                for future in ahead.values():
                    future.cancel()
                return index
        return None


def _outcome(future: Future[Outcome]) -> Outcome | None:
    try:
        return future.result()
    except ChildFailed:
        return None
