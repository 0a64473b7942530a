"""Flow nodes as SVG, in the notation of BPMN."""

from __future__ import annotations

from stellwerk.model.process import (
    Activity,
    CallActivity,
    Event,
    EventPosition,
    FlowNode,
    Gateway,
    SubProcess,
    SubProcessKind,
    Task,
    TaskKind,
)
from stellwerk.testing.drawing.diagram import Shape
from stellwerk.testing.drawing.geometry import Bounds, Point
from stellwerk.testing.drawing.svg import circle, polygon, rectangle, text_block
from stellwerk.testing.drawing.symbols import bottom_markers, event_symbol, gateway_symbol, task_symbol

__all__ = ["draw_node", "visits_badge"]

_ICON = 16.0
_LABEL_WIDTH = 100.0
_SMALL = 60.0
"""Activities below this height have no room for a name beside their symbols."""


def draw_node(node: FlowNode, shape: Shape) -> str:
    """The node with its symbols and its name, without colours."""
    if isinstance(node, Event):
        return _event(node, shape)
    if isinstance(node, Gateway):
        return _gateway(node, shape)
    assert isinstance(node, Activity), node
    return _activity(node, shape)


def visits_badge(shape: Shape, visits: int) -> str:
    """The number of visits in the upper right corner; nothing where there were none."""
    if not visits:
        return ""
    text = str(visits) if visits < 1000 else "999+"
    center = Point(shape.bounds.right - 2, shape.bounds.y + 2)
    width = 15.0 + 6.0 * (len(text) - 1)
    pill = rectangle(Bounds(center.x - width / 2, center.y - 7.5, width, 15), radius=7.5, class_="badge")
    return pill + text_block(text, center, 60, size=9, class_="badge-text")


# --- events --------------------------------------------------------------------------------------------------------


def _event(event: Event, shape: Shape) -> str:
    center, radius = shape.bounds.center, min(shape.bounds.width, shape.bounds.height) / 2
    border = "shape thick" if event.where is EventPosition.END else "shape"
    if not event.interrupting:
        border += " dashed"
    parts = [circle(center, radius, class_=border)]
    if event.where in (EventPosition.CATCH, EventPosition.THROW, EventPosition.BOUNDARY):
        inner = "outline dashed" if not event.interrupting else "outline"
        parts.append(circle(center, radius - 3, class_=inner))
    parts += [event_symbol(event, center, radius * 1.15), _outer_name(event, shape)]
    return "".join(parts)


def _outer_name(node: FlowNode, shape: Shape) -> str:
    """The name of what has no room inside: where the author placed it, else below."""
    name = _one_line(node.name)
    if not name:
        return ""
    if shape.label is not None:
        label = shape.label
        return text_block(
            name, Point(label.center.x, label.y), max(label.width, _LABEL_WIDTH), size=11, from_top=True, with_halo=True
        )
    below = Point(shape.bounds.center.x, shape.bounds.bottom + 3)
    return text_block(name, below, _LABEL_WIDTH, size=11, from_top=True, with_halo=True)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


# --- gateways ------------------------------------------------------------------------------------------------------


def _gateway(gateway: Gateway, shape: Shape) -> str:
    bounds = shape.bounds
    center = bounds.center
    diamond = polygon(
        (
            Point(center.x, bounds.y),
            Point(bounds.right, center.y),
            Point(center.x, bounds.bottom),
            Point(bounds.x, center.y),
        ),
        class_="shape",
    )
    size = min(bounds.width, bounds.height) * 0.48
    symbol = gateway_symbol(gateway, center, size, marker_is_visible=shape.marker_is_visible)
    return diamond + symbol + _outer_name(gateway, shape)


# --- activities ----------------------------------------------------------------------------------------------------


def _activity(activity: Activity, shape: Shape) -> str:
    is_collapsed = isinstance(activity, SubProcess | CallActivity) and not _is_open(activity, shape)
    parts = [_frame(activity, shape.bounds)]
    if isinstance(activity, Task):
        parts.append(task_symbol(activity, Point(shape.bounds.x + 14, shape.bounds.y + 14), _ICON))
    middle = Point(shape.bounds.center.x, shape.bounds.bottom - 11)
    parts += [bottom_markers(activity, middle, 14, is_collapsed=is_collapsed), _inner_name(activity, shape)]
    return "".join(parts)


def _is_open(activity: Activity, shape: Shape) -> bool:
    return isinstance(activity, SubProcess) and shape.is_expanded


def _frame(activity: Activity, bounds: Bounds) -> str:
    border = "shape thick" if isinstance(activity, CallActivity) else "shape"
    if isinstance(activity, SubProcess) and activity.kind is SubProcessKind.EVENT:
        border += " dotted"
    frame = rectangle(bounds, radius=10, class_=border)
    if isinstance(activity, SubProcess) and activity.kind is SubProcessKind.TRANSACTION:
        frame += rectangle(bounds.grown(-3), radius=8, class_="outline")
    return frame


def _inner_name(activity: Activity, shape: Shape) -> str:
    name = _one_line(activity.name) or activity.id
    bounds = shape.bounds
    if _is_open(activity, shape):
        return text_block(name, Point(bounds.center.x, bounds.y + 7), bounds.width - 30, lines_max=1, from_top=True)
    lines_max = max(1, int((bounds.height - _ICON) / 14))
    is_below_icon = isinstance(activity, Task) and activity.kind is not TaskKind.UNDEFINED
    center = bounds.center.moved(0, 6 if is_below_icon and bounds.height >= _SMALL else 0)
    return text_block(name, center, bounds.width - 10, lines_max=min(lines_max, 4))
