"""The HTTP API of a served engine (docs/http-api)."""

from __future__ import annotations

import base64
import json
import random
import threading
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import attrs
import pytest
import trio
import trio.testing

from stellwerk.app import MEMORY, AppConfig, ServedEngine, open_engine, serve_engine
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
from stellwerk.system.logging import LogLevel

ORDER = """<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <message id="m" name="paid"/>
  <process id="order" isExecutable="true">
    <startEvent id="s"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="charge"/>
    <serviceTask id="charge" stellwerk:topic="charge"/>
    <sequenceFlow id="f2" sourceRef="charge" targetRef="e"/>
    <endEvent id="e"/>
  </process>
  <process id="approval" isExecutable="true">
    <startEvent id="s2"/>
    <sequenceFlow id="g1" sourceRef="s2" targetRef="approve"/>
    <userTask id="approve" name="Approve"/>
    <sequenceFlow id="g2" sourceRef="approve" targetRef="e2"/>
    <endEvent id="e2"/>
  </process>
  <process id="paid" isExecutable="true">
    <startEvent id="s3"><messageEventDefinition messageRef="m"/></startEvent>
    <sequenceFlow id="h1" sourceRef="s3" targetRef="e3"/>
    <endEvent id="e3"/>
  </process>
</definitions>
"""
BROKEN = ORDER.replace('targetRef="charge"', 'targetRef="nowhere"').replace('targetRef="approve"', 'targetRef="none"')


STUCK = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t">
  <process id="stuck" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="c"/><exclusiveGateway id="c"/>
    <sequenceFlow id="f2" sourceRef="c" targetRef="e">
      <conditionExpression>=a &gt; 0</conditionExpression>
    </sequenceFlow>
    <endEvent id="e"/>
  </process>
