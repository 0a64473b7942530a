"""The HTTP API (docs/http-api): its endpoints in one application, and how errors become answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from stellwerk.actors.definitions import DeployRefused
from stellwerk.actors.node import Node
from stellwerk.errors import StellwerkError
from stellwerk.ports import Entropy, Log
from stellwerk.server.http import views
from stellwerk.server.http.answers import answer, answer_error, answer_http_exception, status_of
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.context import ApiContext, Endpoint, RunEndpoint
from stellwerk.server.http.endpoints.definitions import DefinitionEndpoints
from stellwerk.server.http.endpoints.histories import HistoryEndpoints
from stellwerk.server.http.endpoints.incidents import IncidentEndpoints
from stellwerk.server.http.endpoints.instances import InstanceEndpoints
from stellwerk.server.http.endpoints.operations import HealthEndpoints, OperationEndpoints
from stellwerk.server.http.endpoints.people import PeopleEndpoints
from stellwerk.server.http.endpoints.tasks import TaskEndpoints
from stellwerk.server.http.siblings import Siblings
from stellwerk.wire.messages import WORKERS_PATH

__all__ = ["Api", "is_foreign"]

_PREFIX = "/api/v1"


class Api:
    def __init__(
        self, node: Node, *, entropy: Entropy, log: Log, draining: Draining, siblings: Siblings | None = None
    ) -> None:
        self._context = ApiContext(node, draining, siblings)
        self._entropy = entropy
        self.log = log

    def application(self) -> Starlette:
        health = HealthEndpoints(self._context)
        application = Starlette(
            routes=[
                Route("/livez", self._guarded(health.livez)),
                Route("/readyz", self._guarded(health.readyz)),
                Route("/metrics", self._guarded(health.metrics)),
                Route(WORKERS_PATH, self._guarded(health.workers)),
                *self._routes(self._endpoints()),
            ],
            exception_handlers={HTTPException: answer_http_exception},
        )
        # A redirect would be to whatever the Host header says.
        application.router.redirect_slashes = False
        return application

    def _endpoints(self) -> Iterable[Endpoint]:
        areas = (
            DefinitionEndpoints,
            InstanceEndpoints,
            HistoryEndpoints,
            TaskEndpoints,
            PeopleEndpoints,
            IncidentEndpoints,
            OperationEndpoints,
        )
        for area in areas:
            yield from area(self._context).endpoints

    def _routes(self, endpoints: Iterable[Endpoint]) -> list[Route]:
        by_path: dict[str, dict[str, RunEndpoint]] = {}
        for endpoint in endpoints:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = self._guarded(endpoint.run)
        return [Route(_PREFIX + path, _by_method(methods), methods=list(methods)) for path, methods in by_path.items()]

    def _guarded(self, endpoint: RunEndpoint) -> RunEndpoint:
        """Every error becomes an answer; what is our mistake is logged, and told by a reference only."""

        async def run(request: Request) -> Response:
            try:
                if request.method != "GET" and is_foreign(request.headers.get("origin"), request.headers.get("host")):
                    return answer({"code": "forbidden", "message": "another site's page may not do this"}, 403)
                return await endpoint(request)
            except DeployRefused as error:
                findings = [views.finding_view(file, finding) for file, finding in error.findings]
                return answer_error(error, 400, findings=findings)
            except StellwerkError as error:
                status = status_of(error)
                if status is not None:
                    return answer_error(error, status)
                reference = self._entropy.uuid()
                self.log.exception("request_failed", reference=reference, path=request.scope["path"])
            except (ClientDisconnect, HTTPException):
                raise
            except Exception:
                reference = self._entropy.uuid()
                self.log.exception("request_failed", reference=reference, path=request.scope["path"])
            return answer({"code": "internal", "message": f"an internal error; the log has it under {reference}"}, 500)

        return run


def is_foreign(origin: str | None, host: str | None) -> bool:
    """Whether a browser says that a page of another site sends this request. Programs send no origin."""
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != host
    except ValueError:
        return True


def _by_method(endpoints: Mapping[str, RunEndpoint]) -> RunEndpoint:
    async def run(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await endpoints[method](request)

    return run
