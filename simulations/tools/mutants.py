"""``mutants``: how many seeds it takes to find each deliberate bug."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias

import attrs
from cyclopts import Parameter

from simulations.plans.drawing import draw_plan
from simulations.plans.plan import Plan, to_json
from simulations.tools.campaigns import commit_now
from simulations.tools.children import ChildFailed, Children, first_done
from simulations.tools.mixing import Mix, mix_of
from simulations.tools.outcomes import Outcome
from simulations.tools.progress import Progress
from simulations.tools.sources import Jobs, known_mutant
from simulations.tools.writing import plain, write_file, write_part
from stellwerk.cli.mistakes import ENDED_BADLY, Mistake
from stellwerk.cli.options import flag
from stellwerk.cli.output import Column, print_table, say

__all__ = ["Bug", "Finding", "Lab", "markdown", "mutants"]

_BROKE = "broke"
"""In place of an invariant: the run raised, hung or died."""
_WAIT_SECONDS = 1.0
_MIX = "small=4,large=1,all=1,swarm=1"
_PART = "mutants"
_PAGE_HELP = f"Put the table into this page, between <!-- {_PART} --> and <!-- end -->."

Draw: TypeAlias = Callable[[int, "Bug"], Plan]


class Bug(Protocol):
    """Of `simulations.mutants.mutant.Mutant`."""

    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def number(self) -> int | None: ...
    @property
    def invariants(self) -> tuple[str, ...]: ...
    @property
    def needs(self) -> tuple[str, ...]: ...


@attrs.define
class Finding:
    """What the seeds said of one bug."""

    bug: Bug
    runs: int = 0
    found: int = 0
    first: int | None = None
    """How many seeds it took; None: it survived."""
    invariants: Counter[str] = attrs.field(factory=Counter)
    cpu_seconds: float = 0.0
    example: str = ""
    spoilt: int = 0
    """Seeds that fail without the bug too: they say nothing, and are not counted as runs."""

    @property
    def is_expected(self) -> bool:
        """Some run broke what was expected to break."""
        return any(name.split("-")[0] in self.bug.invariants for name in self.invariants)

    @property
    def mean(self) -> str:
        return f"{self.runs / self.found:.1f}" if self.found else "–"


def mutants(
    *,
    bug: Annotated[tuple[str, ...], Parameter(help="Only these. --bug may be given several times.")] = (),
    seeds: Annotated[int, Parameter(help="How many for each.")] = 40,
    start: Annotated[int, Parameter(help="The first seed.")] = 0,
    mix: Annotated[str, Parameter(help="Weights of sizes and modes, as hunt has them.")] = _MIX,
    first: Annotated[bool, flag(help="Go on to the next one as soon as it is found.")] = False,
    jobs: Jobs = 1,
    json_file: Annotated[Path | None, Parameter(name="--json", help="Write the figures to this file.")] = None,
    markdown_file: Annotated[Path | None, Parameter(name="--markdown", help=_PAGE_HELP)] = None,
) -> int:
    """Put each deliberate bug into the engine and see how soon it is found.

    A harness that finds nothing in a sound engine has shown little: here it must find bugs that are known to be there.
    The table tells in how many of the seeds each was found, which was the first, and what it broke. Exit code 1 when
    one survives.
    """
    if seeds < 1:
        raise Mistake(f"--seeds {seeds}: at least one")
    for name in bug:
        known_mutant(name)
    chosen, weights = _chosen(bug), mix_of(mix)
    progress = Progress()
    with Children(jobs) as children:
        lab = Lab(children, lambda seed, one: _drawn(seed, one, weights), jobs=jobs, report=progress.show)
        findings = []
        for one in chosen:
            findings.append(lab.examine(one, range(start, start + seeds), stops_at_first=first))
            progress.clear()
            say(_line(findings[-1]))
    _tell(findings, json_file)
    if markdown_file is not None:
        conditions = f"`--seeds {seeds} --mix {mix}`, commit {commit_now()}."
        write_part(markdown_file, _PART, f"{conditions}\n\n{markdown(findings)}")
    return ENDED_BADLY if any(not finding.found for finding in findings) else 0


def _chosen(names: Sequence[str]) -> list[Bug]:
    from simulations.mutants.registry import MUTANTS

    return [MUTANTS[name] for name in names or MUTANTS]


def _drawn(seed: int, bug: Bug, weights: Mix) -> Plan:
    size, mode = weights.kind(seed)
    backend: dict[str, Any] = {"backend": bug.needs[0]} if bug.needs else {}
    return draw_plan(seed, size, mode, **backend)


class Lab:
    """Examines bugs, with `jobs` runs at once."""

    def __init__(
        self, children: Children, draw: Draw, *, jobs: int, report: Callable[[str], None] = lambda _: None
    ) -> None:
        self._children = children
        self._draw = draw
        self._jobs = jobs
        self._report = report
        self._controls: dict[str, bool] = {}
        """Plans, and whether they fail without any bug."""

    def examine(self, bug: Bug, seeds: Sequence[int], *, stops_at_first: bool = False) -> Finding:
        """:param stops_at_first: no seed is begun once one has found it."""
        finding = Finding(bug)
        order: dict[Future[Outcome], tuple[int, Plan]] = {}
        waiting: Iterator[tuple[int, int]] = iter(enumerate(seeds, start=1))
        while True:
            if not (stops_at_first and finding.found):
                self._fill(order, waiting, bug)
            if not order:
                return finding
            for future in first_done(list(order), _WAIT_SECONDS):
                self._note(finding, *order.pop(future), future)
            self._report(f"{bug.name}: {finding.found} of {finding.runs} found it")

    def _fill(
        self, order: dict[Future[Outcome], tuple[int, Plan]], waiting: Iterable[tuple[int, int]], bug: Bug
    ) -> None:
        while len(order) < self._jobs:
            following = next(iter(waiting), None)
            if following is None:
                return
            position, seed = following
            plan = self._draw(seed, bug)
            order[self._children.submit(plan, mutant=bug.name)] = position, plan

    def _note(self, finding: Finding, position: int, plan: Plan, future: Future[Outcome]) -> None:
        invariant, example = _verdict(future)
        if invariant is not None and self._fails_anyway(plan):
            finding.spoilt += 1
            return
        finding.runs += 1
        if future.exception() is None:
            finding.cpu_seconds += future.result().cpu_seconds
        if invariant is None:
            return
        finding.found += 1
        finding.invariants[invariant] += 1
        if finding.first is None or position < finding.first:
            finding.first, finding.example = position, example

    def _fails_anyway(self, plan: Plan) -> bool:
        text = to_json(plan)
        if text not in self._controls:
            self._controls[text] = _verdict(self._children.submit(plan))[0] is not None
        return self._controls[text]


def _verdict(future: Future[Outcome]) -> tuple[str | None, str]:
    try:
        outcome = future.result()
    except ChildFailed as error:
        if "PatchFailed" in str(error):
            raise  # the bug is in no run: it must not look found
        return _BROKE, _in_a_line(str(error))
    return outcome.invariant, outcome.verdict


def _in_a_line(error: str) -> str:
    """Of a traceback the last line says what it was; of a process that ended or hung, the first one."""
    lines = error.strip().splitlines()
    return lines[-1] if error.startswith("Traceback") else lines[0]


# --- the table -----------------------------------------------------------------------------------------------------

_COLUMNS = ("#", "bug", "found", "first", "mean", "by", "expected")


def _line(finding: Finding) -> str:
    if not finding.runs:
        return f"UNKNOWN  {finding.bug.name}: all {finding.spoilt} seeds fail without it too"
    if not finding.found:
        return f"SURVIVED {finding.bug.name}: none of {finding.runs} seeds found it"
    by = ", ".join(f"{name} {count}" for name, count in finding.invariants.most_common(4))
    return f"found    {finding.bug.name}: {finding.found} of {finding.runs} seeds, the first was {finding.first} ({by})"


def _cells(finding: Finding) -> tuple[str, ...]:
    return (
        str(finding.bug.number or ""),
        finding.bug.name,
        f"{finding.found}/{finding.runs}",
        str(finding.first or "–"),
        finding.mean,
        ", ".join(f"{name} {count}" for name, count in finding.invariants.most_common(4)),
        ", ".join(finding.bug.invariants),
    )


def markdown(findings: Sequence[Finding]) -> str:
    """The table for a page of documentation."""
    head = ("#", "bug", "what goes wrong", "found", "first seed", "found by")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for finding in findings:
        number, name, found, first, _, by, _ = _cells(finding)
        lines.append(f"| {number} | `{name}` | {plain(finding.bug.what)} | {found} | {first} | {by} |")
    return "\n".join(lines) + "\n"


def _tell(findings: Sequence[Finding], json_file: Path | None) -> None:
    say("")
    print_table("Deliberate bugs", (*_COLUMNS[:-2], Column("by"), Column("expected")), map(_cells, findings))
    survivors = [finding.bug.name for finding in findings if not finding.found]
    surprises = [finding.bug.name for finding in findings if finding.found and not finding.is_expected]
    if surprises:
        say(f"found, but never by what was expected: {', '.join(surprises)}")
    spoilt = max((finding.spoilt for finding in findings), default=0)
    if spoilt:
        say(f"up to {spoilt} seeds fail without any bug; they are not counted: hunt them first")
    say(f"{len(findings) - len(survivors)} of {len(findings)} found; survived: {', '.join(survivors) or 'none'}")
    if json_file is not None:
        write_file(json_file, json.dumps(list(map(_figures, findings)), indent=1) + "\n")


def _figures(finding: Finding) -> Mapping[str, object]:
    return {
        "name": finding.bug.name,
        "number": finding.bug.number,
        "runs": finding.runs,
        "found": finding.found,
        "spoilt": finding.spoilt,
        "first": finding.first,
        "invariants": dict(finding.invariants),
        "cpu_seconds": round(finding.cpu_seconds, 2),
        "example": finding.example,
    }
