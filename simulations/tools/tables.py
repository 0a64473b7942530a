"""The tables of the documentation that list what the simulations have: faults, workloads, invariants, and what must
happen now and then. They are drawn from the code, and a test compares them with the page::

    python -m simulations.tools.tables docs/simulation.md
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from string import Formatter

from simulations.checks.invariants import INVARIANTS
from simulations.checks.sometimes import SOMETIMES
from simulations.plans.faults import FAULTS
from simulations.tools.writing import plain, write_part
from simulations.workloads.base import Workload
from simulations.workloads.registry import WORKLOADS

__all__ = ["TABLES", "faults", "invariants", "sometimes", "workloads"]


def faults() -> str:
    """The hosts of a fault are called A and B, its duration t, its amount x."""
    rows = [
        (
            f"`{kind}`",
            plain(_Letters().format(fault.text)),
            f"{fault.often:g}",
            "both" if len(fault.backends) > 1 else fault.backends[0],
        )
        for kind, fault in FAULTS.items()
    ]
    return _table(("kind", "what happens", "in 30 s, on average", "store"), rows)


class _Letters(Formatter):
    """Puts letters where a plan has values."""

    _NAMES: Mapping[str, str] = {
        "host": "*A*",
        "other": "*B*",
        "seconds": "*t*",
        "amount": "*x*",
        "between": "between",
        "and_to": "and",
    }

    def get_value(self, key: int | str, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        return self._NAMES[str(key)]

    def format_field(self, value: object, format_spec: str) -> str:
        return f"{value} %" if format_spec.endswith("%") else str(value)


def workloads() -> str:
    """What the attributes' own docstrings say, before and after ``Promise:``."""
    rows = []
    for workload in WORKLOADS.values():
        what, _, promise = _described(workload).partition("Promise:")
        if not promise.strip():
            raise ValueError(f"the docstring of workload {workload.name} tells no promise")
        rows.append((f"`{workload.name}`", _cell(what), _cell(promise)))
    return _table(("workload", "what it is", "what must come out"), rows)


def _cell(text: str) -> str:
    """Workloads are called as in plans, not by their constants' names."""
    return plain(re.sub(r"`[A-Z_]+`", lambda match: match[0].lower(), text))


def _described(workload: Workload) -> str:
    module = import_module(workload.judge.__module__)
    names = [name for name, value in vars(module).items() if value is workload]
    path = Path(module.__file__ or "")
    return next(text for name, text in _attribute_docstrings(path) if name in names)


def _attribute_docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Strings below assignments, as Sphinx reads them."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for pair in pairwise(body):
        match pair:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, text
            case _:
                pass


def invariants() -> str:
    return _table(("", "what always holds"), ((name, plain(text)) for name, text in INVARIANTS.items()))


def sometimes() -> str:
    rows = ((one.name, plain(one.why), one.reporter) for one in SOMETIMES.values())
    return _table(("what happens", "why it must", "seen by"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


TABLES: Mapping[str, Callable[[], str]] = {
    function.__name__: function for function in (faults, workloads, invariants, sometimes)
}
"""By the mark under which they stand in the page."""


if __name__ == "__main__":
    for mark, draw in TABLES.items():
        write_part(Path(sys.argv[1]), mark, draw())
