"""What a caller may name: worker ids, topics, processes. The scope was checked before (`Api`)."""

from __future__ import annotations

from starlette.requests import Request

from stellwerk.actors.credentials import require_process, require_topic, require_worker_id
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import Forbidden
from stellwerk.ids import process_key_of
from stellwerk.server.http.context import identity_of

__all__ = [
    "allowed_processes",
    "check_definition",
    "check_process",
    "check_task",
    "check_topic",
    "check_unrestricted",
    "check_worker_id",
    "may_see_definition",
]


def check_worker_id(request: Request, worker_id: str) -> None:
    """:raises Forbidden: the caller may not work under this name."""
    require_worker_id(identity_of(request), worker_id)


def check_topic(request: Request, topic: str) -> None:
    """:raises Forbidden: the caller may not take tasks of this topic."""
    require_topic(identity_of(request), topic)


def check_process(request: Request, process_key: str) -> None:
    """:raises Forbidden: the caller may neither see nor use this process."""
    require_process(identity_of(request), process_key)


def check_definition(request: Request, definition_id: str) -> None:
    """The same for a version of a process, ``key:version``."""
    check_process(request, process_key_of(definition_id))


def check_task(request: Request, task: ExternalTask) -> None:
    """:raises Forbidden: neither may the caller take tasks of this topic, or the task is of a process that it may not
    see."""
    identity = identity_of(request)
    require_topic(identity, task.topic)
    require_process(identity, process_key_of(task.definition_id))


def check_unrestricted(request: Request, what: str) -> None:
    """For what cannot be told apart by processes.

    :raises Forbidden: the caller may see some processes only.
    """
    if allowed_processes(request) is not None:
        raise Forbidden(f"{what}: not for a caller who may use some processes only")


def allowed_processes(request: Request) -> tuple[str, ...] | None:
    """Keys, of which one that ends with ``*`` stands for all that begin so; None: all. As `TaskConditions` has it."""
    return identity_of(request).processes


def may_see_definition(request: Request, definition_id: str) -> bool:
    """For rows of lists: those of other processes are left out."""
    return identity_of(request).may_see(process_key_of(definition_id))
