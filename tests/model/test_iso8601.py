"""Durations and dates of timers."""

from __future__ import annotations

import pytest

from stellwerk.instants import to_rfc3339
from stellwerk.model.iso8601 import Duration, add, parse_duration, parse_instant

_DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "months", "ms"),
    [
        ("PT15M", 0, 900_000),
        ("PT0S", 0, 0),
        ("P1Y2M", 14, 0),
        ("P1M", 1, 0),
        ("PT1M", 0, 60_000),
        ("P2W", 0, 14 * _DAY_MS),
        ("P1DT2H3M4.5S", 0, _DAY_MS + 2 * 3_600_000 + 3 * 60_000 + 4_500),
        ("PT0,25S", 0, 250),
        ("PT1.23456S", 0, 1_234),
        ("-PT5S", 0, -5_000),
        (" PT5S\n", 0, 5_000),
    ],
)
def test_a_duration_is_read(text: str, months: int, ms: int) -> None:
    assert parse_duration(text) == Duration(months, ms)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "5S",
        "PT5",
        "P1S",
        "PT1D",
        "1w",
        "R10/PT5S",
        "PT-5S",
        "P1Y1Y",
        "PT٣S",
        "P99999Y",
        "PT" + "9" * 500 + "S",
    ],
)
def test_what_is_no_duration_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00.250Z", "2026-01-31T12:00:00.250Z"),
        ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00.000Z"),
        ("2026-01-31T12:00:00-0530", "2026-01-31T17:30:00.000Z"),
        ("2026-01-31T12:00:00", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31", "2026-01-31T00:00:00.000Z"),
        ("20260131T120000Z", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T24:00:00Z", "2026-02-01T00:00:00.000Z"),
        ("2026-07-01T12:00:00[Europe/Berlin]", "2026-07-01T10:00:00.000Z"),
        ("2026-01-01T12:00:00@Europe/Berlin", "2026-01-01T11:00:00.000Z"),
        ("2026-07-01T12:00:00+02:00[Europe/Berlin]", "2026-07-01T10:00:00.000Z"),
        ("1969-12-31T23:59:59Z", "1969-12-31T23:59:59.000Z"),
    ],
)
def test_a_date_is_read(text: str, instant: str) -> None:
    assert to_rfc3339(parse_instant(text)) == instant


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-30T00:00:00Z",
        "2026-13-01",
        "2026-01-01T25:00:00Z",
        "2026-01-01T12:00:00[Mars/Olympus]",
        "2026-01-01T12:00:00[../../etc/passwd]",
        "2026-01-01T12:00:00+99:00",
        "0000-01-01",
        "tomorrow",
        "",
    ],
)
def test_a_date_that_does_not_exist_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_instant(text)


@pytest.mark.parametrize(
    ("start", "duration", "end"),
    [
        ("2026-01-31T12:00:00Z", "P1M", "2026-02-28T12:00:00.000Z"),
        ("2028-01-31T12:00:00Z", "P1M", "2028-02-29T12:00:00.000Z"),
        ("2028-02-29T00:00:00Z", "P1Y", "2029-02-28T00:00:00.000Z"),
        ("2026-11-15T00:00:00Z", "P3M", "2027-02-15T00:00:00.000Z"),
        ("2026-03-31T00:00:00Z", "-P1M", "2026-02-28T00:00:00.000Z"),
        ("2026-01-31T23:00:00.123Z", "P1MT2H", "2026-03-01T01:00:00.123Z"),
        ("2026-01-01T00:00:00Z", "PT36H", "2026-01-02T12:00:00.000Z"),
    ],
)
def test_a_duration_is_added(start: str, duration: str, end: str) -> None:
    assert to_rfc3339(add(parse_instant(start), parse_duration(duration))) == end


def test_a_sum_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(ValueError, match="9999"):
        add(parse_instant("9999-12-01T00:00:00Z"), Duration(1, 0))
