"""Drawings of BPMN processes as SVG (`draw_process`)."""

from stellwerk.testing.drawing.picture import draw_process
from stellwerk.testing.drawing.visits import Visits

__all__ = ["Visits", "draw_process"]
