"""Where the processor time of the engine, the worker or the core goes, by module and function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.benchmarks.children import Child
from tests.benchmarks.core import ours
from tests.benchmarks.databases import private_server
from tests.benchmarks.nodes import load, running_nodes
from tests.benchmarks.runs import TASKS, Crew, StoreKind, drain, engine_child, temporary_folder

__all__ = ["profile_core", "profile_postgres", "profile_push"]

Report = Callable[[str], None]


def profile_push(
    store: StoreKind, process: str, instances: int, crew: Crew, parent: Path | None, report: Report
) -> Mapping[str, object]:
    """Of a drain: ``engine`` and ``worker``, each as `Sampler.stop` gives it, and the number of ``tasks``."""
    tasks = instances * TASKS[process]
    with temporary_folder(parent) as folder, engine_child(store, folder) as engine:
        url = engine.answer()["url"]
        report(f"starting {instances:,} instances of {process} on {store.name}")
        engine.ask(do="load", process=process, count=instances)
        report(f"draining {tasks:,} tasks")
        engine.ask(do="profile")
        figures = drain([url], tasks, crew, folder, "--sampled")
        return {"tasks": tasks, "engine": engine.ask(do="profiled"), "worker": figures[0]["profile"]}


def profile_postgres(process: str, instances: int, crew: Crew, report: Report) -> Mapping[str, object]:
    """The same of one node on a private PostgreSQL."""
    tasks = instances * TASKS[process]
    with (
        private_server() as server,
        server.database(is_migrated=True) as dsn,
        temporary_folder(None) as folder,
        running_nodes(dsn, 1, folder) as [node],
    ):
        report(f"starting {instances:,} instances of {process} on PostgreSQL {server.version}")
        load([node], process, instances)
        report(f"draining {tasks:,} tasks")
        node.child.ask(do="profile")
        figures = drain([node.url], tasks, crew, folder, "--sampled")
        return {"tasks": tasks, "engine": node.child.ask(do="profiled"), "worker": figures[0]["profile"]}


def profile_core(variant: str, instances: int, report: Report) -> Mapping[str, object]:
    """Of a contestant of ours in the benchmark ``core``."""
    with temporary_folder(None) as folder, Child([*ours(variant), "--sampled"], folder / "core.log") as child:
        child.answer()
        report(f"running {instances:,} instances")
        return {"instances": instances, variant: child.ask(instances=instances)["profile"]}
