"""From a plan that fails to a small one that fails in the same way.

Plans are tried, never understood: one that breaks the same invariant takes the place of the one before. What a plan
draws belongs to keys, so that what is taken away shifts nothing that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import attrs

from simulations.plans.fitting import fitted
from simulations.plans.plan import Fault, InstanceSpec, InvalidPlan, Options, Plan
from simulations.plans.plan import check as check_plan

__all__ = ["Oracle", "Shrinker", "Stopped", "minimal_subset"]

T = TypeVar("T")

_ROUNDS_MAX = 4
_SEEDS = 4
"""Where each candidate is tried with several: a coincidence may come about with another one."""
_GUESS_SEEDS = 12
"""A guess that is right saves hundreds of runs, and takes little time for each."""
_COARSE_PARTS = 4
_COUNTS = ("storm_workers", "workers", "spare_nodes", "nodes")
_LEAST = {"workers": 1, "nodes": 1}
_KEPT = (*_COUNTS, "chaos_seconds", "kinds", "backend", "schedule", "lock_ms", "stays_dead", "clocks", "limits")
"""Options that have a way of their own, or none."""
_FRACTIONS = (0.1, 0.25, 0.5)
_AFTER = 0.05
"""Seconds of safety phase that are left behind the last fault."""


class Stopped(Exception):
    """There is no time for more runs. What was reached so far counts."""


class Oracle(Protocol):
    def first(self, plans: Sequence[Plan]) -> int | None:
        """The first one that fails in the way that is looked for; None: none does.

        :raises Stopped: see there.
        """


class Shrinker:
    """Call `run`; `plan` is the smallest so far at any time."""

    def __init__(
        self,
        plan: Plan,
        violated_at: float,
        oracle: Oracle,
        report: Callable[[str], None],
        guesses: Sequence[Plan] = (),
    ) -> None:
        """:param violated_at: seconds: what happens later cannot be to blame.
        :param report: is told of every step that made it smaller.
        :param guesses: much smaller plans that may well fail too; the first that does is where it begins."""
        self.plan = plan
        self._guesses = guesses
        self._seeds = _GUESS_SEEDS
        self._parts_max: int | None = _COARSE_PARTS
        self._violated_at = violated_at
        self._oracle = oracle
        self._report = report

    def run(self) -> Plan:
        """Until a whole round made nothing smaller, or there is no time for more. First in large steps, which are worth
        several seeds each; then in small ones; then these with several seeds."""
        try:
            is_right = self._try("what the slice does not touch is left out", self._guesses)
            self._seeds = _SEEDS
            if not is_right:
                self._drop_later()
            self._shrink_instances()
            self._shrink_faults()
            self._shrink_counts()
            self._parts_max = None
            for self._seeds in (1, _SEEDS):
                self._rounds()
        except Stopped:
            self._report("stopped: there may be a smaller one")
        return self.plan

    def _rounds(self) -> None:
        for _ in range(_ROUNDS_MAX):
            before = self.plan
            self._round()
            if self.plan == before:
                return

    def _round(self) -> None:
        self._shrink_faults()
        self._shrink_instances()
        self._shrink_counts()
        self._calm_options()
        self._calm_hosts()
        self._calm_instances()
        self._shorten_faults()
        self._shorten_chaos()
        self._try("the order of tasks does not matter: fifo", [fitted(self.plan, schedule="fifo")])

    def _try(self, what: str, plans: Iterable[Plan]) -> bool:
        """The first of these plans that still fails is the new one."""
        candidates = [plan for plan in plans if plan != self.plan and _is_valid(plan)]
        if self._choose(candidates) is None:
            return False
        self._report(what)
        return True

    def _choose(self, plans: Sequence[Plan]) -> int | None:
        """The index of the first that still fails, which is the new one. With another seed, the same happens at other
        moments: what fails only by a coincidence has several chances."""
        variants = [attrs.evolve(plan, seed=plan.seed + more) for plan in plans for more in range(self._seeds)]
        index = self._oracle.first(variants) if variants else None
        if index is None:
            return None
        self.plan = variants[index]
        return index // self._seeds

    # --- what happens ----------------------------------------------------------------------------------------------

    def _drop_later(self) -> None:
        at, plan = self._violated_at, self.plan
        faults = tuple(fault for fault in plan.faults if fault.at <= at)
        instances = tuple(spec for spec in plan.instances if spec.at <= at)
        both = attrs.evolve(plan, faults=faults, instances=instances)
        if not self._try("what is later than the violation is left out", [both]):
            self._try("faults later than the violation are left out", [attrs.evolve(plan, faults=faults)])

    def _shrink_faults(self) -> None:
        def with_faults(faults: Sequence[Fault]) -> Plan:
            return attrs.evolve(self.plan, faults=tuple(faults))

        before = len(self.plan.faults)
        minimal_subset(self.plan.faults, lambda subsets: self._choose(list(map(with_faults, subsets))), self._parts_max)
        if len(self.plan.faults) < before:
            self._report(f"faults {before} → {len(self.plan.faults)}")

    def _shrink_instances(self) -> None:
        def with_instances(specs: Sequence[InstanceSpec]) -> Plan:
            return attrs.evolve(self.plan, instances=tuple(specs))

        before = len(self.plan.instances)
        minimal_subset(
            self.plan.instances, lambda subsets: self._choose(list(map(with_instances, subsets))), self._parts_max
        )
        if len(self.plan.instances) < before:
            self._report(f"instances {before} → {len(self.plan.instances)}")

    def _shorten_faults(self) -> None:
        for key in [fault.key for fault in self.plan.faults]:
            for name in ("seconds", "amount"):
                fault = next(fault for fault in self.plan.faults if fault.key == key)
                value = getattr(fault, name)
                shorter = [round(value * fraction, 3) for fraction in _FRACTIONS]
                plans = [self._with_fault(attrs.evolve(fault, **{name: less})) for less in shorter if 0 < less < value]
                self._try(f"{name} of {key} made smaller", plans)

    def _with_fault(self, changed: Fault) -> Plan:
        faults = tuple(changed if fault.key == changed.key else fault for fault in self.plan.faults)
        return attrs.evolve(self.plan, faults=faults)

    def _calm_instances(self) -> None:
        for key in [spec.key for spec in self.plan.instances]:
            spec = next(spec for spec in self.plan.instances if spec.key == key)
            if spec.options and not self._try(f"{key} with no options", [self._with_instance(key, {})]):
                for name in list(spec.options):
                    now = next(spec for spec in self.plan.instances if spec.key == key).options
                    rest = {other: value for other, value in now.items() if other != name}
                    self._try(f"{key} without {name}", [self._with_instance(key, rest)])

    def _with_instance(self, key: str, options: dict[str, Any]) -> Plan:
        return attrs.evolve(
            self.plan,
            instances=tuple(
                attrs.evolve(spec, options=options) if spec.key == key else spec for spec in self.plan.instances
            ),
        )

    # --- the world -------------------------------------------------------------------------------------------------

    def _shrink_counts(self) -> None:
        for name in _COUNTS:
            count, least = getattr(self.plan.options, name), _LEAST.get(name, 0)
            fewer = sorted({least, *(least + (count - least) * step // 4 for step in (1, 2, 3)), count - 1})
            plans = [fitted(self.plan, **{name: number}) for number in fewer if least <= number < count]
            if self._choose([plan for plan in plans if _is_valid(plan)]) is not None:
                self._report(f"{name.replace('_', ' ')} {count} → {getattr(self.plan.options, name)}")

    def _calm_options(self) -> None:
        calm = Options()
        names = [field.name for field in attrs.fields(Options) if field.name not in _KEPT]
        for name in names:
            if getattr(self.plan.options, name) != getattr(calm, name):
                self._try(f"{name} as usual", [fitted(self.plan, **{name: getattr(calm, name)})])

    def _calm_hosts(self) -> None:
        """Options with an entry for each host or limit: all at once, or one after the other."""
        for name in ("clocks", "limits"):
            entries: dict[str, object] = getattr(self.plan.options, name)
            if entries and not self._try(f"no {name}", [fitted(self.plan, **{name: {}})]):
                for key in list(entries):
                    now = getattr(self.plan.options, name)
                    rest = {other: value for other, value in now.items() if other != key}
                    self._try(f"{name} without {key}", [fitted(self.plan, **{name: rest})])
        for host in self.plan.options.stays_dead:
            rest_dead = tuple(other for other in self.plan.options.stays_dead if other != host)
            self._try(f"{host} comes back", [fitted(self.plan, stays_dead=rest_dead)])

    def _shorten_chaos(self) -> None:
        """To just behind the last fault, or wherever it still fails."""
        now = self.plan.options.chaos_seconds
        last = max((fault.at + fault.seconds for fault in self.plan.faults), default=0.0) + _AFTER
        begun = max((fault.at for fault in self.plan.faults), default=0.0) + _AFTER
        ends = [begun, last, self._violated_at + _AFTER, *(now * fraction for fraction in _FRACTIONS)]
        shorter = sorted({round(end, 3) for end in ends if begun <= end < now})
        self._try("a shorter safety phase", [fitted(self.plan, chaos_seconds=end) for end in shorter])
        kinds = tuple(dict.fromkeys(fault.kind for fault in self.plan.faults))
        self.plan = attrs.evolve(self.plan, options=attrs.evolve(self.plan.options, kinds=kinds))


def _is_valid(plan: Plan) -> bool:
    try:
        check_plan(plan)
    except InvalidPlan:
        return False
    return True


def minimal_subset(
    items: Sequence[T], choose: Callable[[Sequence[Sequence[T]]], int | None], parts_max: int | None = None
) -> Sequence[T]:
    """Zeller's ddmin: a subset from which no item can be left out.

    :param choose: the index of the first subset that still fails, None where none does.
    :param parts_max: the items are cut into no more parts than that, and the subset is not minimal then.
    """
    parts = 1  # at first, whether it fails without any of them
    while items:
        subsets = list(_complements(items, parts))
        index = choose(subsets)
        if index is not None:
            items = subsets[index]
            parts = max(parts - 1, 2)
        elif parts >= min(len(items), parts_max or len(items)):
            break
        else:
            parts = min(len(items), parts * 2)
        parts = min(parts, max(1, len(items)))
    return items


def _complements(items: Sequence[T], parts: int) -> Iterator[Sequence[T]]:
    """The items without one of so many parts, the last part first: what came late is the likeliest to be in vain."""
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    for start, end in reversed(list(pairwise(bounds))):
        yield [*items[:start], *items[end:]]
