"""Public BPMN models behave as their records say. The records lie beside the checkout; without them this is skipped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stellwerk.core import commands as c
from stellwerk.errors import CallerError, Conflict
from stellwerk.json_values import JsonObject
from stellwerk.model.checks import check_executable
from stellwerk.model.iso8601 import add, parse_duration
from stellwerk.model.process import FailurePolicy, Process, Severity
from stellwerk.model.reader import ReadResult, read_definitions

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]

DATA = Path(__file__).parents[2] / "../shared/data/bpmn"
IGNORED = {"fetch", "extend_lock", "set_retries"}
"""A lease's life is not the instance's."""
WITH_KEY = {"A-feel-implicit-fork-messages"}
"""The record's notes: the peer ignores the correlation key, so start with one."""
DIFFERENT = {
    "A-ext-one: BPMN error nobody catches ends the path": "an uncaught BPMN error is an incident here, never silence",
}


def _cases() -> Iterator[Any]:
    for path in sorted((DATA / "expect").glob("A-*.json")):
        record = json.loads(path.read_text())
        for case in record["cases"]:
            yield pytest.param(record, case, id=f"{record['id']}: {case['name']}"[:90])


CASES = list(_cases()) or [
    pytest.param(None, None, marks=pytest.mark.skip(reason="no public models beside the checkout"))
]


@pytest.mark.parametrize("record, case", CASES)
def test_a_public_model_behaves_as_recorded(machine: Make, record: dict[str, Any], case: dict[str, Any]) -> None:
    if reason := DIFFERENT.get(f"{record['id']}: {case['name']}"):
        pytest.skip(reason)
    process = _runnable(record)
    player = Player(machine("", FailurePolicy.INCIDENT, process=process), record)
    for step in case["steps"]:
        if "do" in step:
            player.do(step)
        elif "expect" in step:
            player.expect(step["expect"])
        else:
            player.each_once(step["expect_eventually_each_once"])


def _runnable(record: dict[str, Any]) -> Process:
    result = read_definitions((DATA / record["files"][0]).read_bytes())
    if not result.processes:
        pytest.skip(f"not deployed: {result.findings[0]}")
    process = next((item for item in result.processes if item.key == record["process"]), result.processes[0])
    _skip_unless_deployable(result)
    return process


def _skip_unless_deployable(result: ReadResult) -> None:
    findings = [*result.findings]
    for process in result.processes:
        findings += check_executable(process)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        pytest.skip(f"not deployed: {errors[0]}")


class Player:
    def __init__(self, run: Machine, record: dict[str, Any]) -> None:
        self.run = run
        self.record = record
        self.refused: Conflict | None = None

    def do(self, step: dict[str, Any]) -> None:
        if step["do"] in IGNORED or "refused" in step:
            return
        getattr(self, step["do"])(step)
        self.bound()

    def bound(self) -> None:
        """Do what the record binds service and script tasks to."""
        if self.run.state is None:
            return
        for _ in range(1000):
            todo = [element_id for element_id in self.run.open if element_id in self.record["bindings"]]
            if not todo:
                return
            binding = self.record["bindings"][todo[0]]
            if binding not in ("no-op", "counted"):
                pytest.skip(f"needs the binding {binding}")
            self.run.complete(todo[0])

    def start(self, step: dict[str, Any]) -> None:
        variables = step.get("variables", {})
        if not isinstance(variables, dict):
            pytest.skip("a start with a single value")
        if self.record["id"] in WITH_KEY:
            variables = {"key": "k", **variables}
        try:
            self.run.start(variables, step.get("start_event"))
        except Conflict as refusal:
            self.refused = refusal

    def complete(self, step: dict[str, Any]) -> None:
        node_id, variables = step["node"], step.get("variables")
        if node_id in self.run.open:
            self.run.complete(node_id, variables, step.get("instance", 0))
        elif node_id in self.run.user_tasks:
            self.run.finish(node_id, variables)
        else:
            self.run.message(node_id, variables)

    def fail(self, step: dict[str, Any]) -> None:
        if step["retries"] == 0:
            self.run.fail(step["node"])

    def bpmn_error(self, step: dict[str, Any]) -> None:
        self.run.bpmn_error(step["node"], step["code"], step.get("variables"))

    def service_error(self, step: dict[str, Any]) -> None:
        pytest.skip("a technical error with a code is the HTTP layer's business")

    def signal(self, step: dict[str, Any]) -> None:
        pytest.skip("signals")

    def message(self, step: dict[str, Any]) -> None:
        if self.run.state is None:
            pytest.skip("a message that starts an instance")
        found = next(item for item in self.run.live.subscriptions.values() if item.name == step["name"])
        self.run.do(c.CorrelateMessage(found.id, "m", step.get("variables", {})))

    def advance(self, step: dict[str, Any]) -> None:
        until_ms = add(self.run.now_ms, parse_duration(step["by"]))
        for _ in range(1000):
            due = min((timer.due_at_ms for timer in self.run.live.timers.values()), default=until_ms + 1)
            if due > until_ms:
                break
            timer = next(timer for timer in self.run.live.timers.values() if timer.due_at_ms == due)
            self.run.now_ms = max(self.run.now_ms, due)
            self.run.do(c.FireTimer(timer.id))
        self.run.now_ms = until_ms

    def each_once(self, element_ids: list[str]) -> None:
        done: Counter[str] = Counter()
        while opened := self.open():
            self.complete({"node": opened[0]})
            done[opened[0]] += 1
        assert done == Counter(element_ids)

    def open(self) -> list[str]:
        live = self.run.live
        receiving = [
            item.node_id
            for item in live.subscriptions.values()
            if item.token_id is not None and type(self.run.process.nodes[item.node_id]).__name__ == "Task"
        ]
        return sorted(self.run.open + self.run.user_tasks + receiving)

    def expect(self, expected: dict[str, Any]) -> None:
        run = self.run
        if expected.get("state") == "not-started":
            assert self.refused is not None
            return
        if "open" in expected and not (expected.get("state") == "failed" and run.incidents):
            assert self.open() == sorted(expected["open"])
        match expected.get("state"):
            case "failed":
                assert run.status == "FAILED" or run.incidents
            case None:
                pass
            case state:
                assert run.status == state.upper()
        for name, value in expected.get("variables", {}).items():
            assert run.variables.get(name) == value
        if "timers" in expected:
            assert len(run.live.timers) == expected["timers"]
        for node_id in expected.get("visited", []):
            assert run.entered(node_id), node_id
        for node_id in expected.get("not_visited", []):
            assert not run.entered(node_id), node_id


