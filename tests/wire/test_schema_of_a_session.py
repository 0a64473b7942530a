"""What a real worker and a real engine say to each other is valid by the protocol's schema."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from jsonschema import Draft202012Validator
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, open_websocket_url, serve_websocket

import stellwerk
from stellwerk.wire.messages import SUBPROTOCOL, WORKERS_PATH
from stellwerk.wire.schema import json_schema
from stellwerk.worker import BpmnError, CancelSignal, Task, TaskFailure, Worker

MODEL = """<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="{topic}" isExecutable="true" stellwerk:failurePolicy="incident">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="step"/>
    <serviceTask id="step" stellwerk:topic="{topic}" stellwerk:retryBackoff="PT0S"/>
    <sequenceFlow id="f2" sourceRef="step" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>
"""
TOPICS = ("works", "fails-once", "is-declined", "is-cancelled")


@attrs.define
class Conversation:
    """A WebSocket between worker and engine that writes down what passes."""

    url: str = ""
    of_worker: list[str | bytes] = attrs.field(factory=list)
    of_engine: list[str | bytes] = attrs.field(factory=list)

    @property
    def types(self) -> set[str]:
        frames = [json.loads(frame) for frame in (*self.of_worker, *self.of_engine)]
        return {message["type"] for frame in frames for message in (frame if isinstance(frame, list) else [frame])}


@asynccontextmanager
async def recorded(engine_url: str) -> AsyncIterator[Conversation]:
    conversation = Conversation()

    async def pass_on(source: WebSocketConnection, target: WebSocketConnection, record: list[str | bytes]) -> None:
        try:
            while True:
                frame = await source.get_message()
                record.append(frame)
                await target.send_message(frame)
        except ConnectionClosed:
            await source.aclose()
            await target.aclose()

    async def serve(request: WebSocketRequest) -> None:
        worker = await request.accept(subprotocol=SUBPROTOCOL)
        url = engine_url.replace("http:", "ws:") + WORKERS_PATH
        async with open_websocket_url(url, subprotocols=[SUBPROTOCOL]) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(pass_on, worker, engine, conversation.of_worker)
            nursery.start_soon(pass_on, engine, worker, conversation.of_engine)

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, serve, "127.0.0.1", 0, None)
        conversation.url = f"http://127.0.0.1:{server.port}"
        yield conversation
        nursery.cancel_scope.cancel()


def busy_worker(url: str, began: trio.Event) -> Worker:
    worker = Worker(url)

    @worker.task("works")
    async def work(payload: dict[str, object], task: Task) -> dict[str, object]:
        await trio.to_thread.run_sync(task.extend, 60.0)
        return {"done": [1, 2.5, None, {"ä": "\N{GRINNING FACE}"}]}

    @worker.task("fails-once")
    async def fail(payload: dict[str, object], task: Task) -> None:
        if task.attempt == 1:
            raise TaskFailure("not yet", retry_after=0.0)

    @worker.task("is-declined", lock_duration=1.5)
    async def decline(payload: dict[str, object]) -> None:
        raise BpmnError("DECLINED", "no", {"why": ["no money"]})

    @worker.task("is-cancelled", variables=["a"])
    async def wait(payload: dict[str, object], task: Task, signal: CancelSignal) -> None:
        began.set()
        await trio.sleep_forever()

    return worker


async def test_every_frame_of_a_real_session_is_valid() -> None:
    schema = json_schema()
    worker_frames = Draft202012Validator({**schema, "anyOf": [{"$ref": "#/$defs/worker_frame"}]})
    engine_frames = Draft202012Validator({**schema, "anyOf": [{"$ref": "#/$defs/engine_frame"}]})
    with trio.fail_after(30):
        async with stellwerk.open_engine(port=0) as engine, recorded(str(engine.url)) as conversation:
            await engine.deploy(*((f"{topic}.bpmn", MODEL.format(topic=topic).encode()) for topic in TOPICS))
            began = trio.Event()
            worker = busy_worker(conversation.url, began)
            async with trio.open_nursery() as nursery:
                await nursery.start(worker.serve)
                instances = {topic: await engine.start(topic, {"a": 1, "b": "ü"}) for topic in TOPICS}
                for topic in ("works", "fails-once", "is-declined"):
                    await engine.wait_for_end(instances[topic], or_incident=True)
                await began.wait()
                await engine.cancel(instances["is-cancelled"], "not wanted")
                while "revoked" not in conversation.types:
                    await trio.testing.wait_all_tasks_blocked()
                worker.stop()
    for frame in conversation.of_worker:
        worker_frames.validate(json.loads(frame))
    for frame in conversation.of_engine:
        engine_frames.validate(json.loads(frame))
    assert conversation.types >= {
        "hello", "welcome", "subscribe", "tasks", "received", "complete", "ack", "fail", "bpmn_error", "extend",
        "renewed", "revoked", "goodbye",
    }  # fmt: skip
