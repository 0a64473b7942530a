"""Bodies and queries of bpm-engine's API, and how they are read: fields that it does not know are ignored, as there."""

from __future__ import annotations

from typing import TypeVar

import attrs
from starlette.requests import Request

from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.server.http.context import ApiContext
from stellwerk.server.http.structuring import structure_body, structure_query

__all__ = [
    "CompleteRequest",
    "CompleteTaskRequest",
    "DefinitionRequest",
    "FailRequest",
    "FetchAndLockRequest",
    "HistoryQuery",
    "StartRequest",
    "TasksQuery",
    "body_of",
    "query_of",
]

Known = TypeVar("Known", bound=attrs.AttrsInstance)


@attrs.frozen(kw_only=True)
class FetchAndLockRequest:
    worker_id: str
    task_types: tuple[str, ...]
    max_tasks: int = 10
    lock_duration_ms: int = 30_000


@attrs.frozen(kw_only=True)
class CompleteRequest:
    worker_id: str
    variables: JsonObject = attrs.field(factory=dict)
    """Its SDK sends texts only; they stay texts."""


@attrs.frozen(kw_only=True)
class FailRequest:
    worker_id: str
    error: str
    retry_after_ms: int | None = None


@attrs.frozen(kw_only=True)
class DefinitionRequest:
    id: str
    definition: JsonValue


@attrs.frozen(kw_only=True)
class StartRequest:
    process_def_id: str
    variables: JsonObject = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class CompleteTaskRequest:
    variables: JsonObject = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class HistoryQuery:
    token_id: str | None = None
    event_type: str | None = None
    after: int | None = None
    """Not of that engine: the sequence of the last event of the answer before."""
    limit: int | None = None
    """Neither."""


@attrs.frozen(kw_only=True)
class TasksQuery:
    type: str | None = None


async def body_of(context: ApiContext, request: Request, kind: type[Known], bytes_max: int | None = None) -> Known:
    """:param bytes_max: None: as much as variables may need.
    :raises InvalidInput: naming everything that is wrong; LimitExceeded: it is too long.
    """

    def make(value: JsonValue) -> Known:
        if isinstance(value, dict):
            names = _names(kind)
            value = {name: member for name, member in value.items() if name in names}
        return structure_body(value, kind)

    most = context.payload_request_bytes_max if bytes_max is None else bytes_max
    return await context.read_body(request, most, make)


def query_of(request: Request, kind: type[Known]) -> Known:
    """:raises InvalidInput: a parameter that is known is wrong, or there twice."""
    names = _names(kind)
    return structure_query([pair for pair in request.query_params.multi_items() if pair[0] in names], kind)


def _names(kind: type[attrs.AttrsInstance]) -> set[str]:
    return {field.name for field in attrs.fields(kind)}
