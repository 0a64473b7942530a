"""A client of ``/engine-rest``, and models as Camunda's modeler writes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest
import trio

from stellwerk.app import ServedEngine

SHIPPING = """<?xml version="1.0" encoding="UTF-8"?>
<bpmn:definitions xmlns:bpmn="http://www.omg.org/spec/BPMN/20100524/MODEL"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn" id="d" targetNamespace="t">
  <bpmn:error id="lost" errorCode="LOST"/>
  <bpmn:message id="paid" name="paid"/>
  <bpmn:message id="begin" name="begin shipping"/>
  <bpmn:process id="shipping" name="Shipping" isExecutable="true">
    <bpmn:startEvent id="start"><bpmn:outgoing>f1</bpmn:outgoing></bpmn:startEvent>
    <bpmn:sequenceFlow id="f1" sourceRef="start" targetRef="pack"/>
    <bpmn:serviceTask id="pack" camunda:type="external" camunda:topic="pack">
      <bpmn:extensionElements>
        <camunda:properties><camunda:property name="box" value="small"/></camunda:properties>
      </bpmn:extensionElements>
    </bpmn:serviceTask>
    <bpmn:boundaryEvent id="caught" attachedToRef="pack">
      <bpmn:errorEventDefinition errorRef="lost"/>
    </bpmn:boundaryEvent>
    <bpmn:sequenceFlow id="f2" sourceRef="pack" targetRef="packed"/>
    <bpmn:endEvent id="packed"/>
    <bpmn:sequenceFlow id="f3" sourceRef="caught" targetRef="gone"/>
    <bpmn:endEvent id="gone"/>
  </bpmn:process>
  <bpmn:process id="approval" isExecutable="true">
    <bpmn:startEvent id="a1"/>
    <bpmn:sequenceFlow id="g1" sourceRef="a1" targetRef="approve"/>
    <bpmn:userTask id="approve" name="Approve" camunda:candidateGroups="sales" camunda:formKey="embedded:app:a.html"/>
    <bpmn:sequenceFlow id="g2" sourceRef="approve" targetRef="a2"/>
    <bpmn:endEvent id="a2"/>
  </bpmn:process>
  <bpmn:process id="payment" isExecutable="true">
    <bpmn:startEvent id="p1"/>
    <bpmn:sequenceFlow id="h1" sourceRef="p1" targetRef="wait"/>
    <bpmn:receiveTask id="wait" messageRef="paid"/>
    <bpmn:sequenceFlow id="h2" sourceRef="wait" targetRef="p2"/>
    <bpmn:endEvent id="p2"/>
  </bpmn:process>
  <bpmn:process id="started" isExecutable="true">
    <bpmn:startEvent id="m1"><bpmn:messageEventDefinition messageRef="begin"/></bpmn:startEvent>
    <bpmn:sequenceFlow id="i1" sourceRef="m1" targetRef="look"/>
    <bpmn:userTask id="look"/>
    <bpmn:sequenceFlow id="i2" sourceRef="look" targetRef="m2"/>
    <bpmn:endEvent id="m2"/>
  </bpmn:process>
</bpmn:definitions>
"""


@attrs.frozen
class Answer:
    status: int
    headers: dict[str, str]
    body: Any
    """What the JSON says, else text."""


@attrs.define
class CamundaClient:
    """Paths are behind ``/engine-rest``."""

    api: Any
    _connect: Callable[[], Awaitable[Any]]

    async def get(self, path: str) -> Any:
        return await self.send("GET", path)

    async def post(self, path: str, body: object = None) -> Any:
        return await self.send("POST", path, body)

    async def put(self, path: str, body: object) -> Any:
        return await self.send("PUT", path, body)

    async def delete(self, path: str) -> Any:
        return await self.send("DELETE", path)

    async def send(
        self, method: str, path: str, body: object = None, kind: str = "application/json", headers: str = ""
    ) -> Any:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"{method} /engine-rest{path} HTTP/1.1\r\nHost: here\r\nContent-Type: {kind}\r\n{headers}"
        with trio.fail_after(20):
            await self.api.stream.send_all(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            status, answered = await self.api.head()
            text = await self.api.body({"content-length": "0", **answered})
        if answered.get("connection") == "close":  # it was refused before its body was read
            await self.api.stream.aclose()
            self.api = await self._connect()
        is_json = answered.get("content-type") == "application/json"
        return Answer(status, answered, json.loads(text) if is_json else text.decode())

    async def deploy(self, xml: str, name: str = "model.bpmn", **fields: str) -> Any:
        parts = [f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}' for key, value in fields.items()]
        parts.append(
            f'Content-Disposition: form-data; name="data"; filename="{name}"\r\n'
            f"Content-Type: application/octet-stream\r\n\r\n{xml}"
        )
        body = "".join(f"--frontier\r\n{part}\r\n" for part in parts) + "--frontier--\r\n"
        return await self.send("POST", "/deployment/create", body.encode(), "multipart/form-data; boundary=frontier")

    async def start(self, key: str, **body: object) -> str:
        reply = await self.post(f"/process-definition/key/{key}/start", body)
        assert reply.status == 200, reply
        return str(reply.body["id"])

    async def fetch(self, *topics: str, worker: str = "w-1", max_tasks: int = 10, **more: object) -> list[Any]:
        """:param more: of each topic."""
        wanted = [{"topicName": topic, "lockDuration": 20_000, **more} for topic in topics]
        reply = await self.post(
            "/external-task/fetchAndLock", {"workerId": worker, "maxTasks": max_tasks, "topics": wanted}
        )
        assert reply.status == 200, reply
        return list(reply.body)

    async def fetch_one(self, topic: str, worker: str = "w-1", **more: Any) -> Any:
        (task,) = await self.fetch(topic, worker=worker, **more)
        return task

    async def variables(self, instance_id: str) -> Any:
        """As the engine keeps them, also of an instance that has ended."""
        return (await self.api.get(f"/process-instances/{instance_id}")).body["variables"]

    async def status(self, instance_id: str) -> str:
        """When it has ended or an incident is open, and otherwise after some seconds."""
        reply = await self.api.get(f"/process-instances/{instance_id}/wait?timeout_ms=8000&or_incident=true")
        return str(reply.body["status"])


@pytest.fixture
def shipping_model() -> str:
    """Processes ``shipping`` (external task, topic pack, error LOST), ``approval`` (user task of group sales),
    ``payment`` (waits for message paid), ``started`` (by message "begin shipping")."""
    return SHIPPING


@pytest.fixture
async def connect_camunda(
    engine: ServedEngine, connect_to: Callable[[ServedEngine], Any]
) -> AsyncIterator[Callable[[], Awaitable[CamundaClient]]]:
    """``await connect_camunda()``: one more client with a connection of its own."""
    async with AsyncExitStack() as connections:

        async def connect() -> Any:
            return await connections.enter_async_context(connect_to(engine))

        async def client() -> CamundaClient:
            return CamundaClient(await connect(), connect)

        yield client


@pytest.fixture
async def camunda(engine: ServedEngine, connect_camunda: Callable[[], Awaitable[CamundaClient]]) -> CamundaClient:
    """With ``shipping_model`` deployed."""
    await engine.node.deploy([("shipping.bpmn", SHIPPING.encode())])
    return await connect_camunda()
