"""What happened in an instance: event by event, by token and task, and the state after each step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.histories import ALL_EVENTS, EventFilter
from stellwerk.actors.node import Node
from stellwerk.core.events import EventCategory, HistoryEvent, event_types
from stellwerk.errors import InvalidInput
from stellwerk.ports import Scope
from stellwerk.server.http import requests, shapes, views
from stellwerk.server.http.about import about
from stellwerk.server.http.answers import answer_text, encoded
from stellwerk.server.http.context import ApiContext, Endpoint, check_limit, piece
from stellwerk.server.http.visibility import check_instance

__all__ = ["HistoryEndpoints", "HistoryPiece", "first_history_piece"]

_EVENTS_AT_ONCE = 100
"""Read and encoded together."""
_EVENTS_MAX = 1_000
_ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""An answer is not much longer, however large the variables are that the events carry."""
_PATH = "/process-instances/{instance_id}"


@attrs.frozen
class HistoryPiece:
    events: Sequence[msgspec.Raw]
    more: bool


async def history_piece(
    node: Node, instance_id: str, after: int, limit: int, wanted: EventFilter = ALL_EVENTS
) -> HistoryPiece:
    """At most `limit` events behind sequence `after` that are wanted, fewer where they are large.

    :raises NotFound: there is no such instance.
    """
    found: list[msgspec.Raw] = []
    size = 0
    more = True
    while more and len(found) < limit:
        at_once = min(_EVENTS_AT_ONCE, limit - len(found))
        page = await node.history_page(instance_id, after=after, limit=at_once, wanted=wanted)
        texts = await node.ports.background.run_sync(partial(_encoded_events, page.events, _ANSWER_BYTES_MAX - size))
        found += texts
        after = page.events[len(texts) - 1].sequence if texts else after
        size += sum(len(bytes(text)) for text in texts)
        more = page.more or len(texts) < len(page.events)
        if size >= _ANSWER_BYTES_MAX:
            break
    return HistoryPiece(found, more)


async def first_history_piece(node: Node, instance_id: str) -> HistoryPiece:
    return await history_piece(node, instance_id, 0, _EVENTS_MAX)


def _encoded_events(events: Sequence[HistoryEvent], bytes_max: int) -> list[msgspec.Raw]:
    """Until so many bytes are reached."""
    found: list[msgspec.Raw] = []
    for event in events:
        if bytes_max <= 0:
            break
        found.append(piece(views.event_view(event)))
        bytes_max -= len(bytes(found[-1]))
    return found


class HistoryEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", _PATH + "/history", self.history, Scope.CLIENT),
            Endpoint("GET", _PATH + "/trace", self.trace, Scope.CLIENT),
            Endpoint("GET", _PATH + "/state", self.state, Scope.CLIENT),
        )

    @about("What happened, event by event", shapes.History, query=requests.HistoryQuery)
    async def history(self, request: Request) -> Response:
        query = self._context.query(request, requests.HistoryQuery)
        check_limit(query.limit, "query.limit")
        instance_id = request.path_params["instance_id"]
        await check_instance(request, self._node, instance_id)
        wanted = EventFilter(category=_category(query.category), event_type=_event_type(query.event_type))
        found = await history_piece(self._node, instance_id, query.after, query.limit, wanted)
        return answer_text(encoded({"history": found.events, "more": found.more}))

    @about("What happened, by token and task", shapes.Trace)
    async def trace(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        instance_id = request.path_params["instance_id"]
        await check_instance(request, self._node, instance_id)
        async with self._context.whole_instances:
            trace = await self._node.trace(instance_id)
            return await self._context.answer_long(
                lambda: encoded(
                    {
                        "instance_id": trace.instance_id,
                        "tokens": [piece(views.plain_view(token)) for token in trace.tokens],
                        "tasks": [piece(views.plain_view(task)) for task in trace.tasks],
                    }
                ),
                len(trace.tokens) + len(trace.tasks),
            )

    @about("The state after a step", shapes.StateAfterStep, query=requests.StateQuery)
    async def state(self, request: Request) -> Response:
        query = self._context.query(request, requests.StateQuery)
        instance_id = request.path_params["instance_id"]
        await check_instance(request, self._node, instance_id)
        async with self._context.whole_instances:
            step, state = await self._node.replay_step(instance_id, query.at)
            return await self._context.answer_long(
                lambda: encoded(
                    {"version": step.version, "at": views.instant(step.at_ms), "state": views.state_view(state)}
                ),
                len(state.tokens) + len(state.completed) + len(state.activities),
            )


def _category(name: str | None) -> EventCategory | None:
    return None if name is None else EventCategory(_one_of(name, [kind.value for kind in EventCategory], "category"))


def _event_type(name: str | None) -> str | None:
    return None if name is None else _one_of(name, event_types(), "event_type")


def _one_of(name: str, known: Sequence[str], where: str) -> str:
    if name not in known:
        raise InvalidInput(f"expected one of {', '.join(known)} @ query.{where}")
    return name
