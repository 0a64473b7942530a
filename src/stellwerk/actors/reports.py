"""How this node is, told to the others and to operators through the store; and what they told of themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from stellwerk.errors import StellwerkError
from stellwerk.ports import NodeReport, Ports, SessionReport

__all__ = ["NodeReports", "bounded"]

REPORT_EVERY_SECONDS = 5.0
_REPORTS_APART_SECONDS = 0.25
_REPORTS_APART_TIMES = 20.0
"""At least so long, and so often as long as the last report took, lies between two that changes cause."""
_ALIVE_MS = 3 * int(REPORT_EVERY_SECONDS * 1000)
"""A node that was silent for longer counts as gone."""
_FAREWELL_SECONDS_MAX = 2.0
_SESSIONS_TOLD_MAX = 1_000
_SUBSCRIPTIONS_TOLD_MAX = 10_000
_TOPICS_TOLD_MAX = 10_000


class NodeReports:
    def __init__(self, ports: Ports, node_id: str, report: Callable[[], NodeReport], *, is_offline: bool) -> None:
        """:param report: how the node is now, with everybody who is connected.
        :param is_offline: it is not one of the nodes, and only reads what they tell.
        """
        self._ports = ports
        self._node_id = node_id
        self._report = report
        self._is_offline = is_offline
        self._changed = trio.Event()

    async def run(self) -> None:
        """Report for ever: at once when told of a change, and every so often."""
        clock = self._ports.clock
        while True:
            self._changed = trio.Event()
            began = clock.monotonic()
            await self.report()
            took = clock.monotonic() - began
            await clock.sleep(max(_REPORTS_APART_SECONDS, took * _REPORTS_APART_TIMES))
            with trio.move_on_after(max(0.0, began + REPORT_EVERY_SECONDS - clock.monotonic())):
                await self._changed.wait()

    def changed(self) -> None:
        """Who is connected, or what for: the others should know soon."""
        self._changed.set()

    async def report(self) -> None:
        await self._ports.store.report_node(bounded(self._report()))

    async def alive(self) -> Sequence[NodeReport]:
        """Of all nodes that run, as they reported last; of this one as it is now."""
        own = [] if self._is_offline else [self._report()]
        if not self._ports.store.is_shared:
            return own
        rows = await self._ports.store.nodes()
        return own + [
            row.report for row in rows if row.report.node_id != self._node_id and row.seen_ms_ago <= _ALIVE_MS
        ]

    async def say_farewell(self) -> None:
        """The node stops. Without it the others know a few seconds later."""
        with trio.move_on_after(_FAREWELL_SECONDS_MAX):
            try:
                await self._ports.store.forget_node(self._node_id)
            except StellwerkError as error:
                self._ports.log.info("the other nodes were not told of the end", reason=error.message)


def bounded(report: NodeReport) -> NodeReport:
    """As much of it as others are told (see `NodeReport`)."""
    return attrs.evolve(
        report,
        sessions=_told(report.sessions),
        topics=report.topics[:_TOPICS_TOLD_MAX],
        tells_all_topics=len(report.topics) <= _TOPICS_TOLD_MAX,
    )


def _told(sessions: Sequence[SessionReport]) -> tuple[SessionReport, ...]:
    told: list[SessionReport] = []
    subscriptions = 0
    for session in sessions[:_SESSIONS_TOLD_MAX]:
        subscriptions += len(session.subscriptions)
        if subscriptions > _SUBSCRIPTIONS_TOLD_MAX:
            break
        told.append(session)
    return tuple(told)
