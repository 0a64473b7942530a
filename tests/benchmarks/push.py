"""External tasks pushed over WebSocket: how many a second, what each costs, and how near that is to the bare store."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from tests.benchmarks.latency import measure_latency
from tests.benchmarks.machine import describe_machine, flush_ms
from tests.benchmarks.runs import STORES, TASKS, Crew, StoreKind, drain, engine_child, temporary_folder

__all__ = ["PushOptions", "measure_push"]

Report = Callable[[str], None]

_RATE_GUESS = 3_000
"""Life-cycles a second, for the length of the first round; later rounds know better."""
_INSTANCES_MIN = {"chain": 60, "wide": 2}


@attrs.frozen(kw_only=True)
class PushOptions:
    stores: tuple[StoreKind, ...] = tuple(STORES.values())
    processes: tuple[str, ...] = ("chain", "wide")
    seconds: float = 2.0
    """About how long one round drains."""
    rounds: int = 5
    replays: int = 3
    """Rounds of the bare loop."""
    crew: Crew = attrs.field(factory=Crew)
    latency_instances: int = 150
    """0: latency is not measured."""
    folder: Path | None = None
    """Where the databases are made; None: where temporary files are made."""
    instances: int | None = None
    """Exactly so many in each round, whatever time that takes."""


@attrs.frozen
class _Round:
    """One fresh engine: instances are started, then the workers come and drain them."""

    tasks: int
    instances: int
    load_seconds: float
    load_cpu: float
    drain_seconds: float
    """From the first handler's start to the last acknowledged completion."""
    engine_cpu: float
    worker_cpu: float
    transactions: int
    operations: int
    flush_ms: float

    @property
    def tasks_per_second(self) -> float:
        return self.tasks / self.drain_seconds


@attrs.define(eq=False)
class _Row:
    """One line of the table, while it is measured."""

    process: str
    store: StoreKind
    rounds: list[_Round] = attrs.field(factory=list)
    replays: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        return f"{self.process} on {self.store.name}"

    def instances(self, options: PushOptions) -> int:
        """For the next round."""
        if options.instances is not None:
            return options.instances
        rate = self.rounds[-1].tasks_per_second if self.rounds else _RATE_GUESS
        return max(_INSTANCES_MIN[self.process], round(rate * options.seconds / TASKS[self.process]))


def measure_push(options: PushOptions, report: Report) -> Mapping[str, object]:
    """Rounds of all rows are interleaved, so that a noisy minute hits all alike. Gives plain values for JSON."""
    rows = [_Row(process, store) for process in options.processes for store in options.stores]
    with temporary_folder(options.folder) as folder:
        machine = describe_machine(folder)
        for number in range(options.rounds):
            for row in rows:
                row.rounds.append(_measure_round(row, options, folder))
                rate = row.rounds[-1].tasks_per_second
                report(f"round {number + 1} of {options.rounds}, {row}: {rate:,.0f} life-cycles/s")
        for row in rows:
            report(f"the bare loop, {row}")
            row.replays = _bare_loop(row, options, folder)
        latencies = []
        for store in options.stores if options.latency_instances else ():
            report(f"latency on {store.name}")
            latencies.append(
                {"store": store.name, **measure_latency(store, options.latency_instances, options.crew, folder)}
            )
    return {
        "machine": machine,
        **attrs.asdict(options.crew),
        "throughput": [_summary(row) for row in rows],
        "latency": latencies,
    }


def _measure_round(row: _Row, options: PushOptions, parent: Path) -> _Round:
    instances = row.instances(options)
    tasks = instances * TASKS[row.process]
    with temporary_folder(parent) as folder, engine_child(row.store, folder) as engine:
        flush = flush_ms(folder)
        url = engine.answer()["url"]
        load = engine.ask(do="load", process=row.process, count=instances)
        before = engine.ask(do="cost")
        figures = drain([url], tasks, options.crew, folder)
        after = engine.ask(do="cost")
    starts = [each["first_start"] for each in figures if each["first_start"] is not None]
    return _Round(
        tasks=tasks,
        instances=instances,
        load_seconds=load["seconds"],
        load_cpu=load["cpu_seconds"],
        drain_seconds=max(each["last_acknowledgement"] for each in figures) - min(starts),
        engine_cpu=after["cpu_seconds"] - before["cpu_seconds"],
        worker_cpu=sum(each["cpu_seconds"] for each in figures),
        transactions=after["transactions"] - before["transactions"],
        operations=after["operations"] - before["operations"],
        flush_ms=flush,
    )


def _bare_loop(row: _Row, options: PushOptions, parent: Path) -> Sequence[Mapping[str, Any]]:
    """A round is recorded at the store, and its transactions are done again without an engine."""
    instances = row.rounds[-1].instances
    tasks = instances * TASKS[row.process]
    with temporary_folder(parent) as folder, engine_child(row.store, folder, record=True) as engine:
        url = engine.answer()["url"]
        engine.ask(do="load", process=row.process, count=instances)
        engine.ask(do="mark")
        drain([url], tasks, options.crew, folder)
        replays = [engine.ask(do="replay") for _ in range(options.replays)]
    for each in replays:
        assert each["refused"] <= each["operations"] / 100, f"the bare loop did something else: {each}"
    return [{**each, "tasks": tasks} for each in replays]


def _summary(row: _Row) -> Mapping[str, object]:
    def median(value: Callable[[_Round], float]) -> float:
        return statistics.median(value(each) for each in row.rounds)

    rate = median(lambda each: each.tasks_per_second)
    engine_cpu_us = median(lambda each: each.engine_cpu / each.tasks * 1e6)
    bare_rate = statistics.median(each["tasks"] / each["seconds"] for each in row.replays)
    bare_cpu_us = statistics.median(each["cpu_seconds"] / each["tasks"] * 1e6 for each in row.replays)
    return {
        "process": row.process,
        "store": row.store.name,
        "tasks_per_instance": TASKS[row.process],
        "life_cycles_per_second": rate,
        "life_cycles_per_second_rounds": [each.tasks_per_second for each in row.rounds],
        "life_cycles_per_second_with_starts": median(
            lambda each: each.tasks / (each.drain_seconds + each.load_seconds)
        ),
        "starts_per_second": median(lambda each: each.instances / each.load_seconds),
        "start_cpu_us": median(lambda each: each.load_cpu / each.instances * 1e6),
        "engine_cpu_us": engine_cpu_us,
        "life_cycles_per_cpu_second": 1e6 / engine_cpu_us,
        "worker_cpu_us": median(lambda each: each.worker_cpu / each.tasks * 1e6),
        "engine_busy": median(lambda each: each.engine_cpu / each.drain_seconds),
        "operations_per_transaction": median(lambda each: each.operations / max(1, each.transactions)),
        "flush_ms": median(lambda each: each.flush_ms),
        "bare_loop_per_second": bare_rate,
        "bare_loop_cpu_us": bare_cpu_us,
        "rate_by_bare_loop": rate / bare_rate,
        "cpu_by_bare_loop": engine_cpu_us / bare_cpu_us,
    }
