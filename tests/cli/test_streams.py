"""Commands whose standard input, output or error is full, closed, gone or of another encoding."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

MODEL = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t">
  <process id="order" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="u"/>
    <userTask id="u"/><sequenceFlow id="f2" sourceRef="u" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>
"""

FULL = ">/dev/full"
CLOSED = ">&-"
WHAT = {FULL: "cannot write to standard output: No space left on device", CLOSED: "standard output is closed"}


@pytest.fixture
def redirected(tmp_path: Path) -> Run:
    """Run the command in a shell with a redirection."""

    def run(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "stellwerk", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def instance_id(stellwerk: Run, engine: Any, tmp_path: Path) -> str:
    (tmp_path / "order.bpmn").write_text(MODEL)
    assert stellwerk("deploy", "order.bpmn", "--url", engine.url).exit_code == 0
    started = stellwerk("start", "order", "--variables", '{"größe": "4 €"}', "--url", engine.url)
    return str(started.out.strip())


@pytest.mark.parametrize("redirection", [FULL, CLOSED])
@pytest.mark.parametrize("command", ["show", "show --json", "instances", "definitions", "user-tasks"])
def test_output_that_cannot_be_written_is_one_clear_line(
    redirected: Run, instance_id: str, engine: Any, command: str, redirection: str
) -> None:
    name, *options = command.split()
    ended = redirected(redirection, name, *([instance_id] if name == "show" else []), *options, "--url", engine.url)
    assert (ended.returncode, ended.stderr) == (2, f"stellwerk: {WHAT[redirection]}\n")


@pytest.mark.parametrize("redirection", [FULL, CLOSED])
@pytest.mark.parametrize("command", ["--help", "--version", "show --help", "demo --orders 1 --workers 1"])
def test_output_of_help_and_demo_that_cannot_be_written_is_one_clear_line(
    redirected: Run, command: str, redirection: str
) -> None:
    ended = redirected(redirection, *command.split())
    assert (ended.returncode, ended.stderr) == (2, f"stellwerk: {WHAT[redirection]}\n")


@pytest.mark.parametrize("redirection", [FULL, CLOSED])
def test_engine_runs_where_nothing_can_be_written(tmp_path: Path, redirection: str) -> None:
    arguments = [sys.executable, "-m", "stellwerk", "serve", "--db", "kept.db", "--port", "0"]
    with subprocess.Popen(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *arguments],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "event=listening" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
    assert process.returncode == 0, rest
    assert "Traceback" not in rest


def test_mistake_that_cannot_be_said_has_its_exit_code(redirected: Run) -> None:
    for redirection in ("2>/dev/full", "2>&-"):
        ended = redirected(redirection, "show", "nothing", "--url", "nonsense")
        assert (ended.returncode, ended.stdout) == (2, ""), redirection


def test_standard_input_that_is_closed_is_one_clear_line(redirected: Run) -> None:
    ended = redirected("<&-", "start", "order", "--variables", "@-")
    assert (ended.returncode, ended.stderr) == (2, "stellwerk: standard input is closed\n")


def test_reader_that_has_enough_is_no_mistake(instance_id: str, engine: Any) -> None:
    command = [sys.executable, "-m", "stellwerk", "show", instance_id, "--history", "--url", engine.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_characters_that_the_terminal_lacks_are_escaped(stellwerk_process: Run, instance_id: str, engine: Any) -> None:
    shown = stellwerk_process("show", instance_id, "--url", engine.url, PYTHONIOENCODING="ascii")
    assert (shown.exit_code, shown.err) == (0, "")
    assert shown.out.isascii()
    assert r"gr\xf6\xdfe" in shown.out
    as_json = stellwerk_process("show", instance_id, "--json", "--url", engine.url, PYTHONIOENCODING="ascii")
    assert json.loads(as_json.out)["variables"] == {"größe": "4 €"}
