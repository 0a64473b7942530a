"""Errors as Camunda writes them, ``{"type", "message", "code"}``, with the statuses that its clients know."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.definitions import DeployRefused, Found
from stellwerk.errors import (
    Conflict,
    Forbidden,
    InvariantBroken,
    NotFound,
    PeerError,
    StellwerkError,
    StoreUnavailable,
    Unauthenticated,
)
from stellwerk.model.process import Finding, Severity
from stellwerk.server.http.answers import answer, headers_of, status_of

__all__ = ["answer_failure"]

_FINISHED = frozenset({"already_finished", "cancelled"})


def answer_failure(error: StellwerkError, _request: Request) -> Response:
    status = _status_of(error)
    body: dict[str, object] = {"type": _type_of(error), "message": error.message, "code": _code_of(error)}
    if isinstance(error, DeployRefused):
        body["details"] = _details(error.findings)
    return answer(body, status, headers_of(status))


def _status_of(error: StellwerkError) -> int:
    """Camunda knows 400 for a lock that is another worker's, and 404 for a task that is finished: it deletes them."""
    if isinstance(error, PeerError):
        return 404 if error.code in _FINISHED else 400
    return 400 if isinstance(error, Conflict) else status_of(error)


def _type_of(error: StellwerkError) -> str:
    match error:
        case DeployRefused():
            return "ParseException"
        case Unauthenticated() | Forbidden():
            return "AuthorizationException"
        case PeerError() | NotFound() | Conflict():
            return "RestException"
        case InvariantBroken() | StoreUnavailable():
            return "ProcessEngineException"
        case _:
            return "InvalidRequestException"


def _code_of(error: StellwerkError) -> int | None:
    """Camunda's numbers are for its own database; 0 is the one for everything else."""
    return 0 if isinstance(error, InvariantBroken | StoreUnavailable) else None


def _details(found: Iterable[Found]) -> dict[str, dict[str, list[dict[str, object]]]]:
    details: dict[str, dict[str, list[dict[str, object]]]] = {}
    for file, finding in found:
        of_file = details.setdefault(file, {"errors": [], "warnings": []})
        of_file["errors" if finding.severity is Severity.ERROR else "warnings"].append(_problem(finding))
    return details


def _problem(finding: Finding) -> dict[str, object]:
    element_ids = [] if finding.element_id is None else [finding.element_id]
    return {
        "message": finding.what,
        "line": finding.position.line,
        "column": finding.position.column,
        "mainElementId": finding.element_id,
        "elementIds": element_ids,
    }
