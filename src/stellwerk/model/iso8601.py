"""Durations and points in time as BPMN timers write them: ISO 8601, with zone names in brackets as FEEL writes them."""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import attrs

from stellwerk.instants import EPOCH, INSTANT_MS_MAX, INSTANT_MS_MIN, InstantMs

__all__ = ["Cycle", "Duration", "add", "parse_cycle", "parse_duration", "parse_instant"]

_DAY_MS = 86_400_000
_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<years>\d+)Y)?(?:(?P<months>\d+)M)?(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?P<time>T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:[.,](?P<fraction>\d+))?S)?)?",
    re.ASCII,
)
_INSTANT = re.compile(
    r"(?P<year>\d{4})-?(?P<month>\d\d)-?(?P<day>\d\d)"
    r"(?:[T ](?P<hour>\d\d):?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?"
    r"(?P<offset>[zZ]|[+-]\d\d(?::?\d\d)?)?"
    r"(?:(?:@(?P<zone>[\w/+-]+))|\[(?P<bracket>[\w/+-]+)\])?)?",
    re.ASCII,
)
_REPEATS = re.compile(r"R(\d{0,9})/", re.ASCII)
_YEARS_MAX = 1_000
"""For durations: from now on, none leads beyond the year 9999."""
_ZONE_CHARS_MAX = 64
_BEYOND = "a date beyond the year 9999, or before the year 1"


@attrs.frozen
class Duration:
    """Months depend on where they begin, so they are kept apart from the rest. Both parts have one sign."""

    months: int
    ms: int


@attrs.frozen
class Cycle:
    times: int | None
    """How often in all; None: without end."""
    start_ms: InstantMs | None
    """The first time; None: one interval from now on."""
    interval: Duration


def parse_cycle(text: str) -> Cycle:
    """``R3/PT10M`` or ``R/2026-01-01T00:00:00Z/P1D``.

    :raises ValueError: saying what is wrong.
    """
    match = _REPEATS.match(text.strip())
    if match is None:
        raise ValueError(f'"{text}" is no cycle like R3/PT10M')
    start, _, interval_text = text.strip()[match.end() :].rpartition("/")
    interval = parse_duration(interval_text)
    if interval.months <= 0 and interval.ms <= 0:
        raise ValueError(f'"{text}" has an interval that does not lead forwards')
    times = int(match[1]) if match[1] else None
    if times == 0:
        raise ValueError(f'"{text}" repeats never')
    return Cycle(times, parse_instant(start) if start else None, interval)


def parse_duration(text: str) -> Duration:
    """``P1Y2M3DT4H5M6.789S`` or ``P2W``; fractions of a millisecond are dropped.

    :raises ValueError: saying what is wrong.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match[part] for part in ("years", "months", "weeks", "days", "time")):
        raise ValueError(f'"{text}" is no ISO 8601 duration like PT15M')
    if match["time"] == "T":
        raise ValueError(f'"{text}" has a T without hours, minutes or seconds')
    if max((len(part) for part in match.groupdict("").values()), default=0) > 60:
        raise ValueError("the duration is too long")
    numbers = {
        name: int(match[name] or 0) for name in ("years", "months", "weeks", "days", "hours", "minutes", "seconds")
    }
    months = numbers["years"] * 12 + numbers["months"]
    days = numbers["weeks"] * 7 + numbers["days"]
    seconds = (numbers["hours"] * 60 + numbers["minutes"]) * 60 + numbers["seconds"]
    ms = days * _DAY_MS + seconds * 1000 + _milliseconds(match["fraction"])
    if months > _YEARS_MAX * 12 or ms > _YEARS_MAX * 366 * _DAY_MS:
        raise ValueError(f'"{text}" is more than {_YEARS_MAX} years')
    sign = -1 if match["sign"] else 1
    return Duration(sign * months, sign * ms)


def add(instant_ms: InstantMs, duration: Duration) -> InstantMs:
    """The instant that lies `duration` after `instant_ms`, months counted in UTC.

    A day that the month does not have becomes its last one: 31 January and a month is 28 or 29 February.

    :raises ValueError: when that is beyond the year 9999 or before the year 1.
    """
    if duration.months == 0:
        return _within_calendar(instant_ms + duration.ms)
    try:
        moment = EPOCH + timedelta(milliseconds=instant_ms)
        year, month0 = divmod(moment.year * 12 + moment.month - 1 + duration.months, 12)
        day = min(moment.day, calendar.monthrange(year, month0 + 1)[1])
        moved = moment.replace(year=year, month=month0 + 1, day=day)
    except (OverflowError, ValueError, calendar.IllegalMonthError):
        raise ValueError(_BEYOND) from None
    return _within_calendar(_to_ms(moved) + duration.ms)


def _within_calendar(instant_ms: InstantMs) -> InstantMs:
    if not INSTANT_MS_MIN <= instant_ms <= INSTANT_MS_MAX:
        raise ValueError(_BEYOND)
    return instant_ms


def parse_instant(text: str) -> InstantMs:
    """``2026-01-31T12:00:00Z``, with an offset, or with a zone name (``…T12:00[Europe/Berlin]``, ``…@Europe/Berlin``).

    A date alone is its midnight; a local time without offset or zone is UTC. Of an hour that a clock change skips or
    repeats, the offset before the change counts.

    :raises ValueError: saying what is wrong; also for a date that does not exist.
    """
    match = _INSTANT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'"{text}" is no ISO 8601 date like 2026-01-31T12:00:00Z')
    parts = [int(match[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")]
    end_of_day = parts[3:] == [24, 0, 0] and not int(match["fraction"] or 0)
    if end_of_day:
        parts[3] = 0
    try:
        moment = datetime(*parts, tzinfo=_zone(match))  # type: ignore[arg-type,misc]
        instant_ms = _to_ms(moment) + _milliseconds(match["fraction"])
    except (ValueError, OverflowError) as error:
        raise ValueError(f'"{text}" does not exist: {error}') from None
    return _within_calendar(instant_ms + (_DAY_MS if end_of_day else 0))


def _zone(match: re.Match[str]) -> tzinfo:
    offset, name = match["offset"], match["zone"] or match["bracket"]
    if offset is None:
        return UTC if name is None else _named_zone(name)
    if offset in "zZ":
        return UTC
    digits = offset[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 18 or minutes > 59:
        raise ValueError(f"an offset of {offset}")
    span = timedelta(hours=hours, minutes=minutes)
    return timezone(-span if offset[0] == "-" else span)


def _named_zone(name: str) -> tzinfo:
    if name in ("Z", "UTC", "GMT"):
        return UTC
    try:
        return ZoneInfo(name if len(name) <= _ZONE_CHARS_MAX else "")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"the time zone {name} is unknown") from None


def _to_ms(moment: datetime) -> InstantMs:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def _milliseconds(fraction: str | None) -> int:
    return int((fraction or "").ljust(3, "0")[:3])
