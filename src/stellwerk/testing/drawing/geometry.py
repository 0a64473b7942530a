"""Points and rectangles of a diagram, in its own units (pixels at normal size); y grows downwards."""

from __future__ import annotations

from collections.abc import Iterable

from stellwerk.values import frozen

__all__ = ["Bounds", "Point", "around"]


@frozen
class Point:
    x: float
    y: float

    def moved(self, dx: float, dy: float) -> Point:
        return Point(self.x + dx, self.y + dy)


@frozen
class Bounds:
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def center(self) -> Point:
        return Point(self.x + self.width / 2, self.y + self.height / 2)

    @property
    def corners(self) -> tuple[Point, Point]:
        return Point(self.x, self.y), Point(self.right, self.bottom)

    def moved(self, dx: float, dy: float) -> Bounds:
        return Bounds(self.x + dx, self.y + dy, self.width, self.height)

    def grown(self, margin: float) -> Bounds:
        return Bounds(self.x - margin, self.y - margin, self.width + 2 * margin, self.height + 2 * margin)

    def border_towards(self, point: Point) -> Point:
        """Where the line from the centre to `point` leaves the rectangle."""
        center = self.center
        dx, dy = point.x - center.x, point.y - center.y
        if dx == 0 and dy == 0:
            return center
        scale = min(
            self.width / 2 / abs(dx) if dx else float("inf"),
            self.height / 2 / abs(dy) if dy else float("inf"),
        )
        return center.moved(dx * scale, dy * scale)


def around(points: Iterable[Point]) -> Bounds:
    """The smallest rectangle around all of them."""
    given = list(points)
    if not given:
        return Bounds(0, 0, 0, 0)
    left, top = min(point.x for point in given), min(point.y for point in given)
    right, bottom = max(point.x for point in given), max(point.y for point in given)
    return Bounds(left, top, right - left, bottom - top)
