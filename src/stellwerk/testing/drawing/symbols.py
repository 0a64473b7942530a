"""The symbols of BPMN (2.0.2, chapters 7.4 and 10): what stands in events, in gateways and in activities' corners.

All are drawn in a square of 20 around the origin, and scaled to where they go.
"""

from __future__ import annotations

from typing import assert_never

from stellwerk.model.process import (
    Activity,
    CancelDefinition,
    CompensationDefinition,
    ConditionalDefinition,
    ErrorDefinition,
    EscalationDefinition,
    Event,
    EventDefinition,
    EventPosition,
    Gateway,
    GatewayKind,
    LinkDefinition,
    MessageDefinition,
    SignalDefinition,
    SubProcess,
    SubProcessKind,
    Task,
    TaskKind,
    TerminateDefinition,
    TimerDefinition,
)
from stellwerk.testing.drawing.geometry import Point
from stellwerk.testing.drawing.svg import number, path, tag

__all__ = ["bottom_markers", "event_symbol", "gateway_symbol", "task_symbol"]

_ENVELOPE = "M-9,-6 H9 V6 H-9 Z M-9,-6 L0,1 L9,-6"
_ENVELOPE_FILLED = "M-9,-6 H9 L0,0.5 Z M-9,-4 L0,2.5 L9,-4 V6 H-9 Z"
_CLOCK = "M0,-9 A9,9 0 1 1 -0.01,-9 Z M0,-6 V0 L4,2 M0,-9 V-7 M0,9 V7 M-9,0 H-7 M9,0 H7"
_BOLT = "M-7,7 L-3,-5 L3,2 L7,-8 L3,6 L-3,-1 Z"
_TRIANGLE = "M0,-8 L8,6 H-8 Z"
_CHEVRON = "M0,-8 L6,7 L0,1 L-6,7 Z"
_REWIND = "M0,-6 V6 L-8,0 Z M8,-6 V6 L0,0 Z"
_ARROW = "M-8,-3 H2 V-7 L9,0 L2,7 V3 H-8 Z"
_PAGE = "M-6,-8 H6 V8 H-6 Z M-4,-5 H4 M-4,-1.6 H4 M-4,1.6 H4 M-4,5 H4"
_CROSS = "M-7,-5 L-5,-7 L0,-2 L5,-7 L7,-5 L2,0 L7,5 L5,7 L0,2 L-5,7 L-7,5 L-2,0 Z"
_DISC = "M0,-8 A8,8 0 1 1 -0.01,-8 Z"
_PENTAGON = "M0,-8 L8,-2 L5,7 H-5 L-8,-2 Z"
_PLUS = "M-2,-8 H2 V-2 H8 V2 H2 V8 H-2 V2 H-8 V-2 H-2 Z"
_STAR = "M0,-9 V9 M-9,0 H9 M-6.5,-6.5 L6.5,6.5 M-6.5,6.5 L6.5,-6.5"
_RING = "M0,-8 A8,8 0 1 1 -0.01,-8 Z"

_PERSON = "M-8,9 V4 C-8,0 -4,-1 0,-1 C4,-1 8,0 8,4 V9 Z M0,-9 A4,4 0 1 1 -0.01,-9 Z"
_HAND = "M-8,-1 L-2,-6 L1,-5 L-2,-2 H8 V1 H1 H9 V4 H1 H7 V7 H-4 C-7,7 -8,5 -8,3 Z"
_SCRIPT = "M-4,-9 H8 C3,-5 3,-2 6,2 C8,5 7,8 4,9 H-8 C-4,6 -5,2 -6,0 C-8,-4 -7,-7 -4,-9 Z M-3,-5 H3 M-3,-1 H3 M-1,3 H4"
_TABLE = "M-9,-7 H9 V7 H-9 Z M-9,-3 H9 M-9,2 H9 M-4,-3 V7"
_GEAR = (
    "M-1.6,-9 H1.6 L2.2,-6.4 L4.6,-5.4 L6.9,-6.8 L9,-4.4 L7.3,-2.2 L8,0 L7.3,2.2 L9,4.4 L6.9,6.8 L4.6,5.4 L2.2,6.4"
    " L1.6,9 H-1.6 L-2.2,6.4 L-4.6,5.4 L-6.9,6.8 L-9,4.4 L-7.3,2.2 L-8,0 L-7.3,-2.2 L-9,-4.4 L-6.9,-6.8 L-4.6,-5.4"
    " L-2.2,-6.4 Z M0,-3.4 A3.4,3.4 0 1 0 0.01,-3.4 Z"
)

