"""Which flow nodes and sequence flows of which processes were visited, summed up over many tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypedDict

from attrs import define, field

from stellwerk.actors.node import Node
from stellwerk.model.process import Process, SequenceFlow
from stellwerk.model.reader import read_definitions
from stellwerk.testing.drawing import Visits, draw_process
from stellwerk.testing.recording import InstanceRecord, Recording

__all__ = ["Coverage", "ProcessCoverage"]

_LISTED_MAX = 30
_NOT_IN_FILE_NAMES = re.compile(r"[^\w.-]")


@define(eq=False)
class ProcessCoverage:
    """One process in one wording of its file."""

    process: Process
    xml: bytes = field(repr=False)
    adopt_java: bool = False
    """Whether the file is read with Java classes as topics."""
    nodes: Counter[str] = field(factory=Counter)
    """How often tokens came to each flow node, and how often the handler of each compensation boundary event started;
    those that are missing were never visited."""
    flows: Counter[str] = field(factory=Counter)
    """How often each sequence flow was taken."""

    @property
    def missed_nodes(self) -> list[str]:
        """In document order."""
        return [node_id for node_id in self.process.nodes if not self.nodes[node_id]]

    @property
    def missed_flows(self) -> list[SequenceFlow]:
        return [flow for flow in self.process.flows.values() if not self.flows[flow.id]]

    @property
    def fraction(self) -> float:
        """Of flow nodes and sequence flows together, 0 to 1."""
        total = len(self.process.nodes) + len(self.process.flows)
        missed = len(self.missed_nodes) + len(self.missed_flows)
        return (total - missed) / total if total else 1.0

    def add(self, record: InstanceRecord) -> None:
        self.nodes.update(record.path)
        self.flows.update(record.flows)

    def svg(self) -> str:
        """The diagram, coloured by what was visited."""
        visits = Visits(nodes=self.nodes, flows=self.flows)
        return draw_process(self.xml, self.process.key, visits=visits, adopt_java=self.adopt_java)


class ExportedProcess(TypedDict):
    key: str
    xml: bytes
    adopt_java: bool
    nodes: dict[str, int]
    flows: dict[str, int]


class Coverage:
    """Filled by `open_process_test`; one object may serve many of them."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, bytes, bool], ProcessCoverage] = {}

    def __iter__(self) -> Iterator[ProcessCoverage]:
        """By key; of one key, in the order in which they were met."""
        return iter(sorted(self._processes.values(), key=lambda found: found.process.key))

    def __len__(self) -> int:
        return len(self._processes)

    async def add_engine(self, node: Node, recording: Recording) -> None:
        """Everything that is deployed there, and every instance."""
        for row in await node.definitions():
            deployed = await node.definition_cache.get(row.definition_id)
            self._of(deployed.process, row.xml, row.adopt_java)
        await recording.refresh()
        for record in recording:
            self._of(record.process, record.row.xml, record.row.adopt_java).add(record)

    def _of(self, process: Process, xml: bytes, adopt_java: bool) -> ProcessCoverage:
        return self._processes.setdefault((process.key, xml, adopt_java), ProcessCoverage(process, xml, adopt_java))

    # --- over the borders of processes -----------------------------------------------------------------------------

    def exported(self) -> list[ExportedProcess]:
        """All of it as plain values."""
        return [
            ExportedProcess(
                key=found.process.key,
                xml=found.xml,
                adopt_java=found.adopt_java,
                nodes=dict(found.nodes),
                flows=dict(found.flows),
            )
            for found in self
        ]

    def add_exported(self, measured: Iterable[ExportedProcess]) -> None:
        for exported in measured:
            xml, adopt_java = exported["xml"], exported["adopt_java"]
            read = read_definitions(xml, adopt_java=adopt_java).processes
            process = next(process for process in read if process.key == exported["key"])
            found = self._of(process, xml, adopt_java)
            found.nodes.update(exported["nodes"])
            found.flows.update(exported["flows"])

    # --- reports ---------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """A table with one line for each process, and below it what was never visited."""
        rows = [("process", "flow nodes", "sequence flows", "visited"), *map(_figures, self)]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = []
        for row in rows:
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            lines.append("  ".join(cells))
        for found in self:
            lines += _missed_lines(found)
        return "\n".join(lines)

    def write_svgs(self, folder: Path) -> list[Path]:
        """One file for each process, named after its key (``order.svg``; ``order-2.svg`` for another wording of it)."""
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        for found in self:
            path = _free_name(folder, found.process.key, written)
            path.write_text(found.svg(), encoding="utf-8")
            written.append(path)
        return written


def _figures(found: ProcessCoverage) -> tuple[str, str, str, str]:
    nodes, flows = len(found.process.nodes), len(found.process.flows)
    return (
        found.process.key,
        f"{nodes - len(found.missed_nodes)}/{nodes}",
        f"{flows - len(found.missed_flows)}/{flows}",
        # Rounded down: 100 % is all of it.
        f"{int(found.fraction * 100)} %",
    )


def _missed_lines(found: ProcessCoverage) -> list[str]:
    lines = []
    if found.missed_nodes:
        lines.append(f"{found.process.key}: flow nodes not visited: {_listed(found.missed_nodes)}")
    if found.missed_flows:
        flows = [f"{flow.id} ({flow.source} → {flow.target})" for flow in found.missed_flows]
        lines.append(f"{found.process.key}: sequence flows not visited: {_listed(flows)}")
    return lines


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return ", ".join(names[:_LISTED_MAX]) + more


def _free_name(folder: Path, key: str, taken: list[Path]) -> Path:
    stem = _NOT_IN_FILE_NAMES.sub("_", key)
    path, number = folder / f"{stem}.svg", 1
    while path in taken:
        number += 1
        path = folder / f"{stem}-{number}.svg"
    return path
