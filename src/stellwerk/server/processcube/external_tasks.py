"""External tasks, for workers that poll."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.polls import Poll, PolledTasks, PollTopic, TaskConditions
from stellwerk.errors import InvalidInput
from stellwerk.json_values import JsonValue
from stellwerk.ports import Scope
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.context import ApiContext, Endpoint, identity_of
from stellwerk.server.http.leases import LeasesResponse
from stellwerk.server.http.naming import named
from stellwerk.server.http.permissions import allowed_processes, check_task, check_topic, check_worker_id
from stellwerk.server.processcube import shapes, views
from stellwerk.server.processcube.catalogue import Catalogue
from stellwerk.server.processcube.payload_filters import translated_filter
from stellwerk.server.processcube.requests import body_of, no_content

__all__ = ["ExternalTaskEndpoints"]

_PATH = "/external_tasks"
_WAIT_MS_MAX = 600_000
_QUICK_BYTES_MAX = 256 * 1024
"""Of payloads: so much is encoded at once. More must not hold up others."""
_UNNAMED_ERROR = "ExternalTaskExecutionError"
"""What the genuine worker says when an exception has no name."""


class ExternalTaskEndpoints:
    def __init__(self, context: ApiContext, catalogue: Catalogue) -> None:
        self._context = context
        self._node = context.node
        self._catalogue = catalogue

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", _PATH + "/deployed_topics", self.deployed_topics, Scope.WORKER),
            Endpoint("POST", _PATH + "/fetch_and_lock", self.fetch_and_lock, Scope.WORKER),
            Endpoint("PUT", _PATH + "/{task_id}/extend_lock", self.extend_lock, Scope.WORKER),
            Endpoint("PUT", _PATH + "/{task_id}/finish", self.finish, Scope.WORKER),
            Endpoint("PUT", _PATH + "/{task_id}/error", self.error, Scope.WORKER),
        )

    async def deployed_topics(self, request: Request) -> Response:
        return answer(await self._catalogue.topics(request))

    async def fetch_and_lock(self, request: Request) -> Response:
        body = await body_of(self._context, request, shapes.FetchAndLockRequest)
        check_worker_id(request, body.worker_id)
        topics = _topics(body.topic_name)
        for topic in topics:
            check_topic(request, topic)
        conditions = TaskConditions(
            payload=translated_filter(body.payload_filter), process_keys=allowed_processes(request)
        )
        lock_ms = self._lock_ms(body.lock_duration)
        poll = Poll(
            worker_id=body.worker_id,
            topics=tuple(PollTopic(topic=topic, lock_duration_ms=lock_ms, conditions=conditions) for topic in topics),
            max_tasks=min(body.max_tasks, self._node.limits.worker_max_tasks_max),
            wait_ms=min(body.long_polling_timeout, _WAIT_MS_MAX),
            client=request.headers.get("user-agent", ""),
        )
        with named(topic="$.topicName", topics="$.topicName", max_tasks="$.maxTasks", filter="$.payloadFilter"):
            polled = await self._context.poll(request, poll)
        make_text = partial(_text_of, polled)
        if sum(len(task.variables) for task in polled.tasks) <= _QUICK_BYTES_MAX:
            return LeasesResponse(make_text(), polled)
        return LeasesResponse(await self._node.ports.background.run_sync(make_text), polled)

    async def extend_lock(self, request: Request) -> Response:
        body = await body_of(self._context, request, shapes.ExtendLockRequest)
        task_id = await self._checked_task(request, body.worker_id)
        with named():
            await self._node.extend_task(task_id, body.worker_id, self._lock_ms(body.additional_duration))
        return no_content()

    async def finish(self, request: Request) -> Response:
        body = await body_of(self._context, request, shapes.FinishRequest)
        task_id = await self._checked_task(request, body.worker_id)
        with named(variables="$.result"):
            await self._node.complete_task(task_id, body.worker_id, body.result)
        return no_content()

    async def error(self, request: Request) -> Response:
        """Every error of a handler is one of BPMN, with the exception's name as its code."""
        body = await body_of(self._context, request, shapes.ErrorRequest)
        task_id = await self._checked_task(request, body.worker_id)
        error = body.error or body.bpmn_error
        if error is None:
            raise InvalidInput("error is missing @ $")
        with named():
            await self._node.bpmn_error(
                task_id,
                body.worker_id,
                _shortened(_text(error.error_code) or _UNNAMED_ERROR, self._node.limits.error_code_chars_max),
                message=_shortened(_text(error.error_message), self._node.limits.message_bytes_max // 4),
                details=error.error_details,
            )
        return no_content()

    async def _checked_task(self, request: Request, worker_id: str) -> str:
        """The id in the path.

        :raises Forbidden: the caller may not work under this name, or not on this task.
        """
        check_worker_id(request, worker_id)
        task_id = str(request.path_params["task_id"])
        identity = identity_of(request)
        if identity.topics is not None or identity.processes is not None:
            task, _ = await self._node.task(task_id)
            check_task(request, task)
        return task_id

    def _lock_ms(self, asked_ms: int) -> int:
        """A lock that is a little longer than was asked for does not harm: the worker extends it in time anyway."""
        limits = self._node.limits
        return max(limits.lock_duration_ms_min, min(asked_ms, limits.lock_duration_ms_max))


def _text_of(polled: PolledTasks) -> bytes:
    return encoded([views.external_task(task) for task in polled.tasks])


def _topics(value: JsonValue) -> list[str]:
    topics = value if isinstance(value, list) else [value]
    if not topics or not all(isinstance(topic, str) and topic for topic in topics):
        raise InvalidInput("expected a topic, or an array of topics @ $.topicName")
    return list(dict.fromkeys(str(topic) for topic in topics))


def _text(value: JsonValue) -> str:
    """Some handlers give numbers or objects where a text belongs."""
    if value is None or isinstance(value, str):
        return value or ""
    return encoded(value).decode()


def _shortened(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"
