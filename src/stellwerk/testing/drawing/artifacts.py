"""What stands in a diagram beside flow nodes and sequence flows: pools, lanes, notes, data and groups."""

from __future__ import annotations

from collections.abc import Iterator

from stellwerk.model.process import Process
from stellwerk.model.vocabulary import bpmn_child, is_bpmn, text_of
from stellwerk.model.xml import Document, Element
from stellwerk.testing.drawing.diagram import Edge, Shape
from stellwerk.testing.drawing.geometry import Bounds, Point
from stellwerk.testing.drawing.svg import line, number, path, rectangle, text_block
from stellwerk.values import frozen

__all__ = ["Artifact", "artifacts_of", "draw_connection", "draw_surface"]

_SURFACES = (
    "participant",
    "lane",
    "group",
    "textAnnotation",
    "dataObjectReference",
    "dataObject",
    "dataStoreReference",
)
_CONNECTIONS = ("association", "dataInputAssociation", "dataOutputAssociation")
_TITLE = 30.0
"""The strip of a pool or lane in which its name stands."""


@frozen
class Artifact:
    kind: str
    """The element's local name."""
    text: str
    ends: tuple[str, ...] = ()
    """Of an association: the ids of the two elements that it links."""


def artifacts_of(document: Document, process: Process) -> dict[str, Artifact]:
    """By id: those of the process, its pool, and what belongs to no process if there is only this one."""
    found = {}
    for element in _elements(document, process):
        element_id = element.get("id")
        if element_id and is_bpmn(element) and element.name in (*_SURFACES, *_CONNECTIONS):
            found[element_id] = Artifact(element.name, _text(element), _ends(element))
    return found


def _elements(document: Document, process: Process) -> Iterator[Element]:
    processes = [element for element in document.root.children if element.name == "process"]
    for element in processes:
        if element.position == process.position:
            yield from element.descendants()
    for collaboration in document.root.children:
        if collaboration.name != "collaboration":
            continue
        for element in collaboration.children:
            if _is_pool_of(element, process) if element.name == "participant" else len(processes) == 1:
                yield element


def _is_pool_of(participant: Element, process: Process) -> bool:
    reference = (participant.get("processRef") or "").strip()
    return process.key in (reference, reference.rpartition(":")[2])


def _ends(element: Element) -> tuple[str, ...]:
    if element.name != "association":
        return ()
    references = ((element.get(name) or "").strip() for name in ("sourceRef", "targetRef"))
    return tuple(reference.rpartition(":")[2] for reference in references)


def _text(element: Element) -> str:
    if element.name == "textAnnotation":
        return text_of(bpmn_child(element, "text")) or ""
    return " ".join((element.get("name") or "").split())


def draw_surface(artifact: Artifact, shape: Shape) -> str:
    match artifact.kind:
        case "participant" | "lane":
            return _pool(artifact, shape)
        case "group":
            return rectangle(shape.bounds, radius=10, class_="surface outline dashed")
        case "textAnnotation":
            return _note(artifact.text, shape.bounds)
        case "dataStoreReference":
            return _cylinder(shape.bounds) + _name_below(artifact, shape)
        case _:
            return _page(shape.bounds) + _name_below(artifact, shape)


def _pool(artifact: Artifact, shape: Shape) -> str:
    bounds = shape.bounds
    frame = rectangle(bounds, class_="surface")
    if not artifact.text:
        return frame
    if not shape.is_horizontal:
        at = Point(bounds.center.x, bounds.y + _TITLE / 2)
        return frame + text_block(artifact.text, at, bounds.width - 10, lines_max=2)
    at = Point(bounds.x + _TITLE / 2, bounds.center.y)
    turn = f"rotate(-90 {number(at.x)} {number(at.y)})"
    return frame + text_block(artifact.text, at, bounds.height - 10, lines_max=2, transform=turn)


def _note(text: str, bounds: Bounds) -> str:
    bracket = (
        Point(bounds.x + 10, bounds.y),
        Point(bounds.x, bounds.y),
        Point(bounds.x, bounds.bottom),
        Point(bounds.x + 10, bounds.bottom),
    )
    lines_max = max(1, int(bounds.height / 13))
    words = text_block(text, bounds.center.moved(4, 0), bounds.width - 8, size=11, lines_max=lines_max)
    return line(bracket, class_="surface outline") + words


def _page(bounds: Bounds) -> str:
    fold = min(10.0, bounds.width / 3)
    data = (
        f"M{number(bounds.x)},{number(bounds.y)} H{number(bounds.right - fold)} l{number(fold)},{number(fold)}"
        f" V{number(bounds.bottom)} H{number(bounds.x)} Z"
        f" M{number(bounds.right - fold)},{number(bounds.y)} v{number(fold)} h{number(fold)}"
    )
    return path(data, class_="surface")


def _cylinder(bounds: Bounds) -> str:
    lid = min(8.0, bounds.height / 5)
    half = number(bounds.width / 2)
    arc = f"a{half},{number(lid)} 0 0 0"
    left, right = number(bounds.x), number(bounds.right)
    top, bottom = number(bounds.y + lid), number(bounds.bottom - lid)
    data = (
        f"M{left},{top} V{bottom} {arc} {number(bounds.width)},0 V{top} {arc} {number(-bounds.width)},0"
        f" {arc} {number(bounds.width)},0 M{right},{top}"
    )
    return path(data, class_="surface")


def _name_below(artifact: Artifact, shape: Shape) -> str:
    at = Point(shape.bounds.center.x, shape.bounds.bottom + 3)
    if shape.label is not None:
        at = Point(shape.label.center.x, shape.label.y)
    return text_block(artifact.text, at, 100, size=11, from_top=True, with_halo=True)


def draw_connection(edge: Edge) -> str:
    return line(edge.waypoints, class_="connection")
