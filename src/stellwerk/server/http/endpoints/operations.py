"""Running an engine: health, figures, nodes, pruning, backups."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from stellwerk.server.http import requests, views
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.context import ApiContext, Endpoint, check_limit
from stellwerk.server.http.downloads import FileDownload
from stellwerk.server.http.figures import figures_of
from stellwerk.server.http.metrics import CONTENT_TYPE, Metrics
from stellwerk.server.http.siblings import FIGURES_TYPE
from stellwerk.wire.messages import SUBPROTOCOL

__all__ = ["HealthEndpoints", "OperationEndpoints"]

_BACKUP_NAME = "stellwerk-backup.db"


class HealthEndpoints:
    """Beside the API."""

    def __init__(self, context: ApiContext) -> None:
        self._draining = context.draining
        self._node = context.node
        self._metrics = Metrics(context.node)
        self._siblings = context.siblings

    async def livez(self, _request: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(self, _request: Request) -> Response:
        if self._draining.begun:
            return PlainTextResponse("draining", 503)
        trouble = self._node.ports.store.trouble()
        if trouble is not None:
            return PlainTextResponse(trouble, 503)
        return PlainTextResponse("ok")

    async def metrics(self, request: Request) -> Response:
        if request.headers.get("accept") == FIGURES_TYPE:
            return Response(encoded(figures_of(self._node)), headers={"content-type": FIGURES_TYPE})
        others = () if self._siblings is None else await self._siblings.figures()
        return Response(await self._metrics.text(others), headers={"content-type": CONTENT_TYPE})

    async def workers(self, _request: Request) -> Response:
        """Upgrade requests do not come here."""
        message = f"this path takes WebSocket connections with subprotocol {SUBPROTOCOL}"
        return answer({"code": "invalid", "message": message}, 400)


class OperationEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", "/statistics", self.statistics),
            Endpoint("GET", "/nodes", self.nodes),
            Endpoint("POST", "/prune", self.prune),
            Endpoint("GET", "/backup", self.backup),
        )

    async def statistics(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        return answer(self._node.statistics())

    async def nodes(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        now_ms = self._node.ports.clock.wall_ms()
        rows = await self._node.nodes()
        return answer({"nodes": [views.node_view(row, now_ms) for row in rows]})

    async def prune(self, request: Request) -> Response:
        body = await self._context.body(request, requests.PruneRequest)
        check_limit(body.limit, "$.limit")
        pruned = await self._node.prune_slice(body.older_than_ms, body.limit)
        return answer({"instances": pruned, "more": pruned > 0})

    async def backup(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        if request.headers.get("sec-fetch-site") == "cross-site":
            # Such a page could not read it, but keep the disk busy.
            return answer({"code": "forbidden", "message": "another site's page may not do this"}, 403)
        if request.method == "HEAD":
            return Response(media_type="application/octet-stream")
        copy = self._node.backup_copy()
        try:
            await self._context.unless_gone(request, copy.write)
        except BaseException:
            copy.close()
            raise
        return FileDownload(copy, name=_BACKUP_NAME, runner=self._node.ports.background)
