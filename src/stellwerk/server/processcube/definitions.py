"""Process definitions and the process models in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import Conflict, InvalidInput, NotFound
from stellwerk.json_values import JsonValue
from stellwerk.ports import DefinitionRow, Scope
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.context import ApiContext, Endpoint
from stellwerk.server.http.endpoints.definitions import split_definition_id
from stellwerk.server.http.permissions import allowed_processes, check_definition, check_process
from stellwerk.server.http.visibility import process_keys_in
from stellwerk.server.http.xml_texts import encoded_as_declared
from stellwerk.server.processcube import shapes
from stellwerk.server.processcube.catalogue import Catalogue, definition_view, model_view
from stellwerk.server.processcube.requests import body_of, no_content, page_of, query_of

__all__ = ["DefinitionEndpoints"]

_DEFINITIONS = "/process_definitions"
_MODELS = "/process_models"
_INSTANCE = "/process_instances/{instance_id}"


class DefinitionEndpoints:
    def __init__(self, context: ApiContext, catalogue: Catalogue) -> None:
        self._context = context
        self._node = context.node
        self._catalogue = catalogue

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        model = _MODELS + "/{model_id}"
        return (
            Endpoint("POST", _DEFINITIONS, self.deploy, Scope.OPERATOR),
            Endpoint("GET", _DEFINITIONS, self.definitions, Scope.CLIENT),
            Endpoint("GET", _DEFINITIONS + "/{definition_id}", self.definition, Scope.CLIENT),
            Endpoint("DELETE", _DEFINITIONS + "/{definition_id}", self.delete_definition, Scope.OPERATOR),
            Endpoint("GET", _MODELS, self.models, Scope.CLIENT),
            Endpoint("GET", model, self.model, Scope.CLIENT),
            Endpoint("GET", model + "/", self.model, Scope.CLIENT),
            Endpoint("DELETE", model, self.delete_model, Scope.OPERATOR),
            Endpoint("GET", model + "/process_definition", self.definition_of_model, Scope.CLIENT),
            Endpoint("POST", model + "/enable", self.enable, Scope.OPERATOR),
            Endpoint("POST", model + "/disable", self.disable, Scope.OPERATOR),
            Endpoint("GET", _INSTANCE + "/process_definition", self.definition_of_instance, Scope.CLIENT),
            Endpoint("GET", _INSTANCE + "/process_model", self.model_of_instance, Scope.CLIENT),
        )

    # --- deploying

    async def deploy(self, request: Request) -> Response:
        body = await body_of(self._context, request, shapes.DeployRequest, self._context.deployment_bytes_max)
        texts = enumerate(_texts(body.xml))
        files = [(f"xml[{index}]", encoded_as_declared(text, f"$.xml[{index}]")) for index, text in texts]
        if body.overwrite_existing is False or allowed_processes(request) is not None:
            for key in await process_keys_in(self._node, files):
                check_process(request, key)
                if body.overwrite_existing is False:
                    await self._refuse_existing(key)
        await self._node.deploy(files)
        return no_content()

    async def _refuse_existing(self, key: str) -> None:
        if await self._node.ports.store.latest_definition(key) is not None:
            raise Conflict(f'process "{key}" is deployed already; overwriteExisting makes a new version of it')

    # --- reading

    async def definitions(self, request: Request) -> Response:
        """Of each process the newest version."""
        query = query_of(request, shapes.DefinitionsQuery)
        rows = await self._catalogue.newest(request)
        offset, limit = page_of(query)
        found = await self._views(rows[offset : offset + limit], with_xml=query.include_xml)
        return await self._answer({"processDefinitions": found, "totalCount": len(rows)}, len(found))

    async def definition(self, request: Request) -> Response:
        query = query_of(request, shapes.DefinitionsQuery)
        row = await self._row(request, request.path_params["definition_id"])
        return await self._answer_definition(row, query)

    async def definition_of_model(self, request: Request) -> Response:
        query = query_of(request, shapes.DefinitionsQuery)
        row = await self._row(request, request.path_params["model_id"])
        return await self._answer_definition(row, query)

    async def definition_of_instance(self, request: Request) -> Response:
        query = query_of(request, shapes.DefinitionsQuery)
        return await self._answer_definition(await self._row_of_instance(request), query)

    async def models(self, request: Request) -> Response:
        query = query_of(request, shapes.DefinitionsQuery)
        rows = await self._catalogue.newest(request)
        offset, limit = page_of(query)
        found = await self._models(rows[offset : offset + limit])
        return await self._answer({"processModels": found, "totalCount": len(rows)}, len(found))

    async def model(self, request: Request) -> Response:
        return await self._answer_model(await self._row(request, request.path_params["model_id"]))

    async def model_of_instance(self, request: Request) -> Response:
        return await self._answer_model(await self._row_of_instance(request))

    async def _answer(self, value: object, rows: int) -> Response:
        return await self._context.answer_long(partial(encoded, value), rows)

    async def _answer_definition(self, row: DefinitionRow, query: shapes.DefinitionsQuery) -> Response:
        return answer((await self._views([row], with_xml=query.include_xml))[0])

    async def _answer_model(self, row: DefinitionRow) -> Response:
        return answer((await self._models([row]))[0])

    async def _views(self, rows: Sequence[DefinitionRow], *, with_xml: bool) -> list[dict[str, object]]:
        disabled = {*await self._node.disabled_processes()}
        deployed = [await self._catalogue.deployed(row.definition_id) for row in rows]
        return [definition_view(one, is_enabled=one.row.key not in disabled, with_xml=with_xml) for one in deployed]

    async def _models(self, rows: Sequence[DefinitionRow]) -> list[dict[str, object]]:
        disabled = {*await self._node.disabled_processes()}
        deployed = [await self._catalogue.deployed(row.definition_id) for row in rows]
        return [model_view(one, is_enabled=one.row.key not in disabled) for one in deployed]

    async def _row(self, request: Request, definition_id: str) -> DefinitionRow:
        """:raises NotFound: it is not deployed; Forbidden: the caller may not see it."""
        check_definition(request, definition_id)
        return await self._node.definition(*split_definition_id(definition_id))

    async def _row_of_instance(self, request: Request) -> DefinitionRow:
        summary = await self._node.ports.store.instance(request.path_params["instance_id"])
        if summary is None:
            raise NotFound(f"there is no instance {request.path_params['instance_id']}")
        return await self._row(request, summary.definition_id)

    # --- changing

    async def delete_definition(self, request: Request) -> Response:
        query_of(request, shapes.DeleteQuery)
        return await self._delete(request, request.path_params["definition_id"])

    async def delete_model(self, request: Request) -> Response:
        return await self._delete(request, request.path_params["model_id"])

    async def _delete(self, request: Request, definition_id: str) -> Response:
        row = await self._row(request, definition_id)
        await self._node.delete_definition(row.definition_id)
        return no_content()

    async def enable(self, request: Request) -> Response:
        return await self._set_enabled(request, is_enabled=True)

    async def disable(self, request: Request) -> Response:
        return await self._set_enabled(request, is_enabled=False)

    async def _set_enabled(self, request: Request, *, is_enabled: bool) -> Response:
        model_id = request.path_params["model_id"]
        check_process(request, model_id)
        await self._node.set_process_enabled(model_id, is_enabled)
        return no_content()


def _texts(value: JsonValue) -> list[str]:
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidInput("expected a BPMN file as text, or an array of such @ $.xml")
    return [str(text) for text in texts]
