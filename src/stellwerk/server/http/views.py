"""What the HTTP API shows of the engine's values, as plain values for the JSON encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import attrs
import msgspec

from stellwerk.actors.connections import TopicView, WorkerView
from stellwerk.actors.views import InstanceOutcome, MessageView
from stellwerk.core.events import HistoryEvent
from stellwerk.core.external_task import ExternalTask, Lease, TaskAttempt
from stellwerk.core.instance import InstanceState, Token
from stellwerk.core.waits import OpenWait
from stellwerk.instants import InstantMs, to_rfc3339
from stellwerk.model.process import Finding
from stellwerk.ports import DefinitionRow, InstanceSummary, NodeRow
from stellwerk.server.http.correlation import Receiver

__all__ = [
    "correlated_view",
    "definition_view",
    "event_view",
    "finding_view",
    "instant",
    "mapping_view",
    "message_view",
    "node_view",
    "outcome_view",
    "plain_view",
    "pulled_task_view",
    "state_view",
    "summary_view",
    "task_summary_view",
    "task_view",
    "token_view",
    "topic_view",
    "worker_view",
]

_JSON_TEXT_FIELDS = frozenset({"variables", "details"})


def instant(instant_ms: InstantMs | None) -> str | None:
    return None if instant_ms is None else to_rfc3339(instant_ms)


def finding_view(file: str, finding: Finding) -> dict[str, object]:
    return {
        "file": file,
        "line": finding.position.line,
        "column": finding.position.column,
        "element_id": finding.element_id,
        "element": finding.element,
        "what": finding.what,
        "severity": finding.severity.value,
    }


def definition_view(row: DefinitionRow) -> dict[str, object]:
    return {
        "definition_id": row.definition_id,
        "key": row.key,
        "version": row.version,
        "name": row.name,
        "digest": row.digest,
        "deployed_at": to_rfc3339(row.deployed_at_ms),
        "start_messages": list(row.start_messages),
        "failure_policy": row.failure_policy,
    }


def summary_view(summary: InstanceSummary, incidents: int) -> dict[str, object]:
    """:param incidents: how many are open."""
    return {
        "instance_id": summary.instance_id,
        "definition_id": summary.definition_id,
        "process": summary.process_key,
        "business_key": summary.business_key,
        "status": summary.status,
        "version": summary.version,
        "started_at": to_rfc3339(summary.started_at_ms),
        "ended_at": instant(summary.ended_at_ms),
        "incidents": incidents,
    }


def outcome_view(outcome: InstanceOutcome) -> dict[str, object]:
    return {
        "instance_id": outcome.summary.instance_id,
        "status": outcome.summary.status,
        "variables": outcome.variables,
        "incidents": [mapping_view(row) for row in outcome.incidents],
        "reason": outcome.reason,
    }


def task_view(task: ExternalTask, attempts: Iterable[TaskAttempt]) -> dict[str, object]:
    return {
        **task_summary_view(task),
        "variables": msgspec.Raw(task.variables),
        "headers": msgspec.Raw(task.headers),
        "attempts": [_attempt_view(attempt) for attempt in attempts],
    }


def task_summary_view(task: ExternalTask) -> dict[str, object]:
    """Without what may be large, and without the attempts."""
    return {
        "task_id": task.task_id,
        "instance_id": task.instance_id,
        "token_id": task.token_id,
        "element_id": task.element_id,
        "topic": task.topic,
        "state": task.state.value,
        "priority": task.priority,
        "created_at": to_rfc3339(task.created_at_ms),
        "updated_at": to_rfc3339(task.updated_at_ms),
        "available_at": to_rfc3339(task.available_at_ms),
        "retries": task.retries,
        "retries_left": task.retries_left,
        "attempt": task.attempt,
        "lock_expiries": task.lock_expiries,
        "single_try": task.single_try,
        "draining": task.draining,
        "fence": task.fence,
        "lease": None if task.lease is None else _lease_view(task.lease),
        "outcome": None if task.outcome is None else task.outcome.kind.value,
        "error_message": task.error_message,
    }


def pulled_task_view(task: ExternalTask, lock_remaining_ms: int) -> dict[str, object]:
    """As a worker gets it that fetches it."""
    assert task.lease is not None
    return {
        "task_id": task.task_id,
        "token_id": task.token_id,
        "process_instance_id": task.instance_id,
        "task_type": task.topic,
        "variables": msgspec.Raw(task.variables),
        "fence": task.fence,
        "lock_expire_at": to_rfc3339(task.lease.until_ms),
        "lock_remaining_ms": lock_remaining_ms,
        "retries": task.retries_left,
        "attempt": task.attempt,
        "priority": task.priority,
        "business_key": task.business_key,
        "process_definition_id": task.definition_id,
        "element_id": task.element_id,
        "created_at": to_rfc3339(task.created_at_ms),
        "headers": msgspec.Raw(task.headers),
        "single_try": task.single_try,
    }


def _lease_view(lease: Lease) -> dict[str, object]:
    return {
        "worker_id": lease.holder.worker_id,
        "fence": lease.fence,
        "since": to_rfc3339(lease.since_ms),
        "until": to_rfc3339(lease.until_ms),
        "duration_ms": lease.duration_ms,
    }


def _attempt_view(attempt: TaskAttempt) -> dict[str, object]:
    return {
        "fence": attempt.fence,
        "worker_id": attempt.worker_id,
        "since": to_rfc3339(attempt.since_ms),
        "ended_at": to_rfc3339(attempt.ended_at_ms),
        "end": attempt.end.value,
        "message": attempt.message,
        "details": None if attempt.details is None else msgspec.Raw(attempt.details),
    }


def event_view(event: HistoryEvent) -> dict[str, object]:
    return {
        "sequence": event.sequence,
        "version": event.version,
        "event_type": event.event_type,
        "category": event.category.value,
        "occurred_at": to_rfc3339(event.at_ms),
        "payload": msgspec.to_builtins(event.fact),
    }


def state_view(state: InstanceState) -> Any:
    """As the engine keeps it, by field name."""
    return msgspec.to_builtins(state)


def topic_view(view: TopicView) -> dict[str, object]:
    backlog = view.backlog
    return {
        "topic": view.topic,
        "ready": backlog.ready,
        "backing_off": backlog.backing_off,
        "locked": backlog.locked,
        "oldest_ready_at": instant(backlog.oldest_ready_at_ms),
        "workers": view.workers,
        "free": view.free,
        "is_unattended": view.is_unattended,
    }


def worker_view(view: WorkerView) -> dict[str, object]:
    return {
        "worker_id": view.worker_id,
        "session_id": view.session_id,
        "client": view.client,
        "connected_at": to_rfc3339(view.connected_at_ms),
        "node": view.node,
        "topics": [attrs.asdict(topic) for topic in view.topics],
    }


def node_view(row: NodeRow, now_ms: InstantMs) -> dict[str, object]:
    report = row.report
    seconds = max(1, now_ms - row.seen_ms_ago - report.started_at_ms) / 1000
    return {
        "node_id": report.node_id,
        "name": report.name,
        "url": report.url,
        "version": report.version,
        "started_at": to_rfc3339(report.started_at_ms),
        "seen_ms_ago": row.seen_ms_ago,
        "is_draining": report.is_draining,
        "workers": report.workers,
        "leases": report.leases,
        "instances_live": report.instances_live,
        "commits": report.commits,
        "operations": report.operations,
        "commits_per_second": round(report.commits / seconds, 1),
        "operations_per_commit": round(report.operations / max(1, report.commits), 1),
        "store_ms": round(report.store_ms, 2),
    }


def message_view(view: MessageView) -> dict[str, object]:
    return {
        "message_id": view.message_id,
        "name": view.name,
        "key": view.key,
        "status": view.status.value,
        "published_at": instant(view.published_at_ms),
        "expires_at": instant(view.expires_at_ms),
        "is_awaited": view.is_awaited,
        "instance_id": view.instance_id,
    }


def correlated_view(message_id: str, receiver: Receiver | None) -> dict[str, object]:
    if receiver is None:
        return {"message_id": message_id, "instance_id": None, "has_started": False}
    return {"message_id": message_id, **attrs.asdict(receiver)}


def plain_view(value: Any) -> Any:
    """Values of a trace, by field name: ``…_ms`` are instants there, bytes are JSON text."""
    if attrs.has(type(value)):
        fields = {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
        return {_without_unit(name): _plain_field(name, item) for name, item in fields.items()}
    if isinstance(value, tuple):
        return [plain_view(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return msgspec.Raw(value) if isinstance(value, bytes) else value


def _plain_field(name: str, value: object) -> object:
    return to_rfc3339(value) if name.endswith("_ms") and isinstance(value, int) else plain_view(value)


def _without_unit(name: str) -> str:
    return name.removesuffix("_ms")


def token_view(token: Token, waits: Sequence[OpenWait]) -> dict[str, object]:
    return {
        "token_id": token.id,
        "node_id": token.node_id,
        "scope_id": token.scope_id,
        "status": token.status.value,
        "activity_id": token.activity_id,
        "external": msgspec.to_builtins(token.external),
        "waits": [plain_view(wait) for wait in waits],
    }


def mapping_view(row: Mapping[str, object]) -> dict[str, object]:
    """A row that a store gives as a mapping: instants become text, and JSON text becomes what it says."""
    return {
        name.removesuffix("_ms") if name.endswith("_at_ms") else name: _field(name, value)
        for name, value in row.items()
    }


def _field(name: str, value: object) -> object:
    if name.endswith("_at_ms") and isinstance(value, int):
        return to_rfc3339(value)
    if isinstance(value, bytes):
        return msgspec.Raw(value)
    if name in _JSON_TEXT_FIELDS and isinstance(value, str):
        return msgspec.Raw(value.encode())
    return value
