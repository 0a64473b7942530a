"""Durations and points in time on the command line: ``30d``, ``2h``, ``2026-01-31T12:00:00Z``."""

from __future__ import annotations

import re
import time

from stellwerk.cli.mistakes import Mistake

__all__ = ["DURATIONS", "age", "duration_ms", "duration_text", "instant", "now"]

_UNITS_MS = {"s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h|d|w)", re.ASCII)
_AMBIGUOUS = re.compile(r"(\d+(?:\.\d+)?)\s*[mM]", re.ASCII)
"""Minutes, or months? A mistake here deletes what was to be kept."""
DURATIONS = "90s, 15min, 12h, 30d or 4w"
"""Every unit there is, for help and complaints."""
_MS_MAX = 100 * 366 * 86_400_000


def duration_ms(option: str, text: str) -> int:
    """``90s``, ``15min``, ``2h``, ``1.5d``, ``4w`` in milliseconds.

    :raises Mistake: naming the option.
    """
    _refuse_ambiguous(option, text)
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise Mistake(f"{option} {text}: a number with its unit is expected: {DURATIONS}")
    milliseconds = int(float(match[1]) * _UNITS_MS[match[2]])
    if milliseconds > _MS_MAX:
        raise Mistake(f"{option} {text}: at most 100 years")
    return milliseconds


def _refuse_ambiguous(option: str, text: str) -> None:
    ambiguous = _AMBIGUOUS.fullmatch(text.strip())
    if ambiguous is not None:
        number = ambiguous[1]
        raise Mistake(f"{option} {text}: m could be minutes or months; write {number}min, or days like 30d")


def instant(option: str, text: str | None) -> str | None:
    """RFC 3339 text of a point in time that is given as such (a date alone is its midnight, UTC) or as so long ago.

    :raises Mistake: naming the option.
    """
    if text is None:
        return None
    from stellwerk.instants import to_rfc3339
    from stellwerk.model.iso8601 import parse_instant

    _refuse_ambiguous(option, text)
    if _DURATION.fullmatch(text.strip()):
        return to_rfc3339(int(time.time() * 1000) - duration_ms(option, text))
    try:
        return to_rfc3339(parse_instant(text))
    except ValueError:
        raise Mistake(
            f"{option} {text}: a time like 2026-01-31T12:00:00Z or 2026-01-31 is expected, or one ago like 2h or 3d"
        ) from None


def now() -> str:
    """By this machine's clock."""
    from stellwerk.instants import to_rfc3339

    return to_rfc3339(int(time.time() * 1000))


def age(since: str | None) -> str:
    """How long ago an instant of the API was, by this machine's clock: ``35 s``, ``12 min``, ``3 h``, ``5 d``."""
    if since is None:
        return ""
    from stellwerk.model.iso8601 import parse_instant

    return duration_text((int(time.time()) - parse_instant(since) // 1000) * 1000)


def duration_text(milliseconds: int) -> str:
    """In whole units, as `age`."""
    seconds = max(0, milliseconds // 1000)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
