"""Rows of a trace, read with care: who wrote them, and what their data say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from simulations.kernel.trace import Row
from stellwerk.values import frozen

__all__ = [
    "HOST_KINDS",
    "Change",
    "brief",
    "changes_of",
    "host_of",
    "hosts_in",
    "leases_in",
    "number_of",
    "seconds_of",
    "strings_in",
    "text_of",
    "violation_row",
    "with_undone",
]

HOST_KINDS = ("boot", "exit", "leave", "crash", "freeze", "thaw")
"""What happens to a whole host."""

_BUSINESS_KEY = re.compile(r" \((.+)\)$")
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{6}([0-9a-f]{6})\b")
_FENCE = re.compile(r"\b(fence|lease) (\d{6,})(\d{4})\b")
_HOST_FIELDS = ("host", "other", "node", "target", "to", "peer")
_LEASE_LISTS = ("tasks", "leases", "kept", "lost", "holding")
_OF_INSTANCES = ("history", "snapshots", "inbox")
"""Tables whose keys begin with the instance."""
_TASK_CHANGE = re.compile(
    r"(?P<before>[A-Z]*)→(?P<after>[A-Z]*)(?: (?P<worker>[^\s\d→][^\s→]*) (?P<fence>\d+)(?: (?P<until>\d+))?)?"
)


@frozen
class Change:
    """One row of a table that a commit changed, as the trace tells it."""

    table: str
    key: str
    text: str
    instance: str = ""
    """Which process instance it belongs to; empty where the trace does not say."""
    business_key: str = ""
    """Of an instance: what the plan calls it."""
    before: str = ""
    """Of a task: its state, and below who holds it since then."""
    after: str = ""
    worker: str = ""
    fence: int | None = None
    until_ms: int | None = None
    """The promised end, on the database's clock; None where the trace does not say."""


def seconds_of(row: Row) -> float:
    return row.us / 1e6


def host_of(place: str) -> str:
    """``node-1`` for ``node-1#2``."""
    return place.partition("#")[0]


def text_of(row: Row, *names: str) -> str:
    """The first of the fields that is there, as text; empty without one."""
    for name in names:
        value = row.data.get(name)
        if value is not None and value != "":
            return str(value)
    return ""


def number_of(row: Row, *names: str) -> float | None:
    for name in names:
        value = row.data.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def hosts_in(row: Row) -> list[str]:
    """Every host that the row names: who wrote it first."""
    named = [host_of(row.place), *(host_of(text_of(row, name)) for name in _HOST_FIELDS)]
    return list(dict.fromkeys(name for name in named if name))


def strings_in(value: object) -> Iterator[str]:
    """Every text within a JSON value, names of fields excepted."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from strings_in(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from strings_in(inner)


def changes_of(row: Row) -> list[Change]:
    """What a ``commit`` changed; nothing for other rows."""
    changes = row.data.get("changes")
    if row.kind not in ("commit", "undone") or not isinstance(changes, Sequence):
        return []
    return [_change([str(part) for part in entry]) for entry in changes if isinstance(entry, Sequence)]


def brief(text: str) -> str:
    """With ``…d743eda0`` for long ids and ``…5032`` for fences: their ends tell them apart."""
    return _FENCE.sub(r"\1 …\3", _UUID.sub(r"…\1", text))


def with_undone(rows: Sequence[Row]) -> list[Row]:
    """The same rows; one that undoes a commit has its changes too."""
    changes: dict[object, object] = {}
    told = []
    for row in rows:
        number = row.data.get("number")
        if row.kind == "commit":
            changes[number] = row.data.get("changes")
        elif row.kind == "undone" and number in changes:
            row = Row(row.number, row.us, row.place, row.kind, {**row.data, "changes": changes[number]})
        told.append(row)
    return told


def leases_in(row: Row) -> list[tuple[str, str]]:
    """Task and fence of every lease that a worker's message speaks of."""
    if text_of(row, "task"):
        return [(text_of(row, "task"), text_of(row, "fence"))]
    if row.kind not in ("sent", "got"):
        return []
    lists = [value for name in _LEASE_LISTS if isinstance(value := row.data.get(name), list | tuple)]
    return [(str(entry[0]), str(entry[1])) for entries in lists for entry in entries]


def _change(entry: Sequence[str]) -> Change:
    table, key, text, instance = (*entry, "", "", "", "")[:4]
    match = _TASK_CHANGE.match(text) if table == "tasks" else None
    if match is None:
        if table == "instances":
            named = _BUSINESS_KEY.search(text)
            return Change(table, key, text, key, business_key=named[1] if named else "")
        return Change(table, key, text, instance or (key.partition("/")[0] if table in _OF_INSTANCES else ""))
    fence, until = match["fence"], match["until"]
    return Change(
        table,
        key,
        text,
        instance,
        before=match["before"],
        after=match["after"],
        worker=match["worker"] or "",
        fence=int(fence) if fence else None,
        until_ms=int(until) if until else None,
    )


def violation_row(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.kind == "violation"), None)
