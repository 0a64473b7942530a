"""Points in time as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stellwerk.instants import INSTANT_MS_MAX, INSTANT_MS_MIN, to_rfc3339
from stellwerk.model.iso8601 import parse_instant


@pytest.mark.parametrize(
    ("instant_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_767_225_600_007, "2026-01-01T00:00:00.007Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (-62_000_000_000_000, "0005-04-19T09:46:40.000Z"),
        (INSTANT_MS_MIN, "0001-01-01T00:00:00.000Z"),
        (INSTANT_MS_MAX, "9999-12-31T23:59:59.999Z"),
        (INSTANT_MS_MIN - 1, "0001-01-01T00:00:00.000Z"),
        (INSTANT_MS_MAX + 1, "9999-12-31T23:59:59.999Z"),
        (-(10**30), "0001-01-01T00:00:00.000Z"),
        (10**30, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_every_instant_has_a_text_also_outside_the_years_that_have_four_digits(instant_ms: int, text: str) -> None:
    assert to_rfc3339(instant_ms) == text


@given(st.integers(INSTANT_MS_MIN, INSTANT_MS_MAX))
def test_a_text_is_read_as_the_instant_that_it_was_written_for(instant_ms: int) -> None:
    assert parse_instant(to_rfc3339(instant_ms)) == instant_ms
