"""Our engine on PostgreSQL beside job queues and workflow libraries that people would pick instead, in one run."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from tests.benchmarks.children import ChildFailed
from tests.benchmarks.contestants import Contestant, JobQueue, Round
from tests.benchmarks.databases import BenchmarkServer, private_server
from tests.benchmarks.environments import Environments, Unavailable
from tests.benchmarks.machine import describe_machine
from tests.benchmarks.nodes import BareStore, OurNodes
from tests.benchmarks.runs import Crew, temporary_folder
from tests.benchmarks.scale import ScaleOptions, measure_scale

__all__ = ["CONTESTANTS", "PostgresOptions", "measure_postgres"]

Report = Callable[[str], None]

_UNTOLD = (OSError, subprocess.SubprocessError, ValueError)
"""They say too little without their names."""
_FAILURES = (ChildFailed, Unavailable, AssertionError, *_UNTOLD)
_TASKS_MIN = 60
_HERE = Path(__file__).parent
_OURS = "one node"


@attrs.frozen(kw_only=True)
class PostgresOptions:
    only: Sequence[str] = ()
    """Names of contestants; none: all."""
    with_peers: bool = True
    seconds: float = 2.0
    """About how long one round drains."""
    rounds: int = 5
    crew: Crew = attrs.field(factory=Crew)
    latency_tasks: int = 60
    """In each round; 0: latency is not measured."""
    latency_rate: float = 30.0
    """Tasks a second."""
    install: bool = True
    peer_python: Path | None = None
    scale: ScaleOptions | None = None


@attrs.define(eq=False)
class _Row:
    """One line of the table, while it is measured."""

    contestant: Contestant
    rounds: list[Round] = attrs.field(factory=list)
    waits_ms: list[float] = attrs.field(factory=list)
    failure: str | None = None

    def tasks(self, seconds: float) -> int:
        """For the next round."""
        rate = self.rounds[-1].tasks_per_second if self.rounds else self.contestant.rate_guess
        return max(_TASKS_MIN, round(rate * seconds))


def measure_postgres(options: PostgresOptions, report: Report) -> Mapping[str, Any]:
    """Rounds of all contestants are interleaved, so that a noisy minute hits all alike. Who fails is left out from then
    on, and his line says why. Gives plain values for JSON.

    :raises NoServer: PostgreSQL is not installed.
    """
    environments = Environments(report, options.install, options.peer_python)
    rows = [_Row(each) for each in _contestants(options, environments)]
    with private_server() as server, temporary_folder(None) as folder:
        machine = {**describe_machine(server.server.directory), "postgres": server.version}
        for number in range(options.rounds):
            for row in rows:
                if row.failure is None:
                    _measure_round(row, server, options, folder)
                    report(f"round {number + 1} of {options.rounds}, {_progress(row)}")
        scale = None if options.scale is None else measure_scale(server, options.scale, folder, report)
    return {
        "machine": machine,
        **attrs.asdict(options.crew),
        "contestants": _summaries(rows),
        "failed": {row.contestant.name: row.failure for row in rows if row.failure is not None},
        "scale": scale,
    }


def _measure_round(row: _Row, server: BenchmarkServer, options: PostgresOptions, parent: Path) -> None:
    try:
        with temporary_folder(parent) as folder:
            row.rounds.append(row.contestant.measure(server, row.tasks(options.seconds), folder))
        if row.contestant.has_dispatch and options.latency_tasks:
            with temporary_folder(parent) as folder:
                row.waits_ms += row.contestant.waits_ms(server, options.latency_tasks, options.latency_rate, folder)
    except _FAILURES as failure:
        row.failure = f"{type(failure).__name__}: {failure}" if isinstance(failure, _UNTOLD) else str(failure)


def _progress(row: _Row) -> str:
    if row.failure is not None:
        return f"{row.contestant.name} failed: {row.failure}"
    return f"{row.contestant.name}: {row.rounds[-1].tasks_per_second:,.0f} tasks/s"


# --- what comes out ------------------------------------------------------------------------------------------------


def _summaries(rows: Sequence[_Row]) -> Sequence[Mapping[str, object]]:
    summaries = [_summary(row) for row in rows]
    [ours] = [each for each in summaries if each["name"] == _OURS] or [{}]
    for each in summaries:
        each["rate_by_ours"] = _ratio(ours.get("tasks_per_second"), each["tasks_per_second"])
        each["cpu_by_ours"] = _ratio(each["cpu_us"], ours.get("cpu_us"))
        each["latency_by_ours"] = _ratio(each["dispatch_p50_ms"], ours.get("dispatch_p50_ms"))
    return summaries


def _ratio(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by


def _summary(row: _Row) -> dict[str, Any]:
    def median(value: Callable[[Round], float | None]) -> float | None:
        values = [value(each) for each in row.rounds]
        return statistics.median(each for each in values if each is not None) if any(values) else None

    def micros(value: Callable[[Round], float]) -> float | None:
        return median(lambda each: value(each) / each.tasks * 1e6)

    p50, p99 = _percentiles(row.waits_ms)
    return {
        "name": row.contestant.name,
        "is_peer": row.contestant.is_peer,
        "version": row.rounds[-1].version if row.rounds else None,
        "runtime": row.rounds[-1].runtime if row.rounds else None,
        "tasks_per_second": median(lambda each: each.tasks_per_second),
        "tasks_per_second_rounds": [each.tasks_per_second for each in row.rounds],
        "tasks_per_second_with_inserts": median(lambda each: each.tasks / (each.load_seconds + each.drain_seconds)),
        "instances_per_second": median(lambda each: each.instances and each.instances / each.drain_seconds),
        "engine_cpu_us": micros(lambda each: each.engine_cpu),
        "worker_cpu_us": micros(lambda each: each.worker_cpu),
        "postgres_cpu_us": micros(lambda each: each.postgres_cpu),
        "cpu_us": micros(lambda each: each.engine_cpu + each.worker_cpu + each.postgres_cpu),
        "operations_per_transaction": median(_operations_per_transaction),
        "dispatch_p50_ms": p50,
        "dispatch_p99_ms": p99,
    }


def _operations_per_transaction(each: Round) -> float | None:
    return each.operations / each.transactions if each.operations is not None and each.transactions else None


def _percentiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    if len(values) < 2:
        return None, None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98]


# --- who takes part ------------------------------------------------------------------------------------------------


def _contestants(options: PostgresOptions, environments: Environments) -> Sequence[Contestant]:
    known = _known(options.crew, environments)
    return [
        each
        for each in known
        if (each.name in options.only if options.only else options.with_peers or not each.is_peer)
    ]


def _known(crew: Crew, environments: Environments) -> Sequence[Contestant]:
    several = attrs.evolve(crew, processes=2)
    return (
        OurNodes(name=_OURS, nodes=1, crew=crew),
        OurNodes(name="two nodes", nodes=2, crew=several),
        BareStore(name="bare store", crew=crew),
        JobQueue(name="bare SQL", is_peer=False, rate_guess=30_000, has_dispatch=False, command=_bare_sql),
        _node_queue(environments, "graphile-worker", "0.18", "graphile", 20_000),
        _node_queue(environments, "pg-boss", "12", "pgboss", 15_000),
        _python_queue(environments, "procrastinate", ">=3,<4", 200),
        _python_queue(environments, "dbos", ">=3,<4", 150),
    )


def _bare_sql(dsn: str) -> Sequence[str]:
    return [sys.executable, "-m", "tests.benchmarks.bare_sql", dsn]


def _node_queue(environments: Environments, package: str, version: str, script: str, rate_guess: float) -> JobQueue:
    def command(dsn: str) -> Sequence[str]:
        node, home = environments.node_with(package, version, node_min=22)
        return [str(node), str(_HERE / "peers" / f"{script}.mjs"), dsn, str(home)]

    return JobQueue(name=package, rate_guess=rate_guess, command=command)


def _python_queue(environments: Environments, package: str, versions: str, rate_guess: float) -> JobQueue:
    def command(dsn: str) -> Sequence[str]:
        python = environments.python_with(package, package + versions, "psycopg[binary]")
        return [str(python), "-m", f"tests.benchmarks.peers.{package}_peer", dsn]

    return JobQueue(name=package, rate_guess=rate_guess, command=command)


CONTESTANTS = tuple(each.name for each in _known(Crew(), Environments(print, install=False)))
