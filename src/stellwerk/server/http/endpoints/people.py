"""Messages, and what waits for people: user tasks."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import InvalidInput, NotFound, NotServed, Overloaded
from stellwerk.ports import Scope, UserTaskFilter
from stellwerk.server.http import requests, shapes, views
from stellwerk.server.http.about import about
from stellwerk.server.http.answers import answer
from stellwerk.server.http.codes import STATE_CODES
from stellwerk.server.http.context import ApiContext, Endpoint, check_lengths
from stellwerk.server.http.correlation import Correlation
from stellwerk.server.http.idempotency import idempotency_key
from stellwerk.server.http.permissions import check_unrestricted
from stellwerk.server.http.visibility import check_instance, check_user_task, visible_rows
from stellwerk.wire.pull import WAIT_MS_MAX

__all__ = ["PeopleEndpoints"]

_NAMES_MAX = 1000


class PeopleEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", "/messages", self.publish, Scope.CLIENT),
            Endpoint("POST", "/messages/correlate", self.correlate, Scope.CLIENT),
            Endpoint("GET", "/messages", self.messages, Scope.CLIENT),
            Endpoint("GET", "/messages/{message_id:path}", self.message, Scope.CLIENT),
            Endpoint("GET", "/awaited-messages", self.awaited, Scope.CLIENT),
            Endpoint("POST", "/signals", self.signal, Scope.CLIENT),
            Endpoint("GET", "/user-tasks", self.user_tasks, Scope.CLIENT),
            Endpoint("POST", "/user-tasks/{user_task_id}/claim", self.claim, Scope.CLIENT),
            Endpoint("POST", "/user-tasks/{user_task_id}/unclaim", self.unclaim, Scope.CLIENT),
            Endpoint("POST", "/user-tasks/{user_task_id}/complete", self.complete_user_task, Scope.CLIENT),
        )

    @about(
        "Publish a message",
        shapes.MessageKey,
        status=201,
        body=requests.MessageRequest,
        codes=("not_found", "ended", "idempotency_conflict"),
        has_idempotency_key=True,
    )
    async def publish(self, request: Request) -> Response:
        body = await self._context.payload(request, requests.MessageRequest)
        message_id = await self._checked_message_id(request, body)
        message_id = await self._node.publish_message(
            body.name,
            body.key,
            body.variables,
            ttl_ms=body.ttl_ms,
            message_id=message_id,
            instance_id=body.instance_id,
        )
        return answer({"message_id": message_id}, 201)

    @about(
        "Give a message to whoever waits for it",
        shapes.CorrelatedMessage,
        body=requests.CorrelateRequest,
        codes=("not_found", "not_awaited", "ended", "conflict", "idempotency_conflict"),
        has_idempotency_key=True,
    )
    async def correlate(self, request: Request) -> Response:
        body = await self._context.payload(request, requests.CorrelateRequest)
        if body.wait_ms > WAIT_MS_MAX:
            raise InvalidInput(f"at most {WAIT_MS_MAX} ms are possible @ $.wait_ms")
        key = await self._checked_message_id(request, body)
        with Correlation(self._node, body.name, body.key) as correlation:
            message_id = await self._node.publish_message(
                body.name,
                body.key,
                body.variables,
                ttl_ms=body.wait_ms,
                message_id=key,
                instance_id=body.instance_id,
            )
            await self._check_taken(request, correlation, message_id, body.wait_ms)
            receiver = await correlation.receiver(message_id, body.instance_id)
        return answer(views.correlated_view(message_id, receiver))

    async def _check_taken(self, request: Request, correlation: Correlation, message_id: str, wait_ms: int) -> None:
        """:raises NotFound: it has reached nobody, and will not; Overloaded: that is not known yet."""
        is_taken = await self._context.unless_gone(request, lambda: correlation.is_taken(message_id, wait_ms=wait_ms))
        if is_taken is None:
            raise Overloaded(
                "the engine is about to stop: whether the message has reached anybody is not known yet, "
                f"GET /api/v1/messages/{message_id} tells"
            )
        if not is_taken:
            raise NotFound(
                "nothing waits for this message, and it is not kept: POST /api/v1/messages with a ttl_ms keeps one for "
                "who comes later",
                code="not_awaited",
            )

    async def _checked_message_id(
        self, request: Request, body: requests.MessageRequest | requests.CorrelateRequest
    ) -> str | None:
        """The one that the caller gives it.

        :raises Forbidden: the caller may not reach whom it is for.
        """
        message_id = idempotency_key(request, body.message_id, "message_id")
        check_lengths(name=body.name, key=body.key, message_id=message_id)
        if body.instance_id is not None:
            await check_instance(request, self._node, body.instance_id)
        else:
            check_unrestricted(request, "a message for whichever process waits for it: name an instance_id")
        return message_id

    @about("Messages that wait to be correlated", shapes.Messages, query=requests.PageQuery)
    async def messages(self, request: Request) -> Response:
        query = self._context.page_query(request, requests.PageQuery)
        check_unrestricted(request, "messages")
        found = await self._node.waiting_messages(limit=query.limit + 1, after=query.after)
        return await self._context.answer_page("messages", found, query.limit, views.message_view)

    @about("What became of a message", shapes.Message)
    async def message(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        check_unrestricted(request, "messages")
        return answer(views.message_view(await self._node.message(request.path_params["message_id"])))

    @about("Names of messages that something waits for", shapes.AwaitedNames)
    async def awaited(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        check_unrestricted(request, "awaited messages")
        names = await self._node.awaited_names(_NAMES_MAX + 1)
        return answer({"names": names[:_NAMES_MAX], "more": len(names) > _NAMES_MAX})

    @about("Broadcast a signal: not possible yet", shapes.Done, codes=("not_implemented",))
    async def signal(self, request: Request) -> Response:
        """Whatever the body says."""
        self._context.query(request, requests.NoQuery)
        raise NotServed("signals come with a later version; a message reaches one instance")

    @about("Open user tasks", shapes.UserTasks, query=requests.UserTasksQuery)
    async def user_tasks(self, request: Request) -> Response:
        query = self._context.page_query(request, requests.UserTasksQuery)
        wanted = UserTaskFilter(
            assignee=query.assignee,
            candidate_group=query.candidate_group,
            process_keys=None if query.process is None else (query.process,),
        )
        found = await self._node.user_tasks(query.instance_id, wanted=wanted, limit=query.limit + 1, after=query.after)
        seen = await visible_rows(request, self._node, found[: query.limit])
        more = len(found) > query.limit
        return await self._context.answer_rows("user_tasks", seen, views.mapping_view, more=more)

    @about("Give a user task to somebody", shapes.Done, body=requests.ClaimRequest, codes=("assigned", *STATE_CODES))
    async def claim(self, request: Request) -> Response:
        body = await self._context.body(request, requests.ClaimRequest)
        check_lengths(assignee=body.assignee)
        user_task_id = request.path_params["user_task_id"]
        await check_user_task(request, self._node, user_task_id)
        await self._node.assign_user_task(user_task_id, body.assignee)
        return answer({})

    @about("Nobody has the user task", shapes.Done, body=requests.EmptyRequest, codes=STATE_CODES)
    async def unclaim(self, request: Request) -> Response:
        await self._context.body(request, requests.EmptyRequest)
        user_task_id = request.path_params["user_task_id"]
        await check_user_task(request, self._node, user_task_id)
        await self._node.assign_user_task(user_task_id, None)
        return answer({})

    @about("A user task is done", shapes.Done, body=requests.CompleteUserTaskRequest, codes=STATE_CODES)
    async def complete_user_task(self, request: Request) -> Response:
        body = await self._context.payload(request, requests.CompleteUserTaskRequest)
        user_task_id = request.path_params["user_task_id"]
        await check_user_task(request, self._node, user_task_id)
        await self._node.complete_user_task(user_task_id, body.variables)
        return answer({})
