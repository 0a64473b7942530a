"""The kinds of flow nodes by ProcessCube's names."""

from __future__ import annotations

from stellwerk.model.process import (
    CallActivity,
    ConditionalDefinition,
    ErrorDefinition,
    EscalationDefinition,
    Event,
    EventPosition,
    FlowNode,
    Gateway,
    GatewayKind,
    LinkDefinition,
    MessageDefinition,
    SignalDefinition,
    SubProcess,
    Task,
    TaskKind,
    TerminateDefinition,
    TimerDefinition,
)

__all__ = ["event_type_of", "flow_node_type_of"]

_TASKS = {
    TaskKind.SERVICE: "bpmn:ServiceTask",
    TaskKind.SEND: "bpmn:SendTask",
    TaskKind.BUSINESS_RULE: "bpmn:BusinessRuleTask",
    TaskKind.SCRIPT: "bpmn:ScriptTask",
    TaskKind.USER: "bpmn:UserTask",
    TaskKind.MANUAL: "bpmn:ManualTask",
    TaskKind.RECEIVE: "bpmn:ReceiveTask",
    TaskKind.UNDEFINED: "bpmn:Task",
}
_GATEWAYS = {
    GatewayKind.EXCLUSIVE: "bpmn:ExclusiveGateway",
    GatewayKind.PARALLEL: "bpmn:ParallelGateway",
    GatewayKind.INCLUSIVE: "bpmn:InclusiveGateway",
    GatewayKind.EVENT_BASED: "bpmn:EventBasedGateway",
    GatewayKind.COMPLEX: "bpmn:ComplexGateway",
}
_EVENTS = {
    EventPosition.START: "bpmn:StartEvent",
    EventPosition.CATCH: "bpmn:IntermediateCatchEvent",
    EventPosition.THROW: "bpmn:IntermediateThrowEvent",
    EventPosition.BOUNDARY: "bpmn:BoundaryEvent",
    EventPosition.END: "bpmn:EndEvent",
}
_EVENT_TYPES: dict[type, str] = {
    MessageDefinition: "messageEvent",
    TimerDefinition: "timerEvent",
    ErrorDefinition: "errorEvent",
    SignalDefinition: "signalEvent",
    EscalationDefinition: "escalationEvent",
    ConditionalDefinition: "conditionalEvent",
    LinkDefinition: "linkEvent",
    TerminateDefinition: "terminateEvent",
}


def flow_node_type_of(node: FlowNode) -> str:
    """Like ``bpmn:ServiceTask``."""
    match node:
        case Task():
            return _TASKS[node.kind]
        case Gateway():
            return _GATEWAYS[node.kind]
        case Event():
            return _EVENTS[node.where]
        case SubProcess():
            return "bpmn:SubProcess"
        case CallActivity():
            return "bpmn:CallActivity"
        case _:
            return "bpmn:FlowNode"


def event_type_of(node: FlowNode) -> str | None:
    """Like ``messageEvent``; None for what has no event definition (of ProcessCube's vocabulary)."""
    if not isinstance(node, Event) or node.definition is None:
        return None
    return _EVENT_TYPES.get(type(node.definition))
