"""Who polls: workers without a connection of their own, known by their polls."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator

import attrs

from stellwerk.actors.poll_links import PollLink
from stellwerk.instants import InstantMs
from stellwerk.limits import Limits
from stellwerk.ports import Clock, SessionReport, SubscriptionReport

__all__ = ["Pullers"]

_SEEN_SECONDS = 60.0
"""A worker that has polled so lately is taken for connected: its handlers are at work."""
_SWEEPS_APART_SECONDS = 1.0
_WORKERS_MAX = 10_000
_TOPICS_MAX = 100_000
"""Of all of them together."""


@attrs.define(eq=False)
class _Puller:
    worker_id: str
    client: str
    since_ms: InstantMs
    """Wall clock."""
    last_poll_id: str
    last_seen: float
    """Monotonic seconds."""
    topics: OrderedDict[str, tuple[int, float]] = attrs.field(factory=OrderedDict)
    """How many tasks it asked for, and when; the one that it asked for last comes last."""
    parked: dict[str, PollLink] = attrs.field(factory=dict)
    """By poll id."""


class Pullers:
    """A bounded memory of the last minute. The longest unseen worker is forgotten first."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._topics_max = limits.session_topics_max
        self._by_worker: OrderedDict[str, _Puller] = OrderedDict()
        self._topics = 0
        self._swept_at = float("-inf")

    def __len__(self) -> int:
        self._forget_unseen()
        return len(self._by_worker)

    def came(self, link: PollLink) -> bool:
        """A poll begins. True: the worker, or one of its topics, is new."""
        self._forget_unseen()
        puller = self._by_worker.get(link.holder.worker_id)
        is_new = puller is None
        if puller is None:
            puller = _Puller(
                worker_id=link.holder.worker_id,
                client=link.poll.client,
                since_ms=self._clock.wall_ms(),
                last_poll_id=link.holder.session_id,
                last_seen=0.0,
            )
            self._by_worker[puller.worker_id] = puller
        puller.client = link.poll.client or puller.client
        puller.last_poll_id = link.holder.session_id
        puller.parked[link.holder.session_id] = link
        self._see(puller)
        for topic in link.topics:
            is_new |= self._note(puller, topic, link.poll.max_tasks)
        self._keep_bounds()
        return is_new

    def went(self, link: PollLink) -> None:
        puller = self._by_worker.get(link.holder.worker_id)
        if puller is not None and puller.parked.pop(link.holder.session_id, None) is not None:
            self._see(puller)

    def heard(self, worker_id: str, topic: str) -> None:
        """It extends a lease of that topic: it has no room to poll, maybe, but it is there."""
        puller = self._by_worker.get(worker_id)
        if puller is None:
            return
        self._see(puller)
        if topic in puller.topics:
            max_tasks, _ = puller.topics[topic]
            self._note(puller, topic, max_tasks)

    def _see(self, puller: _Puller) -> None:
        puller.last_seen = self._clock.monotonic()
        self._by_worker.move_to_end(puller.worker_id)

    def _note(self, puller: _Puller, topic: str, max_tasks: int) -> bool:
        is_new = topic not in puller.topics
        self._topics += is_new
        puller.topics[topic] = (max_tasks, self._clock.monotonic())
        puller.topics.move_to_end(topic)
        if len(puller.topics) > self._topics_max:
            puller.topics.popitem(last=False)
            self._topics -= 1
        return is_new

    def _keep_bounds(self) -> None:
        while len(self._by_worker) > _WORKERS_MAX or (self._topics > _TOPICS_MAX and len(self._by_worker) > 1):
            _, forgotten = self._by_worker.popitem(last=False)
            self._topics -= len(forgotten.topics)

    def _forget_unseen(self) -> None:
        now = self._clock.monotonic()
        if now - self._swept_at < _SWEEPS_APART_SECONDS:
            return
        self._swept_at = now
        for puller in list(self._unseen(now - _SEEN_SECONDS)):
            del self._by_worker[puller.worker_id]
            self._topics -= len(puller.topics)

    def _unseen(self, too_old: float) -> Iterator[_Puller]:
        """Those who polled last come last, so that the first who was seen lately ends it; one that waits stays."""
        for puller in self._by_worker.values():
            if puller.last_seen > too_old:
                return
            if not puller.parked:
                yield puller

    # --- reports ---------------------------------------------------------------------------------------------------

    def session_reports(self) -> list[SessionReport]:
        """As if each were connected."""
        self._forget_unseen()
        return [
            SessionReport(
                worker_id=puller.worker_id,
                session_id=puller.last_poll_id,
                client=puller.client,
                connected_at_ms=puller.since_ms,
                subscriptions=tuple(
                    SubscriptionReport(topic, max_tasks, 0) for topic, max_tasks in self._topics_of(puller)
                ),
                polls=True,
            )
            for puller in self._by_worker.values()
        ]

    def topics(self) -> dict[str, tuple[int, int]]:
        """How many workers polled for each, and how many more tasks their parked polls would take now."""
        self._forget_unseen()
        found: dict[str, tuple[int, int]] = {}
        for puller in self._by_worker.values():
            free = Counter[str]()
            for link in puller.parked.values():
                free.update(dict.fromkeys(link.topics, link.free))
            for topic, _ in self._topics_of(puller):
                workers, free_before = found.get(topic, (0, 0))
                found[topic] = (workers + 1, free_before + free[topic])
        return found

    def _topics_of(self, puller: _Puller) -> Iterator[tuple[str, int]]:
        """Those that it polled for lately."""
        waits_for = {topic for link in puller.parked.values() for topic in link.topics}
        too_old = self._clock.monotonic() - _SEEN_SECONDS
        for topic, (max_tasks, at) in puller.topics.items():
            if at > too_old or topic in waits_for:
                yield topic, max_tasks
