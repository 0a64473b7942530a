"""bpm-engine's API as one dialect: what is served, and 501 with the way out for all the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.definitions import DeployRefused
from stellwerk.errors import NotServed, StellwerkError
from stellwerk.server.bpm_engine.definitions import DefinitionEndpoints
from stellwerk.server.bpm_engine.external_tasks import ExternalTaskEndpoints
from stellwerk.server.bpm_engine.histories import HistoryEndpoints
from stellwerk.server.bpm_engine.instances import InstanceEndpoints
from stellwerk.server.bpm_engine.tasks import TaskEndpoints
from stellwerk.server.http.answers import answer, headers_of, status_of
from stellwerk.server.http.context import ApiContext, Dialect, Endpoint
from stellwerk.server.http.views import finding_view

__all__ = ["NOT_SERVED", "PREFIX", "bpm_engine"]

PREFIX = "/bpm-engine/api/v1"
NOT_SERVED: Mapping[tuple[str, str], str] = {
    ("POST", "/signals"): "signals come with a later version; POST /api/v1/messages reaches one instance",
    ("GET", "/process-definitions/{definition_id}"): "GET /api/v1/process-definitions/{id}/xml has the file",
    ("POST", "/tokens/{token_id}/retry"): "POST /api/v1/incidents/retry tries again what is stuck",
    ("POST", "/process-instances/{instance_id}/replay"): "GET /api/v1/process-instances/{id}/state has any step",
    ("POST", "/replay/{session_id}/step"): "GET /api/v1/process-instances/{id}/state has any step",
    ("POST", "/replay/{session_id}/seek"): "GET /api/v1/process-instances/{id}/state has any step",
    ("GET", "/replay/{session_id}/snapshot"): "GET /api/v1/process-instances/{id}/state has any step",
    ("DELETE", "/replay/{session_id}"): "GET /api/v1/process-instances/{id}/state has any step, without sessions",
}
"""Requests that bpm-engine answers and this engine does not, and what does it instead."""
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_SHOWN_CHARS_MAX = 200


def bpm_engine(context: ApiContext) -> Dialect:
    unserved = [Endpoint(method, path, _refuse(way_out), None) for (method, path), way_out in NOT_SERVED.items()]
    others = [Endpoint(method, "/{path:path}", _not_served, None) for method in _METHODS]
    return Dialect(prefix=PREFIX, endpoints=[*_served(context), *unserved, *others], answer_error=_answer_failure)


def _served(context: ApiContext) -> Iterable[Endpoint]:
    for area in (ExternalTaskEndpoints, DefinitionEndpoints, InstanceEndpoints, HistoryEndpoints, TaskEndpoints):
        yield from area(context).endpoints


def _answer_failure(error: StellwerkError, _request: Request) -> Response:
    """Its SDK reads ``error``; the code is for who wants to tell errors apart."""
    status = status_of(error)
    body: dict[str, object] = {"error": error.message, "code": error.code}
    if isinstance(error, DeployRefused):
        body["findings"] = [finding_view(file, finding) for file, finding in error.findings]
    return answer(body, status, headers_of(status))


def _refuse(way_out: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(_request: Request) -> Response:
        raise NotServed(way_out)

    return refuse


async def _not_served(request: Request) -> Response:
    path = request.scope["path"][:_SHOWN_CHARS_MAX]
    raise NotServed(f"{request.method} {path} is not served here; docs/bpm-engine has the list of what is")
