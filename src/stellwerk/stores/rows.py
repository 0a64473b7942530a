"""Rows of the databases' tables as values, and back: SQLite and PostgreSQL name their columns alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from stellwerk.core.changes import IncidentRow, UserTaskRow
from stellwerk.core.external_task import (
    AttemptEnd,
    ExternalTask,
    Holder,
    Lease,
    OutcomeKind,
    TaskAttempt,
    TaskOutcome,
    TaskState,
)
from stellwerk.instants import InstantMs
from stellwerk.json_values import dumps, loads
from stellwerk.ports import DefinitionRow, InstanceSummary, MessageRow, ProcessRow

__all__ = [
    "ATTEMPT_COLUMNS",
    "DEFINITION_COLUMNS",
    "FIXED_TASK_COLUMNS",
    "INCIDENT_COLUMNS",
    "INSTANCE_COLUMNS",
    "MESSAGE_COLUMNS",
    "MOVING_TASK_COLUMNS",
    "PROCESS_COLUMNS",
    "TASK_COLUMNS",
    "USER_TASK_COLUMNS",
    "SqlRow",
    "attempt_from_row",
    "attempt_to_row",
    "definition_from_row",
    "definition_to_row",
    "fixed_task_row",
    "incident_from_row",
    "incident_to_row",
    "instance_from_row",
    "message_from_row",
    "message_to_row",
    "moving_task_row",
    "process_from_row",
    "process_to_row",
    "strings_from_text",
    "strings_to_text",
    "task_from_row",
    "text_or_none",
    "user_task_from_row",
    "user_task_to_row",
]

SqlRow: TypeAlias = tuple[Any, ...]
"""int, str, bytes, bool or None in each column."""

FIXED_TASK_COLUMNS = (
    "task_id",
    "process_instance",
    "token_id",
    "activity_id",
    "element_id",
    "definition_id",
    "business_key",
    "task_type",
    "priority",
    "created_at",
    "retries_total",
    "retry_backoffs_ms",
    "lock_expiries_max",
    "single_try",
    "lock_duration_ms",
    "variables",
    "headers",
)
MOVING_TASK_COLUMNS = (
    "updated_at",
    "available_at",
    "state",
    "retries",
    "attempt",
    "lock_expiries",
    "draining",
    "fence",
    "lock_owner",
    "lock_boot_id",
    "lock_session_no",
    "lock_session_id",
    "lock_fence",
    "lock_since",
    "lock_expire_at",
    "lock_own_duration_ms",
    "outcome",
    "outcome_digest",
    "error_message",
)
"""What the lease machine changes."""
TASK_COLUMNS = FIXED_TASK_COLUMNS + MOVING_TASK_COLUMNS

_STATES = {state.value: state for state in TaskState}
_STATE_TEXTS = {state: state.value for state in TaskState}  # `Enum.value` is a call of Python code
_OUTCOMES = {kind.value: kind for kind in OutcomeKind}
_NO_LEASE = (None,) * 8
_NO_OUTCOME = (None, None)


def fixed_task_row(task: ExternalTask) -> SqlRow:
    return (
        task.task_id,
        task.instance_id,
        task.token_id,
        task.activity_id,
        task.element_id,
        task.definition_id,
        task.business_key,
        task.topic,
        task.priority,
        task.created_at_ms,
        task.retries,
        dumps(list(task.retry_backoffs_ms)).decode() if task.retry_backoffs_ms else "[]",
        task.lock_expiries_max,
        task.single_try,
        task.lock_duration_ms,
        task.variables.decode(),
        task.headers.decode(),
    )


def moving_task_row(task: ExternalTask) -> SqlRow:
    outcome = task.outcome
    return (
        task.updated_at_ms,
        task.available_at_ms,
        _STATE_TEXTS[task.state],
        task.retries_left,
        task.attempt,
        task.lock_expiries,
        task.draining,
        task.fence,
        *(_NO_LEASE if task.lease is None else _lease_row(task.lease)),
        *(_NO_OUTCOME if outcome is None else (outcome.kind.value, outcome.request_digest)),
        task.error_message,
    )


def _lease_row(lease: Lease) -> SqlRow:
    holder = lease.holder
    return (
        holder.worker_id,
        holder.boot_id,
        holder.session_no,
        holder.session_id,
        lease.fence,
        lease.since_ms,
        lease.until_ms,
        lease.duration_ms,
    )


def task_from_row(row: SqlRow) -> ExternalTask:
    lease = row[25:33]
    backoffs = row[11]
    return ExternalTask(
        task_id=row[0],
        instance_id=row[1],
        token_id=row[2],
        activity_id=row[3],
        element_id=row[4],
        definition_id=row[5],
        business_key=row[6],
        topic=row[7],
        priority=row[8],
        created_at_ms=row[9],
        retries=row[10],
        retry_backoffs_ms=() if backoffs == "[]" else _integers(backoffs),
        lock_expiries_max=row[12],
        single_try=bool(row[13]),
        lock_duration_ms=row[14],
        variables=row[15].encode(),
        headers=row[16].encode(),
        updated_at_ms=row[17],
        available_at_ms=row[18],
        state=_STATES[row[19]],
        retries_left=row[20],
        attempt=row[21],
        lock_expiries=row[22],
        draining=bool(row[23]),
        fence=row[24],
        lease=None if lease[0] is None else Lease(Holder(*lease[:4]), *lease[4:]),
        outcome=None if row[33] is None else TaskOutcome(_OUTCOMES[row[33]], row[34]),
        error_message=row[35],
    )


def _integers(text: str) -> tuple[int, ...]:
    values = loads(text)
    assert isinstance(values, list)
    return tuple(values)


ATTEMPT_COLUMNS = (
    "task_id",
    "fence",
    "worker_id",
    "since_ms",
    "ended_at_ms",
    "ended_by",
    "request_digest",
    "message",
    "details",
)


def attempt_to_row(attempt: TaskAttempt) -> SqlRow:
    return (
        attempt.task_id,
        attempt.fence,
        attempt.worker_id,
        attempt.since_ms,
        attempt.ended_at_ms,
        attempt.end.value,
        attempt.request_digest,
        attempt.message,
        text_or_none(attempt.details),
    )


def attempt_from_row(row: SqlRow) -> TaskAttempt:
    details = None if row[8] is None else row[8].encode()
    return TaskAttempt(row[0], row[1], row[2], row[3], row[4], AttemptEnd(row[5]), row[6], row[7], details)


DEFINITION_COLUMNS = (
    "process_key",
    "version",
    "name",
    "digest",
    "xml",
    "deployed_at_ms",
    "start_messages",
    "failure_policy",
    "adopt_java",
)


def definition_to_row(row: DefinitionRow) -> SqlRow:
    return (
        row.key,
        row.version,
        row.name,
        row.digest,
        row.xml,
        row.deployed_at_ms,
        strings_to_text(row.start_messages),
        row.failure_policy,
        int(row.adopt_java),
    )


def definition_from_row(row: SqlRow) -> DefinitionRow:
    return DefinitionRow(
        key=row[0],
        version=row[1],
        name=row[2],
        digest=row[3],
        xml=row[4],
        deployed_at_ms=row[5],
        start_messages=strings_from_text(row[6]),
        failure_policy=row[7],
        adopt_java=bool(row[8]),
    )


PROCESS_COLUMNS = ("process_key", "is_enabled", "last_deleted")


def process_to_row(row: ProcessRow) -> SqlRow:
    return (row.key, row.is_enabled, row.last_deleted)


def process_from_row(row: SqlRow) -> ProcessRow:
    return ProcessRow(row[0], bool(row[1]), row[2])


INSTANCE_COLUMNS = (
    "instance_id",
    "definition_id",
    "process_key",
    "business_key",
    "status",
    "version",
    "started_at_ms",
    "ended_at_ms",
)


def instance_from_row(row: SqlRow) -> InstanceSummary:
    return InstanceSummary(*row)


MESSAGE_COLUMNS = ("message_id", "name", "key", "variables", "published_at_ms", "expires_at_ms", "instance_id")


def message_to_row(row: MessageRow) -> SqlRow:
    variables = row.variables.decode()
    return (row.message_id, row.name, row.key, variables, row.published_at_ms, row.expires_at_ms, row.instance_id)


def message_from_row(row: SqlRow) -> MessageRow:
    return MessageRow(row[0], row[1], row[2], row[3].encode(), *row[4:])


USER_TASK_COLUMNS = (
    "user_task_id",
    "instance_id",
    "element_id",
    "name",
    "assignee",
    "candidate_users",
    "candidate_groups",
    "form",
    "variables",
    "created_at_ms",
    "due_at",
)


def user_task_to_row(instance_id: str, row: UserTaskRow, at_ms: InstantMs) -> SqlRow:
    return (
        row.user_task_id,
        instance_id,
        row.element_id,
        row.name,
        row.assignee,
        strings_to_text(row.candidate_users),
        strings_to_text(row.candidate_groups),
        row.form,
        row.variables.decode(),
        at_ms,
        row.due_at,
    )


def user_task_from_row(row: SqlRow) -> Mapping[str, object]:
    values: dict[str, Any] = dict(zip(USER_TASK_COLUMNS, row, strict=True))
    return {
        **values,
        "candidate_users": strings_from_text(values["candidate_users"]),
        "candidate_groups": strings_from_text(values["candidate_groups"]),
        "variables": values["variables"].encode(),
    }


INCIDENT_COLUMNS = ("incident_id", "instance_id", "kind", "element_id", "message", "task_id", "opened_at_ms")


def incident_to_row(instance_id: str, row: IncidentRow, at_ms: InstantMs) -> SqlRow:
    return (row.incident_id, instance_id, row.kind, row.element_id, row.message, row.task_id, at_ms)


def incident_from_row(row: SqlRow) -> Mapping[str, object]:
    return dict(zip(INCIDENT_COLUMNS, row, strict=True))


def strings_to_text(strings: tuple[str, ...]) -> str:
    return dumps(list(strings)).decode()


def strings_from_text(text: str) -> tuple[str, ...]:
    values = loads(text)
    assert isinstance(values, list)
    return tuple(values)


def text_or_none(body: bytes | None) -> str | None:
    return None if body is None else body.decode()
