"""External tasks, and who works on them: topics and workers."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.core.external_task import ExternalTask
from stellwerk.ports import Scope, TaskQuery
from stellwerk.server.http import requests, shapes, views
from stellwerk.server.http.about import about
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint
from stellwerk.server.http.permissions import check_definition, may_see_definition
from stellwerk.server.http.visibility import visible_topics

__all__ = ["TaskEndpoints"]

_TASKS_AT_ONCE = 100
"""Read together: each comes with its variables, which the list leaves out."""


class TaskEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", "/external-tasks", self.tasks, Scope.CLIENT),
            Endpoint("GET", "/external-tasks/{task_id}", self.task, Scope.CLIENT),
            Endpoint("GET", "/topics", self.topics, Scope.CLIENT),
            Endpoint("GET", "/workers", self.workers, Scope.CLIENT),
        )

    @about("Find tasks", shapes.Tasks, query=requests.TasksQuery)
    async def tasks(self, request: Request) -> Response:
        query = self._context.page_query(request, requests.TasksQuery)
        found: list[dict[str, object] | None] = []
        after = query.after
        while (wanted := query.limit + 1 - len(found)) > 0:
            tasks = await self._read(query, min(wanted, _TASKS_AT_ONCE), after)
            found += [
                views.task_summary_view(task) if may_see_definition(request, task.definition_id) else None
                for task in tasks
            ]
            if len(tasks) < min(wanted, _TASKS_AT_ONCE):
                break
            after = tasks[-1].task_id
        seen = [view for view in found[: query.limit] if view is not None]
        return await self._context.answer_rows("tasks", seen, dict, more=len(found) > query.limit)

    async def _read(self, query: requests.TasksQuery, limit: int, after: str | None) -> Sequence[ExternalTask]:
        return await self._node.tasks(_wanted(query), limit=limit, after=after)

    @about("A task with everything", shapes.Task)
    async def task(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        task, attempts = await self._node.task(request.path_params["task_id"])
        check_definition(request, task.definition_id)
        return answer(views.task_view(task, attempts))

    @about("Topics with their backlog", shapes.Topics)
    async def topics(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        found = await self._node.topics()
        visible = await visible_topics(request, self._node, {view.topic for view in found})
        rows = [view for view in found if view.topic in visible]
        return await self._context.answer_rows("topics", rows, views.topic_view)

    @about("Connected workers", shapes.Workers)
    async def workers(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        found = await self._node.workers()
        visible = await visible_topics(request, self._node, {part.topic for view in found for part in view.topics})
        rows = [
            attrs.evolve(view, topics=[part for part in view.topics if part.topic in visible])
            for view in found
            if not view.topics or any(part.topic in visible for part in view.topics)
        ]
        return await self._context.answer_rows("workers", rows, views.worker_view)


def _wanted(query: requests.TasksQuery) -> TaskQuery:
    return TaskQuery(
        instance_id=query.instance_id,
        topic=query.topic,
        state=query.state,
        worker_id=query.worker_id,
        is_locked=query.is_locked,
        definition_id=query.definition_id,
        process_key=query.process,
        element_id=query.element_id,
        business_key=query.business_key,
        with_retries_left=query.with_retries_left,
        priority_from=query.priority_from,
        priority_to=query.priority_to,
    )
