"""The wait between the attempts of a task."""

from __future__ import annotations

import pytest

from stellwerk.core.retry import BACKOFF_MAX_MS, backoff_ms


def test_it_starts_at_one_second_and_doubles_to_five_minutes() -> None:
    waits = [backoff_ms(failures, (), 0.0) for failures in range(1, 12)]
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000]
    assert backoff_ms(10**9, (), 0.0) == BACKOFF_MAX_MS


@pytest.mark.parametrize("jitter", [0.0, 0.25, 0.999999])
def test_jitter_takes_away_up_to_a_half(jitter: float) -> None:
    assert 500 <= backoff_ms(1, (), jitter) <= 1_000


def test_the_models_waits_are_exact_and_the_last_one_stays() -> None:
    assert [backoff_ms(failures, (5, 7), 0.9) for failures in (1, 2, 3, 4)] == [5, 7, 7, 7]


@pytest.mark.parametrize("failures", [0, -3])
def test_a_count_that_an_operator_raised_is_like_the_first_failure(failures: int) -> None:
    assert backoff_ms(failures, (), 0.0) == 1_000