_COLLAPSED = "M-8,-8 H8 V8 H-8 Z M-5,0 H5 M0,-5 V5"
_LOOP = "M-3,7 A7.5,7.5 0 1 1 3,7 M-3,7 L-8,7 M-3,7 L-3,2"
_PARALLEL = "M-5,-7 V7 M0,-7 V7 M5,-7 V7"
_SEQUENTIAL = "M-7,-5 H7 M-7,0 H7 M-7,5 H7"
_TILDE = "M-8,2 C-4,-7 -1,-2 1,0 C4,3 6,2 8,-3"

_OUTLINED = "symbol"
_FILLED = "symbol filled"


def _symbol(data: str, center: Point, size: float, class_: str = _OUTLINED) -> str:
    scale = size / 20
    return path(data, class_=class_, transform=f"translate({number(center.x)} {number(center.y)}) scale({scale:.2f})")


def event_symbol(event: Event, center: Point, size: float) -> str:
    """Filled where the event throws; empty for a none event."""
    throws = event.where in (EventPosition.THROW, EventPosition.END)
    if len(event.definitions) > 1:
        data = _PLUS if event.parallel_multiple else _PENTAGON
        return _symbol(data, center, size, _FILLED if throws else _OUTLINED)
    if event.definition is None:
        return ""
    data = _ENVELOPE_FILLED if throws and isinstance(event.definition, MessageDefinition) else _mark(event.definition)
    is_filled = throws or isinstance(event.definition, TerminateDefinition)
    return _symbol(data, center, size, _FILLED if is_filled else _OUTLINED)


def _mark(definition: EventDefinition) -> str:
    match definition:
        case MessageDefinition():
            return _ENVELOPE
        case TimerDefinition():
            return _CLOCK
        case ErrorDefinition():
            return _BOLT
        case SignalDefinition():
            return _TRIANGLE
        case EscalationDefinition():
            return _CHEVRON
        case CompensationDefinition():
            return _REWIND
        case LinkDefinition():
            return _ARROW
        case ConditionalDefinition():
            return _PAGE
        case CancelDefinition():
            return _CROSS
        case TerminateDefinition():
            return _DISC
    assert_never(definition)


def gateway_symbol(gateway: Gateway, center: Point, size: float, *, marker_is_visible: bool) -> str:
    match gateway.kind:
        case GatewayKind.EXCLUSIVE:
            return _symbol(_CROSS, center, size, _FILLED) if marker_is_visible else ""
        case GatewayKind.PARALLEL:
            return _symbol(_PLUS, center, size, _FILLED)
        case GatewayKind.INCLUSIVE:
            return _symbol(_RING, center, size, "symbol thick")
        case GatewayKind.COMPLEX:
            return _symbol(_STAR, center, size, "symbol thick")
        case GatewayKind.EVENT_BASED:
            rings = [_symbol(_RING, center, size * 1.25)]
            if not gateway.instantiate:
                rings.append(_symbol(_RING, center, size * 1.05))
            return "".join((*rings, _symbol(_PENTAGON, center, size * 0.62)))
    assert_never(gateway.kind)


_TASK_MARKS = {
    TaskKind.SERVICE: (_GEAR, _OUTLINED),
    TaskKind.SEND: (_ENVELOPE_FILLED, _FILLED),
    TaskKind.RECEIVE: (_ENVELOPE, _OUTLINED),
    TaskKind.USER: (_PERSON, _OUTLINED),
    TaskKind.MANUAL: (_HAND, _OUTLINED),
    TaskKind.SCRIPT: (_SCRIPT, _OUTLINED),
    TaskKind.BUSINESS_RULE: (_TABLE, _OUTLINED),
}


def task_symbol(task: Task, center: Point, size: float) -> str:
    """What kind of task it is, for the upper left corner."""
    mark = _TASK_MARKS.get(task.kind)
    return "" if mark is None else _symbol(mark[0], center, size, mark[1])


def bottom_markers(activity: Activity, middle: Point, size: float, *, is_collapsed: bool) -> str:
    """What stands in the middle of an activity's lower edge."""
    marks: list[tuple[str, str]] = []
    if activity.loop is not None:
        loop = activity.loop
        data = _LOOP if not loop.multi_instance else _SEQUENTIAL if loop.sequential else _PARALLEL
        marks.append((data, "symbol thick"))
    if activity.is_for_compensation:
        marks.append((_REWIND, _OUTLINED))
    if is_collapsed:
        marks.append((_COLLAPSED, _OUTLINED))
    if isinstance(activity, SubProcess) and activity.kind is SubProcessKind.AD_HOC:
        marks.append((_TILDE, "symbol thick"))
    gap = size * 1.3
    left = middle.x - gap * (len(marks) - 1) / 2
    drawn = [
        _symbol(data, Point(left + gap * place, middle.y), size, class_) for place, (data, class_) in enumerate(marks)
    ]
    return tag("g", "".join(drawn)) if drawn else ""
