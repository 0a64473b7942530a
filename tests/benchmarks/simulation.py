"""What a simulated run costs: processor time by size, and where it goes."""

from __future__ import annotations

import signal
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import get_args

from tests.benchmarks.machine import describe_machine
from tests.benchmarks.runs import temporary_folder

from simulations.plans.drawing import Size, draw_plan
from simulations.running import Result, simulate
from stellwerk.values import frozen

__all__ = ["SimulationOptions", "measure_simulation"]

Report = Callable[[str], None]

_SAMPLE_SECONDS = 0.001
"""Of processor time."""
_FUNCTIONS_MAX = 25
_AREAS = {
    "stellwerk.actors": "engine",
    "stellwerk.core": "engine",
    "stellwerk.worker": "worker",
    "stellwerk.server": "server",
    "stellwerk": "engine, other",
    "simulations.kernel": "simulation: kernel",
    "simulations.world": "simulation: world",
    "simulations.checks": "simulation: checks",
    "simulations": "simulation: other",
    "trio_websocket": "WebSocket and HTTP libraries",
    "wsproto": "WebSocket and HTTP libraries",
    "h11": "WebSocket and HTTP libraries",
    "starlette": "WebSocket and HTTP libraries",
    "trio": "trio",
    "outcome": "trio",
}
"""By the longest beginning of a module's name."""


@frozen
class SimulationOptions:
    seeds: int
    """How many runs of each size, with the seeds from 1."""
    rounds: int
    """How often each; its cheapest run counts, since others on the machine only make it dearer."""
    functions: int = _FUNCTIONS_MAX


def measure_simulation(options: SimulationOptions, report: Report) -> Mapping[str, object]:
    """``sizes``: figures of each size; ``areas`` and ``functions``: [name, share] of the large runs' processor time."""
    sizes: Sequence[Size] = get_args(Size)
    results: dict[Size, list[list[Result]]] = {size: [[] for _ in range(options.seeds)] for size in sizes}
    sampled = _Samples()
    simulate(draw_plan(1, "small"))  # reads the models, and what else is done once in a process
    for number in range(options.rounds):
        for seed in range(1, options.seeds + 1):
            for size, runs in results.items():
                report(f"round {number + 1} of {options.rounds}: {size}, seed {seed}")
                with sampled.taken() if size == "large" else nullcontext():
                    runs[seed - 1].append(simulate(draw_plan(seed, size)))
    with temporary_folder(None) as folder:
        return {
            "machine": describe_machine(Path(folder)),
            "sizes": [_figures(size, list(map(_cheapest, runs))) for size, runs in results.items()],
            "areas": _shares(sampled.areas, len(_AREAS)),
            "functions": _shares(sampled.functions, options.functions),
        }


def _cheapest(results: Sequence[Result]) -> Result:
    return min(results, key=lambda result: result.cpu_seconds)


def _figures(size: str, results: Sequence[Result]) -> Mapping[str, object]:
    cpu, steps = sum(result.cpu_seconds for result in results), sum(result.steps for result in results)
    return {
        "size": size,
        "runs": len(results),
        "cpu_seconds": statistics.median(result.cpu_seconds for result in results),
        "cpu_seconds_max": max(result.cpu_seconds for result in results),
        "simulated_seconds": statistics.median(result.simulated_seconds for result in results),
        "simulated_per_cpu_second": sum(result.simulated_seconds for result in results) / cpu,
        "steps": statistics.median(result.steps for result in results),
        "step_us": cpu * 1e6 / steps,
        "violations": sum(len(result.violations) for result in results),
    }


class _Samples:
    """By a signal after each millisecond of processor time: a thread would find the run mostly where it lets others in,
    and a run is sealed against threads."""

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()
        self.areas: Counter[str] = Counter()

    @contextmanager
    def taken(self) -> Iterator[None]:
        if not hasattr(signal, "setitimer"):
            yield
            return
        before = signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_SECONDS, _SAMPLE_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def _take(self, _: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        module = str(frame.f_globals.get("__name__"))
        self.functions[f"{module} {frame.f_code.co_qualname}"] += 1
        self.areas[_area(frame)] += 1


def _area(frame: FrameType | None) -> str:
    """What belongs to nobody here (the standard library) is booked on who called it."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        while name:
            if name in _AREAS:
                return _AREAS[name]
            name = name.rpartition(".")[0]
        frame = frame.f_back
    return "other"


def _shares(counts: Counter[str], most: int) -> Sequence[tuple[str, float]]:
    total = counts.total() or 1
    return [(name, count / total) for name, count in counts.most_common(most)]
