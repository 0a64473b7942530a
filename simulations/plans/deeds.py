"""What a fault does, and when: a script of steps that act on the stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from simulations.plans.dice import Dice
from simulations.plans.plan import CLIENT, DATABASE, Fault, Plan
from simulations.plans.stage import Phase, Stage
from stellwerk.values import frozen

__all__ = ["Deed", "Script", "Step", "from_to", "once", "phase", "rolling_restart", "swizzle"]

Deed: TypeAlias = Callable[[Stage, Fault], bool]
"""True: it changed something."""

_SWIZZLED = 0.6
"""How likely a link of the node is one of those that are cut."""


@frozen
class Step:
    after: float
    """Seconds since the fault's `at`."""
    phase: str
    """begin, middle or end: each fault has one beginning, as its first step, and one end at most, as its last."""
    deed: Deed


Script: TypeAlias = Callable[[Fault, Plan], Iterator[Step]]
"""In order of time."""


def from_to(begin: Deed, end: Deed) -> Script:
    def script(fault: Fault, _plan: Plan) -> Iterator[Step]:
        yield Step(0.0, "begin", begin)
        yield Step(fault.seconds, "end", end)

    return script


def once(begin: Deed) -> Script:
    def script(_fault: Fault, _plan: Plan) -> Iterator[Step]:
        yield Step(0.0, "begin", begin)

    return script


def phase(name: Phase) -> Script:
    """Of the database."""
    return from_to(
        lambda stage, fault: stage.begin_phase(fault.key, name, fault.amount),
        lambda stage, fault: stage.end_phase(fault.key, name),
    )


def swizzle(fault: Fault, plan: Plan) -> Iterator[Step]:
    """Some links of a node are cut one by one and joined in another order. Each link draws for itself."""
    dice = Dice(plan.seed, ("fault", fault.key))
    steps: list[Step] = []
    for other in (*plan.worker_hosts, *plan.storm_hosts, CLIENT, DATABASE):
        if dice.chance(_SWIZZLED, f"cut {other}"):
            steps += _swizzled(dice, fault, other)
    yield Step(0.0, "begin", lambda _stage, _fault: bool(steps))
    yield from sorted(steps, key=lambda step: step.after)
    yield Step(fault.seconds, "end", lambda _stage, _fault: bool(steps))


def _swizzled(dice: Dice, fault: Fault, other: str) -> tuple[Step, Step]:
    half = fault.seconds / 2
    cut_after = dice.between(0, half, f"when to cut {other}")
    join_after = half + dice.between(0, half, f"when to join {other}")
    return (
        Step(cut_after, "middle", lambda stage, _: stage.cut(fault.key, fault.host, other)),
        Step(round(join_after, 6), "middle", lambda stage, _: stage.join(fault.key, fault.host, other)),
    )


def rolling_restart(fault: Fault, plan: Plan) -> Iterator[Step]:
    """One node after the other, each for half of `amount` seconds."""
    yield Step(0.0, "begin", nothing)
    for number, host in enumerate(plan.node_hosts):
        yield from _restarted(fault, host, number * fault.amount)
    yield Step(len(plan.node_hosts) * fault.amount, "end", nothing)


def _restarted(fault: Fault, host: str, after: float) -> tuple[Step, Step]:
    return (
        Step(round(after, 6), "middle", lambda stage, _: stage.leave(fault.key, host)),
        Step(round(after + fault.amount / 2, 6), "middle", lambda stage, _: stage.boot(fault.key, host)),
    )


# --- deeds -----------------------------------------------------------------------------------------------------------


def stop(stage: Stage, fault: Fault) -> bool:
    return stage.stop(fault.key, fault.host)


def power_cut(stage: Stage, fault: Fault) -> bool:
    return stage.power_cut(fault.key, fault.host)


def leave(stage: Stage, fault: Fault) -> bool:
    return stage.leave(fault.key, fault.host)


def boot(stage: Stage, fault: Fault) -> bool:
    return stage.boot(fault.key, fault.host)


def freeze(stage: Stage, fault: Fault) -> bool:
    return stage.freeze(fault.key, fault.host)


def thaw(stage: Stage, fault: Fault) -> bool:
    return stage.thaw(fault.key, fault.host)


def jump(stage: Stage, fault: Fault) -> bool:
    return stage.jump(fault.host, round(fault.amount))


def cut(stage: Stage, fault: Fault) -> bool:
    return stage.cut(fault.key, fault.host, fault.other, both=fault.both)


def join(stage: Stage, fault: Fault) -> bool:
    return stage.join(fault.key, fault.host, fault.other)


def reset(stage: Stage, fault: Fault) -> bool:
    return stage.reset(fault.host, fault.other)


def silence(stage: Stage, fault: Fault) -> bool:
    return stage.silence(fault.host, fault.other)


def refuse(stage: Stage, fault: Fault) -> bool:
    return stage.refuse(fault.key, fault.host)


def accept(stage: Stage, fault: Fault) -> bool:
    return stage.accept(fault.key, fault.host)


def slow(stage: Stage, fault: Fault) -> bool:
    return stage.slow(fault.key, fault.host, fault.other, fault.amount)


def hurry(stage: Stage, fault: Fault) -> bool:
    return stage.hurry(fault.key, fault.host, fault.other)


def lose_hints(stage: Stage, fault: Fault) -> bool:
    return stage.lose_hints(fault.key, fault.amount)


def keep_hints(stage: Stage, fault: Fault) -> bool:
    return stage.keep_hints(fault.key)


def crash_database(stage: Stage, fault: Fault) -> bool:
    return stage.crash_database(fault.seconds)


def jump_database(stage: Stage, fault: Fault) -> bool:
    return stage.jump_database(round(fault.amount))


def arm(stage: Stage, fault: Fault) -> bool:
    return stage.arm(fault.key, fault.host, fault.other, round(fault.amount))


def disarm(stage: Stage, fault: Fault) -> bool:
    return stage.disarm(fault.key, fault.host)


def redeploy(stage: Stage, fault: Fault) -> bool:
    return stage.redeploy(round(fault.amount))


def nothing(_stage: Stage, _fault: Fault) -> bool:
    """It ends of itself."""
    return True
