"""``coverage``: what happened now and then over all campaigns, and what never did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simulations.checks.sometimes import SOMETIMES
from simulations.plans.faults import FAULTS
from simulations.tools.campaigns import Campaign, load_campaigns, total
from simulations.tools.figures import figures
from simulations.tools.sources import RESULTS
from simulations.tools.writing import write_part
from stellwerk.cli.mistakes import ENDED_BADLY, Mistake
from stellwerk.cli.output import Column, print_table, say

__all__ = ["coverage", "tell_coverage"]

_PART = "campaign"
_PAGE_HELP = f"Put the figures into this page, between <!-- {_PART} --> and <!-- end -->."


def coverage(
    *,
    results: Annotated[Path, Parameter(help="The folder that hunt wrote to.")] = RESULTS,
    last: Annotated[int, Parameter(help="Only so many campaigns, the latest; 0: all.")] = 0,
    markdown_file: Annotated[Path | None, Parameter(name="--markdown", help=_PAGE_HELP)] = None,
) -> int:
    """Show what recorded campaigns went through: each property that must hold now and then, and how often it did.

    A run that is green because nothing happened in it shows nothing. So what should happen (a lease that ran out, an
    answer that got lost, an instance taken over) is counted, and so are faults by kind; exit code 1 when something
    never happened. Campaigns with a deliberate bug do not count.
    """
    file = results / "campaigns.json"
    campaigns = [campaign for campaign in load_campaigns(file) if campaign.mutant is None]
    if not campaigns:
        raise Mistake(f"{file}: there is no campaign yet; hunt records them")
    chosen = campaigns[-last:] if last > 0 else campaigns
    if markdown_file is not None:
        write_part(markdown_file, _PART, figures(chosen, tuple(SOMETIMES), tuple(FAULTS)))
    expected = {name: one.why for name, one in SOMETIMES.items()}
    return tell_coverage(chosen, expected, tuple(FAULTS))


def tell_coverage(campaigns: Sequence[Campaign], expected: Mapping[str, str], kinds: Sequence[str] = ()) -> int:
    """:param expected: what must have happened, and why it matters.
    :param kinds: of faults, each of which must have befallen something. → the exit code."""
    added = total(campaigns)
    for line in _figures(added, len(campaigns)):
        say(line)
    say("")
    counts = {**dict.fromkeys(kinds, 0), **added.faults}
    print_table("Faults", ("kind", "how often"), [(kind, f"{count:,}") for kind, count in sorted(counts.items())])
    names = sorted({*expected, *added.sometimes})
    print_table("Sometimes", ("property", "runs", "rate", "times", Column("why")), _rows(names, added, expected))
    missing = [name for name in names if name in expected and not added.sometimes.get(name)]
    idle = [kind for kind in kinds if not added.faults.get(kind)]
    for kind in idle:
        say(f"NEVER    fault {kind}")
    for name in missing:
        say(f"NEVER    {name}: {expected[name]}")
    say(f"{len(expected) - len(missing)} of {len(expected)} happened")
    return ENDED_BADLY if missing or idle else 0


def _figures(added: Campaign, count: int) -> Iterable[str]:
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in added.runs.items())
    yield f"campaigns {count}, runs {added.runs_count:,} ({kinds})"
    yield f"simulated {added.simulated_seconds / 3600:.2f} h, {added.speed:.0f} s in each real one"
    yield f"twins     {added.twins:,} runs were done twice"
    yield f"failed    {len(added.failures)}"


def _rows(names: Sequence[str], added: Campaign, expected: Mapping[str, str]) -> Iterable[tuple[str, ...]]:
    runs = max(1, added.runs_count)
    for name in names:
        own = added.sometimes_runs.get(name, 0)
        yield name, f"{own:,}", f"{100 * own / runs:.1f} %", f"{added.sometimes.get(name, 0):,}", expected.get(name, "")
