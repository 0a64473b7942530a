"""A seed expands into a plan. Every decision is drawn by its own name: another option, another kind of fault, a worker
or an instance more or less shifts nothing else.

In `all` mode everything that can go wrong does. In `swarm` mode one probability is drawn for the plan, and with it each
kind of fault and each hardship of the world is there or not: some bugs show only where other faults do not hide them.
In either, most plans lay weight on something (`simulations.plans.emphasis`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import attrs

from simulations.plans.dice import Dice
from simulations.plans.emphasis import Emphasis, draw_emphasis
from simulations.plans.faults import FAULTS, draw_fault, possible_kinds
from simulations.plans.plan import DATABASE, Fault, FaultKind, InstanceSpec, InvalidPlan, Options, Plan, check
from simulations.workloads.registry import WORKLOADS

__all__ = ["WEIGHTS", "Mode", "Size", "draw_plan"]

Size: TypeAlias = Literal["small", "large"]
Mode: TypeAlias = Literal["all", "swarm"]

_DRIFT = 0.02
_HOUR_MS = 3_600_000

_WEIGHTS = {"sequence": 4, "saga": 4, "wide": 3, "storm": 1, "message_start": 1, "redeployed": 1}
_WEIGHT = 2

WEIGHTS: dict[str, int] = {name: _WEIGHTS.get(name, _WEIGHT) for name in WORKLOADS}
"""The workloads, and how often each is drawn in proportion to the others."""


@attrs.frozen(kw_only=True)
class _Scale:
    """What a size means."""

    nodes: int
    workers: int
    chaos_seconds: float
    instances: int
    storm_workers: tuple[int, ...]
    sqlite: float
    """The chance that the store is a file."""


_SCALES: dict[Size, _Scale] = {
    "small": _Scale(nodes=2, workers=4, chaos_seconds=12.0, instances=10, storm_workers=(0, 0, 0, 4), sqlite=0.2),
    "large": _Scale(nodes=3, workers=10, chaos_seconds=30.0, instances=60, storm_workers=(0, 0, 0, 8), sqlite=0.1),
}

_LAST_SECONDS = (1.1, 2.5)
"""Longer than whoever lives sleeps between two looks into the store."""

_LAST_AMOUNT = 0.5
"""Of those that have one."""

_INSTANCES_MAX = 60
"""About 200 tasks: more of them cost time and show nothing new."""

_LIMITS: dict[str, tuple[int, ...]] = {
    "delivery_timeout_ms": (300, 1_000, 5_000),
    "instance_idle_ms": (200, 2_000, 30_000),
    "topic_idle_ms": (200, 2_000, 30_000),
    "live_instances_max": (3, 20, 10_000),
    "commit_operations_max": (5, 50, 1_000),
    "mailbox_commands_max": (2, 20, 1_000),
    "ready_hints_max": (2, 20, 10_000),
}
"""Limits that nobody notices, however short: with small ones what is seldom happens often."""


def draw_plan(
    seed: int,
    size: Size = "small",
    mode: Mode = "all",
    *,
    instances: int | None = None,
    workloads: Mapping[str, int] | None = None,
    **overrides: Any,
) -> Plan:
    """:param instances: how many; None: as the size says.
    :param workloads: names and weights, in place of `WEIGHTS`.
    :param overrides: fields of `Options` that are given instead of drawn. `kinds` are the faults to draw.
    :raises InvalidPlan: there is no such size, mode or option, or the options contradict each other.
    """
    _check_words(size, mode, overrides, workloads or {})
    dice = Dice(seed, ("plan",))
    emphasis = draw_emphasis(seed)
    hardship = _Hardship(dice, mode, emphasis)
    options = _draw_options(dice, hardship, _SCALES[size], overrides)
    plan = Plan(seed=seed, label=f"{size} {mode} {seed}", options=options)
    check(plan)
    possible = possible_kinds(plan)
    kinds = tuple(overrides.get("kinds", filter(hardship.befalls, possible)))
    if not set(kinds) <= set(possible):
        raise InvalidPlan(f"kinds that cannot befall this world: {', '.join(sorted(set(kinds) - set(possible)))}")
    plan = attrs.evolve(plan, options=attrs.evolve(plan.options, kinds=kinds))
    count = min(_SCALES[size].instances * emphasis.crowd, _INSTANCES_MAX) if instances is None else instances
    plan = attrs.evolve(
        plan,
        faults=_draw_faults(dice.at("fault"), plan, emphasis),
        instances=_draw_instances(dice.at("instance"), count, workloads or _weights(emphasis), _latest(plan, emphasis)),
    )
    check(plan)
    return plan


def _check_words(size: str, mode: str, overrides: Mapping[str, object], workloads: Mapping[str, int]) -> None:
    if size not in _SCALES:
        raise InvalidPlan(f"there is no size {size}, but {', '.join(_SCALES)}")
    if mode not in get_args(Mode):
        raise InvalidPlan(f"there is no mode {mode}, but {', '.join(get_args(Mode))}")
    unknown = sorted(set(overrides) - {field.name for field in attrs.fields(Options)})
    if unknown:
        raise InvalidPlan(f"there is no option {', '.join(unknown)}")
    strange = sorted(set(workloads) - set(WORKLOADS))
    if strange:
        raise InvalidPlan(f"there is no workload {', '.join(strange)}")


class _Hardship:
    """What is hard in this plan's world."""

    def __init__(self, dice: Dice, mode: Mode, emphasis: Emphasis) -> None:
        self.emphasis = emphasis
        self._is_swarm = mode == "swarm"
        self._dice = dice.at("hardship")
        self._probability = 1.0 if mode == "all" else self._dice.between(0.1, 0.9, "probability")

    def strikes(self, name: str) -> bool:
        return self._dice.chance(self._probability, name)

    def befalls(self, kind: FaultKind) -> bool:
        if self._is_swarm and kind in self.emphasis.without:
            return False
        return kind in self.emphasis.faults or kind == self.emphasis.last or self.strikes(kind)


