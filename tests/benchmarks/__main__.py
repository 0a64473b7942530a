"""``python -m tests.benchmarks NAME``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from cyclopts import App, Parameter
from rich.console import Console
from tests.benchmarks.children import ChildFailed
from tests.benchmarks.core import CoreOptions, measure_core
from tests.benchmarks.http import HttpOptions, measure_http
from tests.benchmarks.postgres import CONTESTANTS, PostgresOptions, measure_postgres
from tests.benchmarks.profiles import profile_core, profile_postgres, profile_push
from tests.benchmarks.push import PushOptions, measure_push
from tests.benchmarks.runs import STORES, Crew
from tests.benchmarks.scale import ScaleOptions
from tests.benchmarks.tables import (
    print_core,
    print_http,
    print_postgres,
    print_profile,
    print_push,
    print_simulation,
)

from stellwerk.testing.databases import NoServer

__all__: list[str] = []

_Store: TypeAlias = Literal["memory", "sqlite-full", "sqlite-normal"]
_Process: TypeAlias = Literal["chain", "wide"]
_Quick: TypeAlias = Annotated[bool, Parameter(negative=(), help="One short round each.")]
_Rounds: TypeAlias = Annotated[int | None, Parameter(help="Default: 5.")]
_Json: TypeAlias = Annotated[bool, Parameter(name="--json", negative=(), help="For programs.")]
_Directory: TypeAlias = Annotated[Path | None, Parameter(help="Where the databases are made.")]
_MaxTasks: TypeAlias = Annotated[int, Parameter(help="Leases of one worker.")]
_Functions: TypeAlias = Annotated[int, Parameter(help="How many lines of each list.")]
_WIDTH = 190

app = App(name="python -m tests.benchmarks", help="Benchmarks of the engine; docs/performance.md explains them.")
profile = App(name="profile", help="Where processor time goes, by module and function.")
app.command(profile)


@app.command
def push(
    *,
    quick: _Quick = False,
    stores: Annotated[str, Parameter(help="Separated by commas.")] = ",".join(STORES),
    processes: Annotated[str, Parameter(help="chain, wide, or both with a comma.")] = "chain,wide",
    seconds: Annotated[float | None, Parameter(help="About how long one round drains. Default: 2.")] = None,
    rounds: _Rounds = None,
    workers: int = 4,
    worker_processes: int = 1,
    max_tasks: _MaxTasks = 32,
    latency_instances: Annotated[int | None, Parameter(help="0: no latency. Default: 150.")] = None,
    directory: _Directory = None,
    as_json: _Json = False,
) -> None:
    """External tasks pushed over WebSocket, on each store: throughput, cost and latency."""
    if not 1 <= worker_processes <= workers:
        raise SystemExit(f"{workers} workers cannot run in {worker_processes} processes")
    options = PushOptions(
        stores=tuple(STORES[name] for name in _choices(stores, STORES)),
        processes=_choices(processes, {"chain": 1, "wide": 1}),
        seconds=seconds or (0.7 if quick else 2.0),
        rounds=rounds or (1 if quick else 5),
        replays=1 if quick else 3,
        crew=Crew(workers=workers, processes=worker_processes, max_tasks=max_tasks),
        latency_instances=(40 if quick else 150) if latency_instances is None else latency_instances,
        folder=directory,
    )
    _show(measure_push(options, _report), print_push, as_json=as_json)


@app.command
def http(
    *,
    quick: _Quick = False,
    stores: Annotated[str, Parameter(help=f"Separated by commas, of {', '.join(STORES)}.")] = "memory,sqlite-full",
    tasks: Annotated[int | None, Parameter(help="In each round. Default: 3000.")] = None,
    rounds: _Rounds = None,
    connections: Annotated[int, Parameter(help="With one request at a time each.")] = 8,
    directory: _Directory = None,
    as_json: _Json = False,
) -> None:
    """What requests of workers that fetch over HTTP cost, next to one that does nothing."""
    options = HttpOptions(
        stores=tuple(STORES[name] for name in _choices(stores, STORES)),
        tasks=tasks or (500 if quick else 3000),
        rounds=rounds or (1 if quick else 5),
        connections=connections,
        folder=directory,
    )
    _show(measure_http(options, _report), print_http, as_json=as_json)


@app.command
def core(
    *,
    quick: _Quick = False,
    seconds: Annotated[float | None, Parameter(help="About how long one round of each takes. Default: 1.")] = None,
    rounds: _Rounds = None,
    peers: Annotated[bool, Parameter(help="Run other engines beside ours.")] = True,
    install: Annotated[bool, Parameter(help="Install peers that are missing, into the user's cache directory.")] = True,
    peer_python: Annotated[Path | None, Parameter(help="The Python for peers. Default: the newest found.")] = None,
    as_json: _Json = False,
) -> None:
    """A three-task process in memory: our core and embedded engine, and other BPMN engines."""
    options = CoreOptions(
        seconds=seconds or (0.3 if quick else 1.0),
        rounds=rounds or (1 if quick else 5),
        with_peers=peers,
        install=install,
        peer_python=peer_python,
    )
    _show(measure_core(options, _report), print_core, as_json=as_json)


@app.command
def postgres(
    *,
    quick: _Quick = False,
    only: Annotated[str | None, Parameter(help=f"Separated by commas: {', '.join(CONTESTANTS)}.")] = None,
    without_peers: Annotated[bool, Parameter(negative=(), help="Only our own.")] = False,
    seconds: Annotated[float | None, Parameter(help="About how long one round drains. Default: 2.")] = None,
    rounds: _Rounds = None,
    workers: int = 4,
    max_tasks: _MaxTasks = 32,
    latency_tasks: Annotated[int | None, Parameter(help="In each round; 0: no latency. Default: 60.")] = None,
    scale: Annotated[bool, Parameter(negative=(), help="Large databases too: some minutes more, 10 GB.")] = False,
    ready_tasks: Annotated[int, Parameter(help="For --scale.")] = 1_000_000,
    waiting_instances: Annotated[int, Parameter(help="For --scale.")] = 100_000,
    finished_tasks: Annotated[int, Parameter(help="For --scale.")] = 1_000_000,
    install: Annotated[bool, Parameter(help="Install peers that are missing, into the user's cache directory.")] = True,
    peer_python: Annotated[Path | None, Parameter(help="The Python for peers. Default: the newest found.")] = None,
    as_json: _Json = False,
) -> None:
    """Our engine on a private PostgreSQL, and job queues beside it: throughput, cost and latency."""
    if workers < 2:
        raise SystemExit("two nodes need two workers")
    crew = Crew(workers=workers, max_tasks=max_tasks)
    seconds, rounds = seconds or (0.5 if quick else 2.0), rounds or (1 if quick else 5)
    options = PostgresOptions(
        only=() if only is None else _choices(only, dict.fromkeys(CONTESTANTS)),
        with_peers=not without_peers,
        seconds=seconds,
        rounds=rounds,
        crew=crew,
        latency_tasks=(20 if quick else 60) if latency_tasks is None else latency_tasks,
        install=install,
        peer_python=peer_python,
        scale=None
        if not scale
        else ScaleOptions(
            ready_tasks=ready_tasks,
            waiting_instances=waiting_instances,
            finished_tasks=finished_tasks,
            seconds=seconds,
            rounds=rounds,
            recoveries=1 if quick else 3,
            crew=crew,
        ),
    )
    results = measure_postgres(options, _report)
    _show(results, print_postgres, as_json=as_json)
    if any(not each["is_peer"] for each in results["contestants"] if each["name"] in results["failed"]):
        raise SystemExit("our own did not go through: see above")


@app.command
def simulation(
    *,
    quick: _Quick = False,
    seeds: Annotated[int | None, Parameter(help="Runs of each size. Default: 7.")] = None,
    rounds: Annotated[int | None, Parameter(help="Default: 3.")] = None,
    functions: _Functions = 25,
    as_json: _Json = False,
) -> None:
    """Runs of the deterministic simulation: processor time of small and large ones, and where it goes."""
    from tests.benchmarks.simulation import SimulationOptions, measure_simulation

    options = SimulationOptions(
        seeds=seeds or (2 if quick else 7), rounds=rounds or (1 if quick else 3), functions=functions
    )
    _show(measure_simulation(options, _report), print_simulation, as_json=as_json)


@profile.command(name="push")
def _profile_push(
    *,
    store: _Store = "sqlite-full",
    process: _Process = "chain",
    instances: int = 3000,
    workers: int = 4,
    max_tasks: _MaxTasks = 32,
    functions: _Functions = 25,
    directory: _Directory = None,
    as_json: _Json = False,
) -> None:
    """Of the engine's process and the worker's, while they drain instances."""
    crew = Crew(workers=workers, max_tasks=max_tasks)
    _show_sides(profile_push(STORES[store], process, instances, crew, directory, _report), functions, as_json=as_json)


@profile.command(name="postgres")
def _profile_postgres(
    *,
    process: _Process = "chain",
    instances: int = 3000,
    workers: int = 4,
    max_tasks: _MaxTasks = 32,
    functions: _Functions = 25,
    as_json: _Json = False,
) -> None:
    """The same on a private PostgreSQL."""
    crew = Crew(workers=workers, max_tasks=max_tasks)
    _show_sides(profile_postgres(process, instances, crew, _report), functions, as_json=as_json)


def _show_sides(results: Mapping[str, Any], functions: int, *, as_json: bool) -> None:
    def show(console: Console, results: Mapping[str, Any]) -> None:
        for side in ("engine", "worker"):
            print_profile(console, side, results[side], results["tasks"], functions)

    _show(results, show, as_json=as_json)


@profile.command(name="core")
def _profile_core(
    *,
    variant: Literal["decisions", "core", "core-and-store", "embedded"] = "core",
    instances: int = 5000,
    functions: _Functions = 25,
    as_json: _Json = False,
) -> None:
    """Of one of our contestants in the benchmark core."""
    results = profile_core(variant, instances, _report)

    def show(console: Console, results: Mapping[str, Any]) -> None:
        print_profile(console, variant, results[variant], instances, functions)

    _show(results, show, as_json=as_json)


def _choices(text: str, known: Mapping[str, object]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    return names


def _show(results: Mapping[str, Any], show: Callable[[Console, Mapping[str, Any]], None], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(results, indent=2))
        return
    console = Console()
    show(console if console.is_terminal else Console(width=_WIDTH), results)


def _report(text: str) -> None:
    Console(stderr=True, highlight=False).print(text, style="dim")


def _main() -> None:
    try:
        app()
    except (ChildFailed, NoServer) as failure:
        raise SystemExit(str(failure)) from None


if __name__ == "__main__":
    _main()
