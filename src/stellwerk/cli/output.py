"""Output: plain lines and JSON, and tables through rich."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "print_json", "print_table", "reason_of_end", "say", "short_instant", "warn"]

_PIPE_WIDTH = 240
"""Columns where no terminal says how wide it is: nothing is cut off in a pipe or file."""


def say(line: str) -> None:
    print(line, flush=True)


def warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    say(json.dumps(value, indent=2, ensure_ascii=False))


def console() -> Console:
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table under its title; says so where there are no rows."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell), overflow="fold") for cell in row))
    say(title if table.row_count else f"{title}: none")
    if table.row_count:
        console().print(table)
        say("")


def reason_of_end(view: Mapping[str, Any]) -> str | None:
    """Why an instance, shown whole, failed or was cancelled; None when it did not."""
    facts = [fact for step in view["history"] for fact in step["facts"]]
    match facts[-1] if facts else {}:
        case {"fact": "InstanceFailed", "code": code, "message": message}:
            return f"{code}: {message}"
        case {"fact": "InstanceCancelled", "reason": reason}:
            return str(reason)
        case _:
            return None


def short_instant(instant: str | None) -> str:
    """``2026-01-01T10:20:30.123Z`` → ``2026-01-01 10:20:30.123``."""
    return "" if instant is None else instant.rstrip("Z").replace("T", " ")
