"""The diagram interchange of a BPMN file (BPMN 2.0.2, chapter 12): where its author placed the elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set

from attrs import evolve

from stellwerk.model.process import Process
from stellwerk.model.vocabulary import is_true
from stellwerk.model.xml import Document, Element
from stellwerk.testing.drawing.geometry import Bounds, Point, around
from stellwerk.values import frozen

__all__ = ["Edge", "Plane", "Shape", "read_planes"]

_COORDINATE_MAX = 1e6


@frozen
class Shape:
    bounds: Bounds
    is_expanded: bool = True
    """Of a subprocess: whether its content is drawn in it."""
    is_horizontal: bool = True
    """Of a pool or lane."""
    marker_is_visible: bool = True
    """Of an exclusive gateway: whether the X is drawn in it."""
    label: Bounds | None = None


@frozen
class Edge:
    waypoints: tuple[Point, ...]
    """At least two."""
    label: Bounds | None = None


@frozen
class Plane:
    """One drawing: the process, or the content of a subprocess that is drawn by itself."""

    shapes: Mapping[str, Shape]
    """By the element's id."""
    edges: Mapping[str, Edge]
    title: str | None = None

    @property
    def bounds(self) -> Bounds:
        shapes = [corner for shape in self.shapes.values() for corner in shape.bounds.corners]
        items: list[Shape | Edge] = [*self.shapes.values(), *self.edges.values()]
        labels = [corner for item in items if item.label is not None for corner in item.label.corners]
        return around([*shapes, *labels, *(point for edge in self.edges.values() for point in edge.waypoints)])

    def moved(self, dx: float, dy: float) -> Plane:
        shapes = {
            key: evolve(shape, bounds=shape.bounds.moved(dx, dy), label=_moved(shape.label, dx, dy))
            for key, shape in self.shapes.items()
        }
        edges = {
            key: Edge(tuple(point.moved(dx, dy) for point in edge.waypoints), _moved(edge.label, dx, dy))
            for key, edge in self.edges.items()
        }
        return Plane(shapes, edges, self.title)

    def only(self, is_wanted: Callable[[str], bool]) -> Plane:
        shapes = {key: shape for key, shape in self.shapes.items() if is_wanted(key)}
        return Plane(shapes, {key: edge for key, edge in self.edges.items() if is_wanted(key)}, self.title)


def _moved(bounds: Bounds | None, dx: float, dy: float) -> Bounds | None:
    return None if bounds is None else bounds.moved(dx, dy)


def read_planes(document: Document, process: Process) -> list[Plane]:
    """Every plane of the file, as it is drawn there. What has no usable coordinates is left out."""
    elements = list(document.root.descendants())
    ids = frozenset(element.get("id") or "" for element in elements)
    return [_read_plane(element, process, ids) for element in elements if element.name == "BPMNPlane"]


def _read_plane(plane: Element, process: Process, ids: Set[str]) -> Plane:
    shapes: dict[str, Shape] = {}
    edges: dict[str, Edge] = {}
    for element in plane.children:
        subject = _subject(element, ids)
        if element.name == "BPMNShape" and (shape := _shape(element)) is not None:
            shapes.setdefault(subject, shape)
        elif element.name == "BPMNEdge" and (edge := _edge(element)) is not None:
            edges.setdefault(subject, edge)
    drawn = process.nodes.get(_subject(plane, ids))
    return Plane(shapes, edges, None if drawn is None else drawn.name or drawn.id)


def _subject(element: Element, ids: Set[str]) -> str:
    """The id of the element that is drawn; it may be written with a prefix."""
    reference = (element.get("bpmnElement") or "").strip()
    return reference if reference in ids else reference.rpartition(":")[2]


def _shape(element: Element) -> Shape | None:
    bounds = _bounds(element)
    if bounds is None:
        return None
    return Shape(
        bounds,
        is_expanded=is_true(element.get("isExpanded"), default=True),
        is_horizontal=is_true(element.get("isHorizontal"), default=bounds.width >= bounds.height),
        marker_is_visible=is_true(element.get("isMarkerVisible"), default=True),
        label=_label(element),
    )


def _edge(element: Element) -> Edge | None:
    points = [_point(child) for child in element.children if child.name == "waypoint"]
    waypoints = tuple(point for point in points if point is not None)
    return Edge(waypoints, _label(element)) if len(waypoints) > 1 else None


def _label(element: Element) -> Bounds | None:
    return next((_bounds(child) for child in element.children if child.name == "BPMNLabel"), None)


def _bounds(element: Element) -> Bounds | None:
    for child in element.children:
        if child.name == "Bounds":
            numbers = list(_numbers(child, "x", "y", "width", "height"))
            return Bounds(*numbers) if len(numbers) == 4 and min(numbers[2:]) > 0 else None
    return None


def _point(element: Element) -> Point | None:
    numbers = list(_numbers(element, "x", "y"))
    return Point(*numbers) if len(numbers) == 2 else None


def _numbers(element: Element, *names: str) -> Iterator[float]:
    for name in names:
        try:
            number = float(element.get(name) or "")
        except ValueError:
            continue
        if math.isfinite(number) and abs(number) <= _COORDINATE_MAX:
            yield number
