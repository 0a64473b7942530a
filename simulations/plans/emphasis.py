"""What a plan lays weight on. Some bugs need two things that seldom meet: an answer that gets lost and a failure that
was to be told, a store that is away for a moment and nodes that live on. Most plans make one such pair common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

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
    lock_ms: tuple[int, ...] = ()
    """Likewise."""
    last: FaultKind | None = None
    """One more of these, which lasts until the end of the safety phase: what it does to those who live then, no later
    restart heals. And instances come until then."""
    loses_hosts: bool = False
    """One node and one worker never come back."""
    is_alone: bool = False
    """One node: what it forgets, no other one does."""
    crowd: int = 1
    """How many times as many instances as elsewhere: nobody is idle."""


NOTHING = Emphasis(name="nothing", why="faults as they come")

EMPHASES: tuple[Emphasis, ...] = (
    Emphasis(
        name="lost answers",
        why="failures and errors are told again, also after a later attempt (rule 12)",
        faults={"reset": 16, "slow_link": 10, "crash_at": 3, "cut_one_way": 4},
        workloads={"retries": 16, "wide": 6, "poison": 2, "errors": 2},
        lock_ms=(4_000, 8_000),
        crowd=3,
    ),
    Emphasis(
        name="outages",
        why="the store is away now and then, and nobody makes good for the one node, which is not started again",
        faults={"database_refuses": 8, "database_unavailable": 3, "database_read_only": 2},
        without=_RESTARTS,
        workloads={"message_race": 10, "messages": 6, "saga_parallel": 4},
        last="database_refuses",
        loses_hosts=True,
        is_alone=True,
        crowd=2,
    ),
    Emphasis(
        name="messages",
        why="those who publish and those who wait are on different nodes, and hints get lost (rule 6)",
        faults={"hints_lost": 3, "database_refuses": 2, "database_unavailable": 2},
        workloads={"messages": 8, "message_race": 8, "message_start": 4, "withdrawal": 4},
        loses_hosts=True,
    ),
    Emphasis(
        name="timers",
        why="nodes die with the timers that only they know of, or the store is away when they are due",
        faults={"hints_lost": 3, "node_power_cut": 2, "database_refuses": 2},
        workloads={"boundary_timer": 6, "reminders": 6, "message_race": 16},
        last="database_refuses",
        loses_hosts=True,
        crowd=2,
    ),
    Emphasis(
        name="together",
        why="many tasks of one instance end in one step, and one of them too late (rule 2)",
        faults={"database_slow": 4, "cut": 4, "worker_freeze": 3, "slow_link": 3},
        workloads={"wide": 24, "parallel": 2, "saga_parallel": 2},
    ),
    Emphasis(
        name="old sessions",
        why="a worker is back while its connection before is not known to be over (rule 17)",
        faults={"cut_one_way": 8},
        workloads={"slow": 40},
        limits={"delivery_timeout_ms": (3_000,)},
        lock_ms=(4_000,),
        crowd=3,
    ),
    Emphasis(
        name="late confirmations",
        why="a task reaches its worker, and nobody knows whether it did (rule 14)",
        faults={"reset": 12, "slow_link": 10, "cut_one_way": 4},
        workloads={"single_try": 8, "single_try_caught": 6, "slow": 3},
        limits={"delivery_timeout_ms": (300,)},
        lock_ms=(4_000, 8_000),
        crowd=2,
    ),
    Emphasis(
        name="late compensation",
        why="what is still leased when its scope fails comes back unfinished (rule 15)",
        faults={"worker_crash": 3, "worker_power_cut": 3, "reset": 2},
        workloads={"saga_parallel": 16, "saga": 2},
    ),
    Emphasis(
        name="changes of mind",
        why="what is cancelled, withdrawn or deployed anew meets what is under way or over",
        faults={"redeploy": 2, "slow_link": 2},
        workloads={"cancelled": 12, "withdrawal": 6, "redeployed": 4},
    ),
)


_TURN = (NOTHING, *EMPHASES, NOTHING)


def draw_emphasis(seed: int) -> Emphasis:
    """In turn: a campaign of a few dozen seeds meets each of them several times."""
    return _TURN[seed % len(_TURN)]
