"""Every text in every request of the foreign APIs: with a NUL, a lone surrogate, too long, or no text at all.

It is refused (4xx) in that API's form, naming the field, and nothing has changed. The fields come from the classes of
bodies and queries, so that one which is added later is looked at too.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
import trio

from stellwerk.app import MEMORY, AppConfig, ServedEngine, serve_engine
from stellwerk.server.camunda import shapes as camunda_shapes
from stellwerk.server.camunda.dialect import camunda
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.context import ApiContext, Dialect
from stellwerk.server.http.structuring import wire_name
from stellwerk.server.processcube import shapes as cube_shapes
from stellwerk.server.processcube.dialect import NOT_SERVED, processcube
from stellwerk.system.logging import LogLevel

MODEL = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn">
  <message id="m" name="paid"/>
  <process id="work" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="fork"/><parallelGateway id="fork"/>
    <sequenceFlow id="f2" sourceRef="fork" targetRef="held"/><sequenceFlow id="f3" sourceRef="fork" targetRef="look"/>
    <sequenceFlow id="f4" sourceRef="fork" targetRef="wait"/><sequenceFlow id="f5" sourceRef="fork" targetRef="free"/>
    <serviceTask id="held" camunda:type="external" camunda:topic="held"/>
    <serviceTask id="free" camunda:type="external" camunda:topic="free"/>
    <userTask id="look"/>
    <receiveTask id="wait" messageRef="m"/>
  </process>
</definitions>
"""
NUL, SURROGATE = "a\x00b", "a\ud800b"
NO_TEXTS: tuple[object, ...] = (7, True, ["a"], {"a": 1})


@attrs.frozen
class Case:
    """An endpoint. A body or query with these values would be done."""

    body: type | None = None
    values: dict[str, Any] = attrs.field(factory=dict)
    query: type | None = None


@attrs.frozen
class World:
    engine: ServedEngine
    send: Callable[[str, str, bytes], Awaitable[tuple[int, Any]]]
    ids: dict[str, str]
    """By the name of a path's parameter."""

    def target(self, path: str, **instead: str) -> str:
        return re.sub(r"\{(\w+)(?::\w+)?\}", lambda name: {**self.ids, **instead}[name[1]], path)

    async def everything(self) -> object:
        """What the store has, leases among it; a poll that finds nothing changes nothing."""
        store = self.engine.node.ports.store
        return (
            list(await store.instances()),
            list(await store.tasks()),
            list(await store.user_tasks()),
            list(await store.incidents()),
            [(row.definition_id, row.digest) for row in await store.definitions()],
            list(await store.disabled_processes()),
            list(await self.engine.node.waiting_messages()),
        )


