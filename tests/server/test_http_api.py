"""The HTTP API as a whole (docs/http-api): health, refusals, and that no request whatever is a fault of ours."""

from __future__ import annotations

import random
import re
import socket
import struct
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
from starlette.routing import Route

from stellwerk.app import ServedEngine
from stellwerk.errors import (
    Conflict,
    InvalidInput,
    InvariantBroken,
    LimitExceeded,
    NotFound,
    PeerError,
    StoreUnavailable,
)
from stellwerk.server.http.answers import answer_error, status_of
from stellwerk.server.http.api import Api
from stellwerk.server.http.connection import Draining

DOCUMENT = Path(__file__).parents[2] / "docs" / "http-api.md"


async def test_health_says_ok_until_the_engine_drains(client: Any, engine: ServedEngine) -> None:
    assert (await client.get("//livez")).body == "ok"
    assert (await client.get("//readyz")).status == 200
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.drain, 0.0)


async def test_statistics_are_shown(deployed: Any) -> None:
    reply = await deployed.get("/statistics")
    assert (reply.status, type(reply.body)) == (200, dict)
    assert (await deployed.get("/incidents")).body == {"incidents": [], "more": False}


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, status, code",
    [
        ("//", 404, "not_found"),
        ("/nothing", 404, "not_found"),
        ("/process-instances/unknown", 404, "not_found"),
        ("/process-instances/" + quote("a\0b/../😀"), 404, "not_found"),
        ("/process-instances/unknown/wait", 404, "not_found"),
        ("/process-instances?limit=0", 400, "invalid"),
        ("/process-instances?limit=many", 400, "invalid"),
        ("/process-instances?limit=" + "9" * 5000, 400, "invalid"),
        ("/process-instances?status=odd", 400, "invalid"),
        ("/process-instances?colour=red", 400, "invalid"),
        ("/definitions", 404, "not_found"),
        ("/instances", 404, "not_found"),
        ("/process-instances/unknown/history", 404, "not_found"),
        ("/process-instances/unknown/trace", 404, "not_found"),
        ("/process-instances/unknown/state", 404, "not_found"),
        ("/process-instances/unknown/history?limit=1001", 400, "invalid"),
        ("/process-instances/unknown/history?after=-1", 400, "invalid"),
        ("/process-instances/unknown/state?at=x", 400, "invalid"),
        ("/external-tasks/unknown", 404, "not_found"),
        ("/external-tasks?state=odd", 400, "invalid"),
        ("/external-tasks?limit=0", 400, "invalid"),
        ("/topics?limit=1", 400, "invalid"),
        ("/workers?limit=1", 400, "invalid"),
        ("/backup?to=/tmp/here", 400, "invalid"),
        ("/backup", 409, "conflict"),
        ("/prune", 405, "method_not_allowed"),
        ("/process-instances/unknown/wait?timeout_ms=999999999", 400, "invalid"),
        ("//workers", 400, "invalid"),
        ("/messages?limit=0", 400, "invalid"),
        ("/messages/unknown?limit=1", 400, "invalid"),
        ("/awaited-messages?limit=1", 400, "invalid"),
        ("/incidents/retry", 405, "method_not_allowed"),
    ],
)
async def test_wrong_get_is_refused(client: Any, path: str, status: int, code: str) -> None:
    reply = await client.get(path)
    assert (reply.status, reply.body["code"]) == (status, code)


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/process-instances", {"process_def_id": "nothing"}, 404),
        ("/process-instances", {"process_def_id": "order:7"}, 404),
        ("/process-instances", {"process_def_id": f"order:{2**60}"}, 404),
        ("/process-instances", {"process_def_id": "order", "version": 1}, 400),
        ("/process-instances", {"process_def_id": "order", "wait_ms": 600_001}, 400),
        ("/process-instances", {"process_def_id": "order", "wait_ms": -1}, 400),
        ("/process-instances", {"process_def_id": "order", "variables": []}, 400),
        ("/process-instances", {"process_def_id": "order", "start_event_id": "nowhere"}, 404),
        ("/process-instances", {"process_def_id": "order", "variables": {"x": "y" * 1_048_576}}, 413),
        ("/process-instances", {"process_def_id": "order", "variables": {"x": "y" * 1_200_000}}, 413),
        ("/process-instances/unknown/cancel", {}, 404),
        ("/process-instances/unknown/variables", {"variables": {}}, 404),
        ("/process-instances/unknown/variables", {}, 400),
        ("/process-instances/unknown/variables", {"variables": {"x": "y" * 1_048_576}}, 413),
        ("/user-tasks/unknown/complete", {}, 404),
        ("/incidents/unknown/resolve", {}, 404),
        ("/incidents/unknown/resolve", {"retries": 0}, 400),
        ("/incidents/retry", {}, 400),
        ("/incidents/retry", {"all": False}, 400),
        ("/incidents/retry", {"all": True, "retries": 0}, 400),
        ("/incidents/retry", {"all": True, "colour": "red"}, 400),
        ("/incidents/retry", {"all": True, "limit": 1001}, 400),
        ("/incidents/retry", {"all": True, "opened_before": "now"}, 400),
        ("/incidents/retry", {"incident_ids": ["i"] * 1001}, 413),
        ("/prune", {}, 400),
        ("/prune", {"older_than_ms": -1}, 400),
        ("/prune", {"older_than_ms": 0, "limit": 0}, 400),
        ("/prune", {"older_than_ms": 0, "limit": 1001}, 400),
        ("/messages", {"key": "k"}, 400),
        ("/messages", {"name": "n" * 256}, 413),
        ("/process-instances", {"process_def_id": "order", "business_key": "k" * 256}, 413),
        ("/messages", {"name": "paid", "ttl_ms": -1}, 400),
    ],
)
async def test_wrong_post_is_refused(deployed: Any, path: str, body: object, status: int) -> None:
    reply = await deployed.post(path, body)
    assert reply.status == status, reply.body
    assert set(reply.body) - {"path"} == {"type", "title", "status", "detail", "code", "error"}
    assert (reply.body["status"], reply.body["error"]) == (reply.status, reply.body["detail"])


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://here:1", "http://[", "http://[here]"])
async def test_page_of_another_site_may_not_change_anything(deployed: Any, origin: str) -> None:
    body = {"process_def_id": "order"}
    assert (await deployed.post("/process-instances", body, "Origin: http://here\r\n")).status == 201
    foreign = await deployed.post("/process-instances", body, f"Origin: {origin}\r\n")
    assert (foreign.status, foreign.body["code"]) == (403, "forbidden")


