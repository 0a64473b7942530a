"""Real processes for the end-to-end tests: the engine on a SQLite file, workers beside it, and a small HTTP client."""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

_HERE = Path(__file__).parent
_START_SECONDS = 30.0


@attrs.define
class EngineProcess:
    """``stellwerk serve`` on a database file; after a kill it starts again on the same port."""

    folder: Path
    options: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        return self.folder / "engine.db"

    def start(self) -> None:
        self._close_output()
        command = [sys.executable, "-m", "stellwerk", "serve", "--db", str(self.database), "--port", str(self.port)]
        with (self.folder / "engine.log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, *self.options], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "listening on http://" in line:
                self.port = int(line.strip().rsplit(":", 1)[1].rstrip("/"))
                return
        self.end()
        raise AssertionError(f"the engine did not start:\n{(self.folder / 'engine.log').read_text()}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """After a test: whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._close_output()

    def _close_output(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The JSON answer; an assertion for every status above 299."""
        status, answer = self.ask(method, path, body)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()
        finally:
            connection.close()

    def deploy(self, *files: Path, **options: object) -> Any:
        listed = [{"name": file.name, "xml": file.read_text("utf-8")} for file in files]
        return self.request("POST", "/api/v1/process-definitions", {"files": listed, **options})

    def deploy_xml(self, name: str, xml: str) -> Any:
        return self.request("POST", "/api/v1/process-definitions", {"files": [{"name": name, "xml": xml}]})

    def deploy_tasks(self, process: str, attributes: str = "", topics: tuple[str, ...] = (), more: str = "") -> Any:
        """A process of external tasks in a row: one with its topic named like the process, or one for each topic.

        ``attributes`` stand on every task. ``more`` is further elements; the tasks' ids are ``task-0``, ``task-1``, …
        """
        return self.deploy_xml(f"{process}.bpmn", _in_a_row(process, attributes, topics or (process,), more))

    def start_instance(self, process: str, variables: dict[str, object] | None = None, **options: object) -> str:
        body = {"process_def_id": process, "variables": variables or {}, **options}
        answer = self.request("POST", "/api/v1/process-instances", body)
        return str(answer["instance_id"])

    def until(self, condition: Callable[[], bool], seconds: float = _START_SECONDS) -> None:
        """Look again until `condition` holds; other processes give no event to wait for."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "did not happen in time"
            time.sleep(0.02)

    def wait(self, instance_id: str, seconds: float = 30.0) -> Any:
        """The instance's whole view with its history, after its end (or when time is up)."""
        timeout = f"timeout_ms={int(seconds * 1000)}&or_incident=true"
        self.request("GET", f"/api/v1/process-instances/{instance_id}/wait?{timeout}")
        return self.request("GET", f"/api/v1/process-instances/{instance_id}?history=true")


def _in_a_row(process: str, attributes: str, topics: tuple[str, ...], more: str) -> str:
    nodes = [f"task-{number}" for number in range(len(topics))]
    tasks = (
        f'<serviceTask id="{node}" stellwerk:topic="{topic}" {attributes}/>'
        for node, topic in zip(nodes, topics, strict=True)
    )
    flows = (
        f'<sequenceFlow id="flow-{number}" sourceRef="{source}" targetRef="{target}"/>'
        for number, (source, target) in enumerate(itertools.pairwise(["start", *nodes, "end"]))
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"
             targetNamespace="https://stellwerk.dev/tests">
  <error id="declined" errorCode="DECLINED"/>
  <process id="{process}" isExecutable="true" stellwerk:failurePolicy="incident">
    <startEvent id="start"/> {"".join(tasks)} <endEvent id="end"/> {"".join(flows)}
    {more}
  </process>
</definitions>"""


@attrs.define
class WorkerProcess:
    process: subprocess.Popen[bytes]
    ledger_file: Path
    reports_file: Path
    log_file: Path

    def ledger(self, event: str | None = None) -> list[dict[str, Any]]:
        """What its handlers noted: begin, end, cancelled."""
        return [line for line in _lines(self.ledger_file) if event in (None, line["event"])]

    def reports(self, event: str) -> list[dict[str, Any]]:
        """What the worker called back: error, heartbeat; and health, stopped."""
        return [line for line in _lines(self.reports_file) if line["event"] == event]

    def is_healthy(self) -> bool:
        return [line["healthy"] for line in self.reports("health")][-1:] == [True]

    def log(self) -> str:
        return self.log_file.read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=30)


def _lines(file: Path) -> list[dict[str, Any]]:
    """The last line may be half written."""
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


@attrs.define
class Workers:
    """Starts worker processes and ends them all with the test."""

    folder: Path
    engine: EngineProcess
    started: list[WorkerProcess] = attrs.field(factory=list)

    def start(self, topics: dict[str, list[dict[str, object]]], **options: object) -> WorkerProcess:
        """Options: see scenario_worker.py."""
        scenario = self.folder / f"scenario-{len(self.started)}.json"
        scenario.write_text(json.dumps({"topics": topics, **options}))
        return self._run([sys.executable, str(_HERE / "scenario_worker.py"), self.engine.url, str(scenario)])

    def start_connected(self, topics: dict[str, list[dict[str, object]]], **options: object) -> WorkerProcess:
        worker = self.start(topics, **options)
        self.engine.until(worker.is_healthy)
        return worker

    def run_module(self, name: str, code: str) -> WorkerProcess:
        """``stellwerk worker NAME:worker`` with this code in a file of that name."""
        (self.folder / f"{name}.py").write_text(code)
        return self._run([sys.executable, "-m", "stellwerk", "worker", f"{name}:worker", "--url", self.engine.url])

    def _run(self, command: list[str]) -> WorkerProcess:
        number = len(self.started)
        ledger, reports, log = (
            self.folder / f"{what}-{number}.{kind}"
            for what, kind in (("ledger", "jsonl"), ("reports", "jsonl"), ("worker", "log"))
        )
        arguments = [str(ledger), str(reports)] if "-m" not in command else []
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, *arguments], stdout=output, stderr=output, cwd=self.folder, start_new_session=True
            )
        self.started.append(WorkerProcess(process, ledger, reports, log))
        return self.started[-1]


@pytest.fixture(scope="session")
def engine_process() -> type[EngineProcess]:
    """For who makes engines of its own; end them."""
    return EngineProcess


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    process = EngineProcess(tmp_path)
    process.start()
    yield process
    process.end()


@pytest.fixture
def workers(tmp_path: Path, engine: EngineProcess) -> Iterator[Workers]:
    started = Workers(tmp_path, engine)
    yield started
    for worker in started.started:
        if worker.process.poll() is None:
            worker.kill()
