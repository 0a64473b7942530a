"""Values on their way into statements that read: numbered places, and texts that PostgreSQL cannot hold."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["Parameters", "findable", "least_after", "where"]

_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
"""PostgreSQL keeps no NUL character, and UTF-8 no lone surrogate."""


def findable(text: str | None) -> str | None:
    """None in place of what can be in no row: no comparison with NULL is true."""
    return None if text is None or _NOT_STORABLE.search(text) else text


def least_after(text: str) -> str:
    """Of all texts that a row can hold, the first one behind `text` in byte order: to be compared with ``>=``."""
    hole = _NOT_STORABLE.search(text)
    if hole is None:
        return f"{text}\x01"
    return text[: hole.start()] + ("\x01" if hole.group() == "\x00" else "\ue000")


class Parameters(list[object]):
    """The values of a statement that is put together from parts."""

    def add(self, value: object) -> str:
        """→ its place, ``$1`` for the first."""
        self.append(findable(value) if isinstance(value, str) else value)
        return f"${len(self)}"


def where(conditions: Iterable[str]) -> str:
    joined = " AND ".join(conditions)
    return f" WHERE {joined}" if joined else ""
