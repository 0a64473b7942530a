"""Any language can be a worker: one that knows the served documents, and nothing else, gets tasks and completes them.

Both documents are fetched from a live engine. Nothing is sent that they do not describe, and whatever comes is held
against them, down to fields that they do not name.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import attrs
import pytest
from jsonschema import Draft202012Validator
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

Json: TypeAlias = dict[str, Any]

MODEL = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="shipping" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="ship"/>
    <serviceTask id="ship" stellwerk:topic="ship"/>
    <boundaryEvent id="lost" attachedToRef="ship"><errorEventDefinition/></boundaryEvent>
    <sequenceFlow id="f2" sourceRef="ship" targetRef="e"/><endEvent id="e"/>
    <sequenceFlow id="f3" sourceRef="lost" targetRef="e2"/><endEvent id="e2"/>
  </process>
</definitions>
"""
ANSWER_SECONDS = 30


def resolved(document: Json, described: Json) -> Json:
    """What a reference stands for."""
    while "$ref" in described:
        target: Any = document
        for name in described["$ref"].removeprefix("#/").split("/"):
            target = target[name.replace("~1", "/").replace("~0", "~")]
        described = target
    return described


def closed(document: Json) -> Json:
    """No object may have fields that it does not name."""
    schemas = {
        name: {**schema, "additionalProperties": False} for name, schema in document["components"]["schemas"].items()
    }
    return {**document, "components": {**document["components"], "schemas": schemas}}


def check(document: Json, schema: Json, value: object, what: str) -> None:
    whole = {**schema, "components": document["components"]}
    validator = Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER)
    wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]
    assert wrong == [], f"{what}: {value}"


# --- requests and answers --------------------------------------------------------------------------------------------


@attrs.frozen
class HttpApi:
    """Knows operations by the ids that the OpenAPI document gives them."""

    live: Any
    document: Json

    def call(
        self, operation_id: str, body: Json | None = None, /, *, status: int = 200, query: str = "", **path: str
    ) -> Any:
        method, template, operation = self._operation(operation_id)
        assert {*re.findall(r"{(\w+)}", template)} == {*path}
        if body is not None:
            content = operation["requestBody"]["content"]["application/json"]
            check(self.document, content["schema"], body, operation_id)
        found, kind, answer = self.live.ask(method.upper(), template.format(**path) + query, body)
        assert found == status, answer
        response = resolved(self.document, operation["responses"][str(status)])
        check(self.document, response["content"][kind]["schema"], answer, operation_id)
        return answer

    def _operation(self, operation_id: str) -> tuple[str, str, Json]:
        (found,) = (
            (method, template, operation)
            for template, operations in self.document["paths"].items()
            for method, operation in operations.items()
            if operation["operationId"] == operation_id
        )
        return found


# --- frames ----------------------------------------------------------------------------------------------------------


class PushSession:
    """Knows the messages by the names that the AsyncAPI document gives them."""

    def __init__(self, document: Json, connection: ClientConnection) -> None:
        self._document = document
        self._connection = connection
        self._heard: deque[Json] = deque()

    def send(self, operation: str, name: str, **fields: object) -> list[str]:
        """→ the names of the messages that may answer it."""
        described = self._document["operations"][operation]
        assert described["action"] == "receive", "the engine receives what a worker sends"
        schema = self._schema(self._payload(described["messages"], name))
        message = {"type": schema["properties"]["type"]["const"], **fields}
        check(self._document, schema, message, name)
        self._connection.send(json.dumps(message))
        return [self._name(message) for message in described.get("reply", {}).get("messages", [])]

    def receive(self, *names: str) -> Json:
        """The next message of one of these names."""
        while True:
            for message in self._heard:
                if message["type"] in names:
                    self._heard.remove(message)
                    return message
            self._read()

    def _read(self) -> None:
        text = self._connection.recv(timeout=ANSWER_SECONDS)
        assert isinstance(text, str), "a text frame"
        frame = json.loads(text)
        for message in frame if isinstance(frame, list) else [frame]:
            check(
                self._document, self._schema(self._payload(self._engine_messages(), message["type"])), message, "frame"
            )
            self._heard.append(message)

    def _engine_messages(self) -> list[Json]:
        operations = self._document["operations"].values()
        sent = [message for one in operations if one["action"] == "send" for message in one["messages"]]
        return sent + [message for one in operations if "reply" in one for message in one["reply"]["messages"]]

    def _payload(self, messages: list[Json], name: str) -> Json:
        (found, *_) = (message for message in messages if self._name(message) == name)
        payload: Json = resolved(self._document, found)["payload"]
        return payload

    def _name(self, message: Json) -> str:
        return str(resolved(self._document, message)["name"])

    def _schema(self, payload: Json) -> Json:
        return resolved(self._document, payload)


@contextmanager
def pushed(live: Any, document: Json) -> Iterator[PushSession]:
    (channel,) = document["channels"].values()
    (server,) = document["servers"].values()
    handshake = channel["bindings"]["ws"]["headers"]["properties"]
    url = f"{server['protocol']}://{live.url.removeprefix('http://')}{channel['address']}"
    subprotocol = Subprotocol(handshake["Sec-WebSocket-Protocol"]["const"])
    with connect(url, subprotocols=[subprotocol], proxy=None) as connection:
        assert connection.subprotocol == subprotocol
        yield PushSession(document, connection)


