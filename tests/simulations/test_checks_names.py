"""Names under which checkers report: each is in its list, and nothing is in a list that nobody reports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from simulations.checks.invariants import INVARIANTS
from simulations.checks.sometimes import SOMETIMES

SOURCES = Path(__file__).parents[2] / "simulations"
ELSEWHERE = {"V1", "V2", "V3", "W"}
"""Of the harness itself: progress, and what workloads expect."""


def texts(folder: Path) -> Iterator[str]:
    """All string literals as patterns: what an f-string fills in may be anything."""
    for path in sorted(folder.rglob("*.py")):
        if path.name in ("sometimes.py", "invariants.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.escape(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in node.values]
                yield "".join(parts)


def test_everything_that_must_happen_now_and_then_has_somebody_who_reports_it() -> None:
    patterns = [pattern for pattern in set(texts(SOURCES)) if pattern.strip(".+")]
    known = re.compile("|".join(f"(?:{pattern})" for pattern in patterns if len(pattern) < 200))
    assert [name for name in SOMETIMES if known.fullmatch(name) is None] == []


def test_every_invariant_that_a_checker_names_is_explained() -> None:
    named = {text for text in texts(SOURCES / "checks") if re.fullmatch(r"[A-Z][0-9]", text)}
    assert named - INVARIANTS.keys() == set()
    assert INVARIANTS.keys() - named - ELSEWHERE == {"P0", "P1", "P2", "P3", "P4"}
