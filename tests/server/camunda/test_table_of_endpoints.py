"""The table in ``docs/camunda.md`` names exactly what is served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from starlette.routing import Route

from stellwerk.app import ServedEngine
from stellwerk.server.camunda import shapes
from stellwerk.server.camunda.dialect import camunda as dialect_of
from stellwerk.server.camunda.unserved import UNSERVED
from stellwerk.server.http.api import Api
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.context import ApiContext
from stellwerk.server.http.structuring import wire_name
from stellwerk.system.entropy import SystemEntropy

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


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("GET /external-task", shapes.TasksQuery),
        ("GET /process-definition", shapes.ProcessDefinitionsQuery),
        ("GET /process-instance", shapes.ProcessInstancesQuery),
        ("GET /task", shapes.UserTasksQuery),
    ],
)
def test_the_table_names_every_condition_of_a_list(path: str, kind: type[attrs.AttrsInstance]) -> None:
    text = DOCS.read_text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{path}`")]
    below = text.split("Lists also know ")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", row.partition(" | ")[2])
    of_all = re.findall(r"`(\w+)`", below)
    assert {*named, *of_all} == {wire_name(field) for field in attrs.fields(kind)}


@pytest.fixture
def unserved() -> list[tuple[str, str]]:
    """The rows of the second table: paths, and what is instead."""
    section = DOCS.read_text().split("## What answers 501")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return [(paths, instead) for paths, instead in rows]


def test_the_table_of_what_is_not_served_is_the_engines(unserved: list[tuple[str, str]]) -> None:
    listed = [(re.findall(r"`(?:[A-Z]+ )?(/[^`]*)`", paths), instead.replace("`", "")) for paths, instead in unserved]
    assert listed == [(list(one.paths), one.instead) for one in UNSERVED]


async def test_what_the_docs_say_answers_501_does_and_says_what_is_instead(
    unserved: list[tuple[str, str]], camunda: Any, engine: ServedEngine
) -> None:
    """Each path under each method under which it is not served, also below it and under the engine's name."""
    served = served_by(engine)
    asked = 0
    for paths, instead in unserved:
        for method, path in re.findall(r"`([A-Z]+ )?(/[^`]*)`", paths):
            for verb in [method.strip()] if method else ["GET", "POST", "PUT", "DELETE"]:
                for place in ("", "/engine/default") if verb == "POST" else ("",):
                    for below in ("", "/a/b/c/d"):
                        target = nameless(path).replace("{}", "x") + below
                        if f"{verb} {nameless(path)}{below}" in served:
                            continue
                        reply = await camunda.send(verb, place + target)
                        asked += 1
                        if reply.status != 501:
                            # One part of it is the id in a path that is served.
                            assert re.sub("/[^/]*$", "/{}", f"{verb} {path}") in served, (verb, target)
                            continue
                        assert reply.body["message"].endswith(": " + instead.replace("`", "")), (verb, target)
    assert asked > 400


async def test_every_path_that_the_docs_name_instead_is_served(
    unserved: list[tuple[str, str]], engine: ServedEngine
) -> None:
    api = Api(engine.node, entropy=SystemEntropy(), log=engine.node.ports.log, draining=Draining())
    native = {
        f"{method} {nameless(route.path)}"
        for route in api.application().routes
        if isinstance(route, Route) and route.path.startswith("/api/v1/")
        for method in route.methods or ()
    }
    named = {nameless(path) for _, instead in unserved for path in re.findall(r"`([A-Z]+ /[^`]*)`", instead)}
    assert len(named) > 25
    assert named - served_by(engine) - native == {"GET /metrics"}
