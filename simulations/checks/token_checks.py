"""Tokens against the model, without the engine's own folding: each is in one place and moves as the arrows say (C1).

A parallel gateway takes one token of each incoming flow and gives one to each outgoing flow.
"""

from __future__ import annotations

from collections import Counter

import attrs

from simulations.checks.definitions import Models
from simulations.checks.reports import Journal, Reports
from stellwerk.core import facts as f
from stellwerk.core.instance import InstanceState
from stellwerk.model.process import Event, EventPosition, FlowNode, Gateway, GatewayKind, LinkDefinition, Process

__all__ = ["TokenChecks"]


@attrs.frozen
class _Place:
    node_id: str
    scope_id: str
    via: str | None


@attrs.define
class _Pass:
    """A parallel gateway at work in one step and scope."""

    taken: list[str] = attrs.field(factory=list)
    """Incoming flows of the tokens that ended at it."""
    passed: list[str] = attrs.field(factory=list)
    """Incoming flows of the tokens that went on from it."""
    given: list[str] = attrs.field(factory=list)
    """Outgoing flows."""


_ONE_WAY = (GatewayKind.EXCLUSIVE, GatewayKind.EVENT_BASED)


class TokenChecks:
    def __init__(self, reports: Reports, journal: Journal, models: Models) -> None:
        self._reports = reports
        self._journal = journal
        self._models = models
        self._places: dict[tuple[str, str], _Place] = {}
        """(instance, token) → where it is."""
        self._passes: dict[tuple[str, str, str], _Pass] = {}
        """(instance, gateway, scope), of this transaction."""
        self._cancelled: set[str] = set()
        """Instances in which something was cancelled in this transaction: tokens may end anywhere then."""

    def begin(self) -> None:
        self._passes.clear()
        self._cancelled.clear()

    def check(self, state: InstanceState, fact: f.Fact) -> None:
        match fact:
            case f.TokenEntered():
                self._entered(state, fact)
            case f.TokenEnded():
                self._ended(state, fact)
            case f.ScopeClosed():
                self._closed(state, fact)
            case f.InstanceCancelled() | f.InstanceFailed() | f.ScopeFailing() | f.ActivityCancelled():
                self._cancelled.add(state.instance_id)
            case f.InstanceCompleted(terminated=True):
                self._cancelled.add(state.instance_id)
                self._reports.sometimes("process: ended by a terminate event")
            case f.ErrorRaised():
                is_caught = fact.caught_by is not None
                self._reports.sometimes("error: caught by a boundary event" if is_caught else "error: caught by nobody")
            case _:
                pass

    def _fail(self, state: InstanceState, what: str) -> None:
        self._reports.always("C1", False, f"instance {state.instance_id}: {what}")

    # --- moving ----------------------------------------------------------------------------------------------------

    def _entered(self, state: InstanceState, fact: f.TokenEntered) -> None:
        key = (state.instance_id, fact.token_id)
        source = self._places.get(key) or self._places.get((state.instance_id, fact.from_token or ""))
        is_move = key in self._places
        process = self._models.process(state.definition_id)
        if process is not None:
            self._check_arrow(state, process, fact, source, is_move)
        self._journal.put(self._places, key, _Place(fact.node_id, fact.scope_id, fact.via))

    def _check_arrow(
        self, state: InstanceState, process: Process, fact: f.TokenEntered, source: _Place | None, is_move: bool
    ) -> None:
        node = process.nodes.get(fact.node_id)
        if node is None:
            self._fail(state, f"a token is at {fact.node_id}, which the model does not have")
        elif isinstance(node, Event) and node.where is EventPosition.BOUNDARY and is_move is not node.interrupting:
            what = "takes the token of its activity" if is_move else "leaves its activity's token where it is"
            self._fail(state, f"boundary event {node.id} {what}")
        elif fact.via is not None:
            self._check_flow(state, process, fact, source, is_move)
        elif is_move and source is not None and not _may_jump(process, source.node_id, fact.node_id):
            self._fail(state, f"a token jumps from {source.node_id} to {fact.node_id}, where no arrow leads")

    def _check_flow(
        self, state: InstanceState, process: Process, fact: f.TokenEntered, source: _Place | None, is_move: bool
    ) -> None:
        flow = process.flows.get(fact.via or "")
        if flow is None or flow.target != fact.node_id:
            self._fail(state, f"a token is at {fact.node_id} via {fact.via}, which does not lead there")
            return
        if source is None:
            self._fail(state, f"a new token takes {flow.id} from nowhere")
            return
        if flow.source != source.node_id:
            self._fail(state, f"a token takes {flow.id} out of {flow.source}, but it was at {source.node_id}")
        gateway = process.nodes[flow.source]
        if isinstance(gateway, Gateway) and gateway.kind in _ONE_WAY and not is_move:
            self._fail(state, f"{gateway.id} gave a second token")
        if _is_parallel(gateway):
            self._gave(state, gateway, source, flow.id, is_move)

    def _gave(self, state: InstanceState, gateway: FlowNode, source: _Place, flow_id: str, is_move: bool) -> None:
        found = self._passes.setdefault((state.instance_id, gateway.id, source.scope_id), _Pass())
        found.given.append(flow_id)
        if is_move:
            found.passed.append(source.via or "")

    def _ended(self, state: InstanceState, fact: f.TokenEnded) -> None:
        key = (state.instance_id, fact.token_id)
        place = self._places.get(key)
        if place is None:
            self._fail(state, f"token {fact.token_id} ends, which is nowhere")
            return
        self._journal.remove(self._places, key)
        gateway = self._models.node(state.definition_id, place.node_id)
        if gateway is not None and _is_parallel(gateway):
            found = self._passes.setdefault((state.instance_id, gateway.id, place.scope_id), _Pass())
            found.taken.append(place.via or "")

    def _closed(self, state: InstanceState, fact: f.ScopeClosed) -> None:
        left = [token.node_id for token in state.tokens.values() if token.scope_id == fact.scope_id]
        if left:
            self._fail(state, f"scope {fact.scope_id} closes over tokens at {left}")

    # --- parallel gateways -----------------------------------------------------------------------------------------

    def finish(self, states: dict[str, InstanceState]) -> None:
        for (instance_id, gateway_id, _), found in self._passes.items():
            state = states.get(instance_id)
            gateway = None if state is None else self._models.node(state.definition_id, gateway_id)
            if state is not None and gateway is not None:
                self._check_pass(state, gateway, found)

    def _check_pass(self, state: InstanceState, gateway: FlowNode, found: _Pass) -> None:
        passes = len(found.passed)
        given = Counter(found.given)
        if any(given[flow_id] != passes for flow_id in gateway.outgoing):
            self._fail(state, f"{gateway.id} was passed {passes} times and gave {dict(sorted(given.items()))}")
        if len(gateway.incoming) > 1 and state.instance_id not in self._cancelled and gateway.outgoing:
            taken = Counter(found.taken) + Counter(found.passed)
            if any(taken[flow_id] != passes for flow_id in gateway.incoming):
                self._fail(state, f"{gateway.id} was passed {passes} times and took {dict(sorted(taken.items()))}")
            self._reports.sometimes("gateway: parallel branches joined", passes > 0)
        self._reports.sometimes("gateway: token split", passes > 0 and len(gateway.outgoing) > 1)


def _is_parallel(node: FlowNode) -> bool:
    return isinstance(node, Gateway) and node.kind is GatewayKind.PARALLEL


def _may_jump(process: Process, source_id: str, target_id: str) -> bool:
    """Boundary events, links, and the events behind an event-based gateway are reached without a flow being named."""
    source, target = process.nodes.get(source_id), process.nodes[target_id]
    if isinstance(target, Event) and target.where is EventPosition.BOUNDARY:
        return _is_around(process, target.attached_to, source_id)
    if isinstance(target, Event) and isinstance(target.definition, LinkDefinition):
        return True
    if isinstance(source, Gateway) and source.kind is GatewayKind.EVENT_BASED:
        return any(process.flows[flow_id].target == target_id for flow_id in source.outgoing)
    return False


def _is_around(process: Process, host_id: str | None, node_id: str) -> bool:
    """The event's activity is the node itself, or contains it."""
    inner: str | None = node_id
    while inner is not None:
        if inner == host_id:
            return True
        inner = process.nodes[inner].parent
    return False
