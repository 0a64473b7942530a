"""``twins``: the same plan in two processes must give the same trace, byte for byte."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter

from simulations.plans.plan import Plan
from simulations.tools.children import Child
from simulations.tools.outcomes import Outcome
from simulations.tools.progress import Progress
from simulations.tools.sources import ModeOption, SizeOption, plan_of, seeds_of
from stellwerk.cli.mistakes import ENDED_BADLY
from stellwerk.cli.output import say

__all__ = ["Divergence", "Twin", "compare", "first_divergence", "twins"]

_HASH_SEEDS = (1, 20_011)
_COMMON_LINES = 3


@attrs.frozen
class Divergence:
    number: int
    """Of the first line that differs, from 1."""
    common: tuple[str, ...]
    """The last lines before it."""
    one: str | None
    """None: that trace has ended."""
    other: str | None


@attrs.frozen
class Twin:
    name: str
    """Of the interpreter and its hash seed."""
    child: Child


def twins(
    seeds: Annotated[str, Parameter(help="A seed, or two as in 0..49: both ends belong to it.")],
    /,
    *,
    size: SizeOption = "small",
    mode: ModeOption = "all",
    python: Annotated[tuple[str, ...], Parameter(help="Further interpreters that must give the same.")] = (),
) -> int:
    """Run each seed in two processes with different hash seeds, and compare every event.

    A run that is not a function of its plan cannot be replayed: something in it depends on addresses, on the order of
    a set, on the clock of the machine. The first event that differs is shown. Exit code 1 then.
    """
    numbers = seeds_of(seeds)
    interpreters = [(sys.executable, hash_seed) for hash_seed in _HASH_SEEDS]
    interpreters += [(name, _HASH_SEEDS[0]) for name in python]
    pairs = [
        Twin(f"{Path(name).name}, hash seed {hash_seed}", Child(hash_seed, python=name))
        for name, hash_seed in interpreters
    ]
    try:
        plans = ((f"seed {seed}", plan_of(str(seed), size, mode)) for seed in numbers)
        different = compare(plans, pairs, len(numbers))
    finally:
        for twin in pairs:
            twin.child.close()
    return ENDED_BADLY if different else 0


def compare(plans: Iterator[tuple[str, Plan]], twins: Sequence[Twin], count: int) -> int:
    """Run each in all of them and tell what differs. → in how many plans something did.

    :raises ChildFailed: a run broke.
    """
    progress, different = Progress(), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(twins)) as at_once:
        for number, (name, plan) in enumerate(plans, start=1):
            traces = [Path(folder, f"{index}.trace") for index in range(len(twins))]
            outcomes = list(
                at_once.map(lambda twin, trace, plan=plan: twin.child.run(plan, trace=trace), twins, traces)
            )
            lines = list(_differences(twins, outcomes, traces))
            different += bool(lines)
            progress.show(f"{number} of {count}: {name}, {different} different")
            if lines:
                progress.clear()
            for line in (f"{name}: not the same twice", *lines) if lines else ():
                say(line)
    progress.clear()
    say(f"{count} plans in {len(twins)} processes each: {different} different")
    return different


def _differences(twins: Sequence[Twin], outcomes: Sequence[Outcome], traces: Sequence[Path]) -> Iterator[str]:
    first = outcomes[0]
    for twin, outcome, trace in zip(twins[1:], outcomes[1:], traces[1:], strict=True):
        found = first_divergence(traces[0], trace)
        if found is not None:
            yield f"  event {found.number} differs"
            yield from (f"    both: {line}" for line in found.common)
            yield f"    {twins[0].name}: {found.one or 'has ended'}"
            yield f"    {twin.name}: {found.other or 'has ended'}"
        elif outcome.digests != first.digests:
            yield f"  {twin.name}: the events are the same, the order of the tasks' steps is not"


def first_divergence(one: Path, other: Path) -> Divergence | None:
    """None: the files are the same."""
    common: list[str] = []
    with one.open(encoding="utf-8") as a, other.open(encoding="utf-8") as b:
        for number, (x, y) in enumerate(zip_longest(a, b), start=1):
            if x != y:
                return Divergence(number, tuple(common), _bare(x), _bare(y))
            common = [*common, x.rstrip("\n")][-_COMMON_LINES:]
    return None


def _bare(line: str | None) -> str | None:
    return None if line is None else line.rstrip("\n")
