"""The bodies of the HTTP API for workers that poll, as a worker writes and reads them (docs/http-api.md).

A worker writes no field that says nothing. What the caller's program put into ``variables`` and ``details`` passes
through as raw JSON, as in `codec`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from stellwerk.errors import InvalidInput
from stellwerk.values import frozen
from stellwerk.wire.messages import BpmnErrorReport, Complete, Fail, Release, TaskOffer

__all__ = [
    "API_PATH",
    "FETCH_PATH",
    "WAITED_HEADER",
    "WAIT_MS_MAX",
    "FetchAndLock",
    "LockExtension",
    "Problem",
    "PulledTask",
    "decode_extension",
    "decode_problem",
    "decode_tasks",
    "encode_extension",
    "encode_fetch",
    "encode_final",
    "final_verb",
]

API_PATH = "/api/v1"
FETCH_PATH = "/external-tasks/fetch-and-lock"
WAIT_MS_MAX = 600_000
WAITED_HEADER = "stellwerk-waited-ms"
"""In the answer to fetch-and-lock: for how long the engine had had the request when it counted ``lock_remaining_ms``.
With it the worker knows how long ago that is at most; without it only that it was after the request had been sent."""

T = TypeVar("T")

_NOTHING = (b"null", b"{}")


@frozen(kw_only=True)
class FetchAndLock:
    """``POST /external-tasks/fetch-and-lock``"""

    worker_id: str
    task_types: tuple[str, ...]
    """Topics."""
    max_tasks: int = 10
    """Of all topics together."""
    lock_duration_ms: int = 30_000
    """A model's own lock duration overrides it."""
    wait_ms: int = 0
    """How long to wait for the first task; 0: not at all."""
    filter: str | None = None
    """A regular expression on the compact JSON of the variables."""
    variables: tuple[str, ...] | None = None
    """Only these top-level variables are sent. Null: all."""


@frozen(kw_only=True)
class PulledTask:
    """One of the tasks in the answer to it. What other engines' answers lack has a default."""

    task_id: str
    token_id: str
    process_instance_id: str
    task_type: str
    """The topic."""
    fence: int
    lock_remaining_ms: int
    """So long does the lease last, from when the answer was made. Rather less than the store says than more."""
    lock_expire_at: str
    """The same as an instant, for people."""
    retries: int
    """Attempts that may still fail, this one included."""
    attempt: int
    process_definition_id: str
    """``key:version``."""
    element_id: str
    created_at: str
    variables: msgspec.Raw = msgspec.Raw(b"{}")
    priority: int = 0
    business_key: str | None = None
    headers: msgspec.Raw = msgspec.Raw(b"{}")
    single_try: bool = False

    def as_offer(self) -> TaskOffer:
        """The same task as it would be pushed. Its raw JSON is a copy, so that it does not keep the whole answer."""
        return TaskOffer(
            task_id=self.task_id,
            fence=self.fence,
            topic=self.task_type,
            token_id=self.token_id,
            process_instance_id=self.process_instance_id,
            process_definition_id=self.process_definition_id,
            business_key=self.business_key,
            element_id=self.element_id,
            attempt=self.attempt,
            retries_left=self.retries,
            priority=self.priority,
            created_at=self.created_at,
            lock_remaining_ms=self.lock_remaining_ms,
            lock_expires_at=self.lock_expire_at,
            variables=self.variables.copy(),
            headers=self.headers.copy(),
            single_try=self.single_try,
        )


@frozen(kw_only=True)
class LockExtension:
    """The answer to ``POST /external-tasks/{task_id}/extend-lock``."""

    lock_expire_at: str
    lock_remaining_ms: int


@frozen(kw_only=True)
class Problem:
    """What is read of problem details (RFC 9457)."""

    code: str = ""
    """Of the closed list; empty: somebody else answered, such as a proxy."""
    detail: str = ""


_tasks_decoder = msgspec.json.Decoder(list[PulledTask])
_extension_decoder = msgspec.json.Decoder(LockExtension)
_problem_decoder = msgspec.json.Decoder(Problem)


# --- requests ------------------------------------------------------------------------------------------------------


def encode_fetch(request: FetchAndLock) -> bytes:
    fields: dict[str, object] = {
        "worker_id": request.worker_id,
        "task_types": request.task_types,
        "max_tasks": request.max_tasks,
        "lock_duration_ms": request.lock_duration_ms,
        "wait_ms": request.wait_ms,
        "filter": request.filter,
        "variables": request.variables,
    }
    return _encode("fetch-and-lock", fields)


def final_verb(request: Complete | Fail | BpmnErrorReport | Release) -> str:
    """The end of the path: ``/external-tasks/{task_id}/{verb}``."""
    match request:
        case Complete():
            return "complete"
        case Fail():
            return "fail"
        case BpmnErrorReport():
            return "bpmn-error"
        case Release():
            return "unlock"


def encode_final(worker_id: str, request: Complete | Fail | BpmnErrorReport | Release) -> bytes:
    """The body of the request that ends a lease.

    :raises InvalidInput: when a text in it has a lone surrogate, which no UTF-8 can carry.
    """
    return _encode(final_verb(request), {"worker_id": worker_id, "fence": request.fence, **_final_fields(request)})


def _final_fields(request: Complete | Fail | BpmnErrorReport | Release) -> dict[str, object]:
    match request:
        case Complete():
            return {"variables": _unless_nothing(request.variables)}
        case Fail():
            return {
                "error": request.message,
                "details": _unless_nothing(request.details),
                "retry_after_ms": request.retry_after_ms,
                "retries": request.retries,
            }
        case BpmnErrorReport():
            return {
                "code": request.code,
                "message": request.message,
                "details": _unless_nothing(request.details),
                "variables": _unless_nothing(request.variables),
            }
        case Release():
            return {"started": request.started}


def encode_extension(worker_id: str, fence: int, extension_ms: int) -> bytes:
    return _encode("extend-lock", {"worker_id": worker_id, "fence": fence, "extension_ms": extension_ms})


def _unless_nothing(json: msgspec.Raw) -> msgspec.Raw | None:
    return None if bytes(json) in _NOTHING else json


def _encode(what: str, fields: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
    except UnicodeEncodeError:
        raise InvalidInput(f"lone surrogate @ {what}") from None


# --- answers -------------------------------------------------------------------------------------------------------


def decode_tasks(body: bytes) -> list[PulledTask]:
    """:raises InvalidInput: naming what and where, as ``fetch-and-lock: Expected `int`, got `str` @ $[0].fence``."""
    return _decode("fetch-and-lock", _tasks_decoder, body)


def decode_extension(body: bytes) -> LockExtension:
    """Raises as `decode_tasks` does."""
    return _decode("extend-lock", _extension_decoder, body)


def decode_problem(body: bytes) -> Problem:
    """An empty one when the body is something else."""
    try:
        return _problem_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return Problem()


def _decode(what: str, decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except RecursionError:
        raise InvalidInput(f"{what}: nested too deeply @ $") from None
    except msgspec.DecodeError as error:
        text, _, path = str(error).partition(" - at `")
        raise InvalidInput(f"{what}: {text} @ {path.rstrip('`') or '$'}") from None
