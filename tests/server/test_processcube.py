"""ProcessCube's API beyond what its genuine clients ask (tests/foreign): errors, permissions, the socket, the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from starlette.requests import Request
from trio.testing import MockClock

from stellwerk.app import ServedEngine
from stellwerk.core import facts as f
from stellwerk.errors import Conflict, InvalidInput, NotServed, Overloaded, PeerError, StellwerkError, Unauthenticated
from stellwerk.ports import ANYBODY, Identity, Scope
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.context import ApiContext
from stellwerk.server.http.siblings import Siblings
from stellwerk.server.http.structuring import wire_name
from stellwerk.server.processcube import shapes
from stellwerk.server.processcube.dialect import NOT_SERVED, PREFIX, processcube
from stellwerk.server.processcube.engine_io import MalformedPackets, Queues, SocketClient
from stellwerk.server.processcube.errors import answer_error
from stellwerk.server.processcube.notification_names import LONG_POLLING
from stellwerk.server.processcube.notification_names import NOT_SERVED as NOT_TOLD
from stellwerk.server.processcube.notification_reading import InstanceReading, Notification
from stellwerk.server.processcube.payload_filters import translated_filter
from stellwerk.system.clock import SystemClock

PAGE = Path(__file__).parents[2] / "docs" / "processcube.md"

MODEL = """<bpmn:definitions xmlns:bpmn="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn" exporter="5Minds Studio">
  <bpmn:message id="m" name="paid"/>
  <bpmn:process id="cube" isExecutable="true">
    <bpmn:startEvent id="start"/><bpmn:sequenceFlow id="f1" sourceRef="start" targetRef="fork"/>
    <bpmn:parallelGateway id="fork"/>
    <bpmn:sequenceFlow id="f2" sourceRef="fork" targetRef="inner"/>
    <bpmn:sequenceFlow id="f3" sourceRef="fork" targetRef="paid"/>
    <bpmn:subProcess id="inner">
      <bpmn:startEvent id="begin"/><bpmn:sequenceFlow id="i1" sourceRef="begin" targetRef="work"/>
      <bpmn:serviceTask id="work" camunda:type="external" camunda:topic="cube"/>
      <bpmn:boundaryEvent id="late" attachedToRef="work" cancelActivity="false">
        <bpmn:messageEventDefinition messageRef="m"/>
      </bpmn:boundaryEvent>
      <bpmn:sequenceFlow id="i2" sourceRef="work" targetRef="done"/><bpmn:endEvent id="done"/>
      <bpmn:sequenceFlow id="i3" sourceRef="late" targetRef="noted"/><bpmn:endEvent id="noted"/>
    </bpmn:subProcess>
    <bpmn:intermediateCatchEvent id="paid"><bpmn:messageEventDefinition messageRef="m"/></bpmn:intermediateCatchEvent>
    <bpmn:sequenceFlow id="f4" sourceRef="inner" targetRef="join"/>
    <bpmn:sequenceFlow id="f5" sourceRef="paid" targetRef="join"/>
    <bpmn:parallelGateway id="join"/><bpmn:sequenceFlow id="f6" sourceRef="join" targetRef="check"/>
    <bpmn:userTask id="check"/><bpmn:sequenceFlow id="f7" sourceRef="check" targetRef="end"/><bpmn:endEvent id="end"/>
  </bpmn:process>
</bpmn:definitions>
"""


# --- errors


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (InvalidInput("x"), 400, "BadRequestError"),
        (Unauthenticated("the token has expired"), 401, "UnauthorizedError"),
        (PeerError("the lock expired"), 409, "ConflictError"),
        (Conflict("topic Expired-Orders"), 409, "ConflictError"),
        (NotServed("x"), 501, "NotImplementedError"),
        (Overloaded("x"), 503, "ServiceUnavaliableError"),
    ],
)
def test_only_an_error_about_the_token_says_expired(error: StellwerkError, status: int, name: str) -> None:
    answer = answer_error(error, Request({"type": "http"}))
    body = json.loads(bytes(answer.body))
    assert (answer.status_code, body["code"], body["errorClassName"]) == (status, status, name)
    assert body["errorType"] == "Error"
    assert ("expired" in body["message"].lower()) is isinstance(error, Unauthenticated)
    assert body["additionalInformation"] == {"code": error.code, "detail": error.message}


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        (None, None),
        ("", None),
        ('/"region":"South"/', '(?a)"region":"South"'),
        ("/a\\/b/gi", "(?ai)a\\/b"),
        ("/./sm", "(?ams)."),
        ("plain.*text", "(?a)plain.*text"),
    ],
)
def test_a_javascript_expression_becomes_a_filter(text: str | None, pattern: str | None) -> None:
    assert translated_filter(text) == pattern


# --- over HTTP


@pytest.fixture
async def cube(client: Any) -> Any:
    """With ``MODEL`` deployed through ProcessCube's API."""
    reply = await _ask(client, "POST", "/process_definitions", {"xml": MODEL})
    assert reply == (204, None)
    return client


