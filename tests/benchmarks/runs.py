"""An engine's process with workers beside it, as the benchmarks start them."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
from tests.benchmarks.children import Child, ChildFailed

__all__ = [
    "STORES",
    "TASKS",
    "Crew",
    "StoreKind",
    "drain",
    "engine_child",
    "node_child",
    "temporary_folder",
    "worker_child",
]

_LOOK_SECONDS = 0.1
_STALLED_SECONDS = 60.0


@attrs.frozen
class StoreKind:
    name: str
    synchronous: str | None
    """None: memory."""


STORES = {
    store.name: store
    for store in (
        StoreKind("memory", None),
        StoreKind("sqlite-full", "FULL"),
        StoreKind("sqlite-normal", "NORMAL"),
    )
}
TASKS = {"chain": 3, "wide": 64 * 4, "single": 1}
"""Of one instance of each process."""


@attrs.frozen(kw_only=True)
class Crew:
    """The workers."""

    workers: int = 4
    processes: int = 1
    max_tasks: int = 32
    """Leases of one worker."""


@contextmanager
def temporary_folder(parent: Path | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="stellwerk-benchmark-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def engine_child(store: StoreKind, folder: Path, *, record: bool = False) -> Child:
    """On a fresh database in the folder."""
    if store.synchronous is None:
        place = ["--db", ":memory:"]
    else:
        place = ["--db", str(folder / "engine.db"), "--synchronous", store.synchronous]
    return Child.of_module("engine_child", [*place, *(["--record"] if record else [])], folder / "engine.log")


def node_child(dsn: str, log: Path, *flags: str) -> Child:
    """On a database of PostgreSQL."""
    return Child.of_module("engine_child", ["--db", dsn, *flags], log)


def worker_child(url: str, workers: int, max_tasks: int, log: Path, *flags: str) -> Child:
    arguments = ["--url", url, "--workers", str(workers), "--max-tasks", str(max_tasks), *flags]
    return Child.of_module("worker_child", arguments, log)


def drain(urls: Sequence[str], tasks: int, crew: Crew, folder: Path, *flags: str) -> list[Mapping[str, Any]]:
    """Let the crew complete so many tasks; its processes connect to the engines in turn.

    → what each of the processes says at its end
    """
    with ExitStack() as stack:
        workers = [
            stack.enter_context(worker_child(url, share, crew.max_tasks, folder / f"worker-{number}.log", *flags))
            for number, (share, url) in enumerate(zip(_shares(crew), itertools.cycle(urls), strict=False))
        ]
        for worker in workers:
            worker.answer()
        for worker in workers:
            worker.tell(do="go")
        _wait_for(workers, tasks)
        return [worker.finish() for worker in workers]


def _shares(crew: Crew) -> list[int]:
    return [
        crew.workers // crew.processes + (number < crew.workers % crew.processes) for number in range(crew.processes)
    ]


def _wait_for(workers: Sequence[Child], tasks: int) -> None:
    """Each says its own total, whenever that has changed.

    :raises ChildFailed: a worker ended, or nothing was done for a long time.
    """
    acknowledged = [0] * len(workers)
    last_progress = time.monotonic()
    while sum(acknowledged) < tasks:
        for number, worker in enumerate(workers):
            for told in worker.answers(_LOOK_SECONDS):
                acknowledged[number], last_progress = told["acknowledged"], time.monotonic()
        if time.monotonic() - last_progress > _STALLED_SECONDS:
            raise ChildFailed(f"{sum(acknowledged)} of {tasks} tasks are done, and no more for {_STALLED_SECONDS:g} s")
