"""What the core can run now. All else is refused at deploy, by element id and line, rather than dropped or hung upon.

The reader reads the whole vocabulary of BPMN. When the core learns an element, its refusal here goes.
"""

from __future__ import annotations

from collections.abc import Iterator

from stellwerk.model.event_checks import ADOPT, INSIDE, LATER, check_event_gateway, check_links, problem_of_definition
from stellwerk.model.findings import capped, sorted_by_position
from stellwerk.model.java import java_implementation
from stellwerk.model.node_findings import element_name, node_error, node_warning
from stellwerk.model.process import (
    Activity,
    CallActivity,
    CompensationDefinition,
    Event,
    EventPosition,
    Finding,
    FlowNode,
    Gateway,
    GatewayKind,
    LinkDefinition,
    Process,
    Severity,
    SubProcess,
    SubProcessKind,
    Task,
    TaskKind,
)

__all__ = ["check_executable"]

_TARGET_PARTS_MAX = 50
"""Of a dotted path: half of how deep a value may be, so that there is room for what is put there."""

_GATEWAYS = (GatewayKind.EXCLUSIVE, GatewayKind.PARALLEL, GatewayKind.EVENT_BASED)
_SUBPROCESSES = (SubProcessKind.EMBEDDED,)
_FOR_WORKERS = (TaskKind.SERVICE, TaskKind.SEND, TaskKind.BUSINESS_RULE, TaskKind.SCRIPT)


def check_executable(process: Process) -> tuple[Finding, ...]:
    """What keeps the process from being run, and warnings about what its author may have meant otherwise."""
    return capped(sorted_by_position(list(_Checks(process).findings())))


