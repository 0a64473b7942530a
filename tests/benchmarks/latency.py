"""How soon a handler starts on an idle engine.

All instants are of the monotonic clock, which all processes of a machine share (on Linux).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks.runs import Crew, StoreKind, engine_child, temporary_folder, worker_child

__all__ = ["measure_latency"]


def measure_latency(store: StoreKind, instances: int, crew: Crew, parent: Path) -> Mapping[str, float]:
    """Run one three-task instance after the other, each to its end. Gives percentiles in milliseconds."""
    with temporary_folder(parent) as folder, engine_child(store, folder) as engine:
        url = engine.answer()["url"]
        log = folder / "worker.log"
        with worker_child(url, crew.workers, crew.max_tasks, log, "--timed") as worker:
            worker.answer()
            worker.ask(do="go")
            starts = engine.ask(do="single", process="chain", count=instances)["starts"]
            runs = worker.finish()["runs"]
    by_instance: dict[str, list[tuple[float, float]]] = {}
    for instance_id, begin, end in runs:
        by_instance.setdefault(instance_id, []).append((begin, end))
    return {
        **_percentiles(
            "start_to_handler", [by_instance[instance_id][0][0] - asked for instance_id, asked, _ in starts]
        ),
        **_percentiles("start_to_answer", [answered - asked for _, asked, answered in starts]),
        **_percentiles("handler_to_next_handler", [pause for each in by_instance.values() for pause in _pauses(each)]),
    }


def _pauses(runs: Sequence[tuple[float, float]]) -> list[float]:
    """Between one handler's return and the next one's start."""
    return [after[0] - before[1] for before, after in itertools.pairwise(runs)]


def _percentiles(name: str, seconds: Sequence[float]) -> Mapping[str, float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"{name}_p50_ms": cuts[49] * 1000, f"{name}_p99_ms": cuts[98] * 1000}
