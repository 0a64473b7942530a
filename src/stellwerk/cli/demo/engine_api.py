"""What the demo asks of the engine, over HTTP, with patience: the engine is killed on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from stellwerk.cli.client import EngineClient, segment
from stellwerk.cli.demo.audit import EndedInstance
from stellwerk.cli.demo.orders import Order
from stellwerk.cli.mistakes import EngineUnreachable

__all__ = ["EngineApi", "TaskCounts", "count_attempts"]

PAGE = 500
AGAIN_SECONDS = 0.1


class EngineApi:
    """Every request is repeated until it is answered: reads may be, and a start because of its request id."""

    def __init__(self, url: str, deadline: float, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """:param deadline: on `time.monotonic`; afterwards nothing is repeated any more."""
        self._client = EngineClient(url)
        self._deadline = deadline
        self._is_stopped = is_stopped

    def deploy(self, name: str, xml: str) -> None:
        self._patiently(lambda: self._client.post("/process-definitions", {"files": [{"name": name, "xml": xml}]}))

    def start(self, order: Order, variables: Mapping[str, object]) -> str:
        """Start an order's instance. However often it is asked, there will be one."""
        body = {
            "process_def_id": "order-saga",
            "variables": variables,
            "business_key": order.order,
            "request_id": f"start-{order.order}",
        }
        return str(self._patiently(lambda: self._client.post("/process-instances", body))["instance_id"])

    def instances(self) -> list[EndedInstance]:
        found: list[EndedInstance] = []
        while True:
            query = {"limit": PAGE, "after": found[-1].instance_id if found else None}
            page = self._patiently(partial(self._client.get, "/process-instances", query))["instances"]
            found.extend(
                EndedInstance(entry["instance_id"], entry["business_key"] or "", entry["status"]) for entry in page
            )
            if len(page) < PAGE:
                return found

    def tasks(self, instance_id: str) -> list[dict[str, Any]]:
        """The tasks of an instance, each with its ``attempts`` that ended without success."""
        return list(self._patiently(lambda: self._client.get(f"/process-instances/{segment(instance_id)}"))["tasks"])

    def _patiently(self, request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """:raises EngineUnreachable: when the deadline has passed without an answer."""
        while True:
            try:
                return request()
            except EngineUnreachable:
                if time.monotonic() > self._deadline or self._is_stopped():
                    raise
                time.sleep(AGAIN_SECONDS)


@attrs.frozen
class TaskCounts:
    """How leases ended otherwise than in success, from the engine's own records."""

    retries: int
    """Technical failures after which the task was offered again."""
    revoked: int
    """Leases that the process took away."""
    reclaimed: int
    """Leases that ran out and went to somebody else."""
    released: int
    """Leases handed back, or never delivered."""


def count_attempts(tasks: Sequence[Mapping[str, Any]]) -> TaskCounts:
    ends = list(_attempt_ends(tasks))
    return TaskCounts(
        retries=ends.count("failed"),
        revoked=ends.count("revoked"),
        reclaimed=ends.count("expired"),
        released=ends.count("released"),
    )


def _attempt_ends(tasks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for task in tasks:
        for attempt in task["attempts"]:
            last = attempt["fence"] == task["fence"] and task["state"] == "FAILED"
            if not (last and attempt["end"] == "failed"):
                yield attempt["end"]
