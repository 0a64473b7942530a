"""A history as bpm-engine has it: its names for what it knows too, sequences from 0, and the token of every event."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stellwerk.core import facts as f
from stellwerk.core.events import EventCategory, HistoryEvent
from stellwerk.ids import process_key_of
from stellwerk.json_values import JsonValue
from stellwerk.server.bpm_engine.text_values import text_of
from stellwerk.server.bpm_engine.views import instant_text

__all__ = ["EVENT_NAMES", "EventReading"]

EVENT_NAMES: Mapping[type[f.Fact], str] = {
    f.InstanceStarted: "ProcessStarted",
    f.InstanceCompleted: "ProcessCompleted",
    f.TokenEntered: "TokenArrived",
    f.TokenEnded: "TokenCompleted",
    f.TimerArmed: "TimerScheduled",
    f.CompensationStarted: "SagaStarted",
    f.CompensationEnded: "SagaCompleted",
    f.TaskCompleted: "ExternalTaskCompleted",
    f.TaskFailed: "ExternalTaskFailed",
}
"""Other events keep their names."""

_CATEGORIES = {EventCategory.INSTANCE: "instance", EventCategory.TASK: "external"}
_OWNED = ("activity_id", "task_id", "user_task_id", "timer_id", "subscription_id", "incident_id", "compensation_id")
"""Fields with the id of something that belongs to a token, as long as it is there."""


class EventReading:
    """Of one history, from its beginning: which token an event is about may stand in an earlier one."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._owners: dict[str, str] = {}
        """Tokens by what belongs to them."""
        self._nodes: dict[str, str] = {}
        """Where each token is."""

    def view(self, event: HistoryEvent) -> tuple[str | None, dict[str, object]]:
        """The token that it is about, if any, and the event. Each event of the history once, in order."""
        fields: dict[str, JsonValue] = msgspec.to_builtins(event.fact)
        token_id = self._token_of(fields)
        if isinstance(event.fact, f.TokenEntered):
            self._nodes[event.fact.token_id] = event.fact.node_id
        sequence = event.sequence - 1
        return token_id, {
            "sequence": sequence,
            "id": f"{self._instance_id}:{sequence}",
            "event_type": EVENT_NAMES.get(type(event.fact), event.event_type),
            "category": _CATEGORIES.get(event.category, "token"),
            "occurred_at": instant_text(event.at_ms),
            "payload": {**fields, **self._common(token_id, fields), **_known_there(event.fact, self._instance_id)},
        }

    def _token_of(self, fields: Mapping[str, JsonValue]) -> str | None:
        owned = [value for name in _OWNED if isinstance(value := fields.get(name), str)]
        named = fields.get("token_id")
        known = (self._owners[one] for one in owned if one in self._owners)
        token_id = named if isinstance(named, str) else next(known, None)
        if token_id is not None:
            for one in owned:
                self._owners.setdefault(one, token_id)
        return token_id

    def _common(self, token_id: str | None, fields: Mapping[str, JsonValue]) -> dict[str, object]:
        common: dict[str, object] = {"instance_id": self._instance_id}
        if token_id is not None:
            common["token_id"] = token_id
            if "node_id" not in fields and token_id in self._nodes:
                common["node_id"] = self._nodes[token_id]
        return common


def _known_there(fact: f.Fact, instance_id: str) -> dict[str, object]:
    """Fields that have another name or form there."""
    match fact:
        case f.InstanceStarted():
            texts = {name: text_of(value) for name, value in fact.variables.items()}
            process_key = process_key_of(fact.definition_id)
            return {"process_id": process_key, "initial_variables": texts}
        case f.TimerArmed():
            return {"fire_at": fact.due_at_ms // 1000}
        case f.TaskCompleted():
            return {"process_instance_id": instance_id}
        case f.TaskFailed():
            return {"process_instance_id": instance_id, "error_message": fact.message}
        case _:
            return {}
