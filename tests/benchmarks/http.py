"""Workers that fetch over HTTP: what a request costs the server, next to one that does nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from tests.benchmarks.children import Child
from tests.benchmarks.machine import describe_machine
from tests.benchmarks.runs import STORES, StoreKind, engine_child, temporary_folder

__all__ = ["HttpOptions", "measure_http"]

Report = Callable[[str], None]

_PROCESS = "single"
"""One task: a completion ends its instance, and makes no task for the next request to fetch."""


@attrs.frozen(kw_only=True)
class HttpOptions:
    stores: tuple[StoreKind, ...] = (STORES["memory"], STORES["sqlite-full"])
    tasks: int = 3000
    """In each round: so many completions, a tenth of so many fetches, and as many requests of the empty handler."""
    rounds: int = 5
    connections: int = 8
    folder: Path | None = None
    """Where the databases are made; None: where temporary files are made."""


@attrs.frozen
class _Figures:
    requests: int
    seconds: float
    cpu_seconds: float
    """Of the server."""


_EMPTY = ("empty handler", "–")
_Row = tuple[str, str]
"""Request and store."""


def measure_http(options: HttpOptions, report: Report) -> Mapping[str, object]:
    """Rounds of all rows are interleaved, so that a noisy minute hits all alike. Gives plain values for JSON."""
    rounds: dict[_Row, list[_Figures]] = {}
    with temporary_folder(options.folder) as folder:
        machine = describe_machine(folder)
        for number in range(options.rounds):
            report(f"round {number + 1} of {options.rounds}")
            found = _measure_empty(options, folder)
            for store in options.stores:
                found |= _measure_store(store, options, folder)
            for row, figures in found.items():
                rounds.setdefault(row, []).append(figures)
    empty_us = _cpu_us(rounds[_EMPTY])
    return {
        "machine": machine,
        "connections": options.connections,
        "tasks": options.tasks,
        "requests": [_summary(row, figures, empty_us) for row, figures in rounds.items()],
    }


def _measure_empty(options: HttpOptions, parent: Path) -> dict[_Row, _Figures]:
    with (
        temporary_folder(parent) as folder,
        Child.of_module("http_child", [], folder / "server.log") as server,
        _clients(server.answer()["url"], options, folder) as clients,
    ):
        clients.ask(do="empty", requests=options.tasks // 10)
        return {_EMPTY: _measured(server, clients, do="empty", requests=options.tasks)}


def _measure_store(store: StoreKind, options: HttpOptions, parent: Path) -> dict[_Row, _Figures]:
    with (
        temporary_folder(parent) as folder,
        engine_child(store, folder) as engine,
        _clients(engine.answer()["url"], options, folder) as clients,
    ):
        engine.ask(do="load", process=_PROCESS, count=options.tasks)
        return {
            ("fetch-and-lock, 10 tasks", store.name): _measured(engine, clients, do="fetch", tasks=options.tasks),
            ("complete", store.name): _measured(engine, clients, do="complete"),
        }


def _clients(url: str, options: HttpOptions, folder: Path) -> Child:
    arguments = ["--url", url, "--connections", str(options.connections)]
    return Child.of_module("http_load", arguments, folder / "clients.log")


def _measured(server: Child, clients: Child, **command: Any) -> _Figures:
    before = server.ask(do="cost")
    made = clients.ask(**command)
    after = server.ask(do="cost")
    return _Figures(made["requests"], made["seconds"], after["cpu_seconds"] - before["cpu_seconds"])


def _cpu_us(rounds: Sequence[_Figures]) -> float:
    return statistics.median(each.cpu_seconds / each.requests for each in rounds) * 1e6


def _summary(row: _Row, rounds: Sequence[_Figures], empty_us: float) -> Mapping[str, Any]:
    request, store = row
    cpu_us = _cpu_us(rounds)
    return {
        "request": request,
        "store": store,
        "requests_per_second": statistics.median(each.requests / each.seconds for each in rounds),
        "cpu_us": cpu_us,
        "requests_per_cpu_second": 1e6 / cpu_us,
        "cpu_us_beyond_empty": cpu_us - empty_us,
        "cpu_by_empty": cpu_us / empty_us,
        "rounds": [attrs.asdict(each) for each in rounds],
    }