# --- the world -------------------------------------------------------------------------------------------------------


def _draw_options(dice: Dice, hardship: _Hardship, scale: _Scale, overrides: Mapping[str, Any]) -> Options:
    own = dice.at("options")
    drawn: dict[str, Any] = {
        **_draw_fleet(own, hardship, scale),
        **_draw_network(own, hardship),
        **_draw_engine(own, hardship),
        **overrides,
    }
    if drawn["backend"] == "sqlite":
        drawn |= {"nodes": 1, "spare_nodes": 0, "isolation": "serialisable"} | dict(overrides)
    plan = Plan(seed=dice.seed, options=Options(**drawn))
    drawn.setdefault("clocks", _draw_clocks(own.at("clock"), hardship, plan))
    drawn.setdefault("twin_workers", _draw_twins(own, hardship, plan))
    drawn.setdefault("stays_dead", _draw_dead(own, hardship, plan))
    return Options(**drawn)


def _draw_fleet(dice: Dice, hardship: _Hardship, scale: _Scale) -> dict[str, Any]:
    return {
        "nodes": 1 if hardship.emphasis.is_alone else scale.nodes,
        "workers": scale.workers,
        "spare_nodes": 1 if hardship.strikes("spare node") else 0,
        "storm_workers": dice.pick(scale.storm_workers, "storm_workers"),
        "worker_tasks": dice.pick((1, 2, 4), "worker_tasks"),
        "backend": "sqlite" if dice.chance(scale.sqlite, "backend") else "shared",
        "isolation": dice.pick(("serialisable", "read_committed"), "isolation"),
        "schedule": "keyed",
        "chaos_seconds": scale.chaos_seconds,
    }


def _draw_network(dice: Dice, hardship: _Hardship) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "latency": dice.pick(((0.0005, 0.005), (0.0002, 0.002), (0.005, 0.05)), "latency"),
        "database_latency": dice.pick(((0.0003, 0.002), (0.001, 0.01)), "database_latency"),
        "sync_seconds": dice.pick((0.001, 0.004, 0.02), "sync_seconds"),
    }
    hard: dict[str, tuple[float, ...]] = {
        "slow": (0.01, 0.05),
        "fragment": (0.02, 0.1),
        "hint_loss": (0.1, 0.5, 1.0),
        "hint_doubling": (0.1, 0.3),
        "hint_late": (0.05, 0.5),
    }
    return drawn | {name: dice.pick(values, name) for name, values in hard.items() if hardship.strikes(name)}


def _draw_engine(dice: Dice, hardship: _Hardship) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "lock_ms": dice.pick(hardship.emphasis.lock_ms or (1_000, 1_500, 2_500, 4_000), "lock_ms"),
        "limits": {
            name: dice.pick(hardship.emphasis.limits.get(name, values), f"limit {name}")
            for name, values in _LIMITS.items()
            if name in hardship.emphasis.limits or hardship.strikes(f"limit {name}")
        },
    }
    if hardship.strikes("expiries"):
        drawn["lock_expiries_max"] = dice.pick((2, 3, 10), "lock_expiries_max")
    if hardship.strikes("pauses"):
        drawn["pause_seconds"] = dice.pick((0.05, 0.3, 1.5), "pause_seconds")
    if hardship.strikes("tokens"):
        drawn["token_seconds"] = dice.pick((2.0, 5.0), "token_seconds")
    return drawn


