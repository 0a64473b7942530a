"""The demo from end to end, with few orders."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from stellwerk.cli.demo.run import run_demo


def test_a_small_demo_survives_its_kills_and_passes_its_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    output = io.StringIO()
    exit_code = run_demo(orders=25, workers=2, seed=3, console=Console(file=output, width=120))
    assert exit_code == 0, output.getvalue()
    assert "orders shipped" in output.getvalue()
    assert "kill -9 the engine" in output.getvalue()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", "import sys; from stellwerk.cli.demo.run import run_demo; sys.exit(run_demo())"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "engine listens" in line:
                break
        demo.send_signal(signal.SIGTERM)
        demo.stdout.read()
        assert demo.wait(30) == 130
    assert list(tmp_path.iterdir()) == []
    assert processes_that_mention(str(tmp_path)) == []


def processes_that_mention(text: str) -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            lines.append(line)
    return lines
