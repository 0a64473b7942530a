"""Numbers, durations and lists as the dialects write them into attributes. What cannot be read is a finding."""

from __future__ import annotations

from stellwerk.model.findings import Findings
from stellwerk.model.iso8601 import parse_duration
from stellwerk.model.notation import shown
from stellwerk.model.xml import Element

__all__ = ["backoffs_ms", "duration_ms", "whole_number"]

_NUMBER_MAX = 10**9
_BACKOFFS_MAX = 100
_DURATION_MS_MAX = 3_660 * 86_400_000


def duration_ms(findings: Findings, element: Element, text: str) -> int | None:
    """An ISO 8601 duration without years and months, not negative."""
    try:
        duration = parse_duration(text)
    except ValueError as error:
        findings.error(element, str(error))
        return None
    if duration.months or duration.ms < 0:
        findings.error(element, f"{shown(text)}: only days, hours, minutes and seconds from zero on are possible here")
        return None
    if duration.ms > _DURATION_MS_MAX:
        findings.error(element, f"{shown(text)} is more than ten years")
        return None
    return duration.ms


def backoffs_ms(findings: Findings, element: Element, text: str) -> tuple[int, ...]:
    """Durations, separated by commas."""
    texts = text.split(",")
    if len(texts) > _BACKOFFS_MAX:
        findings.error(element, f"{len(texts)} back-offs, at most {_BACKOFFS_MAX} are possible")
        return ()
    waits = (duration_ms(findings, element, part.strip()) for part in texts)
    return tuple(wait for wait in waits if wait is not None)


def whole_number(findings: Findings, element: Element, name: str, text: str) -> int | None:
    """A number from zero on."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and len(stripped) < 12 and int(stripped) <= _NUMBER_MAX:
        return int(stripped)
    findings.error(element, f"{name} must be a whole number from 0 to {_NUMBER_MAX}, not {shown(text)}")
    return None
