"""Durations and dates of timers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        "P9999999Y",
        "P9999Y",
        "P400000D",
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
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "9999-12-31T24:00:00Z",
        "10000-01-01",
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


@pytest.mark.parametrize("duration", [Duration(1, 0), Duration(0, 31 * _DAY_MS), Duration(-12 * 9_999, 0)])
def test_a_sum_beyond_the_calendar_is_refused(duration: Duration) -> None:
    with pytest.raises(ValueError, match="9999"):
        add(parse_instant("9999-12-01T00:00:00Z"), duration)


_DIGITS = st.text("0123456789", min_size=1, max_size=8)
_ALMOST_DURATIONS = st.builds(
    lambda sign, parts, time: f"{sign}P{''.join(parts)}{time}",
    st.sampled_from(("", "-")),
    st.tuples(*(st.one_of(st.just(""), st.builds(str.__add__, _DIGITS, st.just(unit))) for unit in "YMWD")),
    st.one_of(st.just(""), st.builds("T{}H{}.{}S".format, _DIGITS, _DIGITS, _DIGITS)),
)
_ALMOST_INSTANTS = st.from_regex(
    r"\A\d{4}-[01]\d-[0-3]\d(T[0-2]\d:[0-6]\d(:[0-6]\d(\.\d{1,9})?)?(Z|[+-][01]\d:[0-5]\d)?(\[[A-Za-z/]{0,20}\])?)?\Z"
)


def _tried(read: Callable[[], int]) -> int | None:
    try:
        return read()
    except ValueError:
        return None


@given(st.one_of(_ALMOST_INSTANTS, st.text(max_size=40)), st.one_of(_ALMOST_DURATIONS, st.text(max_size=40)))
def test_whatever_stands_in_a_timer_it_is_refused_or_gives_a_time_that_can_be_shown(date: str, duration: str) -> None:
    instant = _tried(lambda: parse_instant(date))
    if instant is None:
        instant = parse_instant("2026-01-31T12:00:00Z")
    due = _tried(lambda: add(instant, parse_duration(duration)))
    for moment in (instant, due):
        assert moment is None or to_rfc3339(moment).endswith("Z")


@given(_ALMOST_DURATIONS, st.integers(0, 4_000_000_000_000))
def test_a_duration_that_is_read_can_be_added_to_any_time_from_now_on(duration: str, now_ms: int) -> None:
    try:
        parsed = parse_duration(duration)
    except ValueError:
        return
    assert to_rfc3339(add(now_ms, parsed))