@pytest.mark.parametrize("host", ["[", "here:port", "a b", "\xff"])
async def test_odd_host_does_no_harm(client: Any, host: str) -> None:
    for path, status in (("/livez", 200), ("/livez/", 404), ("/api/v1/process-definitions", 200)):
        assert (await client.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))).status == status


NAMES = [
    *("process_def_id", "variables", "business_key", "request_id", "start_event_id", "wait_ms", "reason", "retries"),
    *("incident_ids", "process", "element_id", "kind", "topic", "opened_before", "all", "after", "older_than_ms"),
    *("name", "key", "ttl_ms", "message_id", "files", "failure_policy", "adopt_java", "other"),
]


def anything(choose: random.Random, depth: int = 0) -> object:
    """Some JSON value, with the API's own field names in it."""
    kind = choose.randrange(9 if depth < 3 else 7)
    match kind:
        case 0:
            return None
        case 1:
            return choose.random() < 0.5
        case 2:
            return choose.choice([0, 1, -1, 2**31, 2**53 - 1, 2**63, 2**64, -(2**70), 10**40])
        case 3:
            return choose.choice([0.5, -0.0, 1e300, 5e-324])
        case 4:
            return choose.choice(["", "order", "approval", "\u20ac", "incident", "s", "x" * 300])
        case 5 | 6:
            return choose.choice(["order", {"process_def_id": "order"}, []])
        case 7:
            return [anything(choose, depth + 1) for _ in range(choose.randrange(3))]
        case _:
            return {choose.choice(NAMES): anything(choose, depth + 1) for _ in range(choose.randrange(5))}


