"""The second pass over a process: flows, default flows, boundary events and compensation handlers find each other.

The ``incoming`` and ``outgoing`` children of nodes are not looked at: 41 % of public files have none; flows say all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import attrs

from stellwerk.model.dialects import read_extensions
from stellwerk.model.expressions import Expression
from stellwerk.model.extensions import Reading
from stellwerk.model.identities import Identities
from stellwerk.model.process import (
    Activity,
    CompensationDefinition,
    Event,
    EventDefinition,
    EventPosition,
    FlowNode,
    SequenceFlow,
)
from stellwerk.model.vocabulary import bpmn_child, text_of, vendor_attribute
from stellwerk.model.xml import Element

__all__ = ["Parts", "Wired", "wire"]


@attrs.define
class Parts:
    """What the first pass found in a process, in document order."""

    nodes: dict[str, FlowNode] = attrs.field(factory=dict)
    elements: dict[str, Element] = attrs.field(factory=dict)
    """The element of each node."""
    flows: list[tuple[Element, str | None]] = attrs.field(factory=list)
    """The elements of sequence flows, each with the id of the subprocess it stands in."""
    associations: list[Element] = attrs.field(factory=list)


@attrs.frozen
class Wired:
    nodes: dict[str, FlowNode]
    flows: dict[str, SequenceFlow]


def wire(parts: Parts, identities: Identities, reading: Reading) -> Wired:
    """Resolve all references within one process. What leads nowhere is a finding, and is left out."""
    return _Wiring(parts, identities, reading).wired()


class _Wiring:
    def __init__(self, parts: Parts, identities: Identities, reading: Reading) -> None:
        self._nodes = dict(parts.nodes)
        self._parts = parts
        self._identities = identities
        self._reading = reading
        self._findings = reading.findings
        self._incoming: dict[str, list[str]] = defaultdict(list)
        self._outgoing: dict[str, list[str]] = defaultdict(list)

    def wired(self) -> Wired:
        flows = self._read_flows()
        for node_id in self._nodes:
            self._connect(node_id)
        self._attach_boundary_events()
        self._resolve_compensated_activities()
        self._link_compensation_handlers()
        return Wired(self._nodes, flows)

    def _node_id(self, reference: str | None) -> str | None:
        if not reference:
            return None
        node_id = self._reading.roots.resolved(reference, self._nodes)
        return node_id if node_id in self._nodes else None

    # --- flows ---

    def _read_flows(self) -> dict[str, SequenceFlow]:
        flows: dict[str, SequenceFlow] = {}
        for element, parent in self._parts.flows:
            flow = self._read_flow(element, parent)
            if flow is not None:
                flows[flow.id] = flow
                self._outgoing[flow.source].append(flow.id)
                self._incoming[flow.target].append(flow.id)
        return flows

    def _read_flow(self, element: Element, parent: str | None) -> SequenceFlow | None:
        source, target = self._end_of_flow(element, "sourceRef"), self._end_of_flow(element, "targetRef")
        condition = self._condition(element)
        read_extensions(element, self._reading)  # nothing of it is used, but what cannot be done is told
        if source is None or target is None:
            return None
        if self._nodes[source].parent != self._nodes[target].parent:
            self._findings.error(element, "a sequence flow cannot cross the border of a subprocess")
            return None
        if element.get("id"):
            flow_id = self._identities.claim(element)
        else:
            flow_id = self._identities.make_up(f"{source}->{target}", element)
        return SequenceFlow(flow_id, element.get("name") or None, source, target, condition, element.position)

    def _end_of_flow(self, element: Element, attribute: str) -> str | None:
        reference = element.get(attribute)
        node_id = self._node_id(reference)
        if node_id is None:
            what = f'{attribute} "{reference}" is no flow node here' if reference else f"{attribute} is missing"
            self._findings.error(element, what)
        return node_id

    def _condition(self, element: Element) -> Expression | None:
        condition = bpmn_child(element, "conditionExpression")
        if condition is None:
            return None
        text = text_of(condition)
        if text is None:
            if vendor_attribute(condition, "resource") is not None:
                self._findings.error(condition, "a condition in a script resource cannot be evaluated")
            return None
        return self._reading.texts.condition(condition, text)

    def _connect(self, node_id: str) -> None:
        node = self._nodes[node_id]
        outgoing = tuple(self._outgoing.get(node_id, ()))
        self._nodes[node_id] = attrs.evolve(
            node,
            incoming=tuple(self._incoming.get(node_id, ())),
            outgoing=outgoing,
            default_flow=self._default_flow(node, outgoing),
        )

    def _default_flow(self, node: FlowNode, outgoing: tuple[str, ...]) -> str | None:
        if node.default_flow is None:
            return None
        flow_id = self._reading.roots.resolved(node.default_flow, outgoing)
        if flow_id in outgoing:
            return flow_id
        element = self._parts.elements[node.id]
        self._findings.error(element, f'the default flow "{node.default_flow}" does not leave here')
        return None

    # --- boundary events and compensation ---

    def _boundary_events(self) -> Iterable[Event]:
        nodes = list(self._nodes.values())
        return (node for node in nodes if isinstance(node, Event) and node.where is EventPosition.BOUNDARY)

    def _attach_boundary_events(self) -> None:
        attached: dict[str, list[str]] = defaultdict(list)
        for event in self._boundary_events():
            host = self._host_of(event)
            self._nodes[event.id] = attrs.evolve(event, attached_to=host)
            if host is not None:
                attached[host].append(event.id)
        for host, event_ids in attached.items():
            activity = self._nodes[host]
            assert isinstance(activity, Activity), "only activities are hosts"
            self._nodes[host] = attrs.evolve(activity, boundary_events=tuple(event_ids))

    def _host_of(self, event: Event) -> str | None:
        if event.attached_to is None:
            return None
        element = self._parts.elements[event.id]
        host = self._node_id(event.attached_to)
        if host is None or not isinstance(self._nodes[host], Activity):
            self._findings.error(element, f'attachedToRef "{event.attached_to}" is no activity here')
            return None
        if self._nodes[host].parent != event.parent:
            self._findings.error(element, f'"{host}" stands in another subprocess')
            return None
        return host

    def _resolve_compensated_activities(self) -> None:
        for node in list(self._nodes.values()):
            if isinstance(node, Event) and any(isinstance(d, CompensationDefinition) for d in node.definitions):
                definitions = tuple(self._resolved_definition(node, definition) for definition in node.definitions)
                self._nodes[node.id] = attrs.evolve(node, definitions=definitions)

    def _resolved_definition(self, event: Event, definition: EventDefinition) -> EventDefinition:
        if not isinstance(definition, CompensationDefinition) or definition.activity_ref is None:
            return definition
        activity = self._node_id(definition.activity_ref)
        if activity is None or not isinstance(self._nodes[activity], Activity):
            element = self._parts.elements[event.id]
            self._findings.error(element, f'activityRef "{definition.activity_ref}" is no activity here')
        return attrs.evolve(definition, activity_ref=activity or definition.activity_ref)

    def _link_compensation_handlers(self) -> None:
        partners = self._association_partners(self._parts.associations)
        for event in self._boundary_events():
            if any(isinstance(definition, CompensationDefinition) for definition in event.definitions):
                outside = self._association_partners(self._reading.roots.associations_at(event.id))
                self._link_compensation_handler(event, [*outside.get(event.id, ()), *partners.get(event.id, ())])

    def _association_partners(self, associations: list[Element]) -> dict[str, list[str]]:
        """Which nodes each node is associated with; the direction does not matter."""
        partners: dict[str, list[str]] = defaultdict(list)
        for association in associations:
            source, target = self._node_id(association.get("sourceRef")), self._node_id(association.get("targetRef"))
            if source is not None and target is not None:
                partners[source].append(target)
                partners[target].append(source)
        return partners

    def _link_compensation_handler(self, event: Event, partners: list[str]) -> None:
        element = self._parts.elements[event.id]
        handlers = [partner for partner in dict.fromkeys(partners) if isinstance(self._nodes[partner], Activity)]
        if len(handlers) != 1:
            what = "no association leads to a compensation handler" if not handlers else "there are two handlers"
            self._findings.error(element, what)
            return
        handler = self._nodes[handlers[0]]
        assert isinstance(handler, Activity), "only activities are handlers"
        if handler.parent != event.parent:
            self._findings.error(element, f'the handler "{handler.id}" stands in another subprocess')
            return
        self._nodes[handler.id] = attrs.evolve(handler, is_for_compensation=True)
        if event.attached_to is not None:
            self._compensate(event.attached_to, handler.id, element)

    def _compensate(self, activity_id: str, handler_id: str, element: Element) -> None:
        activity = self._nodes[activity_id]
        assert isinstance(activity, Activity), "boundary events are attached to activities"
        if activity.compensation_handler is not None:
            self._findings.error(element, f'"{activity_id}" has another compensation handler')
            return
        self._nodes[activity_id] = attrs.evolve(activity, compensation_handler=handler_id)
