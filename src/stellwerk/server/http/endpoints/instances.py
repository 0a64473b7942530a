"""Process instances: starting, listing, showing, waiting for, changing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.views import InstanceView
from stellwerk.errors import InvalidInput
from stellwerk.ports import InstanceFilter, InstanceSummary, Scope
from stellwerk.server.http import requests, shapes, views
from stellwerk.server.http.about import about
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.codes import STATE_CODES
from stellwerk.server.http.context import ApiContext, Endpoint, check_lengths, piece
from stellwerk.server.http.endpoints.definitions import split_definition_id
from stellwerk.server.http.endpoints.histories import HistoryPiece, first_history_piece
from stellwerk.server.http.idempotency import idempotency_key
from stellwerk.server.http.permissions import allowed_processes, check_process
from stellwerk.server.http.visibility import check_instance

__all__ = ["InstanceEndpoints"]

_WAIT_MS_MAX = 600_000
_PATH = "/process-instances"


class InstanceEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", _PATH, self.start, Scope.CLIENT),
            Endpoint("GET", _PATH, self.instances, Scope.CLIENT),
            Endpoint("GET", _PATH + "/{instance_id}", self.instance, Scope.CLIENT),
            Endpoint("GET", _PATH + "/{instance_id}/wait", self.wait, Scope.CLIENT),
            Endpoint("POST", _PATH + "/{instance_id}/cancel", self.cancel, Scope.OPERATOR),
            Endpoint("POST", _PATH + "/{instance_id}/variables", self.set_variables, Scope.OPERATOR),
        )

    @about(
        "Start an instance",
        shapes.Started,
        status=201,
        body=requests.StartRequest,
        codes=("not_found", "conflict", "ambiguous_start", "disabled", "idempotency_conflict"),
        headers={"Location": "The path of the instance."},
        has_idempotency_key=True,
    )
    async def start(self, request: Request) -> Response:
        body = await self._context.payload(request, requests.StartRequest)
        instance_id = await self.start_as(request, body)
        headers = {"location": f"/api/v1{_PATH}/{instance_id}"}
        if body.wait_ms is None:
            summary = await self._node.wait_for_end(instance_id, timeout_seconds=0)
            return answer({"instance_id": instance_id, "status": summary.status}, 201, headers)
        await self._wait(request, instance_id, body.wait_ms, or_incident=True)
        return answer(views.outcome_view(await self._node.outcome(instance_id)), 201, headers)

    async def start_as(self, request: Request, body: requests.StartRequest) -> str:
        """→ the id of the instance, as soon as it is durable."""
        request_id = idempotency_key(request, body.request_id, "request_id")
        check_lengths(business_key=body.business_key, request_id=request_id)
        if body.wait_ms is not None:
            _check_wait(body.wait_ms, "$.wait_ms")
        process_key, version = split_definition_id(body.process_def_id)
        check_process(request, process_key)
        return await self._node.start_instance(
            process_key,
            body.variables,
            business_key=body.business_key,
            request_id=request_id,
            start_event_id=body.start_event_id,
            version=version,
        )

    @about("Find instances", shapes.Instances, query=requests.InstancesQuery)
    async def instances(self, request: Request) -> Response:
        query = self._context.page_query(request, requests.InstancesQuery)
        wanted = InstanceFilter(
            status=query.status,
            process_key=query.process,
            process_keys=allowed_processes(request),
            definition_id=query.definition_id,
            business_key=query.business_key,
            with_incident=query.with_incident,
            started_from_ms=query.started_from,
            started_before_ms=query.started_before,
        )
        found = await self._node.instances(wanted, limit=query.limit + 1, after=query.after)
        counts = await self._node.incident_counts([row.instance_id for row in found[: query.limit]])

        def view(row: InstanceSummary) -> dict[str, object]:
            return views.summary_view(row, counts.get(row.instance_id, 0))

        return await self._context.answer_page("instances", found, query.limit, view)

    @about("An instance with all that belongs to it", shapes.Instance, query=requests.InstanceQuery)
    async def instance(self, request: Request) -> Response:
        query = self._context.query(request, requests.InstanceQuery)
        instance_id = request.path_params["instance_id"]
        await check_instance(request, self._node, instance_id)
        async with self._context.whole_instances:
            view = await self._node.view(instance_id, with_history=False)
            history = await first_history_piece(self._node, instance_id) if query.history else None
            rows = len(view.tasks) + len(view.tokens)
            return await self._context.answer_long(partial(_whole_text, view, history), rows)

    @about("Wait for the end", shapes.InstanceSummary, query=requests.WaitQuery)
    async def wait(self, request: Request) -> Response:
        query = self._context.query(request, requests.WaitQuery)
        _check_wait(query.timeout_ms, "query.timeout_ms")
        instance_id = request.path_params["instance_id"]
        await check_instance(request, self._node, instance_id)
        await self._wait(request, instance_id, query.timeout_ms, or_incident=query.or_incident)
        summary = await self._node.wait_for_end(instance_id, timeout_seconds=0)
        counts = await self._node.incident_counts([instance_id])
        return answer(views.summary_view(summary, counts.get(instance_id, 0)))

    async def _wait(self, request: Request, instance_id: str, wait_ms: int, *, or_incident: bool) -> None:
        """Until then, or until nobody is there any more, or one who only closed the sending side, or we drain."""
        await self._context.unless_gone(
            request,
            lambda: self._node.wait_for_end(instance_id, timeout_seconds=wait_ms / 1000, or_incident=or_incident),
        )

    @about("Cancel an instance", shapes.Done, body=requests.CancelRequest, codes=STATE_CODES)
    async def cancel(self, request: Request) -> Response:
        body = await self._context.payload(request, requests.CancelRequest)
        instance_id = request.path_params["instance_id"]
        await check_instance(request, self._node, instance_id)
        await self._node.cancel_instance(instance_id, body.reason)
        return answer({})

    @about("Set variables", shapes.Done, body=requests.SetVariablesRequest, codes=STATE_CODES)
    async def set_variables(self, request: Request) -> Response:
        body = await self._context.payload(request, requests.SetVariablesRequest)
        instance_id = request.path_params["instance_id"]
        await check_instance(request, self._node, instance_id)
        await self._node.set_variables(instance_id, body.variables)
        return answer({})


def _check_wait(wait_ms: int, where: str) -> None:
    if wait_ms > _WAIT_MS_MAX:
        raise InvalidInput(f"at most {_WAIT_MS_MAX} @ {where}")


def _whole_text(view: InstanceView, history: HistoryPiece | None) -> bytes:
    whole: dict[str, object] = {
        **views.summary_view(view.summary, len(view.incidents)),
        "reason": view.reason,
        "current_nodes": view.current_nodes,
        "tokens": [piece(views.token_view(token, view.waits.get(token.id, ()))) for token in view.tokens],
        "variables": view.variables,
        "tasks": [piece(views.task_view(task, attempts)) for task, attempts in view.tasks],
        "incidents": [piece(views.mapping_view(row)) for row in view.incidents],
        "user_tasks": [piece(views.mapping_view(row)) for row in view.user_tasks],
    }
    if history is not None:
        whole |= {"history": history.events, "more_history": history.more}
    return encoded(whole)
