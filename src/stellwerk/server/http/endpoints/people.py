"""Messages, and what waits for people: user tasks."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.server.http import requests, views
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint, check_lengths

__all__ = ["PeopleEndpoints"]

_NAMES_MAX = 1000


class PeopleEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", "/messages", self.publish),
            Endpoint("GET", "/messages", self.messages),
            Endpoint("GET", "/messages/{message_id:path}", self.message),
            Endpoint("GET", "/awaited-messages", self.awaited),
            Endpoint("GET", "/user-tasks", self.user_tasks),
            Endpoint("POST", "/user-tasks/{user_task_id}/complete", self.complete_user_task),
        )

    async def publish(self, request: Request) -> Response:
        body = await self._context.payload(request, requests.MessageRequest)
        check_lengths(name=body.name, key=body.key, message_id=body.message_id)
        message_id = await self._node.publish_message(
            body.name, body.key, body.variables, ttl_ms=body.ttl_ms, message_id=body.message_id
        )
        return answer({"message_id": message_id}, 201)

    async def messages(self, request: Request) -> Response:
        query = self._context.page_query(request, requests.PageQuery)
        found = await self._node.waiting_messages(limit=query.limit + 1, after=query.after)
        return await self._context.answer_page("messages", found, query.limit, views.message_view)

    async def message(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        return answer(views.message_view(await self._node.message(request.path_params["message_id"])))

    async def awaited(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        names = await self._node.awaited_names(_NAMES_MAX + 1)
        return answer({"names": names[:_NAMES_MAX], "more": len(names) > _NAMES_MAX})

    async def user_tasks(self, request: Request) -> Response:
        query = self._context.page_query(request, requests.UserTasksQuery)
        found = await self._node.user_tasks(query.instance_id, limit=query.limit + 1, after=query.after)
        return await self._context.answer_page("user_tasks", found, query.limit, views.mapping_view)

    async def complete_user_task(self, request: Request) -> Response:
        body = await self._context.payload(request, requests.CompleteUserTaskRequest)
        await self._node.complete_user_task(request.path_params["user_task_id"], body.variables)
        return answer({})
