"""Sequence flows as SVG."""

from __future__ import annotations

import math
from itertools import pairwise

from stellwerk.model.process import Activity, FlowNode, SequenceFlow
from stellwerk.testing.drawing.diagram import Edge
from stellwerk.testing.drawing.geometry import Point
from stellwerk.testing.drawing.svg import line, polygon, text_block

__all__ = ["draw_flow"]

_ARROW_LENGTH, _ARROW_WIDTH = 10.0, 7.0


def draw_flow(flow: SequenceFlow, source: FlowNode, edge: Edge) -> str:
    """The line, its arrow, the marks of conditional and default flows, its name."""
    points = edge.waypoints
    parts = [line(points, class_="flow"), _arrow(points[-2], points[-1])]
    if flow.id == source.default_flow:
        parts.append(_slash(points[0], points[1]))
    elif flow.condition is not None and isinstance(source, Activity):
        parts.append(_diamond(points[0], points[1]))
    name = " ".join((flow.name or "").split())
    if name:
        parts.append(_name(name, edge))
    return "".join(parts)


def _direction(start: Point, end: Point) -> Point:
    length = math.hypot(end.x - start.x, end.y - start.y)
    return Point((end.x - start.x) / length, (end.y - start.y) / length) if length else Point(1, 0)


def _along(at: Point, direction: Point, forwards: float, sideways: float) -> Point:
    return at.moved(
        direction.x * forwards - direction.y * sideways,
        direction.y * forwards + direction.x * sideways,
    )


def _arrow(start: Point, tip: Point) -> str:
    along = _direction(start, tip)
    half = _ARROW_WIDTH / 2
    return polygon(
        (tip, _along(tip, along, -_ARROW_LENGTH, half), _along(tip, along, -_ARROW_LENGTH, -half)), class_="arrow"
    )


def _slash(start: Point, end: Point) -> str:
    along = _direction(start, end)
    return line((_along(start, along, 7, 5), _along(start, along, 13, -5)), class_="flow")


def _diamond(start: Point, end: Point) -> str:
    along = _direction(start, end)
    corners = (start, _along(start, along, 8, 5), _along(start, along, 16, 0), _along(start, along, 8, -5))
    return polygon(corners, class_="shape")


def _name(name: str, edge: Edge) -> str:
    if edge.label is not None:
        label = edge.label
        return text_block(
            name, Point(label.center.x, label.y), max(label.width, 80), size=11, from_top=True, with_halo=True
        )
    return text_block(name, _middle(edge.waypoints).moved(0, -9), 100, size=11, lines_max=2, with_halo=True)


def _middle(points: tuple[Point, ...]) -> Point:
    """The point half way along the line."""
    lengths = [math.hypot(end.x - start.x, end.y - start.y) for start, end in pairwise(points)]
    left = sum(lengths) / 2
    for (start, end), length in zip(pairwise(points), lengths, strict=True):
        if left <= length and length:
            return start.moved((end.x - start.x) * left / length, (end.y - start.y) * left / length)
        left -= length
    return points[0]
