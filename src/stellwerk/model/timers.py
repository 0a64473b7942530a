"""Timer event definitions. Literals are checked when the file is read: a date that does not exist is a finding."""

from __future__ import annotations

from stellwerk.model.expressions import Expression
from stellwerk.model.extensions import Reading
from stellwerk.model.iso8601 import parse_duration, parse_instant
from stellwerk.model.process import TimerDefinition
from stellwerk.model.vocabulary import bpmn_child, text_of
from stellwerk.model.xml import Element

__all__ = ["read_timer"]


def read_timer(definition: Element, reading: Reading) -> TimerDefinition:
    """The timer, with a finding where it has none or more than one of date, duration and cycle."""
    date, duration, cycle = (_read(definition, name, reading) for name in ("timeDate", "timeDuration", "timeCycle"))
    given = sum(value is not None for value in (date, duration, cycle))
    if given != 1:
        what = "the timer has neither date, duration nor cycle" if given == 0 else "the timer has more than one time"
        reading.findings.error(definition, what)
    return TimerDefinition(date, duration, cycle)


def _read(definition: Element, name: str, reading: Reading) -> Expression | None:
    child = bpmn_child(definition, name)
    text = text_of(child)
    if child is None or text is None:
        return None
    if not reading.texts.is_expression(text) and not reading.texts.is_foreign(text):
        problem = _problem(name, text)
        if problem is not None:
            reading.findings.error(child, problem)
    return reading.texts.template(child, text)


def _problem(name: str, text: str) -> str | None:
    try:
        if name == "timeDate":
            parse_instant(text)
        elif name == "timeDuration":
            parse_duration(text)
        else:
            _check_cycle(text)
    except ValueError as error:
        return str(error)
    return None


def _check_cycle(text: str) -> None:
    """``R3/PT10M``, ``R/2026-01-01T00:00:00Z/P1D``, ``R/PT1H/2026-01-01T00:00:00Z``, or cron."""
    if not text.startswith("R"):
        return
    count, *parts = text.split("/")
    if not (count[1:].isdigit() or count == "R") or not 1 <= len(parts) <= 2:
        raise ValueError(f'"{text}" is no repetition like R3/PT10M')
    if not any(part.startswith("P") for part in parts) and len(parts) == 1:
        raise ValueError(f'"{text}" has no duration')
    for part in parts:
        if part.startswith("P"):
            parse_duration(part)
        else:
            parse_instant(part)
