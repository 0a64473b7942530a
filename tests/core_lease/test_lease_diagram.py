"""The page about a task's life is drawn from the table."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_page_equals_what_is_drawn_now() -> None:
    drawing = runpy.run_path(str(DOCS / "draw_lease_diagram.py"))
    text = (DOCS / "task-life.md").read_text(encoding="utf-8")
    assert drawing["page"](text) == text
