"""Deploying processes, and what is deployed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import InvalidInput
from stellwerk.model.process import FailurePolicy
from stellwerk.ports import DefinitionRow, Scope
from stellwerk.server.http import requests, shapes, views
from stellwerk.server.http.about import about
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint
from stellwerk.server.http.permissions import (
    check_definition,
    check_process,
    may_see_definition,
)
from stellwerk.server.http.visibility import check_files
from stellwerk.server.http.xml_texts import encoded_as_declared

__all__ = ["DefinitionEndpoints", "split_definition_id"]

_VERSION_DIGITS_MAX = 15
_XML_HEADERS = {
    # A file of a user's is not to run as a page of ours in somebody's browser.
    "content-disposition": "attachment",
    "content-security-policy": "sandbox",
    "x-content-type-options": "nosniff",
}


class DefinitionEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", "/process-definitions", self.deploy, Scope.OPERATOR),
            Endpoint("GET", "/process-definitions", self.definitions, Scope.CLIENT),
            Endpoint("GET", "/process-definitions/{definition_id}/xml", self.xml, Scope.CLIENT),
            Endpoint("DELETE", "/process-definitions/{definition_id}", self.delete, Scope.OPERATOR),
            Endpoint("POST", "/process-definitions/{process_key}/enable", self.enable, Scope.OPERATOR),
            Endpoint("POST", "/process-definitions/{process_key}/disable", self.disable, Scope.OPERATOR),
        )

    @about(
        "Deploy BPMN files, all or none of them",
        shapes.Deployed,
        status=201,
        body=requests.DeployRequest,
        codes=("deploy_refused", "conflict"),
    )
    async def deploy(self, request: Request) -> Response:
        body = await self._context.body(request, requests.DeployRequest, self._context.deployment_bytes_max)
        files = [(file.name, _file_bytes(file, index)) for index, file in enumerate(body.files)]
        await check_files(request, self._node, files)
        deployment = await self._node.deploy(
            files,
            failure_policy=None if body.failure_policy is None else FailurePolicy(body.failure_policy),
            adopt_java=body.adopt_java,
        )
        return answer(
            {
                "definitions": [views.definition_view(row) for row in deployment.definitions],
                "unchanged": list(deployment.unchanged),
                "warnings": [views.finding_view(file, finding) for file, finding in deployment.warnings],
            },
            201,
        )

    @about("All versions of all processes", shapes.Definitions)
    async def definitions(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        rows = [row for row in await self._node.definitions() if may_see_definition(request, row.definition_id)]
        disabled = {*await self._node.disabled_processes()}

        def view(row: DefinitionRow) -> dict[str, object]:
            return {**views.definition_view(row), "is_enabled": row.key not in disabled}

        return await self._context.answer_rows("definitions", rows, view)

    @about("The file that was deployed, byte for byte", content_type="application/xml")
    async def xml(self, request: Request) -> Response:
        """The very bytes that were deployed; what encoding they are in stands in them."""
        self._context.query(request, requests.NoQuery)
        check_definition(request, request.path_params["definition_id"])
        row = await self._node.definition(*split_definition_id(request.path_params["definition_id"]))
        return Response(row.xml, headers=_XML_HEADERS, media_type="application/xml")

    @about("Delete one version", shapes.Done, codes=("in_use",))
    async def delete(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        definition_id = request.path_params["definition_id"]
        check_definition(request, definition_id)
        if split_definition_id(definition_id)[1] is None:
            raise InvalidInput("one version is deleted at a time: name it, as in order:3")
        await self._node.delete_definition(definition_id)
        return answer({})

    @about("Let instances of a process start again", shapes.Enabled, body=requests.EmptyRequest)
    async def enable(self, request: Request) -> Response:
        return await self._set_enabled(request, enabled=True)

    @about("Let nothing of a process start", shapes.Enabled, body=requests.EmptyRequest)
    async def disable(self, request: Request) -> Response:
        return await self._set_enabled(request, enabled=False)

    async def _set_enabled(self, request: Request, *, enabled: bool) -> Response:
        await self._context.body(request, requests.EmptyRequest)
        process_key = request.path_params["process_key"]
        check_process(request, process_key)
        await self._node.set_process_enabled(process_key, enabled)
        return answer({"process": process_key, "is_enabled": enabled})


def split_definition_id(text: str) -> tuple[str, int | None]:
    """Key and version of ``order:3``; ``order`` alone is the newest, whatever that is. (Keys have no colons.)"""
    key, colon, version = text.rpartition(":")
    if colon and version.isascii() and version.isdigit() and len(version) <= _VERSION_DIGITS_MAX:
        return key, int(version)
    return text, None


def _file_bytes(file: requests.DeployFile, index: int) -> bytes:
    where = f"$.files[{index}]"
    if (file.xml is None) == (file.xml_base64 is None):
        raise InvalidInput(f"either xml or xml_base64 @ {where}")
    if file.xml is not None:
        return encoded_as_declared(file.xml, f"{where}.xml")
    assert file.xml_base64 is not None
    try:
        return base64.b64decode(file.xml_base64, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"not base64 @ {where}.xml_base64") from None
