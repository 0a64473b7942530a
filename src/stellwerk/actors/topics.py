"""The live topics of a node: one dispatcher for each, started when a worker comes and ended when idle.

A topic without a worker and without a held lease needs none: what becomes READY there stands in the store, and the
dispatcher that the next subscription starts begins with a scan of it. On a shared store the other nodes are told: they
may have workers for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import trio

from stellwerk.actors.dispatcher import DispatcherServices, TopicDispatcher
from stellwerk.actors.leases import WorkerLink
from stellwerk.actors.supervisor import start_actor, supervise
from stellwerk.core.external_task import ExternalTask
from stellwerk.ports import Hint, ReadyTask

__all__ = ["Topics"]

_SWEEP_SECONDS = 1.0
_SHOWN_MAX = 1_000
"""Topics in the statistics: the busiest."""


class Topics:
    def __init__(self, services: DispatcherServices, nursery: trio.Nursery) -> None:
        self._services = services
        self._nursery = nursery
        self._is_shared = services.ports.store.is_shared
        self._live: dict[str, tuple[TopicDispatcher, trio.CancelScope]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def dispatcher(self, topic: str) -> TopicDispatcher:
        """For a subscription or a held lease. Started if need be. :raises StoreUnavailable: the engine stops."""
        live = self._live.get(topic)
        return live[0] if live is not None else self._start(topic)

    def find(self, topic: str) -> TopicDispatcher | None:
        """None: no worker of this node has to do with the topic."""
        live = self._live.get(topic)
        return None if live is None else live[0]

    def wake(self, topics: Iterable[str]) -> None:
        for topic in topics:
            found = self.find(topic)
            if found is not None:
                found.wake()

    def task_ready(self, topic: str, hint: ReadyTask) -> None:
        found = self.find(topic)
        if found is not None:
            found.task_ready(hint)
        elif self._is_shared:
            self._services.ports.store.tell(Hint(topics=(topic,)))

    def returned(self, task: ExternalTask) -> None:
        """A lease ended and the task is READY again, at once or (a retry) later."""
        found = self.find(task.topic)
        if found is not None:
            found.returned(task, task.updated_at_ms)
        elif self._is_shared:
            self._services.ports.store.tell(Hint(topics=(task.topic,)))

    def reordered(self, task: ExternalTask) -> None:
        """A READY task has another priority."""
        self.returned(task)

    def scan_soon(self, topics: Iterable[str] | None = None) -> None:
        """Other nodes told of READY tasks there. None: everywhere."""
        for topic in list(self._live) if topics is None else topics:
            found = self.find(topic)
            if found is not None:
                found.scan_soon()

    def forget(self, link: WorkerLink, topics: Iterable[str]) -> None:
        """The session is over."""
        for topic in topics:
            found = self.find(topic)
            if found is not None:
                found.forget(link)
        self.end_surplus()

    def end_surplus(self) -> None:
        """Idle ones, while there are too many."""
        if len(self._live) > self._services.limits.live_topics_max:
            self._end_idle(0)

    def statistics(self) -> Mapping[str, object]:
        """Figures of the busiest topics, by name."""
        dispatchers = [dispatcher for dispatcher, _ in self._live.values()]
        if len(dispatchers) > _SHOWN_MAX:
            dispatchers = sorted(dispatchers, key=lambda dispatcher: -dispatcher.statistics.leased)[:_SHOWN_MAX]
        return {
            dispatcher.topic: {
                "ready_known": dispatcher.ready,
                "workers": dispatcher.workers,
                **attrs.asdict(dispatcher.statistics),
            }
            for dispatcher in sorted(dispatchers, key=lambda dispatcher: dispatcher.topic)
        }

    # --- life ------------------------------------------------------------------------------------------------------

    def _start(self, topic: str) -> TopicDispatcher:
        dispatcher = TopicDispatcher(topic, self._services)
        scope = trio.CancelScope()
        start_actor(self._nursery, f"topic {topic}", self._run, dispatcher, scope)
        self._live[topic] = (dispatcher, scope)
        return dispatcher

    async def _run(self, dispatcher: TopicDispatcher, scope: trio.CancelScope) -> None:
        clock, log, topic = self._services.ports.clock, self._services.ports.log, dispatcher.topic

        async def filter_tasks() -> None:
            await supervise(f"filters {topic}", dispatcher.filters.run, clock=clock, log=log)

        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(filter_tasks)
                await supervise(f"dispatcher {topic}", dispatcher.run, clock=clock, log=log)

    async def passivate_idle(self) -> None:
        """Sweep for ever: end the dispatchers that were idle for long, or that are idle while there are too many."""
        limits = self._services.limits
        while True:
            await self._services.ports.clock.sleep(_SWEEP_SECONDS)
            too_many = len(self._live) > limits.live_topics_max
            self._end_idle(0 if too_many else limits.topic_idle_ms)

    def _end_idle(self, idle_ms: int) -> None:
        # No checkpoint between looking and cancelling: nobody can subscribe to a dispatcher that is about to end.
        now = self._services.ports.clock.monotonic()
        for topic, (dispatcher, scope) in list(self._live.items()):
            if dispatcher.idle and now - dispatcher.last_active >= idle_ms / 1000:
                del self._live[topic]
                scope.cancel()
