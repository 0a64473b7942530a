"""Where the reader's findings come together, so that a file's author sees all of them at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stellwerk.model.process import Finding, Position, Severity
from stellwerk.model.xml import Element

__all__ = ["FINDINGS_MAX", "Findings", "capped", "sorted_by_position"]

FINDINGS_MAX = 1_000
"""Of one file: more nobody reads, and an answer to a deployment stays small."""
_WHAT_CHARS_MAX = 1_000
_COUNTED = "definitions"
_AND_MORE = re.compile(r"and (\d+) more")


class Findings:
    """Collects findings while a file is read."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._lenient = False

    def error(self, element: Element, what: str) -> None:
        self._add(Severity.WARNING if self._lenient else Severity.ERROR, element, what)

    def warning(self, element: Element, what: str) -> None:
        self._add(Severity.WARNING, element, what)

    def _add(self, severity: Severity, element: Element, what: str) -> None:
        if len(what) > _WHAT_CHARS_MAX:
            what = what[: _WHAT_CHARS_MAX - 1] + "…"
        self._found.append(Finding(severity, element.position, element.nearest_id, element.name, what))

    @contextmanager
    def only_warnings(self, lenient: bool) -> Iterator[None]:
        """What is wrong in a process that is not executable keeps nobody from deploying the others."""
        before, self._lenient = self._lenient, lenient
        try:
            yield
        finally:
            self._lenient = before

    def sorted(self) -> tuple[Finding, ...]:
        return capped(sorted_by_position(self._found))


def sorted_by_position(findings: list[Finding]) -> tuple[Finding, ...]:
    """In the order in which an editor shows them, without repetitions."""

    def place(finding: Finding) -> tuple[int, int]:
        position: Position = finding.position
        return position.line, position.column

    return tuple(sorted(dict.fromkeys(findings), key=place))


def capped(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """At most `FINDINGS_MAX`, in the given order, errors before warnings where not all have room; then how many more.

    With an error among the findings, there is one among those that are kept. What was capped before may be capped
    again, together with others.
    """
    single = [finding for finding in findings if _more(finding) == 0]
    if len(findings) == len(single) <= FINDINGS_MAX:
        return tuple(findings)
    errors = sum(finding.severity is Severity.ERROR for finding in single)
    room = {Severity.ERROR: min(errors, FINDINGS_MAX), Severity.WARNING: max(FINDINGS_MAX - errors, 0)}
    kept: list[Finding] = []
    for finding in single:
        if room[finding.severity] > 0:
            room[finding.severity] -= 1
            kept.append(finding)
    more = len(single) - len(kept) + sum(map(_more, findings))
    hides_errors = errors > FINDINGS_MAX or any(_more(f) > 0 and f.severity is Severity.ERROR for f in findings)
    severity = Severity.ERROR if hides_errors else Severity.WARNING
    return (*kept, Finding(severity, kept[-1].position, None, _COUNTED, f"and {more} more"))


def _more(finding: Finding) -> int:
    """How many findings a last finding stands for; 0: it stands for itself."""
    match = _AND_MORE.fullmatch(finding.what) if finding.element == _COUNTED else None
    return int(match[1]) if match else 0
