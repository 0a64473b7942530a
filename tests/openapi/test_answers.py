"""What a live server answers is what the document describes, without a field more."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from stellwerk.server.http.api import documented_endpoints
from stellwerk.server.http.openapi import openapi_document


def closed_document() -> Any:
    """No object may have fields that are not described; but figures for people, and what stands beside a reference."""
    document: Any = openapi_document(documented_endpoints())
    for name, schema in document["components"]["schemas"].items():
        if name != "Statistics":
            schema["additionalProperties"] = False
    return document


DOCUMENT = closed_document()
READS = [path for path, operations in DOCUMENT["paths"].items() if "get" in operations]


def check(method: str, path: str, status: int, kind: str, answer: Any) -> None:
    """Against the answer that the document has for this status."""
    described = DOCUMENT["paths"][path][method.lower()]["responses"][str(status)]
    if "$ref" in described:
        described = DOCUMENT["components"]["responses"][described["$ref"].rpartition("/")[2]]
    assert kind in described["content"], (path, status, kind)
    if "json" in kind:
        schema = {**described["content"][kind]["schema"], "components": DOCUMENT["components"]}
        validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(answer)] == []


@pytest.mark.parametrize("path", READS)
def test_a_read_answers_what_the_document_describes(live: Any, path: str) -> None:
    [*parameters] = re.findall(r"{(\w+)}", path)
    for name in live.names[parameters[0]] if parameters else [""]:
        query = "?timeout_ms=1" if path.endswith("/wait") else ""
        found = live.ask("GET", re.sub(r"{\w+}", name, path) + query)
        assert found[0] == (404 if name == "order:2" else 200), found
        check("GET", path, *found)


def test_an_instance_with_its_history_is_as_described(live: Any) -> None:
    for instance_id in live.names["instance_id"]:
        found = live.ask("GET", f"/api/v1/process-instances/{instance_id}?history=true")
        assert found[2]["history"]
        check("GET", "/api/v1/process-instances/{instance_id}", *found)


def test_lists_are_not_empty_here(live: Any) -> None:
    """Or the tests above would say nothing about their rows."""
    names = {
        "/process-definitions": "definitions", "/process-instances": "instances", "/external-tasks": "tasks",
        "/topics": "topics", "/workers": "workers", "/messages": "messages", "/awaited-messages": "names",
        "/user-tasks": "user_tasks", "/incidents": "incidents", "/nodes": "nodes", "/keys": "keys",
    }  # fmt: skip
    assert [path for path, name in names.items() if not live.get(path)[name]] == []


def test_changes_answer_what_the_document_describes(live: Any) -> None:
    def ask(method: str, path: str, body: object, *, status: int = 200, **names: str) -> Any:
        found = live.ask(method, f"/api/v1{path.format(**names)}", body)
        assert found[0] == status, found
        check(method, f"/api/v1{path}", *found)
        return found[2]

    started = ask("POST", "/process-instances", {"process_def_id": "stuck", "wait_ms": 10_000}, status=201)
    assert started["incidents"]
    ask("POST", "/process-instances", {"process_def_id": "order"}, status=201)
    poll = {"worker_id": "v", "task_types": ["charge"], "wait_ms": 10_000}
    [task, *_] = ask("POST", "/external-tasks/fetch-and-lock", poll)
    lease = {"worker_id": "v", "fence": task["fence"]}
    one = "/external-tasks/{task_id}"
    ask("POST", one + "/extend-lock", {**lease, "extension_ms": 9_000}, task_id=task["task_id"])
    ask("PUT", one + "/retries", {"retries": 7}, task_id=task["task_id"])
    ask("POST", one + "/unlock", lease, task_id=task["task_id"])
    ask("POST", one + "/complete", lease, status=409, task_id=task["task_id"])
    ask("POST", "/incidents/retry", {"all": True})
    ask("POST", "/messages", {"name": "paid"}, status=201)
    ask("POST", "/prune", {"older_than_ms": 10**12})
    ask("POST", "/process-definitions/{process_key}/disable", {}, process_key="paid")
    ask("POST", "/process-instances", {"process_def_id": "paid", "wat": 1}, status=400)
    model = [{"name": "wrong.bpmn", "xml": "<definitions/>"}]
    assert ask("POST", "/process-definitions", {"files": model}, status=400)["findings"]
    ask("POST", "/keys", {"name": "k", "scopes": ["client"], "processes": ["order"]}, status=201)
    ask("DELETE", "/process-definitions/{definition_id}", None, status=409, definition_id="order:1")


def test_the_engine_serves_both_documents_to_everybody(live: Any) -> None:
    live.token = ""
    for name in ("openapi", "asyncapi"):
        status, kind, found = live.ask("GET", f"/api/v1/{name}.json")
        assert (status, kind) == (200, "application/json")
        assert found[name] in ("3.1.0", "3.0.0")


def test_every_endpoint_that_says_so_needs_a_credential(live: Any) -> None:
    live.token = ""
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            status, kind, answer = live.ask(method.upper(), path, {} if method != "get" else None)
            assert (status == 401) == bool(operation["security"]), path
            check(method, path, status, kind, answer)
