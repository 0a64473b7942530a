"""Results as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["print_core", "print_http", "print_postgres", "print_profile", "print_push", "print_simulation"]

_THROUGHPUT = {
    "process": ("process", "{}"),
    "store": ("store", "{}"),
    "life_cycles_per_second": ("life-cycles/s", "{:,.0f}"),
    "life_cycles_per_second_with_starts": ("with starts", "{:,.0f}"),
    "engine_cpu_us": ("engine CPU µs", "{:.0f}"),
    "life_cycles_per_cpu_second": ("per CPU s", "{:,.0f}"),
    "engine_busy": ("busy", "{:.0%}"),
    "worker_cpu_us": ("worker CPU µs", "{:.0f}"),
    "starts_per_second": ("starts/s", "{:,.0f}"),
    "start_cpu_us": ("CPU µs", "{:,.0f}"),
    "operations_per_transaction": ("ops/commit", "{:.0f}"),
    "bare_loop_per_second": ("bare loop/s", "{:,.0f}"),
    "bare_loop_cpu_us": ("CPU µs", "{:.0f}"),
    "rate_by_bare_loop": ("rate ratio", "{:.2f}"),
    "cpu_by_bare_loop": ("CPU ratio", "{:.1f}"),
}
_THROUGHPUT_NOTES = """\
chain: three service tasks in a row. wide: one fork into 64 branches of four tasks each. A loader in the engine's
process starts all instances before the workers connect; life-cycles/s is the drain alone, from the first handler's
start to the last completion acknowledged (durable). "with starts" counts the time of starting as well. CPU is user and
system time of the process, for each task (starts: for each instance); per CPU s is the drain's rate if the engine
always had a core to itself. busy: the engine's CPU time over wall time; well under 100 % means that it waited, for the
disk or for a core. The bare loop does the drain's recorded transactions again, in the same batches, straight at a fresh
store: the ratios say how far the engine is from what the store alone can do. Medians.
"""
_LATENCY = {
    "store": ("store", "{}"),
    "start_to_handler_p50_ms": ("start → handler p50", "{:.2f}"),
    "start_to_handler_p99_ms": ("p99", "{:.2f}"),
    "start_to_answer_p50_ms": ("start → answer p50", "{:.2f}"),
    "start_to_answer_p99_ms": ("p99", "{:.2f}"),
    "handler_to_next_handler_p50_ms": ("handler → next p50", "{:.2f}"),
    "handler_to_next_handler_p99_ms": ("p99", "{:.2f}"),
}
_LATENCY_NOTES = """\
start → handler: from the start request in the engine to the handler's first line in the worker's process; one commit
and one push. start → answer: the same request until its commit is durable and answered. handler → next: from one
handler's return to the start of the next task's handler, both in the worker: two frames and one commit.
"""
_HTTP = {
    "request": ("request", "{}"),
    "store": ("store", "{}"),
    "requests_per_second": ("requests/s", "{:,.0f}"),
    "cpu_us": ("CPU µs each", "{:,.0f}"),
    "requests_per_cpu_second": ("per CPU s", "{:,.0f}"),
    "cpu_us_beyond_empty": ("CPU µs beyond empty", "{:,.0f}"),
    "cpu_by_empty": ("CPU, empty = 1", "{:.1f}"),
}
_HTTP_NOTES = """\
CPU is user and system time of the server's process, for each request. Empty handler: the same HTTP server and routing,
and a handler that reads its request and answers {}. Fetch-and-lock locks 10 tasks with each request and sends them; a
completion ends its instance, and is answered when that is durable. Each connection has one request at a time, so the
rates are also what the clients, in one other process, can do. Rounds are interleaved; medians.
"""
_CORE = {
    "name": ("engine", "{}"),
    "version": ("version", "{}"),
    "runtime": ("on", "{}"),
    "instances_per_second": ("instances/s", "{:,.0f}"),
    "cpu_us": ("CPU µs each", "{:,.0f}"),
    "instances_per_cpu_second": ("instances per CPU second", "{:,.0f}"),
    "cpu_of_decisions": ("CPU, decisions = 1", "{:.2f}"),
    "cpu_of_embedded": ("CPU, embedded = 1", "{:.2f}"),
}
_CORE_NOTES = """\
core: decisions of the pure core, the row changes that follow, and the lease machine as guard of each completion.
core and store: the same with each step written to the memory store. embedded: the whole engine in memory with a worker
in the same process, by the worker protocol. Peers call a handler in the same call stack; none of them has leases.
Rounds are interleaved; medians. Where other programs share the machine, CPU time compares better than wall time.
"""
_POSTGRES = {
    "name": ("", "{}"),
    "version": ("version", "{}"),
    "tasks_per_second": ("life-cycles/s", "{:,.0f}"),
    "instances_per_second": ("instances/s", "{:,.0f}"),
    "tasks_per_second_with_inserts": ("with inserts", "{:,.0f}"),
    "engine_cpu_us": ("engine CPU µs", "{:,.0f}"),
    "worker_cpu_us": ("worker", "{:,.0f}"),
    "postgres_cpu_us": ("PostgreSQL", "{:,.0f}"),
    "cpu_us": ("all", "{:,.0f}"),
    "operations_per_transaction": ("ops/commit", "{:,.0f}"),
    "dispatch_p50_ms": ("dispatch p50 ms", "{:.1f}"),
    "dispatch_p99_ms": ("p99", "{:.1f}"),
    "rate_by_ours": ("÷ rate", "{:.2f}"),
    "cpu_by_ours": ("× CPU", "{:.2f}"),
    "latency_by_ours": ("× p50", "{:.2f}"),
}
_POSTGRES_NOTES = """\
One node, two nodes: our engine, a process of three service tasks in a row, each task created, leased, pushed over
WebSocket, handled by a function that does nothing, completed, and acknowledged when that is durable; history is kept.
Beside two nodes half of the workers are connected to each. Bare store: the transactions of such a run, recorded, done
again by our store without an engine. Bare SQL: what a step writes, as bare statements in batches of 1,000, with no
guards: the limit. Peers: jobs that do nothing; worker is the process that runs them. Instances and jobs are put in
before the clock starts with the first handler ("with inserts" counts that too); it stops when all is durably done. Our
next tasks are created in the meantime; jobs are all there before. CPU is user and system time for each task. Dispatch:
from the request, at 30 tasks a second, to the handler's start; for our engine the request is a process's start and the
handler runs in another process, with two nodes at the other node; a peer's request is made where its handler runs. All
reach PostgreSQL over TCP, each in a fresh database. Rounds are interleaved; medians. The last columns compare with one
node, over 1 is good for us: one node's rate divided by this one's, this one's CPU and dispatch p50 divided by one
node's.
"""
_SCALE = {
    "name": ("database", "{}"),
    "tasks_per_second": ("life-cycles/s", "{:,.0f}"),
    "rate_by_empty": ("by the empty one", "{:.0%}"),
    "engine_cpu_us": ("CPU µs: engine", "{:,.0f}"),
    "postgres_cpu_us": ("PostgreSQL", "{:,.0f}"),
    "engine_megabytes": ("engine's memory, MB", "{:,.0f}"),
}
_SIMULATION = {
    "size": ("size", "{}"),
    "runs": ("runs", "{}"),
    "cpu_seconds": ("CPU s", "{:.2f}"),
    "cpu_seconds_max": ("dearest", "{:.2f}"),
    "simulated_seconds": ("simulated s", "{:.1f}"),
    "simulated_per_cpu_second": ("simulated s per CPU s", "{:.0f}"),
    "steps": ("steps", "{:,.0f}"),
    "step_us": ("µs per step", "{:.0f}"),
    "violations": ("violations", "{}"),
}
_SIMULATION_NOTES = """\
One run of each seed with all kinds of faults; small: 2 nodes, 4 workers, 10 instances; large: 3 nodes, 10 workers, 60
instances. Of several rounds the cheapest counts. CPU s, simulated s and steps (of tasks) are medians over the seeds.
"""


def print_push(console: Console, results: Mapping[str, Any]) -> None:
    _print_machine(console, results["machine"])
    title = (
        f"External tasks over WebSocket: {results['workers']} workers × {results['max_tasks']} leases, "
        f"worker processes: {results['processes']}"
    )
    _print_rows(console, title, results["throughput"], _THROUGHPUT)
    console.print(_THROUGHPUT_NOTES, highlight=False)
    if results["latency"]:
        _print_rows(console, "Dispatch latency, idle: one instance at a time (ms)", results["latency"], _LATENCY)
        console.print(_LATENCY_NOTES, highlight=False)


def print_http(console: Console, results: Mapping[str, Any]) -> None:
    _print_machine(console, results["machine"])
    title = f"Requests over HTTP: {results['connections']} connections, {results['tasks']:,} tasks a round"
    _print_rows(console, title, results["requests"], _HTTP)
    console.print(_HTTP_NOTES, highlight=False)


def print_core(console: Console, results: Mapping[str, Any]) -> None:
    _print_machine(console, results["machine"])
    _print_rows(console, "A process of three service tasks, in memory, one process", results["contestants"], _CORE)
    console.print(_CORE_NOTES, highlight=False)
    for name, reason in results["skipped"].items():
        console.print(f"left out: {name}: {reason}", highlight=False, soft_wrap=True)


def print_postgres(console: Console, results: Mapping[str, Any]) -> None:
    _print_machine(console, results["machine"])
    title = (
        f"On PostgreSQL {results['machine']['postgres']}, durable: {results['workers']} workers × "
        f"{results['max_tasks']} leases"
    )
    _print_rows(console, title, results["contestants"], _POSTGRES)
    console.print(_POSTGRES_NOTES, highlight=False)
    for name, reason in results["failed"].items():
        console.print(f"failed: {name}: {reason}", highlight=False, markup=False, soft_wrap=True)
    if results["scale"] is not None:
        _print_scale(console, results["scale"])


def _print_scale(console: Console, scale: Mapping[str, Any]) -> None:
    _print_rows(console, "One node on a large database", scale["cases"], _SCALE)
    recovery = scale["recovery"]
    console.print(
        f"backlog: {scale['ready_tasks']:,} READY tasks of another topic and {scale['waiting_instances']:,} waiting "
        f"instances. finished: {scale['finished_tasks']:,} tasks of instances that have ended. old snapshot: a "
        "transaction of another session sees the database as it was before all began, and stays open.\n"
        f"Recovery with that backlog, after kill -9: the next engine listens after "
        f"{recovery['listening_seconds']:.2f} s, a handler has its first task after "
        f"{recovery['first_task_seconds']:.2f} s; the engine then has {recovery['engine_megabytes']:,.0f} MB.",
        highlight=False,
    )


def print_simulation(console: Console, results: Mapping[str, Any]) -> None:
    _print_machine(console, results["machine"])
    _print_rows(console, "Simulated runs", results["sizes"], _SIMULATION)
    console.print(_SIMULATION_NOTES, highlight=False)
    cost_us = next(row["step_us"] for row in results["sizes"] if row["size"] == "large")
    _print_shares(console, "large runs, of each step: by area", results["areas"], cost_us)
    _print_shares(console, "by function, own time", results["functions"], cost_us)


def print_profile(console: Console, title: str, profile: Mapping[str, Any], count: int, functions: int = 25) -> None:
    """``profile`` is what `Sampler.stop` gives; ``count``: tasks or instances, for the cost of each."""
    cost_us = profile["seconds"] / count * 1e6
    console.print(f"[bold]{title}[/]: {cost_us:.0f} µs of processor time each, {profile['samples']:,} samples")
    modules: Counter[str] = Counter()
    for module, _, share in profile["own"]:
        modules[module] += share
    _print_shares(console, "by module, own time", modules.most_common(functions), cost_us)
    for key, heading in (
        ("own", "by function, own time"),
        ("ours", "by function of stellwerk, with the foreign code that it calls"),
    ):
        named = [(f"{module} {function}", share) for module, function, share in profile[key][:functions]]
        _print_shares(console, heading, named, cost_us)


def _print_machine(console: Console, machine: Mapping[str, Any]) -> None:
    console.print(
        f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}, SQLite {machine['sqlite']}, "
        f"load average {machine['load_average']} at the start, one flush {machine['flush_ms']} ms",
        soft_wrap=True,
        highlight=False,
    )


def _print_rows(
    console: Console, title: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]
) -> None:
    table = Table(title=title, title_justify="left")
    for heading, form in columns.values():
        table.add_column(heading, justify="left" if form == "{}" else "right")
    for row in rows:
        table.add_row(*("–" if row[name] is None else form.format(row[name]) for name, (_, form) in columns.items()))
    console.print(table)


def _print_shares(console: Console, title: str, shares: Sequence[tuple[str, float]], cost_us: float) -> None:
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    for name, share in shares:
        table.add_row(f"{share:.1%}", f"{share * cost_us:.1f} µs", name)
    console.print(table)
