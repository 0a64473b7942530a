"""What bpm-engine's API shows of an instance: its state, and its life by token and task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from stellwerk.core.instance import InstanceStatus
from stellwerk.core.trace_values import LeaseEnd, LeaseSpan, StayEnd, StayTrace, TaskTrace, TokenTrace, Trace
from stellwerk.instants import InstantMs
from stellwerk.ports import InstanceSummary

__all__ = ["instance_view", "instant_text", "status_of", "trace_view"]

_STATUSES = {InstanceStatus.FAILED.value: "TERMINATED", InstanceStatus.CANCELLED.value: "TERMINATED"}
_LEFT_EVENTS = {StayEnd.FAILED: "TokenFailed", StayEnd.CANCELLED: "TokenCancelled"}
_TOKEN_STATUSES = {None: "WAITING", StayEnd.FAILED: "TERMINATED", StayEnd.CANCELLED: "TERMINATED"}
_LEASE_EVENTS = {
    LeaseEnd.COMPLETED: "ExternalTaskCompleted",
    LeaseEnd.FAILED: "ExternalTaskFailed",
    LeaseEnd.BPMN_ERROR: "ExternalTaskErrorReported",
    LeaseEnd.EXPIRED: "ExternalTaskExpired",
    LeaseEnd.RELEASED: "ExternalTaskReleased",
    LeaseEnd.REVOKED: "ExternalTaskRevoked",
}
_View: TypeAlias = dict[str, object]


def status_of(status: str) -> str:
    """RUNNING, COMPLETED or TERMINATED: there are no others."""
    return _STATUSES.get(status, status)


def instant_text(instant_ms: InstantMs) -> str:
    """Whole seconds since 1970, as a text."""
    return str(instant_ms // 1000)


def instance_view(summary: InstanceSummary, current_nodes: Sequence[str]) -> _View:
    return {
        "instance_id": summary.instance_id,
        "process_def_id": summary.process_key,
        "status": status_of(summary.status),
        "current_nodes": sorted(current_nodes),
    }


def trace_view(summary: InstanceSummary, current_nodes: Sequence[str], trace: Trace) -> _View:
    return {
        "instance": instance_view(summary, current_nodes),
        "token_timelines": [_timeline(token, trace.instance_id) for token in trace.tokens],
        "external_task_history": [_task_history(task, trace.instance_id) for task in trace.tasks],
    }


def _timeline(token: TokenTrace, instance_id: str) -> _View:
    last = token.stays[-1]
    return {
        "token_id": token.token_id,
        "node_id": last.node_id,
        "status": _TOKEN_STATUSES.get(last.end, "COMPLETED"),
        "events": [event for stay in token.stays for event in _stay_events(stay, token.token_id, instance_id)],
    }


def _stay_events(stay: StayTrace, token_id: str, instance_id: str) -> Iterator[_View]:
    payload = {"instance_id": instance_id, "token_id": token_id, "node_id": stay.node_id}
    yield _event("TokenArrived", stay.entered.at_ms, payload)
    if stay.left is not None and stay.end in (StayEnd.ENDED, StayEnd.MERGED, *_LEFT_EVENTS):
        yield _event(_LEFT_EVENTS.get(stay.end, "TokenCompleted"), stay.left.at_ms, payload)


def _task_history(task: TaskTrace, instance_id: str) -> _View:
    ids = {"task_id": task.task_id, "token_id": task.token_id, "process_instance_id": instance_id}
    return {**ids, "events": [event for lease in task.leases for event in _lease_events(lease, ids)]}


def _lease_events(lease: LeaseSpan, ids: dict[str, str]) -> Iterator[_View]:
    payload: _View = {**ids, "worker_id": lease.worker_id}
    yield _event("ExternalTaskLocked", lease.since_ms, payload)
    if lease.until_ms is not None and lease.end in _LEASE_EVENTS:
        message = {} if lease.message is None else {"error_message": lease.message}
        yield _event(_LEASE_EVENTS[lease.end], lease.until_ms, {**payload, **message})


def _event(event_type: str, at_ms: InstantMs, payload: object) -> _View:
    return {"event_type": event_type, "occurred_at": instant_text(at_ms), "payload": payload}
