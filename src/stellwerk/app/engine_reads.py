"""What a program sees of its engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from stellwerk.actors.connections import TopicView, WorkerView
from stellwerk.actors.node import Node
from stellwerk.actors.views import InstanceView
from stellwerk.app.life import EngineLife, while_open
from stellwerk.app.options import instant_of
from stellwerk.core.external_task import ExternalTask
from stellwerk.core.instance import InstanceState
from stellwerk.core.trace import Trace
from stellwerk.json_values import JsonObject
from stellwerk.ports import DefinitionRow, HistoryStep, InstanceFilter, InstanceSummary, NodeRow, TaskQuery

__all__ = ["EngineReads"]


class EngineReads:
    """The reading part of `stellwerk.Engine`: what is durable, as old as the answer."""

    def __init__(self, node: Node, life: EngineLife) -> None:
        self._node = node
        self._life = life

    @property
    def node(self) -> Node:
        """What is underneath, for tools that are built on stellwerk. It changes more often than this class."""
        return self._node

    @while_open
    async def definitions(self) -> Sequence[DefinitionRow]:
        """Every version of every process, by key and version."""
        return await self._node.definitions()

    # --- instances -------------------------------------------------------------------------------------------------

    @while_open
    async def instances(
        self,
        *,
        status: str | None = None,
        process: str | None = None,
        definition_id: str | None = None,
        business_key: str | None = None,
        with_incident: bool | None = None,
        started_from: datetime | None = None,
        started_before: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Sequence[InstanceSummary]:
        """Those for which all that is given holds, the newest first. ``after`` is the last id of the page before.

        ``status``: RUNNING, COMPLETED, FAILED or CANCELLED. ``definition_id``: as ``order:3``.

        :raises InvalidInput: an instant has no time zone.
        """
        wanted = InstanceFilter(
            status=status,
            process_key=process,
            definition_id=definition_id,
            business_key=business_key,
            with_incident=with_incident,
            started_from_ms=instant_of("started_from", started_from),
            started_before_ms=instant_of("started_before", started_before),
        )
        return await self._node.instances(wanted, limit=limit, after=after)

    @while_open
    async def instance(self, instance_id: str, *, with_history: bool = False) -> InstanceView:
        """Everything about one instance: summary, tokens, variables, tasks with their attempts, incidents, user tasks.

        :raises NotFound: there is no such instance.
        """
        return await self._node.view(instance_id, with_history=with_history)

    @while_open
    async def variables(self, instance_id: str) -> JsonObject:
        """Those of the process's own scope, as they are now or were at its end.

        :raises NotFound: there is no such instance.
        """
        return (await self._node.outcome(instance_id)).variables

    @while_open
    async def history(self, instance_id: str) -> Sequence[HistoryStep]:
        """Every step from the first on: its version, when it was taken, and its facts.

        :raises NotFound: there is no such instance.
        """
        return await self._node.history(instance_id)

    @while_open
    async def trace(self, instance_id: str) -> Trace:
        """What happened, by token and by task: who held a task from when to when, and how that ended.

        :raises NotFound: there is no such instance.
        """
        return await self._node.trace(instance_id)

    @while_open
    async def replay(self, instance_id: str, at: int | None = None) -> InstanceState:
        """The state after the step of version ``at`` (None: the newest), folded from the history's beginning.

        :raises NotFound: there is no such instance. InvalidInput: there is no such step.
        """
        return await self._node.replay(instance_id, at)

    # --- what they wait for ----------------------------------------------------------------------------------------

    @while_open
    async def tasks(
        self,
        *,
        instance_id: str | None = None,
        topic: str | None = None,
        state: str | None = None,
        worker_id: str | None = None,
        limit: int = 1000,
        after: str | None = None,
    ) -> Sequence[ExternalTask]:
        """External tasks, the oldest first. ``state``: READY, LOCKED, COMPLETED, FAILED, EXPIRED or CANCELLED.
        ``worker_id``: only those that this worker has locked.

        ``after`` is the last id of the page before.
        """
        wanted = TaskQuery(instance_id=instance_id, topic=topic, state=state, worker_id=worker_id)
        return await self._node.tasks(wanted, limit=limit, after=after)

    @while_open
    async def user_tasks(
        self, instance_id: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        """Open ones, of all instances or of one, by id: ``user_task_id``, ``instance_id``, ``element_id``, ….

        ``after`` is the last id of the page before.
        """
        return await self._node.user_tasks(instance_id, limit=limit, after=after)

    @while_open
    async def incidents(
        self,
        instance_id: str | None = None,
        *,
        process: str | None = None,
        kind: str | None = None,
        limit: int = 1000,
        after: str | None = None,
    ) -> Sequence[Mapping[str, object]]:
        """Open ones for which all that is given holds, by id: ``incident_id``, ``instance_id``, ``element_id``, ….

        ``after`` is the last id of the page before.
        """
        return await self._node.incidents(instance_id, process_key=process, kind=kind, limit=limit, after=after)

    # --- topics and workers ----------------------------------------------------------------------------------------

    @while_open
    async def topics(self) -> Sequence[TopicView]:
        """Every topic with an open task or a connected worker, by name: its backlog, its workers and their free room.

        ``is_unattended`` is the alarm: tasks wait, and no worker is there that would take them.
        """
        return await self._node.topics()

    @while_open
    async def workers(self) -> Sequence[WorkerView]:
        """The connected workers, by id, with their topics and how many leases they hold.

        On PostgreSQL those of all nodes, as these reported them last: ``node`` says to which each is connected. A node
        tells of 1,000 at most; `topics` counts all of them.
        """
        return await self._node.workers()

    @while_open
    async def nodes(self) -> Sequence[NodeRow]:
        """The nodes of the database, by id, this engine too: ``report``, and ``seen_ms_ago``. One, unless it is
        PostgreSQL. One that was not heard of for 15 s is dead, or cut off from the database.
        """
        return await self._node.nodes()

    def statistics(self) -> Mapping[str, object]:
        """Figures for people; their names may change."""
        return self._node.statistics()
