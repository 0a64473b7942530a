"""A plan: everything that a run is made of, as data. The seed expands into one (`simulations.plans.drawing`), and then
only the plan counts: it is printed, kept as JSON, shrunk and replayed.

Whatever is drawn while a run goes on belongs to a key (the seed and a name), so that leaving out a fault, an instance
or a worker shifts nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Literal

import attrs

from simulations.plans.structuring import structure, unstructure

__all__ = [
    "CLIENT",
    "DATABASE",
    "FORMAT",
    "OPERATOR",
    "SITES",
    "Backend",
    "Fault",
    "FaultKind",
    "InstanceSpec",
    "InvalidPlan",
    "Isolation",
    "Options",
    "Plan",
    "Schedule",
    "check",
    "from_json",
    "to_json",
]

FORMAT = 1
"""Rises when an old plan could no longer be read as it was meant."""

CLIENT = "client"
OPERATOR = "operator"
DATABASE = "database"

SITES = ("before-commit", "after-commit", "after-lease")
"""The engine's pause points: a node may linger or lose its power there."""

Backend = Literal["shared", "sqlite"]
Isolation = Literal["serialisable", "read_committed"]
Schedule = Literal["keyed", "fifo"]
FaultKind = Literal[
    "node_crash",
    "node_power_cut",
    "node_freeze",
    "worker_crash",
    "worker_power_cut",
    "worker_freeze",
    "cut",
    "cut_one_way",
    "cut_database",
    "swizzle",
    "reset",
    "silence",
    "refuse_dials",
    "slow_link",
    "database_crash",
    "database_read_only",
    "database_unavailable",
    "database_slow",
    "database_refuses",
    "database_loses_answers",
    "database_clock_jump",
    "wall_jump",
    "hints_lost",
    "rolling_restart",
    "node_join",
    "node_leave",
    "redeploy",
    "crash_at",
]

_OF_NOBODY: tuple[FaultKind, ...] = ("hints_lost", "rolling_restart", "redeploy")
"""Faults without a host."""
_OF_TWO: tuple[FaultKind, ...] = ("cut", "cut_one_way", "cut_database", "reset", "silence", "slow_link")
"""Faults between two hosts."""


class InvalidPlan(Exception):
    """The text is no plan, or no plan that this version can run. The message names what and where."""


@attrs.frozen(kw_only=True)
class Fault:
    """One thing that goes wrong, from `at` for `seconds`. What `host`, `other`, `amount` and `both` mean is the kind's
    matter (`simulations.plans.faults`)."""

    key: str
    """Stable: it survives the removal of other faults."""
    at: float = attrs.field(converter=float)
    """Seconds since the start of the run."""
    kind: FaultKind
    host: str = ""
    other: str = ""
    seconds: float = attrs.field(default=0.0, converter=float)
    """How long it lasts; 0: it has no end of its own."""
    amount: float = attrs.field(default=0.0, converter=float)
    both: bool = True
    """A cut: in both directions, or only from `host` to `other`."""


@attrs.frozen(kw_only=True)
class InstanceSpec:
    """One process instance that the client starts, and its whole fate outside of faults."""

    key: str
    """Stable, and the business key."""
    kind: str
    """The name of a workload."""
    at: float = attrs.field(converter=float)
    """Seconds since the start of the run."""
    seed: int
    """For everything that its handlers and its client draw."""
    options: dict[str, str | int | float | bool | None] = attrs.field(factory=dict)
    """What the workload is to be like; absent: its default."""


