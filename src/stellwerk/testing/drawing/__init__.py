"""Drawings of BPMN processes as SVG (`draw_process`)."""

from stellwerk.testing.drawing.picture import draw_process
from stellwerk.testing.drawing.visits import Visits, is_compensation_boundary

__all__ = ["Visits", "draw_process", "is_compensation_boundary"]
