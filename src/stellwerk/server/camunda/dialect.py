"""Camunda's API as one dialect: what is served, also under the name of the only engine, and 501 for all the rest."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import NotServed
from stellwerk.server.camunda.deployments import DeploymentEndpoints
from stellwerk.server.camunda.external_tasks import ExternalTaskEndpoints
from stellwerk.server.camunda.failures import answer_failure
from stellwerk.server.camunda.instances import InstanceEndpoints
from stellwerk.server.camunda.messages import MessageEndpoints
from stellwerk.server.camunda.retries import RetriesEndpoints
from stellwerk.server.camunda.task_lists import TaskListEndpoints
from stellwerk.server.camunda.unserved import instead_of
from stellwerk.server.camunda.user_tasks import UserTaskEndpoints
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Dialect, Endpoint

__all__ = ["camunda"]

_PREFIX = "/engine-rest"
_ENGINE = "default"
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_SHOWN_CHARS_MAX = 200


def camunda(context: ApiContext) -> Dialect:
    served = list(_served(context))
    named = [attrs.evolve(endpoint, path=f"/engine/{_ENGINE}{endpoint.path}") for endpoint in served]
    others = [Endpoint(method, "/{path:path}", _not_served, None) for method in _METHODS]
    return Dialect(
        prefix=_PREFIX,
        endpoints=[Endpoint("GET", "/engine", _engines, None), *served, *named, *others],
        answer_error=answer_failure,
    )


def _served(context: ApiContext) -> Iterable[Endpoint]:
    # Lists before single ones: `/external-task/count` is no task.
    areas = (
        TaskListEndpoints,
        RetriesEndpoints,
        ExternalTaskEndpoints,
        DeploymentEndpoints,
        InstanceEndpoints,
        MessageEndpoints,
        UserTaskEndpoints,
    )
    for area in areas:
        yield from area(context).endpoints


async def _engines(_request: Request) -> Response:
    return answer([{"name": _ENGINE}])


async def _not_served(request: Request) -> Response:
    path = request.scope["path"]
    shown = path[:_SHOWN_CHARS_MAX]
    behind = path.removeprefix(_PREFIX).removeprefix(f"/engine/{_ENGINE}")
    raise NotServed(f"{request.method} {shown} is not served here: {instead_of(request.method, behind)}")
