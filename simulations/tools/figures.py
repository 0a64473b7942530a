"""What campaigns went through, as tables for the documentation: those of the newest commit beside all together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from simulations.tools.campaigns import Campaign, total

__all__ = ["figures"]

_BOTH = ("newest", "all")

_FIGURES: Mapping[str, Callable[[Campaign], str]] = {
    "runs": lambda campaign: f"{campaign.runs_count:,}",
    "simulated hours": lambda campaign: f"{campaign.simulated_seconds / 3600:,.1f}",
    "simulated seconds for each real one": lambda campaign: f"{campaign.speed:,.0f}",
    "minutes of processor time": lambda campaign: f"{campaign.cpu_seconds / 60:,.0f}",
    "runs done twice, in processes with different hash seeds": lambda campaign: f"{campaign.twins:,}",
    "runs that failed": lambda campaign: f"{len(campaign.failures):,}",
}


def figures(campaigns: Sequence[Campaign], properties: Sequence[str], kinds: Sequence[str]) -> str:
    """:param campaigns: in the order in which they ended; those of the last one's commit are told apart.
    :param properties: that must happen now and then.
    :param kinds: of faults.
    """
    last = campaigns[-1]
    newest = total([one for one in campaigns if one.commit == last.commit])
    everything = total(campaigns)
    return "\n".join(
        [
            f"*Newest*: campaigns on commit {last.commit or 'unknown'}, {last.began[:10]}, Python {last.python}. "
            "*All*: these, and all that were before.",
            "",
            *_table(("", *_BOTH), ((name, figure(newest), figure(everything)) for name, figure in _FIGURES.items())),
            "",
            *_table(("runs by size and mode", *_BOTH), _counts(sorted(everything.runs), newest.runs, everything.runs)),
            "",
            *_table(("faults that befell something", *_BOTH), _counts(kinds, newest.faults, everything.faults)),
            "",
            *_table(
                ("happened now and then", "newest: runs", "all: runs", "all: times"),
                _counts(properties, newest.sometimes_runs, everything.sometimes_runs, everything.sometimes),
            ),
            "",
        ]
    )


def _counts(names: Iterable[str], *counts: Mapping[str, int]) -> Iterator[Sequence[str]]:
    for name in names:
        yield name, *(f"{count.get(name, 0):,}" for count in counts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'---:|' * (len(head) - 1)}"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"
