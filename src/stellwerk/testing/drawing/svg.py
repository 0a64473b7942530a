"""Elements of SVG as text, and how much room a text takes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stellwerk.testing.drawing.geometry import Bounds, Point

__all__ = ["circle", "escaped", "group", "line", "number", "path", "polygon", "rectangle", "tag", "text_block", "title"]

_CHARACTER_WIDTH = 0.56
"""Of an average letter of a sans-serif font, in its size."""
_LINE_HEIGHT = 1.2
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BREAKS = re.compile(r"(?<=[-_/.,])|(?<=[a-z])(?=[A-Z])")
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


def escaped(text: str) -> str:
    """For character data and attribute values alike."""
    return _NOT_IN_XML.sub("\ufffd", text).translate(_ESCAPES)


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, content: str = "", **attributes: str | float | None) -> str:
    """An element around `content`, which is SVG. In attributes' names ``_`` at the end is dropped, else a hyphen."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(number(value) if isinstance(value, float | int) else value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def title(text: str) -> str:
    """What a browser shows when the mouse rests there."""
    return f"<title>{escaped(text)}</title>"


def group(content: Iterable[str], **attributes: str | float | None) -> str:
    return tag("g", "\n".join(content), **attributes)


def rectangle(bounds: Bounds, *, radius: float = 0, class_: str | None = None) -> str:
    rounded = radius or None
    return tag(
        "rect", x=bounds.x, y=bounds.y, width=bounds.width, height=bounds.height, rx=rounded, ry=rounded, class_=class_
    )


def circle(center: Point, radius: float, *, class_: str | None = None) -> str:
    return tag("circle", cx=center.x, cy=center.y, r=radius, class_=class_)


def polygon(points: Iterable[Point], *, class_: str | None = None) -> str:
    return tag("polygon", points=" ".join(_pair(point) for point in points), class_=class_)


def line(points: Iterable[Point], *, class_: str | None = None) -> str:
    return tag("polyline", points=" ".join(_pair(point) for point in points), class_=class_)


def path(data: str, *, class_: str | None = None, transform: str | None = None) -> str:
    return tag("path", d=data, class_=class_, transform=transform)


def _pair(point: Point) -> str:
    return f"{number(point.x)},{number(point.y)}"


def wrapped(text: str, width: float, size: float, lines_max: int) -> list[str]:
    """The text in lines of at most about `width`; what does not fit ends in an ellipsis."""
    characters = max(3, int(width / (size * _CHARACTER_WIDTH)))
    lines = [""]
    for word in text.split():
        for piece in _pieces(word, characters):
            joined = f"{lines[-1]} {piece.text}" if piece.starts_word and lines[-1] else lines[-1] + piece.text
            if len(joined) <= characters:
                lines[-1] = joined
            else:
                lines.append(piece.text)
    lines = [found for found in lines if found]
    if len(lines) > lines_max:
        lines = [*lines[: lines_max - 1], lines[lines_max - 1][: characters - 1] + "…"]
    return lines


class _Piece:
    __slots__ = ("starts_word", "text")

    def __init__(self, text: str, *, starts_word: bool) -> None:
        self.text = text
        self.starts_word = starts_word


def _pieces(word: str, characters: int) -> list[_Piece]:
    """A word that is too long is broken: after punctuation, before capitals, at last anywhere."""
    if len(word) <= characters:
        return [_Piece(word, starts_word=True)]
    parts = [
        part[start : start + characters] for part in _BREAKS.split(word) for start in range(0, len(part), characters)
    ]
    return [_Piece(part, starts_word=place == 0) for place, part in enumerate(parts)]


def text_block(
    text: str,
    center: Point,
    width: float,
    *,
    size: float = 12,
    lines_max: int = 6,
    from_top: bool = False,
    class_: str | None = None,
    transform: str | None = None,
    with_halo: bool = False,
) -> str:
    """Lines that are centred at `center`, or begin there (``from_top``). With a halo they can be read over lines."""
    lines = wrapped(text, width, size, lines_max)
    height = size * _LINE_HEIGHT
    top = center.y if from_top else center.y - height * len(lines) / 2
    spans = "".join(
        f'<tspan x="{number(center.x)}" y="{number(top + height * (place + 0.8))}">{escaped(found)}</tspan>'
        for place, found in enumerate(lines)
    )
    if not spans:
        return ""
    # Not by paint-order, which many renderers do not know.
    halo = tag("text", spans, class_="halo", transform=transform, font_size=size) if with_halo else ""
    return halo + tag("text", spans, class_=class_, transform=transform, font_size=size)
