"""Rules of a session that engine and worker share."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stellwerk.wire.session import (
    CLOCK_DRIFT_MAX,
    PeerClock,
    heartbeat_ms,
    lease_deadline_ms,
    renewal_margin_ms,
    report_is_fresh,
    surely_left,
)

ROUNDING_MS = 1e-3
DAY_MS = 86_400_000


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


# --- how long a worker trusts a lease (rule 5) ---------------------------------------------------------------------


@attrs.frozen
class MachineClock:
    rate: float
    offset_ms: float

    def shows(self, true_ms: float) -> float:
        return self.offset_ms + self.rate * true_ms


@attrs.frozen
class Report:
    """A worker's `hello` or `holding`."""

    after_ms: float
    """Since the one before."""
    delay_ms: float


# Each half of the bound off, one up and one down: so far may two machines be apart.
RATES = st.floats(1 - CLOCK_DRIFT_MAX / 2, 1 + CLOCK_DRIFT_MAX / 2)
CLOCKS = st.builds(MachineClock, RATES, st.floats(0, 100 * DAY_MS))
DELAYS = st.floats(0, 2_000)
REPORTS = st.lists(st.builds(Report, st.floats(0, 30_000), DELAYS), min_size=1, max_size=12)


def engines_view(reports: Sequence[Report], worker: MachineClock, engine: MachineClock) -> tuple[PeerClock, float]:
    """→ what the engine knows of the worker's clock, and the true time when it heard the last report"""
    peer, sent_ms, heard_ms = PeerClock(), 0.0, 0.0
    for report in reports:
        sent_ms += report.after_ms
        heard_ms = max(heard_ms, sent_ms + report.delay_ms)  # one connection: in their order
        peer.heard(worker.shows(sent_ms), engine.shows(heard_ms))
    return peer, heard_ms


@given(
    worker=CLOCKS,
    engine=CLOCKS,
    store_rate=RATES,
    reports=REPORTS,
    silence_ms=st.floats(0, 60_000),
    lock_ms=st.integers(1_000, DAY_MS),
    before_ms=DELAYS,
    after_ms=DELAYS,
)
def test_L6_a_worker_never_trusts_a_lease_beyond_its_end(
    worker: MachineClock,
    engine: MachineClock,
    store_rate: float,
    reports: Sequence[Report],
    silence_ms: float,
    lock_ms: int,
    before_ms: float,
    after_ms: float,
) -> None:
    """Whatever was late, and however the clocks of worker, engine and store drift within the bound."""
    peer, heard_ms = engines_view(reports, worker, engine)
    asked_ms = heard_ms + silence_ms
    given_ms = asked_ms + before_ms
    made_ms = given_ms + after_ms
    deadline_ms = engine.shows(asked_ms) + surely_left(lock_ms)
    lock_remaining_ms = max(0, int(deadline_ms - engine.shows(made_ms)))
    told_ms = peer.at_least_ms(engine.shows(made_ms))
    assert told_ms is not None
    until_ms = lease_deadline_ms(told_ms, lock_remaining_ms)
    # What is over when its frame is made is never believed in, as no frame arrives before it was made.
    end_ms = max(given_ms + lock_ms / store_rate, made_ms)
    assert until_ms <= worker.shows(end_ms) + ROUNDING_MS


@given(worker=CLOCKS, engine=CLOCKS, reports=REPORTS, silence_ms=st.floats(0, 60_000))
def test_protocol_rule_5_the_quickest_of_the_last_eight_reports_is_what_is_lost(
    worker: MachineClock, engine: MachineClock, reports: Sequence[Report], silence_ms: float
) -> None:
    peer, heard_ms = engines_view(reports, worker, engine)
    made_ms = heard_ms + silence_ms
    told_ms = peer.at_least_ms(engine.shows(made_ms))
    assert told_ms is not None
    sent, heard, ages = 0.0, 0.0, []
    for report in reports:
        sent += report.after_ms
        heard = max(heard, sent + report.delay_ms)
        ages.append((heard - sent) + 2 * CLOCK_DRIFT_MAX * (made_ms - heard))
    lost_ms = worker.shows(made_ms) - told_ms
    assert lost_ms <= 1.001 * min(ages[-8:]) + ROUNDING_MS


def test_protocol_rule_5_a_late_welcome_followed_by_a_quick_answer_is_not_taken_for_a_quick_one() -> None:
    """The hello was under way for 390 ms; that pings are quick afterwards says nothing about it."""
    peer = PeerClock()
    peer.heard(1_000, 501_390)
    told_ms = peer.at_least_ms(501_400)
    assert told_ms == pytest.approx(1_010, abs=0.1)
    peer.heard(1_500, 501_502)
    assert peer.at_least_ms(501_510) == pytest.approx(1_508, abs=0.1)


def test_protocol_rule_5_a_frame_counts_from_when_it_was_made_however_late_it_arrives() -> None:
    assert lease_deadline_ms(1_000, 30_000) == 31_000 - 30


def test_a_lease_that_was_over_when_its_frame_was_made_is_over() -> None:
    assert lease_deadline_ms(1_000, 0) == 0


def test_a_clock_that_is_worse_than_it_should_be_costs_no_more_than_a_few_heartbeats_make_of_it() -> None:
    """An engine's clock that runs 1 % too fast: after a day it would be a quarter of an hour ahead."""
    peer, heartbeat = PeerClock(), 5_000
    for sent_ms in range(0, DAY_MS, heartbeat):
        peer.heard(sent_ms, sent_ms * 1.01)
    told_ms = peer.at_least_ms(sent_ms * 1.01)
    assert told_ms is not None
    assert told_ms - sent_ms <= 0.01 * 8 * heartbeat


def test_a_worker_that_does_not_tell_its_time_is_told_none() -> None:
    peer = PeerClock()
    peer.heard(None, 1_000)
    assert peer.at_least_ms(2_000) is None
