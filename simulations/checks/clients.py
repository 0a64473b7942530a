"""What clients of the HTTP API were told (D1, I1): one instance for one request, and it stays."""

from __future__ import annotations

from simulations.checks.reports import Reports
from simulations.checks.shadow import Shadow
from simulations.cluster.calls import ClientCall
from simulations.cluster.http_client import Answer
from stellwerk.json_values import JsonValue
from stellwerk.stores.tables import ENDED_STATUSES

__all__ = ["ClientChecks"]

_DONE = range(200, 300)


class ClientChecks:
    """A `ClientObserver`."""

    def __init__(self, reports: Reports, shadow: Shadow) -> None:
        self._reports = reports
        self._shadow = shadow
        self._instances: dict[str, str] = {}
        """Request id → the instance that it was answered with."""
        self._asked: dict[str, int] = {}

    def asked(self, call: ClientCall) -> None:
        self._asked[call.key] = self._asked.get(call.key, 0) + 1

    def unanswered(self, call: ClientCall, was_sent: bool) -> None:
        self._reports.sometimes("client: request without an answer", was_sent)

    def answered(self, call: ClientCall, answer: Answer) -> None:
        self._reports.sometimes("client: answered only when repeated", self._asked.get(call.key, 0) > 1)
        if answer.status not in _DONE or call.method != "POST" or not isinstance(call.body, dict | None):
            return
        body = call.body or {}
        if call.path.endswith("/process-instances") and isinstance(answer.json, dict):
            self._started(call, str(body.get("request_id")), str(answer.json.get("instance_id")))
        elif call.path.endswith("/messages") and isinstance(body.get("message_id"), str):
            self._published(call, body["message_id"])
        elif call.path.endswith("/cancel"):
            self._cancelled(call, call.path.split("/")[-2])

    def _check(self, invariant: str, holds: bool, call: ClientCall, what: str) -> None:
        if not holds:
            self._reports.always(invariant, False, f"{call.place} was told by {call.target} that {what}")

    def _started(self, call: ClientCall, request_id: str, instance_id: str) -> None:
        known = self._instances.setdefault(request_id, instance_id)
        self._check("I1", known == instance_id, call, f"{request_id} started {instance_id}, before it was {known}")
        is_there = instance_id in self._shadow.instances
        self._check("D1", is_there, call, f"{request_id} started {instance_id}, which no row knows")

    def _published(self, call: ClientCall, message_id: JsonValue) -> None:
        """Its time to live may have ended while the answer was under way."""
        was_there = message_id in self._shadow.messages or message_id in self._shadow.dropped_messages
        self._check("D1", was_there, call, f"message {message_id} was published, and no row knows it")

    def _cancelled(self, call: ClientCall, instance_id: str) -> None:
        row = self._shadow.instances.get(instance_id)
        is_over = row is not None and row.status in ENDED_STATUSES
        status = None if row is None else row.status
        self._check("D1", is_over, call, f"{instance_id} is cancelled, and its row is {status}")

    def finish(self) -> None:
        """However often it was asked for: one request, one instance. `business_key` is the request's id."""
        found: dict[str, str] = {}
        for row in self._shadow.instances.values():
            key = row.business_key
            if key is not None and key in self._instances:
                other = found.setdefault(key, row.instance_id)
                is_one = other == row.instance_id
                self._reports.always("I1", is_one, f"request {key} started both {other} and {row.instance_id}")
