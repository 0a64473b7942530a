"""Messages; and what the engine has no answer to: signals, and timers that somebody fires by hand."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.ports import Scope
from stellwerk.server.http.context import ApiContext, Endpoint
from stellwerk.server.http.foreign_texts import check_name
from stellwerk.server.http.naming import named
from stellwerk.server.http.permissions import check_unrestricted
from stellwerk.server.http.visibility import check_instance
from stellwerk.server.processcube import shapes
from stellwerk.server.processcube.broadcast import Broadcast
from stellwerk.server.processcube.catalogue import Catalogue
from stellwerk.server.processcube.requests import no_content, object_of, query_of, value_of

__all__ = ["EventEndpoints"]


class EventEndpoints:
    def __init__(self, context: ApiContext, catalogue: Catalogue) -> None:
        self._context = context
        self._node = context.node
        self._broadcast = Broadcast(context.node, catalogue)

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (Endpoint("POST", "/messages/{name}/trigger", self.trigger_message, Scope.CLIENT),)

    async def trigger_message(self, request: Request) -> Response:
        """The body is the payload. Without an instance or a correlation id the message is for all that wait for it, and
        for start events."""
        query = query_of(request, shapes.TriggerQuery)
        payload = object_of(await value_of(self._context, request), "$")
        name = request.path_params["name"]
        check_name(name, "path.name")
        instance_id = query.process_instance_id or query.other_process_instance_id
        if instance_id is not None:
            await check_instance(request, self._node, instance_id)
        else:
            check_unrestricted(request, "a message to whoever waits for it")
        key = query.custom_correlation_id or ""
        with named(name="path.name", key="query.custom_correlation_id", instance_id="query.process_instance_id"):
            if instance_id is None and not key:
                await self._broadcast.send(request, name, payload)
            else:
                await self._node.publish_message(name, key, payload, instance_id=instance_id)
        return no_content()
