"""The demo's child processes end with it, and a child that fails is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from stellwerk.cli.demo.engine_api import TaskCounts, count_attempts
from stellwerk.cli.demo.processes import ChildFailed, Children, log_tail, wait_for_listening_url

SLEEP = "import time; time.sleep(600)"
IGNORE_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); " + SLEEP


def test_children_end_when_the_demo_fails(tmp_path: Path) -> None:
    started = []

    def fail() -> None:
        with Children(tmp_path) as children:
            started.append(children.start("sleeper", ["-c", SLEEP]))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [child.running for child in started] == [False]


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stellwerk.cli.demo.processes.STOP_SECONDS_MAX", 0.2)
    with Children(tmp_path) as children:
        child = children.start("stubborn", ["-c", IGNORE_SIGTERM])
        while "ready" not in log_tail(child.log):
            assert child.running
    assert child.process.returncode == -9


def test_the_url_is_taken_from_what_the_engine_prints(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        script = "print('listening on http://127.0.0.1:4711', flush=True); " + SLEEP
        child = children.start("engine", ["-c", script])
        assert wait_for_listening_url(child, 30.0) == "http://127.0.0.1:4711"


def test_an_engine_that_ends_at_once_is_noticed(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("engine", ["-c", "raise SystemExit('the disk is full')"])
        with pytest.raises(ChildFailed, match="exit code 1"):
            wait_for_listening_url(child, 30.0)
    assert log_tail(child.log) == "the disk is full"


def test_what_an_earlier_engine_printed_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("listening on http://127.0.0.1:1\n")
    with Children(tmp_path) as children:
        child = children.start("engine", ["-c", "pass"])
        with pytest.raises(ChildFailed):
            wait_for_listening_url(child, 30.0, log_offset=child.log.stat().st_size)


def test_attempts_are_counted_by_how_they_ended() -> None:
    def task(state: str, fence: int, *ends: str) -> dict[str, object]:
        attempts = [{"fence": number, "end": end} for number, end in enumerate(ends, start=1)]
        return {"state": state, "fence": fence, "attempts": attempts}

    tasks = [
        task("COMPLETED", 4, "failed", "expired", "released"),
        task("FAILED", 3, "failed", "failed", "failed"),
        task("CANCELLED", 1, "revoked"),
    ]
    assert count_attempts(tasks) == TaskCounts(retries=3, revoked=1, reclaimed=1, released=1)
