"""The figures of an engine as text for Prometheus (exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import attrs

from stellwerk.actors.connections import TopicView
from stellwerk.actors.node import Node
from stellwerk.errors import StellwerkError
from stellwerk.instants import InstantMs
from stellwerk.server.http.figures import HistogramFigures, NodeFigures, figures_of

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

__all__ = ["CONTENT_TYPE", "TOPICS_MAX", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TOPICS_MAX = 1_000
"""Each is several time series: beyond, topics with the least work are left out, and how many is told."""
_CACHE_SECONDS = 1.0
_MS = 1000


@attrs.frozen(kw_only=True)
class _Backlog:
    """What waits in the database, whichever node will work on it."""

    topics: Sequence[TopicView]
    now_ms: InstantMs
    """The lease clock."""
    timer_lag_ms: int
    """How long the timer that is due first is overdue."""
    read_at: float


class Metrics:
    def __init__(self, node: Node, *, topics_max: int = TOPICS_MAX) -> None:
        self._node = node
        self._topics_max = topics_max
        self._backlog: _Backlog | None = None

    async def text(self, others: Sequence[NodeFigures] = ()) -> bytes:
        """:param others: nodes of the same engine that are scraped by way of this one."""
        # Takes a tenth of a second: not before somebody scrapes.
        from prometheus_client.exposition import generate_latest

        families = list(_node_families([figures_of(self._node), *others]))
        backlog = await self._known_backlog()
        families += _backlog_families(backlog, self._topics_max)
        return generate_latest(_Families(families))

    async def _known_backlog(self) -> _Backlog | None:
        """None: the database does not answer. That is no reason to tell nothing of the nodes."""
        now = self._node.ports.clock.monotonic()
        if self._backlog is None or now - self._backlog.read_at >= _CACHE_SECONDS:
            try:
                self._backlog = await self._read_backlog()
            except StellwerkError:
                return None
        return self._backlog

    async def _read_backlog(self) -> _Backlog:
        store, clock = self._node.ports.store, self._node.ports.clock
        topics, now_ms = await self._node.topics(), clock.wall_ms()
        due, _ = await store.due_timers(now_ms, 1)
        return _Backlog(
            topics=topics,
            now_ms=await store.lease_now(),
            timer_lag_ms=max((now_ms - timer.due_at_ms for timer in due), default=0),
            read_at=clock.monotonic(),
        )


class _Families:
    """What prometheus-client takes for a collector. There is no registry: everything is counted elsewhere."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


# --- families ------------------------------------------------------------------------------------------------------


def _gauge(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"stellwerk_{name}", text, labels=[label])
    for value_of, value in values:
        family.add_metric([value_of], value)
    return family


def _counter(name: str, text: str, values: Iterable[tuple[str, float]]) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(f"stellwerk_{name}", text, labels=["node"])
    for node, value in values:
        family.add_metric([node], value)
    return family


def _histogram(name: str, text: str, values: Iterable[tuple[str, HistogramFigures]]) -> HistogramMetricFamily:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(f"stellwerk_{name}", text, labels=["node"])
    for node, figures in values:
        bounds = [*(format(bound, "g") for bound in figures.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(figures.counts)), strict=True))
        family.add_metric([node], buckets, figures.total)
    return family


def _node_families(nodes: Sequence[NodeFigures]) -> Iterator[Metric]:
    def each(field: str) -> list[tuple[str, float]]:
        return [(node.node, float(getattr(node, field))) for node in nodes]

    yield _info(nodes)
    yield _gauge("draining", "1 while the node drains.", "node", each("is_draining"))
    yield _gauge("instances_live", "Instances whose actors are in memory.", "node", each("instances_live"))
    yield _gauge("sessions", "Connected workers.", "node", each("sessions"))
    yield _gauge("leases_held", "Leases of the connected workers.", "node", each("leases_held"))
    yield _counter("commits", "Transactions committed.", each("commits"))
    yield _counter("operations", "Operations committed, many in one transaction.", each("operations"))
    yield _counter("failed_transactions", "Transactions that the store did not take.", each("failed_transactions"))
    yield _counter("locks_reclaimed", "Locks that ran out and were taken back.", each("locks_reclaimed"))
    yield _leases_ended(nodes)
    sizes = [(node.node, node.batch_sizes) for node in nodes]
    yield _histogram("commit_operations", "Operations of each transaction.", sizes)
    seconds = [(node.node, node.store_seconds) for node in nodes]
    yield _histogram("store_seconds", "How long the store took for each transaction.", seconds)
    jumps = [(node.node, float(node.clock_jumps)) for node in nodes if node.clock_jumps is not None]
    if jumps:
        yield _counter("database_clock_jumps", "How often the database's clock was set.", jumps)


def _info(nodes: Sequence[NodeFigures]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily("stellwerk_node_info", "The version of the node; always 1.", labels=["node", "version"])
    for node in nodes:
        family.add_metric([node.node, node.version], 1)
    return family


def _leases_ended(nodes: Sequence[NodeFigures]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily("stellwerk_leases_ended", "Leases by what ended them.", labels=["node", "how"])
    for node in nodes:
        for how, number in node.leases_ended.items():
            family.add_metric([node.node, how], number)
    return family


def _backlog_families(backlog: _Backlog | None, topics_max: int) -> Iterator[Metric]:
    yield _plain("store_up", "1 when the database has answered.", float(backlog is not None))
    if backlog is None:
        return
    topics = sorted(backlog.topics, key=_work_of, reverse=True)
    shown = sorted(topics[:topics_max], key=lambda view: view.topic)
    tasks = _tasks_family(shown)
    yield tasks
    oldest = [
        (view.topic, max(0, backlog.now_ms - since_ms) / _MS)
        for view in shown
        if (since_ms := view.backlog.oldest_ready_at_ms) is not None
    ]
    yield _gauge("oldest_ready_seconds", "How long the oldest READY task of a topic has waited.", "topic", oldest)
    unattended = [(view.topic, 1.0) for view in shown if view.is_unattended]
    yield _gauge("topic_unattended", "1: READY tasks of the topic, and no worker for them.", "topic", unattended)
    yield _plain("topics_unattended", "How many such topics there are.", sum(view.is_unattended for view in topics))
    yield _plain("topics_left_out", "Topics beyond those whose figures are here.", max(0, len(topics) - topics_max))
    lag = backlog.timer_lag_ms / _MS
    yield _plain("timer_lag_seconds", "How long the timer that is due first is overdue.", lag)


def _work_of(view: TopicView) -> tuple[bool, int]:
    return view.is_unattended, view.backlog.ready + view.backlog.locked + view.backlog.backing_off


def _plain(name: str, text: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"stellwerk_{name}", text, value=value)


def _tasks_family(topics: Sequence[TopicView]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily("stellwerk_tasks", "Open external tasks.", labels=["topic", "state"])
    for view in topics:
        backlog = view.backlog
        for state, number in (
            ("ready", backlog.ready),
            ("backing_off", backlog.backing_off),
            ("locked", backlog.locked),
        ):
            family.add_metric([view.topic, state], number)
    return family
