"""What a plan lays weight on. Some bugs need two things that seldom meet: an answer that gets lost and a failure that
was to be told, a store that is away for a moment and nodes that live on. Most plans make one such pair common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from simulations.plans.dice import Dice
from simulations.plans.plan import FaultKind

__all__ = ["EMPHASES", "Emphasis", "draw_emphasis"]

_RESTARTS: tuple[FaultKind, ...] = (
    "node_crash",
    "node_power_cut",
    "node_join",
    "node_leave",
    "rolling_restart",
    "crash_at",
)


@attrs.frozen(kw_only=True)
class Emphasis:
    name: str
    why: str
    faults: Mapping[FaultKind, float] = attrs.field(factory=dict)
    """How many times more often than elsewhere. They are there in every such plan."""
    without: Sequence[FaultKind] = ()
    """Not in `swarm` mode: in `all` mode everything happens."""
    workloads: Mapping[str, int] = attrs.field(factory=dict)
    """How many times heavier than elsewhere."""
    limits: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict)
    """Values that are drawn in place of the usual ones."""


NOTHING = Emphasis(name="nothing", why="faults as they come")

EMPHASES: tuple[Emphasis, ...] = (
    Emphasis(
        name="lost answers",
        why="failures and errors are told again, also after a later attempt (rule 12)",
        faults={"reset": 4, "crash_at": 6, "cut_one_way": 6},
        workloads={"retries": 16, "wide": 6, "poison": 2, "errors": 2},
    ),
    Emphasis(
        name="outages",
        why="the store is away now and then, and no node is started again afterwards",
        faults={"database_unavailable": 3, "database_refuses": 2, "database_read_only": 2},
        without=_RESTARTS,
    ),
    Emphasis(
        name="messages",
        why="those who publish and those who wait are on different nodes, and hints get lost (rule 6)",
        faults={"hints_lost": 3, "database_refuses": 2, "database_unavailable": 2},
        workloads={"messages": 8, "message_race": 8, "message_start": 4, "withdrawal": 4},
    ),
    Emphasis(
        name="timers",
        why="nodes die with the timers that only they know of",
        faults={"hints_lost": 3, "node_power_cut": 2, "database_refuses": 2},
        workloads={"boundary_timer": 6, "reminders": 6, "message_race": 4},
    ),
    Emphasis(
        name="together",
        why="many tasks of one instance end in one step, and one of them too late (rule 2)",
        faults={"database_slow": 4, "cut": 4, "worker_freeze": 3, "slow_link": 3},
        workloads={"wide": 24, "parallel": 2, "saga_parallel": 2},
    ),
    Emphasis(
        name="sessions",
        why="a worker is back while its connection before is not known to be over (rules 14 and 17)",
        faults={"cut_one_way": 4, "silence": 3, "slow_link": 2},
        workloads={"single_try": 6, "single_try_caught": 4, "slow": 3},
        limits={"delivery_timeout_ms": (300, 5_000)},
    ),
    Emphasis(
        name="late compensation",
        why="what is still leased when its scope fails comes back unfinished (rule 15)",
        faults={"worker_crash": 3, "worker_power_cut": 3, "reset": 2},
        workloads={"saga_parallel": 16, "saga": 2},
    ),
)


def draw_emphasis(dice: Dice) -> Emphasis:
    """None at all in every fourth plan."""
    if dice.chance(0.25, "emphasis"):
        return NOTHING
    names = [emphasis.name for emphasis in EMPHASES]
    chosen = dice.favourite(names, "which emphasis")
    return next(emphasis for emphasis in EMPHASES if emphasis.name == chosen)
