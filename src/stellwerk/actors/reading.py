"""What one can see of instances, tasks, topics and workers: the reading half of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import trio

from stellwerk.actors.attendance import Attendance
from stellwerk.actors.clockwork import Clockwork
from stellwerk.actors.committer import Committer
from stellwerk.actors.connections import (
    Attended,
    TopicView,
    WorkerView,
    attended_by,
    polling_workers,
    session_reports,
    topic_reports,
    topic_views,
    worker_views,
)
from stellwerk.actors.definitions import Definitions
from stellwerk.actors.end_events import EndEventReached, EndEventSearch, end_events
from stellwerk.actors.histories import ALL_EVENTS, EventFilter, HistoryPage, HistoryPages, recorded_steps
from stellwerk.actors.incidents import IncidentFilter, matching_incidents
from stellwerk.actors.instances import Instances
from stellwerk.actors.leases import LeaseBook
from stellwerk.actors.node_config import NodeConfig
from stellwerk.actors.polling import Polling
from stellwerk.actors.reports import NodeReports
from stellwerk.actors.requests import SessionStatistics
from stellwerk.actors.session import WorkerSession
from stellwerk.actors.topics import Topics
from stellwerk.actors.views import (
    EndWaiters,
    InstanceOutcome,
    InstanceView,
    MessageView,
    Waiter,
    message_view,
    outcome_of,
    tasks_of,
    view_of,
)
from stellwerk.core.external_task import ExternalTask, TaskAttempt
from stellwerk.core.instance import InstanceState
from stellwerk.core.replay import replay
from stellwerk.core.trace import Trace, trace
from stellwerk.errors import NotFound
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    DefinitionRow,
    HistoryStep,
    InstanceFilter,
    InstanceSummary,
    NodeReport,
    NodeRow,
    Ports,
    TaskQuery,
    UserTaskFilter,
)

__all__ = ["NodeReads"]

_FOREVER = float("inf")
_POLL_SECONDS = 1.0
"""Behind what other nodes tell."""


class NodeReads:
    """A part of `Node`. Everything comes from the store, so it is what is durable, and as old as the answer."""

    ports: Ports
    config: NodeConfig
    committer: Committer
    definition_cache: Definitions
    clockwork: Clockwork
    leases: LeaseBook
    live_topics: Topics
    session_statistics: SessionStatistics
    reports: NodeReports
    attendance: Attendance
    polling: Polling
    draining: bool
    _instances: Instances
    _started_at_ms: InstantMs
    _sessions: dict[str, WorkerSession]
    _waiters: EndWaiters
    _history_pages: HistoryPages

    # --- definitions and instances ---------------------------------------------------------------------------------

    async def definitions(self) -> Sequence[DefinitionRow]:
        """Every version, by key and version."""
        return await self.ports.store.definitions()

    async def definition(self, process_key: str, version: int | None = None) -> DefinitionRow:
        """The newest version, or the one that is asked for. :raises NotFound: it is not deployed."""
        if version is None:
            row = await self.ports.store.latest_definition(process_key)
        else:
            row = await self.ports.store.definition(f"{process_key}:{version}")
        if row is None:
            wanted = process_key if version is None else f"{process_key}:{version}"
            raise NotFound(f'no definition "{wanted}" is deployed')
        return row

    async def disabled_processes(self) -> Sequence[str]:
        """Keys of processes of which nothing starts, sorted."""
        return await self.ports.store.disabled_processes()

    async def instances(
        self, wanted: InstanceFilter = InstanceFilter(), *, limit: int = 100, after: str | None = None
    ) -> Sequence[InstanceSummary]:
        """Newest first; `after` is the last id of the page before."""
        return await self.ports.store.instances(wanted, limit=limit, after=after)

    async def view(self, instance_id: str, *, with_history: bool = True) -> InstanceView:
        """:raises NotFound: there is no such instance."""
        return await view_of(self.ports.store, instance_id, with_history=with_history)

    async def outcome(self, instance_id: str) -> InstanceOutcome:
        """:raises NotFound: there is no such instance."""
        return await outcome_of(self.ports.store, instance_id)

    async def wait_for_end(
        self, instance_id: str, *, timeout_seconds: float | None = None, or_incident: bool = False
    ) -> InstanceSummary:
        """Wait until the instance ends (or, if asked, an incident is open), and give what stands in the store then.

        When time is up the summary as it is. :raises NotFound: there is no such instance.
        """
        deadline = self._deadline(timeout_seconds)
        with self._waiters.watching(instance_id) as waiter:
            while True:
                summary = await self._summary(instance_id)
                if summary.status != "RUNNING" or (or_incident and await self.incidents(instance_id, limit=1)):
                    return summary
                if self.ports.clock.monotonic() >= deadline:
                    return summary
                await self._wait_for_change(waiter, deadline)

    async def wait_for_end_event(
        self,
        instance_id: str,
        end_event_id: str | None = None,
        *,
        timeout_seconds: float | None = None,
        or_incident: bool = False,
    ) -> EndEventReached | None:
        """Wait until a token reaches that end event (None: the first of the process's own that is not for errors),
        which may have happened before. An instance that ends without (or, if asked, has an open incident) comes back
        too, with no ``element_id``.

        None: time was up. :raises NotFound: there is no such instance, or no such end event in its process.
        """
        deadline = self._deadline(timeout_seconds)
        deployed = await self.definition_cache.get((await self._summary(instance_id)).definition_id)
        wanted = end_events(deployed.process, end_event_id)
        search = EndEventSearch(self.ports.store, self.ports.background, instance_id, wanted)
        with self._waiters.watching(instance_id, for_each_step=True) as waiter:
            while True:
                summary = await self._summary(instance_id)
                found = await search.find(summary)
                if found is None and or_incident and await self.incidents(instance_id, limit=1):
                    found = search.without(summary)
                if found is not None or self.ports.clock.monotonic() >= deadline:
                    return found
                await self._wait_for_change(waiter, deadline)

    async def _summary(self, instance_id: str) -> InstanceSummary:
        summary = await self.ports.store.instance(instance_id)
        if summary is None:
            raise NotFound(f"there is no instance {instance_id}")
        return summary

    def _deadline(self, seconds: float | None) -> float:
        return _FOREVER if seconds is None else self.ports.clock.monotonic() + seconds

    async def _wait_for_change(self, waiter: Waiter, deadline: float) -> None:
        """Or until then. Of steps of other nodes one hears nothing: a poll is behind."""
        left = max(0.0, deadline - self.ports.clock.monotonic())
        with trio.move_on_after(min(left, _POLL_SECONDS) if self.ports.store.is_shared else left):
            await waiter.wait()

    # --- histories -------------------------------------------------------------------------------------------------

    async def history(self, instance_id: str) -> Sequence[HistoryStep]:
        """Every step. :raises NotFound: there is no such instance."""
        return await recorded_steps(self.ports.store, instance_id)

    async def history_page(
        self, instance_id: str, *, after: int = 0, limit: int = 100, wanted: EventFilter = ALL_EVENTS
    ) -> HistoryPage:
        """The events behind sequence `after` that are wanted. :raises NotFound: there is no such instance."""
        return await self._history_pages.page(instance_id, after=after, limit=limit, wanted=wanted)

    async def trace(self, instance_id: str) -> Trace:
        """The whole life of an instance by token and by task. :raises NotFound: there is no such instance."""
        steps = await self.history(instance_id)
        tasks = await tasks_of(self.ports.store, instance_id)
        return await self.ports.background.run_sync(partial(trace, instance_id, steps, tasks))

    async def replay(self, instance_id: str, at: int | None = None) -> InstanceState:
        """The state after step `at` (None: the newest), folded from the history's beginning.

        :raises NotFound: there is no such instance; InvalidInput: there is no such step.
        """
        return (await self.replay_step(instance_id, at))[1]

    async def replay_step(self, instance_id: str, at: int | None = None) -> tuple[HistoryStep, InstanceState]:
        """Like `replay`, with the step itself."""
        steps = await self.history(instance_id)
        state = await self.ports.background.run_sync(partial(replay, steps, at))
        return steps[(len(steps) if at is None else at) - 1], state

    # --- tasks, people, incidents ----------------------------------------------------------------------------------

    async def tasks(
        self, wanted: TaskQuery = TaskQuery(), *, limit: int = 1000, after: str | None = None
    ) -> Sequence[ExternalTask]:
        """Oldest first; `after` is the last id of the page before."""
        return await self.ports.store.tasks(wanted, limit=limit, after=after)

    async def count_tasks(self, wanted: TaskQuery = TaskQuery()) -> int:
        return await self.ports.store.count_tasks(wanted)

    async def task(self, task_id: str) -> tuple[ExternalTask, Sequence[TaskAttempt]]:
        """With the leases that ended without success. :raises NotFound: there is no such task."""
        task = await self.ports.store.task(task_id)
        if task is None:
            raise NotFound(f"there is no task {task_id}")
        return task, await self.ports.store.attempts(task_id)

    async def user_tasks(
        self,
        instance_id: str | None = None,
        *,
        wanted: UserTaskFilter = UserTaskFilter(),
        limit: int = 1000,
        after: str | None = None,
    ) -> Sequence[Mapping[str, object]]:
        """Open ones, by id; `after` is the last id of the page before. So with `incidents`."""
        return await self.ports.store.user_tasks(instance_id, wanted=wanted, limit=limit, after=after)

    async def incidents(
        self,
        instance_id: str | None = None,
        *,
        process_key: str | None = None,
        kind: str | None = None,
        limit: int = 1000,
        after: str | None = None,
    ) -> Sequence[Mapping[str, object]]:
        if process_key is None and kind is None:
            return await self.ports.store.incidents(instance_id, limit=limit, after=after)
        wanted = IncidentFilter(instance_id=instance_id, process_key=process_key, kind=kind)
        return await matching_incidents(self.ports.store, wanted, limit=limit, after=after)

    async def incident_counts(self, instance_ids: Sequence[str]) -> Mapping[str, int]:
        """How many are open in each; instances without any are left out."""
        return await self.ports.store.incident_counts(instance_ids)

    # --- messages ----------------------------------------------------------------------------------------------------

    async def message(self, message_id: str) -> MessageView:
        """What became of a message. One that nobody knows (any more) is no error: every message comes to that."""
        kept = await self.ports.store.message(message_id)
        return message_view(message_id, kept, await self.ports.store.lease_now())

    async def waiting_messages(self, *, limit: int = 100, after: str | None = None) -> Sequence[MessageView]:
        """Those that nothing has waited for yet, by id; `after` is the last id of the page before."""
        now_ms = await self.ports.store.lease_now()
        found = await self.ports.store.waiting_messages(now_ms, limit=limit, after=after)
        return [message_view(kept.message_id, kept, now_ms) for kept in found]

    async def awaited_names(self, limit: int) -> Sequence[str]:
        """Names of messages that something waits for, or that start an instance; sorted."""
        return await self.ports.store.awaited_names(limit)

    # --- topics and workers ----------------------------------------------------------------------------------------

    async def topics(self) -> Sequence[TopicView]:
        """Every topic with an open task or a worker that is connected to a node, by name."""
        backlogs = await self.ports.store.topic_backlogs()
        return topic_views(backlogs, await self.reports.alive())

    async def unattended(self, topics: frozenset[str]) -> Sequence[str]:
        """Those to which no worker that is connected to a node subscribes, by name."""
        attended = await self._attended()
        return sorted(topic for topic in topics if topic not in attended)

    async def workers(self) -> Sequence[WorkerView]:
        """The sessions that are connected to a node, by worker id: of this node all, of each other up to 1,000."""
        nodes = await self.reports.alive()
        polling = polling_workers(nodes)
        return worker_views(nodes, await self.ports.store.held_leases(polling) if polling else {})

    async def nodes(self) -> Sequence[NodeRow]:
        """All nodes on the store that were heard of lately, this one too unless it is offline, by id."""
        if not self.config.is_offline:
            await self.reports.report()
        return await self.ports.store.nodes()

    def report(self) -> NodeReport:
        """How this node is now, with all its workers."""
        identity, commits = self.config.identity, self.committer.statistics
        return NodeReport(
            node_id=identity.node_id,
            name=identity.name,
            url=identity.url,
            version=identity.version,
            started_at_ms=self._started_at_ms,
            is_draining=self.draining,
            workers=len(self._sessions) + len(self.polling.pullers),
            leases=len(self.leases),
            instances_live=len(self._instances),
            commits=commits.transactions,
            operations=commits.operations,
            store_ms=commits.store_ms,
            sessions=tuple(session_reports(self._sessions.values(), self.polling.pullers)),
            topics=tuple(topic_reports(self._sessions.values(), self.polling.pullers)),
        )

    async def _attended(self) -> Attended:
        return attended_by(await self.reports.alive())

    def statistics(self) -> Mapping[str, object]:
        """Figures for operators, of this node."""
        return {
            "instances_live": len(self._instances),
            "sessions": len(self._sessions),
            "leases_held": len(self.leases),
            "locks_reclaimed": self.clockwork.locks_reclaimed,
            "requests": attrs.asdict(self.session_statistics),
            "commits": attrs.asdict(self.committer.statistics),
            "topics_live": len(self.live_topics),
            "topics": self.live_topics.statistics(),
            "topics_unattended_ms": dict(self.attendance.unattended),
        }
