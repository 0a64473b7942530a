"""``/external-task``: what workers do with a task, and what operators see and set."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.connections import TopicView
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.errors import InvalidInput, NotServed
from stellwerk.ports import Scope
from stellwerk.server.camunda.polling import locked_text, poll_of
from stellwerk.server.camunda.reading import kept, list_query, payload, signed
from stellwerk.server.camunda.retries import set_retries
from stellwerk.server.camunda.shapes import (
    BpmnErrorRequest,
    CompleteRequest,
    ExtendLockRequest,
    FailureRequest,
    FetchRequest,
    LockRequest,
    PriorityRequest,
    RetriesRequest,
    TopicNamesQuery,
)
from stellwerk.server.camunda.typed_values import kept_variables
from stellwerk.server.camunda.views import error_details, task_view
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint, identity_of
from stellwerk.server.http.leases import LeasesResponse
from stellwerk.server.http.naming import named
from stellwerk.server.http.permissions import check_task, check_worker_id
from stellwerk.server.http.visibility import visible_topics

__all__ = ["ExternalTaskEndpoints"]

_PATH = "/external-task"
_ONE = f"{_PATH}/{{task_id}}"


class ExternalTaskEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", f"{_PATH}/fetchAndLock", self.fetch_and_lock, Scope.WORKER),
            Endpoint("GET", f"{_PATH}/topic-names", self.topic_names, Scope.CLIENT),
            Endpoint("GET", _ONE, self.task, Scope.CLIENT),
            Endpoint("GET", f"{_ONE}/errorDetails", self.error_details, Scope.CLIENT),
            Endpoint("POST", f"{_ONE}/complete", self.complete, Scope.WORKER),
            Endpoint("POST", f"{_ONE}/failure", self.fail, Scope.WORKER),
            Endpoint("POST", f"{_ONE}/bpmnError", self.bpmn_error, Scope.WORKER),
            Endpoint("POST", f"{_ONE}/extendLock", self.extend_lock, Scope.WORKER),
            Endpoint("POST", f"{_ONE}/lock", self.lock, Scope.WORKER),
            Endpoint("POST", f"{_ONE}/unlock", self.unlock, Scope.WORKER),
            Endpoint("PUT", f"{_ONE}/retries", self.set_retries, Scope.OPERATOR),
            Endpoint("PUT", f"{_ONE}/priority", self.set_priority, Scope.OPERATOR),
        )

    # --- taking ------------------------------------------------------------------------------------------------------

    async def fetch_and_lock(self, request: Request) -> Response:
        body = await payload(self._context, request, FetchRequest)
        poll = poll_of(body, request, self._node.limits)
        if poll is None:
            return answer([])
        with named(max_tasks="$.maxTasks"):
            polled = await self._context.poll(request, poll)
        return LeasesResponse(await locked_text(self._node, polled.tasks, body.topics or ()), polled)

    async def lock(self, request: Request) -> Response:
        """By id. Who holds the task already gets the new duration."""
        body = await payload(self._context, request, LockRequest)
        task = await self._task_of(request, body.worker_id)
        with named(lock_duration_ms="$.lockDuration"):
            if _holder_of(task) == body.worker_id:
                await self._node.extend_task(task.task_id, body.worker_id, body.lock_duration)
                return _done()
            polled = await self._node.lock_task(task.task_id, body.worker_id, body.lock_duration)
        return LeasesResponse(b"", polled, status=204)

    async def unlock(self, request: Request) -> Response:
        """The request names no worker. An operator may take a lock from whoever has it; a worker gives back its own."""
        task = await self._task(request)
        holder = _holder_of(task)
        if holder is None:
            return _done()
        if identity_of(request).has(Scope.OPERATOR):
            await self._node.unlock_task(task.task_id, None)
        else:
            check_worker_id(request, holder)
            await self._node.unlock_task(task.task_id, holder)
        return _done()

    # --- reporting ---------------------------------------------------------------------------------------------------

    async def complete(self, request: Request) -> Response:
        body = await payload(self._context, request, CompleteRequest)
        variables = await kept(self._context, body.variables, "$.variables")
        # As in Camunda, output mappings see both; what is left of the difference is said in docs/camunda.
        variables |= await kept(self._context, body.local_variables, "$.localVariables")
        task = await self._task_of(request, body.worker_id)
        with named():
            await self._node.complete_task(task.task_id, body.worker_id, variables)
        return _done()

    async def fail(self, request: Request) -> Response:
        body = await payload(self._context, request, FailureRequest)
        _refuse_variables(body)
        task = await self._task_of(request, body.worker_id)
        with named(message="$.errorMessage", details="$.errorDetails", retry_after_ms="$.retryTimeout"):
            await self._node.fail_task(
                task.task_id,
                body.worker_id,
                body.error_message or "",
                details=body.error_details,
                retry_after_ms=body.retry_timeout,
                retries=body.retries,
            )
        return _done()

    async def bpmn_error(self, request: Request) -> Response:
        body = await payload(self._context, request, BpmnErrorRequest)
        variables = kept_variables(body.variables, "$.variables")
        task = await self._task_of(request, body.worker_id)
        with named(code="$.errorCode", message="$.errorMessage"):
            await self._node.bpmn_error(
                task.task_id, body.worker_id, body.error_code, message=body.error_message, variables=variables
            )
        return _done()

    async def extend_lock(self, request: Request) -> Response:
        body = await payload(self._context, request, ExtendLockRequest)
        task = await self._task_of(request, body.worker_id)
        with named(lock_duration_ms="$.newDuration"):
            await self._node.extend_task(task.task_id, body.worker_id, body.new_duration)
        return _done()

    # --- looking and setting -----------------------------------------------------------------------------------------

    async def task(self, request: Request) -> Response:
        return answer(task_view(await self._task(request)))

    async def error_details(self, request: Request) -> Response:
        task = await self._task(request)
        _, attempts = await self._node.task(task.task_id)
        details = error_details(tuple(attempts))
        return _done() if details is None else Response(details, media_type="text/plain")

    async def topic_names(self, request: Request) -> Response:
        query = list_query(request, TopicNamesQuery)
        found = [view.topic for view in await self._node.topics() if _has_such_tasks(view, query)]
        visible = await visible_topics(request, self._node, frozenset(found))
        return answer([topic for topic in found if topic in visible])

    async def set_retries(self, request: Request) -> Response:
        body = await payload(self._context, request, RetriesRequest)
        task = await self._task(request)
        await set_retries(self._node, task.task_id, body.retries)
        return _done()

    async def set_priority(self, request: Request) -> Response:
        body = await payload(self._context, request, PriorityRequest)
        task = await self._task(request)
        await self._node.set_task_priority(task.task_id, signed(body.priority, "$.priority"))
        return _done()

    async def _task_of(self, request: Request, worker_id: str) -> ExternalTask:
        check_worker_id(request, worker_id)
        if not worker_id:
            raise InvalidInput("workerId is empty @ $.workerId")
        return await self._task(request)

    async def _task(self, request: Request) -> ExternalTask:
        """The one that the path names. :raises NotFound: there is none; Forbidden: it is not for the caller."""
        task, _ = await self._node.task(request.path_params["task_id"])
        check_task(request, task)
        return task


def _holder_of(task: ExternalTask) -> str | None:
    return task.lease.holder.worker_id if task.state is TaskState.LOCKED and task.lease is not None else None


def _has_such_tasks(view: TopicView, query: TopicNamesQuery) -> bool:
    unlocked = view.backlog.ready + view.backlog.backing_off
    if query.with_locked_tasks:
        return view.backlog.locked > 0
    return unlocked > 0 or (view.backlog.locked > 0 and not query.with_unlocked_tasks)


def _refuse_variables(body: FailureRequest) -> None:
    for name, variables in (("variables", body.variables), ("localVariables", body.local_variables)):
        if variables:
            raise NotServed(
                "a failure sets no variables, a later attempt begins as the first did: put what has to be kept into "
                f"errorDetails, or report a bpmnError @ $.{name}"
            )


def _done() -> Response:
    return Response(status_code=204)
