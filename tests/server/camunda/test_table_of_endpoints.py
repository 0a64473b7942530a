"""The table in ``docs/camunda.md`` names exactly what is served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stellwerk.app import ServedEngine
from stellwerk.server.camunda.dialect import camunda as dialect_of
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.context import ApiContext

DOCS = Path(__file__).parents[3] / "docs/camunda.md"


def nameless(path: str) -> str:
    """Parameters have other names in the code."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def served_by(engine: ServedEngine) -> set[str]:
    endpoints = dialect_of(ApiContext(engine.node, Draining())).endpoints
    paths = {f"{endpoint.method} {nameless(endpoint.path)}" for endpoint in endpoints}
    return {path for path in paths if "/engine/default" not in path and " /{}" not in path}


async def test_the_table_and_the_endpoints_are_the_same(engine: ServedEngine) -> None:
    section = DOCS.read_text().split("## What is served")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    first_cells = [row.split(" | ")[0] for row in rows]
    listed = [nameless(path) for cell in first_cells for path in re.findall(r"`([A-Z]+ /[^`]*)`", cell)]
    assert len(listed) == len(set(listed))
    assert set(listed) == served_by(engine)


@pytest.fixture
def unserved() -> list[str]:
    """Paths of the second table that are written out whole."""
    section = DOCS.read_text().split("## What answers 501")[1].split("\n## ")[0]
    found = re.findall(r"`(?:([A-Z]+) )?(/[^`…]*)`", section)
    paths = [f"{method or 'GET'} {nameless(path).replace('{}', 'x')}" for method, path in found]
    return [path for path in paths if "/api/v1" not in path and path != "GET /metrics"]


async def test_what_the_docs_say_answers_501_does(unserved: list[str], camunda: Any) -> None:
    assert len(unserved) > 40
    for path in unserved:
        method, target = path.split(" ")
        reply = await camunda.send(method, target)
        assert reply.status == 501, path
