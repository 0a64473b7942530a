"""``/process-instance``: those that run. One that has ended is unknown there, as in Camunda's runtime."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import NotFound, NotServed
from stellwerk.json_values import JsonObject
from stellwerk.ports import InstanceFilter, InstanceSummary, Scope
from stellwerk.server.camunda.lists import ListEndpoints
from stellwerk.server.camunda.reading import Row, collected, list_query, payload
from stellwerk.server.camunda.shapes import ProcessInstancesQuery, ValuesQuery, VariablesRequest
from stellwerk.server.camunda.typed_values import kept_value, kept_variables, typed_value, typed_variables
from stellwerk.server.camunda.views import instance_view, self_link
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.context import ApiContext, Endpoint, identity_of
from stellwerk.server.http.foreign_texts import check_name
from stellwerk.server.http.permissions import allowed_processes, check_process

__all__ = ["InstanceEndpoints"]

_PATH = "/process-instance"
_ONE = f"{_PATH}/{{instance_id}}"
_SORTABLE = {
    "instanceId": "id",
    "definitionId": "definitionId",
    "definitionKey": "definitionKey",
    "businessKey": "businessKey",
}
_RUNNING = "RUNNING"


class InstanceEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            *ListEndpoints(self._context, _PATH, ProcessInstancesQuery, self.rows).endpoints,
            Endpoint("GET", _ONE, self.instance, Scope.CLIENT),
            Endpoint("DELETE", _ONE, self.delete, Scope.OPERATOR),
            Endpoint("GET", f"{_ONE}/variables", self.variables, Scope.CLIENT),
            Endpoint("POST", f"{_ONE}/variables", self.set_variables, Scope.OPERATOR),
            Endpoint("GET", f"{_ONE}/variables/{{name}}", self.variable, Scope.CLIENT),
            Endpoint("PUT", f"{_ONE}/variables/{{name}}", self.set_variable, Scope.OPERATOR),
        )

    # --- lists -------------------------------------------------------------------------------------------------------

    async def rows(self, request: Request, query: ProcessInstancesQuery) -> list[Row]:
        if query.suspended:
            return []
        wanted = InstanceFilter(
            status=_RUNNING,
            process_key=query.process_definition_key,
            definition_id=query.process_definition_id,
            business_key=query.business_key,
            with_incident=query.with_incident or None,
            process_keys=allowed_processes(request),
        )
        ids = query.process_instance_ids
        identity = identity_of(request)

        async def read(limit: int, after: str | None) -> Sequence[InstanceSummary]:
            return await self._node.instances(wanted, limit=limit, after=after)

        def view(row: InstanceSummary) -> Row | None:
            is_asked = ids is None or row.instance_id in ids
            return _linked_view(row) if is_asked and identity.may_see(row.process_key) else None

        return await collected([read], lambda row: row.instance_id, view, query, _SORTABLE)

    # --- one ---------------------------------------------------------------------------------------------------------

    async def instance(self, request: Request) -> Response:
        return answer(_linked_view(await self._running(request)))

    async def delete(self, request: Request) -> Response:
        summary = await self._running(request)
        await self._node.cancel_instance(summary.instance_id, "deleted over Camunda's API")
        return Response(status_code=204)

    async def _running(self, request: Request) -> InstanceSummary:
        """The one that the path names. :raises NotFound: there is none, or it has ended."""
        instance_id = request.path_params["instance_id"]
        summary = await self._node.wait_for_end(instance_id, timeout_seconds=0)
        check_process(request, summary.process_key)
        if summary.status != _RUNNING:
            raise NotFound(f"Process instance with id {instance_id} does not exist")
        return summary

    # --- its variables -----------------------------------------------------------------------------------------------

    async def variables(self, request: Request) -> Response:
        query = list_query(request, ValuesQuery)
        variables = await self._variables(request)

        def text() -> bytes:
            return encoded(typed_variables(variables, deserialized=query.deserialize_values))

        return await self._context.answer_long(text, len(variables))

    async def variable(self, request: Request) -> Response:
        query = list_query(request, ValuesQuery)
        variables = await self._variables(request)
        name = request.path_params["name"]
        if name not in variables:
            raise NotFound(f"process instance variable with name {name[:100]} does not exist")
        return answer(typed_value(variables[name], deserialized=query.deserialize_value))

    async def _variables(self, request: Request) -> JsonObject:
        summary = await self._running(request)
        return (await self._node.outcome(summary.instance_id)).variables

    async def set_variable(self, request: Request) -> Response:
        value = await self._context.json_body(request, self._context.payload_request_bytes_max)
        name = request.path_params["name"]
        check_name(name, "path.name")
        kept = kept_value(value, "$")
        summary = await self._running(request)
        await self._node.set_variables(summary.instance_id, {name: kept})
        return Response(status_code=204)

    async def set_variables(self, request: Request) -> Response:
        body = await payload(self._context, request, VariablesRequest)
        if body.deletions:
            raise NotServed("variables cannot be deleted: set them to null @ $.deletions")
        variables = kept_variables(body.modifications, "$.modifications")
        summary = await self._running(request)
        await self._node.set_variables(summary.instance_id, variables)
        return Response(status_code=204)


def _linked_view(row: InstanceSummary) -> Row:
    return {"links": [self_link("GET", f"{_PATH}/{row.instance_id}")], **instance_view(row)}
