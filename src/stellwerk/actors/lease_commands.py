"""What a worker says of its lease, as the engine's commands and operations, whatever way it said so.

A request that is repeated is known by its digest. So the same words give the same digest over WebSocket and HTTP, and
are checked in the same way.
"""

from __future__ import annotations

from stellwerk.actors.bounds import RETRIES_MAX, check_error_code, check_length
from stellwerk.core.commands import CompleteTask, EndTaskInFailure, FailureKind, ThrowBpmnError
from stellwerk.errors import InvalidInput, NotFound, PeerError, StellwerkError
from stellwerk.json_values import JsonValue, canonical, canonical_object, digest, dumps
from stellwerk.limits import Limits
from stellwerk.ports import FailTask, LeaseAnswer, LeaseAnswerKind

__all__ = ["bpmn_error_command", "complete_command", "fail_operation", "last_failure_command", "lease_outcome"]

_RETRY_AFTER_MS_MAX = 365 * 24 * 3_600_000


def complete_command(task_id: str, fence: int, worker_id: str, variables: JsonValue) -> CompleteTask:
    """:param variables: canonical."""
    return CompleteTask(task_id, fence, variables, digest(variables), worker_id)


def bpmn_error_command(
    task_id: str,
    fence: int,
    worker_id: str,
    *,
    code: str,
    message: str | None,
    details: JsonValue,
    variables: JsonValue,
    limits: Limits,
) -> ThrowBpmnError:
    """:param details, variables: canonical.

    :raises InvalidInput: the code is empty, `variables` is no object; LimitExceeded: a text is too long.
    """
    check_error_code(code, limits)
    check_length("message", message, limits.message_bytes_max)
    values = canonical_object(variables, "$.variables")
    code = str(canonical(code, "$.code"))
    text = None if message is None else str(canonical(message, "$.message"))
    request_digest = digest([code, text, details, values])
    return ThrowBpmnError(task_id, fence, code, text, details, values, request_digest, worker_id)


def fail_operation(
    task_id: str,
    fence: int,
    worker_id: str,
    *,
    message: str,
    details: JsonValue,
    retry_after_ms: int | None,
    retries: int | None,
    jitter: float,
    limits: Limits,
) -> FailTask:
    """:param details: canonical.

    :raises InvalidInput: a number is outside its bounds; LimitExceeded: the message is too long.
    """
    check_length("message", message, limits.message_bytes_max)
    text = str(canonical(message, "$.message"))
    _check_number("retries", retries, RETRIES_MAX)
    _check_number("retry_after_ms", retry_after_ms, _RETRY_AFTER_MS_MAX)
    return FailTask(
        task_id=task_id,
        fence=fence,
        request_digest=digest([text, details, retry_after_ms, retries]),
        message=text,
        details=dumps(details) if details is not None else None,
        retry_after_ms=retry_after_ms,
        retries=retries,
        worker_id=worker_id,
        jitter=jitter,
    )


def last_failure_command(operation: FailTask, details: JsonValue) -> EndTaskInFailure:
    """What the instance is told where the store says that no attempts are left."""
    return EndTaskInFailure(
        operation.task_id,
        operation.fence,
        FailureKind.RETRIES_EXHAUSTED,
        operation.message,
        operation.request_digest,
        details,
        operation.worker_id,
        worker_gives_up=operation.retries == 0,
    )


def lease_outcome(answer: LeaseAnswer) -> LeaseAnswerKind | StellwerkError:
    kind = answer.kind
    if kind in (LeaseAnswerKind.DONE, LeaseAnswerKind.REPEATED):
        return kind
    if kind is LeaseAnswerKind.UNKNOWN:
        return NotFound("there is no such task")
    return PeerError(f"the lease is not valid any more ({kind.value})", code=kind.value)


def _check_number(name: str, number: int | None, number_max: int) -> None:
    if number is not None and not 0 <= number <= number_max:
        raise InvalidInput(f"0 to {number_max} is possible, not {number} @ $.{name}")
