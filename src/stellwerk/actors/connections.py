"""What an operator sees of topics and workers: what waits in the store beside who is connected to this node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from stellwerk.actors.leases import Subscription
from stellwerk.actors.session import WorkerSession
from stellwerk.instants import InstantMs
from stellwerk.ports import TopicBacklog

__all__ = ["SubscriptionView", "TopicView", "WorkerView", "attended_topics", "topic_views", "worker_views"]


@attrs.frozen(kw_only=True)
class TopicView:
    """A topic: its backlog, and the connected workers that subscribe to it."""

    backlog: TopicBacklog
    workers: int
    free: int
    """How many more tasks they would take now."""
    may_be_attended_elsewhere: bool = False
    """Workers are connected to other nodes, and nothing says that none of them takes these tasks."""

    @property
    def topic(self) -> str:
        return self.backlog.topic

    @property
    def is_unattended(self) -> bool:
        """Tasks are READY, and nobody is there who would take them."""
        return self.backlog.ready > 0 and not self.workers and not self.may_be_attended_elsewhere


@attrs.frozen(kw_only=True)
class SubscriptionView:
    topic: str
    max_tasks: int
    held: int
    """Leases that the worker holds now."""


@attrs.frozen(kw_only=True)
class WorkerView:
    """A connected session."""

    worker_id: str
    session_id: str
    client: str
    connected_at_ms: InstantMs
    """Wall clock."""
    topics: Sequence[SubscriptionView]


def topic_views(
    backlogs: Iterable[TopicBacklog],
    sessions: Iterable[WorkerSession],
    may_be_attended_elsewhere: Callable[[str], bool] = lambda _topic: False,
) -> list[TopicView]:
    """By name; topics that have only workers are there too."""
    subscribed: dict[str, list[Subscription]] = {}
    for subscription in _open_subscriptions(sessions):
        subscribed.setdefault(subscription.topic, []).append(subscription)
    waiting = {backlog.topic: backlog for backlog in backlogs}
    return [
        TopicView(
            backlog=waiting.get(topic) or _nothing_on(topic),
            workers=len(subscribed.get(topic, ())),
            free=sum(subscription.room for subscription in subscribed.get(topic, ())),
            may_be_attended_elsewhere=may_be_attended_elsewhere(topic),
        )
        for topic in sorted({*waiting, *subscribed})
    ]


def attended_topics(sessions: Iterable[WorkerSession]) -> set[str]:
    """Topics to which a connected worker subscribes."""
    return {subscription.topic for subscription in _open_subscriptions(sessions)}


def worker_views(sessions: Iterable[WorkerSession]) -> list[WorkerView]:
    """By worker id, and the longest connected first."""
    views = [_worker_view(session) for session in sessions if not session.closed]
    return sorted(views, key=lambda view: (view.worker_id, view.connected_at_ms, view.session_id))


def _worker_view(session: WorkerSession) -> WorkerView:
    # One that says 0 and holds nothing has unsubscribed.
    topics = [
        SubscriptionView(topic=held.topic, max_tasks=held.max_tasks, held=len(held.leases))
        for held in session.subscriptions
        if held.max_tasks or held.leases
    ]
    return WorkerView(
        worker_id=session.hello.worker_id,
        session_id=session.session_id,
        client=session.hello.client,
        connected_at_ms=session.connected_at_ms,
        topics=topics,
    )


def _open_subscriptions(sessions: Iterable[WorkerSession]) -> Iterable[Subscription]:
    for session in sessions:
        if not session.closed:
            yield from (subscription for subscription in session.subscriptions if subscription.max_tasks > 0)


def _nothing_on(topic: str) -> TopicBacklog:
    return TopicBacklog(topic=topic, ready=0, backing_off=0, locked=0, oldest_ready_at_ms=None)
