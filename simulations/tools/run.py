"""``run`` and ``replay``: one plan, here and now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simulations.kernel.trace import line_of
from simulations.plans.describing import describe
from simulations.plans.plan import Plan
from simulations.tools.commands import replay_command, run_command
from simulations.tools.explanation import explain_run
from simulations.tools.outcomes import Outcome, RunResult, Simulate, simulate
from simulations.tools.page.document import page
from simulations.tools.report import report
from simulations.tools.sources import ModeOption, Mutant, SizeOption, known_mutant, plan_of
from simulations.tools.writing import write_file
from stellwerk.cli.mistakes import ENDED_BADLY
from stellwerk.cli.options import flag
from stellwerk.cli.output import say

__all__ = ["play", "replay", "run"]

TraceFile = Annotated[Path | None, Parameter(help="Write every event to this file, one a line.")]
HtmlFile = Annotated[Path | None, Parameter(help="Write a page about it to this file.")]
Quiet = Annotated[bool, flag(help="Do not print the plan.")]


def run(
    *,
    seed: Annotated[int, Parameter(help="From which the plan is drawn.")] = 0,
    size: SizeOption = "small",
    mode: ModeOption = "all",
    mutant: Mutant = None,
    trace: TraceFile = None,
    html: HtmlFile = None,
    quiet: Quiet = False,
) -> int:
    """Draw the plan of a seed and run it.

    Prints the plan, and what came of it. Where a property was violated it prints the causal slice: the events that
    touch the task or instance in question, and what befell the hosts that had a part in it. Exit code 1 then.

    A seed means the same as long as the way in which plans are drawn stays the same. To keep a run, keep its plan:
    hunt and shrink write them.
    """
    plan = plan_of(str(seed), size, mode)
    known_mutant(mutant)
    return play(plan, run_command(seed, size, mode, mutant), mutant=mutant, trace=trace, html=html, quiet=quiet)


def replay(
    plan: Annotated[Path, Parameter(help="A file that hunt or shrink wrote.")],
    /,
    *,
    mutant: Mutant = None,
    trace: TraceFile = None,
    html: HtmlFile = None,
    quiet: Quiet = False,
) -> int:
    """Run a stored plan. No seed is needed, and no way of drawing plans can change it.

    Exit code 1 when a property is violated.
    """
    read = plan_of(str(plan))
    known_mutant(mutant)
    return play(read, replay_command(plan, mutant), mutant=mutant, trace=trace, html=html, quiet=quiet)


def play(
    plan: Plan,
    command: str,
    *,
    mutant: str | None = None,
    trace: Path | None = None,
    html: Path | None = None,
    quiet: bool = False,
    simulate: Simulate = simulate,
) -> int:
    """Run it and tell.

    :param command: that does the same again.
    :raises Mistake: a file cannot be written.
    """
    if not quiet:
        for line in describe(plan):
            say(line)
        say("")
    result = simulate(plan, keep_trace=True, mutant=mutant)
    rows = result.rows or ()
    if trace is not None:
        write_file(trace, "".join(f"{line_of(row)}\n" for row in rows))
    explanation = explain_run(result, command)
    if html is not None:
        write_file(html, page(explanation))
    for line in report(explanation) if result.violations else _passed(result):
        say(line)
    return ENDED_BADLY if result.violations else 0


def _passed(result: RunResult) -> list[str]:
    outcome = Outcome.of(result)
    faults = ", ".join(f"{count} {kind}" for kind, count in outcome.faults.items()) or "none"
    return [
        f"passed   {outcome.simulated_seconds:.3f} s simulated in {outcome.cpu_seconds:.2f} s of CPU",
        f"trace    {outcome.trace_digest[:16]}, {len(result.rows or ())} events",
        f"schedule {outcome.schedule_digest[:16]}",
        f"faults   {faults}",
        "sometimes",
        *(f"  {count:6}  {name}" for name, count in outcome.sometimes.items() if count),
    ]