@attrs.frozen(kw_only=True)
class Options:
    """How the world is made. The defaults are the calmest world: shrinking goes towards them."""

    nodes: int = 2
    workers: int = 4
    spare_nodes: int = 0
    """Hosts of nodes that start only when one joins."""
    storm_workers: int = 0
    """Further workers, all waiting for the same topic: hosts ``storm-1``…"""
    twin_workers: dict[str, str] = attrs.field(factory=dict)
    """Worker host to the worker id that it takes in place of its own name: two processes with one id."""
    worker_tasks: int = 2
    """What one worker takes at once."""
    backend: Backend = "shared"
    isolation: Isolation = "serialisable"
    schedule: Schedule = "keyed"
    chaos_seconds: float = 12.0
    """The safety phase: faults happen only in it. The quiet phase follows."""
    kinds: tuple[FaultKind, ...] = ()
    """The kinds of faults that were drawn, for the record."""
    clocks: dict[str, tuple[int, float]] = attrs.field(factory=dict)
    """Host to offset in ms and rate (its seconds for a true second); absent: right."""
    latency: tuple[float, float] = (0.0005, 0.005)
    """Seconds one way, lowest and highest."""
    slow: float = 0.0
    """The chance that something on the way takes far longer than `latency`."""
    fragment: float = 0.0
    """The chance that bytes arrive in pieces."""
    hint_loss: float = 0.0
    hint_doubling: float = 0.0
    hint_late: float = 0.0
    """Seconds that a hint may be late."""
    database_latency: tuple[float, float] = (0.0003, 0.002)
    """Seconds for one transaction, lowest and highest."""
    sync_seconds: float = 0.002
    """Until what was committed is safe from a crash of the database; nothing is answered before."""
    lock_ms: int = 2_000
    """The lock duration that workers ask for."""
    pause_seconds: float = 0.0
    """How long a node may linger at a pause point; 0: never."""
    token_seconds: float = 0.0
    """How long a worker's token holds; 0: for ever."""
    limits: dict[str, int] = attrs.field(factory=dict)
    """Fields of `stellwerk.limits.Limits` that differ from the default."""
    lock_expiries_max: int = 10
    """A task whose lock ran out so often is EXPIRED."""
    stays_dead: tuple[str, ...] = ()
    """Hosts that are down for the whole quiet phase: the others must get everything done."""


