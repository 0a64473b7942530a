"""A list of Camunda's API: its rows and their number, asked for by GET with a query or by POST with a body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import attrs
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.ports import Scope
from stellwerk.server.camunda.reading import Row, list_body, list_query
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.context import ApiContext, Endpoint

__all__ = ["ListEndpoints"]

Listed = TypeVar("Listed", bound=attrs.AttrsInstance)


class ListEndpoints(Generic[Listed]):
    def __init__(
        self,
        context: ApiContext,
        path: str,
        kind: type[Listed],
        rows: Callable[[Request, Listed], Awaitable[list[Row]]],
        count: Callable[[Request, Listed], Awaitable[int]] | None = None,
    ) -> None:
        """:param count: where there is a quicker way to it than the rows."""
        self._context = context
        self._path = path
        self._kind = kind
        self._rows = rows
        self._count = count or self._count_rows

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", self._path, self.rows, Scope.CLIENT),
            Endpoint("POST", self._path, self.asked_rows, Scope.CLIENT),
            Endpoint("GET", f"{self._path}/count", self.count, Scope.CLIENT),
            Endpoint("POST", f"{self._path}/count", self.asked_count, Scope.CLIENT),
        )

    async def rows(self, request: Request) -> Response:
        return await self._answer_rows(request, list_query(request, self._kind))

    async def asked_rows(self, request: Request) -> Response:
        return await self._answer_rows(request, await list_body(self._context, request, self._kind))

    async def count(self, request: Request) -> Response:
        return answer({"count": await self._count(request, list_query(request, self._kind))})

    async def asked_count(self, request: Request) -> Response:
        return answer({"count": await self._count(request, await list_body(self._context, request, self._kind))})

    async def _answer_rows(self, request: Request, query: Listed) -> Response:
        rows = await self._rows(request, query)
        return await self._context.answer_long(lambda: encoded(rows), len(rows))

    async def _count_rows(self, request: Request, query: Listed) -> int:
        return len(await self._rows(request, query))
