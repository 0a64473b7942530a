"""What waits belongs to somebody: a timer or subscription without an owner would come back as a ghost (C1)."""

from __future__ import annotations

from collections.abc import Iterator

from simulations.checks.definitions import Models
from stellwerk.core.instance import InstanceState, Subscription, Timer
from stellwerk.model.process import Gateway, GatewayKind

__all__ = ["ownerless"]


def ownerless(state: InstanceState, models: Models) -> Iterator[str]:
    """What is wrong with the owners, if anything."""
    waits: list[Timer | Subscription] = [*state.timers.values(), *state.subscriptions.values()]
    for wait in waits:
        if wait.activity_id is not None:
            if wait.activity_id not in state.activities:
                yield f"{wait.node_id} waits at an activity that is over"
        elif not _waits(state, models, wait.token_id or "", wait.node_id):
            yield f"{wait.node_id} waits for a token that is not there (any more)"
    for incident in state.incidents.values():
        if incident.token_id not in state.tokens:
            yield f"an incident at {incident.node_id} belongs to no token"
    for activity in state.activities.values():
        token = state.tokens.get(activity.token_id)
        if token is None or token.activity_id != activity.id:
            yield f"activity {activity.id} at {activity.node_id} is executed by no token"


def _waits(state: InstanceState, models: Models, token_id: str, node_id: str) -> bool:
    """At the event, or before it at an event-based gateway."""
    token = state.tokens.get(token_id)
    if token is None or token.leaving:
        return False
    if token.node_id == node_id:
        return True
    node = models.node(state.definition_id, token.node_id)
    return node is None or (isinstance(node, Gateway) and node.kind is GatewayKind.EVENT_BASED)
