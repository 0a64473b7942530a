"""How requests of ProcessCube's API are read."""

from __future__ import annotations

from typing import TypeVar

import attrs
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import InvalidInput
from stellwerk.json_values import JsonObject, JsonValue, loads
from stellwerk.server.http.context import ApiContext
from stellwerk.server.http.foreign_texts import check_texts, query_pairs
from stellwerk.server.http.structuring import structure_body, structure_query
from stellwerk.server.processcube.shapes import PagedQuery

__all__ = ["body_of", "no_content", "object_of", "page_of", "query_of", "skip_body", "value_of", "values_in"]

Shape = TypeVar("Shape", bound=attrs.AttrsInstance)

ROWS_MAX = 1_000
"""In one answer."""


async def value_of(context: ApiContext, request: Request) -> JsonValue:
    """A body that is a value of the process."""
    text = await context.raw_body(request, context.payload_request_bytes_max)
    return await context.worked_out(lambda: loads(text) if text else None, len(text))


async def skip_body(context: ApiContext, request: Request) -> None:
    """The clients send ``{}`` where there is nothing to say; unread, it would cost them the connection."""
    await context.raw_body(request, context.payload_request_bytes_max)


async def body_of(context: ApiContext, request: Request, kind: type[Shape], bytes_max: int | None = None) -> Shape:
    """:param bytes_max: None: variables fit in.
    :raises InvalidInput: naming everything that is wrong; LimitExceeded: it is too long."""

    def made(value: JsonValue) -> Shape:
        body = structure_body(value, kind, tolerant=True)
        check_texts(body, "$")
        return body

    return await context.read_body(request, bytes_max or context.payload_request_bytes_max, made)


def object_of(value: JsonValue, where: str) -> JsonObject:
    """A token that becomes variables. None: there are none.

    :raises InvalidInput: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"expected an object: a token's members are variables of the process @ {where}")
    return value


def query_of(request: Request, kind: type[Shape]) -> Shape:
    """Of a name that is given twice the last one counts. :raises InvalidInput: naming everything that is wrong."""
    query = structure_query(dict(query_pairs(request)).items(), kind, tolerant=True)
    check_texts(query, "query")
    return query


def page_of(query: PagedQuery) -> tuple[int, int]:
    """Offset and limit; a limit of 0 or -1 means: as many as there may be.

    :raises InvalidInput: they are no numbers.
    """
    offset, limit = _number(query.offset, "offset"), _number(query.limit, "limit")
    return max(0, offset), min(limit, ROWS_MAX) if limit > 0 else ROWS_MAX


def _number(text: str, name: str) -> int:
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 15:
        raise InvalidInput(f"expected a number @ query.{name}")
    return int(text)


def values_in(text: str | None, name: str) -> frozenset[str] | None:
    """An array in a query, written with commas. None: whatever it is.

    :raises InvalidInput: it is a search query, which is an object.
    """
    if text is None:
        return None
    if text.startswith("{"):
        raise InvalidInput(f"search queries are not served: a value, or values with commas between them @ query.{name}")
    return frozenset(text.split(","))


def no_content() -> Response:
    return Response(status_code=204)
