"""SpiffWorkflow: service tasks through its parser's extension point, run by its engine loop."""

from __future__ import annotations

import io
import sys
from importlib.metadata import version
from pathlib import Path

from lxml import etree
from SpiffWorkflow.bpmn import BpmnWorkflow
from SpiffWorkflow.bpmn.parser import BpmnParser, TaskParser
from SpiffWorkflow.bpmn.parser.util import full_tag
from SpiffWorkflow.bpmn.specs.defaults import ServiceTask
from tests.benchmarks.peers.contest import Contest, Stopwatch, compete

__all__: list[str] = []


class _Chain(Contest):
    def __init__(self) -> None:
        contest = self

        class Noop(ServiceTask):  # type: ignore[misc]  # it has no types
            def _execute(self, task: object) -> bool:
                contest.handled += 1
                return True

        class Parser(BpmnParser):  # type: ignore[misc]
            OVERRIDE_PARSER_CLASSES = {full_tag("serviceTask"): (TaskParser, Noop)}  # noqa: RUF012 — its way

        parser = Parser()
        parser.add_bpmn_xml(etree.parse(io.BytesIO(Path(sys.argv[1]).read_bytes())))
        self._spec = parser.get_spec("chain")

    def run(self, instances: int, stopwatch: Stopwatch) -> int:
        ended = 0
        with stopwatch:
            for number in range(instances):
                workflow = BpmnWorkflow(self._spec)
                workflow.task_tree.set_data(order=number)
                workflow.do_engine_steps()
                ended += workflow.is_completed()
        return ended


compete(version("SpiffWorkflow"), _Chain)
