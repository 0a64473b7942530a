"""What a caller whose credential names processes may see and use: instances of these, and what belongs to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set

from starlette.requests import Request

from stellwerk.actors.node import Node
from stellwerk.errors import NotFound
from stellwerk.model.process import Event, Process, Task
from stellwerk.model.reader import read_definitions
from stellwerk.ports import InstanceSummary
from stellwerk.server.http.context import identity_of
from stellwerk.server.http.permissions import allowed_processes, check_process, may_see_definition

__all__ = [
    "check_files",
    "check_incident",
    "check_instance",
    "check_user_task",
    "process_keys_in",
    "topics_of",
    "visible_rows",
    "visible_topics",
]


async def check_files(request: Request, node: Node, files: Sequence[tuple[str, bytes]]) -> None:
    """:raises Forbidden: one of the files (name, content) that are to be deployed has another process in it."""
    if allowed_processes(request) is not None:
        for key in await process_keys_in(node, files):
            check_process(request, key)


async def process_keys_in(node: Node, files: Sequence[tuple[str, bytes]]) -> Sequence[str]:
    """Of files (name, content) that are not too large; the others will be refused."""

    def read() -> list[str]:
        readable = [xml for _, xml in files if len(xml) <= node.limits.definition_bytes_max]
        return [process.key for xml in readable for process in read_definitions(xml, limits=node.limits).processes]

    return await node.ports.background.run_sync(read)


async def check_instance(request: Request, node: Node, instance_id: str) -> None:
    """:raises Forbidden: it is of another process; NotFound: there is no such instance."""
    if allowed_processes(request) is not None:
        check_process(request, (await _summary(node, instance_id)).process_key)


async def check_user_task(request: Request, node: Node, user_task_id: str) -> None:
    """:raises Forbidden: it is of another process; NotFound: it is not open."""
    await _check_open(request, node, node.ports.store.user_task, "user task", user_task_id)


async def check_incident(request: Request, node: Node, incident_id: str) -> None:
    """:raises Forbidden: it is of another process; NotFound: it is not open."""
    await _check_open(request, node, node.ports.store.incident, "incident", incident_id)


async def _check_open(
    request: Request,
    node: Node,
    read: Callable[[str], Awaitable[Mapping[str, object] | None]],
    kind: str,
    row_id: str,
) -> None:
    if allowed_processes(request) is None:
        return
    row = await read(row_id)
    if row is None:
        raise NotFound(f"there is no open {kind} {row_id}")
    await check_instance(request, node, str(row["instance_id"]))


async def visible_rows(
    request: Request, node: Node, rows: Sequence[Mapping[str, object]]
) -> Sequence[Mapping[str, object]]:
    """Those of instances that the caller may see. Each row has an ``instance_id``."""
    if allowed_processes(request) is None:
        return rows
    identity = identity_of(request)
    seen = {name: await node.ports.store.instance(name) for name in {str(row["instance_id"]) for row in rows}}
    return [
        row
        for row in rows
        if (summary := seen[str(row["instance_id"])]) is not None and identity.may_see(summary.process_key)
    ]


async def visible_topics(request: Request, node: Node, topics: Set[str]) -> Set[str]:
    """Those that the caller may take, and that the processes name which it may see: the newest version of each."""
    identity = identity_of(request)
    allowed = {topic for topic in topics if identity.may_take(topic)}
    if identity.processes is None:
        return allowed
    newest = {row.key: row for row in await node.definitions()}
    named: set[str] = set()
    for row in newest.values():
        if may_see_definition(request, row.definition_id):
            named.update(topics_of((await node.definition_cache.get(row.definition_id)).process))
    return allowed & named


def topics_of(process: Process) -> Iterator[str]:
    """Those that its model names. One that is an expression is not known before it is evaluated."""
    for node in process.nodes.values():
        work = node.work if isinstance(node, Task | Event) else None
        topic = None if work is None else work.topic.literal_value
        if isinstance(topic, str):
            yield topic


async def _summary(node: Node, instance_id: str) -> InstanceSummary:
    summary = await node.ports.store.instance(instance_id)
    if summary is None:
        raise NotFound(f"there is no instance {instance_id}")
    return summary
