"""Notes for empty lists: a filter that names something that is not there looks like good news otherwise."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stellwerk.cli.client import Client, segment
from stellwerk.cli.output import warn

__all__ = ["close_matches", "suggestion", "warn_of_unknown_kind", "warn_of_unknown_process", "warn_of_unknown_topic"]

_SUGGESTED_MAX = 3
_VERSIONS_SHOWN = 10
_MODELS_READ_MAX = 50
"""So many of the newest files are searched for topics."""


def close_matches(name: str, known: Iterable[str]) -> list[str]:
    """The most alike first, whatever case they are in; at most three."""
    by_folded: dict[str, str] = {}
    for other in known:
        by_folded.setdefault(other.lower(), other)
    alike = difflib.get_close_matches(name.lower(), by_folded, n=_SUGGESTED_MAX)
    return [by_folded[folded] for folded in alike]


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; like it: charge-card``, or nothing."""
    alike = close_matches(name, known)
    return f"; like it: {', '.join(alike)}" if alike else ""


def warn_of_unknown_process(client: Client, process: str, version: int | None = None) -> None:
    """Unless it is deployed (in that version)."""
    rows = client.get("/process-definitions")["definitions"]
    versions = [row["version"] for row in rows if row["key"] == process]
    if not versions:
        keys = {row["key"] for row in rows}
        warn(f'no process "{process}" is deployed{suggestion(process, keys)}')
    elif version is not None and version not in versions:
        shown = ", ".join(map(str, versions[-_VERSIONS_SHOWN:]))
        warn(f'process "{process}" has no version {version}; its versions: {shown}')


def warn_of_unknown_topic(client: Client, topic: str) -> None:
    """Unless there is work or a worker for it, or a deployed model names it."""
    known = {row["topic"] for row in client.get("/topics")["topics"]}
    if topic not in known:
        known.update(_topics_in_models(client))
    if topic not in known:
        what = "nothing waits on it, nobody is connected for it, no model names it"
        warn(f'no topic "{topic}" is known ({what}){suggestion(topic, known)}')


def _topics_in_models(client: Client) -> Iterator[str]:
    """Those that are written as they are: of an expression nobody knows what it will give."""
    from stellwerk.cli.inventory import report_on
    from stellwerk.limits import Limits

    newest = {row["key"]: row for row in client.get("/process-definitions")["definitions"]}
    rows = sorted(newest.values(), key=lambda row: str(row["deployed_at"]))
    for row in rows[-_MODELS_READ_MAX:]:
        xml = _xml_of(client, str(row["definition_id"]))
        report = report_on(Path(row["key"]), xml, limits=Limits(), adopt_java=True)
        for process in report.processes:
            yield from (str(node.details["topic"]) for node in process.external_tasks)


def _xml_of(client: Client, definition_id: str) -> bytes:
    xml = bytearray()
    client.download(f"/process-definitions/{segment(definition_id)}/xml", lambda piece, _length: xml.extend(piece))
    return bytes(xml)


def warn_of_unknown_kind(kind: str, kinds: Sequence[str]) -> None:
    if kind not in kinds:
        alike = suggestion(kind, kinds) or f"; there are: {', '.join(kinds)}"
        warn(f'no incident is of a kind "{kind}"{alike}')
