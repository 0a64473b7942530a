"""What is drawn for a fault: whom it befalls, for how long, and how much.

Durations are shorter and longer than leases (1 to 4 s): what is frozen or cut off comes back in time, or too late.
Hosts are drawn so that another host more or less changes nothing for those that it is not drawn for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypedDict

from simulations.plans.dice import Dice, Span
from simulations.plans.plan import CLIENT, DATABASE, SITES, Plan

__all__ = [
    "BRIEF",
    "LONG",
    "SHORT",
    "DrawFields",
    "Drawn",
    "database_jump",
    "hint_phase",
    "jump",
    "numbered",
    "on_database",
    "on_link",
    "on_node",
    "on_spare",
    "on_worker",
    "one_way",
    "restart",
    "site",
    "to_database",
]

BRIEF: Span = (0.1, 0.6)
SHORT: Span = (0.8, 2.0)
LONG: Span = (2.5, 6.0)
_NO_AMOUNT: tuple[Span, ...] = ((0.0, 0.0),)
_JUMPS = (0.5, 5.0, 60.0, 3_600.0)
"""Seconds, as far as a correction by hand or by NTP goes."""


class Drawn(TypedDict, total=False):
    """The fields of a fault that its kind draws."""

    host: str
    other: str
    seconds: float
    amount: float
    both: bool


DrawFields: TypeAlias = Callable[[Dice, Plan], Drawn]
"""The plan has no faults yet."""


def on_node(*spans: Span) -> DrawFields:
    def draw(dice: Dice, plan: Plan) -> Drawn:
        return {"host": dice.favourite(plan.node_hosts, "host"), "seconds": dice.within(spans, "seconds")}

    return draw


def on_worker(*spans: Span) -> DrawFields:
    def draw(dice: Dice, plan: Plan) -> Drawn:
        hosts = (*plan.worker_hosts, *plan.storm_hosts) or (CLIENT,)
        return {"host": dice.favourite(hosts, "host"), "seconds": dice.within(spans, "seconds")}

    return draw


def on_database(*spans: Span, amounts: tuple[Span, ...] = _NO_AMOUNT) -> DrawFields:
    def draw(dice: Dice, _plan: Plan) -> Drawn:
        return {
            "host": DATABASE,
            "seconds": dice.within(spans, "seconds"),
            "amount": dice.within(amounts, "amount"),
        }

    return draw


def on_link(*spans: Span, amounts: tuple[Span, ...] = _NO_AMOUNT) -> DrawFields:
    """Between a node and somebody who talks to it."""

    def draw(dice: Dice, plan: Plan) -> Drawn:
        callers = (*plan.worker_hosts, *plan.storm_hosts, CLIENT)
        drawn: Drawn = {
            "host": dice.favourite(callers, "host"),
            "other": dice.favourite(plan.node_hosts, "other"),
            "amount": dice.within(amounts, "amount"),
        }
        if spans:
            drawn["seconds"] = dice.within(spans, "seconds")
        return drawn

    return draw


def one_way(dice: Dice, plan: Plan) -> Drawn:
    drawn = on_link(BRIEF, SHORT, LONG)(dice, plan)
    if dice.chance(0.5, "back"):
        drawn["host"], drawn["other"] = drawn["other"], drawn["host"]
    return {**drawn, "both": False}


def to_database(dice: Dice, plan: Plan) -> Drawn:
    """Both ways, or only what the database answers, or only what it is asked."""
    node = dice.favourite(plan.node_hosts, "host")
    ends = (node, DATABASE) if dice.chance(0.7, "forth") else (DATABASE, node)
    seconds = dice.within((BRIEF, SHORT, LONG), "seconds")
    return {"host": ends[0], "other": ends[1], "seconds": seconds, "both": dice.chance(0.5, "both")}


def jump(dice: Dice, plan: Plan) -> Drawn:
    """Back or forth, in ms."""
    sign = dice.pick((-1, 1), "sign")
    return {
        "host": dice.favourite(plan.program_hosts, "host"),
        "amount": round(sign * 1_000 * dice.pick(_JUMPS, "amount")),
    }


def database_jump(dice: Dice, _plan: Plan) -> Drawn:
    """Only forth, in ms: a standby whose clock is ahead takes over."""
    return {"host": DATABASE, "amount": round(1_000 * dice.within(((0.1, 1.0), (1.0, 10.0), (10.0, 600.0)), "amount"))}


def hint_phase(dice: Dice, _plan: Plan) -> Drawn:
    return {"seconds": dice.within((SHORT, LONG), "seconds"), "amount": dice.pick((0.5, 0.9, 1.0), "amount")}


def restart(dice: Dice, _plan: Plan) -> Drawn:
    return {"amount": dice.within(((0.5, 1.5), (2.0, 3.0)), "amount")}


def on_spare(dice: Dice, plan: Plan) -> Drawn:
    return {
        "host": dice.favourite(plan.spare_hosts, "host"),
        "seconds": dice.within((SHORT, LONG), "seconds"),
    }


def numbered(dice: Dice, _plan: Plan) -> Drawn:
    """A number of its own, to be told apart by."""
    return {"amount": dice.number() % 1_000_000}


def site(dice: Dice, plan: Plan) -> Drawn:
    """Within `seconds`, at the passage with this number; then the node is up again."""
    return {
        "host": dice.favourite(plan.node_hosts, "host"),
        "other": dice.pick(SITES, "other"),
        "seconds": dice.within((SHORT, LONG), "seconds"),
        "amount": dice.pick((1, 2, 4, 9), "amount"),
    }
