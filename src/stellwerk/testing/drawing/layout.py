"""A simple layered layout, for processes that come without a diagram: from left to right along the flows."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from attrs import define, field

from stellwerk.model.process import (
    Activity,
    Event,
    EventPosition,
    FlowNode,
    Gateway,
    Process,
    SequenceFlow,
    SubProcess,
    SubProcessKind,
)
from stellwerk.testing.drawing.columns import columns_of, spread
from stellwerk.testing.drawing.diagram import Edge, Plane, Shape
from stellwerk.testing.drawing.geometry import Bounds, Point

__all__ = ["lay_out"]

_TASK = (110.0, 80.0)
_EVENT = (36.0, 36.0)
_GATEWAY = (50.0, 50.0)
_COLUMN_GAP = 70.0
_ROW_GAP = 46.0
_PADDING = 40.0
"""Between a subprocess's border and its content."""
_PASSING = 12.0
"""The height that a flow needs where it passes a column."""
_LANE = 14.0
"""Between the tracks of flows that lead back."""
_SWEEPS = 4


def lay_out(process: Process, scope_id: str | None, *, title: str | None = None) -> Plane:
    """Draw the content of a scope (None: the whole process), subprocesses with theirs inside."""
    return _Layout(process, scope_id).plane(title)


@define(eq=False)
class _Cell:
    """A node in its column, or a long flow that passes there (``node_id`` None)."""

    column: int
    width: float
    height: float
    node_id: str | None = None
    before: list[_Cell] = field(factory=list)
    after: list[_Cell] = field(factory=list)
    y: float = 0.0

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


