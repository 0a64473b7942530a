"""How requests of Camunda's API are read, and how its lists are cut: by offset, where the engine's own go by key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import attrs
from starlette.requests import Request

from stellwerk.errors import InvalidInput, NotServed
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.server.camunda.shapes import SliceQuery
from stellwerk.server.camunda.typed_values import kept_variables
from stellwerk.server.http.context import ApiContext
from stellwerk.server.http.foreign_texts import check_texts, query_pairs
from stellwerk.server.http.structuring import structure_body, structure_query, wire_name

__all__ = [
    "ROWS_MAX",
    "Row",
    "check_conditions",
    "collected",
    "kept",
    "list_body",
    "list_query",
    "payload",
    "signed",
    "sliced",
]

T = TypeVar("T")
Listed = TypeVar("Listed", bound=attrs.AttrsInstance)
Row = dict[str, object]

ROWS_MAX = 10_000
"""A list without ``maxResults`` has all rows, which are in memory together."""
_ROWS_AT_ONCE = 100
_VARIABLE_BYTES = 64
"""About as much text as there is of one, with its type."""
_PAGING = ("firstResult", "maxResults")
_OF_ALL_LISTS = frozenset(wire_name(field) for field in attrs.fields(SliceQuery))


async def payload(context: ApiContext, request: Request, kind: type[Listed]) -> Listed:
    """A body that may hold variables; fields that `kind` does not have are ignored, as Camunda does."""

    def made(value: JsonValue) -> Listed:
        body = structure_body(value, kind, tolerant=True)
        check_texts(body, "$")
        return body

    return await context.read_body(request, context.payload_request_bytes_max, made)


async def kept(context: ApiContext, variables: JsonObject | None, where: str) -> JsonObject:
    """As `kept_variables`; many of them in the background."""
    size = _VARIABLE_BYTES * len(variables or ())
    return await context.worked_out(partial(kept_variables, variables, where), size)


def list_query(request: Request, kind: type[Listed]) -> Listed:
    """:raises NotServed: a condition that `kind` does not have."""
    pairs = query_pairs(request)
    check_conditions((name for name, _ in pairs), kind)
    query = structure_query(pairs, kind, tolerant=True)
    check_texts(query, "query")
    return query


async def list_body(context: ApiContext, request: Request, kind: type[Listed]) -> Listed:
    """The conditions in the body, which part of the list in the query.

    :raises NotServed: a condition that `kind` does not have.
    """
    body = await context.json_body(request)
    if not isinstance(body, dict):
        raise InvalidInput("expected an object @ $")
    given = {name: value for name, value in body.items() if value is not None}
    check_conditions(given, kind)
    paging = {name: text for name, text in query_pairs(request) if name in _PAGING}
    part = structure_query(paging.items(), SliceQuery, tolerant=True)
    query = structure_body(
        {**given, "firstResult": part.first_result, "maxResults": part.max_results}, kind, tolerant=True
    )
    check_texts(query, "$")
    return query


def check_conditions(names: Iterable[str], kind: type[attrs.AttrsInstance]) -> None:
    """:raises NotServed: one of them is none of `kind`'s; what is instead is said."""
    served = [wire_name(field) for field in attrs.fields(kind)]
    conditions = [name for name in served if name not in _OF_ALL_LISTS]
    for name in names:
        if name not in served:
            raise NotServed(f"this cannot be asked by {str(name)[:100]} here, only by {', '.join(conditions)}")


def signed(value: JsonValue, where: str) -> int:
    """A whole number that may be negative, from a body or a query."""
    if isinstance(value, str) and value.removeprefix("-").isdigit() and value.isascii() and len(value) <= 20:
        value = int(value)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise InvalidInput(f"a whole number is expected @ {where}")
    return value


async def collected(
    reads: Sequence[Callable[[int, str | None], Awaitable[Sequence[T]]]],
    id_of: Callable[[T], str],
    view: Callable[[T], Row | None],
    query: SliceQuery,
    sortable: Mapping[str, str],
) -> list[Row]:
    """The part of a list that is asked for.

    :param reads: each gives up to so many rows behind that id; one after the other.
    :param view: None leaves the row out.
    :param sortable: names of orders, and the fields of the view that they go by. Without an order: as they were read.
    :raises InvalidInput: there are too many rows to go through.
    """
    end = None if query.max_results is None else query.first_result + query.max_results
    wanted = ROWS_MAX + 1 if end is None or query.orders else min(end, ROWS_MAX + 1)
    rows: list[Row] = []
    for read in reads:
        await _read_into(rows, read, id_of, view, wanted)
    if len(rows) > ROWS_MAX:
        raise InvalidInput(f"more than {ROWS_MAX} rows: ask for fewer by conditions, firstResult and maxResults")
    return sliced(rows, query, sortable)


async def _read_into(
    rows: list[Row],
    read: Callable[[int, str | None], Awaitable[Sequence[T]]],
    id_of: Callable[[T], str],
    view: Callable[[T], Row | None],
    wanted: int,
) -> None:
    after: str | None = None
    while len(rows) < wanted:
        found = await read(_ROWS_AT_ONCE, after)
        rows += [row for row in map(view, found) if row is not None]
        if len(found) < _ROWS_AT_ONCE:
            return
        after = id_of(found[-1])


def sliced(rows: list[Row], query: SliceQuery, sortable: Mapping[str, str]) -> list[Row]:
    """:raises InvalidInput: there is no such order."""
    for order in reversed(query.orders):
        field = sortable.get(order.sort_by)
        if field is None:
            raise InvalidInput(f"sortBy is one of {', '.join(sortable)}, not {order.sort_by[:100]}")
        rows = _sorted(rows, field, descending=order.sort_order == "desc")
    end = None if query.max_results is None else query.first_result + query.max_results
    return rows[query.first_result : end]


def _sorted(rows: list[Row], field: str, *, descending: bool) -> list[Row]:
    """Rows without a value come last."""

    def key(row: Row) -> tuple[str, int]:
        value = row[field]
        return (value, 0) if isinstance(value, str) else ("", int(str(value)))

    known = [row for row in rows if row[field] is not None]
    return [*sorted(known, key=key, reverse=descending), *(row for row in rows if row[field] is None)]