def _draw_clocks(dice: Dice, hardship: _Hardship, plan: Plan) -> dict[str, tuple[int, float]]:
    hosts = (*plan.program_hosts, DATABASE)
    clocks = {host: _draw_clock(dice.at(host), hardship) for host in hosts if dice.chance(0.8, f"{host} is wrong")}
    return {host: clock for host, clock in clocks.items() if clock != (0, 1.0)}


def _draw_clock(dice: Dice, hardship: _Hardship) -> tuple[int, float]:
    """Some seconds wrong, or an hour; 2 % too fast or too slow at most."""
    offset_ms = round(dice.between(-5_000, 5_000, "offset")) if hardship.strikes("clock offsets") else 0
    if offset_ms and dice.chance(0.1, "an hour off"):
        offset_ms += dice.pick((-_HOUR_MS, _HOUR_MS), "hour")
    rate = dice.between(1 - _DRIFT, 1 + _DRIFT, "rate") if hardship.strikes("clock drift") else 1.0
    return offset_ms, rate


def _draw_twins(dice: Dice, hardship: _Hardship, plan: Plan) -> dict[str, str]:
    """The second worker calls itself by the first one's name."""
    first_two = plan.worker_hosts[:2]
    if len(first_two) < 2 or not hardship.strikes("twins") or not dice.chance(0.5, "twin_workers"):
        return {}
    return {first_two[1]: first_two[0]}


def _draw_dead(dice: Dice, hardship: _Hardship, plan: Plan) -> tuple[str, ...]:
    """In some plans one node and one worker never come back."""
    if not (hardship.emphasis.loses_hosts or dice.chance(0.25, "stays_dead")):
        return ()
    groups = {"node": plan.node_hosts, "worker": plan.worker_hosts}
    return tuple(dice.favourite(hosts, f"dead {name}") for name, hosts in groups.items() if len(hosts) > 1)


# --- what happens in it ----------------------------------------------------------------------------------------------


def _draw_faults(dice: Dice, plan: Plan, emphasis: Emphasis) -> tuple[Fault, ...]:
    faults = [
        draw_fault(dice, kind, number, plan)
        for kind in plan.options.kinds
        for number in range(1, _how_many(dice, kind, plan.options.chaos_seconds * emphasis.faults.get(kind, 1)) + 1)
    ]
    if emphasis.last in plan.options.kinds:
        faults.append(_draw_last(dice, emphasis.last, plan))
    return tuple(sorted(faults, key=lambda fault: (fault.at, fault.key)))


def _draw_last(dice: Dice, kind: FaultKind, plan: Plan) -> Fault:
    """One that is under way when the safety phase ends. Number 0: it comes on top of the others."""
    fault = draw_fault(dice, kind, 0, plan)
    seconds = dice.at(fault.key).between(*_LAST_SECONDS, "until the end")
    at = round(max(0.0, plan.options.chaos_seconds - seconds), 3)
    return attrs.evolve(fault, at=at, seconds=_LAST_SECONDS[1], amount=fault.amount and _LAST_AMOUNT)


def _how_many(dice: Dice, kind: FaultKind, chaos_seconds: float) -> int:
    """One at least; now and then far more than on average."""
    plenty = dice.pick((0.3, 0.7, 1.0, 2.0), f"how many {kind}")
    return max(1, round(FAULTS[kind].often * plenty * chaos_seconds / 30))


def _weights(emphasis: Emphasis) -> dict[str, int]:
    return {name: weight * emphasis.workloads.get(name, 1) for name, weight in WEIGHTS.items()}


def _latest(plan: Plan, emphasis: Emphasis) -> float:
    """Until when instances are started: most plans leave them time to get into trouble."""
    return plan.options.chaos_seconds * (0.8 if emphasis.last is None else 1.0)


def _draw_instances(dice: Dice, count: int, workloads: Mapping[str, int], latest: float) -> tuple[InstanceSpec, ...]:
    specs = [_draw_instance(dice, f"i{number}", latest, workloads) for number in range(1, count + 1)]
    return tuple(sorted(specs, key=lambda spec: (spec.at, spec.key)))


def _draw_instance(dice: Dice, key: str, latest: float, workloads: Mapping[str, int]) -> InstanceSpec:
    own = dice.at(key)
    return InstanceSpec(
        key=key,
        kind=own.weighted(workloads, "kind"),
        at=round(own.between(0.1, max(0.1, latest), "at"), 3),
        seed=own.number(),
    )
