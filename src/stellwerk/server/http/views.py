"""What the HTTP API shows of the engine's values, as plain values for the JSON encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stellwerk.core.external_task import ExternalTask, Lease, TaskAttempt
from stellwerk.core.facts import Fact
from stellwerk.core.instance import Token
from stellwerk.instants import InstantMs, to_rfc3339
from stellwerk.model.process import Finding
from stellwerk.ports import DefinitionRow, HistoryStep, InstanceSummary

__all__ = [
    "definition_view",
    "finding_view",
    "mapping_view",
    "step_view",
    "summary_view",
    "task_view",
    "token_view",
]

_JSON_TEXT_FIELDS = frozenset({"variables", "details"})


def _instant(instant_ms: InstantMs | None) -> str | None:
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


def summary_view(summary: InstanceSummary) -> dict[str, object]:
    return {
        "instance_id": summary.instance_id,
        "definition_id": summary.definition_id,
        "process": summary.process_key,
        "business_key": summary.business_key,
        "status": summary.status,
        "version": summary.version,
        "started_at": to_rfc3339(summary.started_at_ms),
        "ended_at": _instant(summary.ended_at_ms),
    }


def task_view(task: ExternalTask, attempts: Iterable[TaskAttempt]) -> dict[str, object]:
    return {
        "task_id": task.task_id,
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
        "variables": msgspec.Raw(task.variables),
        "headers": msgspec.Raw(task.headers),
        "attempts": [_attempt_view(attempt) for attempt in attempts],
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


def step_view(step: HistoryStep) -> dict[str, object]:
    return {
        "version": step.version,
        "at": to_rfc3339(step.at_ms),
        "facts": [_fact_view(fact) for fact in step.facts],
    }


def _fact_view(fact: Fact) -> dict[str, object]:
    return {"fact": type(fact).__name__, **_plain(fact)}


def _plain(value: object) -> Any:
    """An attrs instance as a dict, by field name."""
    return msgspec.to_builtins(value)


def token_view(token: Token) -> dict[str, object]:
    return {
        "token_id": token.id,
        "node_id": token.node_id,
        "scope_id": token.scope_id,
        "status": token.status.value,
        "activity_id": token.activity_id,
        "external": _plain(token.external),
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
