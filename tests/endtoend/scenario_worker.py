"""A worker process for the end-to-end tests, run as ``python scenario_worker.py URL SCENARIO LEDGER REPORTS``.

The scenario (a JSON file) says for each topic what its handler does: ``return`` a result (or ``return_chars``, a text
of so many), raise a BPMN ``error`` (a list: code, message, details), ``fail`` that many times first, take ``seconds``,
``hold`` until a file of that name exists (a thread that is cancelled meanwhile returns its result all the same, or
``gives_up``). ``when`` (variable, value) chooses a case. ``mode`` is how handlers run: thread, trio or asyncio.

Each begin and end of a handler is a line in the ledger (JSON: event, topic, task, fence, variables, headers), and so is
its cancellation while it holds; what the worker calls back, and each change of its health, is one in the reports.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import trio

from stellwerk.worker import BpmnError, Task, Worker

LOOK_SECONDS = 0.02
LONG_TEXT = 1_000

_write_lock = threading.Lock()


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    url, scenario_file, ledger_file, reports_file = sys.argv[1:5]
    options: dict[str, Any] = json.loads(Path(scenario_file).read_text())
    worker = Worker(
        url,
        worker_id=options.get("worker_id"),
        max_tasks=options.get("max_tasks", 8),
        lock_duration=options.get("lock_duration", 10.0),
    )
    mode = options.get("mode", "thread")
    with Path(ledger_file).open("a", buffering=1) as ledger, Path(reports_file).open("a", buffering=1) as reports:
        for topic, cases in options["topics"].items():
            handler = HANDLERS[mode](Scenario(topic, cases, ledger))
            worker.task(topic, asyncio=mode == "asyncio")(handler)
        _report(worker, reports)
        worker.run(grace=options.get("grace", 10.0))
        _write(reports, {"event": "stopped", "at": time.monotonic()})


class Scenario:
    """What the handlers of one topic do, whatever they run on."""

    def __init__(self, topic: str, cases: list[dict[str, Any]], ledger: TextIO) -> None:
        self.topic = topic
        self._cases = cases
        self._ledger = ledger

    def choose(self, payload: dict[str, Any]) -> dict[str, Any]:
        for case in self._cases:
            if "when" not in case or payload.get(case["when"][0]) == case["when"][1]:
                return case
        raise LookupError(f"no case for {payload}")

    def note(self, event: str, payload: dict[str, Any], task: Task) -> None:
        line = {
            "event": event,
            "topic": self.topic,
            "task": task.id,
            "fence": task.fence,
            "attempt": task.attempt,
            "instance": task.process_instance_id,
            "variables": {name: _brief(value) for name, value in payload.items()},
            "headers": dict(task.headers),
            "pid": os.getpid(),
            "at": time.monotonic(),
        }
        _write(self._ledger, line)

    def outcome(self, case: dict[str, Any], payload: dict[str, Any], task: Task) -> Any:
        if task.attempt <= case.get("fail", 0):
            raise RuntimeError(f"attempt {task.attempt} of {self.topic} fails")
        if "error" in case:
            raise BpmnError(*case["error"])
        self.note("end", payload, task)
        return {"text": "x" * case["return_chars"]} if "return_chars" in case else case.get("return")


def _held(case: dict[str, Any]) -> bool:
    return "hold" in case and not Path(case["hold"]).exists()


def _brief(value: object) -> object:
    return {"chars": len(value)} if isinstance(value, str) and len(value) > LONG_TEXT else value


def thread_handler(scenario: Scenario) -> Callable[..., Any]:
    def handle(payload: dict[str, Any], task: Task) -> Any:
        case = scenario.choose(payload)
        scenario.note("begin", payload, task)
        time.sleep(case.get("seconds", 0))
        while _held(case):
            if task.cancelled:
                scenario.note("cancelled", payload, task)
                if case.get("gives_up"):
                    raise RuntimeError("told to give up")
                break
            time.sleep(LOOK_SECONDS)
        return scenario.outcome(case, payload, task)

    return handle


def trio_handler(scenario: Scenario) -> Callable[..., Any]:
    async def handle(payload: dict[str, Any], task: Task) -> Any:
        case = scenario.choose(payload)
        scenario.note("begin", payload, task)
        try:
            await trio.sleep(case.get("seconds", 0))
            while _held(case):
                await trio.sleep(LOOK_SECONDS)
        except trio.Cancelled:
            scenario.note("cancelled", payload, task)
            raise
        return scenario.outcome(case, payload, task)

    return handle


def asyncio_handler(scenario: Scenario) -> Callable[..., Any]:
    async def handle(payload: dict[str, Any], task: Task) -> Any:
        case = scenario.choose(payload)
        scenario.note("begin", payload, task)
        try:
            await asyncio.sleep(case.get("seconds", 0))
            while _held(case):
                await asyncio.sleep(LOOK_SECONDS)
        except asyncio.CancelledError:
            scenario.note("cancelled", payload, task)
            raise
        return scenario.outcome(case, payload, task)

    return handle


HANDLERS = {"thread": thread_handler, "trio": trio_handler, "asyncio": asyncio_handler}


def _report(worker: Worker, reports: TextIO) -> None:
    @worker.on_error
    def on_error(kind: str, error: Exception, task: Task | None) -> None:
        _write(reports, {"event": "error", "kind": str(kind), "message": str(error), "task": task and task.id})

    @worker.on_heartbeat
    def on_heartbeat(operation: str, task_id: str | None) -> None:
        _write(reports, {"event": "heartbeat", "operation": str(operation), "task": task_id})

    threading.Thread(target=_watch_health, args=(worker, reports), daemon=True).start()


def _watch_health(worker: Worker, reports: TextIO) -> None:
    last: dict[str, int] = {}
    while not reports.closed:
        health = worker.health()
        seen = {
            "healthy": worker.is_healthy(),
            "active": health.active_task_count,
            "critical": health.consecutive_critical_errors,
        }
        if seen != last:
            _write(reports, {"event": "health", **seen})
            last = seen
        time.sleep(LOOK_SECONDS)


def _write(file: TextIO, line: dict[str, Any]) -> None:
    with _write_lock:
        if not file.closed:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
