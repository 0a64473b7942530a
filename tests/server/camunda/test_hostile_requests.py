"""Whatever is sent, nothing is a mistake of ours: every refusal is in Camunda's form, and the engine goes on."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from stellwerk.app import ServedEngine
from stellwerk.server.camunda.dialect import camunda as dialect_of
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.context import ApiContext

FIELDS = (
    "workerId",
    "topics",
    "maxTasks",
    "variables",
    "localVariables",
    "retries",
    "priority",
    "errorCode",
    "errorMessage",
    "newDuration",
    "lockDuration",
    "messageName",
    "businessKey",
    "correlationKeys",
    "processVariables",
    "processInstanceId",
    "modifications",
    "deletions",
    "userId",
    "sorting",
    "externalTaskIdIn",
    "processInstanceIds",
    "priorityHigherThanOrEquals",
    "assignee",
    "value",
    "type",
)
VALUES: tuple[Any, ...] = (
    None,
    0,
    -1,
    2**70,
    1.5,
    True,
    "",
    "\u0000",
    "x" * 300,
    [],
    [None],
    [{}],
    {},
    {"a": None},
    {"a": {"value": {}, "type": "Integer"}},
    {"\u0000": {"value": 1}},
)
QUERIES = (
    "firstResult=-1",
    "maxResults=x",
    "maxResults=99999999999999999999",
    "sortBy=",
    "sortBy=id&sortOrder=up",
    "sortOrder=asc",
    "processInstanceId=%00",
    "processInstanceIds=%00,,",
    "externalTaskIdIn=",
    "topicName=" + "x" * 1000,
    "businessKey=%F0%9F%92%B6",
    "key=%00",
    "version=-1",
    "assignee=%00",
    "candidateGroup=%00",
    "locked=maybe",
    "locked=true&locked=true",
    "unheard=1",
)
IDS = ("x", "x%00", "x" * 300, "%F0%9F%92%B6", "shipping:1", "shipping:99999999999999999999", "..")


def paths(engine: ServedEngine) -> list[tuple[str, str]]:
    endpoints = dialect_of(ApiContext(engine.node, Draining())).endpoints
    return [(one.method, one.path) for one in endpoints if not one.path.startswith(("/engine/", "/{path"))]


def check(reply: Any, what: object) -> None:
    assert reply.status in (200, 204, 400, 404, 413, 501), (what, reply)
    if reply.status >= 400:
        assert set(reply.body) in ({"type", "message", "code"}, {"type", "message", "code", "details"}), what


async def test_no_body_breaks_an_endpoint(camunda: Any, engine: ServedEngine) -> None:
    bodies: list[Any] = [None, [], "x", 7]
    bodies += [dict.fromkeys(FIELDS, value) for value in VALUES]
    for (method, path), body in itertools.product(paths(engine), bodies):
        if method in ("POST", "PUT"):
            target = re.sub(r"\{[^}]*\}", "x", path)
            check(await camunda.send(method, target, body), (method, target, body))
    assert (await camunda.post("/process-definition/key/approval/start", {})).status == 200


@pytest.mark.parametrize("place", ["before", "with tasks"])
async def test_no_query_breaks_a_list(camunda: Any, engine: ServedEngine, place: str) -> None:
    if place == "with tasks":
        await camunda.start("shipping")
        await camunda.start("approval")
    for (method, path), query in itertools.product(paths(engine), QUERIES):
        if method == "GET" and "{" not in path:
            check(await camunda.get(f"{path}?{query}"), (path, query))


async def test_no_id_breaks_a_path(camunda: Any, engine: ServedEngine) -> None:
    body = {
        "workerId": "w",
        "errorCode": "E",
        "newDuration": 20_000,
        "lockDuration": 20_000,
        "retries": 1,
        "priority": 1,
        "userId": "ann",
        "value": 1,
    }
    for (method, path), one in itertools.product(paths(engine), IDS):
        if "{" in path:
            target = re.sub(r"\{[^}]*\}", one, path)
            check(await camunda.send(method, target, body if method in ("POST", "PUT") else None), (method, target))
