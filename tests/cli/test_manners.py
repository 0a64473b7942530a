"""What one notices without being told: commands begin quickly, and long work shows how far it is."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from stellwerk.cli.progress import progress

HEAVY = (
    "trio",
    "starlette",
    "h11",
    "sqlite3",
    "stellwerk.actors",
    "stellwerk.app",
    "stellwerk.model",
    "stellwerk.server",
)


def test_the_command_is_imported_without_the_engine() -> None:
    code = f"import sys, stellwerk.cli.main; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_shows_how_far_it_is_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("Deleting") as report:
        report(3, 10)
    assert "Deleting" in terminal.getvalue()
    assert "3/10" in terminal.getvalue()


def test_long_work_says_nothing_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with progress("Deleting") as report:
        report(3, 10)
    assert pipe.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    with progress("Deleting") as report:
        report(3, 10)
