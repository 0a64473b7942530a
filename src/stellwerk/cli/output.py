"""Output: plain lines and JSON, and tables through rich."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "console",
    "counted",
    "incident_lines",
    "print_json",
    "print_table",
    "print_variables",
    "say",
    "short_instant",
    "span",
    "user_task_lines",
    "warn",
    "warn_of_more",
]

_PIPE_WIDTH = 240
"""Columns where neither a terminal nor COLUMNS says how wide it is: little is folded in a pipe or file."""


def say(line: str) -> None:
    print(line, flush=True)


def warn(line: str) -> None:
    """On standard error; where that is closed or full there is nobody to tell."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def warn_of_more(last_id: str) -> None:
    warn(f"there are more; see them with --after {last_id}")


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def print_json(value: object) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    say(text)


def console() -> Console:
    from rich.console import Console

    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    width = None if is_known else _PIPE_WIDTH
    # By name, so that its encoding counts.
    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False, width=width)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, whole: Collection[str] = ()
) -> None:
    """A table under its title, as wide as there is room; says so where there are no rows.

    :param whole: columns that are folded last: ids must be easy to copy.
    """
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    headers = [Column(name, no_wrap=name in whole, overflow="fold") for name in columns]
    table = Table(*headers, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell), overflow="fold") for cell in row))
    say(title if table.row_count else f"{title}: none")
    if table.row_count:
        console().print(table)
        say("")


def print_variables(variables: Mapping[str, Any], title: str = "Variables") -> None:
    from stellwerk.json_values import dumps

    rows = [(name, dumps(value).decode()) for name, value in sorted(variables.items())]
    print_table(title, ("name", "value"), rows)


def incident_lines(row: Mapping[str, Any], *, with_instance: bool = False) -> list[str]:
    """An open incident, and the way out."""
    since = f", since {short_instant(row['opened_at'])} UTC"
    return [
        f"incident {row['incident_id']} at {row['element_id']} ({row['kind']}{since}): {row['message']}",
        *([f"  instance {row['instance_id']}"] if with_instance else []),
        f"  resolve with: stellwerk resolve {row['incident_id']}",
    ]


def user_task_lines(row: Mapping[str, Any], *, with_instance: bool = False) -> list[str]:
    """An open user task: who may do it, with what and until when."""
    name = f"{row['name']} ({row['element_id']})" if row["name"] else row["element_id"]
    details = {
        "instance": row["instance_id"] if with_instance else None,
        "assignee": row["assignee"],
        "users": ", ".join(row["candidate_users"]),
        "groups": ", ".join(row["candidate_groups"]),
        "form": row["form"],
        "due": row["due_at"],
        "since": f"{short_instant(row['created_at'])} UTC",
    }
    return [
        f"user task {row['user_task_id']}: {name}",
        *(f"  {label:<9} {value}" for label, value in details.items() if value),
    ]


def short_instant(instant: str | None) -> str:
    """``2026-01-01T10:20:30.123Z`` → ``2026-01-01 10:20:30.123``."""
    return "" if instant is None else instant.rstrip("Z").replace("T", " ")


def span(since: str, until: str | None) -> tuple[str, str]:
    """From when to when, without the date of the end where it is the same."""
    start, end = short_instant(since), short_instant(until)
    return start, end.removeprefix(start[: len("2026-01-01 ")])