WORKER = {"workerId": "w"}
CAMUNDA: dict[tuple[str, str], Case] = {
    ("POST", "/external-task"): Case(camunda_shapes.TasksQuery),
    ("GET", "/external-task"): Case(query=camunda_shapes.TasksQuery),
    ("POST", "/external-task/count"): Case(camunda_shapes.TasksQuery),
    ("GET", "/external-task/count"): Case(query=camunda_shapes.TasksQuery),
    ("PUT", "/external-task/retries"): Case(camunda_shapes.RetriesOfManyRequest, {"retries": 9}),
    ("POST", "/external-task/fetchAndLock"): Case(
        camunda_shapes.FetchRequest,
        {"workerId": "w", "maxTasks": 1, "topics": [{"topicName": "none", "lockDuration": 9000}]},
    ),
    ("GET", "/external-task/topic-names"): Case(query=camunda_shapes.TopicNamesQuery),
    ("GET", "/external-task/{task_id}"): Case(),
    ("GET", "/external-task/{task_id}/errorDetails"): Case(),
    ("POST", "/external-task/{task_id}/complete"): Case(camunda_shapes.CompleteRequest, WORKER),
    ("POST", "/external-task/{task_id}/failure"): Case(camunda_shapes.FailureRequest, WORKER),
    ("POST", "/external-task/{task_id}/bpmnError"): Case(camunda_shapes.BpmnErrorRequest, {**WORKER, "errorCode": "E"}),
    ("POST", "/external-task/{task_id}/extendLock"): Case(
        camunda_shapes.ExtendLockRequest, {**WORKER, "newDuration": 9000}
    ),
    ("POST", "/external-task/{task_id}/lock"): Case(camunda_shapes.LockRequest, {**WORKER, "lockDuration": 9000}),
    ("POST", "/external-task/{task_id}/unlock"): Case(),
    ("PUT", "/external-task/{task_id}/retries"): Case(camunda_shapes.RetriesRequest, {"retries": 1}),
    ("PUT", "/external-task/{task_id}/priority"): Case(camunda_shapes.PriorityRequest, {"priority": 1}),
    ("POST", "/deployment/create"): Case(),
    ("GET", "/process-definition"): Case(query=camunda_shapes.ProcessDefinitionsQuery),
    ("GET", "/process-definition/count"): Case(query=camunda_shapes.ProcessDefinitionsQuery),
    ("GET", "/process-definition/{definition_id}"): Case(),
    ("GET", "/process-definition/key/{key}"): Case(),
    ("GET", "/process-definition/{definition_id}/xml"): Case(),
    ("GET", "/process-definition/key/{key}/xml"): Case(),
    ("POST", "/process-definition/{definition_id}/start"): Case(camunda_shapes.StartRequest),
    ("POST", "/process-definition/key/{key}/start"): Case(camunda_shapes.StartRequest),
    ("DELETE", "/process-definition/{definition_id}"): Case(),
    ("POST", "/process-instance"): Case(camunda_shapes.ProcessInstancesQuery),
    ("GET", "/process-instance"): Case(query=camunda_shapes.ProcessInstancesQuery),
    ("POST", "/process-instance/count"): Case(camunda_shapes.ProcessInstancesQuery),
    ("GET", "/process-instance/count"): Case(query=camunda_shapes.ProcessInstancesQuery),
    ("GET", "/process-instance/{instance_id}"): Case(),
    ("DELETE", "/process-instance/{instance_id}"): Case(),
    ("GET", "/process-instance/{instance_id}/variables"): Case(query=camunda_shapes.ValuesQuery),
    ("POST", "/process-instance/{instance_id}/variables"): Case(camunda_shapes.VariablesRequest),
    ("GET", "/process-instance/{instance_id}/variables/{name}"): Case(query=camunda_shapes.ValuesQuery),
    ("PUT", "/process-instance/{instance_id}/variables/{name}"): Case(values={"value": "v", "type": "String"}),
    ("POST", "/message"): Case(camunda_shapes.MessageRequest, {"messageName": "nobody waits for this"}),
    ("POST", "/task"): Case(camunda_shapes.UserTasksQuery),
    ("GET", "/task"): Case(query=camunda_shapes.UserTasksQuery),
    ("POST", "/task/count"): Case(camunda_shapes.UserTasksQuery),
    ("GET", "/task/count"): Case(query=camunda_shapes.UserTasksQuery),
    ("GET", "/task/{task_id}"): Case(),
    ("GET", "/task/{task_id}/variables"): Case(query=camunda_shapes.ValuesQuery),
    ("POST", "/task/{task_id}/complete"): Case(camunda_shapes.CompleteUserTaskRequest),
    ("POST", "/task/{task_id}/submit-form"): Case(camunda_shapes.CompleteUserTaskRequest),
    ("POST", "/task/{task_id}/claim"): Case(camunda_shapes.AssigneeRequest),
    ("POST", "/task/{task_id}/unclaim"): Case(),
    ("POST", "/task/{task_id}/assignee"): Case(camunda_shapes.AssigneeRequest),
    ("GET", "/engine"): Case(),
}
CUBE: dict[tuple[str, str], Case] = {
    ("GET", "/info"): Case(),
    ("GET", "/authority"): Case(),
    ("GET", "/external_tasks/deployed_topics"): Case(),
    ("POST", "/external_tasks/fetch_and_lock"): Case(
        cube_shapes.FetchAndLockRequest, {**WORKER, "topicName": "none", "longPollingTimeout": 0}
    ),
    ("PUT", "/external_tasks/{task_id}/extend_lock"): Case(
        cube_shapes.ExtendLockRequest, {**WORKER, "additionalDuration": 9000}
    ),
    ("PUT", "/external_tasks/{task_id}/finish"): Case(cube_shapes.FinishRequest, WORKER),
    ("PUT", "/external_tasks/{task_id}/error"): Case(cube_shapes.ErrorRequest, {**WORKER, "error": {"errorCode": "E"}}),
    ("POST", "/process_definitions"): Case(cube_shapes.DeployRequest, {"xml": "<a/>"}),
    ("GET", "/process_definitions"): Case(query=cube_shapes.DefinitionsQuery),
    ("GET", "/process_definitions/{definition_id}"): Case(query=cube_shapes.DefinitionsQuery),
    ("DELETE", "/process_definitions/{definition_id}"): Case(query=cube_shapes.DeleteQuery),
    ("GET", "/process_models"): Case(query=cube_shapes.PagedQuery),
    ("GET", "/process_models/{model_id}"): Case(),
    ("GET", "/process_models/{model_id}/"): Case(),
    ("DELETE", "/process_models/{model_id}"): Case(),
    ("GET", "/process_models/{model_id}/process_definition"): Case(query=cube_shapes.DefinitionsQuery),
    ("POST", "/process_models/{model_id}/enable"): Case(),
    ("POST", "/process_models/{model_id}/disable"): Case(),
    ("GET", "/process_instances/{instance_id}/process_definition"): Case(query=cube_shapes.DefinitionsQuery),
    ("GET", "/process_instances/{instance_id}/process_model"): Case(),
    ("POST", "/process_models/{model_id}/start"): Case(cube_shapes.StartRequest, {"returnOn": 1}),
    ("GET", "/process_instances/query"): Case(query=cube_shapes.InstancesQuery),
    ("PUT", "/process_instances/{instance_id}/terminate"): Case(),
    ("PUT", "/process_instances/{instance_id}/retry"): Case(query=cube_shapes.RetryQuery),
    ("GET", "/flow_node_instances"): Case(query=cube_shapes.FlowNodesQuery),
    ("PUT", "/user_tasks/{task_id}/finish"): Case(),
    ("PUT", "/user_tasks/{task_id}/reserve"): Case(cube_shapes.ReserveRequest),
    ("DELETE", "/user_tasks/{task_id}/cancel-reservation"): Case(),
    ("PUT", "/manual_tasks/{task_id}/finish"): Case(),
    ("PUT", "/untyped_tasks/{task_id}/finish"): Case(),
    ("PUT", "/empty_activities/{task_id}/finish"): Case(),
    ("POST", "/messages/{name}/trigger"): Case(query=cube_shapes.TriggerQuery),
    ("GET", "/notifications/long_polling/{name}"): Case(),
}
TEXTS_OF_ANY_SHAPE = {
    "FetchAndLockRequest.topicName",
    "DeployRequest.xml",
    "WorkerError.errorCode",
    "WorkerError.errorMessage",
}
"""Fields that are texts, or lists of texts, by what is made of them."""
SHORTENED = ("error.errorCode", "error.errorMessage", "bpmnError.errorCode", "bpmnError.errorMessage")
"""What a handler has thrown is taken in any shape and length: its task must not stay locked for that."""
LONG_TEXTS = (("errorMessage",), ("variables", 0))
"""Up to 64 KiB, and names of variables together."""
LISTS = ("topicName", "xml")
"""One text may stand there in a list."""
NOT_HERE = 501
"""Fields that are not served are refused so, whatever they hold."""


