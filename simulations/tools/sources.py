"""What the commands are given: seeds, ranges of seeds, and files with plans."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from cyclopts import Parameter, validators

from simulations.plans.drawing import draw_plan
from simulations.plans.files import load_plan
from simulations.plans.plan import InvalidPlan, Plan
from stellwerk.cli.mistakes import Mistake

__all__ = [
    "RESULTS",
    "Jobs",
    "Mode",
    "ModeOption",
    "Mutant",
    "Size",
    "SizeOption",
    "known_mutant",
    "plan_of",
    "seeds_of",
    "slug",
]

Size: TypeAlias = Literal["small", "large"]
Mode: TypeAlias = Literal["all", "swarm"]

SizeOption: TypeAlias = Annotated[Size, Parameter(help="Small: 2 nodes, 4 workers. Large: 3 nodes, 10 workers.")]
ModeOption: TypeAlias = Annotated[Mode, Parameter(help="All kinds of faults, or a few that the seed picks.")]
Jobs: TypeAlias = Annotated[int, Parameter(help="How many processes.", validator=validators.Number(gte=1, lte=256))]
Mutant: TypeAlias = Annotated[str | None, Parameter(help="A deliberate bug that the engine has in it: see mutants.")]

RESULTS = Path("simulations/results")
"""Under the directory in which the command runs: campaigns, and plans that failed."""

_RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?")
_SEEDS_MAX = 10_000_000


def seeds_of(text: str) -> range:
    """``7``, or ``0..49`` with both ends.

    :raises Mistake: it is neither.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise Mistake(f"seeds are a number, or two as in 0..49, not {text!r}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise Mistake(f"{text}: the seeds end before they begin")
    if last - first >= _SEEDS_MAX:
        raise Mistake(f"{text}: that is more than {_SEEDS_MAX:,} seeds")
    return range(first, last + 1)


def plan_of(source: str, size: Size = "small", mode: Mode = "all") -> Plan:
    """A seed expands into its plan; anything else is a file.

    :raises Mistake: there is no such file, or it holds no plan.
    """
    try:
        return draw_plan(int(source), size, mode) if source.isdecimal() else load_plan(Path(source))
    except InvalidPlan as error:
        raise Mistake(str(error)) from None


def slug(plan: Plan) -> str:
    """A name for files about it."""
    return re.sub(r"[^a-z0-9]+", "-", (plan.label or f"seed {plan.seed}").lower()).strip("-")


def known_mutant(name: str | None) -> None:
    """:raises Mistake: there is no such deliberate bug."""
    if name is None:
        return
    from simulations.mutants.registry import MUTANTS

    if name not in MUTANTS:
        raise Mistake(f"there is no mutant {name}; there are {', '.join(sorted(MUTANTS))}")
