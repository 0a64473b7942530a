"""Our engine on a large database: what a backlog, finished work and an old snapshot cost, and how soon it is back."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import attrs
from tests.benchmarks.bulk import copy_instance
from tests.benchmarks.children import Child, ChildFailed
from tests.benchmarks.contestants import Round
from tests.benchmarks.databases import BenchmarkServer
from tests.benchmarks.models import BACKLOG_TOPIC
from tests.benchmarks.nodes import drain_round, load, running_nodes
from tests.benchmarks.processes import bytes_resident
from tests.benchmarks.runs import TASKS, Crew, drain, temporary_folder, worker_child

__all__ = ["ScaleOptions", "measure_scale"]

Report = Callable[[str], None]

_RATE_GUESS = 3_000
_RECOVERY_TASKS = 300
"""Completed before the engine is killed, and again afterwards."""
_STALLED_SECONDS = 60.0
_EMPTY = "empty"


@attrs.frozen(kw_only=True)
class ScaleOptions:
    ready_tasks: int = 1_000_000
    waiting_instances: int = 100_000
    finished_tasks: int = 1_000_000
    seconds: float = 2.0
    rounds: int = 3
    recoveries: int = 3
    crew: Crew = attrs.field(factory=Crew)


@attrs.define(eq=False)
class _Case:
    name: str
    database: str | None
    """None: a fresh one for each round."""
    holds_snapshot: bool = False
    rounds: list[Round] = attrs.field(factory=list)

    def tasks(self, seconds: float) -> int:
        rate = self.rounds[-1].tasks_per_second if self.rounds else _RATE_GUESS
        return max(TASKS["chain"], round(rate * seconds))


def measure_scale(server: BenchmarkServer, options: ScaleOptions, parent: Path, report: Report) -> Mapping[str, object]:
    """Rounds of all cases are interleaved. Gives plain values for JSON."""
    with ExitStack() as stack:
        backlog, finished = (stack.enter_context(server.database(is_migrated=True)) for _ in range(2))
        _fill_backlog(server, backlog, options, parent, report)
        _fill_finished(server, finished, options, parent, report)
        cases = [
            _Case(_EMPTY, None),
            _Case("backlog", backlog),
            _Case("finished", finished),
            _Case("old snapshot", None, holds_snapshot=True),
        ]
        for number in range(options.rounds):
            for case in cases:
                with temporary_folder(parent) as folder:
                    case.rounds.append(_measure_round(server, case, options, folder))
                rate = case.rounds[-1].tasks_per_second
                report(f"round {number + 1} of {options.rounds}, {case.name}: {rate:,.0f} tasks/s")
        recoveries = []
        for number in range(options.recoveries):
            with temporary_folder(parent) as folder:
                recoveries.append(_recover(backlog, options.crew, folder))
            report(f"recovery {number + 1} of {options.recoveries}: {recoveries[-1].first_task_seconds:.2f} s")
    return {
        "ready_tasks": options.ready_tasks,
        "waiting_instances": options.waiting_instances,
        "finished_tasks": options.finished_tasks,
        "cases": _summaries(cases),
        "recovery": {
            "listening_seconds": statistics.median(each.listening_seconds for each in recoveries),
            "first_task_seconds": statistics.median(each.first_task_seconds for each in recoveries),
            "first_task_seconds_rounds": [each.first_task_seconds for each in recoveries],
            "engine_megabytes": max(each.bytes_resident for each in recoveries) / 1e6,
        },
    }


def _measure_round(server: BenchmarkServer, case: _Case, options: ScaleOptions, folder: Path) -> Round:
    with ExitStack() as stack:
        dsn = case.database or stack.enter_context(server.database(is_migrated=True))
        if case.holds_snapshot:
            stack.enter_context(_old_snapshot(dsn))
        return drain_round(server, dsn, 1, options.crew, case.tasks(options.seconds), folder)


@contextmanager
def _old_snapshot(dsn: str) -> Iterator[None]:
    """A transaction that sees the database as it is now, and does nothing: as a backup or a forgotten session does."""
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(dsn))
        runner.run(connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ"))
        runner.run(connection.fetch("SELECT count(*) FROM stellwerk.instances"))
        try:
            yield
        finally:
            runner.run(connection.close())


def _summaries(cases: Sequence[_Case]) -> Sequence[Mapping[str, object]]:
    def median(case: _Case, value: Callable[[Round], float]) -> float:
        return statistics.median(value(each) for each in case.rounds)

    [empty] = [median(case, lambda each: each.tasks_per_second) for case in cases if case.name == _EMPTY]
    return [
        {
            "name": case.name,
            "tasks_per_second": median(case, lambda each: each.tasks_per_second),
            "tasks_per_second_rounds": [each.tasks_per_second for each in case.rounds],
            "rate_by_empty": median(case, lambda each: each.tasks_per_second) / empty,
            "engine_cpu_us": median(case, lambda each: each.engine_cpu / each.tasks * 1e6),
            "postgres_cpu_us": median(case, lambda each: each.postgres_cpu / each.tasks * 1e6),
            "engine_megabytes": max(each.bytes_resident or 0 for each in case.rounds) / 1e6,
        }
        for case in cases
    ]


# --- what lies in the databases ------------------------------------------------------------------------------------


def _fill_backlog(server: BenchmarkServer, dsn: str, options: ScaleOptions, parent: Path, report: Report) -> None:
    """READY tasks of a topic of their own, and instances that wait."""
    with temporary_folder(parent) as folder, running_nodes(dsn, 1, folder) as nodes:
        load(nodes, "backlog", 1)
        load(nodes, "waiting", 1)
    copy_instance(server.server, dsn, "backlog", options.ready_tasks - 1, report)
    copy_instance(server.server, dsn, "waiting", options.waiting_instances - 1, report)
    _settle(server, dsn)


def _fill_finished(server: BenchmarkServer, dsn: str, options: ScaleOptions, parent: Path, report: Report) -> None:
    """Instances that have ended, with all their tasks."""
    with temporary_folder(parent) as folder, running_nodes(dsn, 1, folder) as nodes:
        load(nodes, "chain", 1)
        drain([node.url for node in nodes], TASKS["chain"], options.crew, folder)
    copy_instance(server.server, dsn, "chain", options.finished_tasks // TASKS["chain"] - 1, report)
    _settle(server, dsn)


def _settle(server: BenchmarkServer, dsn: str) -> None:
    """What the server does by itself after a while."""
    server.server.query("VACUUM (ANALYZE)", dsn=dsn)
    server.server.query("CHECKPOINT", dsn=dsn)


# --- recovery ------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Recovery:
    listening_seconds: float
    """From the kill until the new engine listens."""
    first_task_seconds: float
    """From the kill until a handler starts with a task that the new engine handed out."""
    bytes_resident: int


def _recover(dsn: str, crew: Crew, folder: Path) -> _Recovery:
    """Kill the engine while workers are busy with the backlog, and start another one on the same port."""
    with ExitStack() as stack:
        [node] = stack.enter_context(running_nodes(dsn, 1, folder))
        flags = ("--topic", BACKLOG_TOPIC, "--timed")
        worker = stack.enter_context(
            worker_child(node.url, crew.workers, crew.max_tasks, folder / "worker.log", *flags)
        )
        worker.answer(_STALLED_SECONDS)
        worker.ask(_STALLED_SECONDS, do="go")
        _wait_for(worker, _RECOVERY_TASKS)
        killed = time.monotonic()
        node.child.kill()
        port = urlsplit(node.url).port
        [again] = stack.enter_context(running_nodes(dsn, 1, folder, "--deployed", "--port", str(port)))
        listening = time.monotonic()
        _wait_for(worker, _RECOVERY_TASKS)
        resident = bytes_resident(again.child.pid)
        begins = sorted(begin for _, begin, _ in worker.finish()["runs"])
    return _Recovery(listening - killed, _after_pause(begins) - killed, resident)


def _wait_for(worker: Child, more: int) -> None:
    """Until it has had so many completions more acknowledged than at the first thing that it says."""
    deadline = time.monotonic() + _STALLED_SECONDS
    first: int | None = None
    while time.monotonic() < deadline:
        for told in worker.answers(0.1):
            first = told["acknowledged"] if first is None else first
            if told["acknowledged"] - first >= more:
                return
    raise ChildFailed(f"fewer than {more} tasks were completed in {_STALLED_SECONDS:g} s")


def _after_pause(begins: Sequence[float]) -> float:
    """The end of the longest pause between two handlers: the engine was away."""
    pauses = [(after - before, after) for before, after in itertools.pairwise(begins)]
    return max(pauses)[1]
