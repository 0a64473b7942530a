"""How far long work is: a bar on standard error where that is a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

__all__ = ["Report", "progress"]

Report: TypeAlias = Callable[[float, float | None], None]
"""Takes how much is done, and of how much where that is known."""


@contextmanager
def progress(what: str, *, is_bytes: bool = False) -> Iterator[Report]:
    """:param is_bytes: what is counted are bytes, to be shown as such."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _nothing
        return
    from rich import progress as bars
    from rich.console import Console

    counter = bars.DownloadColumn() if is_bytes else bars.MofNCompleteColumn()
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), counter, bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=Console(file=sys.stderr), transient=True) as shown:
        task = shown.add_task(what, total=None)

        def report(done: float, total: float | None) -> None:
            shown.update(task, completed=done, total=total)

        yield report


def _nothing(_done: float, _total: float | None) -> None:
    return
