"""Where the reader's findings come together, so that a file's author sees all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stellwerk.model.process import Finding, Position, Severity
from stellwerk.model.xml import Element

__all__ = ["Findings", "sorted_by_position"]


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
        return sorted_by_position(self._found)


def sorted_by_position(findings: list[Finding]) -> tuple[Finding, ...]:
    """In the order in which an editor shows them, without repetitions."""

    def place(finding: Finding) -> tuple[int, int]:
        position: Position = finding.position
        return position.line, position.column

    return tuple(sorted(dict.fromkeys(findings), key=place))
