"""The lists of ``/external-task``. Camunda has open tasks only; here finished ones are kept, and left out.

Open are those that are READY or LOCKED, and those that failed for good and wait for an operator with an incident: to
Camunda's clients these have no retries left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import attrs
from starlette.requests import Request

from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.ids import process_key_of
from stellwerk.json_values import JsonValue
from stellwerk.ports import Identity, TaskQuery
from stellwerk.server.camunda.lists import ListEndpoints
from stellwerk.server.camunda.reading import Row, collected, signed
from stellwerk.server.camunda.shapes import SliceQuery, TasksQuery
from stellwerk.server.camunda.views import task_view
from stellwerk.server.http.context import ApiContext, Endpoint, identity_of

__all__ = ["TaskListEndpoints"]

_PATH = "/external-task"
_SORTABLE = {
    "id": "id",
    "lockExpirationTime": "lockExpirationTime",
    "processInstanceId": "processInstanceId",
    "processDefinitionId": "processDefinitionId",
    "processDefinitionKey": "processDefinitionKey",
    "taskPriority": "priority",
    "createTime": "createTime",
}
_Found: TypeAlias = tuple[str, ExternalTask | None]
"""The id that the next page begins behind, and the task; None: there is none."""
_Read: TypeAlias = Callable[[int, str | None], Awaitable[Sequence[_Found]]]


class TaskListEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return ListEndpoints(self._context, _PATH, TasksQuery, self.rows, self._count).endpoints

    async def _count(self, request: Request, query: TasksQuery) -> int:
        if identity_of(request).is_restricted:
            return len(await self.rows(request, query))
        wanted = _conditions(query, _place_of(request))
        of_open = [await self._node.count_tasks(one) for one in _open_queries(query, wanted)]
        failed = [self._failed(wanted)] if _asks_for_failed(query) else []
        rows = await collected(failed, _id_of, _plain_view, SliceQuery(), {})
        return sum(of_open) + len(rows)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def rows(self, request: Request, query: TasksQuery, place: str | None = None) -> list[Row]:
        """First what is READY, then what is LOCKED, then what waits for an operator.

        :param place: of the query in the request, where it is neither the body nor in the URL.
        """
        identity = identity_of(request)
        wanted = _conditions(query, place or _place_of(request))

        def view(found: _Found) -> Row | None:
            task = found[1]
            return _plain_view(found) if task is not None and _may_see(identity, task) else None

        reads: list[_Read] = [partial(self._open_tasks, one) for one in _open_queries(query, wanted)]
        if _asks_for_failed(query):
            reads.append(self._failed(wanted))
        return await collected(reads, _id_of, view, query, _SORTABLE)

    def _failed(self, wanted: TaskQuery) -> _Read:
        return partial(self._failed_tasks, wanted)

    async def _open_tasks(self, wanted: TaskQuery, limit: int, after: str | None) -> Sequence[_Found]:
        tasks = await self._node.tasks(wanted, limit=limit, after=after)
        return [(task.task_id, task) for task in tasks]

    async def _failed_tasks(self, wanted: TaskQuery, limit: int, after: str | None) -> Sequence[_Found]:
        incidents = await self._node.incidents(
            wanted.instance_id, process_key=wanted.process_key, limit=limit, after=after
        )
        return [(str(row["incident_id"]), await self._failed_task(row["task_id"], wanted)) for row in incidents]

    async def _failed_task(self, task_id: JsonValue, wanted: TaskQuery) -> ExternalTask | None:
        task = None if task_id is None else await self._node.ports.store.task(str(task_id))
        return task if task is not None and _fits(task, wanted) else None


def _id_of(found: _Found) -> str:
    return found[0]


def _plain_view(found: _Found) -> Row | None:
    return None if found[1] is None else task_view(found[1])


def _open_queries(query: TasksQuery, wanted: TaskQuery) -> Sequence[TaskQuery]:
    if query.suspended or query.no_retries_left:
        return ()
    only_locked = query.locked or query.worker_id is not None
    states = (TaskState.LOCKED,) if only_locked else (TaskState.READY, TaskState.LOCKED)
    return [attrs.evolve(wanted, state=state.value) for state in states]


def _asks_for_failed(query: TasksQuery) -> bool:
    return not (query.suspended or query.locked or query.with_retries_left or query.worker_id is not None)


def _place_of(request: Request) -> str:
    return "query" if request.method == "GET" else "$"


def _conditions(query: TasksQuery, place: str) -> TaskQuery:
    ids = query.external_task_id_in
    if query.external_task_id is not None:
        ids = (query.external_task_id,) if ids is None or query.external_task_id in ids else ()
    is_locked = True if query.locked else False if query.not_locked else None
    return TaskQuery(
        instance_id=query.process_instance_id,
        topic=query.topic_name,
        worker_id=query.worker_id,
        is_locked=is_locked,
        definition_id=query.process_definition_id,
        process_key=query.process_definition_key,
        element_id=query.activity_id,
        priority_from=_number(query.priority_higher_than_or_equals, f"{place}.priorityHigherThanOrEquals"),
        priority_to=_number(query.priority_lower_than_or_equals, f"{place}.priorityLowerThanOrEquals"),
        task_ids=ids,
    )


def _number(value: JsonValue, where: str) -> int | None:
    return None if value is None else signed(value, where)


def _fits(task: ExternalTask, wanted: TaskQuery) -> bool:
    """The conditions that do not depend on a lease."""
    return (
        wanted.instance_id in (None, task.instance_id)
        and wanted.topic in (None, task.topic)
        and wanted.definition_id in (None, task.definition_id)
        and wanted.process_key in (None, process_key_of(task.definition_id))
        and wanted.element_id in (None, task.element_id)
        and (wanted.priority_from is None or task.priority >= wanted.priority_from)
        and (wanted.priority_to is None or task.priority <= wanted.priority_to)
        and (wanted.task_ids is None or task.task_id in wanted.task_ids)
    )


def _may_see(identity: Identity, task: ExternalTask) -> bool:
    return identity.may_take(task.topic) and identity.may_see(process_key_of(task.definition_id))
