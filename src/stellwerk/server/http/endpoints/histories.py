"""What happened in an instance: event by event, by token and task, and the state after each step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.node import Node
from stellwerk.core.events import HistoryEvent
from stellwerk.server.http import requests, views
from stellwerk.server.http.answers import answer_text, encoded
from stellwerk.server.http.context import ApiContext, Endpoint, check_limit, piece

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


async def history_piece(node: Node, instance_id: str, after: int, limit: int) -> HistoryPiece:
    """At most `limit` events behind sequence `after`, fewer where they are large.

    :raises NotFound: there is no such instance.
    """
    found: list[msgspec.Raw] = []
    size = 0
    more = True
    while more and len(found) < limit:
        page = await node.history_page(
            instance_id, after=after + len(found), limit=min(_EVENTS_AT_ONCE, limit - len(found))
        )
        texts = await node.ports.background.run_sync(partial(_encoded_events, page.events, _ANSWER_BYTES_MAX - size))
        found += texts
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
            Endpoint("GET", _PATH + "/history", self.history),
            Endpoint("GET", _PATH + "/trace", self.trace),
            Endpoint("GET", _PATH + "/state", self.state),
        )

    async def history(self, request: Request) -> Response:
        query = self._context.query(request, requests.HistoryQuery)
        check_limit(query.limit, "query.limit")
        found = await history_piece(self._node, request.path_params["instance_id"], query.after, query.limit)
        return answer_text(encoded({"history": found.events, "more": found.more}))

    async def trace(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        async with self._context.whole_instances:
            trace = await self._node.trace(request.path_params["instance_id"])
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

    async def state(self, request: Request) -> Response:
        query = self._context.query(request, requests.StateQuery)
        async with self._context.whole_instances:
            step, state = await self._node.replay_step(request.path_params["instance_id"], query.at)
            return await self._context.answer_long(
                lambda: encoded(
                    {"version": step.version, "at": views.instant(step.at_ms), "state": views.state_view(state)}
                ),
                len(state.tokens) + len(state.completed) + len(state.activities),
            )
