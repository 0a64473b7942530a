"""What an operator sees of topics and workers: what waits in the store beside who is connected, to whichever node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import attrs

from stellwerk.actors.leases import Subscription
from stellwerk.actors.pullers import Pullers
from stellwerk.actors.session import WorkerSession
from stellwerk.instants import InstantMs
from stellwerk.ports import NodeReport, SessionReport, SubscriptionReport, TopicBacklog, TopicReport

__all__ = [
    "Attended",
    "SubscriptionView",
    "TopicView",
    "WorkerView",
    "attended_by",
    "polling_workers",
    "session_reports",
    "topic_reports",
    "topic_views",
    "worker_views",
]


@attrs.frozen(kw_only=True)
class TopicView:
    """A topic: its backlog, and the connected workers that subscribe to it."""

    backlog: TopicBacklog
    workers: int
    free: int
    """How many more tasks they would take now. Of other nodes: would have taken when these reported last."""
    is_attended: bool
    """A worker subscribes, or it is not known that none does: some node does not tell all its topics."""

    @property
    def topic(self) -> str:
        return self.backlog.topic

    @property
    def is_unattended(self) -> bool:
        """Tasks are READY, and nobody is there who would take them."""
        return self.backlog.ready > 0 and not self.is_attended


@attrs.frozen(kw_only=True)
class SubscriptionView:
    topic: str
    max_tasks: int
    held: int
    """Leases that the worker holds now. Of one that is connected to another node: held when that reported last. Of one
    that polls: all of its leases that came by polls, whichever node it asked."""


@attrs.frozen(kw_only=True)
class WorkerView:
    """A connected session, or a worker that polls."""

    worker_id: str
    session_id: str
    client: str
    connected_at_ms: InstantMs
    """Wall clock."""
    node: str
    """The name of the node that it is connected to: host and process."""
    topics: Sequence[SubscriptionView]


@attrs.frozen
class Attended:
    """The topics that some worker takes tasks of."""

    topics: Set[str]
    may_be_more: bool
    """Some node has workers and does not tell all that they subscribe to."""

    def __contains__(self, topic: str) -> bool:
        return self.may_be_more or topic in self.topics


# --- of this node ----------------------------------------------------------------------------------------------------


def session_reports(sessions: Iterable[WorkerSession], pullers: Pullers) -> list[SessionReport]:
    """The connected ones, and those that poll, by worker id, and the longest connected first."""
    reports = [_session_report(session) for session in sessions if not session.closed] + pullers.session_reports()
    return sorted(reports, key=lambda report: (report.worker_id, report.connected_at_ms, report.session_id))


def _session_report(session: WorkerSession) -> SessionReport:
    # One that says 0 and holds nothing has unsubscribed.
    subscriptions = [
        SubscriptionReport(held.topic, held.max_tasks, len(held.leases))
        for held in session.subscriptions
        if held.max_tasks or held.leases
    ]
    return SessionReport(
        worker_id=session.hello.worker_id,
        session_id=session.session_id,
        client=session.hello.client,
        connected_at_ms=session.connected_at_ms,
        subscriptions=tuple(subscriptions),
    )


def topic_reports(sessions: Iterable[WorkerSession], pullers: Pullers) -> list[TopicReport]:
    """Topics to which a connected worker subscribes, or for which one polls, by name."""
    subscribed: dict[str, list[Subscription]] = {}
    for session in sessions:
        for subscription in () if session.closed else session.subscriptions:
            if subscription.max_tasks > 0:
                subscribed.setdefault(subscription.topic, []).append(subscription)
    polled = pullers.topics()
    return [
        _topic_report(topic, subscribed.get(topic, ()), *polled.get(topic, (0, 0)))
        for topic in sorted({*subscribed, *polled})
    ]


def _topic_report(topic: str, held: Sequence[Subscription], pulling: int, free: int) -> TopicReport:
    """:param pulling: workers that poll, ``free``: what they would take."""
    return TopicReport(topic, len(held) + pulling, sum(subscription.room for subscription in held) + free)


# --- of all nodes ----------------------------------------------------------------------------------------------------


def attended_by(nodes: Iterable[NodeReport]) -> Attended:
    topics: set[str] = set()
    may_be_more = False
    for node in nodes:
        topics.update(report.topic for report in node.topics if report.workers)
        may_be_more |= node.workers > 0 and not node.tells_all_topics
    return Attended(topics, may_be_more)


def topic_views(backlogs: Iterable[TopicBacklog], nodes: Sequence[NodeReport]) -> list[TopicView]:
    """By name; topics that have only workers are there too."""
    waiting = {backlog.topic: backlog for backlog in backlogs}
    workers: dict[str, int] = {}
    free: dict[str, int] = {}
    for node in nodes:
        for report in node.topics:
            workers[report.topic] = workers.get(report.topic, 0) + report.workers
            free[report.topic] = free.get(report.topic, 0) + report.free
    attended = attended_by(nodes)
    return [
        TopicView(
            backlog=waiting.get(topic) or _nothing_on(topic),
            workers=workers.get(topic, 0),
            free=free.get(topic, 0),
            is_attended=topic in attended,
        )
        for topic in sorted({*waiting, *workers})
    ]


def polling_workers(nodes: Iterable[NodeReport]) -> list[str]:
    """Ids of those that poll, sorted."""
    return sorted({session.worker_id for session in _sessions(nodes) if session.polls})


def worker_views(nodes: Sequence[NodeReport], locked: Mapping[tuple[str, str], int]) -> list[WorkerView]:
    """By worker id, and the longest connected first.

    :param locked: by worker id and topic: how many tasks those that poll have locked, as the store has it.
    """
    pushed = Counter[tuple[str, str]]()
    for session in _sessions(nodes):
        pushed.update({(session.worker_id, one.topic): one.held for one in session.subscriptions})
    pulled = {key: count - pushed[key] for key, count in locked.items() if count > pushed[key]}
    by_worker: dict[str, dict[str, int]] = {}
    for (worker_id, topic), count in sorted(pulled.items()):
        by_worker.setdefault(worker_id, {})[topic] = count
    views = [
        _worker_view(_with_leases(session, by_worker.get(session.worker_id, {})), node.name)
        for node in nodes
        for session in node.sessions
    ]
    return sorted(views, key=lambda view: (view.worker_id, view.connected_at_ms, view.session_id))


def _sessions(nodes: Iterable[NodeReport]) -> Iterator[SessionReport]:
    return (session for node in nodes for session in node.sessions)


def _with_leases(session: SessionReport, held: Mapping[str, int]) -> SessionReport:
    """:param held: by topic, of one that polls. It need not have polled lately for what it is at work on."""
    if not session.polls:
        return session
    known = [SubscriptionReport(one.topic, one.max_tasks, held.get(one.topic, 0)) for one in session.subscriptions]
    further = held.keys() - {one.topic for one in known}
    return attrs.evolve(
        session,
        subscriptions=(*known, *[SubscriptionReport(topic, 0, held[topic]) for topic in sorted(further)]),
    )


def _worker_view(session: SessionReport, node: str) -> WorkerView:
    return WorkerView(
        worker_id=session.worker_id,
        session_id=session.session_id,
        client=session.client,
        connected_at_ms=session.connected_at_ms,
        node=node,
        topics=[
            SubscriptionView(topic=one.topic, max_tasks=one.max_tasks, held=one.held) for one in session.subscriptions
        ],
    )


def _nothing_on(topic: str) -> TopicBacklog:
    return TopicBacklog(topic=topic, ready=0, backing_off=0, locked=0, oldest_ready_at_ms=None)
