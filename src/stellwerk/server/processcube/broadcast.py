"""Messages that name no instance and no correlation: in ProcessCube everybody gets them who waits for the name."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from stellwerk.actors.definitions import start_messages
from stellwerk.actors.node import Node
from stellwerk.errors import Conflict, InvalidInput, NotFound
from stellwerk.json_values import JsonObject
from stellwerk.model.process import Dialect
from stellwerk.server.processcube.catalogue import Catalogue

__all__ = ["Broadcast"]

_RECEIVERS_MAX = 1_000


class Broadcast:
    def __init__(self, node: Node, catalogue: Catalogue) -> None:
        self._node = node
        self._catalogue = catalogue

    async def send(self, request: Request, name: str, payload: JsonObject) -> None:
        """To each instance that waits, a message of its own, and one new instance of each process that it starts. Where
        there is neither, one message is kept for whoever comes first.

        Not all or none: an error in the middle leaves those before it with their message.

        :raises InvalidInput: there are too many.
        """
        receivers = await self._receivers(name)
        starts = await self._starts(request, name)
        if not receivers and not starts:
            await self._node.publish_message(name, "", payload)
        for instance_id in receivers:
            try:
                await self._node.publish_message(name, "", payload, ttl_ms=0, instance_id=instance_id)
            except (Conflict, NotFound):
                continue  # it has ended meanwhile
        for process_key, start_event_id in starts:
            try:
                await self._node.start_instance(process_key, payload, start_event_id=start_event_id)
            except (Conflict, NotFound):
                continue  # it was disabled or deleted meanwhile

    async def _receivers(self, name: str) -> Sequence[str]:
        """An instance that waits twice is there twice.

        Where the model is another engine's, a message for a key is only for that: without a key, for who has none.
        """
        found = await self._node.ports.store.receivers(name, _RECEIVERS_MAX + 1)
        if len(found) > _RECEIVERS_MAX:
            raise InvalidInput(
                f"more than {_RECEIVERS_MAX} wait for this message: name a process_instance_id or a "
                "custom_correlation_id @ query"
            )
        return [instance_id for instance_id, key in found if not key or await self._is_processcube(instance_id)]

    async def _is_processcube(self, instance_id: str) -> bool:
        summary = await self._node.ports.store.instance(instance_id)
        if summary is None:
            return False
        return (await self._catalogue.deployed(summary.definition_id)).process.dialect is Dialect.PROCESSCUBE

    async def _starts(self, request: Request, name: str) -> Sequence[tuple[str, str]]:
        """Keys of processes and their start events."""
        disabled = {*await self._node.disabled_processes()}
        found: list[tuple[str, str]] = []
        for row in await self._catalogue.newest(request):
            if name in row.start_messages and row.key not in disabled:
                process = (await self._catalogue.deployed(row.definition_id)).process
                found.append((row.key, start_messages(process)[name]))
        return found
