"""Our engine's nodes on PostgreSQL, with workers over WebSocket, and their store without an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import attrs
from tests.benchmarks.children import Child
from tests.benchmarks.contestants import Round
from tests.benchmarks.databases import BenchmarkServer
from tests.benchmarks.processes import bytes_resident
from tests.benchmarks.runs import TASKS, Crew, drain, node_child, worker_child

__all__ = ["BareStore", "OurNodes", "drain_round", "load", "running_nodes"]

_PROCESS = "chain"
_DISPATCHED = "single"
_OPEN_SECONDS_MAX = 60.0
_LOAD_SECONDS_MAX = 300.0
_REPLAY_SECONDS_MAX = 120.0
_RUNTIME = f"Python {python_version()}"


@attrs.frozen
class RunningNode:
    child: Child
    url: str

    def cost(self) -> Mapping[str, Any]:
        costs: Mapping[str, Any] = self.child.ask(_OPEN_SECONDS_MAX, do="cost")
        return costs


@contextmanager
def running_nodes(dsn: str, count: int, folder: Path, *flags: str) -> Iterator[Sequence[RunningNode]]:
    with ExitStack() as stack:
        nodes = []
        for number in range(count):
            child = stack.enter_context(node_child(dsn, folder / f"engine-{number}.log", *flags))
            nodes.append(RunningNode(child, child.answer(_OPEN_SECONDS_MAX)["url"]))
        yield nodes


def load(nodes: Sequence[RunningNode], process: str, instances: int) -> float:
    """Each node starts its share. → seconds"""
    for number, node in enumerate(nodes):
        share = instances // len(nodes) + (number < instances % len(nodes))
        node.child.tell(do="load", process=process, count=share)
    return max(float(node.child.answer(_LOAD_SECONDS_MAX)["seconds"]) for node in nodes)


def drain_round(server: BenchmarkServer, dsn: str, nodes: int, crew: Crew, tasks: int, folder: Path) -> Round:
    """On a database that may have other things in it."""
    instances = max(nodes, tasks // TASKS[_PROCESS])
    tasks = instances * TASKS[_PROCESS]
    with running_nodes(dsn, nodes, folder) as running:
        load_seconds = load(running, _PROCESS, instances)
        before, postgres_before = [node.cost() for node in running], server.cpu_seconds()
        figures = drain([node.url for node in running], tasks, crew, folder)
        postgres_cpu, after = server.cpu_seconds() - postgres_before, [node.cost() for node in running]
        resident = max(bytes_resident(node.child.pid) for node in running)

    def spent(what: str) -> Any:
        return sum(each[what] for each in after) - sum(each[what] for each in before)

    starts = [each["first_start"] for each in figures if each["first_start"] is not None]
    return Round(
        tasks=tasks,
        version=version("stellwerk"),
        runtime=_RUNTIME,
        instances=instances,
        load_seconds=load_seconds,
        drain_seconds=max(each["last_acknowledgement"] for each in figures) - min(starts),
        engine_cpu=spent("cpu_seconds"),
        worker_cpu=sum(each["cpu_seconds"] for each in figures),
        postgres_cpu=postgres_cpu,
        transactions=spent("transactions"),
        operations=spent("operations"),
        bytes_resident=resident,
    )


@attrs.frozen(kw_only=True)
class OurNodes:
    """Beside several nodes each process of the crew connects to another one."""

    name: str
    nodes: int
    crew: Crew
    is_peer: bool = False
    has_dispatch: bool = True
    rate_guess: float = 3_000.0

    def measure(self, server: BenchmarkServer, tasks: int, folder: Path) -> Round:
        with server.database(is_migrated=True) as dsn:
            return drain_round(server, dsn, self.nodes, self.crew, tasks, folder)

    def waits_ms(self, server: BenchmarkServer, tasks: int, rate: float, folder: Path) -> Sequence[float]:
        """Processes of one task are started on the first node; the workers are connected to the last one."""
        with (
            server.database(is_migrated=True) as dsn,
            running_nodes(dsn, self.nodes, folder) as nodes,
            worker_child(
                nodes[-1].url, self.crew.workers, self.crew.max_tasks, folder / "worker.log", "--timed"
            ) as worker,
        ):
            worker.answer(_OPEN_SECONDS_MAX)
            worker.ask(_OPEN_SECONDS_MAX, do="go")
            paced = nodes[0].child.ask(_LOAD_SECONDS_MAX, do="paced", process=_DISPATCHED, count=tasks, rate=rate)
            begins = {instance_id: begin for instance_id, begin, _ in worker.finish()["runs"]}
        return [(begins[instance_id] - asked) * 1000 for instance_id, asked, _ in paced["starts"]]


@attrs.frozen(kw_only=True)
class BareStore:
    """The transactions that one node asked for, recorded, and done again by the store alone in a bare loop."""

    name: str
    crew: Crew
    is_peer: bool = False
    has_dispatch: bool = False
    rate_guess: float = 3_000.0

    def measure(self, server: BenchmarkServer, tasks: int, folder: Path) -> Round:
        instances = max(1, tasks // TASKS[_PROCESS])
        tasks = instances * TASKS[_PROCESS]
        with (
            server.database(is_migrated=True) as dsn,
            server.database(is_migrated=True) as replay_dsn,
            running_nodes(dsn, 1, folder, "--record") as [node],
        ):
            load_seconds = load([node], _PROCESS, instances)
            node.child.ask(_OPEN_SECONDS_MAX, do="mark")
            drain([node.url], tasks, self.crew, folder)
            figures = node.child.ask(_REPLAY_SECONDS_MAX, do="replay", dsn=replay_dsn, server_pid=server.pid)
        assert figures["refused"] <= figures["operations"] / 100, f"the bare loop did something else: {figures}"
        return Round(
            tasks=tasks,
            version=version("stellwerk"),
            runtime=_RUNTIME,
            load_seconds=load_seconds,
            drain_seconds=figures["seconds"],
            engine_cpu=figures["cpu_seconds"],
            worker_cpu=0.0,
            postgres_cpu=figures["server_cpu_seconds"],
            transactions=figures["transactions"],
            operations=figures["operations"],
        )

    def waits_ms(self, server: BenchmarkServer, tasks: int, rate: float, folder: Path) -> Sequence[float]:
        raise NotImplementedError("it hands out nothing")