class _Layout:
    def __init__(self, process: Process, scope_id: str | None) -> None:
        self._process = process
        self._nodes = [process.nodes[node_id] for node_id in process.scope_children(scope_id)]
        self._ids = {node.id for node in self._nodes}
        self._flows = [flow for flow in process.flows.values() if flow.source in self._ids and flow.target in self._ids]
        self._inner: dict[str, Plane] = {}
        self._shapes: dict[str, Shape] = {}
        self._edges: dict[str, Edge] = {}
        self._columns: list[list[_Cell]] = []
        self._lefts: list[float] = []
        self._widths: list[float] = []
        self._column_of: dict[str, int] = {}
        self._chains: dict[str, list[_Cell]] = {}

    def plane(self, title: str | None) -> Plane:
        for node in self._nodes:
            if isinstance(node, SubProcess) and node.children:
                self._inner[node.id] = lay_out(self._process, node.id)
        self._fill_columns()
        for sweep in range(_SWEEPS):
            self._order(forwards=sweep % 2 == 0)
        self._place()
        self._attach_boundary_events()
        self._connect()
        return Plane(self._shapes, self._edges, title)

    # --- columns ---------------------------------------------------------------------------------------------------

    def _fill_columns(self) -> None:
        links = [(self._column_owner(flow.source), flow.target, flow.id) for flow in self._flows]
        links += [
            (node.id, node.compensation_handler, f"{node.id}:compensation")
            for node in self._nodes
            if isinstance(node, Activity) and node.compensation_handler in self._ids
        ]
        placed = [node for node in self._nodes if not _is_attached(node)]
        ranks = columns_of([node.id for node in placed], [(source, target) for source, target, _ in links])
        spread([node.id for node in placed], {end for link in links for end in link[:2]}, ranks)
        self._column_of = ranks
        cells = {node.id: _Cell(ranks[node.id], *self._size(node), node.id) for node in placed}
        self._columns = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
        exceptional = {flow.target for flow in self._flows if _is_attached(self._process.nodes[flow.source])}
        for node in sorted(placed, key=lambda node: (_is_apart(node), node.id in exceptional)):
            self._columns[ranks[node.id]].append(cells[node.id])
        for source, target, key in links:
            if target in cells and ranks[source] < ranks[target]:
                self._chains[key] = self._chain(cells[source], cells[target])

    def _column_owner(self, node_id: str) -> str:
        """A boundary event stands where its host is."""
        node = self._process.nodes[node_id]
        return node.attached_to if isinstance(node, Event) and node.attached_to is not None else node_id

    def _chain(self, source: _Cell, target: _Cell) -> list[_Cell]:
        """A flow over several columns gets a cell in each that it passes. → with its ends."""
        chain = [source]
        for column in range(source.column + 1, target.column):
            passing = _Cell(column, 0.0, _PASSING)
            self._columns[column].append(passing)
            chain.append(passing)
        chain.append(target)
        for left, right in pairwise(chain):
            left.after.append(right)
            right.before.append(left)
        return chain

    def _size(self, node: FlowNode) -> tuple[float, float]:
        if node.id in self._inner:
            content = self._inner[node.id].bounds
            return max(content.width, 60.0) + 2 * _PADDING, max(content.height, 40.0) + 2 * _PADDING
        return _GATEWAY if isinstance(node, Gateway) else _EVENT if isinstance(node, Event) else _TASK

    def _order(self, *, forwards: bool) -> None:
        """Cells near the middle of their neighbours: few crossings, and a main path that is straight."""
        places = {id(cell): float(place) for column in self._columns for place, cell in enumerate(column)}

        def weight(cell: _Cell) -> float:
            neighbours = cell.before if forwards else cell.after
            found = [places[id(neighbour)] for neighbour in neighbours]
            return sum(found) / len(found) if found else places[id(cell)]

        for column in self._columns if forwards else self._columns[::-1]:
            column.sort(key=weight)
            places.update((id(cell), float(place)) for place, cell in enumerate(column))

    # --- coordinates -----------------------------------------------------------------------------------------------

    def _place(self) -> None:
        left = 0.0
        for column in self._columns:
            self._lefts.append(left)
            self._widths.append(max(cell.width for cell in column))
            self._stack(column)
            left += self._widths[-1] + _COLUMN_GAP
        for column, column_left, width in zip(self._columns, self._lefts, self._widths, strict=True):
            for cell in column:
                if cell.node_id is not None:
                    self._place_node(cell, column_left + (width - cell.width) / 2)

    def _stack(self, column: list[_Cell]) -> None:
        """From top to bottom, each as near as possible to where its flows come from."""
        bottom = float("-inf")
        for cell in column:
            wanted = [neighbour.middle for neighbour in cell.before]
            top = sum(wanted) / len(wanted) - cell.height / 2 if wanted else -cell.height / 2
            cell.y = max(top, bottom + _ROW_GAP) if bottom > float("-inf") else top
            bottom = cell.y + cell.height + self._room_below(cell)

    def _room_below(self, cell: _Cell) -> float:
        """For boundary events and their names."""
        node = None if cell.node_id is None else self._process.nodes[cell.node_id]
        return _EVENT[1] if isinstance(node, Activity) and node.boundary_events else 0.0

    def _place_node(self, cell: _Cell, x: float) -> None:
        assert cell.node_id is not None
        bounds = Bounds(x, cell.y, cell.width, cell.height)
        is_empty = isinstance(self._process.nodes[cell.node_id], SubProcess) and cell.node_id not in self._inner
        self._shapes[cell.node_id] = Shape(bounds, is_expanded=not is_empty)
        inner = self._inner.get(cell.node_id)
        if inner is not None:
            content = inner.bounds
            moved = inner.moved(bounds.center.x - content.center.x, bounds.center.y - content.center.y)
            self._shapes.update(moved.shapes)
            self._edges.update(moved.edges)

    def _attach_boundary_events(self) -> None:
        hosted: dict[str, list[str]] = defaultdict(list)
        for node in self._nodes:
            if isinstance(node, Event) and _is_attached(node) and node.attached_to in self._shapes:
                hosted[str(node.attached_to)].append(node.id)
        for host_id, event_ids in hosted.items():
            host = self._shapes[host_id].bounds
            for place, event_id in enumerate(event_ids):
                center = host.right - host.width * (2 * place + 1) / (2 * len(event_ids))
                width, height = _EVENT
                bounds = Bounds(center - width / 2, host.bottom - height / 2, width, height)
                beside = Bounds(center - 1.4 * width, bounds.bottom - 4, width, height)
                self._shapes[event_id] = Shape(bounds, label=beside)

    # --- flows -----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        tracks = 0
        lowest = max((shape.bounds.bottom for shape in self._shapes.values()), default=0.0)
        for flow in self._flows:
            if flow.source not in self._shapes or flow.target not in self._shapes:
                continue
            chain = self._chains.get(flow.id)
            if chain is not None:
                self._edges[flow.id] = Edge(self._forwards(flow, chain))
            else:
                tracks += 1
                self._edges[flow.id] = Edge(self._backwards(flow, lowest + 10 + tracks * _LANE))

    def _forwards(self, flow: SequenceFlow, chain: list[_Cell]) -> tuple[Point, ...]:
        source, target = self._shapes[flow.source].bounds, self._shapes[flow.target].bounds
        points = [Point(source.right, source.center.y)]
        if _is_attached(self._process.nodes[flow.source]):
            points = [Point(source.center.x, source.bottom)]
            first = chain[1].middle
            level = first if first > source.bottom + 5 else source.bottom + 14
            points.append(Point(source.center.x, level))
        for cell in chain[1:]:
            turn = self._lefts[cell.column] - _COLUMN_GAP / 2
            points += [Point(turn, points[-1].y), Point(turn, cell.middle)]
            if cell.node_id is None:
                points.append(Point(turn + _COLUMN_GAP, cell.middle))
        points.append(Point(target.x, target.center.y))
        return _without_repetition(points)

    def _backwards(self, flow: SequenceFlow, track: float) -> tuple[Point, ...]:
        """Below everything, up and down between the columns."""
        source, target = self._shapes[flow.source].bounds, self._shapes[flow.target].bounds
        column = self._column_of[self._column_owner(flow.source)]
        right = self._lefts[column] + self._widths[column] + _COLUMN_GAP / 4
        left = self._lefts[self._column_of[flow.target]] - _COLUMN_GAP / 4
        points = [Point(source.right, source.center.y), Point(right, source.center.y)]
        if _is_attached(self._process.nodes[flow.source]):
            level = source.bottom + 14
            points = [Point(source.center.x, source.bottom), Point(source.center.x, level), Point(right, level)]
        points += [Point(right, track), Point(left, track)]
        return (*points, Point(left, target.center.y), Point(target.x, target.center.y))


def _is_attached(node: FlowNode) -> bool:
    return isinstance(node, Event) and node.where is EventPosition.BOUNDARY and node.attached_to is not None


def _is_apart(node: FlowNode) -> bool:
    """Event subprocesses and compensation handlers stand below the others."""
    if isinstance(node, SubProcess) and node.kind is SubProcessKind.EVENT:
        return True
    return isinstance(node, Activity) and node.is_for_compensation


def _without_repetition(points: list[Point]) -> tuple[Point, ...]:
    kept = points[:1]
    for point in points[1:]:
        if point != kept[-1]:
            kept.append(point)
    return tuple(kept) if len(kept) > 1 else (points[0], points[-1])
