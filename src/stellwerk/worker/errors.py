"""What a handler raises, and what a worker reports."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from stellwerk.errors import StellwerkError
from stellwerk.json_values import JsonValue

__all__ = [
    "BpmnError",
    "ConnectionLost",
    "ErrorKind",
    "Operation",
    "Refused",
    "TaskFailure",
    "TaskLost",
    "WorkerGaveUp",
    "leaves_of",
]


class ErrorKind(StrEnum):
    """The first argument of the error callback. In brackets: what it means where work is pushed, not polled."""

    FETCH_AND_LOCK = "fetchAndLock"
    """(The connection was lost or could not be made.)"""
    EXTEND_LOCK = "extendLock"
    """(No renewal arrived in time, or an extension was refused.)"""
    PROCESS_EXTERNAL_TASK = "processExternalTask"
    """The handler raised."""
    FINISH_EXTERNAL_TASK = "finishExternalTask"
    """A result could not be handed in."""
    UNPROCESSABLE_EXTERNAL_TASK = "unprocessableExternalTask"
    """The payload does not fit the handler's annotation, or what the handler raised cannot be said to the engine."""
    IDENTITY_REFRESH = "identityRefresh"
    CRITICAL_IDENTITY_FAILURE = "criticalIdentityFailure"
    PERMANENT_AUTHORIZATION_ERROR = "permanentAuthorizationError"
    UNEXPECTED_LOOP_ERROR = "unexpectedLoopError"


class Operation(StrEnum):
    """The first argument of the heartbeat callback."""

    FETCH_AND_LOCK = "fetchAndLock"
    """(Tasks arrived, or the engine answered a ping or a poll.)"""
    PROCESS_EXTERNAL_TASK = "processExternalTask"
    EXTEND_LOCK = "extendLock"
    FINISH_EXTERNAL_TASK = "finishExternalTask"
    HANDLE_ERROR = "handleError"
    """A failure or a BPMN error was handed in."""


class BpmnError(Exception):
    """A business error: raise it in a handler (or return it), and it becomes a BPMN error at the task.

    ``code`` has 1 to 200 characters. ``details`` are for people, ``variables`` go to whoever catches the error and must
    be JSON. An error with another code or other variables is reported and fails the attempt.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        details: JsonValue = None,
        variables: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(code if message is None else f"{code}: {message}")
        self.code = code
        self.message = message
        self.details = details
        self.variables = dict(variables or {})


class TaskFailure(Exception):
    """A technical failure, with a say in what follows.

    ``retry_after`` is in seconds (not an instant), at most 365 days; None: the engine's own back-off. ``retries`` is
    how many attempts are left, None: the engine counts. An unusable number is reported and left out. ``details`` are
    for people; what is no JSON becomes a text.
    """

    def __init__(
        self,
        message: str,
        details: JsonValue = None,
        *,
        retry_after: float | None = None,
        retries: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.retry_after = retry_after
        self.retries = retries


class ConnectionLost(StellwerkError):
    """There is no connection to the engine; the worker tries again."""

    code = "unavailable"
    retryable = True


class Refused(StellwerkError):
    """The engine refused a request or closed the connection with an error; ``code`` says why (`NackCode`)."""


class TaskLost(StellwerkError):
    """The lease of a task ended before its result was handed in."""

    code = "lease_lost"


def leaves_of(error: BaseException) -> list[BaseException]:
    """What nurseries wrapped into groups, however deeply."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in leaves_of(inner)]


class WorkerGaveUp(StellwerkError):
    """The worker stopped by itself, after too many critical errors in a row."""
