"""Finding process instances by the queries of ProcessCube's clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from starlette.requests import Request

from stellwerk.actors.node import Node
from stellwerk.errors import InvalidInput
from stellwerk.instants import InstantMs
from stellwerk.ports import InstanceFilter, InstanceSummary
from stellwerk.server.http.permissions import may_see_definition
from stellwerk.server.processcube.requests import values_in
from stellwerk.server.processcube.shapes import InstancesQuery

__all__ = ["InstanceConditions", "InstanceSearch", "conditions_of"]

_PAGE_ROWS = 1_000
_LOOKED_AT_MAX = 20_000
"""Instances that one query goes through: the newest ones."""
_STATES = frozenset({"running", "finished", "error", "terminated"})
_STATUSES = {"COMPLETED": "finished", "FAILED": "error", "CANCELLED": "terminated"}


@attrs.frozen(kw_only=True)
class InstanceConditions:
    """None: whatever it is."""

    correlations: frozenset[str] | None
    definitions: frozenset[str] | None
    processes: frozenset[str] | None
    created_before_ms: InstantMs | None
    created_after_ms: InstantMs | None

    def take(self, row: InstanceSummary) -> bool:
        return (
            (self.correlations is None or not self.correlations.isdisjoint({row.business_key, row.instance_id}))
            and (self.definitions is None or row.definition_id in self.definitions)
            and (self.processes is None or row.process_key in self.processes)
            and (self.created_before_ms is None or row.started_at_ms < self.created_before_ms)
            and (self.created_after_ms is None or row.started_at_ms > self.created_after_ms)
        )

    def narrowed(self, state: str | None) -> InstanceFilter:
        """What the store can look for by itself."""
        statuses = {state: status for status, state in _STATUSES.items() if state != "error"}
        return InstanceFilter(
            status="RUNNING" if state == "running" else statuses.get(state or ""),
            process_key=_only(self.processes),
            definition_id=_only(self.definitions),
            started_before_ms=self.created_before_ms,
        )


class InstanceSearch:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def find(
        self,
        request: Request,
        query: InstancesQuery,
        instance_ids: frozenset[str] | None = None,
        *,
        rows_max: int = _LOOKED_AT_MAX,
        only_running: bool = False,
    ) -> Sequence[InstanceSummary]:
        """Newest first, those apart that the caller may not see.

        :param instance_ids: instead of those that the query names.
        :param only_running: those with an incident among them, whose state in this dialect is another.
        """
        states = values_in(query.state, "state")
        if states is not None and not states <= _STATES:
            raise InvalidInput(f"expected one of {', '.join(sorted(_STATES))} @ query.state")
        conditions = conditions_of(query)
        if instance_ids is None:
            instance_ids = values_in(query.process_instance_id, "processInstanceId")

        def takes(row: InstanceSummary) -> bool:
            return conditions.take(row) and may_see_definition(request, row.definition_id)

        if instance_ids is None:
            wanted = conditions.narrowed("running" if only_running else _only(states))
            candidates = await self._listed(conditions, wanted, takes, rows_max if states is None else _LOOKED_AT_MAX)
        else:
            candidates = await self._named(instance_ids)
        rows = [row for row in candidates if takes(row) and (not only_running or row.status == "RUNNING")]
        if states is not None:
            shown = await self.states(rows)
            rows = [row for row in rows if shown[row.instance_id] in states]
        return rows[:rows_max]

    async def states(self, rows: Sequence[InstanceSummary]) -> dict[str, str]:
        """By instance. One that runs and has an open incident is in error, in this dialect's view."""
        running = [row.instance_id for row in rows if row.status == "RUNNING"]
        incidents = await self._node.incident_counts(running) if running else {}
        return {
            row.instance_id: _STATUSES.get(row.status) or ("error" if incidents.get(row.instance_id) else "running")
            for row in rows
        }

    async def _named(self, ids: frozenset[str]) -> Sequence[InstanceSummary]:
        found = [await self._node.ports.store.instance(instance_id) for instance_id in sorted(ids)]
        return sorted((row for row in found if row is not None), key=lambda row: row.started_at_ms, reverse=True)

    async def _listed(
        self,
        conditions: InstanceConditions,
        wanted: InstanceFilter,
        takes: Callable[[InstanceSummary], bool],
        rows_max: int,
    ) -> Sequence[InstanceSummary]:
        """Until so many are found that are taken."""
        correlation = _only(conditions.correlations)
        if correlation is not None:
            by_key = await self._node.instances(InstanceFilter(business_key=correlation), limit=_PAGE_ROWS)
            rows = [*by_key, *await self._named(frozenset({correlation}))]
            return list({row.instance_id: row for row in rows}.values())
        found: list[InstanceSummary] = []
        after: str | None = None
        taken = 0
        while len(found) < _LOOKED_AT_MAX and taken < rows_max:
            page = await self._node.instances(wanted, limit=_PAGE_ROWS, after=after)
            found += page
            taken += sum(map(takes, page))
            if len(page) < _PAGE_ROWS:
                break
            after = page[-1].instance_id
        return found


def conditions_of(query: InstancesQuery) -> InstanceConditions:
    """:raises InvalidInput: something is a search query."""
    return InstanceConditions(
        correlations=values_in(query.correlation_id, "correlationId"),
        definitions=values_in(query.process_definition_id, "processDefinitionId"),
        processes=values_in(query.process_model_id, "processModelId"),
        created_before_ms=query.created_before,
        created_after_ms=query.created_after,
    )


def _only(values: frozenset[str] | None) -> str | None:
    return next(iter(values)) if values is not None and len(values) == 1 else None
