"""The kinds of faults, one description for each: what it is called, how often it befalls a run, what is drawn for it,
and what it does when."""

from __future__ import annotations

import attrs

from simulations.plans import deeds
from simulations.plans.deeds import Script, Step, from_to, once, phase
from simulations.plans.dice import Dice
from simulations.plans.fault_draws import (
    BRIEF,
    LONG,
    SHORT,
    DrawFields,
    database_jump,
    hint_phase,
    jump,
    numbered,
    on_database,
    on_link,
    on_node,
    on_spare,
    on_worker,
    one_way,
    restart,
    site,
    to_database,
)
from simulations.plans.plan import Backend, Fault, FaultKind, Plan

__all__ = ["FAULTS", "FaultDescription", "describe_fault", "draw_fault", "possible_kinds", "steps_of"]

_AT_FIRST = 0.3
"""Seconds in which everybody may find each other."""


@attrs.frozen
class FaultDescription:
    text: str
    """In a report, with the fault's fields as ``{host}``."""
    often: float
    """How many there are in 30 seconds, on average."""
    draw: DrawFields
    script: Script
    backends: tuple[Backend, ...] = attrs.field(default=("shared", "sqlite"), kw_only=True)
    needs_spare: bool = attrs.field(default=False, kw_only=True)


_SHARED: tuple[Backend, ...] = ("shared",)

FAULTS: dict[FaultKind, FaultDescription] = {
    "node_crash": FaultDescription(
        "{host} is killed and is back after {seconds:g} s",
        2.5,
        on_node(BRIEF, SHORT, LONG),
        from_to(deeds.stop, deeds.boot),
    ),
    "node_power_cut": FaultDescription(
        "{host} loses its power for {seconds:g} s",
        2.5,
        on_node(BRIEF, SHORT, LONG),
        from_to(deeds.power_cut, deeds.boot),
    ),
    "node_freeze": FaultDescription(
        "{host} is frozen for {seconds:g} s",
        2.5,
        on_node(BRIEF, SHORT, LONG),
        from_to(deeds.freeze, deeds.thaw),
    ),
    "worker_crash": FaultDescription(
        "{host} is killed and is back after {seconds:g} s",
        2.5,
        on_worker(BRIEF, SHORT, LONG),
        from_to(deeds.stop, deeds.boot),
    ),
    "worker_power_cut": FaultDescription(
        "{host} loses its power for {seconds:g} s",
        2.5,
        on_worker(BRIEF, SHORT, LONG),
        from_to(deeds.power_cut, deeds.boot),
    ),
    "worker_freeze": FaultDescription(
        "{host} is frozen for {seconds:g} s",
        4.0,
        on_worker(BRIEF, SHORT, LONG),
        from_to(deeds.freeze, deeds.thaw),
    ),
    "cut": FaultDescription(
        "nothing passes between {host} and {other} for {seconds:g} s",
        4.0,
        on_link(BRIEF, SHORT, LONG),
        from_to(deeds.cut, deeds.join),
    ),
    "cut_one_way": FaultDescription(
        "nothing passes from {host} to {other} for {seconds:g} s",
        4.0,
        one_way,
        from_to(deeds.cut, deeds.join),
    ),
    "cut_database": FaultDescription(
        "nothing passes {between} {host} {and_to} {other} for {seconds:g} s",
        3.0,
        to_database,
        from_to(deeds.cut, deeds.join),
        backends=_SHARED,
    ),
    "swizzle": FaultDescription(
        "links of {host} are cut one by one and joined in another order within {seconds:g} s",
        1.0,
        on_node(SHORT, LONG),
        deeds.swizzle,
    ),
    "reset": FaultDescription(
        "connections between {host} and {other} are reset",
        5.0,
        on_link(),
        once(deeds.reset),
    ),
    "silence": FaultDescription(
        "connections between {host} and {other} carry nothing any more, and nobody is told",
        3.0,
        on_link(),
        once(deeds.silence),
    ),
    "refuse_dials": FaultDescription(
        "{host} takes no new connections for {seconds:g} s",
        1.5,
        on_node(BRIEF, SHORT),
        from_to(deeds.refuse, deeds.accept),
    ),
    "slow_link": FaultDescription(
        "what passes between {host} and {other} takes {amount:g} s for {seconds:g} s",
        3.0,
        on_link(SHORT, LONG, amounts=((0.05, 0.3), (0.3, 1.5))),
        from_to(deeds.slow, deeds.hurry),
    ),
    "database_crash": FaultDescription(
        "the database loses its power for {seconds:g} s, and with it what was not synced",
        1.5,
        on_database(BRIEF, SHORT),
        from_to(deeds.crash_database, deeds.nothing),
        backends=_SHARED,
    ),
    "database_read_only": FaultDescription(
        "the database takes no writes for {seconds:g} s",
        1.0,
        on_database(BRIEF, SHORT),
        phase("read_only"),
    ),
    "database_unavailable": FaultDescription(
        "the database is unavailable for {seconds:g} s",
        1.0,
        on_database(BRIEF, SHORT),
        phase("unavailable"),
    ),
    "database_slow": FaultDescription(
        "each transaction takes {amount:g} s more for {seconds:g} s",
        1.5,
        on_database(SHORT, LONG, amounts=((0.02, 0.1), (0.1, 0.6))),
        phase("slow"),
    ),
    "database_refuses": FaultDescription(
        "the database aborts {amount:.0%} of all transactions for {seconds:g} s",
        1.5,
        on_database(SHORT, LONG, amounts=((0.05, 0.2), (0.2, 0.6))),
        phase("refuses"),
    ),
    "database_loses_answers": FaultDescription(
        "{amount:.0%} of the database's answers are lost for {seconds:g} s",
        2.0,
        on_database(SHORT, LONG, amounts=((0.05, 0.2), (0.2, 0.6))),
        phase("loses_answers"),
        backends=_SHARED,
    ),
    "database_clock_jump": FaultDescription(
        "the database's clock jumps by {amount:+g} ms",
        0.7,
        database_jump,
        once(deeds.jump_database),
        backends=_SHARED,
    ),
    "wall_jump": FaultDescription(
        "the wall clock of {host} jumps by {amount:+g} ms",
        3.0,
        jump,
        once(deeds.jump),
    ),
    "hints_lost": FaultDescription(
        "{amount:.0%} of the hints between nodes are lost for {seconds:g} s",
        1.0,
        hint_phase,
        from_to(deeds.lose_hints, deeds.keep_hints),
        backends=_SHARED,
    ),
    "rolling_restart": FaultDescription(
        "all nodes are restarted, one every {amount:g} s",
        0.7,
        restart,
        deeds.rolling_restart,
    ),
    "node_join": FaultDescription(
        "{host} joins and leaves after {seconds:g} s",
        0.7,
        on_spare,
        from_to(deeds.boot, deeds.leave),
        backends=_SHARED,
        needs_spare=True,
    ),
    "node_leave": FaultDescription(
        "{host} leaves and is back after {seconds:g} s",
        1.0,
        on_node(SHORT, LONG),
        from_to(deeds.leave, deeds.boot),
    ),
    "redeploy": FaultDescription(
        "all models are deployed again, as new versions",
        0.7,
        numbered,
        once(deeds.redeploy),
    ),
    "crash_at": FaultDescription(
        "{host} loses its power at pass {amount:g} of {other}, if within {seconds:g} s",
        4.0,
        site,
        from_to(deeds.arm, deeds.disarm),
    ),
}


