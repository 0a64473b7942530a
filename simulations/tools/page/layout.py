"""Where each shape stands: lanes get their height, bars that overlap lie one above the other, seconds become pixels."""

from __future__ import annotations

from collections.abc import Sequence

from simulations.tools.page.shapes import Bar, Lane, Story
from stellwerk.values import frozen

__all__ = ["LABEL_WIDTH", "STRIP_HEIGHT", "TOP", "WIDTH", "Layout", "Row", "layout_of", "ticks"]

WIDTH = 1216
LABEL_WIDTH = 128
RIGHT = 16
TOP = 34
BOTTOM = 26
STRIP_HEIGHT = 13
_LANE_HEIGHT = {"host": 30, "instance": 36, "task": 44}
_STRIP_CHARS_WIDTH = 5.6
"""Pixels of a letter in the label of a bar, roughly: labels must not lie over each other."""
_TICKS_MAX = 12
_STEPS = (1, 2, 5)


@frozen
class Row:
    lane: Lane
    top: float
    height: float
    line: float
    """Where the lane's line is; strips of faults lie above it."""


@frozen
class Layout:
    start: float
    end: float
    rows: dict[str, Row]
    strips: dict[Bar, int]
    """Bars of faults, to the level at which they lie; 0 is next to the line."""
    height: float

    def x(self, at: float) -> float:
        within = min(max(at, self.start), self.end)
        return LABEL_WIDTH + (WIDTH - LABEL_WIDTH - RIGHT) * (within - self.start) / (self.end - self.start)


def layout_of(story: Story) -> Layout:
    scale = (WIDTH - LABEL_WIDTH - RIGHT) / (story.end - story.start)
    rows: dict[str, Row] = {}
    strips: dict[Bar, int] = {}
    top = float(TOP)
    for lane in story.lanes:
        own = [bar for bar in story.bars if bar.lane == lane.name and not bar.is_state]
        levels = _levels(own, scale, story.start)
        strips.update(levels)
        above = STRIP_HEIGHT * (1 + max(levels.values(), default=-1))
        height = _LANE_HEIGHT[lane.kind] + above
        rows[lane.name] = Row(lane, top, height, top + above + _LANE_HEIGHT[lane.kind] / 2)
        top += height
    return Layout(story.start, story.end, rows, strips, top + BOTTOM)


def _levels(bars: Sequence[Bar], scale: float, start: float) -> dict[Bar, int]:
    """The lowest level at which a bar and its label are free."""
    taken: list[float] = []
    levels = {}
    for bar in sorted(bars, key=lambda bar: bar.start):
        begin = max(bar.start, start) * scale
        end = max(bar.end * scale, begin + len(bar.label) * _STRIP_CHARS_WIDTH + 6)
        level = next((level for level, until in enumerate(taken) if until <= begin), len(taken))
        taken[level : level + 1] = [end]
        levels[bar] = level
    return levels


def ticks(start: float, end: float) -> list[tuple[float, str]]:
    """Round instants, a dozen at most."""
    exponent = -6
    while True:
        for step in _STEPS:
            size = step * 10.0**exponent
            if (end - start) / size <= _TICKS_MAX:
                decimals = max(0, -exponent)
                first = int(start / size) + 1
                return [
                    (round(number * size, 6), f"{number * size:.{decimals}f} s")
                    for number in range(first, int(end / size) + 1)
                ]
        exponent += 1
