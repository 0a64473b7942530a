"""A client of ``/atlas_engine/api/v1``, and models as 5Minds Studio writes them."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio

from stellwerk.app import ServedEngine

HEAD = """<bpmn:definitions xmlns:bpmn="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn"{}>
  <bpmn:message id="m" name="paid"/><bpmn:message id="b" name="begun"/>"""
STUDIO = ' exporter="5Minds Studio"'


def waiting(key: str, *, exporter: str = STUDIO) -> str:
    """Waits for message ``paid``."""
    return f"""{HEAD.format(exporter)}
  <bpmn:process id="{key}" name="Waiting" isExecutable="true">
    <bpmn:startEvent id="start"/><bpmn:sequenceFlow id="f1" sourceRef="start" targetRef="wait"/>
    <bpmn:intermediateCatchEvent id="wait"><bpmn:messageEventDefinition messageRef="m"/></bpmn:intermediateCatchEvent>
    <bpmn:sequenceFlow id="f2" sourceRef="wait" targetRef="end"/><bpmn:endEvent id="end"/>
  </bpmn:process>
</bpmn:definitions>
"""


def started(key: str) -> str:
    """Begins by message ``begun``, and works then."""
    return f"""{HEAD.format(STUDIO)}
  <bpmn:process id="{key}" name="Started" isExecutable="true">
    <bpmn:startEvent id="begin"><bpmn:messageEventDefinition messageRef="b"/></bpmn:startEvent>
    <bpmn:sequenceFlow id="f1" sourceRef="begin" targetRef="work"/>
    <bpmn:serviceTask id="work" name="Work" camunda:type="external" camunda:topic="work"/>
    <bpmn:sequenceFlow id="f2" sourceRef="work" targetRef="end"/><bpmn:endEvent id="end"/>
  </bpmn:process>
</bpmn:definitions>
"""


@attrs.frozen
class Cube:
    engine: ServedEngine
    client: Any

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """:param path: behind the prefix."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} /atlas_engine/api/v1{path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(content)}\r\n\r\n"
        with trio.fail_after(10):
            await self.client.stream.send_all(head.encode() + content)
            status, headers = await self.client.head()
            text = b"" if status == 204 else await self.client.body(headers)
        return status, json.loads(text) if text else None

    async def deploy(self, *models: str) -> None:
        assert await self.ask("POST", "/process_definitions", {"xml": list(models)}) == (204, None)

    async def start(self, key: str, **body: object) -> str:
        status, reply = await self.ask("POST", f"/process_models/{key}/start", body)
        assert status == 200, reply
        return str(reply["processInstanceId"])

    async def variables(self, instance_id: str) -> Any:
        """When it has ended."""
        summary = await self.engine.node.wait_for_end(instance_id, timeout_seconds=10)
        assert summary.status == "COMPLETED"
        return (await self.engine.node.outcome(instance_id)).variables

    async def flow_nodes(self, query: str) -> Any:
        status, reply = await self.ask("GET", f"/flow_node_instances?{query}")
        assert status == 200, reply
        return reply

    async def instances(self, query: str) -> list[Any]:
        status, reply = await self.ask("GET", f"/process_instances/query?{query}")
        assert status == 200, reply
        return list(reply["processInstances"])


@pytest.fixture
async def cube(engine: ServedEngine, client: Any) -> Cube:
    return Cube(engine, client)


@pytest.fixture
def models() -> dict[str, str]:
    """Processes: ``first`` and ``second`` wait for message paid, ``other`` does too and is no model of ProcessCube's;
    ``begin-a`` and ``begin-b`` start by message begun and wait for a worker at "Work"."""
    return {
        "first": waiting("first"),
        "second": waiting("second"),
        "other": waiting("other", exporter=' exporter="Camunda Modeler"'),
        "begin-a": started("begin-a"),
        "begin-b": started("begin-b"),
    }