# --- workers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def api(live: Any) -> HttpApi:
    status, _, document = live.ask("GET", "/api/v1/openapi.json")
    assert status == 200
    found = HttpApi(live, closed(document))
    found.call("deploy", {"files": [{"name": "shipping.bpmn", "xml": MODEL}]}, status=201)
    return found


@pytest.fixture(scope="module")
def messages(live: Any) -> Json:
    status, _, document = live.ask("GET", "/api/v1/asyncapi.json")
    assert status == 200
    return closed(document)


def start(api: HttpApi, parcel: str) -> str:
    started = api.call("start", {"process_def_id": "shipping", "variables": {"parcel": parcel}}, status=201)
    return str(started["instance_id"])


def ended(api: HttpApi, instance_id: str) -> tuple[str, Any]:
    status = api.call("wait", query="?timeout_ms=10000", instance_id=instance_id)["status"]
    return status, api.call("instance", instance_id=instance_id)["variables"]


def test_W12_a_worker_made_from_the_asyncapi_document_is_pushed_a_task_and_completes_it(
    live: Any, api: HttpApi, messages: Json
) -> None:
    instance_id = start(api, "p-1")
    with pushed(live, messages) as session:
        hello = {"worker_id": "cobol", "boot_id": "b-1", "session_no": 1, "client": "cobol/85", "token": live.token}
        welcome = session.receive(*session.send("greet", "hello", **hello))
        assert welcome["type"] == "welcome", welcome
        lock_duration_ms = max(10_000, welcome["limits"]["lock_duration_ms_min"])
        assert session.send("report", "subscribe", topic="ship", max_tasks=1, lock_duration_ms=lock_duration_ms) == []
        tasks = session.receive("tasks")
        session.send("report", "received", delivery=tasks["delivery"])
        (task,) = tasks["tasks"]
        assert (task["process_instance_id"], task["variables"]) == (instance_id, {"parcel": "p-1"})
        lease = {"task_id": task["task_id"], "fence": task["fence"]}
        answers = session.send("request", "extend", ref=1, lock_duration_ms=60_000, **lease)
        assert session.receive(*answers) == {"type": "ack", "ref": 1}
        answers = session.send("request", "complete", ref=2, variables={"tracked": True}, **lease)
        assert session.receive(*answers) == {"type": "ack", "ref": 2}
        late = session.receive(*session.send("request", "fail", ref=3, message="too late", **lease))
        assert (late["type"], late["ref"]) == ("nack", 3)
        session.send("report", "goodbye")
    assert ended(api, instance_id) == ("COMPLETED", {"parcel": "p-1", "tracked": True})


def test_W12_a_worker_made_from_the_openapi_document_polls_for_a_task_and_completes_it(api: HttpApi) -> None:
    instance_id = start(api, "p-2")
    me = {"worker_id": "fortran"}
    (task,) = api.call("fetch_and_lock", {**me, "task_types": ["ship"], "wait_ms": 10_000, "lock_duration_ms": 10_000})
    assert (task["process_instance_id"], task["variables"]) == (instance_id, {"parcel": "p-2"})
    lease = {**me, "fence": task["fence"]}
    api.call("extend_lock", {**lease, "extension_ms": 60_000}, task_id=task["task_id"])
    api.call("complete", {**lease, "variables": {"tracked": True}}, task_id=task["task_id"])
    assert ended(api, instance_id) == ("COMPLETED", {"parcel": "p-2", "tracked": True})
    late = api.call("fail", {**lease, "error": "too late"}, status=409, task_id=task["task_id"])
    assert late["code"] == "already_finished"


@pytest.mark.parametrize("way", ["pushed", "polled"])
def test_W12_so_are_business_errors_and_failures(live: Any, api: HttpApi, messages: Json, way: str) -> None:
    instance_id = start(api, "p-3")
    details = {"where": [1, None, "ü"]}
    task: Json = {}
    if way == "polled":
        me = {"worker_id": "ada"}
        (task,) = api.call("fetch_and_lock", {**me, "task_types": ["ship"], "wait_ms": 10_000})
        failure = {**me, "fence": task["fence"], "error": "flat tyre", "details": details, "retry_after_ms": 0}
        api.call("fail", failure, task_id=task["task_id"])
        (task,) = api.call("fetch_and_lock", {**me, "task_types": ["ship"], "wait_ms": 10_000})
        api.call(
            "bpmn_error",
            {**me, "fence": task["fence"], "code": "LOST", "variables": {"lost": 1}},
            task_id=task["task_id"],
        )
    else:
        with pushed(live, messages) as session:
            hello = {"worker_id": "ada", "boot_id": "b-2", "session_no": 1, "client": "", "token": live.token}
            session.receive(*session.send("greet", "hello", **hello))
            session.send("report", "subscribe", topic="ship", max_tasks=1)
            finals: list[tuple[str, Json]] = [
                ("fail", {"message": "flat tyre", "details": details, "retry_after_ms": 0}),
                ("bpmn_error", {"code": "LOST", "variables": {"lost": 1}}),
            ]
            for ref, (name, fields) in enumerate(finals):
                (task,) = session.receive("tasks")["tasks"]
                lease = {"task_id": task["task_id"], "fence": task["fence"]}
                answers = session.send("request", name, ref=ref, **lease, **fields)
                assert session.receive(*answers) == {"type": "ack", "ref": ref}
    assert task["attempt"] == 2
    assert ended(api, instance_id) == ("COMPLETED", {"parcel": "p-3", "lost": 1})
