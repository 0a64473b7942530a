"""A process instance to play with: each step is checked against everything that must always hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from stellwerk.core import commands as c
from stellwerk.core.changes import RowChanges
from stellwerk.core.decide import Context, Decision, decide
from stellwerk.core.effects import row_changes
from stellwerk.core.evolve import fold
from stellwerk.core.facts import Fact
from stellwerk.core.history import decode_facts, decode_state, encode_facts, encode_state
from stellwerk.core.instance import InstanceState, TokenStatus
from stellwerk.ids import FreshIds
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy, Process, Severity
from stellwerk.model.reader import read_definitions

HEAD = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="test"
  xmlns:camunda="http://camunda.org/schema/1.0/bpmn" xmlns:zeebe="http://camunda.org/schema/zeebe/1.0"
  xmlns:stellwerk="https://stellwerk.dev/bpmn" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">"""


ELEMENTS = {
    "start": "startEvent",
    "end": "endEvent",
    "throw": "intermediateThrowEvent",
    "catch": "intermediateCatchEvent",
    "task": "serviceTask",
    "user": "userTask",
    "pass": "task",
    "receive": "receiveTask",
    "xor": "exclusiveGateway",
    "and": "parallelGateway",
    "first": "eventBasedGateway",
    "sub": "subProcess",
}


class Drawing:
    """BPMN XML from a few words, one line for each element; what is indented lies in the subprocess above it.

    ``a task TOPIC -> b, c[${condition}], d[default]`` · ``e error@a CODE -> b`` (a boundary event; with ``~`` in place
    of ``@`` it does not interrupt) · ``t timer@a PT5M`` · ``m message@a name`` · ``undo handler TOPIC of a`` ·
    ``x end error CODE`` · ``x end terminate`` · ``x throw compensate a``.
    """

    def __init__(self, text: str) -> None:
        self.roots: list[str] = []
        self.lines = [line for line in text.splitlines() if line.strip()]
        self.at = 0
        self.body = self.level(self.indent(0))

    def indent(self, at: int) -> int:
        return len(self.lines[at]) - len(self.lines[at].lstrip())

    def level(self, indent: int) -> str:
        parts: list[str] = []
        while self.at < len(self.lines) and self.indent(self.at) == indent:
            line = self.lines[self.at]
            self.at += 1
            inside = ""
            if self.at < len(self.lines) and self.indent(self.at) > indent:
                inside = self.level(self.indent(self.at))
            parts.append(self.element(line.strip(), inside))
        return "".join(parts)

    def element(self, line: str, inside: str) -> str:
        head, _, targets = line.partition("->")
        name, kind, *words = head.split()
        flows, default = self.flows(name, targets)
        attributes = f' default="{default}"' if default else ""
        if kind == "handler":
            return self.handler(name, words)
        if "@" in kind or "~" in kind:
            kind, _, host = kind.replace("~", "@~").partition("@")
            attributes += f' attachedToRef="{host.lstrip("~")}" cancelActivity="{str("~" not in host).lower()}"'
            return f'<boundaryEvent id="{name}"{attributes}>{self.event(kind, words)}</boundaryEvent>{flows}'
        if kind == "task":
            attributes += f' camunda:type="external" camunda:topic="{words[0]}"'
        elif kind == "receive":
            attributes += f' messageRef="{self.root("message", words[0])}"'
        elif words:
            inside += self.event(words[0], words[1:])
        return f'<{ELEMENTS[kind]} id="{name}" name="{name}"{attributes}>{inside}</{ELEMENTS[kind]}>{flows}'

    def flows(self, name: str, targets: str) -> tuple[str, str | None]:
        parts, default = [], None
        for number, target in enumerate(part.strip() for part in targets.split(",") if part.strip()):
            node, _, condition = target.rstrip("]").partition("[")
            flow = f"{name}.{node}.{number}"
            inner = ""
            if condition == "default":
                default = flow
            elif condition:
                escaped = condition.replace("&", "&amp;").replace("<", "&lt;")
                inner = f'<conditionExpression xsi:type="tFormalExpression">{escaped}</conditionExpression>'
            parts.append(f'<sequenceFlow id="{flow}" sourceRef="{name}" targetRef="{node}">{inner}</sequenceFlow>')
        return "".join(parts), default

    def handler(self, name: str, words: list[str]) -> str:
        topic, _, host = words
        return (
            f'<serviceTask id="{name}" isForCompensation="true" camunda:type="external" camunda:topic="{topic}"/>'
            f'<boundaryEvent id="{name}.event" attachedToRef="{host}"><compensateEventDefinition/></boundaryEvent>'
            f'<association id="{name}.way" associationDirection="One" sourceRef="{name}.event" targetRef="{name}"/>'
        )

    def event(self, kind: str, words: list[str]) -> str:
        match kind:
            case "timer":
                of = "timeDuration" if words[0].startswith("P") else "timeDate"
                of = "timeCycle" if words[0].startswith("R") else of
                return f"<timerEventDefinition><{of}>{words[0]}</{of}></timerEventDefinition>"
            case "message":
                return f'<messageEventDefinition messageRef="{self.root("message", words[0])}"/>'
            case "error":
                extra = ' camunda:errorCodeVariable="code" camunda:errorMessageVariable="message"'
                if not words:
                    return f"<errorEventDefinition{extra}/>"
                return f'<errorEventDefinition errorRef="{self.root("error", words[0])}"{extra}/>'
            case "link":
                return f'<linkEventDefinition name="{words[0]}"/>'
            case "compensate":
                ref = f' activityRef="{words[0]}"' if words else ""
                return f"<compensateEventDefinition{ref}/>"
            case _:
                return f"<{kind}EventDefinition/>"

    def root(self, kind: str, word: str) -> str:
        name = f"{kind}.{word}".replace(":", ".")
        text = f'<{kind} id="{name}" name="{word}" ' + (f'errorCode="{word}"/>' if kind == "error" else "/>")
        if text not in self.roots:
            self.roots.append(text)
        return name

    @property
    def xml(self) -> str:
        process = f'<process id="process" isExecutable="true" camunda:versionTag="1">{self.body}</process>'
        return f"{HEAD}{process}{''.join(self.roots)}</definitions>"