@attrs.frozen(kw_only=True)
class Plan:
    format: int = FORMAT
    seed: int
    label: str = ""
    """Where it comes from, for people."""
    options: Options = attrs.field(factory=Options)
    faults: tuple[Fault, ...] = ()
    """In order of time."""
    instances: tuple[InstanceSpec, ...] = ()
    """In order of time."""

    @property
    def node_hosts(self) -> tuple[str, ...]:
        return _numbered("node", 1, self.options.nodes)

    @property
    def spare_hosts(self) -> tuple[str, ...]:
        return _numbered("node", self.options.nodes + 1, self.options.spare_nodes)

    @property
    def worker_hosts(self) -> tuple[str, ...]:
        return _numbered("worker", 1, self.options.workers)

    @property
    def storm_hosts(self) -> tuple[str, ...]:
        return _numbered("storm", 1, self.options.storm_workers)

    @property
    def program_hosts(self) -> tuple[str, ...]:
        """Nodes, spare ones too, and workers: what crashes and is booted again."""
        return (*self.node_hosts, *self.spare_hosts, *self.worker_hosts, *self.storm_hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        return (*self.program_hosts, CLIENT, OPERATOR, DATABASE)

    @property
    def file_clock_jumps_ms(self) -> int:
        """So far at most is the clock set forward that judges leases and messages in a file: it starts from its node's
        wall clock whenever the file is opened. A jump back counts as well, since the quiet phase sets it right."""
        hosts = self.node_hosts if self.options.backend == "sqlite" else ()
        jumps = (fault.amount for fault in self.faults if fault.kind == "wall_jump" and fault.host in hosts)
        return sum(abs(round(jump)) for jump in jumps)

    def worker_id(self, host: str) -> str:
        return self.options.twin_workers.get(host, host)

    def clock_of(self, host: str) -> tuple[int, float]:
        """Offset in ms, and rate."""
        return self.options.clocks.get(host, (0, 1.0))


def to_json(plan: Plan) -> str:
    """For files: one line for each fault and instance, and a line end at the end."""
    value = unstructure(plan)
    assert isinstance(value, dict)
    members = [f"  {json.dumps(name)}: {_member(item)}" for name, item in value.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def from_json(text: str) -> Plan:
    """:raises InvalidPlan: it is not JSON, has unknown or missing names, wrong types, or contradicts itself."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidPlan(f"not JSON: {error}") from None
    _check_format(value)
    try:
        plan = structure(value, Plan)
    except ValueError as error:
        raise InvalidPlan(str(error)) from None
    check(plan)
    return plan


def check(plan: Plan) -> None:
    """:raises InvalidPlan: it contradicts itself: hosts that are not there, keys twice, times that are none."""
    complaints = list(_complaints(plan))
    if complaints:
        raise InvalidPlan("; ".join(complaints))


def _check_format(value: object) -> None:
    if not isinstance(value, dict):
        raise InvalidPlan("an object is expected @ $")
    if value.get("format") != FORMAT:
        raise InvalidPlan(f"format {value.get('format')!r} is not {FORMAT}, the one that is read here @ $.format")


def _member(value: object) -> str:
    """A list of objects has a line for each, so that a difference between two plans can be read."""
    match value:
        case list() if value:
            return "[\n" + ",\n".join(f"    {json.dumps(item)}" for item in value) + "\n  ]"
        case dict() if value:
            return (
                "{\n"
                + ",\n".join(f"    {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
                + "\n  }"
            )
        case _:
            return json.dumps(value)


def _numbered(name: str, first: int, count: int) -> tuple[str, ...]:
    return tuple(f"{name}-{number}" for number in range(first, first + count))


def _complaints(plan: Plan) -> Iterator[str]:
    yield from _option_complaints(plan)
    hosts = set(plan.hosts)
    for number, fault in enumerate(plan.faults):
        yield from _fault_complaints(fault, f"$.faults[{number}]", hosts)
    for number, spec in enumerate(plan.instances):
        yield from _time_complaints((("at", spec.at),), f"$.instances[{number}]")
    yield from _twice("$.faults", (fault.key for fault in plan.faults))
    yield from _twice("$.instances", (spec.key for spec in plan.instances))


def _option_complaints(plan: Plan) -> Iterator[str]:
    options = plan.options
    if options.nodes < 1:
        yield "there must be a node @ $.options.nodes"
    if options.backend == "sqlite" and (options.nodes > 1 or options.spare_nodes):
        yield "a SQLite file has one node @ $.options.nodes"
    for name in ("workers", "spare_nodes", "storm_workers"):
        if getattr(options, name) < 0:
            yield f"a count is expected, not {getattr(options, name)} @ $.options.{name}"
    yield from _time_complaints((("chaos_seconds", options.chaos_seconds),), "$.options")
    for name in ("clocks", "twin_workers", "stays_dead"):
        for host in getattr(options, name):
            if host not in plan.hosts:
                yield f"there is no host {host} @ $.options.{name}"
    for host, (_, rate) in options.clocks.items():
        if not (rate > 0 and math.isfinite(rate)):
            yield f"a clock goes forward, not at {rate} @ $.options.clocks[{host!r}]"


def _fault_complaints(fault: Fault, where: str, hosts: set[str]) -> Iterator[str]:
    yield from _time_complaints((("at", fault.at), ("seconds", fault.seconds)), where)
    if not math.isfinite(fault.amount):
        yield f"{fault.amount} is no amount @ {where}.amount"
    if fault.kind not in _OF_NOBODY and fault.host not in hosts:
        yield f"there is no host {fault.host!r} @ {where}.host"
    if fault.kind in _OF_TWO and fault.other not in hosts:
        yield f"there is no host {fault.other!r} @ {where}.other"
    if fault.kind == "crash_at" and fault.other not in SITES:
        yield f"there is no pause point {fault.other!r} @ {where}.other"


def _time_complaints(times: Iterable[tuple[str, float]], where: str) -> Iterator[str]:
    for name, value in times:
        if not (value >= 0 and math.isfinite(value)):
            yield f"{value} is no time @ {where}.{name}"


def _twice(where: str, keys: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            yield f"{key} is there twice @ {where}"
        seen.add(key)