</definitions>
"""
SNAPSHOT_EVERY = 100
"""Steps."""


@attrs.frozen
class Reply:
    status: int
    headers: dict[str, str]
    body: Any


class Client:
    """One connection, kept alive."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""

    async def get(self, path: str) -> Reply:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())

    async def post(self, path: str, body: object, headers: str = "") -> Reply:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: here\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
        return await self.ask(head.encode() + content)

    async def ask(self, request: bytes) -> Reply:
        with trio.fail_after(10):
            await self.stream.send_all(request)
            return await self.reply()

    async def reply(self) -> Reply:
        head = (await self._until(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        size = int(headers["content-length"])
        while len(self._buffer) < size:
            await self._more()
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        is_json = headers["content-type"].startswith("application/json")
        return Reply(int(head[0].split(" ")[1]), headers, json.loads(body) if is_json else body.decode())

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            await self._more()
        head, _, self._buffer = self._buffer.partition(mark)
        return head

    async def _more(self) -> None:
        data = await self.stream.receive_some(65536)
        assert data
        self._buffer += bytes(data)


CONFIG = AppConfig(db=MEMORY, port=0, log_level=LogLevel.ERROR)


@pytest.fixture
async def engine() -> AsyncIterator[ServedEngine]:
    async with serve_engine(CONFIG) as running:
        yield running


@pytest.fixture
async def client(engine: ServedEngine) -> AsyncIterator[Client]:
    stream = await trio.open_tcp_stream("127.0.0.1", int(engine.url.rpartition(":")[2]))
    async with stream:
        yield Client(stream)


@pytest.fixture
async def deployed(client: Client) -> Client:
    reply = await client.post("/api/v1/definitions", {"files": [{"name": "order.bpmn", "xml": ORDER}]})
    assert reply.status == 201, reply
    return client


async def start(client: Client, process: str = "order", **more: object) -> str:
    reply = await client.post("/api/v1/instances", {"process": process, **more})
    assert reply.status == 201, reply
    return str(reply.body["instance_id"])


# --- health --------------------------------------------------------------------------------------------------------


async def test_health_says_ok_until_the_engine_drains(client: Client, engine: ServedEngine) -> None:
    assert (await client.get("/livez")).body == "ok"
    assert (await client.get("/readyz")).status == 200
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.drain, 0.0)


# --- deploying -----------------------------------------------------------------------------------------------------


async def test_deploy_gives_versions_and_knows_the_same_text_again(client: Client) -> None:
    body = {"files": [{"name": "order.bpmn", "xml": ORDER}]}
    first = await client.post("/api/v1/definitions", body)
    assert [row["definition_id"] for row in first.body["definitions"]] == ["order:1", "approval:1", "paid:1"]
    assert first.body["unchanged"] == []
    again = await client.post("/api/v1/definitions", body)
    assert sorted(again.body["unchanged"]) == ["approval", "order", "paid"]
    changed = {"files": [{"name": "order.bpmn", "xml": ORDER + "<!-- changed -->"}]}
    assert [row["version"] for row in (await client.post("/api/v1/definitions", changed)).body["definitions"]] == [
        2
    ] * 3
    listed = (await client.get("/api/v1/definitions")).body["definitions"]
    assert [row["definition_id"] for row in listed if row["key"] == "order"] == ["order:1", "order:2"]
    assert "xml" not in listed[0]


async def test_refused_deployment_names_every_finding_with_its_place(client: Client) -> None:
    body = {"files": [{"name": "good.bpmn", "xml": ORDER}, {"name": "bad.bpmn", "xml": BROKEN}]}
    reply = await client.post("/api/v1/definitions", body)
    assert (reply.status, reply.body["code"]) == (400, "deploy_refused")
    errors = [found for found in reply.body["findings"] if found["severity"] == "error"]
    assert {(found["file"], found["line"], found["element_id"]) for found in errors} >= {
        ("bad.bpmn", 7, "f1"),
        ("bad.bpmn", 14, "g1"),
    }
    assert set(errors[0]) == {"file", "line", "column", "element_id", "element", "what", "severity"}
    assert (await client.get("/api/v1/definitions")).body["definitions"] == []


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
async def test_file_is_read_in_the_encoding_that_it_declares(client: Client, encoding: str) -> None:
    text = ORDER.replace("UTF-8", encoding).replace('name="Approve"', 'name="Größe prüfen"')
    as_text = {"name": "a.bpmn", "xml": text}
    as_bytes = {"name": "a.bpmn", "xml_base64": base64.b64encode(text.encode(encoding)).decode()}
    for file in (as_text, as_bytes):
        assert (await client.post("/api/v1/definitions", {"files": [file]})).status == 201
    await start(client, "approval")
    assert (await client.get("/api/v1/user-tasks")).body["user_tasks"][0]["name"] == "Größe prüfen"


@pytest.mark.parametrize(
    "body, what",
    [
        ({}, "files is missing @ $.files"),
        ({"files": [{"name": "a"}]}, "either xml or xml_base64 @ $.files[0]"),
        ({"files": [{"name": "a", "xml_base64": "?"}]}, "not base64 @ $.files[0].xml_base64"),
        (
            {"files": [{"name": 1, "xml": "x"}, 2], "more": 3},
            "expected a string, not a number @ $.files[0].name; expected an object, not a number @ $.files[1]; "
            "unknown: more @ $",
        ),
        ({"files": "a"}, "expected an array, not a string @ $.files"),
        ({"files": [], "failure_policy": "hope"}, "expected one of incident, compensate @ $.failure_policy"),
        ([], "expected an object, not an array @ $"),
        (b'{"files": [}', "not JSON"),
        (b'{"files": "\\u0000"}', "NUL character @ $.files"),
        (b'{"files": "\\ud800"}', "not JSON"),
        (b'{"files": NaN}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 2000, "not JSON"),
    ],
)
async def test_malformed_body_is_refused_in_words(client: Client, body: object, what: str) -> None:
    reply = await client.post("/api/v1/definitions", body)
    assert (reply.status, reply.body["code"]) == (400, "invalid")
    assert what in reply.body["message"]


# --- instances -----------------------------------------------------------------------------------------------------


async def test_instance_is_shown_whole(deployed: Client) -> None:
    instance_id = await start(deployed, variables={"amount": 12.5, "big": 10**30}, business_key="A-17")
    view = (await deployed.get(f"/api/v1/instances/{instance_id}")).body
    assert (view["status"], view["process"], view["definition_id"]) == ("RUNNING", "order", "order:1")
    assert (view["business_key"], view["ended_at"]) == ("A-17", None)
    assert view["variables"] == {"amount": 12.5, "big": 10**30}
    (token,) = view["tokens"]
    assert (token["node_id"], token["status"]) == ("charge", "ACTIVE")
    (task,) = view["tasks"]
    assert (task["element_id"], task["topic"], task["state"], task["retries_left"]) == ("charge", "charge", "READY", 3)
    assert (task["variables"], task["lease"], task["attempts"]) == ({"amount": 12.5, "big": 10**30}, None, [])
    facts = [fact["fact"] for step in view["history"] for fact in step["facts"]]
    assert facts[0] == "InstanceStarted"
    assert "TaskCreated" in facts


async def test_same_request_id_gives_the_same_instance(deployed: Client) -> None:
    first = await start(deployed, request_id="r-1")
    assert await start(deployed, request_id="r-1") == first
    assert await start(deployed, request_id="r-2") != first


async def test_instances_are_listed_in_pages_newest_first(deployed: Client) -> None:
    started = [await start(deployed) for _ in range(5)]
    page = (await deployed.get("/api/v1/instances?limit=3")).body["instances"]
    rest = (await deployed.get(f"/api/v1/instances?limit=3&after={page[-1]['instance_id']}")).body["instances"]
    rows = [(row["started_at"], row["instance_id"]) for row in page + rest]
    assert rows == sorted(rows, reverse=True), "by id where they started in the same millisecond"
    assert sorted(instance_id for _, instance_id in rows) == sorted(started)
    assert (await deployed.get("/api/v1/instances?status=COMPLETED")).body["instances"] == []
    assert len((await deployed.get("/api/v1/instances?process=order&status=RUNNING")).body["instances"]) == 5


async def test_cancelled_instance_wakes_who_waits_for_its_end(deployed: Client, engine: ServedEngine) -> None:
    instance_id = await start(deployed)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            reply = await deployed.get(f"/api/v1/instances/{instance_id}/wait?timeout_ms=60000")
            assert reply.body["status"] == "CANCELLED"

        nursery.start_soon(wait)
        await engine.node.cancel_instance(instance_id, "why not")
    reply = await deployed.post(f"/api/v1/instances/{instance_id}/cancel", {})
    assert reply.status == 409


async def test_wait_gives_the_instance_as_it_is_when_time_is_up(deployed: Client) -> None:
    reply = await deployed.get(f"/api/v1/instances/{await start(deployed)}/wait?timeout_ms=1")
    assert (reply.status, reply.body["status"]) == (200, "RUNNING")


async def test_wait_ends_when_the_engine_drains(deployed: Client, engine: ServedEngine) -> None:
    instance_id = await start(deployed)
    await deployed.stream.send_all(
        f"GET /api/v1/instances/{instance_id}/wait?timeout_ms=600000 HTTP/1.1\r\nHost: here\r\n\r\n".encode()
    )
    await trio.testing.wait_all_tasks_blocked(0.05)
    with trio.fail_after(5):
        await engine.drain(0.1)
        reply = await deployed.reply()
    assert (reply.body["status"], reply.headers["connection"]) == ("RUNNING", "close")


async def test_wait_ends_when_the_client_leaves(deployed: Client, engine: ServedEngine) -> None:
    instance_id = await start(deployed)
    request = f"GET /api/v1/instances/{instance_id}/wait?timeout_ms=600000 HTTP/1.1\r\nHost: here\r\n\r\n"
    await deployed.stream.send_all(request.encode())
    await deployed.stream.send_eof()
    with trio.fail_after(5):
        assert (await deployed.reply()).body["status"] == "RUNNING"


@pytest.mark.parametrize(
    "process, path, name", [("approval", "user-tasks", "user_tasks"), ("stuck", "incidents", "incidents")]
)
async def test_what_waits_for_people_is_listed_by_pages(
    deployed: Client, engine: ServedEngine, process: str, path: str, name: str
) -> None:
    await engine.node.deploy([("stuck.bpmn", STUCK.encode())])
    instances = [await start(deployed, process) for _ in range(5)]
    if process == "stuck":
        for instance_id in instances:
            await deployed.get(f"/api/v1/instances/{instance_id}/wait?timeout_ms=5000&or_incident=true")

    async def page(query: str) -> tuple[list[str], bool]:
        body = (await deployed.get(f"/api/v1/{path}{query}")).body
        return [row[f"{name[:-1]}_id"] for row in body[name]], body["more"]

    first, more = await page("?limit=2")
    assert (len(first), more) == (2, True)
    second, more = await page(f"?limit=2&after={first[-1]}")
    assert (len(second), more) == (2, True)
    third, more = await page(f"?limit=2&after={second[-1]}")
    assert (len(third), more) == (1, False)
    assert await page("") == (first + second + third, False)
    (row,) = (await deployed.get(f"/api/v1/{path}?instance_id={instances[3]}")).body[name]
    assert row["instance_id"] == instances[3]
    for limit in ("0", "1001", "x"):
        assert (await deployed.get(f"/api/v1/{path}?limit={limit}")).status == 400


async def test_instances_say_whether_there_are_more(deployed: Client) -> None:
    for _ in range(3):
        await start(deployed)
    assert [(await deployed.get(f"/api/v1/instances?limit={limit}")).body["more"] for limit in (2, 3)] == [True, False]


@pytest.mark.parametrize("steps_before", [1, SNAPSHOT_EVERY - 2])
async def test_instance_is_shown_without_its_history(deployed: Client, engine: ServedEngine, steps_before: int) -> None:
    """Why it ended is told all the same, also where the last step was kept as a snapshot."""
    instance_id = await start(deployed, "approval")
    path = f"/api/v1/instances/{instance_id}"
    for number in range(steps_before):
        await engine.node.set_variables(instance_id, {"number": number})
    assert (await deployed.get(f"{path}?history=false")).body["reason"] is None
    await deployed.post(f"{path}/cancel", {"reason": "ordered twice"})
    whole = (await deployed.get(path)).body
    assert (whole["version"], len(whole["history"])) == (steps_before + 2, steps_before + 2)
    del whole["history"]
    brief = (await deployed.get(f"{path}?history=false")).body
    assert brief == whole
    assert (brief["status"], brief["reason"]) == ("CANCELLED", "ordered twice")
    assert (await deployed.get(f"{path}?history=no")).status == 400


async def test_long_history_does_not_hold_up_others(deployed: Client, engine: ServedEngine) -> None:
    """It is put into JSON in the background, which is busy here until the others were answered."""
    instance_id = await start(deployed, "approval")
    for number in range(250):
        await engine.node.set_variables(instance_id, {"number": number})
    path = f"/api/v1/instances/{instance_id}"
    release = threading.Event()
    answers: list[Reply] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.node.ports.background.run_sync, release.wait)
        try:

            async def ask() -> None:
                answers.append(await deployed.get(path))

            nursery.start_soon(ask)
            stream = await trio.open_tcp_stream("127.0.0.1", int(engine.url.rpartition(":")[2]))
            async with stream:
                other = Client(stream)
                for _ in range(20):
                    assert (await other.get(f"{path}?history=false")).status == 200
            assert answers == []
        finally:
            release.set()
    (answer,) = answers
    assert [step["version"] for step in answer.body["history"]] == list(range(1, 252))
    assert answer.body["history"][-1]["facts"][0]["fact"] == "VariablesSet"


async def test_user_task_is_completed(deployed: Client) -> None:
    instance_id = await start(deployed, "approval", variables={"who": "me"})
    (task,) = (await deployed.get("/api/v1/user-tasks")).body["user_tasks"]
    assert (task["instance_id"], task["element_id"], task["name"]) == (instance_id, "approve", "Approve")
    assert task["variables"] == {"who": "me"}
    path = f"/api/v1/user-tasks/{task['user_task_id']}/complete"
    assert (await deployed.post(path, {"variables": {"approved": True}})).status == 200
    reply = await deployed.get(f"/api/v1/instances/{instance_id}/wait?timeout_ms=5000")
    assert reply.body["status"] == "COMPLETED"
    view = (await deployed.get(f"/api/v1/instances/{instance_id}")).body
    assert view["variables"] == {"who": "me", "approved": True}
    assert (await deployed.post(path, {})).status in (404, 409)


async def test_message_starts_an_instance(deployed: Client) -> None:
    reply = await deployed.post("/api/v1/messages", {"name": "paid", "variables": {"a": 1}, "message_id": "m-1"})
    assert (reply.status, reply.body) == (201, {"message_id": "m-1"})
    with trio.fail_after(5):
        while not (page := (await deployed.get("/api/v1/instances?process=paid")).body["instances"]):
            await trio.sleep(0.01)
    assert len(page) == 1


async def test_statistics_are_shown(deployed: Client) -> None:
    reply = await deployed.get("/api/v1/statistics")
    assert (reply.status, type(reply.body)) == (200, dict)
    assert (await deployed.get("/api/v1/incidents")).body == {"incidents": [], "more": False}


async def test_variables_are_set_by_hand(deployed: Client) -> None:
    instance_id = await start(deployed, variables={"a": 1, "b": 1})
    path = f"/api/v1/instances/{instance_id}"
    reply = await deployed.post(f"{path}/variables", {"variables": {"b": {"c": 10**30}, "d": None}})
    assert (reply.status, reply.body) == (200, {})
    view = (await deployed.get(path)).body
    assert view["variables"] == {"a": 1, "b": {"c": 10**30}, "d": None}
    assert view["history"][-1]["facts"][0]["fact"] == "VariablesSet"
    await deployed.post(f"{path}/cancel", {})
    refused = await deployed.post(f"{path}/variables", {"variables": {}})
    assert (refused.status, refused.body["code"]) == (409, "ended")


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, status, code",
    [
        ("/", 404, "not_found"),
        ("/api/v1/nothing", 404, "not_found"),
        ("/api/v1/instances/unknown", 404, "not_found"),
        ("/api/v1/instances/" + quote("a\0b/../😀"), 404, "not_found"),
        ("/api/v1/instances/unknown/wait", 404, "not_found"),
        ("/api/v1/instances?limit=0", 400, "invalid"),
        ("/api/v1/instances?limit=many", 400, "invalid"),
        ("/api/v1/instances?limit=" + "9" * 5000, 400, "invalid"),
        ("/api/v1/instances?status=odd", 400, "invalid"),
        ("/api/v1/instances?colour=red", 400, "invalid"),
        ("/api/v1/instances/unknown/wait?timeout_ms=999999999", 400, "invalid"),
        ("/workers", 400, "invalid"),
        ("/api/v1/messages", 405, "method_not_allowed"),
    ],
)
async def test_wrong_get_is_refused(client: Client, path: str, status: int, code: str) -> None:
    reply = await client.get(path)
    assert (reply.status, reply.body["code"]) == (status, code)


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/instances", {"process": "nothing"}, 404),
        ("/instances", {"process": "order", "version": 7}, 404),
        ("/instances", {"process": "order", "version": 2**60}, 400),
        ("/instances", {"process": "order", "variables": []}, 400),
        ("/instances", {"process": "order", "start_event_id": "nowhere"}, 404),
        ("/instances", {"process": "order", "variables": {"x": "y" * 1_048_576}}, 413),
        ("/instances", {"process": "order", "variables": {"x": "y" * 1_200_000}}, 413),
        ("/instances/unknown/cancel", {}, 404),
        ("/instances/unknown/variables", {"variables": {}}, 404),
        ("/instances/unknown/variables", {}, 400),
        ("/instances/unknown/variables", {"variables": {"x": "y" * 1_048_576}}, 413),
        ("/user-tasks/unknown/complete", {}, 404),
        ("/incidents/unknown/resolve", {}, 404),
        ("/incidents/unknown/resolve", {"retries": 0}, 400),
        ("/messages", {"key": "k"}, 400),
        ("/messages", {"name": "n" * 256}, 413),
        ("/instances", {"process": "order", "business_key": "k" * 256}, 413),
        ("/messages", {"name": "paid", "ttl_ms": -1}, 400),
    ],
)
async def test_wrong_post_is_refused(deployed: Client, path: str, body: object, status: int) -> None:
    reply = await deployed.post("/api/v1" + path, body)
    assert reply.status == status, reply.body
    assert set(reply.body) == {"code", "message"}


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://here:1", "http://[", "http://[here]"])
async def test_page_of_another_site_may_not_change_anything(deployed: Client, origin: str) -> None:
    body = {"process": "order"}
    assert (await deployed.post("/api/v1/instances", body, "Origin: http://here\r\n")).status == 201
    foreign = await deployed.post("/api/v1/instances", body, f"Origin: {origin}\r\n")
    assert (foreign.status, foreign.body["code"]) == (403, "forbidden")


