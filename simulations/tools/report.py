"""The causal slice as text: one line for each event, and a column for each host that had a part in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulations.kernel.trace import Row
from simulations.tools.explanation import Difference, Explanation
from simulations.tools.rows import brief, changes_of, host_of, hosts_in, seconds_of
from simulations.tools.sentences import promise_of, sentence

__all__ = ["report"]

_COLUMNS_MAX = 12
"""More hosts have no columns: the lines would be too long."""
_GLYPHS = {
    "boot": "^",
    "exit": "v",
    "crash": "!",
    "freeze": "=",
    "thaw": ">",
    "commit": "*",
    "undone": "x",
    "handler": "h",
    "lease": "L",
    "violation": "#",
    "log": "?",
    "pause": "z",
}


def report(explanation: Explanation) -> Iterator[str]:
    """Lines: the verdict, the events, the last passing neighbour, and how to see it again."""
    outcome, part = explanation.outcome, explanation.part
    yield f"{'passed' if outcome.invariant is None else 'FAILED'}   {outcome.verdict}"
    if outcome.invariant is not None and promise_of(outcome.invariant):
        yield f"         {promise_of(outcome.invariant)}"
    yield f"about    {part.subject}"
    yield f"trace    {outcome.trace_digest[:16]}, {len(part.rows)} of {explanation.rows_count} events shown"
    yield ""
    yield from _events(part.rows, _hosts(explanation), part.subject.ids)
    yield ""
    yield from _neighbour(explanation)
    yield f"again    {explanation.command}"


def _hosts(explanation: Explanation) -> list[str]:
    hosts = [lane.name for lane in explanation.story.lanes if lane.kind == "host"]
    return hosts if len(hosts) <= _COLUMNS_MAX else []


def _events(rows: Sequence[Row], hosts: Sequence[str], ids: Sequence[str]) -> Iterator[str]:
    names = [_short(host) for host in hosts]
    widths = [max(3, len(name)) for name in names]
    heading = " ".join(f"{name:^{width}}" for name, width in zip(names, widths, strict=True))
    yield f"{'seconds':>11}  {heading}  event".rstrip()
    for row in rows:
        cells = " ".join(f"{_glyph(row, host):^{width}}" for host, width in zip(hosts, widths, strict=True))
        mark = "   <- violation" if row.kind == "violation" else ""
        yield f"{seconds_of(row):11.6f}  {cells}  {_who(row)}{brief(sentence(row, ids))}{mark}"


def _who(row: Row) -> str:
    """Of commits and faults the sentence says it."""
    return "" if row.kind in ("commit", "undone", "fault", "violation") else f"{row.place} "


def _short(host: str) -> str:
    """``w3`` for ``worker-3``, ``db`` for the database."""
    role, _, number = host.partition("-")
    return "db" if role == "database" else f"{role[:1]}{number}" if number else role[:4]


def _glyph(row: Row, host: str) -> str:
    if host_of(row.place) == host:
        return _GLYPHS.get(row.kind, "o")
    if row.kind == "fault":
        return "~" if host in hosts_in(row) else "."
    named = {*hosts_in(row), *(host_of(change.worker) for change in changes_of(row))}
    return "o" if host in named else "."


def _neighbour(explanation: Explanation) -> Iterator[str]:
    neighbour = explanation.neighbour
    if neighbour is None:
        if explanation.tried:
            yield f"none of {explanation.tried} neighbours passes"
        return
    yield f"passes   {neighbour.what}"
    if neighbour.difference is not None:
        yield from _difference(neighbour.difference)


def _difference(difference: Difference) -> Iterator[str]:
    yield f"         {difference.common} events are alike, then"
    for who, row in (("this run", difference.failing), ("neighbour", difference.passing)):
        told = "has ended" if row is None else f"{seconds_of(row):.6f} {row.place}: {brief(sentence(row))}"
        yield f"         {who:>9}: {told}"