class Rows:
    """What the tables would hold, from row changes alone."""

    def __init__(self) -> None:
        self.tasks: dict[str, str] = {}
        self.timers: dict[str, int] = {}
        self.subscriptions: dict[str, str] = {}
        self.user_tasks: dict[str, str] = {}
        self.incidents: dict[str, str] = {}
        self.draining: dict[str, None] = {}
        self.status = ""

    def apply(self, changes: RowChanges, decision: Decision) -> None:
        for ending in decision.endings:
            assert ending.task_id in self.tasks
            self.tasks[ending.task_id] = ending.final_state
            self.draining.pop(ending.task_id, None)
        for task in changes.new_tasks:
            assert task.task_id not in self.tasks
            self.tasks[task.task_id] = "READY"
        for task_id in changes.cancelled_tasks:
            assert self.tasks[task_id] in ("READY", "FAILED", "EXPIRED")
            self.tasks[task_id] = "CANCELLED"
            self.draining.pop(task_id, None)
        for task_id in changes.drained_tasks:
            assert self.tasks[task_id] == "READY"
            self.draining[task_id] = None
        for requeue in changes.requeued_tasks:
            assert self.tasks[requeue.task_id] in ("FAILED", "EXPIRED")
            assert requeue.retries >= 1
            self.tasks[requeue.task_id] = "READY"
        self._apply_waits(changes)
        self.status = changes.status or self.status

    def _apply_waits(self, changes: RowChanges) -> None:
        for timer_id in changes.timers_disarmed:
            del self.timers[timer_id]
        self.timers.update({row.timer_id: row.due_at_ms for row in changes.timers_armed})
        for subscription_id in changes.subscriptions_closed:
            del self.subscriptions[subscription_id]
        self.subscriptions.update({row.subscription_id: row.key for row in changes.subscriptions_opened})
        for user_task_id in changes.user_tasks_closed:
            del self.user_tasks[user_task_id]
        self.user_tasks.update({row.user_task_id: row.element_id for row in changes.user_tasks_opened})
        for incident_id in changes.incidents_resolved:
            del self.incidents[incident_id]
        self.incidents.update({row.incident_id: row.kind for row in changes.incidents_opened})

    def check(self, state: InstanceState) -> None:
        open_tasks = {task_id for task_id, status in self.tasks.items() if status == "READY"}
        assert open_tasks == {task_id for task_id, task in state.tasks.items() if not task.failed}
        assert set(self.draining) == {task_id for task_id, task in state.tasks.items() if task.draining}
        assert set(self.timers) == set(state.timers)
        assert set(self.subscriptions) == set(state.subscriptions)
        assert set(self.user_tasks) == set(state.user_tasks)
        assert set(self.incidents) == set(state.incidents)
        assert self.status == state.status.value


