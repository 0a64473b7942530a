"""A made-up run in the format of the trace, and results around it: what the tools are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import attrs
import pytest

from simulations.kernel.properties import Violation
from simulations.kernel.trace import Row
from simulations.plans.plan import Fault, InstanceSpec, Options, Plan

TASK = "t-4711"
OTHER_TASK = "t-9999"
INSTANCE = "p-26"
FENCES = (1_765_000_000_041, 1_765_000_000_052)


@attrs.frozen(kw_only=True)
class MadeUpResult:
    plan: Plan
    violations: tuple[Violation, ...] = ()
    sometimes: Counter[str] = attrs.field(factory=Counter)
    counters: Counter[str] = attrs.field(factory=Counter)
    simulated_seconds: float = 20.0
    cpu_seconds: float = 0.4
    trace_digest: str = "00ff" * 16
    schedule_digest: str = "11ee" * 16
    rows: Sequence[Row] | None = None


Told = tuple[float, str, str, dict[str, object]]


def _rows(told: Sequence[Told]) -> list[Row]:
    return [
        Row(number, round(at * 1e6), place, kind, data)
        for number, (at, place, kind, data) in enumerate(sorted(told, key=lambda one: one[0]), start=1)
    ]


def _commit(at: float, number: int, node: str, *changes: list[str]) -> Told:
    data: dict[str, object] = {"node": node, "number": number, "now_ms": 1_000_000 + round(at * 1000)}
    return at, "database", "commit", {**data, "changes": list(changes)}


def _lock(state: str, worker: str, fence: int, until: float, task: str = TASK) -> list[str]:
    return ["tasks", task, f"{state} {worker} {fence} {1_000_000 + round(until * 1000)}", INSTANCE]


def _fault(at: float, phase: str, key: str, kind: str, host: str, other: str = "") -> Told:
    data = {"phase": phase, "key": key, "fault": kind, "host": host, "other": other, "seconds": 1.0, "amount": 0.0}
    return at, "injector", "fault", data


_HOSTS = ("database", "node-1", "node-2", "worker-1", "worker-2", "worker-3", "worker-4", "client")


def _zombie() -> list[Told]:
    """worker-2 is frozen beyond its lease, worker-3 gets the task; then worker-2's completion is taken."""
    first, second = FENCES
    lease_1 = {"task": TASK, "fence": first}
    lease_2 = {"task": TASK, "fence": second}
    return [
        *((0.001 * number, f"{host}#1", "boot", {}) for number, host in enumerate(_HOSTS)),
        (0.05, "worker-2#1", "dial", {"target": "node-1", "port": 80, "connection": 1}),
        (0.06, "worker-3#1", "dial", {"target": "node-2", "port": 80, "connection": 2}),
        (0.9, "client#1", "request", {"key": "i26", "number": 1, "to": "node-1", "method": "POST", "path": "/x"}),
        _commit(0.903, 6, "node-1", ["instances", INSTANCE, "v1 RUNNING (i26)"], ["tasks", TASK, "→READY", INSTANCE]),
        (0.908, "client#1", "answer", {"key": "i26", "number": 1, "status": 201}),
        _commit(1.0, 7, "node-1", _lock("READY→LOCKED", "worker-2", first, 3.0), ["tasks", OTHER_TASK, "→READY", "p"]),
        (1.004, "worker-2#1", "got", {"type": "Tasks", "delivery": 1, "tasks": [[TASK, first]]}),
        (1.004, "worker-2#1", "lease", {**lease_1, "until": 2.997}),
        (1.005, "worker-2#1", "handler", {**lease_1, "phase": "begin", "instance": INSTANCE, "element": "charge"}),
        _fault(1.4, "begin", "worker_freeze-1", "worker_freeze", "worker-2"),
        (1.4, "worker-2#1", "freeze", {}),
        _fault(1.7, "begin", "cut-1", "cut", "node-1", "database"),
        _fault(1.9, "begin", "slow_link-1", "slow_link", "node-2", "worker-3"),
        _fault(2.2, "begin", "node_power_cut-1", "node_power_cut", "node-1"),
        (2.2, "node-1#1", "crash", {"how": "power cut"}),
        _fault(2.6, "end", "slow_link-1", "slow_link", "node-2", "worker-3"),
        _fault(2.9, "end", "cut-1", "cut", "node-1", "database"),
        _commit(3.05, 11, "node-2", ["tasks", TASK, f"LOCKED→READY worker-2 {first}", INSTANCE]),
        _commit(3.2, 12, "node-2", _lock("READY→LOCKED", "worker-3", second, 5.2)),
        (3.206, "worker-3#1", "got", {"type": "Tasks", "delivery": 4, "tasks": [[TASK, second]]}),
        (3.206, "worker-3#1", "lease", {**lease_2, "until": 5.19}),
        (3.207, "worker-3#1", "handler", {**lease_2, "phase": "begin", "instance": INSTANCE, "element": "charge"}),
        _fault(3.6, "end", "worker_freeze-1", "worker_freeze", "worker-2"),
        (3.6, "worker-2#1", "thaw", {}),
        (3.601, "worker-2#1", "handler", {**lease_1, "phase": "end", "outcome": "completed"}),
        (3.602, "worker-2#1", "dial", {"target": "node-2", "port": 80, "connection": 5}),
        (3.61, "worker-2#1", "sent", {"type": "Complete", "ref": 8, **lease_1}),
        _commit(3.9, 13, "node-2", ["tasks", TASK, f"LOCKED→COMPLETED worker-2 {first}", INSTANCE]),
        (3.9, "checks", "violation", {"invariant": "L5", "message": MESSAGE}),
    ]


