"""camunda-python, in memory. Arguments: the model, and which of two jobs.

``waiting``: the three tasks are user tasks, each completed by a call of its own, as our tasks are by a command.
``inline``: they are service tasks whose delegates run within the start; nothing ever waits.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from camunda.engine import ProcessEngine
from camunda.parser import parse_bpmn_xml
from tests.benchmarks.peers.contest import Contest, Stopwatch, compete

__all__: list[str] = []


class _Inline(Contest):
    def __init__(self) -> None:
        self.engine = ProcessEngine()
        self.engine.register_delegate("noop", self.handle)
        self.engine.deploy(parse_bpmn_xml(self.model()))

    def model(self) -> str:
        return Path(sys.argv[1]).read_text("utf-8")

    def handle(self, variables: object) -> None:
        self.handled += 1

    def run(self, instances: int, stopwatch: Stopwatch) -> int:
        with stopwatch:
            return sum(self.run_one(number) for number in range(instances))

    def run_one(self, number: int) -> bool:
        instance = self.engine.start_process_instance_by_key("chain", {"order": number})
        return bool(instance.state.name == "COMPLETED")


class _Waiting(_Inline):
    def model(self) -> str:
        return super().model().replace("serviceTask", "userTask")

    def run_one(self, number: int) -> bool:
        instance = self.engine.start_process_instance_by_key("chain", {"order": number})
        # Its list of open tasks, without the query over them: no other instance has one now.
        while self.engine._tasks:
            task_id = next(iter(self.engine._tasks))
            self.handle({})
            self.engine.complete_task(task_id, {})
        return bool(instance.state.name == "COMPLETED")


compete(version("camunda-python"), {"inline": _Inline, "waiting": _Waiting}[sys.argv[2]])