class Machine:
    def __init__(
        self,
        xml: str,
        policy: FailurePolicy = FailurePolicy.INCIDENT,
        limits: Limits | None = None,
        process: Process | None = None,
    ) -> None:
        if process is None:
            text = xml if xml.lstrip().startswith("<") else Drawing(xml).xml
            if text.lstrip().startswith("<process"):
                text = f"{HEAD}{text}</definitions>"
            result = read_definitions(text.encode())
            assert result.processes, [str(finding) for finding in result.findings]
            assert not [finding for finding in result.findings if finding.severity is Severity.ERROR], result.findings
            process = result.processes[0]
        self.process = process
        self.policy = policy
        self.limits = limits or Limits()
        self.state: InstanceState | None = None
        self.steps: list[bytes] = []
        self.facts: list[Fact] = []
        self.rows = Rows()
        self.now_ms = 1_000_000
        self.ids = 0
        self.node_of: dict[str, str] = {}

    # --- commands ---

    def do(self, command: c.Command) -> Decision:
        self.ids += 1_000_000
        context = Context(
            definition=self.process,
            definition_id="p:1",
            now_ms=self.now_ms,
            ids=FreshIds(self.now_ms, self.ids),
            failure_policy=self.policy,
            limits=self.limits,
        )
        before = None if self.state is None else encode_state(self.state)
        try:
            decision = decide(self.state, command, context)
        finally:
            assert before == (None if self.state is None else encode_state(self.state)), "decide changed its input"
        text = encode_facts(decision.facts)
        assert decode_facts(text) == decision.facts
        assert fold(self.state, decode_facts(text)) == decision.state, "folding the step differs"
        self.steps.append(text)
        self.facts += decision.facts
        whole: InstanceState | None = None
        for step in self.steps:
            whole = fold(whole, decode_facts(step))
        assert whole == decision.state, "folding the whole history differs"
        assert decode_state(encode_state(decision.state)) == decision.state, "the snapshot differs"
        self.rows.apply(row_changes(decision.facts, decision.state), decision)
        self.rows.check(decision.state)
        self.state = decision.state
        self.check()
        return decision

    def start(
        self, variables: JsonObject | None = None, start_event_id: str | None = None, business_key: str | None = None
    ) -> Decision:
        return self.do(c.StartInstance("i1", "p:1", variables or {}, business_key, start_event_id))

    def complete(self, element_id: str, variables: JsonValue = None, index: int = 0) -> Decision:
        return self.do(c.CompleteTask(self.task(element_id, index), 1, variables, "digest", "w"))

    def fail(self, element_id: str, kind: c.FailureKind = c.FailureKind.RETRIES_EXHAUSTED) -> Decision:
        return self.do(c.EndTaskInFailure(self.task(element_id), 1, kind, "it broke"))

    def bpmn_error(self, element_id: str, code: str, variables: JsonObject | None = None) -> Decision:
        task_id = self.task(element_id)
        return self.do(c.ThrowBpmnError(task_id, 1, code, "it is wrong", None, variables or {}, "digest"))

    def finish(self, element_id: str, variables: JsonObject | None = None) -> Decision:
        user_task_id = next(
            user_task_id
            for user_task_id, activity_id in self.live.user_tasks.items()
            if self.live.activities[activity_id].node_id == element_id
        )
        return self.do(c.CompleteUserTask(user_task_id, variables or {}))

    def fire(self, element_id: str) -> Decision:
        timer = next(timer for timer in self.live.timers.values() if timer.node_id == element_id)
        self.now_ms = max(self.now_ms, timer.due_at_ms)
        return self.do(c.FireTimer(timer.id))

    def message(self, element_id: str, variables: JsonObject | None = None) -> Decision:
        subscription = next(item for item in self.live.subscriptions.values() if item.node_id == element_id)
        return self.do(c.CorrelateMessage(subscription.id, "m1", variables or {}))

    def resolve(self, retries: int = 1) -> Decision:
        return self.do(c.ResolveIncident(next(iter(self.live.incidents)), retries))

    # --- looking ---

    @property
    def live(self) -> InstanceState:
        assert self.state is not None
        return self.state

    @property
    def status(self) -> str:
        return self.live.status.value

    @property
    def variables(self) -> JsonObject:
        return self.live.variables

    def task(self, element_id: str, index: int = 0) -> str:
        found = [
            task_id
            for task_id, task in self.live.tasks.items()
            if self.live.activities[task.activity_id].node_id == element_id and not task.failed
        ]
        assert len(found) > index, f"{element_id} is not among {self.open}"
        return found[index]

    @property
    def open(self) -> list[str]:
        """Element ids of the open external tasks, sorted."""
        return sorted(
            self.live.activities[task.activity_id].node_id for task in self.live.tasks.values() if not task.failed
        )

    @property
    def user_tasks(self) -> list[str]:
        return sorted(self.live.activities[activity_id].node_id for activity_id in self.live.user_tasks.values())

    @property
    def incidents(self) -> list[tuple[str, str]]:
        return sorted((incident.kind, incident.node_id) for incident in self.live.incidents.values())

    def entered(self, element_id: str) -> int:
        return sum(1 for fact in self.facts if getattr(fact, "node_id", None) == element_id and _enters(fact))

    def names(self) -> list[str]:
        return [type(fact).__name__ for fact in self.facts]

    # --- what must always hold ---

    def check(self) -> None:
        state = self.live
        counts = Counter(token.scope_id for token in state.tokens.values())
        assert counts == {scope_id: count for scope_id, count in state.token_counts.items() if count}
        assert state.node_counts == Counter(token.node_id for token in state.tokens.values())
        for activity in state.activities.values():
            assert state.tokens[activity.token_id].activity_id == activity.id
        for token in state.tokens.values():
            assert token.activity_id is None or state.activities[token.activity_id].token_id == token.id
            working = token.activity_id in state.tasks
            assert (token.external is not None) == working, "external is the mode of a token with a task"
        for timer in state.timers.values():
            assert (timer.token_id in state.tokens) or (timer.activity_id in state.activities)
        for subscription in state.subscriptions.values():
            assert (subscription.token_id in state.tokens) or (subscription.activity_id in state.activities)
        for incident in state.incidents.values():
            assert incident.token_id is not None
            assert state.tokens[incident.token_id].status is TokenStatus.FAILED
        if state.ended:
            rest = (state.tokens, state.activities, state.tasks, state.user_tasks, state.timers, state.subscriptions)
            assert not any(rest), "an ended instance has nothing left"
            assert not state.incidents
            assert not state.compensations
            assert list(state.scopes) == [state.root_scope_id]
        else:
            sources = (state.tasks, state.user_tasks, state.timers, state.subscriptions, state.incidents)
            assert any(sources), "nothing would ever wake this instance"


def _enters(fact: Fact) -> bool:
    return type(fact).__name__ == "TokenEntered"


@pytest.fixture
def machine() -> Callable[..., Machine]:
    """``machine(model, policy)``: a machine for a `Drawing`'s text, or for the first process of an XML text."""
    return Machine
