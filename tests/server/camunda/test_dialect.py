"""What every part of ``/engine-rest`` has in common: the engine's name, errors, and what is not served."""

from __future__ import annotations

from typing import Any

import pytest


async def test_the_only_engine_has_a_name_and_serves_everything_under_it(camunda: Any) -> None:
    assert (await camunda.get("/engine")).body == [{"name": "default"}]
    instance_id = (await camunda.post("/engine/default/process-definition/key/approval/start", {})).body["id"]
    assert (await camunda.get(f"/engine/default/process-instance/{instance_id}")).body["id"] == instance_id
    assert (await camunda.get("/engine/default/external-task/count")).body == {"count": 0}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/history/process-instance"),
        ("POST", "/signal"),
        ("POST", "/migration/execute"),
        ("GET", "/job"),
        ("POST", "/external-task/retries-async"),
        ("GET", "/deployment"),
        ("PATCH", "/process-definition"),
        ("DELETE", "/external-task/1"),
        ("GET", "/engine/other/process-instance"),
        ("GET", "/"),
        ("POST", "/process-definition/key/approval/submit-form"),
    ],
)
async def test_what_is_not_served_says_so_in_camundas_form(camunda: Any, method: str, path: str) -> None:
    reply = await camunda.send(method, path)
    assert reply.status == 501
    assert (reply.body["type"], reply.body["code"]) == ("InvalidRequestException", None)
    message = reply.body["message"]
    assert message.startswith(f"{method} /engine-rest{path} is not served here: ")
    assert len(message.partition(": ")[2]) > 20, "what there is instead"


async def test_a_body_that_is_no_json_is_refused_in_camundas_form(camunda: Any) -> None:
    reply = await camunda.send("POST", "/external-task/fetchAndLock", b"{")
    assert (reply.status, reply.body["type"]) == (400, "InvalidRequestException")
    reply = await camunda.send("POST", "/external-task/fetchAndLock", b"[]")
    assert (reply.status, reply.body["message"]) == (400, "expected an object, not an array @ $")


async def test_a_body_that_is_too_long_is_413(camunda: Any) -> None:
    head = "POST /engine-rest/process-definition/key/approval/start HTTP/1.1\r\nHost: here\r\n"
    reply = await camunda.api.ask(f"{head}Content-Length: 5000000\r\n\r\n".encode())
    assert (reply.status, reply.body["type"]) == (413, "InvalidRequestException")


async def test_another_sites_page_may_not_use_it(camunda: Any) -> None:
    reply = await camunda.send("POST", "/message", {"messageName": "paid"}, headers="Origin: https://evil.example\r\n")
    assert (reply.status, reply.body["type"]) == (403, "AuthorizationException")
