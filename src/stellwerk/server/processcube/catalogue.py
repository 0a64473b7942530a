"""What is deployed, as ProcessCube has it: definitions, the process models in them, and the topics that they name.

Each process is a definition of its own here: one file with two processes is two definitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.requests import Request

from stellwerk.actors.definitions import DeployedProcess
from stellwerk.actors.node import Node
from stellwerk.instants import to_rfc3339
from stellwerk.model.process import Event, EventPosition, Process, SubProcess
from stellwerk.ports import DefinitionRow
from stellwerk.server.http.context import identity_of
from stellwerk.server.http.permissions import may_see_definition
from stellwerk.server.http.visibility import topics_of
from stellwerk.server.http.xml_texts import decoded_as_declared
from stellwerk.server.processcube.node_types import event_type_of, flow_node_type_of
from stellwerk.server.processcube.views import OWNER, given

__all__ = ["Catalogue", "definition_view", "model_view"]


class Catalogue:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def newest(self, request: Request) -> Sequence[DefinitionRow]:
        """The newest version of every process that the caller may see, by key."""
        rows = {row.key: row for row in await self._node.definitions()}
        return [row for row in rows.values() if may_see_definition(request, row.definition_id)]

    async def deployed(self, definition_id: str) -> DeployedProcess:
        """:raises NotFound: it is not deployed."""
        return await self._node.definition_cache.get(definition_id)

    async def topics(self, request: Request) -> Sequence[str]:
        """Those that the newest versions name and that the caller may take. One that is an expression is not known
        before it is evaluated."""
        found: dict[str, None] = {}
        for row in await self.newest(request):
            found |= dict.fromkeys(topics_of((await self.deployed(row.definition_id)).process))
        identity = identity_of(request)
        return sorted(topic for topic in found if identity.may_take(topic))


def definition_view(deployed: DeployedProcess, *, is_enabled: bool, with_xml: bool) -> dict[str, object]:
    row = deployed.row
    return given(
        processDefinitionId=row.definition_id,
        hash=row.digest,
        xml=decoded_as_declared(row.xml) if with_xml else None,
        processModels=[model_view(deployed, is_enabled=is_enabled)],
        deployedAt=to_rfc3339(row.deployed_at_ms),
        deployedByUserId=OWNER,
    )


def model_view(deployed: DeployedProcess, *, is_enabled: bool) -> dict[str, object]:
    process = deployed.process
    nodes = [_node_view(process, node_id) for node_id in _all_nodes(process, process.children)]
    at_top = [process.nodes[node_id] for node_id in process.children]
    starts = [node.id for node in at_top if isinstance(node, Event) and node.where is EventPosition.START]
    ends = [node.id for node in at_top if isinstance(node, Event) and node.where is EventPosition.END]
    return given(
        processDefinitionId=deployed.row.definition_id,
        processModelId=process.key,
        processModelName=process.name,
        version=process.version_tag,
        customProperties={},
        isExecutable=is_enabled,
        isSingleton=False,
        startEvents=[_node_view(process, node_id) for node_id in starts],
        endEvents=[_node_view(process, node_id) for node_id in ends],
        flowNodes=nodes,
    )


def _all_nodes(process: Process, children: Sequence[str]) -> Iterator[str]:
    for node_id in children:
        yield node_id
        node = process.nodes[node_id]
        if isinstance(node, SubProcess):
            yield from _all_nodes(process, node.children)


def _node_view(process: Process, node_id: str) -> dict[str, object]:
    node = process.nodes[node_id]
    return given(
        id=node.id,
        name=node.name or "",
        flowNodeType=flow_node_type_of(node),
        eventType=event_type_of(node),
        customProperties=dict(node.headers),
        processModelId=process.key,
        processModelName=process.name,
        processModelVersion=process.version_tag,
    )
