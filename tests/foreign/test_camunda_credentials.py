"""The genuine clients of Camunda 7 with credentials: an API key is the password, or the bearer token."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

MODEL = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn">
  <process id="{name}" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="work"/>
    <serviceTask id="work" camunda:type="external" camunda:topic="{name}"/>
    <sequenceFlow id="f2" sourceRef="work" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>
"""
REQUIREMENTS = (
    "camunda-external-task-client-python3==4.5.0",
    "operaton-external-task-client-python3==1.0.4",
    "pydantic==2.12.*",
)


@pytest.fixture(scope="module")
def admin(engine: Any) -> dict[str, str]:
    """The headers of an administrator. From the first key on nobody gets in without one."""
    body = {"name": "admin", "scopes": ["admin"]}
    status, answer = engine.ask("POST", "/api/v1/keys", body)
    assert status == 201, answer
    return {"Authorization": f"Bearer {answer['key']}"}


@pytest.fixture
def key_for(engine: Any, admin: dict[str, str]) -> Callable[..., str]:
    def make(*topics: str) -> str:
        body = {"name": "a worker", "scopes": ["worker"], "topics": list(topics), "worker_ids": ["w-*"]}
        status, answer = engine.ask("POST", "/api/v1/keys", body, admin)
        assert status == 201, answer
        return str(answer["key"])

    return make


@pytest.fixture
def instance_id(engine: Any, admin: dict[str, str], unique: str) -> str:
    files = [{"name": "a.bpmn", "xml": MODEL.format(name=unique)}]
    status, answer = engine.ask("POST", "/api/v1/process-definitions", {"files": files}, admin)
    assert status == 201, answer
    _, answer = engine.ask("POST", f"/engine-rest/process-definition/key/{unique}/start", {}, admin)
    return str(answer["id"])


@pytest.fixture
def ends(engine: Any, admin: dict[str, str]) -> Callable[[str], str]:
    """The status that an instance ends with."""

    def wait(instance_id: str) -> str:
        path = f"/api/v1/process-instances/{instance_id}/wait?timeout_ms=10000"
        return str(engine.ask("GET", path, None, admin)[1]["status"])

    return wait


@pytest.fixture
def js_worker(engine: Any, start_node: Callable[..., Any]) -> Callable[..., Any]:
    def start(topic: str, key: str | None, worker_id: str = "w-1") -> Any:
        settings: dict[str, Any] = {
            "baseUrl": f"{engine.url}/engine-rest",
            "options": {"asyncResponseTimeout": 5_000, "workerId": worker_id},
            "topics": {topic: {"handler": "complete"}},
        }
        if key is not None:
            settings["credentials"] = {"username": "anybody", "password": key}
        return start_node("camunda_worker.mjs", json.dumps(settings))

    return start


def test_the_javascript_client_logs_in_with_a_key_as_password(
    instance_id: str, ends: Any, js_worker: Any, key_for: Any, unique: str
) -> None:
    worker = js_worker(unique, key_for(unique))
    worker.await_event("complete:success")
    assert ends(instance_id) == "COMPLETED"


@pytest.mark.parametrize(("topic", "worker_id"), [("another", "w-1"), (None, "stranger")])
def test_a_topic_or_a_name_of_somebody_else_is_403(
    js_worker: Any, key_for: Any, unique: str, topic: str | None, worker_id: str
) -> None:
    worker = js_worker(unique, key_for(topic or unique), worker_id)
    refused = worker.await_event("poll:error")
    assert (refused["status"], refused["type"]) == (403, "AuthorizationException")


def test_without_a_key_the_javascript_client_gets_401(js_worker: Any, admin: dict[str, str], unique: str) -> None:
    refused = js_worker(unique, None).await_event("poll:error")
    assert (refused["status"], refused["type"]) == (401, "AuthorizationException")


@pytest.mark.parametrize("package", ["camunda", "operaton"])
@pytest.mark.parametrize("way", ["auth_basic", "auth_bearer"])
def test_the_python_clients_log_in_both_ways(
    engine: Any,
    instance_id: str,
    ends: Any,
    key_for: Any,
    start_python: Callable[..., Any],
    unique: str,
    package: str,
    way: str,
) -> None:
    key = key_for(unique)
    login = {"auth_basic": {"username": "anybody", "password": key}, "auth_bearer": {"access_token": key}}[way]
    config = {"asyncResponseTimeout": 5_000, "lockDuration": 20_000, way: login}
    settings = json.dumps({"topics": [unique], "handler": "complete", "config": config})
    url = f"{engine.url}/engine-rest"
    worker = start_python(REQUIREMENTS, "camunda_worker.py", package, url, "w-1", settings)
    worker.await_event("done")
    assert ends(instance_id) == "COMPLETED"
