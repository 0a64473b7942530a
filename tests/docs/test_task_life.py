"""The picture of a task's life shows the transition table."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path

from stellwerk.core.lease import TRANSITIONS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_picture_equals_what_is_drawn_now() -> None:
    drawing = runpy.run_path(str(DOCS / "draw_lease_diagram.py"))
    committed = (DOCS / "_static/task-life.svg").read_text(encoding="utf-8")
    assert committed == drawing["picture"](), "drawn anew by: python docs/draw_lease_diagram.py"


def test_the_picture_has_every_state_and_every_transition() -> None:
    picture = (DOCS / "_static/task-life.svg").read_text(encoding="utf-8")
    assert set(re.findall(r'class="name"[^>]*>([A-Z]+)<', picture)) == {state.value for state in TRANSITIONS}
    labels = re.findall(r'class="label"[^>]*>([^<]+)<', picture)
    assert Counter(command for label in labels for command in label.split(", ")) == Counter(
        kind.value for commands in TRANSITIONS.values() for kind, targets in commands.items() for _ in targets
    )