async def _ask(client: Any, method: str, path: str, body: object = None, token: str | None = None) -> tuple[int, Any]:
    content = b"" if body is None else json.dumps(body).encode()
    target = path if path.startswith("/socket.io") else PREFIX + path
    credential = "" if token is None else f"Authorization: Bearer {token}\r\n"
    head = f"{method} {target} HTTP/1.1\r\nHost: here\r\n{credential}Content-Length: {len(content)}\r\n\r\n"
    with trio.fail_after(10):
        await client.stream.send_all(head.encode() + content)
        status, headers = await client.head()
        text = b"" if status == 204 else await client.body(headers)
    return status, json.loads(text) if headers.get("content-type") == "application/json" else (text.decode() or None)


async def _key(client: Any, token: str | None = None, **identity: object) -> str:
    """The first one needs no token."""
    credential = "" if token is None else f"Authorization: Bearer {token}\r\n"
    reply = await client.post("/keys", {"name": "somebody", **identity}, credential)
    assert reply.status == 201, reply
    return str(reply.body["key"])


async def test_a_path_that_nobody_knows_is_not_there_and_a_known_one_is_refused_by_name(client: Any) -> None:
    assert (await _ask(client, "GET", "/nonsense"))[0] == 404
    status, error = await _ask(client, "POST", "/signals/alarm/trigger", {})
    assert (status, error["errorClassName"]) == (501, "NotImplementedError")
    assert "POST /atlas_engine/api/v1/signals/alarm/trigger" in error["message"]


async def test_a_search_query_is_refused_and_numbers_are_numbers(client: Any) -> None:
    status, error = await _ask(client, "GET", "/process_instances/query?state=%7B%22operator%22%3A%22or%22%7D")
    assert (status, error["code"]) == (400, 400)
    assert "query.state" in error["message"]
    assert (await _ask(client, "GET", "/process_instances/query?limit=many"))[0] == 400
    assert (await _ask(client, "GET", "/process_instances/query?state=sleeping"))[0] == 400
    assert await _ask(client, "GET", "/process_instances/query?limit=-1&unknown=1") == (
        200,
        {"processInstances": [], "totalCount": 0},
    )


async def test_a_token_that_is_no_object_is_refused(cube: Any) -> None:
    status, error = await _ask(cube, "POST", "/process_models/cube/start", {"initialToken": [1]})
    assert status == 400
    assert "$.initialToken" in error["message"]
    status, error = await _ask(cube, "POST", "/process_models/cube/start", {"returnOn": 3})
    assert "endEventId" in error["message"]


async def test_I3_a_key_sees_and_takes_only_what_it_names(cube: Any) -> None:
    _, started = await _ask(cube, "POST", "/process_models/cube/start", {})
    operator = await _key(cube, scopes=["admin"])
    names = {"processes": ["other"], "topics": ["other"], "worker_ids": ["w2"]}
    stranger = await _key(cube, operator, scopes=["client", "worker", "operator"], **names)

    status, error = await _ask(cube, "GET", "/process_models")
    assert (status, error["errorClassName"]) == (401, "UnauthorizedError")

    async def refused(method: str, path: str, body: object = None) -> None:
        status, error = await _ask(cube, method, path, body, stranger)
        assert (status, error["errorClassName"]) == (403, "ForbiddenError"), (path, error)

    fetch = {"topicName": "cube", "workerId": "w2", "longPollingTimeout": 0}
    await refused("POST", "/external_tasks/fetch_and_lock", fetch)
    await refused("POST", "/external_tasks/fetch_and_lock", {**fetch, "topicName": "other", "workerId": "w1"})
    await refused("POST", "/process_models/cube/start", {})
    await refused("POST", "/process_models/:process_model_id/start", {"processModelId": "cube"})
    await refused("GET", "/process_definitions/cube:1")
    await refused("POST", "/process_definitions", {"xml": MODEL})
    await refused("PUT", f"/process_instances/{started['processInstanceId']}/terminate")
    await refused("POST", f"/messages/paid/trigger?process_instance_id={started['processInstanceId']}", {})
    await refused("POST", "/messages/paid/trigger", {})
    for path, name in (
        ("/process_definitions", "processDefinitions"),
        ("/process_models", "processModels"),
        ("/process_instances/query", "processInstances"),
        (f"/flow_node_instances?processInstanceId={started['processInstanceId']}", "flowNodeInstances"),
        ("/flow_node_instances?flowNodeType=bpmn:UserTask&state=suspended", "flowNodeInstances"),
    ):
        assert await _ask(cube, "GET", path, token=stranger) == (200, {name: [], "totalCount": 0})
    assert await _ask(cube, "GET", "/external_tasks/deployed_topics", token=stranger) == (200, [])

    _, tasks = await _ask(cube, "POST", "/external_tasks/fetch_and_lock", {**fetch, "workerId": "w1"}, operator)
    await refused("PUT", f"/external_tasks/{tasks[0]['id']}/finish", {"workerId": "w2", "result": {}})