# --- fields and what is put there ------------------------------------------------------------------------------------


def texts_in(kind: type, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Places of texts, by names on the wire."""
    hints = typing.get_type_hints(kind)
    for field in attrs.fields(kind):
        name = wire_name(field)
        if f"{kind.__name__}.{name}" in TEXTS_OF_ANY_SHAPE:
            yield (*where, name)
        else:
            yield from _texts_of(hints[field.name], (*where, name))


def _texts_of(hint: Any, where: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is str or origin is Literal:
        yield where
    elif origin in (typing.Union, types.UnionType):
        yield from _texts_of(next(each for each in arguments if each is not type(None)), where)
    elif origin is tuple:
        yield from _texts_of(arguments[0], (*where, 0))
    elif attrs.has(hint):
        yield from texts_in(hint, where)


def with_value(values: Any, place: tuple[str | int, ...], value: object) -> Any:
    """A copy that has `value` there."""
    head, *rest = place
    if isinstance(head, int):
        inner = values[0] if isinstance(values, list) and values else {}
        return [with_value(inner, tuple(rest), value) if rest else value]
    inner = values.get(head, {}) if isinstance(values, dict) else {}
    if not rest:
        beside = {"sortBy": "id"} if head == "sortOrder" else {}
        return {**(values if isinstance(values, dict) else {}), **beside, head: value}
    return {**(values if isinstance(values, dict) else {}), head: with_value(inner, tuple(rest), value)}


def shown(place: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)


# --- the two APIs ----------------------------------------------------------------------------------------------------


def endpoints_of(dialect: Dialect) -> set[tuple[str, str]]:
    paths = {(one.method, one.path) for one in dialect.endpoints}
    return {(method, path) for method, path in paths if not path.startswith(("/{path", "/engine/"))} - set(NOT_SERVED)


@attrs.frozen
class Api:
    prefix: str
    cases: dict[tuple[str, str], Case]
    names: dict[str, str]
    """Of path parameters, for whole paths that use another kind of id: which one it is."""

    def refusal(self, reply: Any) -> str:
        """What it says; it is in the API's form."""
        if self.prefix == "/engine-rest":
            assert {"type", "message", "code"} <= set(reply), reply
            assert reply["type"] in ("RestException", "InvalidRequestException"), reply
        else:
            assert {"errorClassName", "code", "message", "errorType", "additionalInformation"} <= set(reply), reply
        return str(reply["message"])


CAMUNDA_API = Api("/engine-rest", CAMUNDA, {"/task/": "user_task_id"})
CUBE_API = Api(
    "/atlas_engine/api/v1",
    CUBE,
    dict.fromkeys(("/user_tasks/", "/manual_tasks/", "/untyped_tasks/", "/empty_activities/"), "user_task_id"),
)
APIS = pytest.mark.parametrize("api", [CAMUNDA_API, CUBE_API], ids=["camunda", "processcube"])


@pytest.fixture(params=["memory", "SQLite"])
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, connect_to: Callable[[ServedEngine], Any]
) -> AsyncIterator[World]:
    """An instance that has a task leased by worker w, one that is free, a user task, and waits for a message."""
    db = MEMORY if request.param == "memory" else tmp_path / "engine.db"
    config = AppConfig(db=db, port=0, log_level=LogLevel.ERROR, synchronous="NORMAL")
    async with serve_engine(config) as engine, AsyncExitStack() as stack:
        await engine.node.deploy([("model.bpmn", MODEL.encode())])
        instance_id = await engine.node.start_instance("work", {"n": 1})
        clients = [await stack.enter_async_context(connect_to(engine))]

        async def send(method: str, target: str, content: bytes = b"") -> tuple[int, Any]:
            head = f"{method} {target} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(content)}\r\n\r\n"
            with trio.fail_after(20):
                await clients[-1].stream.send_all(head.encode() + content)
                status, headers = await clients[-1].head()
                text = await clients[-1].body({"content-length": "0", **headers})
            if headers.get("connection") == "close":
                clients.append(await stack.enter_async_context(connect_to(engine)))
            is_json = headers.get("content-type") == "application/json"
            return status, json.loads(text) if is_json else text.decode()

        topics = [{"topicName": "held", "lockDuration": 3_600_000}]
        fetch = {"workerId": "w", "maxTasks": 1, "topics": topics, "asyncResponseTimeout": 10_000}
        _, (task,) = await send("POST", "/engine-rest/external-task/fetchAndLock", json.dumps(fetch).encode())
        (person,) = await engine.node.user_tasks()
        ids = {
            "instance_id": instance_id,
            "task_id": task["id"],
            "user_task_id": str(person["user_task_id"]),
            "definition_id": "work:1",
            "key": "work",
            "model_id": "work",
            "name": "n",
        }
        yield World(engine, send, ids)


