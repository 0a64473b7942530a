"""``/external-tasks``: what bpm-engine's worker SDK calls. The engine's own API does it; only the shapes are others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.polls import PolledTasks
from stellwerk.core.external_task import ExternalTask
from stellwerk.ports import Scope
from stellwerk.server.bpm_engine.requests import CompleteRequest, FailRequest, FetchAndLockRequest, body_of
from stellwerk.server.bpm_engine.text_values import texts_of
from stellwerk.server.http import requests as native
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.context import ApiContext, Endpoint, piece
from stellwerk.server.http.endpoints.external_tasks import ExternalTaskEndpoints as NativeEndpoints
from stellwerk.server.http.permissions import check_worker_id

__all__ = ["ExternalTaskEndpoints"]

_ONE = "/external-tasks/{task_id}"


class ExternalTaskEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._limits = context.node.limits
        self._native = NativeEndpoints(context)

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", "/external-tasks/fetch-and-lock", self.fetch_and_lock, Scope.WORKER),
            Endpoint("POST", f"{_ONE}/complete", self.complete, Scope.WORKER),
            Endpoint("POST", f"{_ONE}/fail", self.fail, Scope.WORKER),
            Endpoint("POST", f"{_ONE}/extend-lock", self._native.extend_lock, Scope.WORKER),
        )

    async def fetch_and_lock(self, request: Request) -> Response:
        body = await body_of(self._context, request, FetchAndLockRequest)
        check_worker_id(request, body.worker_id)
        if body.max_tasks == 0:
            return answer([])
        polled = await self._native.poll(request, self._bounded(body))
        return await self._native.hand_over(polled, partial(_text_of, polled))

    def _bounded(self, body: FetchAndLockRequest) -> native.FetchAndLockRequest:
        """Fewer tasks than were asked for are no mistake there, nor is a lock that is a little longer."""
        return native.FetchAndLockRequest(
            worker_id=body.worker_id,
            task_types=body.task_types,
            max_tasks=min(body.max_tasks, self._limits.worker_max_tasks_max),
            lock_duration_ms=max(body.lock_duration_ms, self._limits.lock_duration_ms_min),
        )

    async def complete(self, request: Request) -> Response:
        body = await body_of(self._context, request, CompleteRequest)
        result = native.CompleteTaskRequest(worker_id=body.worker_id, variables=body.variables)
        await self._native.take_result(request, result)
        return answer({"status": "COMPLETED"})

    async def fail(self, request: Request) -> Response:
        body = await body_of(self._context, request, FailRequest)
        failure = native.FailTaskRequest(worker_id=body.worker_id, error=body.error, retry_after_ms=body.retry_after_ms)
        await self._native.take_failure(request, failure)
        return answer({"status": "FAILED"})


def _text_of(polled: PolledTasks) -> bytes:
    return encoded([piece(_task_view(task)) for task in polled.tasks])


def _task_view(task: ExternalTask) -> dict[str, object]:
    return {
        "task_id": task.task_id,
        "token_id": task.token_id,
        "process_instance_id": task.instance_id,
        "task_type": task.topic,
        "variables": texts_of(task.variables),
    }
