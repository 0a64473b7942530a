"""A worker process for the end-to-end tests, run as ``python scenario_worker.py URL SCENARIO LEDGER``.

The scenario (a JSON file) says for each topic what its handler does: ``return`` a result, raise a BPMN ``error``
(a list: code, message), ``fail`` that many times first, take ``seconds``. ``when`` (variable, value) chooses a case.
Each start and end of a handler is a line in the ledger (JSON: event, topic, task, fence, variables, headers).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stellwerk.worker import BpmnError, Task, Worker

_write_lock = threading.Lock()


def main() -> None:
    url, scenario_file, ledger_file = sys.argv[1:4]
    options: dict[str, Any] = json.loads(Path(scenario_file).read_text())
    worker = Worker(url, max_tasks=options.get("max_tasks", 8), lock_duration=options.get("lock_duration", 10.0))
    with Path(ledger_file).open("a", buffering=1) as ledger:
        for topic, cases in options["topics"].items():
            worker.task(topic)(_handler(topic, cases, ledger.write))
        worker.run()


def _handler(topic: str, cases: list[dict[str, Any]], write: Callable[[str], int]) -> Callable[..., Any]:
    def note(event: str, payload: dict[str, Any], task: Task) -> None:
        line = {
            "event": event,
            "topic": topic,
            "task": task.id,
            "fence": task.fence,
            "attempt": task.attempt,
            "instance": task.process_instance_id,
            "variables": payload,
            "headers": dict(task.headers),
            "pid": os.getpid(),
        }
        with _write_lock:
            write(json.dumps(line) + "\n")

    def handle(payload: dict[str, Any], task: Task) -> Any:
        case = _choose(cases, payload)
        note("begin", payload, task)
        time.sleep(case.get("seconds", 0))
        if task.attempt <= case.get("fail", 0):
            raise RuntimeError(f"attempt {task.attempt} of {topic} fails")
        if "error" in case:
            raise BpmnError(*case["error"])
        note("end", payload, task)
        return case.get("return")

    return handle


def _choose(cases: list[dict[str, Any]], payload: dict[str, Any]) -> dict[str, Any]:
    for case in cases:
        if "when" not in case or payload.get(case["when"][0]) == case["when"][1]:
            return case
    raise LookupError(f"no case for {payload}")


if __name__ == "__main__":
    main()
