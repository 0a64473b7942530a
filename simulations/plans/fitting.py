"""What is left of a plan when options are taken away: whoever shrinks it, takes away hosts, and all that befell them
goes with them."""

from __future__ import annotations

from typing import Any

import attrs

from simulations.plans.faults import possible_kinds
from simulations.plans.plan import SITES, Options, Plan

__all__ = ["fitted"]


def fitted(plan: Plan, **options: Any) -> Plan:
    """The plan with these fields of `Options`, without the faults, clocks, twins and dead hosts of hosts that are no
    more, and without faults that can befall no host of it. What is left is as it was."""
    bare = attrs.evolve(plan, options=attrs.evolve(plan.options, **options))
    plan = attrs.evolve(bare, options=_fitted_options(bare))
    hosts, kinds = {*plan.hosts, *SITES, ""}, set(possible_kinds(plan))
    faults = (fault for fault in plan.faults if fault.kind in kinds and {fault.host, fault.other} <= hosts)
    return attrs.evolve(plan, faults=tuple(faults))


def _fitted_options(plan: Plan) -> Options:
    options, hosts, kinds = plan.options, set(plan.hosts), possible_kinds(plan)
    return attrs.evolve(
        options,
        kinds=tuple(kind for kind in options.kinds if kind in kinds),
        clocks={host: clock for host, clock in options.clocks.items() if host in hosts},
        twin_workers={host: name for host, name in options.twin_workers.items() if host in hosts},
        stays_dead=_fitted_dead(plan),
    )


def _fitted_dead(plan: Plan) -> tuple[str, ...]:
    """One node and one worker are left to do the work."""
    dead = [host for host in plan.options.stays_dead if host in plan.hosts]
    for group in (plan.node_hosts, plan.worker_hosts):
        if set(group) <= set(dead):
            dead = [host for host in dead if host not in group]
    return tuple(dead)
