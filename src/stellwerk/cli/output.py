"""Output: plain lines, tables and JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stellwerk.cli.layout import Column, Table, one_line, wrapped
from stellwerk.cli.shortening import brief_instant, short_instant

__all__ = [
    "LEASE_COLUMNS",
    "SPAN_COLUMNS",
    "Column",
    "brief_instant",
    "counted",
    "incident_lines",
    "one_line",
    "print_json",
    "print_table",
    "print_variables",
    "say",
    "say_wrapped",
    "short_instant",
    "span",
    "user_task_lines",
    "wait_text",
    "warn",
    "warn_of_more",
    "width",
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


def width() -> int | None:
    """Columns of the terminal; None where neither a terminal nor COLUMNS says how wide it is."""
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return shutil.get_terminal_size().columns if is_known else None


def say_wrapped(line: str, hanging: str = "  ") -> None:
    """In lines of the terminal's width; in one where output goes to a pipe or file."""
    for piece in wrapped(line, width(), hanging):
        say(piece)


def print_table(title: str, columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> None:
    """A table under its title, in the width that there is; says so where there are no rows."""
    cells = list(rows)
    if not cells:
        say_wrapped(f"{title}: none")
        return
    room = width() or _PIPE_WIDTH
    shaped = [Column(column) if isinstance(column, str) else column for column in columns]
    table = Table.of(shaped, cells, room)
    heading, lines = table.lines(room)
    say_wrapped(f"{title} (ids shortened)" if table.is_cut else title)
    for line in heading:
        say(_drawn(line))
    for line in lines:
        say(line)
    say("")


def _drawn(line: str) -> str:
    """With hyphens for a rule where the encoding has nothing better."""
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return line.replace("─", "-")
    return line


def print_variables(variables: Mapping[str, Any], title: str = "Variables") -> None:
    from stellwerk.json_values import dumps

    rows = [(name, dumps(value).decode()) for name, value in sorted(variables.items())]
    print_table(title, ("name", "value"), rows)


def incident_lines(row: Mapping[str, Any], *, with_instance: bool = False) -> list[str]:
    """An open incident, and the way out."""
    since = f", since {short_instant(row['opened_at'])} UTC"
    what = f"incident {row['incident_id']} at {row['element_id']} ({row['kind']}{since}): {row['message']}"
    return [
        *wrapped(one_line(what), width(), "  "),
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
        *wrapped(one_line(f"user task {row['user_task_id']}: {name}"), width(), "  "),
        *(
            line
            for label, value in details.items()
            if value
            for line in wrapped(one_line(f"  {label:<9} {value}"), width(), " " * 10)
        ),
    ]


SPAN_COLUMNS = (Column("from (UTC)", "instant"), Column("to", "whole"))
"""For what `span` gives."""
LEASE_COLUMNS = (Column("fence", "whole"), Column("worker", "worker"), *SPAN_COLUMNS, Column("end", may_go_below=True))


def wait_text(wait: Mapping[str, Any]) -> str:
    """Of a message its name and key, of a timer when it is due."""
    if wait["due_at"] is not None:
        return f"due {short_instant(wait['due_at'])}"
    name = wait["name"] or ""
    return f"{name}, key {wait['key']}" if wait["key"] else name


def span(since: str, until: str | None) -> tuple[str, str]:
    """From when to when, without the date of the end where it is the same."""
    start, end = short_instant(since), short_instant(until)
    return start, end.removeprefix(start[: len("2026-01-01 ")])
