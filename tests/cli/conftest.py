"""Real processes: the installed command, and an engine that it talks to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeAlias

import attrs
import pytest

from stellwerk.cli.main import run

MODEL = """<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <message id="m" name="paid"/>
  <process id="{key}" isExecutable="true">
    <startEvent id="s"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="step"/>
    {step}
    <sequenceFlow id="f2" sourceRef="step" targetRef="e"/>
    <endEvent id="e"/>
  </process>
</definitions>
"""

WORKER = """
from stellwerk.worker import BpmnError, Worker

worker = Worker("http://127.0.0.1:1")

@worker.task("{topic}")
def handle(payload, task):
    {body}
"""

SECONDS_MAX = 60
"""A loaded machine starts a Python process in seconds; a hanging one fails its test."""


@attrs.frozen
class Ended:
    exit_code: int
    out: str
    err: str

    @property
    def is_one_clear_line(self) -> bool:
        """What a mistake has to look like."""
        return len(self.err.splitlines()) == 1 and "Traceback" not in self.err and self.out == ""


Run: TypeAlias = Callable[..., Ended]


def _environment(**extra: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STELLWERK_")}
    return environment | {"NO_COLOR": "1", "PYTHONWARNINGS": "error"} | extra


@pytest.fixture
def stellwerk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in an empty directory, within this process: starting one for each takes too long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("STELLWERK_URL", raising=False)

    def run_here(*arguments: str) -> Ended:
        capsys.readouterr()
        exit_code = run(arguments)
        captured = capsys.readouterr()
        return Ended(exit_code, captured.out, captured.err)

    return run_here


@pytest.fixture
def stellwerk_process(tmp_path: Path) -> Run:
    """Run the command in an empty directory, as a process."""

    def run_process(*arguments: str, **environment: str) -> Ended:
        result = subprocess.run(
            [sys.executable, "-m", "stellwerk", *arguments],
            cwd=tmp_path,
            env=_environment(**environment),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Ended(result.returncode, result.stdout, result.stderr)

    return run_process


class Running:
    """A command that goes on until it is stopped."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.log = directory / f"{arguments[0]}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stellwerk", *arguments],
                cwd=directory,
                env=_environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(SECONDS_MAX)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()


class Engine(Running):
    """``stellwerk serve`` as a process of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        super().__init__(directory, "serve", *(arguments if "--port" in arguments else ("--port", "0", *arguments)))
        output: IO[str] | None = self.process.stdout
        assert output is not None
        line = output.readline()
        match = re.fullmatch(r"stellwerk \S+ listening on (http://127\.0\.0\.1:(\d+))\n", line)
        assert match, f"{line!r}\n{self.log.read_text()}"
        self.url, self.port = match[1], int(match[2])


StartEngine: TypeAlias = Callable[..., Engine]


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start a command that runs until the test ends."""
    processes: list[Running] = []

    def start(*arguments: str) -> Running:
        processes.append(Running(tmp_path, *arguments))
        return processes[-1]

    yield start
    for process in processes:
        process.stop()


@pytest.fixture
def start_engine(tmp_path: Path) -> Iterator[StartEngine]:
    engines: list[Engine] = []

    def start(*arguments: str) -> Engine:
        engines.append(Engine(tmp_path, *(arguments or ("--db", ":memory:"))))
        return engines[-1]

    yield start
    for engine in engines:
        engine.stop()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One for all tests of a module, which keep out of each other's way by their processes' names."""
    running = Engine(tmp_path_factory.mktemp("engine"), "--db", ":memory:")
    yield running
    running.stop()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A process key (and topic) of the test's own."""
    return re.sub(r"\W", "-", request.node.name)


@pytest.fixture
def model(tmp_path: Path, key: str) -> Callable[..., str]:
    """Write a process with one step, ``model.bpmn`` if not said otherwise; gives the file's name."""

    def write(step: str, name: str = "model.bpmn", key: str = key) -> str:
        (tmp_path / name).write_text(MODEL.format(key=key, step=step.format(key=key)))
        return name

    return write


@pytest.fixture
def ask(stellwerk: Run, engine: Engine) -> Run:
    """Run a command against the engine."""

    def run(*arguments: str) -> Ended:
        return stellwerk(*arguments, "--url", engine.url)

    return run


@pytest.fixture
def deployed(ask: Run, model: Callable[..., str], key: str) -> Callable[[str], str]:
    """Deploy a process with one step; gives its key."""

    def deploy(step: str) -> str:
        ended = ask("deploy", model(step))
        assert (ended.exit_code, ended.out, ended.err) == (0, f"deployed {key} version 1\n", "")
        return key

    return deploy


@pytest.fixture
def work(tmp_path: Path, engine: Engine, start_process: Callable[..., Running]) -> Callable[[str, str], Running]:
    """``stellwerk worker`` with one handler, against the engine."""

    def run(topic: str, body: str) -> Running:
        (tmp_path / "shop_worker.py").write_text(WORKER.format(topic=topic, body=body))
        return start_process("worker", "shop_worker:worker", "--url", engine.url)

    return run
