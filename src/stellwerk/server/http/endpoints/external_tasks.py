"""External tasks for workers that fetch them, and what operators set on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.leases import deadline_of
from stellwerk.actors.polls import Poll, PolledTasks, PollTopic, TaskConditions
from stellwerk.errors import CallerError, InvalidInput
from stellwerk.instants import to_rfc3339
from stellwerk.ports import Scope
from stellwerk.server.http import requests, shapes, views
from stellwerk.server.http.about import about
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.codes import LEASE_CODES, STATE_CODES
from stellwerk.server.http.context import ApiContext, Endpoint, identity_of, piece
from stellwerk.server.http.leases import LeasesResponse
from stellwerk.server.http.permissions import allowed_processes, check_task, check_topic, check_worker_id
from stellwerk.wire.pull import WAIT_MS_MAX, WAITED_HEADER

__all__ = ["ExternalTaskEndpoints"]

_QUICK_BYTES_MAX = 256 * 1024
"""Variables of so many bytes are copied within a millisecond. More must not hold up others: in the background."""


class ExternalTaskEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node
        self._clock = context.node.ports.clock

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        one = "/external-tasks/{task_id}"
        return (
            Endpoint("POST", "/external-tasks/fetch-and-lock", self.fetch_and_lock, Scope.WORKER),
            Endpoint("POST", one + "/complete", self.complete, Scope.WORKER),
            Endpoint("POST", one + "/fail", self.fail, Scope.WORKER),
            Endpoint("POST", one + "/bpmn-error", self.bpmn_error, Scope.WORKER),
            Endpoint("POST", one + "/extend-lock", self.extend_lock, Scope.WORKER),
            Endpoint("POST", one + "/unlock", self.unlock, Scope.WORKER),
            Endpoint("PUT", one + "/retries", self.set_retries, Scope.OPERATOR),
            Endpoint("POST", one + "/retries", self.set_retries, Scope.OPERATOR),
            Endpoint("PUT", one + "/priority", self.set_priority, Scope.OPERATOR),
            Endpoint("POST", one + "/priority", self.set_priority, Scope.OPERATOR),
        )

    # --- fetching

    @about(
        "Get tasks, as leases",
        tuple[shapes.PulledTask, ...],
        body=requests.FetchAndLockRequest,
        headers={WAITED_HEADER: "For how many milliseconds the engine had had the request."},
    )
    async def fetch_and_lock(self, request: Request) -> Response:
        began = self._clock.monotonic()
        body = await self._context.body(request, requests.FetchAndLockRequest)
        polled = await self.poll(request, body)
        now = self._clock.monotonic()
        waited_ms = int((now - began) * 1000)
        return await self.hand_over(polled, partial(_text_of, polled, now), {WAITED_HEADER: str(waited_ms)})

    async def poll(self, request: Request, body: requests.FetchAndLockRequest) -> PolledTasks:
        """What the caller may have of it, for `hand_over`."""
        check_worker_id(request, body.worker_id)
        for topic in body.task_types:
            check_topic(request, topic)
        if body.wait_ms > WAIT_MS_MAX:
            raise InvalidInput(f"at most {WAIT_MS_MAX} ms are possible @ $.wait_ms")
        with _named_as({"$.topics": "$.task_types", "$.topic": "$.task_types"}):
            return await self._context.poll(request, _poll_of(body, request))

    async def hand_over(
        self, polled: PolledTasks, make_text: Callable[[], bytes], headers: dict[str, str] | None = None
    ) -> Response:
        """:param make_text: JSON with the tasks."""
        if sum(len(task.variables) for task in polled.tasks) <= _QUICK_BYTES_MAX:
            return LeasesResponse(make_text(), polled, headers)
        return LeasesResponse(await self._node.ports.background.run_sync(make_text), polled, headers)

    # --- about a lease

    @about("A task is done", shapes.Done, body=requests.CompleteTaskRequest, codes=LEASE_CODES)
    async def complete(self, request: Request) -> Response:
        await self.take_result(request, await self._context.payload(request, requests.CompleteTaskRequest))
        return answer({})

    async def take_result(self, request: Request, body: requests.CompleteTaskRequest) -> None:
        """Of the task in the path."""
        task_id = await self._checked_task(request, body.worker_id)
        await self._node.complete_task(task_id, body.worker_id, body.variables, fence=body.fence)

    @about("An attempt has failed", shapes.Done, body=requests.FailTaskRequest, codes=LEASE_CODES)
    async def fail(self, request: Request) -> Response:
        await self.take_failure(request, await self._context.payload(request, requests.FailTaskRequest))
        return answer({})

    async def take_failure(self, request: Request, body: requests.FailTaskRequest) -> None:
        """Of an attempt at the task in the path."""
        task_id = await self._checked_task(request, body.worker_id)
        with _named_as({"$.message": "$.error"}):
            await self._node.fail_task(
                task_id,
                body.worker_id,
                body.error,
                details=body.details,
                retry_after_ms=body.retry_after_ms,
                retries=body.retries,
                fence=body.fence,
            )

    @about("Raise an error in the process", shapes.Done, body=requests.BpmnErrorRequest, codes=LEASE_CODES)
    async def bpmn_error(self, request: Request) -> Response:
        body = await self._context.payload(request, requests.BpmnErrorRequest)
        task_id = await self._checked_task(request, body.worker_id)
        await self._node.bpmn_error(
            task_id,
            body.worker_id,
            body.code,
            message=body.message,
            details=body.details,
            variables=body.variables,
            fence=body.fence,
        )
        return answer({})

    @about("Keep a lease longer", shapes.ExtendedLock, body=requests.ExtendLockRequest, codes=LEASE_CODES)
    async def extend_lock(self, request: Request) -> Response:
        body = await self._context.body(request, requests.ExtendLockRequest)
        task_id = await self._checked_task(request, body.worker_id)
        began = self._clock.monotonic()
        with _named_as({"$.lock_duration_ms": "$.extension_ms"}):
            task = await self._node.extend_task(task_id, body.worker_id, body.extension_ms, fence=body.fence)
        assert task.lease is not None
        left_ms = _remaining_ms(deadline_of(task, began), self._clock.monotonic())
        return answer({"lock_expire_at": to_rfc3339(task.lease.until_ms), "lock_remaining_ms": left_ms})

    @about("Give a task back", shapes.Done, body=requests.UnlockRequest, codes=(*LEASE_CODES, "conflict"))
    async def unlock(self, request: Request) -> Response:
        body = await self._context.body(request, requests.UnlockRequest)
        task_id = await self._checked_task(request, body.worker_id)
        await self._node.unlock_task(task_id, body.worker_id, fence=body.fence, started=body.started)
        return answer({})

    async def _checked_task(self, request: Request, worker_id: str) -> str:
        """The id in the path.

        :raises Forbidden: the caller may not work under this name, or not on this task.
        """
        check_worker_id(request, worker_id)
        return await self._seen_task(request)

    async def _seen_task(self, request: Request) -> str:
        task_id = str(request.path_params["task_id"])
        identity = identity_of(request)
        if identity.topics is not None or identity.processes is not None:
            task, _ = await self._node.task(task_id)
            check_task(request, task)
        return task_id

    # --- operators

    @about("Say how many attempts are left", shapes.Done, body=requests.TaskRetriesRequest, codes=STATE_CODES)
    async def set_retries(self, request: Request) -> Response:
        body = await self._context.body(request, requests.TaskRetriesRequest)
        await self._node.set_task_retries(await self._seen_task(request), body.retries)
        return answer({})

    @about("Say how urgent a task is", shapes.Done, body=requests.TaskPriorityRequest, codes=STATE_CODES)
    async def set_priority(self, request: Request) -> Response:
        body = await self._context.body(request, requests.TaskPriorityRequest)
        await self._node.set_task_priority(await self._seen_task(request), body.priority)
        return answer({})


@contextmanager
def _named_as(names: Mapping[str, str]) -> Iterator[None]:
    """The node speaks of places in a request as the push protocol names them."""
    try:
        yield
    except CallerError as error:
        for ours, theirs in names.items():
            error.message = error.message.replace(f"@ {ours}", f"@ {theirs}")
        raise


def _poll_of(body: requests.FetchAndLockRequest, request: Request) -> Poll:
    conditions = TaskConditions(payload=body.filter, process_keys=allowed_processes(request))
    return Poll(
        worker_id=body.worker_id,
        topics=tuple(
            [
                PollTopic(
                    topic=topic,
                    lock_duration_ms=body.lock_duration_ms,
                    variables=body.variables,
                    conditions=conditions,
                )
                for topic in dict.fromkeys(body.task_types)
            ]
        ),
        max_tasks=body.max_tasks,
        wait_ms=body.wait_ms,
        client=request.headers.get("user-agent", ""),
    )


def _text_of(polled: PolledTasks, now: float) -> bytes:
    leases = zip(polled.tasks, polled.deadlines, strict=True)
    return encoded([piece(views.pulled_task_view(task, _remaining_ms(deadline, now))) for task, deadline in leases])


def _remaining_ms(deadline: float, now: float) -> int:
    return max(0, int((deadline - now) * 1000))
