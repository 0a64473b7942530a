"""``/tasks``: what is open for people and for workers, and completing what people have done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.errors import InvalidInput
from stellwerk.ports import Scope, TaskQuery
from stellwerk.server.bpm_engine.requests import CompleteTaskRequest, TasksQuery, body_of, query_of
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.context import ApiContext, Endpoint
from stellwerk.server.http.visibility import check_user_task, visible_rows

__all__ = ["TaskEndpoints"]

_View: TypeAlias = Mapping[str, object]

_ROWS_MAX = 10_000
"""The list has no pages there. More is refused, not cut off."""
_ROWS_AT_ONCE = 100
_TYPES = ("user", "external")


class TaskEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", "/tasks", self.tasks, Scope.CLIENT),
            Endpoint("POST", "/tasks/{task_id}/complete", self.complete, Scope.CLIENT),
        )

    async def tasks(self, request: Request) -> Response:
        wanted = query_of(request, TasksQuery).type
        if wanted not in (None, *_TYPES):
            raise InvalidInput(f"expected one of {', '.join(_TYPES)} @ query.type")
        views: list[_View] = []
        if wanted != "external":
            views += await self._user_tasks(request)
        if wanted != "user":
            for state in (TaskState.READY, TaskState.LOCKED):
                views += await self._external_tasks(request, state)
        return await self._context.answer_long(partial(encoded, views), len(views))

    async def _user_tasks(self, request: Request) -> Sequence[_View]:
        async def read(after: str | None) -> Sequence[_View]:
            rows = await self._node.user_tasks(limit=_ROWS_AT_ONCE, after=after)
            return [_view(row["user_task_id"], row["element_id"], row["instance_id"], "user") for row in rows]

        return await visible_rows(request, self._node, await _all(read))

    async def _external_tasks(self, request: Request, state: TaskState) -> Sequence[_View]:
        async def read(after: str | None) -> Sequence[_View]:
            tasks = await self._node.tasks(TaskQuery(state=state.value), limit=_ROWS_AT_ONCE, after=after)
            return [_external_view(task) for task in tasks]

        return await visible_rows(request, self._node, await _all(read))

    async def complete(self, request: Request) -> Response:
        """External tasks are their workers'."""
        body = await body_of(self._context, request, CompleteTaskRequest)
        user_task_id = request.path_params["task_id"]
        await check_user_task(request, self._node, user_task_id)
        await self._node.complete_user_task(user_task_id, body.variables)
        return answer({"status": "COMPLETED"})


def _view(task_id: object, node_id: object, instance_id: object, kind: str) -> _View:
    """Its specification calls the last one ``type``, its server ``task_type``."""
    return {"task_id": task_id, "node_id": node_id, "instance_id": instance_id, "type": kind, "task_type": kind}


def _external_view(task: ExternalTask) -> _View:
    return _view(task.task_id, task.element_id, task.instance_id, "external")


async def _all(read: Callable[[str | None], Awaitable[Sequence[_View]]]) -> list[_View]:
    """:param read: the views behind that id. What is long in a task is not kept.
    :raises InvalidInput: there are too many.
    """
    views: list[_View] = []
    while True:
        found = await read(str(views[-1]["task_id"]) if views else None)
        views += found
        if len(views) > _ROWS_MAX:
            raise InvalidInput(
                f"more than {_ROWS_MAX} tasks are open; GET /api/v1/user-tasks and /api/v1/external-tasks have pages"
            )
        if len(found) < _ROWS_AT_ONCE:
            return views
