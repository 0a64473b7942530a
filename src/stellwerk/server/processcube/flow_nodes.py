"""Flow node instances, and the tasks that people finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.views import tasks_of
from stellwerk.model.process import FlowNode
from stellwerk.ports import InstanceSummary, Scope
from stellwerk.server.http.answers import encoded
from stellwerk.server.http.context import ApiContext, Endpoint, identity_of
from stellwerk.server.http.naming import named
from stellwerk.server.http.permissions import may_see_definition
from stellwerk.server.http.visibility import check_user_task
from stellwerk.server.processcube import shapes
from stellwerk.server.processcube.catalogue import Catalogue
from stellwerk.server.processcube.flow_node_reading import FlowNodeInstance, flow_node_instances
from stellwerk.server.processcube.flow_node_views import flow_node_view, waiting_task_view
from stellwerk.server.processcube.instance_search import InstanceConditions, InstanceSearch, conditions_of
from stellwerk.server.processcube.node_types import event_type_of, flow_node_type_of
from stellwerk.server.processcube.requests import (
    body_of,
    no_content,
    object_of,
    page_of,
    query_of,
    skip_body,
    value_of,
    values_in,
)

__all__ = ["FlowNodeEndpoints"]

_FOR_PEOPLE = frozenset({"bpmn:UserTask", "bpmn:ManualTask", "bpmn:Task"})
_OPEN_STATES = frozenset({"suspended", "running"})
_INSTANCES_MAX = 100
"""Whose histories are read for one answer."""
_OPEN_TASKS_MAX = 10_000


@attrs.frozen(kw_only=True)
class _Wanted:
    """Conditions on flow node instances; None: whatever it is."""

    ids: frozenset[str] | None
    previous_ids: frozenset[str] | None
    nodes: frozenset[str] | None
    names: frozenset[str] | None
    types: frozenset[str] | None
    event_types: frozenset[str] | None
    states: frozenset[str] | None

    @property
    def are_waiting_for_people(self) -> bool:
        is_for_people = self.types is not None and self.types <= _FOR_PEOPLE and self.previous_ids is None
        return is_for_people and (self.states is None or self.states == {"suspended"})

    @property
    def are_of_running_instances(self) -> bool:
        return self.states is not None and self.states <= _OPEN_STATES

    def takes(self, instance_id: str, node: FlowNode, state: str, previous_id: str | None = None) -> bool:
        return (
            _is_in(self.ids, instance_id)
            and _is_in(self.previous_ids, previous_id)
            and _is_in(self.nodes, node.id)
            and _is_in(self.names, node.name or "")
            and _is_in(self.types, flow_node_type_of(node))
            and _is_in(self.event_types, event_type_of(node))
            and _is_in(self.states, state)
        )


class FlowNodeEndpoints:
    def __init__(self, context: ApiContext, catalogue: Catalogue, search: InstanceSearch) -> None:
        self._context = context
        self._node = context.node
        self._catalogue = catalogue
        self._search = search

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        finished = ("/manual_tasks", "/untyped_tasks", "/empty_activities")
        return (
            Endpoint("GET", "/flow_node_instances", self.flow_node_instances, Scope.CLIENT),
            Endpoint("PUT", "/user_tasks/{task_id}/finish", self.finish_user_task, Scope.CLIENT),
            Endpoint("PUT", "/user_tasks/{task_id}/reserve", self.reserve, Scope.CLIENT),
            Endpoint("DELETE", "/user_tasks/{task_id}/cancel-reservation", self.cancel_reservation, Scope.CLIENT),
            *(Endpoint("PUT", f"{path}/{{task_id}}/finish", self.finish_task, Scope.CLIENT) for path in finished),
        )

    # --- reading

    async def flow_node_instances(self, request: Request) -> Response:
        """Unless they are named, of the newest instances."""
        query = query_of(request, shapes.FlowNodesQuery)
        offset, limit = page_of(query)
        rows = await self._found(request, query, _wanted(query))
        page = rows[offset : offset + limit]

        def text() -> bytes:
            return encoded({"flowNodeInstances": [view() for view in page], "totalCount": len(rows)})

        return await self._context.answer_long(text, len(page))

    async def _found(
        self, request: Request, query: shapes.FlowNodesQuery, wanted: _Wanted
    ) -> Sequence[Callable[[], object]]:
        narrowed = shapes.InstancesQuery(
            correlation_id=query.correlation_id,
            process_definition_id=query.process_definition_id,
            process_model_id=query.process_model_id,
        )
        names = values_in(query.process_model_name, "processModelName")
        instance_ids = values_in(query.process_instance_id, "processInstanceId")
        if query.asks_for_what_is_not_here:
            return []
        if instance_ids is None and wanted.ids is None and wanted.are_waiting_for_people:
            return await self._waiting_tasks(request, wanted, conditions_of(narrowed), names)
        find = partial(self._search.find, request, narrowed, rows_max=_INSTANCES_MAX)
        if instance_ids is None:
            known = await self._instances_of(wanted.ids or ())
            found = [] if not known else [*await find(frozenset(known.values()))]
            if wanted.ids is None or not wanted.ids <= known.keys():
                found += await find(only_running=wanted.are_of_running_instances)
        else:
            found = [*await find(instance_ids)]
        return await self._of(list({row.instance_id: row for row in found}.values()), wanted, names)

    async def _instances_of(self, ids: Iterable[str]) -> dict[str, str]:
        """Flow node instances that are external tasks or open user tasks are found by their id alone."""
        found: dict[str, str] = {}
        for flow_node_instance_id in ids:
            row = await self._node.ports.store.user_task(flow_node_instance_id)
            task = await self._node.ports.store.task(flow_node_instance_id) if row is None else None
            if row is not None:
                found[flow_node_instance_id] = str(row["instance_id"])
            elif task is not None:
                found[flow_node_instance_id] = task.instance_id
        return found

    async def _of(
        self, instances: Sequence[InstanceSummary], wanted: _Wanted, names: frozenset[str] | None
    ) -> list[Callable[[], object]]:
        rows: list[Callable[[], object]] = []
        for summary in instances:
            process = (await self._catalogue.deployed(summary.definition_id)).process
            if not _is_in(names, process.name):
                continue
            open_tasks = {
                str(row["user_task_id"]): row
                for row in await self._node.user_tasks(summary.instance_id, limit=_OPEN_TASKS_MAX)
            }
            for found in await self._read(summary):
                if not wanted.takes(found.id, found.node, found.state, found.previous_id):
                    continue
                row = open_tasks.get(found.id)
                if row is not None and found.state == "suspended":
                    rows.append(partial(waiting_task_view, row, summary, process))
                else:
                    rows.append(partial(flow_node_view, found, summary, process))
        return rows

    async def _read(self, summary: InstanceSummary) -> Sequence[FlowNodeInstance]:
        process = (await self._catalogue.deployed(summary.definition_id)).process
        async with self._context.whole_instances:
            steps = await self._node.history(summary.instance_id)
            tasks = await tasks_of(self._node.ports.store, summary.instance_id)
            reading = partial(flow_node_instances, process, summary.instance_id, steps, tasks)
            return await self._node.ports.background.run_sync(reading)

    async def _waiting_tasks(
        self, request: Request, wanted: _Wanted, conditions: InstanceConditions, names: frozenset[str] | None
    ) -> list[Callable[[], object]]:
        rows: list[Callable[[], object]] = []
        summaries: dict[str, InstanceSummary | None] = {}
        for row in await self._node.user_tasks(limit=_OPEN_TASKS_MAX):
            instance_id = str(row["instance_id"])
            if instance_id not in summaries:
                summaries[instance_id] = await self._node.ports.store.instance(instance_id)
            summary = summaries[instance_id]
            if summary is None or not may_see_definition(request, summary.definition_id):
                continue
            if not conditions.take(summary):
                continue
            process = (await self._catalogue.deployed(summary.definition_id)).process
            if not _is_in(names, process.name):
                continue
            if wanted.takes(str(row["user_task_id"]), process.nodes[str(row["element_id"])], "suspended"):
                rows.append(partial(waiting_task_view, row, summary, process))
        return rows

    # --- finishing

    async def finish_user_task(self, request: Request) -> Response:
        """The body is the result."""
        result = object_of(await value_of(self._context, request), "$")
        task_id = await self._open_task(request)
        await self._node.complete_user_task(task_id, result)
        return no_content()

    async def finish_task(self, request: Request) -> Response:
        await skip_body(self._context, request)
        task_id = await self._open_task(request)
        await self._node.complete_user_task(task_id, {})
        return no_content()

    async def reserve(self, request: Request) -> Response:
        body = await body_of(self._context, request, shapes.ReserveRequest)
        task_id = await self._open_task(request)
        with named(assignee="$.actualOwnerId"):
            await self._node.assign_user_task(task_id, body.actual_owner_id or identity_of(request).name)
        return no_content()

    async def cancel_reservation(self, request: Request) -> Response:
        task_id = await self._open_task(request)
        await self._node.assign_user_task(task_id, None)
        return no_content()

    async def _open_task(self, request: Request) -> str:
        """:raises NotFound: there is no such task that waits for somebody; Forbidden: it is of another process."""
        task_id = str(request.path_params["task_id"])
        await check_user_task(request, self._node, task_id)
        return task_id


def _wanted(query: shapes.FlowNodesQuery) -> _Wanted:
    """:raises InvalidInput: something is a search query."""
    return _Wanted(
        ids=values_in(query.flow_node_instance_id, "flowNodeInstanceId"),
        previous_ids=values_in(query.previous_flow_node_instance_id, "previousFlowNodeInstanceId"),
        nodes=values_in(query.flow_node_id, "flowNodeId"),
        names=values_in(query.flow_node_name, "flowNodeName"),
        types=values_in(query.flow_node_type, "flowNodeType"),
        event_types=values_in(query.event_type, "eventType"),
        states=values_in(query.state, "state"),
    )


def _is_in(allowed: frozenset[str] | None, value: str | None) -> bool:
    return allowed is None or value in allowed
