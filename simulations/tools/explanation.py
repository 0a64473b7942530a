"""Everything that there is to say about one run, before it becomes text or a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import attrs

from simulations.kernel.trace import Row, line_of
from simulations.plans.plan import Fault, Plan
from simulations.tools.outcomes import Outcome, RunResult, Simulate
from simulations.tools.page.shapes import Story
from simulations.tools.page.story import story_of
from simulations.tools.rows import text_of
from simulations.tools.slices import Slice, slice_of

__all__ = ["Difference", "Explanation", "Neighbour", "difference_of", "explain_run", "passing_neighbour"]

NEIGHBOURS_MAX = 24
_COMMON_ROWS = 3
"""That are shown before the first difference."""


@attrs.frozen(kw_only=True)
class Difference:
    common: int
    """Rows that are alike before."""
    before: tuple[Row, ...]
    """The last ones of these."""
    failing: Row | None
    """None: that trace has ended."""
    passing: Row | None


@attrs.frozen(kw_only=True)
class Neighbour:
    """A run close to this one that passes."""

    what: str
    plan: Plan
    tried: int
    difference: Difference | None


@attrs.frozen(kw_only=True)
class Explanation:
    plan: Plan
    outcome: Outcome
    part: Slice
    story: Story
    rows_count: int
    command: str
    """That shows the same again."""
    neighbour: Neighbour | None = None
    tried: int = 0
    """How many neighbours were run to find one that passes."""


def explain_run(result: RunResult, command: str) -> Explanation:
    """Of a run whose trace was kept."""
    rows = result.rows
    assert rows is not None, "the trace was not kept"
    part = slice_of(rows)
    return Explanation(
        plan=result.plan,
        outcome=Outcome.of(result),
        part=part,
        story=story_of(rows, part),
        rows_count=len(rows),
        command=command,
    )


# --- the last passing neighbour ------------------------------------------------------------------------------------


def passing_neighbour(
    failing: RunResult,
    simulate: Simulate,
    *,
    seeds: Callable[[], Iterator[tuple[str, Plan]]] | None = None,
    limit: int = NEIGHBOURS_MAX,
    mutant: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[Neighbour | None, int]:
    """The first neighbour that passes, and how many were run: the plan with one fault less, the latest before the
    violation first; then those that `seeds` gives, with what they are called."""
    tried = 0
    for what, plan, left_out in _candidates(failing, seeds):
        if tried >= limit:
            break
        tried += 1
        report(f"neighbour {tried}: {what}")
        result = simulate(plan, keep_trace=True, mutant=mutant)
        if not result.violations:
            difference = difference_of(failing.rows or (), result.rows or (), left_out)
            return Neighbour(what=what, plan=plan, tried=tried, difference=difference), tried
    return None, tried


def _candidates(
    failing: RunResult, seeds: Callable[[], Iterator[tuple[str, Plan]]] | None
) -> Iterator[tuple[str, Plan, str]]:
    plan = failing.plan
    for fault in _latest_first(failing):
        rest = tuple(other for other in plan.faults if other.key != fault.key)
        yield f"the plan without the fault {fault.key}", attrs.evolve(plan, faults=rest), fault.key
    if seeds is not None:
        for what, other in seeds():
            yield what, other, ""


def _latest_first(failing: RunResult) -> Sequence[Fault]:
    until = failing.violations[0].us / 1e6 if failing.violations else float("inf")
    return sorted((fault for fault in failing.plan.faults if fault.at <= until), key=lambda fault: -fault.at)


def difference_of(failing: Sequence[Row], passing: Sequence[Row], left_out: str = "") -> Difference | None:
    """Where two traces part. The fault that was `left_out` is no difference: its first effect is.

    None: they are alike.
    """
    one = [row for row in failing if not _is_of(row, left_out)]
    other = [row for row in passing if not _is_of(row, left_out)]
    for number, (a, b) in enumerate(zip_longest(one, other)):
        if a is None or b is None or line_of(a) != line_of(b):
            before = tuple(one[max(0, number - _COMMON_ROWS) : number])
            return Difference(common=number, before=before, failing=a, passing=b)
    return None


def _is_of(row: Row, fault: str) -> bool:
    return bool(fault) and row.kind == "fault" and text_of(row, "key") == fault