async def test_the_dummy_token_of_the_clients_counts_as_none(cube: Any) -> None:
    assert (await _ask(cube, "GET", "/process_models", token="ZHVtbXlfdG9rZW4="))[0] == 200
    await _key(cube, scopes=["admin"])
    assert (await _ask(cube, "GET", "/process_models", token="ZHVtbXlfdG9rZW4="))[0] == 401


# --- notifications


async def test_every_step_of_a_life_can_be_told(cube: Any, engine: ServedEngine) -> None:
    """What begins also ends, and each at the node and with the token that the history has."""
    _, started = await _ask(cube, "POST", "/process_models/cube/start", {"initialToken": {"n": 1}})
    instance_id = started["processInstanceId"]
    for _ in range(2):
        await _ask(cube, "POST", f"/messages/paid/trigger?process_instance_id={instance_id}", {"sum": 1})
    fetch = {"workerId": "w", "topicName": "cube", "longPollingTimeout": 5_000}
    _, (task,) = await _ask(cube, "POST", "/external_tasks/fetch_and_lock", fetch)
    await _ask(cube, "PUT", f"/external_tasks/{task['id']}/finish", {"workerId": "w", "result": {"worked": True}})
    person = await _person(cube)
    await _ask(cube, "PUT", f"/user_tasks/{person}/finish", {"ok": True})
    await engine.node.wait_for_end(instance_id, timeout_seconds=10)

    told = await _read(engine, instance_id)
    names = [one.name for one in told]
    assert names[:2] == ["OnProcessStarting", "OnProcessStarted"]
    assert names[-1] == "OnProcessFinished"
    assert names.count("activity_reached") == names.count("activity_finished") == 3
    assert names.count("OnGatewayReached") == names.count("OnGatewayFinished") == 3  # the join: once for each token
    assert names.count("boundary_event_triggered") == names.count("boundary_event_finished") > 0
    assert names.count("intermediate_catch_event_reached") == names.count("intermediate_catch_event_finished") == 1
    assert names.count("message_triggered") == 2
    _, nodes = await _ask(cube, "GET", f"/flow_node_instances?processInstanceId={instance_id}")
    ids = {node["flowNodeInstanceId"]: node["flowNodeId"] for node in nodes["flowNodeInstances"]}
    for one in told:
        if "flowNodeInstanceId" in one.message:
            assert ids[str(one.message["flowNodeInstanceId"])] == one.message["flowNodeId"]
    assert told[-2].message["currentToken"] == {"ok": True}


async def _person(client: Any) -> str:
    with trio.fail_after(10):
        while True:
            path = "/flow_node_instances?flowNodeType=bpmn:UserTask&state=suspended"
            _, found = await _ask(client, "GET", path)
            for task in found["flowNodeInstances"]:
                return str(task["flowNodeInstanceId"])


async def _read(engine: ServedEngine, instance_id: str) -> list[Notification]:
    steps = await engine.node.history(instance_id)
    started = steps[0].facts[0]
    assert isinstance(started, f.InstanceStarted)
    process = (await engine.node.definition_cache.get(started.definition_id)).process
    reading = InstanceReading(instance_id, started.definition_id, started.business_key, process)
    return [notification for step in steps for notification in reading.read(step)]


