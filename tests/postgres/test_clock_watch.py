"""The database's clock is set while leases run (consistency.md 19)."""

from __future__ import annotations

from io import StringIO

import pytest

from stellwerk.stores.postgres.clock_watch import PAUSE_SECONDS_MAX, ClockWatch
from stellwerk.system.logging import open_log

BASE_MS = 1_767_225_600_000


class Watched:
    """A watch that looks at a clock `ahead_seconds` before monotonic time."""

    def __init__(self) -> None:
        self.lines = StringIO()
        self.watch = ClockWatch(open_log(stream=self.lines))
        self.ahead_seconds = 0.0

    def look(self, at: float, *, asked: float = 0.0, answered: float = 0.0) -> None:
        """The clock is read at `at`; question and answer take so many seconds."""
        now_ms = BASE_MS + round((at + self.ahead_seconds) * 1000)
        self.watch.observe(now_ms, at - asked, at + answered)

    @property
    def jumps(self) -> tuple[int, int]:
        return self.watch.jumps_forward, self.watch.jumps_backward


@pytest.fixture
def watched() -> Watched:
    watched = Watched()
    watched.look(100.0)
    return watched


def test_rule_19_a_jump_forward_pauses_the_sweep_for_as_long(watched: Watched) -> None:
    watched.look(101.0)
    watched.ahead_seconds = 30.0
    watched.look(102.0)
    assert watched.jumps == (1, 0)
    assert watched.watch.pause_seconds(102.0) == pytest.approx(30.0)
    assert watched.watch.pause_seconds(131.0) == pytest.approx(1.0)
    assert watched.watch.pause_seconds(132.1) == 0.0


def test_rule_19_the_alarm_is_given_once(watched: Watched) -> None:
    watched.ahead_seconds = 30.0
    for second in range(101, 200):
        watched.look(float(second))
    assert watched.jumps == (1, 0)
    lines = watched.lines.getvalue().splitlines()
    assert len(lines) == 1
    assert "database clock set forward" in lines[0]
    assert "seconds=30.0" in lines[0]


def test_rule_19_the_sweep_sleeps_while_it_pauses(watched: Watched) -> None:
    assert watched.watch.next_sweep_ms(BASE_MS, BASE_MS + 5, 100.0) == BASE_MS
    watched.ahead_seconds = 30.0
    watched.look(101.0)
    now_ms = BASE_MS + 131_000
    assert watched.watch.next_sweep_ms(BASE_MS, now_ms, 101.0) == now_ms + 30_001
    assert watched.watch.next_sweep_ms(now_ms + 90_000, now_ms, 101.0) == now_ms + 90_000
    assert watched.watch.next_sweep_ms(None, now_ms, 101.0) is None
    assert watched.watch.next_sweep_ms(BASE_MS, now_ms, 131.5) == BASE_MS


def test_rule_19_a_jump_by_years_pauses_for_an_hour_at_most(watched: Watched) -> None:
    watched.ahead_seconds = 10 * 365 * 86_400.0
    watched.look(101.0)
    assert watched.watch.pause_seconds(101.0) == PAUSE_SECONDS_MAX


def test_rule_19_two_jumps_add_up(watched: Watched) -> None:
    watched.ahead_seconds = 30.0
    watched.look(101.0)
    watched.ahead_seconds = 50.0
    watched.look(111.0)
    assert watched.jumps == (2, 0)
    assert watched.watch.pause_seconds(111.0) == pytest.approx(40.0)


def test_rule_19_a_jump_back_is_told_and_pauses_nothing(watched: Watched) -> None:
    watched.ahead_seconds = -30.0
    watched.look(101.0)
    watched.look(102.0)
    assert watched.jumps == (0, 1)
    assert watched.watch.pause_seconds(101.0) == 0.0
    assert "database clock set back" in watched.lines.getvalue()


