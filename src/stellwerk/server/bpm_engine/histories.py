"""``/process-instances/{id}/history`` and ``/trace``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.core.events import HistoryEvent
from stellwerk.errors import InvalidInput
from stellwerk.ports import Scope
from stellwerk.server.bpm_engine.events import EventReading
from stellwerk.server.bpm_engine.requests import HistoryQuery, query_of
from stellwerk.server.bpm_engine.views import trace_view
from stellwerk.server.http.answers import answer_text, encoded
from stellwerk.server.http.context import ApiContext, Endpoint, piece
from stellwerk.server.http.visibility import check_instance

__all__ = ["HistoryEndpoints"]

_PATH = "/process-instances/{instance_id}"
_EVENTS_MAX = 10_000
_EVENTS_AT_ONCE = 100
_ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""That engine answers a history whole. A longer one is told in parts, and says so."""


@attrs.define
class _Collected:
    """The events of an answer, as far as they were read."""

    query: HistoryQuery
    reading: EventReading
    events: list[msgspec.Raw] = attrs.field(factory=list)
    size: int = 0
    is_cut: bool = False

    def add(self, events: Sequence[HistoryEvent]) -> None:
        most = _EVENTS_MAX if self.query.limit is None else self.query.limit
        for event in events:
            token_id, view = self.reading.view(event)
            if self._is_wanted(event, token_id, view):
                if len(self.events) >= most or self.size >= _ANSWER_BYTES_MAX:
                    self.is_cut = True
                    return
                self.events.append(piece(view))
                self.size += len(bytes(self.events[-1]))

    def _is_wanted(self, event: HistoryEvent, token_id: str | None, view: dict[str, object]) -> bool:
        query = self.query
        return (
            query.token_id in (None, token_id)
            and query.event_type in (None, view["event_type"])
            and (query.after is None or event.sequence - 1 > query.after)
        )


class HistoryEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", _PATH + "/history", self.history, Scope.CLIENT),
            Endpoint("GET", _PATH + "/trace", self.trace, Scope.CLIENT),
        )

    async def history(self, request: Request) -> Response:
        query = query_of(request, HistoryQuery)
        if query.limit is not None and not 1 <= query.limit <= _EVENTS_MAX:
            raise InvalidInput(f"limit is from 1 to {_EVENTS_MAX} @ query.limit")
        instance_id = request.path_params["instance_id"]
        await check_instance(request, self._node, instance_id)
        async with self._context.whole_instances:
            found = _Collected(query, EventReading(instance_id))
            await self._read(instance_id, found)
        return answer_text(encoded({"instance_id": instance_id, "events": found.events, "more": found.is_cut}))

    async def _read(self, instance_id: str, found: _Collected) -> None:
        """From the beginning, wherever the part that is wanted begins: see `EventReading`."""
        after, more = 0, True
        while more and not found.is_cut:
            page = await self._node.history_page(instance_id, after=after, limit=_EVENTS_AT_ONCE)
            await self._node.ports.background.run_sync(partial(found.add, page.events))
            after, more = page.events[-1].sequence if page.events else after, page.more

    async def trace(self, request: Request) -> Response:
        instance_id = request.path_params["instance_id"]
        await check_instance(request, self._node, instance_id)
        async with self._context.whole_instances:
            trace = await self._node.trace(instance_id)
            view = await self._node.view(instance_id, with_history=False)
            return await self._context.answer_long(
                lambda: encoded(trace_view(view.summary, view.current_nodes, trace)),
                len(trace.tokens) + len(trace.tasks),
            )