class _Checks:
    def __init__(self, process: Process) -> None:
        self._process = process
        activities = (node for node in process.nodes.values() if isinstance(node, Activity))
        self._handlers = {node.compensation_handler for node in activities}

    def findings(self) -> Iterator[Finding]:
        yield from self._check_scope(None)
        for node in self._process.nodes.values():
            yield from self._check_node(node)
        yield from check_links(self._process)

    def _check_node(self, node: FlowNode) -> Iterator[Finding]:
        match node:
            case Task():
                yield from self._check_task(node)
            case CallActivity():
                yield node_error(node, LATER)
            case SubProcess():
                yield from self._check_subprocess(node)
            case Gateway():
                yield from self._check_gateway(node)
            case Event():
                yield from self._check_event(node)
            case _:
                pass
        if isinstance(node, Activity):
            yield from self._check_activity(node)
        yield from _check_targets(node)
        yield from self._check_reached(node)

    # --- scopes ---

    def _starts(self, scope: str | None) -> list[Event]:
        children = (self._process.nodes[child] for child in self._process.scope_children(scope))
        return [node for node in children if isinstance(node, Event) and node.where is EventPosition.START]

    def _check_scope(self, scope: str | None) -> Iterator[Finding]:
        starts = self._starts(scope)
        none_starts = [start for start in starts if not start.definitions]
        if not starts:
            yield self._scope_error(scope, "no start event")
        for extra in none_starts[1:]:
            what = f'"{none_starts[0].id}" is a none start event here already'
            if scope is None:
                yield node_warning(extra, f"{what}: a start has to name one of them")
            else:
                yield node_error(extra, what)

    def _scope_error(self, scope: str | None, what: str) -> Finding:
        if scope is not None:
            return node_error(self._process.nodes[scope], what)
        process = self._process
        return Finding(Severity.ERROR, process.position, process.key, "process", what)

    def _check_subprocess(self, node: SubProcess) -> Iterator[Finding]:
        if node.kind not in _SUBPROCESSES:
            yield node_error(node, LATER)
            return
        yield from self._check_scope(node.id)
        for start in self._starts(node.id):
            if start.definitions:
                yield node_error(start, "the start event of an embedded subprocess has no event definition")

    # --- activities ---

    def _check_activity(self, node: Activity) -> Iterator[Finding]:
        if node.loop is not None:
            kind = "multiInstanceLoopCharacteristics" if node.loop.multi_instance else "standardLoopCharacteristics"
            yield Finding(Severity.ERROR, node.loop.position, node.id, kind, LATER)
        if node.is_for_compensation and (node.incoming or node.outgoing):
            yield node_error(node, "a compensation handler has no sequence flows")
        if node.is_for_compensation and node.id not in self._handlers:
            yield node_warning(node, "no compensation boundary event leads to this handler")

    def _check_task(self, node: Task) -> Iterator[Finding]:
        if node.kind is TaskKind.RECEIVE and node.message is None:
            yield node_error(node, "the receive task names no message: nothing could ever complete it")
        if node.kind not in _FOR_WORKERS or node.work is not None:
            return
        implementation = java_implementation(node.headers)
        if implementation is not None:
            kind, value = implementation
            yield node_error(node, f'{kind} "{value}" {INSIDE}')
        elif node.decision is not None:
            yield node_error(node, f'the decision "{node.decision}" {LATER}: {ADOPT}')
        elif node.script is not None:
            language = f" in {node.script.language}" if node.script.language else ""
            yield node_error(node, f"a script{language} {INSIDE}")
        else:
            yield node_error(node, "no topic says which workers do this")

    # --- gateways ---

    def _check_gateway(self, node: Gateway) -> Iterator[Finding]:
        if node.kind not in _GATEWAYS:
            yield node_error(node, LATER)
        elif node.kind is GatewayKind.EXCLUSIVE:
            yield from self._check_decision(node)
        else:
            yield from self._check_unconditional(node)
        if node.kind is GatewayKind.EVENT_BASED:
            yield from check_event_gateway(self._process, node)

    def _check_decision(self, node: Gateway) -> Iterator[Finding]:
        if len(node.outgoing) < 2:
            return
        for flow in (self._process.flows[flow_id] for flow_id in node.outgoing):
            if flow.condition is None and flow.id != node.default_flow:
                what = "leaves an exclusive gateway without a condition: it counts as always true"
                yield Finding(Severity.WARNING, flow.position, flow.id, "sequenceFlow", what)

    def _check_unconditional(self, node: Gateway) -> Iterator[Finding]:
        kind = "a parallel" if node.kind is GatewayKind.PARALLEL else "an event-based"
        for flow in (self._process.flows[flow_id] for flow_id in node.outgoing):
            if flow.condition is not None:
                what = f"the condition is not looked at behind {kind} gateway"
                yield Finding(Severity.WARNING, flow.position, flow.id, "sequenceFlow", what)

    # --- events ---

    def _check_event(self, node: Event) -> Iterator[Finding]:
        if len(node.definitions) > 1:
            yield node_error(node, f"a multiple event {LATER}")
        for definition in node.definitions:
            problem = problem_of_definition(node, definition)
            if problem is not None:
                yield node_error(node, problem)
        if node.incoming and node.where in (EventPosition.START, EventPosition.BOUNDARY):
            yield node_error(node, "no sequence flow can lead here")
        if node.outgoing and node.where is EventPosition.END:
            yield node_error(node, "no sequence flow can leave an end event")
        if (
            node.outgoing
            and isinstance(node.definition, CompensationDefinition)
            and node.where is EventPosition.BOUNDARY
        ):
            yield node_error(node, "an association leads from here to the handler, not a sequence flow")

    # --- reachability ---

    def _check_reached(self, node: FlowNode) -> Iterator[Finding]:
        if node.incoming or self._starts_otherwise(node):
            return
        yield node_warning(node, "no sequence flow leads here: it is never reached")

    def _starts_otherwise(self, node: FlowNode) -> bool:
        match node:
            case Event():
                is_link = any(isinstance(definition, LinkDefinition) for definition in node.definitions)
                return is_link or node.where in (EventPosition.START, EventPosition.BOUNDARY)
            case SubProcess(kind=SubProcessKind.EVENT):
                return True
            case Activity():
                return node.is_for_compensation
            case _:
                return False


def _check_targets(node: FlowNode) -> Iterator[Finding]:
    for mapped in (*node.inputs, *node.outputs):
        parts = mapped.target.count(".") + 1
        if parts > _TARGET_PARTS_MAX:
            what = f"a mapping's target has {parts} parts, at most {_TARGET_PARTS_MAX} are allowed"
            yield Finding(Severity.ERROR, mapped.position, node.id, element_name(node), what)
