"""How this node is, told to the others and to operators through the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from stellwerk.errors import StellwerkError
from stellwerk.ports import NodeReport, NodeRow, Ports

__all__ = ["NodeReports"]

REPORT_EVERY_SECONDS = 5.0
_ALIVE_MS = 3 * int(REPORT_EVERY_SECONDS * 1000)
"""A node that was silent for longer counts as gone."""
_FAREWELL_SECONDS_MAX = 2.0


class NodeReports:
    def __init__(self, ports: Ports, node_id: str, report: Callable[[], NodeReport]) -> None:
        """:param report: how the node is now."""
        self._ports = ports
        self._node_id = node_id
        self._report = report
        self._heard: Sequence[NodeRow] = ()

    async def run(self) -> None:
        """Report for ever."""
        while True:
            await self.report()
            await self._ports.clock.sleep(REPORT_EVERY_SECONDS)

    async def report(self) -> Sequence[NodeRow]:
        """All nodes that were heard of lately, this one too."""
        self._heard = await self._ports.store.report_node(self._report())
        return self._heard

    async def look(self) -> None:
        """At what the others have reported, for a node that reports nothing itself."""
        self._heard = await self._ports.store.nodes()

    @property
    def others_have_workers(self) -> bool:
        """By their last reports."""
        others = (row for row in self._heard if row.report.node_id != self._node_id and row.seen_ms_ago <= _ALIVE_MS)
        return any(row.report.workers for row in others)

    async def say_farewell(self) -> None:
        """The node stops. Without it the others know a few seconds later."""
        with trio.move_on_after(_FAREWELL_SECONDS_MAX):
            try:
                await self._ports.store.forget_node(self._node_id)
            except StellwerkError as error:
                self._ports.log.info("the other nodes were not told of the end", reason=error.message)