def draw_fault(dice: Dice, kind: FaultKind, number: int, plan: Plan) -> Fault:
    """The so-manieth of its kind. What is drawn does not depend on how many there are."""
    key = f"{kind}-{number}"
    own = dice.at(key)
    latest = max(_AT_FIRST, plan.options.chaos_seconds)
    at = round(own.between(_AT_FIRST, latest, "at"), 3)
    return Fault(key=key, kind=kind, at=at, **FAULTS[kind].draw(own, plan))


def steps_of(fault: Fault, plan: Plan) -> tuple[Step, ...]:
    return tuple(FAULTS[fault.kind].script(fault, plan))


def describe_fault(fault: Fault) -> str:
    """What befalls whom for how long, as ``node-1 is frozen for 2.1 s``."""
    between, and_to = ("between", "and") if fault.both else ("from", "to")
    return FAULTS[fault.kind].text.format(**attrs.asdict(fault), between=between, and_to=and_to)


def possible_kinds(plan: Plan) -> tuple[FaultKind, ...]:
    """What can befall this plan's hosts, in the order of `FAULTS`."""
    return tuple(kind for kind, description in FAULTS.items() if _is_possible(description, plan))


def _is_possible(description: FaultDescription, plan: Plan) -> bool:
    has_spare = not description.needs_spare or plan.options.spare_nodes > 0
    return has_spare and plan.options.backend in description.backends
