"""``explain``: what happened in a run that failed, in words and as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter

from simulations.plans.drawing import draw_plan
from simulations.plans.plan import Plan
from simulations.tools.commands import replay_command, run_command
from simulations.tools.explanation import NEIGHBOURS_MAX, explain_run, passing_neighbour
from simulations.tools.outcomes import Simulate, simulate
from simulations.tools.page.document import page
from simulations.tools.progress import Progress
from simulations.tools.report import report
from simulations.tools.sources import RESULTS, ModeOption, Mutant, SizeOption, known_mutant, plan_of, slug
from simulations.tools.writing import write_file
from stellwerk.cli.output import say

__all__ = ["explain", "explain_plan"]

_SEEDS_AROUND = 4


def explain(
    source: Annotated[str, Parameter(help="A seed, or a file with a plan.")],
    /,
    *,
    size: SizeOption = "small",
    mode: ModeOption = "all",
    mutant: Mutant = None,
    html: Annotated[Path | None, Parameter(help="Where to write the page.")] = None,
    neighbours: Annotated[int, Parameter(help="How many to run at most to find one that passes.")] = NEIGHBOURS_MAX,
) -> int:
    """Tell what happened in a run: the causal slice in words, and one HTML page that needs no network.

    The page has a lane for each host, bars for what befell it, the life of the task or instance in question with its
    leases, messages between the lanes, and the violation. A scrubber moves through time. Below stand the plan, the
    events, and the last passing neighbour: the same plan with one fault less (or else a seed beside it) that passes,
    and where the two part.
    """
    plan = plan_of(source, size, mode)
    known_mutant(mutant)
    is_seed = source.isdecimal()
    command = run_command(plan.seed, size, mode, mutant) if is_seed else replay_command(Path(source), mutant)
    target = html or RESULTS / "pages" / f"{slug(plan)}.html"

    def around() -> Iterator[tuple[str, Plan]]:
        for step in range(1, _SEEDS_AROUND + 1):
            for seed in (plan.seed - step, plan.seed + step):
                if seed >= 0:
                    yield f"the seed {seed}", draw_plan(seed, size, mode)

    return explain_plan(plan, command, target, mutant=mutant, neighbours=neighbours, seeds=around if is_seed else None)


def explain_plan(
    plan: Plan,
    command: str,
    target: Path,
    *,
    mutant: str | None = None,
    neighbours: int = NEIGHBOURS_MAX,
    seeds: Callable[[], Iterator[tuple[str, Plan]]] | None = None,
    simulate: Simulate = simulate,
) -> int:
    """:param seeds: plans to run when no plan with one fault less passes, with what they are called."""
    result = simulate(plan, keep_trace=True, mutant=mutant)
    explanation = explain_run(result, command)
    if result.violations and neighbours > 0:
        progress = Progress()
        found, tried = passing_neighbour(
            result, simulate, seeds=seeds, limit=neighbours, mutant=mutant, report=progress.show
        )
        progress.clear()
        explanation = attrs.evolve(explanation, neighbour=found, tried=tried)
    write_file(target, page(explanation))
    for line in report(explanation):
        say(line)
    say(f"page     {target}")
    return 0
