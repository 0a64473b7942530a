"""The API and the push protocol for programs: an OpenAPI and an AsyncAPI document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.json_values import JsonObject
from stellwerk.server.http import requests
from stellwerk.server.http.answers import answer_text, encoded
from stellwerk.server.http.context import ApiContext, Endpoint
from stellwerk.server.http.openapi import openapi_document
from stellwerk.wire.schema import asyncapi_document

__all__ = ["DocumentEndpoints"]


class DocumentEndpoints:
    """They are made when they are asked for the first time."""

    def __init__(self, context: ApiContext, documented: Mapping[str, Sequence[Endpoint]]) -> None:
        """:param documented: the endpoints, by prefix of their paths."""
        self._context = context
        self._documented = documented
        self._texts: dict[str, bytes] = {}

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", "/openapi.json", self.openapi, None),
            Endpoint("GET", "/asyncapi.json", self.asyncapi, None),
        )

    async def openapi(self, request: Request) -> Response:
        return await self._answer(request, "openapi", lambda: openapi_document(self._documented))

    async def asyncapi(self, request: Request) -> Response:
        return await self._answer(request, "asyncapi", asyncapi_document)

    async def _answer(self, request: Request, name: str, make: Callable[[], JsonObject]) -> Response:
        self._context.query(request, requests.NoQuery)
        if name not in self._texts:
            self._texts[name] = await self._context.node.ports.background.run_sync(lambda: encoded(make()))
        return answer_text(self._texts[name])