def ids_for(api: Api, path: str, world: World) -> dict[str, str]:
    kind = next((kind for prefix, kind in api.names.items() if path.startswith(prefix)), None)
    return {} if kind is None else {"task_id": world.ids[kind]}


def test_texts_are_found_in_all_classes_of_bodies() -> None:
    """The generator finds them."""
    places = {shown(place) for case in CAMUNDA.values() if case.body for place in texts_in(case.body)}
    assert {".workerId", ".topics[0].businessKey", ".externalTaskQuery.topicName", ".sorting[0].sortBy"} <= places
    places = {shown(place) for case in CUBE.values() if case.body for place in texts_in(case.body)}
    assert {".topicName", ".bpmnError.errorCode", ".startEventId", ".xml", ".payloadFilter"} <= places


@APIS
async def test_no_id_in_a_path_is_taken_for_another(world: World, api: Api) -> None:
    context = ApiContext(world.engine.node, Draining())
    dialect = camunda(context) if api is CAMUNDA_API else next(processcube(context))
    assert endpoints_of(dialect) == api.cases.keys()
    before = await world.everything()
    for (method, path), case in api.cases.items():
        content = json.dumps(case.values).encode() if method in ("POST", "PUT") else b""
        for parameter in re.findall(r"\{(\w+)", path):
            for hostile in ("a%00b", "%ED%A0%80", "x" * 5_000):
                target = api.prefix + world.target(path, **{**ids_for(api, path, world), parameter: hostile})
                status, reply = await world.send(method, target, content)
                if hostile == "%ED%A0%80":
                    assert status == 400  # is no text at all: no API is asked
                    continue
                is_other_name = parameter == "name" and "long_polling" in path
                assert status in (400, 404, 413) or (is_other_name and status == NOT_HERE), (
                    method,
                    target[:200],
                    reply,
                )
                api.refusal(reply)
    assert await world.everything() == before


