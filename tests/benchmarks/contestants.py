"""Who is measured on PostgreSQL, and what a round of each gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import attrs
from tests.benchmarks.children import Child
from tests.benchmarks.databases import BenchmarkServer

__all__ = ["Contestant", "JobQueue", "Round"]

_ANSWER_SECONDS_MAX = 180.0


@attrs.frozen(kw_only=True)
class Round:
    """A fresh database and fresh processes: tasks (or jobs) are put in, then worked off."""

    tasks: int
    version: str = ""
    runtime: str = ""
    instances: int | None = None
    """Of a process, where tasks belong to one."""
    load_seconds: float
    drain_seconds: float
    engine_cpu: float = 0.0
    """Seconds of processor time during the drain, of all engines; the next two likewise."""
    worker_cpu: float
    postgres_cpu: float
    transactions: int | None = None
    operations: int | None = None
    bytes_resident: int | None = None
    """The most that an engine had."""

    @property
    def tasks_per_second(self) -> float:
        return self.tasks / self.drain_seconds


class Contestant(Protocol):
    """Both raise `ChildFailed` when a process fails or hangs."""

    @property
    def name(self) -> str: ...

    @property
    def is_peer(self) -> bool: ...

    @property
    def rate_guess(self) -> float:
        """Tasks a second, for the length of the first round; later rounds know better."""

    @property
    def has_dispatch(self) -> bool:
        """It hands out tasks, so that a latency can be measured."""

    def measure(self, server: BenchmarkServer, tasks: int, folder: Path) -> Round:
        """One round; `tasks` may be rounded to what an instance has."""

    def waits_ms(self, server: BenchmarkServer, tasks: int, rate: float, folder: Path) -> Sequence[float]:
        """From the request to the handler's start, of so many tasks at a steady pace, on an idle engine."""


@attrs.frozen(kw_only=True)
class JobQueue:
    """A program that speaks as `peers.queue_contest` says."""

    name: str
    is_peer: bool = True
    rate_guess: float
    has_dispatch: bool = True
    command: Callable[[str], Sequence[str]]
    """For a DSN. Installs what is missing; raises `Unavailable`."""

    def measure(self, server: BenchmarkServer, tasks: int, folder: Path) -> Round:
        with server.database(is_migrated=False) as dsn, self._child(dsn, folder) as child:
            told = child.answer(_ANSWER_SECONDS_MAX)
            load = child.ask(_ANSWER_SECONDS_MAX, do="load", jobs=tasks)
            before = server.cpu_seconds()
            drain = child.ask(_ANSWER_SECONDS_MAX, do="drain", jobs=tasks)
            return Round(
                tasks=tasks,
                version=told["version"],
                runtime=told["runtime"],
                load_seconds=load["seconds"],
                drain_seconds=drain["seconds"],
                worker_cpu=drain["cpu_seconds"],
                postgres_cpu=server.cpu_seconds() - before,
            )

    def waits_ms(self, server: BenchmarkServer, tasks: int, rate: float, folder: Path) -> Sequence[float]:
        with server.database(is_migrated=False) as dsn, self._child(dsn, folder) as child:
            child.answer(_ANSWER_SECONDS_MAX)
            waits: Sequence[float] = child.ask(_ANSWER_SECONDS_MAX, do="latency", jobs=tasks, rate=rate)["waits_ms"]
            return waits

    def _child(self, dsn: str, folder: Path) -> Child:
        return Child(self.command(dsn), folder / f"{self.name.replace(' ', '-')}.log")