@pytest.mark.parametrize("seed", range(3))
async def test_no_body_whatever_is_a_fault_of_ours(deployed: Any, seed: int) -> None:
    choose = random.Random(seed)
    paths = [
        "process-definitions",
        "process-instances",
        "process-instances/x/cancel",
        "messages",
        "user-tasks/x/complete",
        "incidents/x/resolve",
        "incidents/retry",
        "prune",
    ]
    for _ in range(150):
        body = {choose.choice(NAMES): anything(choose) for _ in range(choose.randrange(5))}
        path = "/" + choose.choice(paths)
        reply = await deployed.post(path, body)
        assert reply.status in (200, 201, 400, 404, 409, 413), (path, body, reply)


PATHS = [
    *("process-definitions", "process-definitions/order/xml", "process-instances", "process-instances/x"),
    *("process-instances/x/history", "process-instances/x/trace", "process-instances/x/state"),
    *("process-instances/x/wait", "external-tasks", "external-tasks/x", "topics", "workers", "user-tasks"),
    *("incidents", "statistics", "backup", "messages", "messages/x", "messages/%00", "awaited-messages"),
]
QUERY_NAMES = [
    *(
        "limit",
        "after",
        "status",
        "state",
        "process",
        "definition_id",
        "business_key",
        "with_incident",
        "kind",
        "topic",
    ),
    *("started_from", "started_before", "instance_id", "history", "at", "or_incident", "other", "", "%00", "%ff"),
]
QUERY_VALUES = [
    *("", "0", "1", "-1", "1000", "99999999999999999999", "true", "false", "RUNNING", "READY", "%00", "%ff%fe", "%"),
    *("%ED%A0%80", "2026-01-31T12:00:00Z", "9999-12-31T23:59:59.999999999-23:59", "0001-01-01T00:00:00%2B23:59"),
    *("2026-02-30T00:00:00Z", "%F0%9F%98%80", "x" * 3000, "%D9%A3", "1e3", "+1", "order:1", "&&=;"),
]


@pytest.mark.parametrize("seed", range(3))
async def test_no_query_whatever_is_a_fault_of_ours(deployed: Any, seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(200):
        pairs = [f"{choose.choice(QUERY_NAMES)}={choose.choice(QUERY_VALUES)}" for _ in range(choose.randrange(4))]
        path = f"/{choose.choice(PATHS)}?{'&'.join(pairs)}"
        reply = await deployed.get(path)
        assert reply.status in (200, 400, 404, 409), (path, reply)


FOREIGN = re.compile("/+(engine-rest|bpm-engine|atlas_engine|socket.io)/")
"""Other engines' APIs have documents of their own."""


async def test_the_document_lists_every_endpoint(engine: ServedEngine) -> None:
    listed = re.findall(r"^\| `(GET|POST|PUT|DELETE) (/[^`]*)`", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    node = engine.node
    api = Api(node, entropy=node.ports.entropy, log=node.ports.log, draining=Draining()).application()
    # These words stand where ids do. They are routed with every method, for 405 where there is no endpoint.
    words = {"/external-tasks/fetch-and-lock": "POST", "/messages/correlate": "POST"}
    served = [
        (method, without_names(path))
        for route in api.routes
        if isinstance(route, Route) and not FOREIGN.match(route.path)
        for method in route.methods or ()
        if method != "HEAD" and words.get(path := route.path.removeprefix("/api/v1"), method) == method
    ]
    assert sorted((method, without_names(path)) for method, path in listed) == sorted(served)


def without_names(path: str) -> str:
    return re.sub(r"\{\w+(:path)?\}", "{}", path)


async def test_client_that_breaks_off_in_its_body_leaves_no_line_in_the_log(
    deployed: Any, engine: ServedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", int(engine.url.rpartition(":")[2]))
    await stream.send_all(b"POST /api/v1/messages HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nonly this")
    await deployed.get("/topics")  # what was sent before has come
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()
    await deployed.get("/topics")
    assert "request_failed" not in "".join(capsys.readouterr())


def test_errors_have_the_status_that_says_who_is_to_blame() -> None:
    assert [status_of(kind("m")) for kind in (InvalidInput, LimitExceeded, NotFound, Conflict, PeerError)] == [
        400,
        413,
        404,
        409,
        409,
    ]
    assert status_of(InvariantBroken("m")) == 500
    unavailable = answer_error(StoreUnavailable("the disk is full"))
    assert unavailable.headers["retry-after"] == "1"