@pytest.mark.parametrize("host", ["[", "here:port", "a b", "\xff"])
async def test_odd_host_does_no_harm(client: Client, host: str) -> None:
    for path, status in (("/livez", 200), ("/livez/", 404), ("/api/v1/definitions", 200)):
        assert (await client.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))).status == status


NAMES = [
    *("process", "variables", "business_key", "request_id", "start_event_id", "version", "reason", "retries"),
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
            return choose.choice([0, 1, -1, 2**31, 2**63, 2**64, -(2**70), 10**40])
        case 3:
            return choose.choice([0.5, -0.0, 1e300, 5e-324])
        case 4:
            return choose.choice(["", "order", "approval", "\u20ac", "incident", "s", "x" * 300])
        case 5 | 6:
            return choose.choice(["order", {"process": "order"}, []])
        case 7:
            return [anything(choose, depth + 1) for _ in range(choose.randrange(3))]
        case _:
            return {choose.choice(NAMES): anything(choose, depth + 1) for _ in range(choose.randrange(5))}


@pytest.mark.parametrize("seed", range(3))
async def test_no_body_whatever_is_a_fault_of_ours(deployed: Client, seed: int) -> None:
    choose = random.Random(seed)
    paths = [
        "definitions",
        "instances",
        "instances/x/cancel",
        "messages",
        "user-tasks/x/complete",
        "incidents/x/resolve",
    ]
    for _ in range(150):
        body = {choose.choice(NAMES): anything(choose) for _ in range(choose.randrange(5))}
        path = "/api/v1/" + choose.choice(paths)
        reply = await deployed.post(path, body)
        assert reply.status in (200, 201, 400, 404, 409, 413), (path, body, reply)


def test_errors_have_the_status_that_says_who_is_to_blame() -> None:
    assert [status_of(kind("m")) for kind in (InvalidInput, LimitExceeded, NotFound, Conflict, PeerError)] == [
        400,
        413,
        404,
        409,
        409,
    ]
    assert status_of(InvariantBroken("m")) is None
    unavailable = answer_error(StoreUnavailable("the disk is full"), 503)
    assert unavailable.headers["retry-after"] == "1"


async def test_E6_engine_is_embedded_without_a_port() -> None:
    async with open_engine(CONFIG) as node:
        await node.deploy([("order.bpmn", ORDER.encode())])
        instance_id = await node.start_instance("approval", {})
        (task,) = await node.user_tasks()
        await node.complete_user_task(str(task["user_task_id"]), {})
        assert (await node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
