"""Answers of the HTTP API: values as JSON, errors as problem details (RFC 9457) with the status that fits."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.definitions import DeployRefused
from stellwerk.errors import (
    CallerError,
    Conflict,
    Forbidden,
    IdempotencyConflict,
    LimitExceeded,
    NotFound,
    NotServed,
    Overloaded,
    PeerError,
    StellwerkError,
    StoreUnavailable,
    Unauthenticated,
)
from stellwerk.server.http.views import finding_view

__all__ = [
    "PROBLEM_TYPE",
    "answer",
    "answer_error",
    "answer_http_exception",
    "answer_problem",
    "answer_text",
    "encoded",
    "headers_of",
    "problem",
    "status_of",
]

PROBLEM_TYPE = "application/problem+json"

_encoder = msgspec.json.Encoder(enc_hook=str)
_RETRY_AFTER_SECONDS = 1
_PLACE = re.compile(r" @ (\$[^\s;]*|query\S*)")


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return answer_text(encoded(value), status, headers)


def encoded(value: object) -> bytes:
    """JSON text."""
    return _encoder.encode(value)


def answer_text(text: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """:param text: JSON, encoded before."""
    return Response(text, status, headers, media_type="application/json")


def status_of(error: StellwerkError) -> int:
    """500: a mistake of ours."""
    match error:
        case DeployRefused():
            return 400
        case Unauthenticated():
            return 401
        case Forbidden():
            return 403
        case NotFound():
            return 404
        case Conflict() | PeerError():
            return 409
        case LimitExceeded():
            return 413
        case IdempotencyConflict():
            return 422
        case NotServed():
            return 501
        case CallerError():
            return 400
        case Overloaded() | StoreUnavailable():
            return 503
        case _:
            return 500


def answer_error(error: StellwerkError, request: Request | None = None) -> Response:
    """As the native API has it; also for requests that are not of any API."""
    status = status_of(error)
    more: dict[str, object] = {}
    if isinstance(error, DeployRefused):
        more["findings"] = [finding_view(file, finding) for file, finding in error.findings]
    return answer_problem(status, error.code, error.message, **more)


def answer_problem(status: int, code: str, detail: str, **more: object) -> Response:
    body = encoded({**problem(status, code, detail), **more})
    return Response(body, status, headers_of(status), media_type=PROBLEM_TYPE)


def problem(status: int, code: str, detail: str) -> dict[str, object]:
    """Problem details (RFC 9457). Beside its members: ``code`` of a closed list, ``error`` (the detail again, where
    workers of other engines look for it), and ``path`` where the detail names a place in the request."""
    found = {"type": f"urn:stellwerk:error:{code}", "title": code.replace("_", " "), "status": status}
    place = _PLACE.search(detail)
    where = {} if place is None else {"path": place[1]}
    return {**found, "detail": detail, "code": code, "error": detail, **where}


def headers_of(status: int) -> dict[str, str] | None:
    if status in (429, 503):
        return {"retry-after": str(_RETRY_AFTER_SECONDS)}
    return {"www-authenticate": 'Bearer realm="stellwerk"'} if status == 401 else None


async def answer_http_exception(_request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid")
    detail = {404: "there is no such path", 405: "the path does not take this method"}
    answer = answer_problem(error.status_code, code, detail.get(error.status_code, error.detail))
    answer.headers.update(error.headers or {})
    return answer