def _models() -> list[Any]:
    paths = [path for path in sorted(DATA.glob("setA*/*")) if path.suffix in (".bpmn", ".bpmn2", ".xml")]
    found = [pytest.param(path, id=path.name) for path in paths]
    return found or [pytest.param(None, marks=pytest.mark.skip(reason="no public models beside the checkout"))]


@pytest.mark.parametrize("path", _models())
@pytest.mark.parametrize("policy", FailurePolicy)
def test_a_public_model_never_gets_stuck(machine: Make, path: Path, policy: FailurePolicy) -> None:
    """Whatever a model contains: each step keeps what must always hold, and cancelling works."""
    for process in read_definitions(path.read_bytes()).processes:
        starts = [node_id for node_id in process.children if type(process.nodes[node_id]).__name__ == "Event"]
        for start in [None, *starts]:
            _roam(machine("", policy, process=process), start)


def _roam(run: Machine, start: str | None) -> None:
    try:
        run.start({"n": 1, "name": "x"}, start)
    except CallerError:
        return
    for number in range(25):
        if run.status != "RUNNING":
            return
        live = run.live
        tasks = [task_id for task_id, task in live.tasks.items() if not task.failed]
        variables: JsonObject = {"n": number, "approved": number % 2 == 0}
        if number % 7 == 5 and live.incidents:
            run.resolve()
        elif number % 5 == 3 and tasks:
            run.do(c.EndTaskInFailure(tasks[-1], 1, c.FailureKind.RETRIES_EXHAUSTED, "it broke"))
        elif tasks:
            run.do(c.CompleteTask(tasks[0], 1, variables, "digest"))
        elif live.user_tasks:
            run.do(c.CompleteUserTask(next(iter(live.user_tasks)), variables))
        elif live.subscriptions:
            run.do(c.CorrelateMessage(next(iter(live.subscriptions)), "m", variables))
        elif live.timers:
            run.do(c.FireTimer(next(iter(live.timers))))
        else:
            break
    if run.status == "RUNNING":
        run.do(c.CancelInstance("enough"))
        assert run.status == "CANCELLED"


def test_a_compensation_end_event_undoes_the_tweet(machine: Make) -> None:
    path = DATA / "setA/code__InternetThings-Final.bpmn"
    if not path.exists():
        pytest.skip("no public models beside the checkout")
    run = machine("", process=read_definitions(path.read_bytes()).processes[0])
    run.start({"action": "tweet"})
    run.complete("Task_08qm3po")
    run.complete("Task_0ohzlzp", {"responseGood": False})
    assert run.open == ["Task_01t6qxo"]
    run.complete("Task_01t6qxo")
    assert run.status == "COMPLETED"
