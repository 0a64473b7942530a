"""ProcessCube's HTTP API (docs/processcube), as its clients call it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import NotFound, NotServed
from stellwerk.server.http.context import ApiContext, Dialect, Endpoint
from stellwerk.server.processcube.catalogue import Catalogue
from stellwerk.server.processcube.definitions import DefinitionEndpoints
from stellwerk.server.processcube.errors import answer_error
from stellwerk.server.processcube.events import EventEndpoints
from stellwerk.server.processcube.external_tasks import ExternalTaskEndpoints
from stellwerk.server.processcube.flow_nodes import FlowNodeEndpoints
from stellwerk.server.processcube.info import InfoEndpoints
from stellwerk.server.processcube.instance_search import InstanceSearch
from stellwerk.server.processcube.instances import InstanceEndpoints
from stellwerk.server.processcube.notification_hub import NotificationHub
from stellwerk.server.processcube.notifications import LongPollingEndpoints, SocketEndpoints

__all__ = ["NOT_SERVED", "PREFIX", "processcube"]

PREFIX = "/atlas_engine/api/v1"
NOT_SERVED = (
    ("GET", "/anonymous_session/session/{session_id}"),
    ("GET", "/anonymous_session/user/{user_id}"),
    ("POST", "/anonymous_session"),
    ("GET", "/correlations"),
    ("GET", "/correlations/{correlation_id}"),
    ("GET", "/cronjobs/query"),
    ("POST", "/cronjobs/process_models/{model_id}/flow_node/{flow_node_id}/enable"),
    ("POST", "/cronjobs/process_models/{model_id}/flow_node/{flow_node_id}/disable"),
    ("GET", "/data_object_instances/query"),
    ("POST", "/signals/{name}/trigger"),
    ("POST", "/timer/{flow_node_instance_id}/trigger"),
    ("GET", "/process_instances/{instance_id}/find_children"),
    ("GET", "/process_instances/{instance_id}/find_ancestors"),
    ("PUT", "/process_instances/{instance_id}/change_owner"),
    ("DELETE", "/process_instances"),
    ("GET", "/user_metadata/query"),
    ("GET", "/user_metadata/{key}"),
    ("POST", "/user_metadata/{key}"),
    ("DELETE", "/user_metadata/{key}"),
)
"""Of the clients' paths those that are answered with 501."""
_METHODS = ("GET", "POST", "PUT", "DELETE")


def processcube(context: ApiContext) -> Iterator[Dialect]:
    """The API; under a path with two slashes too, which is what an engine's URL with a slash at its end gives."""
    hub = NotificationHub(context.node)
    endpoints = list(_endpoints(context, hub))
    for prefix in (PREFIX, f"/{PREFIX}"):
        yield Dialect(prefix=prefix, endpoints=endpoints, answer_error=answer_error)
    yield Dialect(prefix="", endpoints=SocketEndpoints(context, hub).endpoints, answer_error=answer_error)


def _endpoints(context: ApiContext, hub: NotificationHub) -> Iterable[Endpoint]:
    catalogue, search = Catalogue(context.node), InstanceSearch(context.node)
    yield from InfoEndpoints(context).endpoints
    yield from ExternalTaskEndpoints(context, catalogue).endpoints
    yield from DefinitionEndpoints(context, catalogue).endpoints
    yield from InstanceEndpoints(context, catalogue, search).endpoints
    yield from FlowNodeEndpoints(context, catalogue, search).endpoints
    yield from EventEndpoints(context, catalogue).endpoints
    yield from LongPollingEndpoints(context, hub).endpoints
    for method, path in NOT_SERVED:
        yield Endpoint(method, path, _refuse, None)
    for method in _METHODS:
        yield Endpoint(method, "/{path:path}", _miss, None)


async def _refuse(request: Request) -> Response:
    raise NotServed(f"stellwerk does not serve {request.method} {_shown(request)} of ProcessCube's API")


async def _miss(request: Request) -> Response:
    raise NotFound(f"there is no {request.method} {_shown(request)}")


def _shown(request: Request) -> str:
    path = str(request.scope["path"])
    return path if len(path) <= 200 else f"{path[:200]}…"
