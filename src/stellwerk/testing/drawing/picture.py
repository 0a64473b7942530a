"""A process as an SVG picture: the diagram that its author drew, or one that is laid out here, and what was visited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

from attrs import define

from stellwerk.errors import InvalidInput
from stellwerk.limits import Limits
from stellwerk.model.process import Activity, Event, EventPosition, FlowNode, Process, SequenceFlow, SubProcess
from stellwerk.model.reader import read_definitions
from stellwerk.model.xml import Document, parse_xml
from stellwerk.testing.drawing.artifacts import Artifact, artifacts_of, draw_connection, draw_surface
from stellwerk.testing.drawing.diagram import Edge, Plane, Shape, read_planes
from stellwerk.testing.drawing.flows import draw_flow
from stellwerk.testing.drawing.geometry import Bounds, Point, around
from stellwerk.testing.drawing.layout import lay_out
from stellwerk.testing.drawing.nodes import draw_node, visits_badge
from stellwerk.testing.drawing.svg import escaped, group, rectangle, tag, title
from stellwerk.testing.drawing.visits import Visits, is_compensation_boundary

__all__ = ["draw_process"]

_MARGIN = 24.0
_PLANE_GAP = 56.0
_HEADER = 58.0
_LABEL_ROOM = 60.0
"""Names may reach so far beyond their shapes."""
_WIDTH_MIN = 420.0
_NOT_DRAWN = "not in the file's diagram"

_STYLE = """
svg { background: #fff; }
text { font-family: "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1f2328; text-anchor: middle; }
.halo { fill: #fff; stroke: #fff; stroke-width: 3px; stroke-linejoin: round; }
.shape { fill: #fff; stroke: #3b434b; stroke-width: 1.6px; }
.outline { fill: none; stroke: #3b434b; stroke-width: 1.3px; }
.thick { stroke-width: 3px; }
.dashed { stroke-dasharray: 5 3; }
.dotted { stroke-dasharray: 1.5 3; stroke-linecap: round; }
.symbol { fill: none; stroke: #3b434b; stroke-width: 1.3px; stroke-linejoin: round; }
.symbol.thick { stroke-width: 2.4px; }
.filled { fill: #3b434b; }
.flow { fill: none; stroke: #3b434b; stroke-width: 1.6px; stroke-linejoin: round; }
.arrow { fill: #3b434b; stroke: none; }
.surface { fill: #f8f9fb; stroke: #a8b0b9; stroke-width: 1.1px; }
.surface.outline { fill: none; }
.connection { fill: none; stroke: #8a929b; stroke-width: 1.2px; stroke-dasharray: 2 3; }
.visited .shape { fill: #dff3e4; stroke: #1a7f37; }
.visited .outline, .visited .symbol, .visited .flow { stroke: #1a7f37; }
.visited .filled, .visited .arrow { fill: #1a7f37; }
.visited .flow { stroke-width: 2.6px; }
.visited .connection { stroke: #1a7f37; stroke-width: 1.8px; }
.missed .shape { fill: #fdeae7; stroke: #b93a26; }
.missed .outline, .missed .symbol, .missed .flow { stroke: #b93a26; }
.missed .filled, .missed .arrow { fill: #b93a26; }
.missed .flow { stroke-width: 1.2px; }
.missed .connection { stroke: #b93a26; }
.visited.open > .shape { fill: #f3fbf5; }
.missed.open > .shape { fill: #fff6f4; }
.badge { fill: #1a7f37; stroke: #fff; stroke-width: 1px; }
.badge-text { fill: #fff; font-weight: 600; }
.heading { font-weight: 600; text-anchor: start; }
.remark { fill: #57606a; text-anchor: start; }
"""


def draw_process(
    xml: bytes,
    process_key: str | None = None,
    *,
    visits: Visits | None = None,
    adopt_java: bool = False,
    limits: Limits | None = None,
) -> str:
    """One process of a BPMN file as an SVG document. With `visits` coloured: what was visited is green with the number
    of visits, what was not is red.

    A file without a diagram gets a simple layout; nodes that its diagram leaves out are laid out below it.

    :raises InvalidInput: the file cannot be read, or has no such process (or several, and none is named).
    """
    limits = limits or Limits()
    result = read_definitions(xml, limits=limits, adopt_java=adopt_java)
    process = _chosen(result.processes, process_key, result.findings)
    document = parse_xml(xml, limits)
    return _Picture(process, artifacts_of(document, process), _planes(document, process), visits).svg()


def _chosen(processes: Iterable[Process], key: str | None, findings: Iterable[object]) -> Process:
    found = [process for process in processes if key is None or process.key == key]
    if len(found) == 1:
        return found[0]
    keys = ", ".join(process.key for process in processes)
    if not keys:
        raise InvalidInput(f"the file has no process that can be drawn: {next(iter(findings), 'it is empty')}")
    if key is None:
        raise InvalidInput(f"name one of the file's processes: {keys}")
    raise InvalidInput(f'the file has no process "{key}", but {keys}')


# --- what is drawn where -------------------------------------------------------------------------------------------


def _planes(document: Document, process: Process) -> list[Plane]:
    """The planes one below the other."""
    artifacts = artifacts_of(document, process)
    wanted = {*process.nodes, *process.flows, *artifacts}
    drawn = [plane.only(wanted.__contains__) for plane in read_planes(document, process)]
    kept = [plane for plane in drawn if any(node_id in plane.shapes for node_id in process.nodes)]
    shown = {node_id for plane in kept for node_id in plane.shapes}
    kept += _missing_planes(process, shown)
    placed: list[Plane] = []
    top = 0.0
    for plane in kept:
        bounds = plane.bounds
        placed.append(plane.moved(-bounds.x, top - bounds.y))
        top += bounds.height + _PLANE_GAP
    return [*placed, _straight_lines(placed, process, artifacts)]


def _straight_lines(planes: Iterable[Plane], process: Process, artifacts: Mapping[str, Artifact]) -> Plane:
    """Flows that the diagram leaves out (many have no id to refer to), or that lead to nodes that it leaves out, and
    likewise what leads from compensation boundary events to their handlers."""
    shapes = {key: shape for plane in planes for key, shape in plane.shapes.items()}
    drawn = {key for plane in planes for key in plane.edges}
    ends = {flow.id: (flow.source, flow.target) for flow in process.flows.values()}
    ends |= {
        key: (artifact.ends[0], artifact.ends[1])
        for key, artifact in artifacts.items()
        if _compensation_of(artifact, process) is not None and all(end in shapes for end in artifact.ends)
    }
    edges: dict[str, Edge] = {}
    for key, (source_id, target_id) in ends.items():
        if key not in drawn:
            source, target = shapes[source_id].bounds, shapes[target_id].bounds
            edges[key] = Edge((source.border_towards(target.center), target.border_towards(source.center)))
    return Plane({}, edges)


def _compensation_of(artifact: Artifact, process: Process) -> str | None:
    """Id of the compensation boundary event from which the association leads to a handler."""
    nodes = (process.nodes.get(end) for end in artifact.ends)
    return next((node.id for node in nodes if node is not None and is_compensation_boundary(node)), None)


def _missing_planes(process: Process, shown: set[str]) -> Iterator[Plane]:
    """Scopes of which something is not drawn yet, each laid out once, the outer ones first."""
    done = set(shown)
    scopes: list[str | None] = [None, *(node.id for node in process.nodes.values() if isinstance(node, SubProcess))]
    for scope_id in scopes:
        missing = [node_id for node_id in process.scope_children(scope_id) if node_id not in done]
        if not missing:
            continue
        name = None if scope_id is None else f"in {process.nodes[scope_id].name or scope_id}"
        whole = lay_out(process, scope_id, title=name)
        plane = _without(whole, done, process)
        if shown and scope_id is None:
            plane = Plane(plane.shapes, plane.edges, _NOT_DRAWN)
        done |= set(plane.shapes)
        yield plane


def _without(plane: Plane, drawn: Set[str], process: Process) -> Plane:
    """The nodes that are not drawn elsewhere, and the flows between them."""
    shapes = {key: shape for key, shape in plane.shapes.items() if key not in drawn}
    flows = process.flows
    edges = {
        key: edge for key, edge in plane.edges.items() if flows[key].source in shapes and flows[key].target in shapes
    }
    return Plane(shapes, edges, plane.title)


# --- the picture ---------------------------------------------------------------------------------------------------


@define(eq=False)
class _Picture:
    process: Process
    artifacts: Mapping[str, Artifact]
    planes: list[Plane]
    visits: Visits | None

    def svg(self) -> str:
        content = [part for plane in self.planes for part in self._plane(plane)]
        bounds = self._bounds()
        view = Bounds(bounds.x, bounds.y - _HEADER, max(bounds.width, _WIDTH_MIN), bounds.height + _HEADER)
        name = self.process.name or self.process.key
        return tag(
            "svg",
            "\n".join((title(name), tag("style", _STYLE), self._heading(view), *content)) + "\n",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"{view.x:.0f} {view.y:.0f} {view.width:.0f} {view.height:.0f}",
            width=f"{view.width:.0f}",
            height=f"{view.height:.0f}",
            role="img",
        )

    def _bounds(self) -> Bounds:
        """Everything with its names."""
        corners: list[Point] = [Point(0, 0)]
        for plane in self.planes:
            corners += plane.bounds.corners
            for node_id, shape in plane.shapes.items():
                node = self.process.nodes.get(node_id)
                if node is not None and not isinstance(node, Activity) and node.name and shape.label is None:
                    corners += [
                        Point(shape.bounds.center.x - _LABEL_ROOM, shape.bounds.bottom),
                        Point(shape.bounds.center.x + _LABEL_ROOM, shape.bounds.bottom + _LABEL_ROOM / 2),
                    ]
        return around(corners).grown(_MARGIN)

    def _heading(self, view: Bounds) -> str:
        left, top = view.x + _MARGIN, view.y + 24
        name = self.process.name or self.process.key
        heading = tag("text", escaped(name), x=left, y=top, font_size=17, class_="heading")
        if self.visits is None:
            return heading
        nodes, flows = self.process.nodes, self.process.flows
        figures = (
            f"{sum(map(bool, (self.visits.nodes.get(key) for key in nodes)))} of {len(nodes)} flow nodes and "
            f"{sum(map(bool, (self.visits.flows.get(key) for key in flows)))} of {len(flows)} sequence flows visited"
        )
        green = group([rectangle(Bounds(left, top + 9, 14, 11), radius=3, class_="shape")], class_="visited")
        red = group([rectangle(Bounds(left + 74, top + 9, 14, 11), radius=3, class_="shape")], class_="missed")
        words = [
            tag("text", "visited", x=left + 20, y=top + 19, font_size=12, class_="remark"),
            tag("text", "not visited", x=left + 94, y=top + 19, font_size=12, class_="remark"),
            tag("text", escaped(figures), x=left + 172, y=top + 19, font_size=12, class_="remark"),
        ]
        return group([heading, green, red, *words])

    def _plane(self, plane: Plane) -> Iterator[str]:
        """Surfaces below, then what holds others, flows, nodes, and boundary events on top."""
        if plane.title is not None:
            at = plane.bounds
            yield tag("text", escaped(plane.title), x=at.x, y=at.y - 14, font_size=13, class_="heading")
        yield from (
            draw_surface(self.artifacts[key], shape) for key, shape in plane.shapes.items() if key in self.artifacts
        )
        nodes = [self.process.nodes[key] for key in plane.shapes if key in self.process.nodes]
        opened = [node for node in nodes if _is_open(node, plane.shapes[node.id])]
        yield from (self._node(node, plane.shapes[node.id]) for node in sorted(opened, key=self._depth))
        yield from (self._connection(key, edge) for key, edge in plane.edges.items() if key in self.artifacts)
        flows = [self.process.flows[key] for key in plane.edges if key in self.process.flows]
        # Where flows share a part of their way, the one that was taken shows.
        yield from (self._flow(flow, plane.edges[flow.id]) for flow in sorted(flows, key=self._is_taken))
        rest = [node for node in nodes if not _is_open(node, plane.shapes[node.id])]
        yield from (self._node(node, plane.shapes[node.id]) for node in sorted(rest, key=_is_on_border))

    def _is_taken(self, flow: SequenceFlow) -> bool:
        return self.visits is not None and bool(self.visits.flows.get(flow.id))

    def _depth(self, node: FlowNode) -> int:
        depth = 0
        while node.parent is not None:
            node = self.process.nodes[node.parent]
            depth += 1
        return depth

    def _node(self, node: FlowNode, shape: Shape) -> str:
        visits = None if self.visits is None else self.visits.nodes.get(node.id, 0)
        badge = visits_badge(shape, visits) if visits else ""
        class_ = "node open" if _is_open(node, shape) else "node"
        return self._described(draw_node(node, shape) + badge, node.id, node.name, visits, class_)

    def _flow(self, flow: SequenceFlow, edge: Edge) -> str:
        visits = None if self.visits is None else self.visits.flows.get(flow.id, 0)
        return self._described(draw_flow(flow, self.process.nodes[flow.source], edge), flow.id, flow.name, visits, "")

    def _connection(self, key: str, edge: Edge) -> str:
        """Of all of them only what leads to a compensation handler can be visited."""
        event_id = _compensation_of(self.artifacts[key], self.process)
        drawn = draw_connection(edge)
        if event_id is None or self.visits is None:
            return drawn
        return group([drawn], class_="visited" if self.visits.nodes.get(event_id) else "missed")

    def _described(self, content: str, element_id: str, name: str | None, visits: int | None, class_: str) -> str:
        """A group that says what it is: to a person who points at it, and to a program by ``data-element``."""
        state = None if visits is None else "visited" if visits else "missed"
        text = element_id if name is None else f"{name} ({element_id})"
        if visits is not None:
            text += f": visited {visits} times" if visits > 1 else ": visited once" if visits else ": not visited"
        classes = " ".join(part for part in (class_, state) if part) or None
        return tag("g", title(text) + content, class_=classes, data_element=element_id)


def _is_open(node: FlowNode, shape: Shape) -> bool:
    return isinstance(node, SubProcess) and shape.is_expanded


def _is_on_border(node: FlowNode) -> bool:
    return isinstance(node, Event) and node.where is EventPosition.BOUNDARY
