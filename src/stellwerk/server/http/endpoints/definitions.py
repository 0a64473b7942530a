"""Deploying processes, and what is deployed."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import InvalidInput
from stellwerk.model.process import FailurePolicy
from stellwerk.server.http import requests, views
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint

__all__ = ["DefinitionEndpoints", "split_definition_id"]

_DEPLOYMENT_FILES_WORTH = 4
"""A deployment may be as long as so many of the largest files."""
_VERSION_DIGITS_MAX = 15
_DECLARED_ENCODING = re.compile(r"""^\ufeff?<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
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
            Endpoint("POST", "/process-definitions", self.deploy),
            Endpoint("GET", "/process-definitions", self.definitions),
            Endpoint("GET", "/process-definitions/{definition_id}/xml", self.xml),
        )

    async def deploy(self, request: Request) -> Response:
        bytes_max = _DEPLOYMENT_FILES_WORTH * self._node.limits.definition_bytes_max
        body = await self._context.body(request, requests.DeployRequest, bytes_max)
        deployment = await self._node.deploy(
            [(file.name, _file_bytes(file, index)) for index, file in enumerate(body.files)],
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

    async def definitions(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        rows = await self._node.definitions()
        return await self._context.answer_rows("definitions", rows, views.definition_view)

    async def xml(self, request: Request) -> Response:
        """The very bytes that were deployed; what encoding they are in stands in them."""
        self._context.query(request, requests.NoQuery)
        row = await self._node.definition(*split_definition_id(request.path_params["definition_id"]))
        return Response(row.xml, headers=_XML_HEADERS, media_type="application/xml")


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
        return _encoded_as_declared(file.xml, where)
    assert file.xml_base64 is not None
    try:
        return base64.b64decode(file.xml_base64, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"not base64 @ {where}.xml_base64") from None


def _encoded_as_declared(text: str, where: str) -> bytes:
    """The reader obeys the encoding that the XML declares, so the text must be in it."""
    declared = _DECLARED_ENCODING.match(text)
    encoding = "utf-8" if declared is None else declared[1]
    try:
        return text.encode(encoding)
    except (LookupError, UnicodeError):
        raise InvalidInput(f"the text cannot be encoded as the {encoding} that it declares @ {where}.xml") from None
