"""A live engine, a process of its own, that needs a credential and has something of everything."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

_START_SECONDS = 60.0
_ANSWER_SECONDS = 30.0

MODEL = """<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <message id="m" name="paid"/>
  <process id="order" isExecutable="true">
    <startEvent id="s"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="charge"/>
    <serviceTask id="charge" stellwerk:topic="charge"/>
    <boundaryEvent id="late" attachedToRef="charge">
      <timerEventDefinition><timeDuration>P7D</timeDuration></timerEventDefinition>
    </boundaryEvent>
    <sequenceFlow id="f3" sourceRef="late" targetRef="e"/>
    <sequenceFlow id="f2" sourceRef="charge" targetRef="e"/>
    <endEvent id="e"/>
  </process>
  <process id="approval" isExecutable="true">
    <startEvent id="s2"/>
    <sequenceFlow id="g1" sourceRef="s2" targetRef="approve"/>
    <userTask id="approve" name="Approve"/>
    <sequenceFlow id="g2" sourceRef="approve" targetRef="e2"/>
    <endEvent id="e2"/>
  </process>
  <process id="paid" isExecutable="true">
    <startEvent id="s3"><messageEventDefinition messageRef="m"/></startEvent>
    <sequenceFlow id="h1" sourceRef="s3" targetRef="e3"/>
    <endEvent id="e3"/>
  </process>
  <process id="stuck" isExecutable="true">
    <startEvent id="s4"/>
    <sequenceFlow id="i1" sourceRef="s4" targetRef="c"/>
    <exclusiveGateway id="c"/>
    <sequenceFlow id="i2" sourceRef="c" targetRef="e4">
      <conditionExpression>=a &gt; 0</conditionExpression>
    </sequenceFlow>
    <endEvent id="e4"/>
  </process>
</definitions>
"""


@attrs.define
class LiveEngine:
    url: str
    token: str
    names: dict[str, list[str]] = attrs.field(factory=dict)
    """By parameter of a path: those that exist, or did."""

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, str, Any]:
        """Status, media type, and the answer: JSON where it is JSON, bytes else."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=_ANSWER_SECONDS)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            kind, content = response.getheader("content-type") or "", response.read()
            return response.status, kind, json.loads(content) if "json" in kind else content
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        return self._done("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        return self._done("POST", path, body)

    def fetch(self, topic: str, max_tasks: int = 1) -> Any:
        wanted = {"worker_id": "w", "task_types": [topic], "max_tasks": max_tasks, "wait_ms": 10_000}
        return self.post("/external-tasks/fetch-and-lock", wanted)

    def start(self, process: str, **more: object) -> str:
        return str(self.post("/process-instances", {"process_def_id": process, **more})["instance_id"])

    def _done(self, method: str, path: str, body: object) -> Any:
        status, _, answer = self.ask(method, f"/api/v1{path}", body)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    folder = tmp_path_factory.mktemp("live")
    database, log = str(folder / "engine.db"), folder / "engine.log"
    stellwerk = [sys.executable, "-m", "stellwerk"]
    make_key = [*stellwerk, "keys", "create", "--scopes", "admin,worker", "--db", database, "--json"]
    made = subprocess.run(make_key, capture_output=True, text=True, timeout=_START_SECONDS, check=True)
    with log.open("w") as errors:
        serve = [*stellwerk, "serve", "--db", database, "--port", "0"]
        process = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        engine = LiveEngine(_url_of(process, log), json.loads(made.stdout)["key"])
        _fill(engine)
        yield engine
        assert process.poll() is None, log.read_text()[-4000:]
        assert "request_failed" not in log.read_text()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _url_of(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    watchdog = threading.Timer(_START_SECONDS, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if "listening on http://" in line:
                return "http://" + line.strip().rsplit("http://", 1)[1].rstrip("/")
    finally:
        watchdog.cancel()
    raise AssertionError(f"the engine did not start:\n{log.read_text()}")


def _fill(engine: LiveEngine) -> None:
    """Instances of every kind; tasks that are ready, locked, failed and done; a message that nothing waits for."""
    engine.post("/process-definitions", {"files": [{"name": "model.bpmn", "xml": MODEL}]})
    orders = [engine.start("order", business_key=f"o-{number}", variables={"amount": number}) for number in range(5)]
    stuck = [engine.start("stuck") for _ in range(3)]
    approvals = [engine.start("approval") for _ in range(3)]
    first, second, third, _ = engine.fetch("charge", 4)
    engine.post(f"/external-tasks/{first['task_id']}/complete", {"worker_id": "w", "variables": {"receipt": 1}})
    failure = {"worker_id": "w", "error": "no", "details": {"why": [1]}}
    engine.post(f"/external-tasks/{second['task_id']}/fail", {**failure, "retries": 0})
    engine.post(f"/external-tasks/{third['task_id']}/fail", {**failure, "retry_after_ms": 3_600_000})
    kept = engine.post("/messages", {"name": "later", "key": "k"})["message_id"]
    reached = engine.post("/messages", {"name": "paid"})["message_id"]
    engine.post(f"/process-instances/{orders[4]}/cancel", {})
    for instance_id in (stuck[0], first["process_instance_id"]):
        engine.get(f"/process-instances/{instance_id}/wait?or_incident=true&timeout_ms=10000")
    key = engine.post("/keys", {"name": "another", "scopes": ["worker"], "topics": ["a*"], "expires_in_ms": 10**9})
    engine.names = {
        "instance_id": [*orders, *stuck, *approvals],
        "task_id": [task["task_id"] for task in engine.get("/external-tasks")["tasks"]],
        "incident_id": [row["incident_id"] for row in engine.get("/incidents")["incidents"]],
        "user_task_id": [row["user_task_id"] for row in engine.get("/user-tasks")["user_tasks"]],
        "definition_id": ["order", "order:1", "approval:1", "order:2"],
        "process_key": ["paid", "order"],
        "message_id": [kept, reached],
        "key_id": [key["key_id"]],
    }
