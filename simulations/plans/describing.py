"""A plan for people: what the world is like, and what happens in it when."""

from __future__ import annotations

from collections import Counter

import attrs

from simulations.plans.faults import describe_fault
from simulations.plans.plan import Fault, InstanceSpec, Options, Plan

__all__ = ["describe"]

_SHOWN = ("nodes", "workers", "backend", "isolation", "chaos_seconds", "kinds", "clocks", "twin_workers", "limits")
"""Options with a line or a place of their own."""


def describe(plan: Plan) -> list[str]:
    """Lines without line ends."""
    return [
        _title(plan),
        *_world(plan.options),
        *_clocks(plan),
        f"instances: {_kinds_of(plan.instances)}",
        *(f"  {spec.at:9.3f} s  {_instance(spec)}" for spec in plan.instances),
        f"faults: {len(plan.faults)}",
        *(f"  {fault.at:9.3f} s  {_fault(fault)}" for fault in plan.faults),
    ]


def _title(plan: Plan) -> str:
    options = plan.options
    label = f" ({plan.label})" if plan.label else ""
    store = f"a database, {options.isolation}" if options.backend == "shared" else "a SQLite file"
    return (
        f"seed {plan.seed}{label}: {_count(options.nodes, 'node')}, {_count(options.workers, 'worker')}, {store}, "
        f"faults for {options.chaos_seconds:g} s"
    )


def _world(options: Options) -> list[str]:
    """What differs from the calmest world."""
    calm = Options()
    names = [field.name for field in attrs.fields(Options) if field.name not in _SHOWN]
    lines = [f"  {name} {_value(getattr(options, name))}" for name in names if _differs(options, calm, name)]
    lines += [f"  limit {name} {value}" for name, value in options.limits.items()]
    return lines + [f"  {host} calls itself {name}" for host, name in options.twin_workers.items()]


def _differs(options: Options, calm: Options, name: str) -> bool:
    return bool(getattr(options, name) != getattr(calm, name))


def _clocks(plan: Plan) -> list[str]:
    return [
        f"  clock of {host}: {offset_ms:+d} ms, {(rate - 1) * 100:+.2f} %"
        for host, (offset_ms, rate) in plan.options.clocks.items()
    ]


def _kinds_of(specs: tuple[InstanceSpec, ...]) -> str:
    kinds = Counter(spec.kind for spec in specs)
    return (
        f"{len(specs)} ({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})" if specs else "none"
    )


def _instance(spec: InstanceSpec) -> str:
    options = "".join(f" {name}={value}" for name, value in spec.options.items())
    return f"{spec.key}: {spec.kind}{options}"


def _fault(fault: Fault) -> str:
    return f"{fault.key}: {describe_fault(fault)}"


def _value(value: object) -> str:
    return " to ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
