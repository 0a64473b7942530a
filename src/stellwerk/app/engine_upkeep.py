"""How a program keeps its engine in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta

from stellwerk.actors.incidents import IncidentFilter, RetriedIncidents
from stellwerk.actors.node import Node
from stellwerk.app.arguments import path_of
from stellwerk.app.life import EngineLife, while_open
from stellwerk.app.options import duration_ms
from stellwerk.json_values import JsonObject

__all__ = ["EngineUpkeep"]

_RETRIED_AT_ONCE = 1_000


class EngineUpkeep:
    """The operator's part of `stellwerk.Engine`."""

    _node: Node
    _life: EngineLife

    # --- instances -------------------------------------------------------------------------------------------------

    @while_open
    async def set_variables(self, instance_id: str, variables: JsonObject) -> None:
        """Set variables of the process's own scope by hand; others keep their values. A task that failed gets them when
        its incident is resolved.

        :raises NotFound: there is no such instance. Conflict: it has ended.
        """
        await self._node.set_variables(instance_id, variables)

    @while_open
    async def cancel(self, instance_id: str, reason: str) -> None:
        """End the instance as CANCELLED, without compensation; its workers are told to give up.

        :raises NotFound: there is no such instance. Conflict: it has ended.
        """
        await self._node.cancel_instance(instance_id, reason)

    # --- incidents -------------------------------------------------------------------------------------------------

    @while_open
    async def resolve_incident(self, incident_id: str, *, retries: int | None = None) -> None:
        """Try again from where it stands; a task gets so many attempts, or with None as many as its model says.

        :raises NotFound: it is not open (any more). InvalidInput: ``retries`` makes no sense.
        """
        await self._node.resolve_incident(incident_id, retries)

    @while_open
    async def retry_incidents(
        self,
        *,
        incident_ids: Sequence[str] | None = None,
        instance_id: str | None = None,
        process: str | None = None,
        element_id: str | None = None,
        kind: str | None = None,
        topic: str | None = None,
        retries: int | None = None,
        limit: int = _RETRIED_AT_ONCE,
        after: str | None = None,
    ) -> RetriedIncidents:
        """`resolve_incident` for the first ``limit`` for which all that is given holds; with nothing given, for all.

        → which are ``requeued`` (not solved: the same may go wrong again) and which were refused; where there are
        ``more``, go on with ``after=result.last``.

        :raises InvalidInput: ``retries`` makes no sense. StoreUnavailable: some may be re-queued already.
        """
        wanted = IncidentFilter(
            incident_ids=incident_ids,
            instance_id=instance_id,
            process_key=process,
            element_id=element_id,
            kind=kind,
            topic=topic,
        )
        return await self._node.retry_incidents(wanted, retries=retries, limit=limit, after=after)

    # --- the file --------------------------------------------------------------------------------------------------

    @while_open
    async def prune(self, older_than: timedelta, progress: Callable[[int], None] = lambda _done: None) -> int:
        """Delete instances that ended longer ago than that, with their histories, in small pieces. → how many

        ``progress`` is told how many are deleted so far.

        :raises InvalidInput: ``older_than`` is negative.
        """
        return await self._node.prune(duration_ms("older_than", older_than), progress)

    @while_open
    async def backup(
        self, target: str | os.PathLike[str], progress: Callable[[float], None] = lambda _done: None
    ) -> None:
        """Write a consistent copy of the database to a new file while work goes on. It is there whole or not at all.

        ``progress`` is told how much is done, from 0 to 1.

        :raises Conflict: the engine is in memory, or the file exists. StoreUnavailable: it cannot be written.
        """
        await self._node.backup(path_of("target", target), progress)