async def test_a_socket_that_ends_leaves_nobody_listening(cube: Any, engine: ServedEngine) -> None:
    _, opening = await _ask(cube, "GET", "/socket.io/?EIO=4&transport=polling")
    session = f"/socket.io/?EIO=4&transport=polling&sid={json.loads(opening[1:])['sid']}"
    assert await _send(cube, session, "40/api,") == (200, "ok")
    assert (await _ask(cube, "GET", session))[1].startswith('40/api,{"sid":')
    await _ask(cube, "POST", "/process_models/cube/start", {})
    assert (await _ask(cube, "GET", session))[1].startswith('42/api,["OnProcessStarting",{')
    assert len(engine.node.step_watchers) == 1

    assert await _send(cube, session, "41/api,\x1e1") == (200, "ok")
    assert len(engine.node.step_watchers) == 0
    assert (await _ask(cube, "GET", session))[0] == 400


async def test_where_several_processes_share_a_port_notifications_are_refused(
    engine: ServedEngine, tmp_path: Path
) -> None:
    """Each request may come to another of them."""
    shared = ApiContext(engine.node, Draining(), Siblings(tmp_path, "own"))
    endpoints = [one for dialect in processcube(shared) for one in dialect.endpoints]
    (fetch,) = [one for one in endpoints if (one.method, one.path) == ("GET", "/socket.io/")]
    waits = [one for one in endpoints if "/long_polling/" in one.path]
    for endpoint in (fetch, *waits):
        with pytest.raises(NotServed, match="share a port"):
            await endpoint.run(Request({"type": "http", "path_params": {"name": "process_started"}}))


async def test_what_is_no_engine_io_ends_the_session(cube: Any, engine: ServedEngine) -> None:
    _, opening = await _ask(cube, "GET", "/socket.io/?EIO=4&transport=polling")
    session = f"/socket.io/?EIO=4&transport=polling&sid={json.loads(opening[1:])['sid']}"
    assert (await _send(cube, session, "x"))[0] == 400
    assert len(engine.node.step_watchers) == 0


async def _send(client: Any, target: str, packets: str) -> tuple[int, str]:
    content = packets.encode()
    head = f"POST {target} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(content)}\r\n\r\n"
    reply = await client.ask(head.encode() + content)
    return reply.status, reply.body


# --- one session of the socket


def _socket_client(identity: Identity = ANYBODY) -> tuple[SocketClient, list[SocketClient]]:
    closed: list[SocketClient] = []
    client = SocketClient("s-1", identity, SystemClock(), closed.append, Queues())
    client.receive("40/api,")
    return client, closed


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


async def test_a_quiet_session_is_pinged_and_a_lost_one_is_dropped(autojump_clock: MockClock) -> None:
    client, closed = _socket_client()
    assert (await client.packets()).startswith("40/api,")
    assert await client.packets() == "2"
    assert trio.current_time() == pytest.approx(25.0)
    lost = []
    for seconds in (44, 2):
        await trio.sleep(seconds)
        lost.append(client.is_lost)
    assert lost == [False, True]
    client.notify(Notification("OnProcessStarted", "order", {}))
    assert closed == [client]


async def test_a_session_hears_of_its_processes_only(autojump_clock: MockClock) -> None:
    client, _ = _socket_client(Identity(name="x", scopes=(Scope.CLIENT,), processes=("order*",)))
    await client.packets()
    client.notify(Notification("OnProcessStarted", "payment", {}))
    client.notify(Notification("OnProcessStarted", "order-1", {"n": 1}))
    assert await client.packets() == '42/api,["OnProcessStarted",{"n":1}]'


async def test_a_session_that_is_never_fetched_is_closed(autojump_clock: MockClock) -> None:
    client, closed = _socket_client()
    for _ in range(5):
        client.notify(Notification("OnProcessStarted", "order", {"currentToken": "x" * 1024 * 1024}))
    assert closed == [client]
    assert await client.packets() == "1"


async def test_another_namespace_is_refused_and_nonsense_takes_nothing(autojump_clock: MockClock) -> None:
    client, _ = _socket_client()
    client.receive("40")
    assert (await client.packets()).split("\x1e")[1] == '44/,{"message":"Invalid namespace"}'
    with pytest.raises(MalformedPackets):
        client.receive("3\x1enonsense")


# --- the page


async def test_the_page_names_every_endpoint_and_every_notification(engine: ServedEngine) -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = {re.sub(r"\{[^}]*\}", "{}", one) for one in re.findall(r"`((?:GET|POST|PUT|DELETE) /[^`]*)`", text)}
    dialect = next(iter(processcube(ApiContext(engine.node, Draining()))))
    endpoints = {f"{one.method} {re.sub(r'{[^}]*}', '{}', one.path)}" for one in dialect.endpoints}
    assert endpoints - {f"{method} /{{}}" for method in ("GET", "POST", "PUT", "DELETE")} == listed
    refused = {f"{method} {re.sub(r'{[^}]*}', '{}', path)}" for method, path in NOT_SERVED}
    assert refused == {one for line in text.splitlines() if re.search(r"\| 501", line) for one in _paths_in(line)}
    assert [name for name in (*LONG_POLLING, *LONG_POLLING.values()) if f"`{name}`" not in text] == []
    assert set(NOT_TOLD).isdisjoint(LONG_POLLING)


