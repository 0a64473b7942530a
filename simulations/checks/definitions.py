"""The models that instances run, read once from the deployed rows."""

from __future__ import annotations

from functools import lru_cache

from simulations.checks.shadow import Shadow
from stellwerk.limits import Limits
from stellwerk.model.process import Activity, FlowNode, Process
from stellwerk.model.reader import read_definitions

__all__ = ["Models"]


@lru_cache(maxsize=200)
def _process(xml: bytes, key: str, adopt_java: bool) -> Process | None:
    """Runs of a campaign deploy the same files again and again."""
    result = read_definitions(xml, limits=Limits(), adopt_java=adopt_java)
    return next((found for found in result.processes if found.key == key), None)


class Models:
    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._read: dict[str, Process | None] = {}

    def process(self, definition_id: str) -> Process | None:
        """None: what was deployed under this id is not known."""
        if definition_id not in self._read:
            row = self._shadow.definitions.get(definition_id)
            if row is None:
                return None
            self._read[definition_id] = _process(row.xml, row.key, row.adopt_java)
        return self._read[definition_id]

    def node(self, definition_id: str, node_id: str) -> FlowNode | None:
        process = self.process(definition_id)
        return None if process is None else process.nodes.get(node_id)

    def handler(self, definition_id: str, node_id: str) -> str | None:
        """The activity that undoes this one."""
        node = self.node(definition_id, node_id)
        return node.compensation_handler if isinstance(node, Activity) else None
