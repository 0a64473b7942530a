"""``fetchAndLock``: what Camunda's clients ask for, as the engine polls, and what they get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from starlette.requests import Request

from stellwerk.actors.bounds import check_lock_duration, check_topic, check_variable_names
from stellwerk.actors.node import Node
from stellwerk.actors.payloads import make_task_filter
from stellwerk.actors.polls import Poll, PollTopic, TaskConditions
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import InvalidInput, NotServed
from stellwerk.limits import Limits
from stellwerk.server.camunda.shapes import FetchRequest, FetchTopic
from stellwerk.server.camunda.views import error_details, locked_task_view
from stellwerk.server.http.answers import encoded
from stellwerk.server.http.context import identity_of, piece
from stellwerk.server.http.naming import named
from stellwerk.server.http.permissions import check_topic as check_may_take
from stellwerk.server.http.permissions import check_worker_id

__all__ = ["locked_text", "poll_of"]

_WAIT_MS_MAX = 1_800_000
_QUICK_BYTES_MAX = 64 * 1024
"""Variables of so many bytes are encoded within a few milliseconds; more, in the background."""


def poll_of(body: FetchRequest, request: Request, limits: Limits) -> Poll | None:
    """None: nothing can be found. A topic that is named twice counts as it is named last.

    :raises InvalidInput: a number is out of bounds; NotServed: a condition that the engine has not; Forbidden: the
        caller may not work under this name or on this topic.
    """
    wait_ms = body.async_response_timeout or 0
    if wait_ms > _WAIT_MS_MAX:
        raise InvalidInput(
            f"The asynchronous response timeout cannot be set to a value greater than {_WAIT_MS_MAX} milliseconds "
            "@ $.asyncResponseTimeout"
        )
    check_worker_id(request, body.worker_id)
    topics: dict[str, PollTopic] = {}
    for index, topic in enumerate(body.topics or ()):
        check_may_take(request, topic.topic_name)
        topics[topic.topic_name] = _checked(_poll_topic(topic, request, index), limits, f"$.topics[{index}]")
    if not topics or body.max_tasks == 0:
        return None
    return Poll(
        worker_id=body.worker_id,
        topics=tuple(topics.values()),
        max_tasks=body.max_tasks,
        wait_ms=wait_ms,
        client=request.headers.get("user-agent", ""),
    )


def _checked(topic: PollTopic, limits: Limits, place: str) -> PollTopic:
    """As the engine does, which does not know the place of a topic among the others.

    :raises InvalidInput, LimitExceeded: it cannot be polled.
    """
    names = {"topic": "topicName", "lock_duration_ms": "lockDuration", "variables": "variables"}
    with named(**{name: f"{place}.{field}" for name, field in names.items()}):
        check_topic(topic.topic, limits)
        check_lock_duration(topic.lock_duration_ms, limits)
        check_variable_names(topic.variables or (), limits)
    with named(variables=f"{place}.processVariables"):
        make_task_filter(topic.conditions, limits)
    return topic


def _poll_topic(topic: FetchTopic, request: Request, index: int) -> PollTopic:
    if topic.tenant_id_in:
        raise NotServed(f"there are no tenants here: leave this out @ $.topics[{index}].tenantIdIn")
    if topic.process_definition_version_tag is not None:
        raise NotServed(
            "tasks cannot be asked by a version tag here: name the versions, as processDefinitionIdIn "
            f"@ $.topics[{index}].processDefinitionVersionTag"
        )
    conditions = TaskConditions(
        variables=tuple((topic.process_variables or {}).items()),
        business_key=topic.business_key,
        definition_ids=_both(topic.process_definition_id, topic.process_definition_id_in),
        process_keys=_process_keys(topic, request),
    )
    return PollTopic(
        topic=topic.topic_name,
        lock_duration_ms=topic.lock_duration,
        variables=topic.variables,
        conditions=conditions,
    )


def _both(one: str | None, some: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """What fits both conditions."""
    if one is None:
        return some
    return (one,) if some is None or one in some else ()


def _process_keys(topic: FetchTopic, request: Request) -> tuple[str, ...] | None:
    """Those that are asked for, and that the caller may see. Keys have no stars: what has one names no process."""
    identity = identity_of(request)
    asked = _both(topic.process_definition_key, topic.process_definition_key_in)
    if asked is None:
        return identity.processes
    return tuple([key for key in asked if identity.may_see(key) and "*" not in key])


async def locked_text(node: Node, tasks: Sequence[ExternalTask], topics: Iterable[FetchTopic]) -> bytes:
    """The answer."""
    by_name = {topic.topic_name: topic for topic in topics}
    details = {task.task_id: await _details_of(node, task) for task in tasks if task.error_message is not None}

    def text() -> bytes:
        return encoded([piece(_view(task, by_name, details)) for task in tasks])

    if sum(len(task.variables) for task in tasks) <= _QUICK_BYTES_MAX:
        return text()
    return await node.ports.background.run_sync(text)


async def _details_of(node: Node, task: ExternalTask) -> str | None:
    _, attempts = await node.task(task.task_id)
    return error_details(tuple(attempts))


def _view(task: ExternalTask, topics: Mapping[str, FetchTopic], details: Mapping[str, str | None]) -> dict[str, object]:
    topic = topics[task.topic]
    return locked_task_view(
        task,
        details.get(task.task_id),
        deserialized=bool(topic.deserialize_values),
        with_properties=bool(topic.include_extension_properties),
    )
