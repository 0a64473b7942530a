"""Rules of a session that engine and worker share."""

from __future__ import annotations

import pytest

from stellwerk.wire.session import FrameLatency, heartbeat_ms, renewal_margin_ms, report_is_fresh


@pytest.mark.parametrize(
    ("lock_ms", "heartbeat"),
    [(None, 5000), (1000, 250), (1500, 250), (6000, 1000), (30_000, 5000), (86_400_000, 5000)],
)
def test_protocol_rule_10_the_heartbeat_is_a_sixth_of_the_shortest_lock(lock_ms: int | None, heartbeat: int) -> None:
    assert heartbeat_ms(lock_ms) == heartbeat


@pytest.mark.parametrize(("lock_ms", "margin"), [(1000, 333), (15_000, 5000), (30_000, 5000)])
def test_protocol_rule_4_the_renewal_margin_is_five_seconds_or_a_third(lock_ms: int, margin: int) -> None:
    assert renewal_margin_ms(lock_ms) == margin


@pytest.mark.parametrize("lock_ms", [1000, 2000, 6000, 30_000, 60_000])
def test_a_report_arrives_within_every_renewal_margin(lock_ms: int) -> None:
    assert heartbeat_ms(lock_ms) <= renewal_margin_ms(lock_ms)


def test_protocol_rule_18_only_reports_younger_than_two_heartbeats_justify_a_renewal() -> None:
    assert report_is_fresh(9_999, 5_000)
    assert not report_is_fresh(10_000, 5_000)


def test_protocol_rule_5_a_frame_that_took_longer_than_the_quickest_is_trusted_less() -> None:
    latency = FrameLatency()
    assert latency.deadline_ms(1_000, 501_000, 30_000) == 31_000
    assert latency.deadline_ms(3_000, 501_500, 30_000) == 3_000 + 30_000 - 1_500
    assert latency.deadline_ms(3_000, 503_000, 30_000) == 33_000


def test_protocol_rule_19_the_smallest_round_trip_counts_too() -> None:
    latency = FrameLatency()
    latency.round_trip(80, 900)
    latency.round_trip(20, 950)
    latency.round_trip(300, 990)
    assert latency.deadline_ms(1_000, 501_000, 30_000) == 31_000 - 20


def test_without_the_engines_clock_only_the_round_trip_counts() -> None:
    latency = FrameLatency()
    latency.round_trip(20, 900)
    assert latency.deadline_ms(1_000, 0.0, 30_000) == 30_980


def test_drifting_clocks_are_not_taken_for_delay() -> None:
    latency = FrameLatency()
    drift = 100e-6
    margins = [latency.margin_ms(1_000 + now_ms * (1 - drift), now_ms) for now_ms in range(0, 7 * 86_400_000, 5_000)]
    assert max(margins) <= 2 * 300_000 * drift + 1
