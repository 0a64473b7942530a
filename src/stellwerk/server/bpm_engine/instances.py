"""``/process-instances``: starting, looking, cancelling."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.core.instance import InstanceStatus
from stellwerk.ports import Scope
from stellwerk.server.bpm_engine.requests import StartRequest, body_of
from stellwerk.server.bpm_engine.views import instance_view, status_of
from stellwerk.server.http import requests as native
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint
from stellwerk.server.http.endpoints.instances import InstanceEndpoints as NativeEndpoints
from stellwerk.server.http.visibility import check_instance

__all__ = ["InstanceEndpoints"]

_PATH = "/process-instances"


class InstanceEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node
        self._native = NativeEndpoints(context)

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", _PATH, self.start, Scope.CLIENT),
            Endpoint("GET", _PATH + "/{instance_id}", self.instance, Scope.CLIENT),
            Endpoint("POST", _PATH + "/{instance_id}/cancel", self.cancel, Scope.OPERATOR),
        )

    async def start(self, request: Request) -> Response:
        body = await body_of(self._context, request, StartRequest)
        start = native.StartRequest(process_def_id=body.process_def_id, variables=body.variables)
        instance_id = await self._native.start_as(request, start)
        summary = await self._node.wait_for_end(instance_id, timeout_seconds=0)
        return answer({"instance_id": instance_id, "status": status_of(summary.status)}, 201)

    async def instance(self, request: Request) -> Response:
        instance_id = request.path_params["instance_id"]
        await check_instance(request, self._node, instance_id)
        async with self._context.whole_instances:
            view = await self._node.view(instance_id, with_history=False)
        return answer(instance_view(view.summary, view.current_nodes))

    async def cancel(self, request: Request) -> Response:
        await self._native.cancel(request)
        return answer({"instance_id": request.path_params["instance_id"], "status": _CANCELLED})


_CANCELLED = status_of(InstanceStatus.CANCELLED.value)