@APIS
async def test_no_text_in_a_body_is_taken_that_is_none(world: World, api: Api) -> None:
    before = await world.everything()
    looked_at = 0
    for (method, path), case in api.cases.items():
        for place in texts_in(case.body) if case.body is not None else ():
            looked_at += 1
            target = api.prefix + world.target(path, **ids_for(api, path, world))
            for hostile in (
                NUL,
                SURROGATE,
                "x" * (70_000 if place[-2:] in LONG_TEXTS or place[-1:] in LONG_TEXTS else 5_000),
                *NO_TEXTS,
            ):
                name = shown(place)
                if name.lstrip(".") in SHORTENED and hostile not in (NUL, SURROGATE):
                    continue
                if place[-1] in LISTS and (hostile == ["a"] or len(str(hostile)) > 1_000):
                    continue
                content = json.dumps(with_value(case.values, place, hostile)).encode()
                status, reply = await world.send(method, target, content)
                what = (method, path, name, str(hostile)[:30], reply)
                assert status in (400, 413, NOT_HERE), what
                # A lone surrogate is no JSON; and of some lists the length is looked at as a whole.
                named = f"@ ${name.removesuffix('[0]') if place[-2:] in LONG_TEXTS or status == NOT_HERE else name}"
                assert named in api.refusal(reply) or hostile == SURROGATE, what
    assert looked_at > (60 if api is CAMUNDA_API else 12)
    assert await world.everything() == before


def fields_in(kind: type, where: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], object]]:
    """Places of all fields that have a type, and what is of another type."""
    hints = typing.get_type_hints(kind)
    for field in attrs.fields(kind):
        yield from _fields_of(hints[field.name], (*where, wire_name(field)))


def _fields_of(hint: Any, where: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], object]]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    wrong = {int: "1", bool: "true", str: 1}
    if origin in (typing.Union, types.UnionType):
        yield from _fields_of(next(each for each in arguments if each is not type(None)), where)
    elif hint in wrong:
        yield where, wrong[hint]
    elif origin in (tuple, dict):
        yield where, "text"
        if origin is tuple:
            yield from _fields_of(arguments[0], (*where, 0))
    elif attrs.has(hint):
        yield where, "text"
        yield from fields_in(hint, where)


@APIS
async def test_every_field_of_a_wrong_type_is_named_as_the_caller_names_it(world: World, api: Api) -> None:
    before = await world.everything()
    looked_at = 0
    for (method, path), case in api.cases.items():
        for place, wrong in fields_in(case.body) if case.body is not None else ():
            if place in (("firstResult",), ("maxResults",)):
                continue  # which part of a list is said by the query
            looked_at += 1
            content = json.dumps(with_value(case.values, place, wrong)).encode()
            status, reply = await world.send(method, api.prefix + world.target(path), content)
            message = api.refusal(reply)
            assert status == 400, (path, place, reply)
            assert re.search(rf"@ \{'$'}{re.escape(shown(place))}(;|$)", message), (path, place, message)
    assert looked_at > (150 if api is CAMUNDA_API else 15)
    assert await world.everything() == before


@APIS
async def test_no_text_in_a_query_is_taken_that_is_none(world: World, api: Api) -> None:
    before = await world.everything()
    looked_at = 0
    for (method, path), case in api.cases.items():
        for field in attrs.fields(case.query) if case.query is not None else ():
            name = wire_name(field)
            if name == "sorting":
                continue
            looked_at += 1
            target = api.prefix + world.target(path, **ids_for(api, path, world))
            for hostile in ("a%00b", "%ED%A0%80", "x" * 5_000):
                beside = "sortBy=id&" if name == "sortOrder" else ""
                status, reply = await world.send(method, f"{target}?{beside}{name}={hostile}", b"{}")
                what = (method, path, name, hostile[:30], reply)
                assert status in (400, 413), what
                place = "@ query" if hostile == "%ED%A0%80" else f"query.{name}"
                said = api.refusal(reply)
                assert place in said, what
    assert looked_at > 25
    assert await world.everything() == before
