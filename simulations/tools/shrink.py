"""``shrink``: the smallest plan that fails in the same way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter

from simulations.plans.describing import describe
from simulations.plans.plan import Plan, to_json
from simulations.tools.children import Children
from simulations.tools.commands import replay_command
from simulations.tools.explanation import explain_run, passing_neighbour
from simulations.tools.oracles import HereOracle, PoolOracle
from simulations.tools.outcomes import Outcome, RunResult, Simulate, simulate
from simulations.tools.page.document import page
from simulations.tools.progress import Progress
from simulations.tools.report import report
from simulations.tools.shrinking import Shrinker
from simulations.tools.slices import Slice, slice_of
from simulations.tools.sources import RESULTS, Jobs, ModeOption, Mutant, SizeOption, known_mutant, plan_of, slug
from simulations.tools.writing import write_file
from stellwerk.cli.mistakes import Mistake
from stellwerk.cli.output import counted, say

__all__ = ["shrink", "shrink_plan"]


_NEIGHBOURS_MAX = 4


def shrink(
    source: Annotated[str, Parameter(help="A seed, or a file with a plan.")],
    /,
    *,
    size: SizeOption = "small",
    mode: ModeOption = "all",
    mutant: Mutant = None,
    out: Annotated[Path | None, Parameter(help="Where to write the plan; its report gets the same name.")] = None,
    seconds: Annotated[float, Parameter(help="No new run is begun after that.")] = 600.0,
    jobs: Jobs = 1,
) -> int:
    """Make a plan that fails smaller, as long as it breaks the same property.

    What comes after the violation goes first; then faults and instances (delta debugging), workers and nodes, options
    that make the world hard, the durations of faults, the safety phase, and the order of tasks. Writes the plan that
    is left, and a page about it. A plan under simulations/regressions is run by the tests from then on.

    Exit code 2 when the plan does not fail at all.
    """
    plan = plan_of(source, size, mode)
    known_mutant(mutant)
    target = out or RESULTS / "shrunk" / f"{slug(plan)}.json"
    if jobs == 1:
        return shrink_plan(plan, target, mutant=mutant, seconds=seconds)
    with Children(jobs) as children:
        return shrink_plan(plan, target, mutant=mutant, seconds=seconds, children=children, jobs=jobs)


def shrink_plan(
    plan: Plan,
    target: Path,
    *,
    mutant: str | None = None,
    seconds: float = 600.0,
    simulate: Simulate = simulate,
    children: Children | None = None,
    jobs: int = 1,
) -> int:
    """:param children: in which candidates are run, `jobs` at once; else here.
    :raises Mistake: the plan does not fail."""
    failing = simulate(plan, keep_trace=True, mutant=mutant)
    if not failing.violations:
        raise Mistake(f"{plan.label or plan.seed} does not fail: there is nothing to shrink")
    violation = failing.violations[0]
    say(f"{violation}\n  {_size(plan)}")
    signature = Outcome.of(failing).signature
    progress, began = Progress(), time.monotonic()

    def count(runs: int) -> None:
        progress.show(f"{runs} runs, {time.monotonic() - began:.0f} s: {_size(shrinker.plan)}")

    def tell(step: str) -> None:
        progress.clear()
        say(f"  [{oracle.runs:4} runs, {time.monotonic() - began:5.1f} s] {step}")

    oracle = (
        HereOracle(simulate, signature, mutant=mutant, seconds_max=seconds, progress=count)
        if children is None
        else PoolOracle(children, signature, jobs=jobs, mutant=mutant, seconds_max=seconds, progress=count)
    )
    guesses = _guesses(plan, slice_of(failing.rows or ()), violation.us / 1e6)
    shrinker = Shrinker(plan, violation.us / 1e6, oracle, tell, guesses)
    smallest = attrs.evolve(shrinker.run(), label=f"{plan.label or plan.seed}, shrunk")
    progress.clear()
    say(f"  {oracle.runs} runs in {time.monotonic() - began:.1f} s")
    _keep(simulate(smallest, keep_trace=True, mutant=mutant), target, mutant, simulate)
    return 0


def _guesses(plan: Plan, part: Slice, until: float) -> list[Plan]:
    """Only the instances in question; only the faults of hosts that had a part in it; both, or one of them."""
    named = set(part.subject.names.values())
    instances = tuple(spec for spec in plan.instances if spec.key in named)
    hosts = {*part.hosts, ""}
    faults = tuple(fault for fault in plan.faults if fault.at <= until and {fault.host, fault.other} <= hosts)
    if not instances:
        return [attrs.evolve(plan, faults=faults)]
    return [
        attrs.evolve(plan, faults=faults, instances=instances),
        attrs.evolve(plan, instances=instances),
        attrs.evolve(plan, faults=faults),
    ]


def _keep(result: RunResult, target: Path, mutant: str | None, simulate: Simulate) -> None:
    """The plan, a page about it, and the same on standard output. Without any one of its faults it likely passes."""
    write_file(target, to_json(result.plan))
    neighbour, tried = passing_neighbour(result, simulate, limit=_NEIGHBOURS_MAX, mutant=mutant)
    explanation = attrs.evolve(explain_run(result, replay_command(target, mutant)), neighbour=neighbour, tried=tried)
    html = target.with_suffix(".html")
    write_file(html, page(explanation))
    say("")
    for line in (*describe(result.plan), "", *report(explanation)):
        say(line)
    say(f"plan     {target}\npage     {html}")


def _size(plan: Plan) -> str:
    options = plan.options
    counts = (
        (len(plan.faults), "fault"),
        (len(plan.instances), "instance"),
        (options.workers, "worker"),
        (options.nodes, "node"),
    )
    return f"{', '.join(counted(number, what) for number, what in counts)}, {options.chaos_seconds:g} s"
