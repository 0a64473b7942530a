"""``/process-definitions``: deploying BPMN files, as bpm-engine's server takes them and as its specification says."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.definitions import Deployment
from stellwerk.errors import InvalidInput, NotServed
from stellwerk.model.reader import read_definitions
from stellwerk.ports import Scope
from stellwerk.server.bpm_engine.requests import DefinitionRequest, body_of
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint
from stellwerk.server.http.visibility import check_files
from stellwerk.server.http.xml_texts import encoded_as_declared

__all__ = ["DefinitionEndpoints"]

_FILE_NAME = "process.bpmn"
"""These requests name none."""


class DefinitionEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", "/process-definitions", self.deploy_definition, Scope.OPERATOR),
            Endpoint("POST", "/process-definitions/deploy", self.deploy_file, Scope.OPERATOR),
        )

    async def deploy_file(self, request: Request) -> Response:
        """The body is the file."""
        xml = await self._context.raw_body(request, self._node.limits.definition_bytes_max)
        deployment = await self._deploy(request, xml)
        keys = [*(row.key for row in deployment.definitions), *deployment.unchanged]
        return answer({"process_definition_id": keys[0]}, 201)

    async def deploy_definition(self, request: Request) -> Response:
        body = await body_of(self._context, request, DefinitionRequest, self._context.deployment_bytes_max)
        if not isinstance(body.definition, str):
            raise NotServed(
                "processes have no JSON form here: give the BPMN file as text, or as it is to "
                "POST /process-definitions/deploy @ $.definition"
            )
        xml = encoded_as_declared(body.definition, "$.definition")
        await self._check_id(body.id, xml)
        await self._deploy(request, xml)
        versions = [row.version for row in await self._node.definitions() if row.key == body.id]
        return answer({"id": body.id, "version": str(max(versions)), "status": "DEPLOYED"}, 201)

    async def _check_id(self, process_key: str, xml: bytes) -> None:
        """Before anything is deployed. A file in which nothing can be found is refused with its findings, by trying."""

        def runnable_keys() -> list[str]:
            if len(xml) > self._node.limits.definition_bytes_max:
                return []
            found = read_definitions(xml, limits=self._node.limits).processes
            return [process.key for process in found if process.executable]

        keys = await self._node.ports.background.run_sync(runnable_keys)
        if keys and process_key not in keys:
            raise InvalidInput(f"the file has no such process that can run, but {', '.join(keys[:10])} @ $.id")

    async def _deploy(self, request: Request, xml: bytes) -> Deployment:
        files = [(_FILE_NAME, xml)]
        await check_files(request, self._node, files)
        return await self._node.deploy(files)
