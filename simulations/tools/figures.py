"""What campaigns went through, as tables for the documentation: those of the newest commit beside all together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from simulations.tools.campaigns import Campaign, total

__all__ = ["figures"]

_RIGHT = "---:"


def figures(campaigns: Sequence[Campaign], properties: Sequence[str], kinds: Sequence[str]) -> str:
    """:param campaigns: in the order in which they ended; those of the last one's commit are told apart.
    :param properties: that must happen now and then.
    :param kinds: of faults.
    """
    last = campaigns[-1]
    newest = total([one for one in campaigns if one.commit == last.commit])
    everything = total(campaigns)
    both = f"commit {last.commit or 'unknown'}, {last.began[:10]}, Python {last.python}", "all campaigns"
    return "\n".join(
        [
            *_table(("", *both), ((name, f(newest), f(everything)) for name, f in _FIGURES.items())),
            "",
            *_table(("runs by size and mode", *both), _counts(newest.runs, everything.runs, sorted(everything.runs))),
            "",
            *_table(("faults that befell something", *both), _counts(newest.faults, everything.faults, kinds)),
            "",
            *_table(
                ("happened now and then, in so many runs", *both),
                _counts(newest.sometimes_runs, everything.sometimes_runs, properties),
            ),
            "",
        ]
    )


_FIGURES: Mapping[str, Callable[[Campaign], str]] = {
    "runs": lambda campaign: f"{campaign.runs_count:,}",
    "simulated hours": lambda campaign: f"{campaign.simulated_seconds / 3600:,.1f}",
    "simulated seconds for each real one": lambda campaign: f"{campaign.speed:,.0f}",
    "minutes of processor time": lambda campaign: f"{campaign.cpu_seconds / 60:,.0f}",
    "runs done twice, in processes with different hash seeds": lambda campaign: f"{campaign.twins:,}",
    "runs that failed": lambda campaign: f"{len(campaign.failures):,}",
}


def _counts(newest: Mapping[str, int], everything: Mapping[str, int], names: Sequence[str]) -> Iterator[Sequence[str]]:
    for name in names:
        yield name, f"{newest.get(name, 0):,}", f"{everything.get(name, 0):,}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|---|{_RIGHT}|{_RIGHT}|"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"
