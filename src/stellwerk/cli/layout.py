"""Text in the width that there is: tables that stay readable when it is little, and lines that go on indented."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Literal, TypeAlias

import attrs

from stellwerk.cli.shortening import beginnings, endings, times_of_day, without_uuids

__all__ = ["Column", "Kind", "Table", "one_line", "wrapped"]

Kind: TypeAlias = Literal["text", "whole", "instant", "worker", "id", "inner id"]
"""What may be done to a column where there is little room: text is wrapped; the others are shortened if need be, and
never wrapped. Ids are cut to unique beginnings, which commands take; inner ids, which none takes, to unique endings."""

_SHORTENINGS: tuple[tuple[Kind, Callable[[str, Sequence[str]], tuple[str, list[str]]]], ...] = (
    ("instant", times_of_day),
    ("worker", without_uuids),
    ("inner id", endings),
    ("id", beginnings),
)
"""In the order in which they are tried, one after the other until the table fits."""

_GAPS = (3, 2)
"""Between columns: the wider one where there is room for it."""
_INDENT = "  "
_BELOW = "    "
_BELOW_CHARS_MIN = 32
"""A column that may go below its rows does so rather than be narrower (and wrapped) than this."""
_BESIDE_CHARS_MIN = 8
"""Of what may go below, as much stays beside its row as there is room for, but in no narrower a room."""
_RUN_CHARS_MAX = 30
"""Longer runs of letters may be broken."""
_RUN = re.compile(r"[^\W_]*[\W_]?(?<! )")
_INDENTED_CHARS_MIN = 8
"""Where less than this would be left of a line, what goes on is not indented."""


# --- lines ---------------------------------------------------------------------------------------------------------


def one_line(text: str) -> str:
    """Line breaks as ``↵``, other control characters as escapes; what it begins with stays indented."""
    first, *others = text.splitlines() or [""]
    lines = [first.rstrip(), *(line.strip() for line in others)]
    return "".join(map(_shown, " ↵ ".join([lines[0], *(line for line in lines[1:] if line)])))


def _shown(character: str) -> str:
    if character == "\t":
        return " "
    if unicodedata.category(character) in ("Cc", "Cs"):
        return character.encode("unicode_escape").decode()
    return character


def wrapped(text: str, width: int | None, hanging: str = "") -> list[str]:
    """The text in lines of at most `width` (None: in one). Further lines are indented as the first, and by `hanging`.

    Breaks at spaces; within a word only if it is longer than a line, and then behind what is no letter if there is.
    """
    indent = text[: len(text) - len(text.lstrip(" "))] + hanging
    if width is None or len(indent) + _INDENTED_CHARS_MIN > width:
        indent = ""
    lines: list[str] = []
    rest, lead = text, ""
    while width is not None and _cells(rest) > width - len(lead):
        at = _break(rest, max(1, width - len(lead)))
        lines.append(lead + rest[:at].rstrip())
        rest = rest[at:].lstrip(" ")
        lead = indent
    return [*lines, lead + rest] if rest or not lines else lines


def _break(text: str, room: int) -> int:
    """Where to break a text that is wider than `room`."""
    most = _chars_within(text, room)
    begin = len(text) - len(text.lstrip(" "))
    space = text.rfind(" ", begin + 1, most + 1)
    behind = text[space + 1 :].split(" ", 1)[0] if space > 0 else text
    if space > 0 and _cells(behind) <= room:
        return space
    for at in range(most, max(begin, space) + 1, -1):
        if not text[at - 1].isalnum():
            return at
    return space if space > 0 else most


def _chars_within(text: str, room: int) -> int:
    if text[:room].isascii():
        return min(room, len(text))
    chars = used = 0
    while chars < len(text) and (used := used + _cells(text[chars])) <= room:
        chars += 1
    return max(1, chars)


def _cells(text: str) -> int:
    """Columns of the terminal: some characters take two, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


# --- tables --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Column:
    name: str
    kind: Kind = "text"
    may_go_below: bool = False
    """Of the last one: what is too wide beside its row stands below it instead. It may speak of workers."""
    cells: Sequence[str] = ()

    @property
    def natural(self) -> int:
        return max(map(_cells, (self.name, *self.cells)))

    @property
    def least(self) -> int:
        """The narrowest that breaks no run of letters."""
        heading = max(map(_cells, self.name.split()), default=0)
        if self.kind != "text":
            return max([heading, *map(_cells, self.cells)])
        return max(heading, min(max(map(_longest_run, self.cells), default=0), _RUN_CHARS_MAX))

    @property
    def is_empty(self) -> bool:
        return not any(self.cells)


