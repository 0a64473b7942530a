"""The tutorial does what it says, with real processes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from stellwerk.model.reader import read_definitions

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = DOCS / "tutorial.md"


def test_every_block_of_the_tutorial_works(run_page: Callable[[Path], int]) -> None:
    blocks = re.findall(r"^```(?!\{)\w+$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE)
    assert run_page(TUTORIAL) == len(blocks) > 20


def test_the_tutorials_picture_shows_its_process() -> None:
    [xml] = re.findall(r"^```xml\n(.*?)^```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    [process] = read_definitions(xml.encode()).processes
    drawn = set(re.findall(r'<text class="name"[^>]*>([^<]+)<', (DOCS / "_static/shop-order.svg").read_text()))
    assert {node.name for node in process.nodes.values() if node.name} == drawn