def test_the_page_names_every_condition_of_the_queries() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for path, kind in (
        ("GET /flow_node_instances", shapes.FlowNodesQuery),
        ("GET /process_instances/query", shapes.InstancesQuery),
        ("GET /process_definitions", shapes.DefinitionsQuery),
    ):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{path}` |")]
        named = re.findall(r"`(\w+)`", row.partition(" | ")[2])
        assert sorted(named) == sorted(wire_name(field) for field in attrs.fields(kind)), path


def _paths_in(line: str) -> list[str]:
    return [re.sub(r"\{[^}]*\}", "{}", one) for one in re.findall(r"`((?:GET|POST|PUT|DELETE) /[^`]*)`", line)]


# --- odd clients


async def test_errors_of_handlers_may_be_of_any_shape(cube: Any, engine: ServedEngine) -> None:
    _, started = await _ask(cube, "POST", "/process_models/cube/start", {})
    fetch = {"workerId": "w", "topicName": ["cube", "cube"], "longPollingTimeout": 5_000}
    errors: tuple[dict[str, object], ...] = (
        {"bpmnError": {"errorCode": "Older", "errorMessage": "as Python's client has it"}},
        {"error": {"errorCode": 17, "errorMessage": {"deep": [1]}, "errorDetails": None}},
        {"error": {"errorCode": "x" * 5_000, "errorMessage": "y" * 200_000}},
        {"error": {}},
    )
    task: Any = None
    for error in errors:
        _, (task,) = await _ask(cube, "POST", "/external_tasks/fetch_and_lock", fetch)
        assert await _ask(cube, "PUT", f"/external_tasks/{task['id']}/error", {"workerId": "w", **error}) == (204, None)
        _, shown = await _ask(cube, "GET", f"/process_instances/query?processInstanceId={started['processInstanceId']}")
        assert shown["processInstances"][0]["state"] == "error"
        retry = f"/process_instances/{started['processInstanceId']}/retry"
        assert await _ask(cube, "PUT", retry, {}) == (204, None)
    status, told = await _ask(cube, "PUT", f"/external_tasks/{task['id']}/error", {"workerId": "w"})
    assert (status, told["message"]) == (400, "error is missing @ $")


@pytest.mark.parametrize("result", [None, 0, False, "", [], [1], "text"])
async def test_any_json_is_a_result(cube: Any, engine: ServedEngine, result: object) -> None:
    await _ask(cube, "POST", "/process_models/cube/start", {})
    fetch = {"workerId": "w", "topicName": "cube", "longPollingTimeout": 5_000}
    _, (task,) = await _ask(cube, "POST", "/external_tasks/fetch_and_lock", fetch)
    finish = {"workerId": "w", "result": result}
    assert await _ask(cube, "PUT", f"/external_tasks/{task['id']}/finish", finish) == (204, None)
    _, nodes = await _ask(cube, "GET", f"/flow_node_instances?flowNodeInstanceId={task['id']}")
    (node,) = nodes["flowNodeInstances"]
    assert (node["state"], node.get("endToken")) == ("finished", result)


async def test_a_file_keeps_the_encoding_that_it_declares(client: Any) -> None:
    xml = '<?xml version="1.0" encoding="ISO-8859-1"?>' + MODEL.replace('id="work"', 'id="work" name="Prüfen"')
    assert await _ask(client, "POST", "/process_definitions", {"xml": xml}) == (204, None)
    _, shown = await _ask(client, "GET", "/process_definitions/cube?includeXml=true")
    assert shown["xml"] == xml
    assert [node["name"] for node in shown["processModels"][0]["flowNodes"] if node["id"] == "work"] == ["Prüfen"]


@pytest.mark.parametrize(
    "poll",
    [
        {"maxTasks": 0},
        {"workerId": ""},
        {"topicName": [f"t{number}" for number in range(2_000)]},
        {"longPollingTimeout": -1},
    ],
)
async def test_a_poll_out_of_bounds_is_refused(client: Any, poll: dict[str, object]) -> None:
    body = {"workerId": "w", "topicName": "t", "longPollingTimeout": 0, **poll}
    status, error = await _ask(client, "POST", "/external_tasks/fetch_and_lock", body)
    assert status in (400, 413), error
