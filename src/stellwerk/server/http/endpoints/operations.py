"""Running an engine: health, figures, nodes, pruning, backups."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from stellwerk.errors import Forbidden, InvalidInput
from stellwerk.ports import Scope
from stellwerk.server.http import requests, shapes, views
from stellwerk.server.http.about import about
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.context import ApiContext, Endpoint, check_limit
from stellwerk.server.http.downloads import FileDownload
from stellwerk.server.http.figures import figures_of
from stellwerk.server.http.metrics import CONTENT_TYPE, Metrics
from stellwerk.server.http.permissions import check_unrestricted
from stellwerk.server.http.siblings import FIGURES_TYPE
from stellwerk.wire.messages import SUBPROTOCOL, WORKERS_PATH

__all__ = ["HealthEndpoints", "OperationEndpoints"]

_TEXT = "text/plain; charset=utf-8"
_BACKUP_NAME = "stellwerk-backup.db"


class HealthEndpoints:
    """Beside the API."""

    def __init__(self, context: ApiContext) -> None:
        self._draining = context.draining
        self._node = context.node
        self._metrics = Metrics(context.node)
        self._siblings = context.siblings

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", "/livez", self.livez, None),
            Endpoint("GET", "/readyz", self.readyz, None),
            Endpoint("GET", "/metrics", self.metrics, Scope.CLIENT),
            Endpoint("GET", WORKERS_PATH, self.workers, None),
        )

    @about("Whether the process answers", content_type=_TEXT)
    async def livez(self, _request: Request) -> Response:
        return PlainTextResponse("ok")

    @about(
        "Whether the engine takes requests",
        content_type=_TEXT,
        plain_errors={503: "It is about to stop, or its database does not answer."},
    )
    async def readyz(self, _request: Request) -> Response:
        if self._draining.begun:
            return PlainTextResponse("draining", 503)
        trouble = self._node.ports.store.trouble()
        if trouble is not None:
            return PlainTextResponse(trouble, 503)
        return PlainTextResponse("ok")

    @about("Figures for Prometheus", content_type=CONTENT_TYPE)
    async def metrics(self, request: Request) -> Response:
        if request.headers.get("accept") == FIGURES_TYPE:
            return Response(encoded(figures_of(self._node)), headers={"content-type": FIGURES_TYPE})
        others = () if self._siblings is None else await self._siblings.figures()
        return Response(await self._metrics.text(others), headers={"content-type": CONTENT_TYPE})

    async def workers(self, _request: Request) -> Response:
        """Upgrade requests do not come here."""
        raise InvalidInput(f"this path takes WebSocket connections with subprotocol {SUBPROTOCOL}")


class OperationEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", "/statistics", self.statistics, Scope.CLIENT),
            Endpoint("GET", "/nodes", self.nodes, Scope.CLIENT),
            Endpoint("POST", "/prune", self.prune, Scope.OPERATOR),
            Endpoint("GET", "/backup", self.backup, Scope.OPERATOR),
        )

    @about("Figures of this process, for people", shapes.Statistics)
    async def statistics(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        return answer(self._node.statistics())

    @about("Every process on the database", shapes.Nodes)
    async def nodes(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        now_ms = self._node.ports.clock.wall_ms()
        rows = await self._node.nodes()
        return answer({"nodes": [views.node_view(row, now_ms) for row in rows]})

    @about("Delete instances that ended long ago", shapes.Pruned, body=requests.PruneRequest)
    async def prune(self, request: Request) -> Response:
        body = await self._context.body(request, requests.PruneRequest)
        check_limit(body.limit, "$.limit")
        check_unrestricted(request, "pruning")
        pruned = await self._node.prune_slice(body.older_than_ms, body.limit)
        return answer({"instances": pruned, "more": pruned > 0})

    @about(
        "A consistent copy of the database file",
        content_type="application/octet-stream",
        codes=("busy", "conflict"),
    )
    async def backup(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        if request.headers.get("sec-fetch-site") == "cross-site":
            # Such a page could not read it, but keep the disk busy.
            raise Forbidden("another site's page may not do this")
        if request.method == "HEAD":
            return Response(media_type="application/octet-stream")
        check_unrestricted(request, "a copy of everything")
        copy = self._node.backup_copy()
        try:
            await self._context.unless_gone(request, copy.write)
        except BaseException:
            copy.close()
            raise
        return FileDownload(copy, name=_BACKUP_NAME, runner=self._node.ports.background)
