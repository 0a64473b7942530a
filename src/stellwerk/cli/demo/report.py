"""What the demo shows at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs
from rich.console import Console
from rich.table import Table

from stellwerk.cli.demo.engine_api import TaskCounts
from stellwerk.cli.demo.orders import Fate, PlannedOrder

__all__ = ["Result", "print_findings", "print_table"]

FINDINGS_MAX = 25
"""Findings that are shown; one cause tends to give many."""


@attrs.frozen(kw_only=True)
class Result:
    plan: Sequence[PlannedOrder]
    counts: TaskCounts
    renewed: int
    repeated_runs: int
    tasks: int
    workers_killed: int
    engines_killed: int
    seconds: float


def print_table(console: Console, result: Result) -> None:
    fates = Counter(planned.fate for planned in result.plan)
    table = Table(title="What happened", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("remark", style="dim")
    table.add_row("orders shipped", str(fates[Fate.SHIPPED]), "each exactly once")
    table.add_row("orders compensated", str(len(result.plan) - fates[Fate.SHIPPED]), _compensated(fates))
    table.add_row("retries", str(result.counts.retries), "technical failures, repeated after a pause")
    table.add_row("leases renewed", str(result.renewed), "slow handlers kept their task")
    table.add_row("leases revoked", str(result.counts.revoked), "the process moved on, handler aborted")
    table.add_row("leases reclaimed", str(result.counts.reclaimed), "they ran out, the tasks went out again")
    table.add_row(
        "handler runs repeated", str(result.repeated_runs), f"of {result.tasks} tasks, no effect happened twice"
    )
    table.add_row("killed with SIGKILL", str(result.workers_killed + result.engines_killed), _killed(result))
    table.add_row("time", f"{result.seconds:.1f} s")
    console.print(table)


def _compensated(fates: Counter[Fate]) -> str:
    return ", ".join(
        f"{count} {fate.value}" for fate, count in sorted(fates.items(), key=_by_name) if fate is not Fate.SHIPPED
    )


def _by_name(entry: tuple[Fate, int]) -> str:
    return entry[0].value


def _killed(result: Result) -> str:
    return f"{result.workers_killed} worker, {result.engines_killed} engine"


def print_findings(console: Console, findings: Sequence[str]) -> None:
    console.print(f"[bold red]Not as it has to be ({len(findings)}):[/]")
    for finding in findings[:FINDINGS_MAX]:
        console.print(f"  {finding}", markup=False, highlight=False)
    if len(findings) > FINDINGS_MAX:
        console.print(f"  … and {len(findings) - FINDINGS_MAX} more")
