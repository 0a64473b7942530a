"""An alarm: tasks that wait and that no worker takes, whichever node it is connected to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from stellwerk.actors.connections import Attended
from stellwerk.instants import InstantMs
from stellwerk.ports import Ports, TopicBacklog

__all__ = ["Attendance"]

_LOOK_EVERY_SECONDS = 15.0
_LOOKS_SHARE_MAX = 0.01
"""Of the time: counting a large backlog takes the store a while."""


class Attendance:
    """A topic is unattended where the oldest READY task is old and no connected worker of any node subscribes."""

    def __init__(self, ports: Ports, attended: Callable[[], Awaitable[Attended]], old_ms: int) -> None:
        """:param attended: topics to which workers subscribe, whichever node they are connected to.
        :param old_ms: how long a task may be READY.
        """
        self._ports = ports
        self._attended = attended
        self._old_ms = old_ms
        self._unattended: Mapping[str, int] = {}

    @property
    def unattended(self) -> Mapping[str, int]:
        """How long the oldest READY task of each unattended topic had waited when it was last looked at, in ms."""
        return self._unattended

    async def watch(self) -> None:
        """For ever. Each topic is told once, and again when it was attended in between."""
        clock = self._ports.clock
        while True:
            began = clock.monotonic()
            await self.look()
            took = clock.monotonic() - began
            await clock.sleep(max(_LOOK_EVERY_SECONDS, took / _LOOKS_SHARE_MAX))

    async def look(self) -> None:
        backlogs = await self._ports.store.topic_backlogs()
        now_ms = await self._ports.store.lease_now()
        attended = await self._attended()
        waited = {
            backlog.topic: waited_ms
            for backlog in backlogs
            if (waited_ms := _waited_ms(backlog, now_ms)) >= self._old_ms and backlog.topic not in attended
        }
        for topic in sorted(waited.keys() - self._unattended.keys()):
            self._ports.log.warning("no worker takes the tasks of a topic", topic=topic, oldest_ready_ms=waited[topic])
        for topic in sorted(self._unattended.keys() - waited.keys()):
            self._ports.log.info("the tasks of a topic are taken again", topic=topic)
        self._unattended = waited


def _waited_ms(backlog: TopicBacklog, now_ms: InstantMs) -> int:
    return -1 if backlog.oldest_ready_at_ms is None else max(0, now_ms - backlog.oldest_ready_at_ms)
