"""Shorter forms of what is long in tables: ids, workers' default names, points in time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["beginnings", "brief_instant", "endings", "short_ids", "short_instant", "times_of_day", "without_uuids"]

_UUID: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_WORKER: Final = re.compile(r"-([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
"""What the SDK puts behind the name of the machine."""
_BEGINNING_CHARS_MIN: Final = 13
"""Of a UUID of version 7: the millisecond in which it was made."""
_ENDING_CHARS_MIN: Final = 4
_UUID_CHARS: Final = 36
_DATE_CHARS: Final = len("2026-01-31 ")
_DATED: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:")


def short_instant(instant: str | None) -> str:
    """``2026-01-01T10:20:30.123Z`` → ``2026-01-01 10:20:30.123``."""
    return "" if instant is None else instant.rstrip("Z").replace("T", " ")


def brief_instant(instant: str) -> str:
    """To the second, and without the date if that is today's (UTC, by this machine's clock)."""
    return short_instant(instant)[:19].removeprefix(_today())


def _today() -> str:
    return time.strftime("%Y-%m-%d ", time.gmtime())


# --- columns: their names and cells ----------------------------------------------------------------------------------


def times_of_day(name: str, cells: Sequence[str]) -> tuple[str, list[str]]:
    """Without today's date; where all have the same other date, it goes into the heading."""
    today = _today()
    dates = {cell[:_DATE_CHARS] for cell in cells if cell}
    if len(dates) == 1 and dates != {today} and all(_DATED.match(cell) for cell in cells if cell):
        date = dates.pop()
        return f"{date}{name}", [cell.removeprefix(date) for cell in cells]
    return name, [cell.removeprefix(today) for cell in cells]


def without_uuids(name: str, cells: Sequence[str]) -> tuple[str, list[str]]:
    """Workers' default names by the beginning of the UUID in them: ``till-7-3f2b9c1d``."""
    shorter = [_WORKER.sub(r"-\1", cell) for cell in cells]
    is_unique = len(set(shorter)) == len(set(cells))
    return name, shorter if is_unique else list(cells)


def beginnings(name: str, cells: Sequence[str]) -> tuple[str, list[str]]:
    """As much of each id as makes it different from the others here."""
    ids = set(cells)
    chars = _BEGINNING_CHARS_MIN
    while chars < _UUID_CHARS and len({found[:chars].rstrip("-") for found in ids}) < len(ids):
        chars += 1
    return name, [cell[:chars].rstrip("-") if _UUID.fullmatch(cell) else cell for cell in cells]


def endings(name: str, cells: Sequence[str]) -> tuple[str, list[str]]:
    """As much of each id's end as makes it different from the others here: ``…83e5``."""
    chars = _ending_chars(cells)
    return name, [f"…{cell[-chars:]}" if _UUID.fullmatch(cell) else cell for cell in cells]


# --- texts -----------------------------------------------------------------------------------------------------------


def short_ids(texts: Sequence[str]) -> list[str]:
    """Ids in texts by as much of their ends as makes them different from the others in these texts."""
    chars = _ending_chars({found for text in texts for found in _UUID.findall(text)})
    return [_UUID.sub(lambda found: f"…{found[0][-chars:]}", text) for text in texts]


def _ending_chars(ids: Iterable[str]) -> int:
    distinct = set(ids)
    chars = _ENDING_CHARS_MIN
    while chars < _UUID_CHARS and len({found[-chars:] for found in distinct}) < len(distinct):
        chars += 1
    return chars