MESSAGE = f"task {TASK} was ended with fence {FENCES[0]}, though <worker-3> had it with fence {FENCES[1]} by then"


def _noise() -> list[Told]:
    """What belongs to other tasks and hosts."""
    return [
        (0.5 + number / 50, "worker-4#1", "sent", {"type": "Complete", "ref": number, "task": OTHER_TASK, "fence": 9})
        for number in range(100)
    ]


@pytest.fixture
def plan() -> Plan:
    faults = (
        Fault(key="worker_freeze-1", at=1.4, kind="worker_freeze", host="worker-2", seconds=2.2),
        Fault(key="cut-1", at=1.7, kind="cut", host="node-1", other="database", seconds=1.2),
        Fault(key="slow_link-1", at=1.9, kind="slow_link", host="node-2", other="worker-3", seconds=0.7, amount=0.2),
        Fault(key="node_power_cut-1", at=2.2, kind="node_power_cut", host="node-1", seconds=4.0),
        Fault(key="worker_crash-1", at=9.0, kind="worker_crash", host="worker-1", seconds=1.0),
    )
    instances = tuple(
        InstanceSpec(key=f"i{number}", kind=kind, at=number / 10, seed=number)
        for number, kind in enumerate(("sequence", "saga", "sequence", "poison"))
    )
    options = Options(nodes=2, workers=4, latency=(0.001, 0.002), fragment=0.1, pause_seconds=0.2, hint_loss=0.1)
    return Plan(seed=42, label="seed 42, small, all", options=options, faults=faults, instances=instances)


@pytest.fixture
def make_rows() -> Callable[[Sequence[Told]], list[Row]]:
    return _rows


@pytest.fixture
def rows() -> list[Row]:
    return _rows([*_zombie(), *_noise()])


@pytest.fixture
def make_result() -> type[MadeUpResult]:
    return MadeUpResult


@pytest.fixture
def failing(plan: Plan, rows: list[Row]) -> MadeUpResult:
    return MadeUpResult(
        plan=plan,
        violations=(Violation("L5", MESSAGE, 3_900_000),),
        sometimes=Counter({"lease expired and reclaimed": 4, "frozen beyond its lease, then resumed": 1}),
        counters=Counter({"worker_freeze": 1, "cut": 1, "slow_link": 1, "node_power_cut": 1}),
        rows=rows,
    )