def _longest_run(text: str) -> int:
    """Of letters and digits, with what stands behind them."""
    indent = len(text) - len(text.lstrip(" "))
    return indent + max(map(_cells, _RUN.findall(text)), default=0)


@attrs.frozen
class Table:
    """Columns as they are printed."""

    columns: Sequence[Column]
    last: Column | None = None
    """The one that goes below."""
    is_cut: bool = False
    """Ids are not whole."""

    @classmethod
    def of(cls, columns: Sequence[Column], rows: Sequence[Sequence[object]], width: int) -> Table:
        """As much of everything as there is room for."""
        cells = [[one_line("" if cell is None else str(cell)) for cell in row] for row in rows]
        filled = [attrs.evolve(column, cells=[row[at] for row in cells]) for at, column in enumerate(columns)]
        if _width_of(filled) <= width:
            return cls(filled)
        filled = [column for column in filled if not column.is_empty]
        shown, is_cut = _shortened(filled, width)
        *others, last = shown
        if last.may_go_below and others:
            beside = width - _width_of(others) - _GAPS[-1]
            if beside < min(last.natural, _BELOW_CHARS_MIN):
                return cls(others, last, is_cut)
        return cls(shown, None, is_cut)

    def lines(self, width: int) -> tuple[list[str], list[str]]:
        """Of the heading, and of the rows."""
        if _width_of(self.columns, least=True) > width:
            return [], self._records(width)
        widths, gap = _widths(self.columns, width, _GAPS if self.last is None else _GAPS[-1:])
        taken = sum(widths) + gap * len(widths)
        heading = self._row([column.name for column in self.columns], widths, gap)
        if self.last is not None:
            heading = _with_last(heading, self.last.name, taken, width)
        lines: list[str] = []
        for at in range(len(self.columns[0].cells)):
            row = self._row([column.cells[at] for column in self.columns], widths, gap)
            lines += row if self.last is None else _with_last(row, self.last.cells[at], taken, width)
        longest = taken - gap if self.last is None else width
        return [*heading, "─" * longest], lines

    @staticmethod
    def _row(cells: Sequence[str], widths: Sequence[int], gap: int) -> list[str]:
        columns = [wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
        return [
            (" " * gap).join(_padded(piece, width) for piece, width in zip(pieces, widths, strict=True)).rstrip()
            for pieces in zip_longest(*columns, fillvalue="")
        ]

    def _records(self, width: int) -> list[str]:
        """For a very narrow terminal: each cell on a line of its own."""
        first, *others = [*self.columns, *([self.last] if self.last is not None else [])]
        lines: list[str] = []
        for at, cell in enumerate(first.cells):
            lines += wrapped(cell, width, _INDENT)
            for column in others:
                if column.cells[at]:
                    label = f"{column.name}: " if column.name else ""
                    lines += wrapped(f"{_INDENT}{label}{column.cells[at].strip()}", width, _INDENT)
        return lines


def _shortened(columns: Sequence[Column], width: int) -> tuple[list[Column], bool]:
    is_cut = False
    shown = list(columns)
    for kind, shorten in _SHORTENINGS:
        if _width_of(shown) <= width:
            break
        for at, column in enumerate(shown):
            if column.kind == kind or (kind == "worker" and column.may_go_below):
                name, cells = shorten(column.name, column.cells)
                is_cut = is_cut or ("id" in kind and cells != column.cells)
                shown[at] = attrs.evolve(column, name=name, cells=cells)
    return shown, is_cut


def _width_of(columns: Sequence[Column], *, least: bool = False) -> int:
    return sum(column.least if least else column.natural for column in columns) + _GAPS[-1] * (len(columns) - 1)


def _widths(columns: Sequence[Column], width: int, gaps: Sequence[int]) -> tuple[list[int], int]:
    """Of each column, and of the gap: the widest columns give way first."""
    widths = [min(column.natural, width) for column in columns]
    least = [column.least for column in columns]
    for gap in gaps:
        if sum(widths) + gap * (len(columns) - 1) <= width:
            return widths, gap
    while sum(widths) + gaps[-1] * (len(columns) - 1) > width:
        at = max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))
        widths[at] -= 1
    return widths, gaps[-1]


def _with_last(row: list[str], cell: str, taken: int, width: int) -> list[str]:
    """The row's lines with the last column's cell beside them, or below where that is too narrow."""
    if not cell:
        return row
    if width - taken >= max(_BESIDE_CHARS_MIN, _cells(cell)):
        return [_padded(row[0], taken) + cell, *row[1:]]
    indent = row[0][: len(row[0]) - len(row[0].lstrip(" "))]
    return [*row, *wrapped(f"{indent}{_BELOW}{cell}", width)]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _cells(text))