def test_rule_19_the_pause_ends_with_the_last_lease_from_before_the_jump(watched: Watched) -> None:
    """A lease that was given after it, and before anybody noticed, is none of them: it ends when its row says so."""
    watched.ahead_seconds = 600.0
    noticed_at = 110.0
    watched.look(noticed_at)
    since_before_ms, since_after_ms = BASE_MS + 99_000, BASE_MS + 705_000
    before_ms = watched.watch.wants_limit
    assert before_ms is not None
    assert since_before_ms < before_ms < since_after_ms
    watched.watch.limit_pause(before_ms, BASE_MS + 130_000)
    assert watched.watch.wants_limit is None
    assert watched.watch.pause_seconds(noticed_at) == pytest.approx(20.0)


def test_rule_19_the_pause_is_limited_later_where_the_database_failed_meanwhile(watched: Watched) -> None:
    watched.ahead_seconds = 600.0
    watched.look(110.0)
    asked = watched.watch.wants_limit
    assert asked is not None
    watched.look(111.0)
    assert watched.watch.wants_limit == asked
    watched.watch.limit_pause(asked, None)
    assert watched.watch.pause_seconds(111.0) == 0.0


def test_rule_19_what_was_asked_before_another_jump_does_not_limit_its_pause(watched: Watched) -> None:
    watched.ahead_seconds = 600.0
    watched.look(110.0)
    asked = watched.watch.wants_limit
    assert asked is not None
    watched.ahead_seconds = 900.0
    watched.look(111.0)
    watched.watch.limit_pause(asked, None)
    assert watched.watch.wants_limit not in (None, asked)
    assert watched.watch.pause_seconds(111.0) == pytest.approx(899.0)


def test_rule_19_a_jump_that_is_taken_back_ends_the_pause(watched: Watched) -> None:
    watched.ahead_seconds = 3_000.0
    watched.look(101.0)
    watched.ahead_seconds = 0.0
    watched.look(102.0)
    assert watched.jumps == (1, 1)
    assert watched.watch.pause_seconds(102.0) == 0.0


@pytest.mark.parametrize("seconds", [0.9, -0.9])
def test_a_correction_of_less_than_a_second_is_no_jump(watched: Watched, seconds: float) -> None:
    watched.ahead_seconds = seconds
    watched.look(101.0)
    watched.look(102.0)
    assert watched.jumps == (0, 0)
    assert watched.watch.pause_seconds(102.0) == 0.0


def test_a_clock_that_is_slewed_into_place_is_no_jump(watched: Watched) -> None:
    for second in range(1, 200):
        watched.ahead_seconds = second * 0.083
        watched.look(100.0 + second)
    assert watched.jumps == (0, 0)


def test_a_slow_answer_is_no_jump(watched: Watched) -> None:
    """The clock is read, and then the disk takes 20 s for the commit."""
    watched.look(101.0, answered=20.0)
    watched.look(122.0)
    watched.look(123.0, asked=20.0)
    watched.look(144.0)
    assert watched.jumps == (0, 0)


def test_a_slow_first_answer_is_no_jump() -> None:
    watched = Watched()
    watched.look(100.0, answered=20.0)
    watched.look(121.0)
    assert watched.jumps == (0, 0)


def test_a_slow_answer_does_not_hide_a_jump_from_the_next(watched: Watched) -> None:
    watched.look(101.0, asked=20.0, answered=20.0)
    watched.ahead_seconds = 10.0
    watched.look(122.0)
    assert watched.jumps == (1, 0)
    assert watched.watch.pause_seconds(122.0) == pytest.approx(10.0, abs=2.5)


def test_an_answer_that_was_under_way_while_the_clock_was_set_is_no_second_jump(watched: Watched) -> None:
    watched.ahead_seconds = 60.0
    watched.look(103.0)
    now_before_ms = BASE_MS + 102_000
    watched.watch.observe(now_before_ms, 101.9, 103.5)
    watched.look(104.0)
    assert watched.jumps == (1, 0)
