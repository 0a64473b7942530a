"""How often external tasks may still be tried: of one, and of many at once (``PUT /external-task/retries``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.bounds import check_retries
from stellwerk.actors.node import Node
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.errors import Conflict, InvalidInput, NotFound, NotServed
from stellwerk.json_values import JsonValue
from stellwerk.ports import Scope
from stellwerk.server.camunda.instances import InstanceEndpoints
from stellwerk.server.camunda.reading import Row, check_conditions
from stellwerk.server.camunda.shapes import ProcessInstancesQuery, RetriesOfManyRequest, TasksQuery
from stellwerk.server.camunda.task_lists import TaskListEndpoints
from stellwerk.server.http.context import ApiContext, Endpoint
from stellwerk.server.http.foreign_texts import check_texts
from stellwerk.server.http.permissions import check_task
from stellwerk.server.http.structuring import structure_body

__all__ = ["RetriesEndpoints", "set_retries"]

_TASKS_MAX = 1_000
_GIVEN_UP = "its retries were set to 0"
_QUERIES = {"externalTaskQuery": TasksQuery, "processInstanceQuery": ProcessInstancesQuery}


async def set_retries(node: Node, task_id: str, retries: int) -> None:
    """With 0 the task stands at an incident; with more, an incident of it is resolved.

    :raises NotFound: there is no such task; Conflict: it has ended.
    """
    if retries == 0:
        await node.give_up_task(task_id, _GIVEN_UP)
    else:
        await node.set_task_retries(task_id, retries)


class RetriesEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node
        self._tasks = TaskListEndpoints(context)
        self._instances = InstanceEndpoints(context)

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (Endpoint("PUT", "/external-task/retries", self.set_many, Scope.OPERATOR),)

    async def set_many(self, request: Request) -> Response:
        """First all are looked at: where one of them cannot be set, none is. One that ends meanwhile is left alone."""
        body = await self._body(request)
        tasks = [await self._task(request, task_id) for task_id in await self._task_ids(request, body)]
        for task in tasks:
            try:
                await set_retries(self._node, task.task_id, body.retries)
            except (Conflict, NotFound):
                if await self._is_open(task.task_id):
                    raise
        return Response(status_code=204)

    async def _body(self, request: Request) -> RetriesOfManyRequest:
        value = await self._context.json_body(request, self._context.payload_request_bytes_max)
        for name, kind in _QUERIES.items():
            check_conditions(_names_in(value, name), kind)
        body = structure_body(value, RetriesOfManyRequest, tolerant=True)
        check_texts(body, "$")
        if body.historic_process_instance_query is not None:
            raise NotServed(
                "what has ended has no retries: ask by processInstanceQuery @ $.historicProcessInstanceQuery"
            )
        if body.retries:
            check_retries(body.retries)
        return body

    async def _task_ids(self, request: Request, body: RetriesOfManyRequest) -> list[str]:
        """:raises InvalidInput: there are none, or too many."""
        found = dict.fromkeys(body.external_task_ids or ())
        for query in await self._queries(request, body):
            found |= dict.fromkeys(_ids_of(await self._tasks.rows(request, query, "$.externalTaskQuery")))
        if not found:
            raise InvalidInput("no external tasks are found: externalTaskIds is empty")
        if len(found) > _TASKS_MAX:
            raise InvalidInput(
                f"{len(found)} external tasks, at most {_TASKS_MAX} are set at once: ask for fewer by conditions"
            )
        return list(found)

    async def _queries(self, request: Request, body: RetriesOfManyRequest) -> list[TasksQuery]:
        instance_ids = dict.fromkeys(body.process_instance_ids or ())
        if body.process_instance_query is not None:
            rows = await self._instances.rows(request, body.process_instance_query)
            instance_ids |= dict.fromkeys(_ids_of(rows))
        if len(instance_ids) > _TASKS_MAX:
            raise InvalidInput(f"{len(instance_ids)} process instances, at most {_TASKS_MAX} are gone through at once")
        queries = [TasksQuery(process_instance_id=instance_id) for instance_id in instance_ids]
        return queries if body.external_task_query is None else [*queries, body.external_task_query]

    async def _task(self, request: Request, task_id: str) -> ExternalTask:
        """:raises NotFound: there is none that is open; Forbidden: it is not for the caller."""
        task, _ = await self._node.task(task_id)
        check_task(request, task)
        if not await self._is_open(task_id):
            raise NotFound(f"Cannot find external task with id {task_id}: it has ended")
        return task

    async def _is_open(self, task_id: str) -> bool:
        """Those count that failed for good and stand at an incident, until the incident or its instance ends."""
        task = await self._node.ports.store.task(task_id)
        if task is None or task.state in (TaskState.COMPLETED, TaskState.CANCELLED):
            return False
        return task.state in (TaskState.READY, TaskState.LOCKED) or await self._node.has_incident(task)


def _names_in(body: JsonValue, name: str) -> Iterable[str]:
    """Of the conditions in one of the queries; that it is an object is checked later."""
    query = body.get(name) if isinstance(body, dict) else None
    return [str(each) for each, value in query.items() if value is not None] if isinstance(query, dict) else ()


def _ids_of(rows: Iterable[Row]) -> list[str]:
    return [str(row["id"]) for row in rows]
