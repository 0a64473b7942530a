"""A NUL in each text of a request that is not its body: the parts of a path, the fields of a query, `Idempotency-Key`.

Where they are is read from the OpenAPI document of the running engine, so that none can be forgotten. (Bodies and
messages are abused in test_hostile_content.py, the foreign APIs in tests/server/test_foreign_texts.py.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "_static" / "openapi.json"
"""The one that is served, as tests/openapi sees to."""
NUL = "a%00b"
UNKNOWN = "nobody"
ECHOED = {"message_id": "", "detail": "", "error": ""}
"""What names the one that was asked for."""
BODIES: dict[str, dict[str, object]] = {
    "complete": {"worker_id": "w"},
    "fail": {"worker_id": "w", "error": "no"},
    "bpmn-error": {"worker_id": "w", "code": "E"},
    "extend-lock": {"worker_id": "w", "extension_ms": 5_000},
    "unlock": {"worker_id": "w"},
    "retries": {"retries": 1},
    "priority": {"priority": 1},
    "cancel": {},
    "variables": {"variables": {"n": 1}},
    "claim": {"assignee": "somebody"},
    "resolve": {"retries": 1},
}
"""What is well-formed otherwise, by the last part of the path."""


@attrs.frozen
class Text:
    """A parameter of an operation."""

    method: str
    path: str
    name: str
    place: str

    def __str__(self) -> str:
        return f"{self.method} {self.path.removeprefix('/api/v1')} {self.name}"

    @property
    def body(self) -> dict[str, object] | None:
        if self.method == "GET" or self.method == "DELETE":
            return None
        last = self.path.rpartition("/")[2]
        return {} if last == "complete" and "user-tasks" in self.path else BODIES.get(last, {})


def texts(place: str) -> list[Text]:
    return [text for text in _all_texts() if text.place == place]


def _all_texts() -> Iterator[Text]:
    for path, operations in json.loads(DOCUMENT.read_text("utf-8"))["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                if parameter["schema"]["type"] == "string":
                    yield Text(method.upper(), path, parameter["name"], parameter["in"])


@pytest.mark.parametrize("text", texts("query"), ids=str)
async def test_a_nul_in_a_field_of_a_query_is_refused_with_its_place_or_nothing_has_it(engine: Any, text: Text) -> None:
    path = text.path
    if "{instance_id}" in path:
        path = path.replace("{instance_id}", await engine.start())
    reply = await engine.ask(text.method, f"{path}?{text.name}={NUL}")
    if reply.status == 400:
        assert reply.body["code"] == "invalid"
        assert text.name in reply.body["detail"]
    else:
        unknown = await engine.ask(text.method, f"{path}?{text.name}={UNKNOWN}")
        assert (reply.status, reply.body) == (200, unknown.body)
        assert [] in reply.body.values()


@pytest.mark.parametrize("text", texts("path"), ids=str)
async def test_a_nul_in_a_path_is_refused_or_names_nothing(engine: Any, text: Text) -> None:
    reply, unknown = [
        await engine.ask(text.method, text.path.replace(f"{{{text.name}}}", value), text.body)
        for value in (NUL, UNKNOWN)
    ]
    if reply.status == 400 and "NUL character" in reply.body["detail"]:
        assert (reply.body["code"], unknown.status) == ("invalid", 404)
    else:
        assert reply.status == unknown.status
        assert {**reply.body, **ECHOED} == {**unknown.body, **ECHOED}


@pytest.mark.parametrize("text", texts("header"), ids=str)
async def test_a_nul_in_a_header_ends_the_request(engine: Any, text: Text) -> None:
    body = {"process_def_id": "abused"} if "instances" in text.path else {"name": "any"}
    reply = await engine.ask(text.method, text.path, body, f"{text.name}: a\0b\r\n")
    assert reply.status == 400, reply


def test_there_are_texts_of_each_kind() -> None:
    """The document was understood."""
    found = {place: len(texts(place)) for place in ("query", "path", "header")}
    assert found["query"] >= 20
    assert found["path"] >= 24
    assert found["header"] == 3
